/*
 * match.h: what met what: collectives on their slots, messages on their nodes, and the collectives that NCCL makes of
 * messages.
 */
#ifndef ROLL_DAEMON_ENGINE_MATCH_MATCH_H
#define ROLL_DAEMON_ENGINE_MATCH_MATCH_H

#include "daemon/engine/model/engine_state.h"

/* match.c: collectives on their slots */

/* What NCCL compares of a call, in effect, as a number: calls that agree have the same. */
uint64_t match_signature(const struct roll_record *rec);
/* How a call stands to the call that its rank made before it on this communicator. */
struct match_how {
    bool joined;  /* both are in one group */
    bool follows; /* the call before it is known */
};
/* The number of this call is not the member's next one: calls between the two are not known, and count as made. False:
 * an earlier call has the number, so nothing can be said about this one. */
bool match_jump(struct member *m, struct entry *entry);
/* The call takes its number. False: an earlier call has it, and this one gets no slot. The function stands on the path
 * of every record and is therefore defined here. */
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
    MATCH_DIFFERS = 1, /* it differs from the call that came first */
    MATCH_GROUPED = 2, /* it is the same call, but only one of the two is in one group with the call before it */
    MATCH_MIXED = 4    /* all members have come now, with as many bytes and not of one datatype */
};
/* The call takes its slot, for which there is room. *met: bits of enum match_met. 0, NOMEM. */
int match_collective(struct roll_engine *e, const struct member *m, const struct entry *entry, uint64_t ticket,
                     const struct match_how *how, unsigned *met);
/* Compares a call with those that are on its slot already: it becomes the first, or a variant where it differs. 0,
 * NOMEM. */
int match_meet(struct roll_engine *e, const struct member *m, struct slot *s, const struct entry *entry,
               uint64_t ticket);
/* The member comes in at `next`: its collectives before that are not known, and count as made. */
void match_place(struct member *m, uint32_t next, bool sure);
/* The slot of this collective counts one member more as ready. */
void match_ready(const struct comm *c, uint32_t seq);

/* p2p.c: messages on their nodes */

/* The call takes its number in its pair, which is *out; NULL: there is none, because the peer is no member. 0, NOMEM;
 * LIMIT: there is no room for the pair, which has been counted. */
int p2p_enter(struct roll_engine *e, struct member *m, const struct entry *entry, struct pair **out);
/* What a message has met on its node. */
enum p2p_met {
    P2P_CROSSED = 1, /* before the two sides stand different collectives of those that NCCL makes of messages */
    P2P_DIFFERS = 2  /* the two sides differ in bytes; the node keeps the bytes of the side that came first */
};
/* The call takes the next node of its pair, which has room for it. Returns bits of enum p2p_met. */
unsigned p2p_meet(const struct roll_engine *e, const struct member *m, struct pair *p, struct entry *entry,
                  uint64_t ticket);
/* The bytes of one message of this call. */
uint64_t p2p_bytes(const struct roll_record *rec);
/* This side comes in behind its first `made` messages: they have been made, and only how many there were is known. */
void p2p_place(struct roll_engine *e, struct source *s, struct pair *p, unsigned side, uint32_t made);
/* The node of this message counts its side as ready. */
void p2p_ready(struct entry *entry);
/* The call was refused: it gives its number and its node back. */
void p2p_refused(struct roll_engine *e, struct member *m, struct entry *entry);
/* A call that was refused bears a number that other calls have already: those, and the calls after them, were refused
 * as well. */
void p2p_repeat(struct roll_engine *e, struct member *m, const struct roll_record *rec);
/* The side of its pair that this call is: 0 a send, 1 a receive. */
static inline unsigned p2p_side(const struct roll_record *rec)
{
    return rec->op == ROLL_OP_RECV;
}
/* The call is part of an all-to-all-v: the messages of its group are with more than half of the communicator. */
bool p2p_is_alltoallv(const struct source *s, uint64_t ticket);

/* lowered.c: AlltoAll, Gather and Scatter, which NCCL makes of messages */

#define LOWERED_UNKNOWN UINT32_MAX /* lowered_before: not known */
/* NCCL makes this operation of messages. */
static inline bool lowered_op(unsigned op)
{
    return roll_op_has(op, ROLL_TRAIT_LOWERED);
}
/* The operation is one of those, and has a root: Gather, Scatter. */
static inline bool lowered_rooted(unsigned op)
{
    return roll_op_among(op, roll_ops_with(ROLL_TRAIT_LOWERED) & roll_ops_with(ROLL_TRAIT_ROOT));
}
/* The call is a Gather or Scatter, and m is its root. */
static inline bool lowered_root(const struct member *m, const struct roll_record *rec)
{
    return lowered_rooted(rec->op) && rec->peer == m->rank;
}
/* The call is a Gather or Scatter, and m is not its root: m waits for the root alone. */
static inline bool lowered_leaf(const struct member *m, const struct roll_record *rec)
{
    return lowered_rooted(rec->op) && rec->peer != m->rank;
}
/* Notes that the member has made such a call; made false: the call was refused after all. */
void lowered_note(struct member *m, const struct roll_record *rec, bool made);
/* Of such calls by the member the last that holds a message from src to dst, one of which the member is: its number +
 * 1; 0: there is none; LOWERED_UNKNOWN. */
uint32_t lowered_before(const struct member *m, uint32_t src, uint32_t dst);
void lowered_free(struct member *m);

/* zero.c: calls of no elements, which NCCL drops */

/* Remembers that the member has made such a call. */
void zero_remember(struct member *m, const struct roll_record *rec, uint64_t ticket);
/* The dropped call of s, whose signature (with one element) is `sig`, is the call that `by` made, but for its count. */
bool zero_stands_for(const struct source *s, const struct entry *dropped, uint64_t sig, const struct source *by,
                     const struct roll_record *made);
/* How many calls of m were dropped at this place, each of which may stand for the call that `by` made; *ticket: the
 * last of them. */
uint32_t zero_dropped(const struct roll_engine *e, const struct member *m, uint32_t seq, const struct source *by,
                      const struct roll_record *made, uint64_t *ticket);
/* Calls of m that were dropped are like this one. */
bool zero_drops(const struct member *m, const struct roll_record *rec);

#endif
