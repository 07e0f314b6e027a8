/*
 * detect_alltoallv.c: an all-to-all-v in which what is sent is not what is expected.
 *
 * Frameworks issue it as one group of sends and receives, leaving zero counts out. A group that touches more than half of the members is taken
 * for one (p2p.c). Differing pairs are collected for a moment (stall/20), because one wrong split table shows as many pairs,
 * and told as one verdict; the rank that takes part in all of them, if there is one among several pairs, is named. A receive without send, or the reverse, is
 * proven when the partner has ended or waits itself. Zero against nothing is healthy and never gets here.
 */
#include "daemon/engine/detector.h"

#include <inttypes.h>
#include <stdlib.h>

#define PAIRS_TOLD 8u

struct p2p_case {
    struct comm *comm;
    uint64_t since;
    uint32_t count;
    struct {
        struct pair *pair;
        uint32_t index;
        uint64_t ticket[2];
    } odd[PAIRS_TOLD];
    struct p2p_case *next;
};

static const struct source *end_source(const struct roll_engine *e, const struct pair *p, unsigned side)
{
    uint32_t source = p->comm->member[p->end[side]].source;
    return source == NO_SOURCE ? NULL : e->source[source];
}

static bool in_alltoallv(const struct roll_engine *e, const struct p2p_case *k)
{
    for (uint32_t i = 0; i < k->count && i < PAIRS_TOLD; i++) {
        for (unsigned side = 0; side < 2; side++) {
            const struct source *s = end_source(e, k->odd[i].pair, side);
            if (s && p2p_is_alltoallv(s, k->odd[i].ticket[side])) {
                return true;
            }
        }
    }
    return false;
}

/* Whether a group is an all-to-all-v is known when it is whole: grouped pairs are looked at again a moment later. */
static bool alltoallv_pair(struct roll_engine *e, struct pair *p, uint32_t index)
{
    const struct node *n = p2p_node(p, index);
    bool grouped = false;
    for (unsigned side = 0; side < 2; side++) {
        const struct source *s = end_source(e, p, side);
        const struct entry *entry = s ? source_entry(s, n->ticket[side]) : NULL;
        grouped = grouped || (entry && entry->rec.group != 0);
    }
    if (!grouped) {
        return false;
    }
    if (p->said) {
        return true;
    }
    p->said = true;
    struct p2p_case *open = e->p2p_case;
    while (open && open->comm != p->comm) {
        open = open->next;
    }
    if (!open) {
        open = calloc(1, sizeof(*open));
        if (!open) {
            return true;
        }
        open->comm = p->comm;
        open->since = e->clock;
        open->next = e->p2p_case;
        e->p2p_case = open;
    }
    if (open->count < PAIRS_TOLD) {
        open->odd[open->count].pair = p;
        open->odd[open->count].index = index;
        open->odd[open->count].ticket[0] = n->ticket[0];
        open->odd[open->count].ticket[1] = n->ticket[1];
    }
    open->count++;
    return true;
}

/* By the ranks of the pair, so that the order of arrival does not show. */
static int by_ends(const void *a, const void *b)
{
    const struct pair *const *p = a, *const *q = b;
    for (unsigned side = 0; side < 2; side++) {
        if ((*p)->end[side] != (*q)->end[side]) {
            return (*p)->end[side] < (*q)->end[side] ? -1 : 1;
        }
    }
    return 0;
}

/* The one rank of the communicator that is in every odd pair; NO_SOURCE when there is none or only one pair. */
static uint32_t common_rank(const struct p2p_case *k)
{
    uint32_t told = k->count < PAIRS_TOLD ? k->count : PAIRS_TOLD;
    for (unsigned side = 0; side < 2 && told > 1; side++) {
        uint32_t rank = k->odd[0].pair->end[side], i = 1;
        while (i < told && (k->odd[i].pair->end[0] == rank || k->odd[i].pair->end[1] == rank)) {
            i++;
        }
        if (i == told) {
            return rank;
        }
    }
    return NO_SOURCE;
}

static uint64_t bytes_of(const struct entry *entry)
{
    return entry ? entry->rec.count * roll_dtype_bytes(entry->rec.dtype) : 0;
}

