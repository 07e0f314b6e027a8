/*
 * detect_lowered.c: a message that meets a message of a collective, because NCCL makes AlltoAll, Gather and Scatter of
 * sends and receives.
 *
 * One rank sends before such a collective, and the other receives behind it. Then each of the two meets a message of
 * the collective instead: nothing waits for ever, and the data goes to the wrong call. This is seen when a send and a
 * receive form a pair and the last such collective before them is not the same on both sides (match/lowered.c). It is
 * told when the rank whose message came first has made that collective too, and both ranks have come to a later
 * collective with equally many messages between them: then only the order is wrong. A rank that never makes the
 * collective has left it out, and where the numbers of messages differ a message is missing; both show elsewhere. No
 * rank is said to wait. Where several pairs cross and exactly one rank takes part in all of them, that rank is named.
 *
 * A rank may also make by hand, of sends and receives of the same sizes, what its peers call AlltoAll. PyTorch does so
 * where one rank gives its splits and another does not. All messages meet, and nothing is wrong, but the rank has made
 * one collective less. That is a note, and the communicator is judged no more, because its collectives cannot be
 * compared by their numbers any more.
 */
#include "daemon/engine/detect/detector.h"

#include <inttypes.h>
#include <stdlib.h>

#define CROSSINGS_MAX 256u /* crossings of one communicator that are kept until they are told */

/* A pair of messages that stand on different sides of a collective. */
struct crossing {
    const struct pair *pair;
    uint32_t before[2];
    uint64_t ticket[2];
    /* Copies: the calls may be complete and gone from the log before the verdict is said. */
    struct roll_record rec[2];
};

/* The crossings of one communicator. */
struct crossings {
    struct comm *comm;
    uint64_t since;
    uint32_t count;
    struct crossing at[CROSSINGS_MAX];
    struct crossings *next;
};

struct lowered_engine {
    struct crossings *crossings; /* owned */
    bool retiring;               /* some communicator retires at the next tick */
};
STATE_OF_ENGINE(lowered)

static struct crossings *crossings_of(struct roll_engine *e, struct comm *c)
{
    struct lowered_engine *own = lowered_of_engine(e);
    struct crossings *k = own->crossings;
    while (k && k->comm != c) {
        k = k->next;
    }
    if (!k && (k = calloc(1, sizeof(*k)))) {
        k->comm = c;
        k->since = e->clock;
        k->next = own->crossings;
        own->crossings = k;
    }
    return k;
}

void lowered_cross(struct roll_engine *e, const struct pair *p, uint32_t index)
{
    const struct node *n = p2p_node(p, index);
    struct crossings *k = crossings_of(e, p->comm);
    struct crossing at = {.pair = p, .before = {n->before[0], n->before[1]}, .ticket = {n->ticket[0], n->ticket[1]}};
    for (unsigned side = 0; side < 2; side++) {
        const struct entry *entry = source_entry(e->source[p->comm->member[p->end[side]].source], n->ticket[side]);
        if (!entry) {
            return;
        }
        at.rec[side] = entry->rec;
    }
    if (k && k->count < CROSSINGS_MAX) {
        k->at[k->count++] = at;
    }
}

/* Neither message was taken out because it was refused after all. */
static bool still_there(const struct roll_engine *e, const struct crossing *at)
{
    for (unsigned side = 0; side < 2; side++) {
        const struct entry *entry =
            source_entry(e->source[at->pair->comm->member[at->pair->end[side]].source], at->ticket[side]);
        if (entry && entry->pair != at->pair) {
            return false;
        }
    }
    return true;
}

/* The number of messages that this side of the pair made before collective #seq is *made. False: it is not known. */
static bool made_before(const struct roll_engine *e, const struct pair *p, unsigned side, uint32_t seq, uint32_t *made)
{
    const struct member *m = &p->comm->member[p->end[side]];
    const struct source *s = e->source[m->source];
    uint64_t ticket = source_ticket_of(s, m, seq);
    *made = p->issued[side];
    for (uint64_t t = ticket; ticket != NO_TICKET && t < s->next; t++) {
        const struct entry *at = source_entry(s, t);
        *made -= at && at->pair == p && p2p_side(&at->rec) == side;
    }
    return ticket != NO_TICKET;
}

