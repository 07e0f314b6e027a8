/*
 * match.h: what met what: collectives on their slots, messages on their nodes, and the collectives that NCCL makes of
 * messages.
 */
#ifndef ROLL_ENGINE_MATCH_H
#define ROLL_ENGINE_MATCH_H

#include "daemon/engine/model/engine_state.h"

/* --- match.c --- */
uint64_t match_signature(const struct roll_record *rec);
int match_collective(struct roll_engine *e, struct member *m, struct entry *entry, uint64_t ticket);
/* A call meets those that are on its slot already; match_open has a disagreement judged. 0 or NOMEM. */
int match_meet(struct roll_engine *e, const struct member *m, struct slot *s, const struct entry *entry,
               uint64_t ticket);
void match_open(struct roll_engine *e, struct comm *c, uint32_t seq);
void match_ready(struct member *m, uint32_t seq);
void match_release(struct roll_engine *e, struct comm *c, struct slot *s); /* drops the variants */

/* --- p2p.c --- */
int p2p_call(struct roll_engine *e, struct member *m, struct entry *entry, uint64_t ticket);
uint64_t p2p_bytes(const struct roll_record *rec); /* of one message */
/* It is known how many messages this side of the pair has made. */
bool p2p_known(const struct pair *p, unsigned side);
void p2p_ready(struct entry *entry);
/* Nothing was enqueued: the call does not count. */
void p2p_refused(struct roll_engine *e, struct member *m, struct entry *entry);
/* A call that was refused bears the number of earlier ones: they were, too. */
void p2p_repeat(struct roll_engine *e, struct member *m, const struct roll_record *rec);
static inline unsigned p2p_side(const struct roll_record *rec)
{
    return rec->op == ROLL_OP_RECV;
}
/* The group of this call touches more than half of the communicator: an all-to-all-v. */
bool p2p_is_alltoallv(const struct source *s, uint64_t ticket);

/* --- lowered.c: AlltoAll, Gather and Scatter are messages --- */
#define LOWERED_UNKNOWN UINT32_MAX
static inline bool lowered_op(unsigned op)
{
    return op == ROLL_OP_ALLTOALL || op == ROLL_OP_GATHER || op == ROLL_OP_SCATTER;
}
/* A Gather or Scatter, of its root; of another member, which waits for the root alone. */
static inline bool lowered_root(const struct member *m, const struct roll_record *rec)
{
    return (rec->op == ROLL_OP_GATHER || rec->op == ROLL_OP_SCATTER) && rec->peer == m->rank;
}
static inline bool lowered_leaf(const struct member *m, const struct roll_record *rec)
{
    return (rec->op == ROLL_OP_GATHER || rec->op == ROLL_OP_SCATTER) && rec->peer != m->rank;
}
void lowered_note(struct member *m, const struct roll_record *rec, bool made); /* false: it was refused after all */
/* Number + 1 of the last such collective with a message from src to dst that the member, one of the two, has made; 0:
 * none. */
uint32_t lowered_before(const struct member *m, uint32_t src, uint32_t dst);
void lowered_free(struct member *m);

#endif
