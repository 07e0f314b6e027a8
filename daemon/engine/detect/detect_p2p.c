/*
 * detect_p2p.c: sends and receives without a partner, and circles of waits that contain one.
 *
 * NCCL pairs the n-th send with the n-th receive and nothing else, messages of 0 bytes included. It is proven that a
 * call will never get its partner when the partner rank has ended, has left the communicator, or itself waits in the
 * same circle. Two calls do not say who is wrong: one may be missing, or the other may be one too many. A rank is named
 * where several partners agree (match/exchange.c), or where most members wait in a collective that the rank lacks.
 * Where the group of the call touches more than half of the communicator it is an all-to-all-v, and has a code of its
 * own. Two circles are left to detect_circular.c: sends and receives that only wait for each other, and circles over
 * several communicators, unless one rank of the circle lacks the exchange in which its peers wait.
 */
#include "daemon/engine/detect/p2p.h"

/* The partner rank has not made its side of this message. */
static bool lacks_partner(const struct entry *entry)
{
    const struct pair *p = entry->pair;
    return p && p2p_known(p, !p2p_side(&entry->rec)) && entry->index >= p->issued[!p2p_side(&entry->rec)];
}

static bool is_gone(const struct block *b)
{
    return b->kind == BLOCK_FINISHED || b->kind == BLOCK_GONE || b->kind == BLOCK_ABORTED;
}

static bool read_mix(const struct block *b, struct p2p_mix *out)
{
    *out = (struct p2p_mix){.seq = NO_SEQ};
    for (uint32_t i = 0; i < b->steps; i++) {
        const struct entry *at = source_entry(b->step[i].rank, b->step[i].ticket);
        const struct member *m = at ? source_member(b->step[i].rank, at->rec.comm) : NULL;
        if (!m || (out->comm && out->comm != m->comm)) {
            return false;
        }
        out->comm = m->comm;
        if (at->pair) {
            out->p2ps++;
            out->unmatched = !out->unmatched && lacks_partner(at) ? i + 1 : out->unmatched;
        } else if (at->rec.seq < out->seq) {
            out->seq = at->rec.seq;
            out->collective = i + 1;
        }
    }
    return out->comm != NULL;
}

/* A collective of no elements that NCCL dropped explains the circle as well: detect_zero.c is asked about the rank that
 * waits in the collective. */
static bool dropped(struct roll_engine *e, const struct block *b, const struct p2p_mix *mix)
{
    struct block at = *b;
    at.waiter = b->step[mix->collective - 1].rank;
    at.ticket = b->step[mix->collective - 1].ticket;
    return detect_zero.block(e, &at);
}

/* NCCL refused the call of s with this number, so a later call like it is not the same call in another place. */
static bool was_refused(const struct source *s, const struct comm *c, uint32_t seq)
{
    uint64_t low = source_log_low(s);
    for (uint64_t t = s->next; t-- > low;) {
        const struct entry *at = source_entry(s, t);
        const struct member *m = at ? source_member(s, at->rec.comm) : NULL;
        if (m && m->comm == c && roll_op_class(at->rec.op) == ROLL_CLASS_COLL && at->rec.seq == seq &&
            refused_call(s, at)) {
            return true;
        }
    }
    return false;
}

static bool mixed_circle(struct roll_engine *e, const struct block *b, const struct p2p_mix *mix)
{
    const struct comm *c = mix->comm;
    uint32_t made = 0;
    if (dropped(e, b, mix)) {
        return true;
    }
    for (uint32_t r = 0; r < c->size; r++) {
        made += comm_member_issued(&c->member[r], mix->seq);
    }
    for (uint32_t i = 0; made * 2 > c->size && i < b->steps; i++) {
        const struct entry *at = source_entry(b->step[i].rank, b->step[i].ticket);
        if (at->pair && exchange_early(e, b->step[i].rank, b->step[i].ticket, mix->seq) > 1 &&
            !was_refused(b->step[i].rank, c, mix->seq)) {
            p2p_say_early(e, b, mix, i);
            return true;
        }
    }
    if (mix->unmatched == 0) {
        return false;
    }
    p2p_say_unmatched(e, b, b->step[mix->unmatched - 1].rank, b->step[mix->unmatched - 1].ticket, true);
    return true;
}

/* Mutes all communicators of the circle: they stand still for the same reason. */
static void explain_circle(struct roll_engine *e, const struct block *b)
{
    for (uint32_t i = 0; i < b->steps; i++) {
        const struct entry *at = source_entry(b->step[i].rank, b->step[i].ticket);
        const struct member *m = at ? source_member(b->step[i].rank, at->rec.comm) : NULL;
        if (m) {
            comm_mute_at(e, m->comm, b->step[i].rank, &at->rec);
            comm_explained(e, m->comm);
        }
    }
}

/* One rank of the circle lacks the exchange in which its peers wait. This is told rather than the circle, also where
 * the circle runs over several communicators. */
static bool lacking_circle(struct roll_engine *e, const struct block *b)
{
    for (uint32_t i = 0; i < b->steps; i++) {
        const struct entry *at = source_entry(b->step[i].rank, b->step[i].ticket);
        if (!at || !lacks_partner(at)) {
            continue;
        }
        struct comm *c = at->pair->comm;
        struct exchange_lack lack = {.waiting = {0}};
        uint32_t rank = at->pair->end[!p2p_side(&at->rec)];
        /* The step in which the rank itself waits: a rank that has passed that call may hold it up there. */
        uint32_t next = (i + 1) % b->steps;
        bool alone = exchange_lacks(e, c, rank, &lack) && lack.entry &&
                     c->member[rank].source == source_index(e, b->step[next].rank) &&
                     exchange_against(e, c, &lack, b->step[next].rank, b->step[next].ticket) > 1;
        if (alone) {
            p2p_say_lack(e, b, c, &lack);
            explain_circle(e, b);
        }
        exchange_fini(&lack);
        if (alone) {
            return true;
        }
    }
    return false;
}

static bool p2p_block(struct roll_engine *e, const struct block *b)
{
    if (is_gone(b)) {
        const struct entry *entry = b->waiter ? source_entry(b->waiter, b->ticket) : NULL;
        if (!entry || !entry->pair) {
            return false;
        }
        struct comm *c = entry->pair->comm;
        struct exchange_lack lack = {.waiting = {0}};
        if (lacks_partner(entry) && exchange_lacks(e, c, entry->pair->end[!p2p_side(&entry->rec)], &lack) &&
            lack.entry) {
            p2p_say_lack(e, b, c, &lack);
        } else {
            p2p_say_unmatched(e, b, b->waiter, b->ticket, false);
        }
        exchange_fini(&lack);
        return true;
    }
    if (b->kind != BLOCK_CYCLE || !b->hard) {
        return false;
    }
    if (lacking_circle(e, b)) {
        return true;
    }
    struct p2p_mix mix;
    if (!read_mix(b, &mix) || mix.p2ps == 0) {
        return false;
    }
    if (mix.collective != 0) {
        return mixed_circle(e, b, &mix);
    }
    if (mix.unmatched == 0) {
        return false;
    }
    /* Only messages are left: that is a deadlock (detect_circular.c), unless a message of an all-to-all-v or to the
     * rank itself has no partner. */
    struct source *s = b->step[mix.unmatched - 1].rank;
    uint64_t ticket = b->step[mix.unmatched - 1].ticket;
    if (b->steps > 1 && !p2p_is_alltoallv(s, ticket)) {
        return false;
    }
    p2p_say_unmatched(e, b, s, ticket, false);
    return true;
}

const struct detector detect_p2p = {.name = "p2p", .block = p2p_block};
