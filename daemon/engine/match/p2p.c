/*
 * p2p.c: sends and receives meet in the order in which they were made, for each pair of ranks on a communicator.
 *
 * The n-th send meets the n-th receive, empty ones included: to NCCL a message of 0 bytes is a message, which needs its
 * partner as any other does. Frameworks that leave empty messages out do so on both sides, and then there is nothing to
 * match. To leave empty messages out of the numbering was rejected: a rank that skips an exchange in which all its
 * messages are empty holds its peers up for ever, and would not be seen. To match by size was rejected: NCCL does not
 * do so, and the very mistakes that are looked for would be hidden.
 *
 * A call that is refused gives its place back, even when it has met its partner meanwhile. Therefore the difference of
 * two calls is judged only when neither can be refused any more (detect_p2p.c).
 */
#include "daemon/engine/match/match.h"
#include "daemon/engine/model/budget.h"

#include <stdlib.h>
#include <string.h>

uint64_t p2p_bytes(const struct roll_record *rec)
{
    size_t width = roll_dtype_bytes(rec->dtype);
    return rec->count * (width ? width : 1);
}

void p2p_refused(struct roll_engine *e, struct member *m, struct entry *entry)
{
    const struct comm *c = m->comm;
    struct pair *p = entry->pair;
    unsigned side = p2p_side(&entry->rec);
    uint32_t me = (uint32_t)m->rank, peer = (uint32_t)entry->rec.peer;
    if (!p && peer < c->size) { /* a captured call, or one of a pair that is not matched: it has a number and no node */
        p = side == 0 ? p2p_pair(c, me, peer) : p2p_pair(c, peer, me);
    }
    if (!p || p->calls[side] != entry->rec.seq + 1) {
        return;
    }
    uint32_t index = entry->index;
    bool placed = entry->pair != NULL;
    p->calls[side] = entry->rec.seq;
    entry->pair = NULL;
    source_brief(e->source[m->source], entry)->state = COLL_REFUSED;
    member_stir(m);
    if (placed && (p->issued[side] != index + 1 || index - p->base > p->mask)) {
        p->unsure = true;
        pair_stir(p);
    }
    if (!placed || p->unsure) {
        return;
    }
    struct node *n = p2p_node(p, index);
    p->issued[side]--;
    n->have &= (uint8_t) ~(1u << side);
    n->ready &= (uint8_t) ~(1u << side);
    uint32_t other = c->member[p->end[!side]].source;
    const struct entry *left = n->have && other != NO_SOURCE ? source_entry(e->source[other], n->ticket[!side]) : NULL;
    if (n->have == 0) {
        *n = (struct node){0};
    } else if (left) {
        n->bytes = p2p_bytes(&left->rec); /* a call that is made again is compared with the other side */
    } else {
        p->unsure = true;
        pair_stir(p);
    }
}

/* The number of this call is that of an earlier one: that one and the calls after it were refused, and the records that
 * say so are still to come. */
static void take_back(struct roll_engine *e, struct member *m, struct pair *p, const struct roll_record *rec)
{
    unsigned side = p2p_side(rec);
    while (p->calls[side] > rec->seq && p->issued[side] - 1 - p->base <= p->mask) {
        uint32_t index = p->issued[side] - 1;
        struct entry *old = source_entry(e->source[m->source], p2p_node(p, index)->ticket[side]);
        if (!old || old->pair != p || old->index != index || old->rec.seq + 1 != p->calls[side] ||
            old->rec.thread != rec->thread) {
            return;
        }
        p2p_refused(e, m, old);
    }
}

void p2p_repeat(struct roll_engine *e, struct member *m, const struct roll_record *rec)
{
    const struct comm *c = m->comm;
    uint32_t me = (uint32_t)m->rank, peer = (uint32_t)rec->peer;
    struct pair *p = peer >= c->size ? NULL : p2p_side(rec) == 0 ? p2p_pair(c, me, peer) : p2p_pair(c, peer, me);
    if (p && !p->unsure) {
        take_back(e, m, p, rec);
    }
}

/* The two sides have different collectives before them, so each will meet a message of a collective and not the other
 * side: lowered.c. */
static bool is_crossed(const struct node *n)
{
    return n->before[0] != n->before[1] && n->before[0] != LOWERED_UNKNOWN && n->before[1] != LOWERED_UNKNOWN;
}