/* Both ranks have made equally many messages for each other, so only the order differs: up to a later collective that
 * both have made, or until they left. */
static bool same_sum(const struct roll_engine *e, const struct pair *p, uint32_t seq)
{
    const struct member *m[2] = {&p->comm->member[p->end[0]], &p->comm->member[p->end[1]]};
    uint32_t last = (m[0]->next < m[1]->next ? m[0]->next : m[1]->next) - 1, made[2];
    if (!p2p_known(p, 0) || !p2p_known(p, 1)) {
        return false;
    }
    if (m[0]->gone && m[1]->gone) {
        return p->issued[0] == p->issued[1];
    }
    return last > seq && made_before(e, p, 0, last, &made[0]) && made_before(e, p, 1, last, &made[1]) &&
           made[0] == made[1];
}

/* The rank whose message came before the collective has made that collective too by now, and all members that have made
 * it agree about it. */
static bool caught_up(const struct roll_engine *e, const struct crossing *at)
{
    const struct comm *c = at->pair->comm;
    unsigned behind = at->before[1] < at->before[0];
    uint32_t seq = at->before[!behind] - 1;
    const struct member *m = &c->member[at->pair->end[behind]];
    if (m->next <= seq || m->from > seq || c->high - seq > c->slot_mask) {
        return false; /* not made or not known, or too long ago */
    }
    const struct slot *slot = comm_slot(c, seq);
    return slot->variant == 0 && !slot->held && !slot->judged && same_sum(e, at->pair, seq);
}

static bool in_all(const struct crossings *k, uint32_t rank)
{
    uint32_t i = 0;
    while (i < k->count && (k->at[i].pair->end[0] == rank || k->at[i].pair->end[1] == rank)) {
        i++;
    }
    return i == k->count;
}

static int by_ends(const void *a, const void *b)
{
    const struct crossing *p = a, *q = b;
    for (unsigned side = 0; side < 2; side++) {
        if (p->pair->end[side] != q->pair->end[side]) {
            return p->pair->end[side] < q->pair->end[side] ? -1 : 1;
        }
    }
    return p->ticket[0] < q->ticket[0] ? -1 : p->ticket[0] > q->ticket[0];
}

static void tell(struct roll_engine *e, struct crossings *k)
{
    struct comm *c = k->comm;
    qsort(k->at, k->count, sizeof(k->at[0]), by_ends);
    const struct crossing *at = &k->at[0];
    const struct source *s[2];
    for (unsigned side = 0; side < 2; side++) {
        s[side] = e->source[c->member[at->pair->end[side]].source];
    }
    comm_mute_at(e, c, s[0], &at->rec[0]);
    if (!say_once(e, say_key(ROLL_VERDICT_OP_MISMATCH, c->key, 2, c->era))) {
        return;
    }
    struct roll_verdict *v = say(e, ROLL_VERDICT_OP_MISMATCH, ROLL_PROVEN);
    if (!v) {
        return;
    }
    say_comm(v, c, at->rec[0].seq);
    v->field = "op";
    const uint32_t *end = at->pair->end;
    bool one = in_all(k, end[0]), two = in_all(k, end[1]);
    if (one != two) {
        (void)roll_rankset_add(&v->culprits, s[one ? 0 : 1]->world);
    }
    for (unsigned n = 0; n < 2; n++) {
        unsigned side = two && !one ? !n : n;
        struct roll_rankset set = {0};
        (void)roll_rankset_add(&set, s[side]->world);
        say_side(v, s[side], source_index(e, s[side]), &set, &at->rec[side]);
        roll_rankset_fini(&set);
    }
    struct words w = {.used = 0};
    words_add(&w, "On ");
    words_comm(&w, c);
    words_add(&w, " rank %u makes ", s[0]->world);
    words_call(&w, &at->rec[0]);
    unsigned late = at->before[1] > at->before[0];
    words_add(&w, " %s collective #%u, but rank %u ", late ? "before" : "after", at->before[late] - 1, s[1]->world);
    words_call(&w, &at->rec[1]);
    words_add(
        &w,
        " %s it. NCCL makes that collective (AlltoAll, Gather or Scatter) of sends and receives, so each of the two "
        "meets a message of it instead of the other: ",
        late ? "after" : "before");
    words_add(&w, "the data goes to the wrong call in silence, and no rank needs to wait.");
    if (one != two) {
        words_add(&w, " Rank %u takes part in all %u messages that cross.", s[one ? 0 : 1]->world, k->count);
    } else {
        words_add(&w, " The calls alone do not say which of them has the wrong order.");
    }
    words_add(&w, " Make the same calls in the same order on every rank.");
    say_text(e, v, "%s", w.text);
}

