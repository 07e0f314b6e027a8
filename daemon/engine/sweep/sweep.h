/*
 * sweep.h: which calls are complete, as far as the calls of the ranks can tell: sweep.c.
 */
#ifndef ROLL_DAEMON_ENGINE_SWEEP_SWEEP_H
#define ROLL_DAEMON_ENGINE_SWEEP_SWEEP_H

#include "daemon/engine/match/match.h"

/* Takes all complete calls out of the queues of all ranks. */
void sweep(struct roll_engine *e);
/* The same for the ranks that were stirred, which as a rule are all that can move. */
void sweep_stirred(struct roll_engine *e);
/* NCCL keeps the calls of one communicator in order, whatever their streams: the other queue in which an earlier call
 * on the communicator stands, for which this call waits; NULL: the call has its turn. */
struct queue *sweep_turn(struct source *s, const struct entry *entry, uint64_t ticket);
/*
 * The first call of this queue, with its group, stands by events behind calls on other streams that are not complete:
 * their queues, into out[ROLL_BEHIND_MAX]; returns how many. 0: nothing keeps it from running.
 */
uint32_t sweep_held(struct source *s, const struct queue *q, struct queue **out);
/* The host came back from this wait, so that the calls that the wait covers are over on its rank. */
void sweep_waited(struct roll_engine *e, struct source *s, const struct roll_record *wait);
/* The device has completed this call, so that it and the calls before it on its stream are over on its rank. */
void sweep_done(struct roll_engine *e, struct source *s, const struct roll_record *rec);
/* This call is over on its own rank; other ranks may still wait in it. */
bool entry_over(const struct source *s, const struct entry *entry);

#endif