static void tell(struct roll_engine *e, struct p2p_case *k)
{
    struct comm *c = k->comm;
    uint32_t told = k->count < PAIRS_TOLD ? k->count : PAIRS_TOLD;
    qsort(k->odd, told, sizeof(k->odd[0]), by_ends);
    if (c->muted) {
        return;
    }
    if (!in_alltoallv(e, k)) {
        p2p_say_bytes(e, k->odd[0].pair, k->odd[0].index, k->odd[0].ticket);
        return;
    }
    comm_explained(e, c);
    struct roll_verdict *v = say(e, ROLL_VERDICT_ALLTOALLV_MISMATCH, ROLL_PROVEN);
    if (!v) {
        return;
    }
    say_comm(v, c, k->odd[0].index);
    v->field = "count";
    struct words w = {.used = 0};
    words_add(&w, "In an all-to-all-v on ");
    words_comm(&w, c);
    words_add(&w, " what is sent is not what is expected: ");
    for (uint32_t i = 0; i < told; i++) {
        const struct entry *end[2];
        uint32_t world[2];
        for (unsigned side = 0; side < 2; side++) {
            uint32_t source = c->member[k->odd[i].pair->end[side]].source;
            end[side] = source_entry(e->source[source], k->odd[i].ticket[side]);
            world[side] = e->source[source]->world;
            struct roll_rankset one = {0};
            (void)roll_rankset_add(&one, world[side]);
            if (i == 0) {
                say_side(v, e->source[source], source, &one, end[side] ? &end[side]->rec : NULL);
            }
            (void)roll_rankset_union(&v->waiting, &one);
            roll_rankset_fini(&one);
        }
        words_add(&w, "%s%u to %u: %" PRIu64 " bytes sent, %" PRIu64 " expected", i ? "; " : "", world[0], world[1],
                  bytes_of(end[0]), bytes_of(end[1]));
    }
    words_add(&w, k->count > told ? "; and %u more pairs." : ".", k->count - told);
    uint32_t rank = common_rank(k);
    if (rank != NO_SOURCE) {
        uint32_t world = comm_world(e, c, rank);
        (void)roll_rankset_add(&v->culprits, world);
        words_add(&w, " Rank %u takes part in every pair that differs: its split table is probably the wrong one.",
                  world);
    } else {
        words_add(&w, " The calls alone do not say which side is wrong.");
    }
    say_text(e, v, "%s", w.text);
}

static void alltoallv_tick(struct roll_engine *e)
{
    for (struct p2p_case **at = &e->p2p_case; *at;) {
        struct p2p_case *k = *at;
        if (!e->finishing && e->clock - k->since < e->config.stall_ns / 20) {
            at = &k->next;
            continue;
        }
        tell(e, k);
        *at = k->next;
        free(k);
    }
}

/* A call of an all-to-all-v that has no partner, and never will. */
static bool alltoallv_block(struct roll_engine *e, const struct block *b)
{
    bool gone = b->kind == BLOCK_FINISHED || b->kind == BLOCK_GONE;
    if (!gone && (b->kind != BLOCK_CYCLE || !b->hard)) {
        return false;
    }
    const struct source *s = NULL;
    const struct entry *entry = NULL;
    for (uint32_t i = 0; i < (gone ? 1u : b->steps); i++) {
        const struct source *rank = gone ? b->waiter : b->step[i].rank;
        uint64_t ticket = gone ? b->ticket : b->step[i].ticket;
        struct entry *at = source_entry(rank, ticket);
        struct member *m = at ? source_member(rank, at->rec.comm) : NULL;
        if (!m || (!gone && m->comm != b->comm)) {
            return false; /* several communicators: detect_circular.c */
        }
        if (at->pair && p2p_is_alltoallv(rank, ticket) &&
            !(p2p_node(at->pair, at->index)->have & 1u << !p2p_side(&at->rec))) {
            s = rank;
            entry = at;
        }
    }
    if (!entry) {
        return false;
    }
    struct pair *p = entry->pair;
    struct comm *c = p->comm;
    unsigned side = p2p_side(&entry->rec);
    comm_explained(e, c);
    uint32_t peer = comm_world(e, c, p->end[!side]);
    if (!say_once(e, say_key(ROLL_VERDICT_ALLTOALLV_MISMATCH, c->key, 1, 0))) {
        return true;
    }
    struct roll_verdict *v = say(e, ROLL_VERDICT_ALLTOALLV_MISMATCH, ROLL_PROVEN);
    if (!v) {
        return true;
    }
    say_comm(v, c, entry->index);
    v->field = "count";
    struct roll_rankset mine = {0}, theirs = {0};
    (void)roll_rankset_add(&mine, s->world);
    (void)roll_rankset_add(&theirs, peer);
    bool empty = p->zero[!side] != 0 && p->zero_at[!side] == entry->index;
    uint32_t other = c->member[p->end[!side]].source;
    const struct entry *zero = empty ? source_entry(e->source[other], p->zero[!side] - 1) : NULL;
    say_side(v, s, source_index(e, s), &mine, &entry->rec);
    say_side(v, e->source[other], other, &theirs, zero ? &zero->rec : NULL);
    (void)roll_rankset_copy(&v->waiting, b->waiting);
    struct words w = {.used = 0};
    words_add(&w, "In an all-to-all-v on ");
    words_comm(&w, c);
    words_add(&w, " rank %u %s %" PRIu64 " bytes %s rank %u, which %s.", s->world, side ? "expects" : "sends",
              bytes_of(entry), side ? "from" : "to", peer,
              empty ? (side ? "sends 0" : "expects 0") : (side ? "sends none" : "expects none"));
    words_add(&w, " The calls alone do not say which side is wrong.");
    say_text(e, v, "%s", w.text);
    roll_rankset_fini(&mine);
    roll_rankset_fini(&theirs);
    return true;
}

static void alltoallv_fini(struct roll_engine *e)
{
    while (e->p2p_case) {
        struct p2p_case *next = e->p2p_case->next;
        free(e->p2p_case);
        e->p2p_case = next;
    }
}

const struct detector detect_alltoallv = {.name = "alltoallv",
                                          .pair = alltoallv_pair,
                                          .block = alltoallv_block,
                                          .tick = alltoallv_tick,
                                          .fini = alltoallv_fini};
