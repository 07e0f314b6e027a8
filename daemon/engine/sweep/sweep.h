/*
 * sweep.h: which calls are complete.
 */
#ifndef ROLL_DAEMON_ENGINE_SWEEP_SWEEP_H
#define ROLL_DAEMON_ENGINE_SWEEP_SWEEP_H

#include "daemon/engine/match/match.h"

void sweep(struct roll_engine *e);
/* NCCL keeps the calls of one communicator in order, whatever their streams: the queue whose head this call waits for;
 * NULL: it has its turn. */
struct queue *sweep_turn(struct source *s, const struct entry *entry, uint64_t ticket);
void sweep_waited(struct roll_engine *e, struct source *s, const struct roll_record *wait); /* the host came back */
void sweep_done(struct roll_engine *e, struct source *s, const struct roll_record *rec);    /* the device says so */
/* On its own rank: it may be complete nowhere else. */
bool entry_over(const struct source *s, const struct entry *entry);

#endif
