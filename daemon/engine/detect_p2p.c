/*
 * detect_p2p.c: sends and receives that do not pair up.
 *
 * Bytes that differ are proven as soon as both calls are known: NCCL pairs the n-th send with the n-th receive and nothing else. A call without partner
 * is proven when the partner has ended, has left the communicator, or waits itself for this rank. All-to-all-v has a detector of its own, and
 * comes before this one in the table. Sends and receives that wait for each other in a circle are a deadlock of their own code.
 */
#include "daemon/engine/detector.h"

#include <inttypes.h>

static void two_sides(struct roll_engine *e, struct roll_verdict *v, const struct pair *p,
                      const struct entry *const end[2], struct roll_rankset set[2])
{
    const struct comm *c = p->comm;
    for (unsigned side = 0; side < 2; side++) {
        uint32_t source = c->member[p->end[side]].source;
        if (source != NO_SOURCE) {
            (void)roll_rankset_add(&set[side], e->source[source]->world);
            say_side(v, e->source[source], source, &set[side], end[side] ? &end[side]->rec : NULL);
        }
    }
}

static const struct entry *end_entry(const struct roll_engine *e, const struct pair *p, unsigned side, uint64_t ticket)
{
    uint32_t source = p->comm->member[p->end[side]].source;
    return source == NO_SOURCE ? NULL : source_entry(e->source[source], ticket);
}

void p2p_say_bytes(struct roll_engine *e, struct pair *p, uint32_t index, const uint64_t ticket[2])
{
    struct comm *c = p->comm;
    const struct entry *end[2] = {end_entry(e, p, 0, ticket[0]), end_entry(e, p, 1, ticket[1])};
    if (!end[0] || !end[1]) {
        comm_explained(e, c);
        return;
    }
    comm_mute_at(e, c, e->source[c->member[p->end[0]].source], &end[0]->rec);
    comm_explained(e, c);
    struct roll_verdict *v = say(e, ROLL_VERDICT_P2P_BYTES, ROLL_PROVEN);
    if (!v) {
        return;
    }
    say_comm(v, c, index);
    v->field = "count";
    struct roll_rankset set[2] = {{0}, {0}};
    two_sides(e, v, p, end, set);
    struct words w = {.used = 0};
    for (unsigned side = 0; side < 2; side++) {
        const struct roll_record *rec = &end[side]->rec;
        words_add(&w, side ? " where " : "");
        words_ranks(&w, &set[side]);
        words_add(&w, " %s %" PRIu64 " bytes (", side ? "receives" : "sends",
                  rec->count * roll_dtype_bytes(rec->dtype));
        words_call(&w, rec);
        words_add(&w, ")");
    }
    words_add(&w, ", message %u between them on ", index);
    words_comm(&w, c);
    words_add(&w,
              ". NCCL does not check this: it hangs or truncates. Two calls alone do not say which of them is wrong.");
    say_text(e, v, "%s", w.text);
    roll_rankset_fini(&set[0]);
    roll_rankset_fini(&set[1]);
}

static bool p2p_pair_differs(struct roll_engine *e, struct pair *p, uint32_t index)
{
    if (!p->said) {
        p->said = true;
        p2p_say_bytes(e, p, index, p2p_node(p, index)->ticket);
    }
    return true;
}

static struct entry *waiting_call(const struct block *b)
{
    struct entry *entry = b->waiter ? source_entry(b->waiter, b->ticket) : NULL;
    return entry && entry->pair ? entry : NULL;
}

static void say_unmatched(struct roll_engine *e, const struct block *b, const struct entry *entry)
{
    struct pair *p = entry->pair;
    struct comm *c = p->comm;
    unsigned side = p2p_side(&entry->rec);
    uint32_t peer = comm_world(e, c, p->end[!side]);
    comm_mute_at(e, c, b->waiter, &entry->rec);
    comm_explained(e, c);
    if (p->said || peer == NO_SOURCE) {
        return;
    }
    p->said = true;
    struct roll_verdict *v = say(e, ROLL_VERDICT_P2P_UNMATCHED, ROLL_PROVEN);
    if (!v) {
        return;
    }
    say_comm(v, c, entry->index);
    struct roll_rankset set[2] = {{0}, {0}};
    const struct entry *end[2] = {NULL, NULL};
    end[side] = entry;
    two_sides(e, v, p, end, set);
    (void)roll_rankset_copy(&v->waiting, b->waiting);
    struct words w = {.used = 0};
    words_ranks(&w, &set[side]);
    words_add(&w, " waits in ");
    words_call(&w, &entry->rec);
    words_add(&w, " (message %u of this pair on ", entry->index);
    words_comm(&w, c);
    words_add(&w, "), but ");
    words_ranks(&w, &set[!side]);
    words_add(&w, " never %s: ", side == 0 ? "receives it" : "sends it");
    if (b->kind == BLOCK_FINISHED) {
        words_add(&w, "its process has ended, %u such calls made against %u here", p->issued[!side], p->issued[side]);
    } else if (b->kind == BLOCK_GONE) {
        words_add(&w, "it has destroyed the communicator, %u such calls made against %u here", p->issued[!side],
                  p->issued[side]);
    } else {
        words_add(&w, "it waits itself in another call, which needs ");
        words_ranks(&w, &set[side]);
    }
    words_add(&w, ".");
    say_text(e, v, "%s", w.text);
    roll_rankset_fini(&set[0]);
    roll_rankset_fini(&set[1]);
}

static bool p2p_block(struct roll_engine *e, const struct block *b)
{
    if (b->kind == BLOCK_FINISHED || b->kind == BLOCK_GONE) {
        const struct entry *entry = waiting_call(b);
        if (entry) {
            say_unmatched(e, b, entry);
        }
        return entry != NULL;
    }
    if (b->kind != BLOCK_CYCLE || !b->hard) {
        return false;
    }
    /* A circle on one communicator that mixes p2p and collectives: somebody went past a call that its partner waits in. */
    const struct entry *p2p = NULL;
    uint32_t p2ps = 0;
    struct block at = *b;
    for (uint32_t i = 0; i < b->steps; i++) {
        struct entry *entry = source_entry(b->step[i].rank, b->step[i].ticket);
        struct member *m = entry ? source_member(b->step[i].rank, entry->rec.comm) : NULL;
        if (!m || m->comm != b->comm) {
            return false;
        }
        if (entry->pair) {
            p2ps++;
            p2p = entry;
            at.waiter = b->step[i].rank;
            at.ticket = b->step[i].ticket;
        }
    }
    if (!p2p || p2ps == b->steps) {
        return false;
    }
    say_unmatched(e, &at, p2p);
    return true;
}

const struct detector detect_p2p = {.name = "p2p", .pair = p2p_pair_differs, .block = p2p_block};
