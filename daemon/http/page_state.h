/*
 * page_state.h: what the files of the page share. Private to daemon/http. Everything here is under the page's lock, but
 * for what a comment says otherwise.
 */
#ifndef ROLL_DAEMON_HTTP_PAGE_STATE_H
#define ROLL_DAEMON_HTTP_PAGE_STATE_H

#include "daemon/http/auth_digest.h"
#include "daemon/http/page.h"

#include <microhttpd.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

/* A text that several listeners are being sent. */
struct roll_page_text {
    unsigned refs;
    size_t bytes;
    char at[];
};

/* An ask that waits; found by its number. */
struct roll_page_wait {
    struct MHD_Connection *connection; /* suspended until `answered`; NULL = this place is free */
    struct roll_page_ask ask;
    bool taken, answered;
    unsigned status;
    char *text; /* owned */
};

struct roll_page_listener {
    roll_page_t *page;
    struct MHD_Connection *connection; /* NULL = this place is free */
    unsigned topic;
    bool suspended;
    uint64_t seen[ROLL_PAGE_PARTS]; /* version of what was sent last; 0 = nothing */
    struct roll_page_text *text;    /* on its way; holds a reference */
    size_t sent;                    /* bytes of it */
};

struct roll_page {
    pthread_mutex_t lock;
    int fd;                         /* of an eventfd */
    bool ends;                      /* the server is about to end: nobody is suspended any more */
    const char *viewer, *operator_; /* immutable */
    struct roll_auth_nonces nonces; /* immutable */
    uint64_t asked, topics;         /* how many there have been */
    struct roll_page_wait wait[ROLL_PAGE_ASKS];
    struct roll_page_listener listener[ROLL_PAGE_LISTENERS];
    struct {
        unsigned listeners;
        struct roll_page_topic is;
        struct {
            uint64_t version;
            struct roll_page_text *text; /* holds a reference */
        } part[ROLL_PAGE_PARTS];
    } topic[ROLL_PAGE_TOPICS];
};

static inline void roll_page_drop(struct roll_page_text *text)
{
    if (text != NULL && --text->refs == 0) {
        free(text);
    }
}

/* Wakes the thread that answers. */
static inline void roll_page_wake(const roll_page_t *page)
{
    uint64_t one = 1;
    (void)!write(page->fd, &one, sizeof(one)); /* a counter that is full wakes as well */
}

/* page_send.c: answers. All return what the handler of a request returns. */
enum MHD_Result roll_page_send(struct MHD_Connection *connection, unsigned status, const char *type,
                               struct MHD_Response *response); /* takes the response, which may be NULL */
enum MHD_Result roll_page_send_json(struct MHD_Connection *connection, unsigned status, const char *json);

/* page_asset.c: whether there is such a file; and it. */
bool roll_page_has_asset(const char *url);
enum MHD_Result roll_page_send_asset(struct MHD_Connection *connection, const char *url);

/* page_login.c: who asks. */
enum roll_page_who { ROLL_PAGE_NOBODY, ROLL_PAGE_VIEWER, ROLL_PAGE_OPERATOR };
enum roll_page_who roll_page_login(const roll_page_t *page, struct MHD_Connection *connection, const char *method,
                                   const char *url, bool *stale);
enum MHD_Result roll_page_send_login(const roll_page_t *page, struct MHD_Connection *connection, bool stale);

/* page_ask.c: a question begins, and is answered. *state is NULL, or what the first call has put there. */
enum MHD_Result roll_page_ask(roll_page_t *page, struct MHD_Connection *connection, const char *op, bool operates,
                              void **state);
/* The request whose question this is has ended. */
void roll_page_ask_over(roll_page_t *page, struct roll_page_wait *wait);

/* page_listen.c: a listener begins. */
enum MHD_Result roll_page_listen(roll_page_t *page, struct MHD_Connection *connection);

/* What the server in metrics.c calls. */

/* Whether the page has something there. */
bool roll_page_has(const char *url);
/* As the handler of MHD, of a request that is whole. *listens: the connection is a listener's from here on. */
enum MHD_Result roll_page_handle(roll_page_t *page, struct MHD_Connection *connection, const char *url,
                                 const char *method, void **state, bool *listens);
/* Lets go of everybody who waits; before the server ends. */
void roll_page_end(roll_page_t *page);

#endif
