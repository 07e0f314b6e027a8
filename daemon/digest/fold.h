/*
 * fold.h: the calls of one rank, folded: one hash for each 64 collectives of a communicator, a sum for its messages
 * and a hash for each 64 of a pair, and what `moe_core` has observed (observe.h).
 *
 * A fold is fed what an engine would be fed of this rank, at a few nanoseconds a record, and tells what is new since it
 * was asked last. Pure: no clock, no input or output. One thread per fold.
 */
#ifndef ROLL_DAEMON_DIGEST_FOLD_H
#define ROLL_DAEMON_DIGEST_FOLD_H

#include "daemon/digest/digest.h"
#include "trace/def.h"
#include "trace/record.h"

typedef struct roll_fold roll_fold_t;

/* inside_ns: a host that has been inside one call for so long is told of, and a rank that calls nothing for twice as
 * long. NULL: no memory. */
roll_fold_t *roll_fold_new(uint64_t inside_ns);
void roll_fold_destroy(roll_fold_t **fold);

/* A communicator of the rank, by the rank's own id of it, before the records that use the id. Borrows info. A second
 * definition of an id is ignored. 0, NOMEM, LIMIT. */
int roll_fold_comm(roll_fold_t *fold, uint32_t id, const struct roll_def_comm *info);
/*
 * Takes one record: a new one, in the order of tickets, or one that is known with a later state. now_ns: time on any
 * clock that only goes forward; hosts inside calls are measured by it. 0, NOMEM.
 */
int roll_fold_record(roll_fold_t *fold, const struct roll_record *rec, uint64_t now_ns);
/* Records were lost: what the rank has called meanwhile is not known, on no communicator. */
void roll_fold_lost(roll_fold_t *fold);
/* Appends what is new since the last time: windows that were filled, fronts and sums that have changed, hints. */
void roll_fold_cut(roll_fold_t *fold, uint64_t now_ns, struct roll_digest *out);
/* The rank's process has ended: it uses no communicator any more. Records that it left may still come. */
void roll_fold_ended(roll_fold_t *fold);
/* Makes the next cut tell everything that is still known: the receiver was started anew. Of a communicator that has
 * been gone for ROLL_DIGEST_KEEP_NS only the rank's place is known. */
void roll_fold_again(roll_fold_t *fold);

/* The ticket from which on all is there that the rank has observed since a step (roll_observed_step of digest.h);
 * UINT64_MAX: nothing is wanted of it. */
uint64_t roll_fold_observed(const roll_fold_t *fold, uint32_t step);
/* Of this step that is not known any more: it is that of the oldest step that is. The records may tell. */
bool roll_fold_forgot(const roll_fold_t *fold, uint32_t step);

/* For how long no record has come. */
uint64_t roll_fold_quiet_ns(const roll_fold_t *fold, uint64_t now_ns);

/* Where the rank stands, for who begins to feed its newest records to an engine (roll_engine_place): the i-th of them,
 * from 0; false: there is no such. */
struct roll_fold_place {
    uint16_t comm; /* the rank's own id; 0: there is nothing at i, because nobody has defined it */
    uint8_t op;    /* ROLL_OP_SEND, ROLL_OP_RECV; ROLL_OP_NONE: collectives */
    uint32_t peer; /* of messages */
    uint32_t next; /* the number that the next call has */
    uint32_t made; /* of messages: those that were no captured ones; else the calls of CommSplit */
    bool sure;     /* no call may be missing */
};
bool roll_fold_place(const roll_fold_t *fold, size_t i, struct roll_fold_place *out);

#endif