int p2p_enter(struct roll_engine *e, struct member *m, const struct entry *entry, struct pair **out)
{
    struct comm *c = m->comm;
    unsigned side = p2p_side(&entry->rec);
    uint32_t me = (uint32_t)m->rank, peer = (uint32_t)entry->rec.peer;
    *out = NULL;
    if (c->open && peer < c->room && peer >= c->size) {
        c->size = peer + 1; /* a peer is a member, seen or not */
    }
    if (peer >= c->size) {
        return 0;
    }
    struct source *s = e->source[m->source];
    bool known = side == 0 ? p2p_pair(c, me, peer) != NULL : p2p_pair(c, peer, me) != NULL;
    if (!known && !budget_take(e, s, PAIR_BYTES)) {
        budget_refuse(e, s);
        return ROLL_E_LIMIT;
    }
    struct pair *p = side == 0 ? pair_get(c, me, peer) : pair_get(c, peer, me);
    if (!p) {
        return ROLL_E_NOMEM;
    }
    if (entry->rec.seq < p->calls[side]) {
        take_back(e, m, p, &entry->rec);
    }
    if (entry->rec.seq != p->calls[side] || p->issued[side] < p->base) {
        p->unsure = true;
        pair_stir(p); /* calls before this one are not known, so nobody knows which message meets which */
    }
    p->calls[side] = entry->rec.seq + 1;
    p->gaps[side] = m->gaps;
    *out = p;
    return 0;
}

unsigned p2p_meet(const struct roll_engine *e, const struct member *m, struct pair *p, struct entry *entry,
                  uint64_t ticket)
{
    unsigned side = p2p_side(&entry->rec), met = 0;
    uint32_t index = p->issued[side]++;
    uint64_t bytes = p2p_bytes(&entry->rec);
    struct node *n = p2p_node(p, index);
    entry->pair = p;
    entry->index = index;
    n->ticket[side] = ticket;
    n->have |= (uint8_t)(1u << side);
    p->comm->empties += bytes == 0;
    bool unknown = e->source[m->source]->late;
    n->before[side] = p->end[0] == p->end[1] ? 0 : unknown ? LOWERED_UNKNOWN : lowered_before(m, p->end[0], p->end[1]);
    if (n->have == 3 && is_crossed(n)) {
        met |= P2P_CROSSED;
    }
    if (n->have == 3 && n->past == 0 && n->bytes != bytes) {
        met |= P2P_DIFFERS;
    } else {
        n->bytes = bytes;
    }
    return met;
}

#define PAST_MOST 65536u /* messages by which the two sides may come in apart */

void p2p_place(struct roll_engine *e, struct source *s, struct pair *p, unsigned side, uint32_t made)
{
    unsigned ahead = side;
    uint32_t from = p->base, to = made;
    if (made == UINT32_MAX) {
        p->unsure = true;
        return;
    }
    p->issued[side] = made;
    if (!p->placed) {
        p->placed = true;
        p->base = made;
        return;
    }
    if (made < p->base) {
        ahead = !side;
        from = made;
        to = p->base;
        p->base = made;
    }
    p->unsure = p->unsure || to - from > PAST_MOST;
    for (uint32_t i = from; i != to && !p->unsure; i++) {
        bool has = pair_fits(p, i) || budget_take(e, s, (p->mask + 1) * sizeof(*p->node));
        if (!has) {
            budget_refuse(e, s);
        }
        if (!has || (!pair_fits(p, i) && pair_grow(p, i) != 0)) {
            p->unsure = true;
            return;
        }
        struct node *n = p2p_node(p, i);
        n->have |= (uint8_t)(1u << ahead);
        n->ready |= (uint8_t)(1u << ahead);
        n->past |= (uint8_t)(1u << ahead);
        n->before[ahead] = LOWERED_UNKNOWN;
    }
}

void p2p_ready(struct entry *entry)
{
    struct pair *p = entry->pair;
    if (p && entry->index - p->base <= p->mask) {
        uint8_t *ready = &p2p_node(p, entry->index)->ready;
        *ready |= (uint8_t)(1u << p2p_side(&entry->rec));
        if (*ready == 3) {
            pair_stir(p);
        }
        pair_advance(p);
    }
}

bool p2p_is_alltoallv(const struct source *s, uint64_t ticket)
{
    struct entry *start = source_entry(s, ticket);
    struct member *m = start ? source_member(s, start->rec.comm) : NULL;
    if (!m || start->rec.group == 0 || m->comm->size < 3) {
        return false;
    }
    /* The search goes from this call in both directions. Records of other threads and observations of moe_core may lie
     * between the calls of the group. */
    struct roll_rankset peers = {0};
    for (unsigned forward = 0; forward < 2; forward++) {
        uint64_t t = forward ? ticket : ticket - 1;
        for (const struct entry *at = source_entry(s, t); at; at = source_entry(s, t)) {
            bool ours = source_same_unit(&at->rec, &start->rec) && roll_op_class(at->rec.op) != ROLL_CLASS_MOE;
            if (ours && roll_op_class(at->rec.op) == ROLL_CLASS_P2P && at->rec.comm == start->rec.comm &&
                at->rec.peer != m->rank) {
                (void)roll_rankset_add(&peers, (uint32_t)at->rec.peer);
            }
            if (!ours && at->rec.thread == start->rec.thread && roll_op_class(at->rec.op) != ROLL_CLASS_MOE) {
                break;
            }
            t = forward ? t + 1 : t - 1;
        }
    }
    size_t count = roll_rankset_count(&peers);
    roll_rankset_fini(&peers);
    return count * 2 > m->comm->size;
}
