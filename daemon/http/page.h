/*
 * page.h: the web page of rollcalld (docs/WEB.md): assets, questions, and what is told as it happens.
 *
 * The page knows nothing of jobs. A question of a browser waits here until the thread that owns the answers takes it,
 * and that thread publishes texts that every listener of a topic is sent. So the HTTP thread never sees the engine, and
 * the root's thread never waits for a browser. A console's connection for each browser was rejected: a hundred open
 * pages would have a hundred times the same answer made.
 */
#ifndef ROLL_DAEMON_HTTP_PAGE_H
#define ROLL_DAEMON_HTTP_PAGE_H

#include "trace/ring.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROLL_PAGE_ARGS       8u
#define ROLL_PAGE_TEXT_BYTES 128u /* longest name or value of an argument, its end included */
#define ROLL_PAGE_TOPICS     16u  /* runs that are listened to at a time */
#define ROLL_PAGE_LISTENERS  100u /* pages that are told at a time: others ask now and then */
#define ROLL_PAGE_ASKS       32u  /* questions that wait at a time */
#define ROLL_PAGE_NEWEST     (-1)

/* What a listener is told of its run, each by itself, and only when it has changed. */
enum roll_page_part {
    ROLL_PAGE_STATUS,   /* rollcall.status/2 */
    ROLL_PAGE_PLACES,   /* the order of ranks in the field, by nodes */
    ROLL_PAGE_FIELD,    /* how each rank stands: one letter each */
    ROLL_PAGE_FINDINGS, /* the findings in short */
    ROLL_PAGE_WAITS,    /* who waits for whom */
    ROLL_PAGE_PARTS
};

/* A question as it was asked. */
struct roll_page_ask {
    uint64_t number;
    char op[32];
    bool operates; /* asked with the operator's password, by POST, from the page itself */
    unsigned args;
    struct {
        char name[ROLL_PAGE_TEXT_BYTES], value[ROLL_PAGE_TEXT_BYTES];
    } arg[ROLL_PAGE_ARGS];
};

/* A run that is listened to. */
struct roll_page_topic {
    uint64_t id;               /* never used again */
    char job[ROLL_NAME_BYTES]; /* "" = the newest run */
    int64_t restart;           /* ROLL_PAGE_NEWEST: that of the job */
    bool fresh;                /* nothing has been published of it */
};

typedef struct roll_page roll_page_t;

/* Makes a page that opens with one of these passwords (borrowed until destroyed); users are "viewer" and "operator".
 * 0, NOMEM, IO. */
int roll_page_new(const char *viewer, const char *operator_, roll_page_t **out);
/* After the server that shows the page has ended. */
void roll_page_destroy(roll_page_t **page);

/* What follows is for the one thread that answers. */

/* Becomes readable when a question or a listener has come. */
int roll_page_fd(const roll_page_t *page);
/* Takes the oldest question; false: none waits. */
bool roll_page_take(roll_page_t *page, struct roll_page_ask *out);
/* Answers a question with JSON. Takes text (malloc'ed); NULL: there is no memory for the answer. */
void roll_page_answer(roll_page_t *page, uint64_t number, unsigned status, char *text);
/* Topic i that has listeners, from 0; false: it has none. i < ROLL_PAGE_TOPICS. */
bool roll_page_topic(roll_page_t *page, unsigned i, struct roll_page_topic *out);
/* What the listeners of the topic with this id are told from here on: one line of JSON. The same text again is told
 * nobody, and nothing is where nobody listens to it any more. Borrows text. */
void roll_page_publish(roll_page_t *page, uint64_t id, enum roll_page_part part, const char *text);

#endif