/* Drops the crossings of which a call was taken out. Returns how many of the others are certain. */
static uint32_t settle(const struct roll_engine *e, struct crossings *k)
{
    uint32_t left = 0, due = 0;
    for (uint32_t i = 0; i < k->count; i++) {
        if (still_there(e, &k->at[i])) {
            due += caught_up(e, &k->at[i]);
            k->at[left++] = k->at[i];
        }
    }
    k->count = left;
    return due;
}

static void keep_due(const struct roll_engine *e, struct crossings *k)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < k->count; i++) {
        if (caught_up(e, &k->at[i])) {
            k->at[left++] = k->at[i];
        }
    }
    k->count = left;
}

static void lowered_tick(struct roll_engine *e)
{
    struct lowered_engine *own = lowered_of_engine(e);
    for (uint32_t i = 0; own->retiring && i < e->comms; i++) {
        if (e->comm[i]->retires && !e->comm[i]->overflow) {
            comm_give_up(e, e->comm[i]);
        }
    }
    own->retiring = false;
    for (struct crossings **at = &own->crossings; *at;) {
        struct crossings *k = *at;
        uint64_t age = e->clock - k->since;
        uint32_t due = settle(e, k);
        bool over = k->count == 0 || k->comm->muted || age >= e->config.suspect_ns;
        bool speaks = due > 0 && !k->comm->muted && (e->finishing || age >= e->config.stall_ns / 20);
        if (!over && !speaks) {
            at = &k->next;
            continue;
        }
        if (speaks) {
            keep_due(e, k);
            tell(e, k);
        }
        *at = k->next;
        free(k);
    }
}

/* made by hand */

/* The member has made a message of this size for `other` (side 0) or from it (side 1) that `other` has not made. */
static bool has_extra(const struct roll_engine *e, const struct comm *c, uint32_t rank, uint32_t other, unsigned side,
                      uint64_t bytes)
{
    const struct pair *p = side == 0 ? p2p_pair(c, rank, other) : p2p_pair(c, other, rank);
    if (!p || !p2p_known(p, !side) || p->issued[side] <= p->issued[!side] || p->issued[!side] - p->base > p->mask) {
        return false;
    }
    const struct entry *at =
        source_entry(e->source[c->member[rank].source], p2p_node(p, p->issued[!side])->ticket[side]);
    return at && p2p_bytes(&at->rec) == bytes;
}

/* The member has made by hand all its messages of this collective, with every other member except those of `ranks`,
 * which have made theirs by hand as well. */
static bool by_hand(const struct roll_engine *e, const struct comm *c, uint32_t rank, const struct roll_record *call,
                    const struct roll_rankset *ranks)
{
    uint64_t bytes = p2p_bytes(call);
    uint32_t root = (uint32_t)call->peer, met = 0;
    for (uint32_t r = 0; r < c->size; r++) {
        uint32_t world = comm_world(e, c, r);
        if (world != NO_SOURCE && roll_rankset_has(ranks, world)) {
            continue;
        }
        bool all = call->op == ROLL_OP_ALLTOALL;
        bool to = all || (call->op == ROLL_OP_GATHER ? r == root : rank == root);
        bool from = all || (call->op == ROLL_OP_GATHER ? rank == root : r == root);
        if ((to && !has_extra(e, c, rank, r, 0, bytes)) || (from && !has_extra(e, c, rank, r, 1, bytes))) {
            return false;
        }
        met += to || from;
    }
    return met > 0;
}

