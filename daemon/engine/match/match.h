/*
 * match.h: what met what: collectives on their slots, messages on their nodes, and the collectives that NCCL makes of
 * messages.
 */
#ifndef ROLL_DAEMON_ENGINE_MATCH_MATCH_H
#define ROLL_DAEMON_ENGINE_MATCH_MATCH_H

#include "daemon/engine/model/engine_state.h"

/* match.c */
uint64_t match_signature(const struct roll_record *rec);
/* How a call stands to its rank's call before it on this communicator. */
struct match_how {
    bool joined;  /* in one group with it */
    bool follows; /* that call is known */
};
/* The call has not the number that is next. False: it has none of its own. */
bool match_jump(struct member *m, struct entry *entry);
/* The call takes its number. False: it has none of its own, and has no slot. On the path of every record, and therefore
 * here. */
static inline bool match_enter(struct member *m, struct entry *entry, struct match_how *how)
{
    const struct roll_record *rec = &entry->rec;
    if (rec->seq != m->next && !match_jump(m, entry)) {
        return false;
    }
    how->joined = rec->group != 0 && rec->group == m->group;
    how->follows = rec->seq == m->next && !m->unsure && m->thread == rec->thread; /* groups are a thread's own */
    m->next = rec->seq + 1;
    m->unsure = false;
    m->group = rec->group;
    m->thread = rec->thread;
    return true;
}
/* What a collective has met on its slot. */
enum match_met {
    MATCH_DIFFERS = 1, /* another call than that which came first */
    MATCH_GROUPED = 2, /* the same call, but one of the two is in one group with the call before it, the other is not */
    MATCH_MIXED = 4    /* all members have come, with as many bytes and not of one datatype */
};
/* The call takes its slot, which there is room for. *met: bits of enum match_met. 0 or NOMEM. */
int match_collective(struct roll_engine *e, const struct member *m, const struct entry *entry, uint64_t ticket,
                     const struct match_how *how, unsigned *met);
/* A call is compared with those that are on its slot already. 0 or NOMEM. */
int match_meet(struct roll_engine *e, const struct member *m, struct slot *s, const struct entry *entry,
               uint64_t ticket);
void match_ready(struct member *m, uint32_t seq);

/* p2p.c */
/* The call takes its number in its pair: *out. NULL: it has no pair, because its peer is not a member. 0 or NOMEM. */
int p2p_enter(struct roll_engine *e, struct member *m, const struct entry *entry, struct pair **out);
/* What a message has met on its node. */
enum p2p_met {
    P2P_CROSSED = 1, /* the two sides have different collectives before them that NCCL makes of messages */
    P2P_DIFFERS = 2  /* the two sides differ in bytes; the node keeps the bytes of the side that came first */
};
/* The call takes the next node of its pair, which has room for it; returns bits of enum p2p_met. */
unsigned p2p_meet(const struct roll_engine *e, const struct member *m, struct pair *p, struct entry *entry,
                  uint64_t ticket);
uint64_t p2p_bytes(const struct roll_record *rec); /* of one message */
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

/* lowered.c: AlltoAll, Gather and Scatter are messages */
#define LOWERED_UNKNOWN UINT32_MAX
static inline bool lowered_op(unsigned op)
{
    return roll_op_has(op, ROLL_TRAIT_LOWERED);
}
/* A Gather or Scatter, of its root; of another member, which waits for the root alone. */
static inline bool lowered_rooted(unsigned op)
{
    return roll_op_among(op, roll_ops_with(ROLL_TRAIT_LOWERED) & roll_ops_with(ROLL_TRAIT_ROOT));
}
static inline bool lowered_root(const struct member *m, const struct roll_record *rec)
{
    return lowered_rooted(rec->op) && rec->peer == m->rank;
}
static inline bool lowered_leaf(const struct member *m, const struct roll_record *rec)
{
    return lowered_rooted(rec->op) && rec->peer != m->rank;
}
void lowered_note(struct member *m, const struct roll_record *rec, bool made); /* false: it was refused after all */
/* Number + 1 of the last such collective with a message from src to dst that the member, one of the two, has made; 0:
 * none. */
uint32_t lowered_before(const struct member *m, uint32_t src, uint32_t dst);
void lowered_free(struct member *m);

/* zero.c: calls of no elements */
void zero_remember(struct member *m, const struct roll_record *rec, uint64_t ticket);
/* The dropped call would have been what `by` made, but for its count. */
bool zero_stands_for(const struct source *s, const struct entry *dropped, uint64_t sig, const struct source *by,
                     const struct roll_record *made);
/* How many calls m has dropped at this place that may stand for what `by` made; *ticket: the last one. */
uint32_t zero_dropped(const struct roll_engine *e, const struct member *m, uint32_t seq, const struct source *by,
                      const struct roll_record *made, uint64_t *ticket);
bool zero_drops(const struct member *m, const struct roll_record *rec); /* it has dropped calls like this one */

#endif
