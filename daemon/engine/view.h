/*
 * view.h: what the views of the faces share. Private to view.c, view_state.c,
 * view_wait.c, view_why.c and view_ripe.c.
 */
#ifndef ROLL_DAEMON_ENGINE_VIEW_H
#define ROLL_DAEMON_ENGINE_VIEW_H

#include "daemon/base/map.h"
#include "daemon/engine/say/say.h"

uint64_t
view_inside(const struct source *s); /* ticket + 1 of the oldest call that a thread of the rank is inside; 0: none */
/* Whom a call lacks: a key of the ranks, how many they are, and how many members besides have never been seen. */
struct view_lacks {
    uint64_t set;
    uint32_t known, unknown;
};

/* A collective lacks the same members whoever waits in it, and of 16,384 ranks all but one may wait in the same. Held
 * while keys are made, during which nothing is fed. */
struct view_memo {
    struct roll_map at; /* from communicator and number to an index of `lacks` */
    struct view_lacks *lacks;
    size_t used, room;
};

/*
 * The call that keeps a queue from going on: the first that some member has not made. It need not be the head: a group
 * waits as a whole, and calls before it may wait for peers that wait in turn. Where everybody has made all calls, it is
 * the first that is incomplete. NULL: the queue goes on. memo: NULL = the members are looked up each time.
 */
struct entry *view_find_wait(const struct roll_engine *e, const struct source *s, const struct queue *q,
                             struct view_memo *memo, struct view_lacks *lacks);
/* The same call, with the ranks that it lacks, and how many of its members have never been
 * seen. NULL: none does. */
struct entry *view_in_the_way(const struct roll_engine *e, const struct source *s, const struct queue *q,
                              struct roll_rankset *missing, uint32_t *unknown);
/* How far a call has come, in one word; "" for no call. */
const char *view_state(const struct source *s, const struct roll_record *rec);
/* The same in words, and nothing for the plain case: the call has returned. */
void view_words_state(struct words *w, const struct roll_engine *e, const struct source *s,
                      const struct roll_record *rec);

#endif
