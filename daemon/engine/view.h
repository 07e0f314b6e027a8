/*
 * view.h: what the views of the faces share. Private to view.c, view_state.c, view_why.c and view_ripe.c.
 */
#ifndef ROLL_DAEMON_ENGINE_VIEW_H
#define ROLL_DAEMON_ENGINE_VIEW_H

#include "daemon/engine/say/say.h"

uint64_t
view_inside(const struct source *s); /* ticket + 1 of the oldest call that a thread of the rank is inside; 0: none */
/* The call that keeps a queue from going on, with the ranks that it lacks, and how many of its members have never been
 * seen. NULL: none does. */
struct entry *view_in_the_way(const struct roll_engine *e, const struct source *s, const struct queue *q,
                              struct roll_rankset *missing, uint32_t *unknown);
/* How far a call has come, in one word; "" for no call. */
const char *view_state(const struct source *s, const struct roll_record *rec);
/* The same in words, and nothing for the plain case: the call has returned. */
void view_words_state(struct words *w, const struct roll_engine *e, const struct source *s,
                      const struct roll_record *rec);

#endif