static bool all_by_hand(const struct roll_engine *e, const struct comm *c, const struct roll_rankset *ranks,
                        const struct roll_record *call)
{
    bool all = lowered_op(call->op);
    for (uint32_t r = 0; all && r < c->size; r++) {
        uint32_t world = comm_world(e, c, r);
        all = world == NO_SOURCE || !roll_rankset_has(ranks, world) || by_hand(e, c, r, call, ranks);
    }
    return all && roll_rankset_count(ranks) > 0;
}

static void note_by_hand(struct roll_engine *e, struct comm *c, const struct roll_rankset *ranks,
                         const struct source *caller, const struct roll_record *call,
                         const struct roll_rankset *callers)
{
    comm_mute_at(e, c, caller, call);
    struct roll_verdict *v = say(e, ROLL_VERDICT_OP_MISMATCH, ROLL_NOTE);
    if (v) {
        say_comm(v, c, call->seq);
        v->field = "op";
        say_side(v, caller, source_index(e, caller), callers, call);
        struct words w = {.used = 0};
        words_ranks(&w, ranks);
        words_add(&w, " made of sends and receives what ");
        words_ranks(&w, callers);
        words_add(&w, " called as ");
        words_call(&w, call);
        words_add(&w, ", #%u on ", call->seq);
        words_comm(&w, c);
        words_add(&w, ". NCCL makes it of the same messages, so they meet and nothing is wrong; but collectives there "
                      "cannot be compared by their numbers any more, and it is not judged from here on.");
        say_text(e, v, "%s", w.text);
    }
    /* At the next tick, because the judge that asks is in the middle of judging this communicator. */
    c->retires = true;
    lowered_of_engine(e)->retiring = true;
}

static bool lowered_disagree(struct roll_engine *e, const struct finding *f)
{
    const struct entry *minor = source_entry(f->minor_source, f->minor_ticket);
    const struct entry *major = source_entry(f->major_source, f->major_ticket);
    if (!minor || !major || f->kind == ALIGN_ZERO || f->kind == ALIGN_GROUP) {
        return false;
    }
    if (f->kind == ALIGN_ARGUMENT && f->certainty == ROLL_PROVEN) {
        return false; /* the ranks made this very call themselves, so their messages are others */
    }
    if (all_by_hand(e, f->comm, &f->minor, &major->rec)) {
        note_by_hand(e, f->comm, &f->minor, f->major_source, &major->rec, &f->major);
        return true;
    }
    if (all_by_hand(e, f->comm, &f->major, &minor->rec)) {
        note_by_hand(e, f->comm, &f->major, f->minor_source, &minor->rec, &f->minor);
        return true;
    }
    return false;
}

/* True: the ranks that lack the collective have made its messages by hand, so nobody waits for them; that has been
 * noted. */
static bool lowered_block(struct roll_engine *e, const struct block *b)
{
    const struct entry *waits = b->waiter ? source_entry(b->waiter, b->ticket) : NULL;
    const struct member *on = waits ? source_member(b->waiter, waits->rec.comm) : NULL;
    if (!on || on->comm != b->comm || !lowered_op(waits->rec.op) || b->kind == BLOCK_CYCLE) {
        return false;
    }
    struct comm *c = b->comm;
    struct roll_rankset made = {0}, not_made = {0};
    for (uint32_t r = 0; r < c->size; r++) {
        uint32_t world = comm_world(e, c, r);
        if (world != NO_SOURCE) {
            (void)roll_rankset_add(comm_member_issued(&c->member[r], waits->rec.seq) ? &made : &not_made, world);
        }
    }
    bool all = all_by_hand(e, c, &not_made, &waits->rec);
    if (all) {
        note_by_hand(e, c, &not_made, b->waiter, &waits->rec, &made);
    }
    roll_rankset_fini(&made);
    roll_rankset_fini(&not_made);
    return all;
}

static void lowered_fini(struct roll_engine *e)
{
    struct lowered_engine *own = lowered_of_engine(e);
    while (own->crossings) {
        struct crossings *next = own->crossings->next;
        free(own->crossings);
        own->crossings = next;
    }
}

const struct detector detect_lowered = {.name = "lowered",
                                        ENGINE_STATE(lowered),
                                        .disagree = lowered_disagree,
                                        .block = lowered_block,
                                        .tick = lowered_tick,
                                        .fini = lowered_fini};
