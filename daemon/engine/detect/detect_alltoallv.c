/*
 * detect_alltoallv.c: a send and a receive meet and differ in bytes, alone or in an all-to-all-v.
 *
 * Frameworks issue an all-to-all-v as one group of sends and receives. A group that touches more than half of the
 * members is taken for one (p2p_is_alltoallv). One wrong split table shows as many differing pairs, so the pairs are
 * collected for a moment (stall/20) and told in one verdict. Where several pairs differ and exactly one rank takes part
 * in all of them, that rank is named. Where its messages are those that its peers make one exchange later (or the
 * reverse), the text says that the rank left an exchange out (or made one too many).
 *
 * A refused call is taken out again, and a refused call that is made again with other arguments may meet its partner
 * before the news of the refusal is read. So a difference counts only when neither call can be refused any more: each
 * has returned, and its group has ended. A difference that stays open for suspect_ns is told as suspected. Judging at
 * the moment when the calls meet was rejected: that gave a proven verdict on a healthy program under load.
 */
#include "daemon/base/array.h"
#include "daemon/engine/detect/detector.h"

#include <inttypes.h>
#include <stdlib.h>

#define PAIRS_TOLD 8u
#define LINE_MAX   16u /* messages of a pair that are laid side by side */

/* A pair whose two messages differ in bytes. */
struct odd {
    struct pair *pair;
    uint32_t index;
    uint64_t ticket[2];
    uint64_t since; /* patience clock at which the difference was found */
};

/* The differing pairs of one communicator. */
struct p2p_case {
    struct comm *comm;
    uint32_t count;
    size_t odd_room;
    struct odd *odd;
    struct p2p_case *next;
};

struct alltoallv_engine {
    struct p2p_case *first; /* the communicators whose differing pairs are being collected; owned */
};
STATE_OF_ENGINE(alltoallv)

/* A call of the pair was taken out; a call may still be refused; the difference is certain. */
enum pair_state { TAKEN_OUT, OPEN, SURE };

static const struct source *end_source(const struct roll_engine *e, const struct pair *p, unsigned side)
{
    uint32_t source = p->comm->member[p->end[side]].source;
    return source == NO_SOURCE ? NULL : e->source[source];
}

static const struct entry *end_entry(const struct roll_engine *e, const struct odd *odd, unsigned side)
{
    const struct source *s = end_source(e, odd->pair, side);
    const struct entry *entry = s ? source_entry(s, odd->ticket[side]) : NULL;
    return entry && entry->pair == odd->pair && entry->index == odd->index ? entry : NULL;
}

static enum pair_state pair_state_of(const struct roll_engine *e, const struct odd *odd)
{
    enum pair_state found = SURE;
    for (unsigned side = 0; side < 2; side++) {
        const struct entry *entry = end_entry(e, odd, side);
        if (!entry) {
            return TAKEN_OUT;
        }
        found = source_unsettled(end_source(e, odd->pair, side), &entry->rec) ? OPEN : found;
    }
    return found;
}

static bool in_alltoallv(const struct roll_engine *e, const struct p2p_case *k)
{
    for (uint32_t i = 0; i < k->count; i++) {
        for (unsigned side = 0; side < 2; side++) {
            const struct source *s = end_source(e, k->odd[i].pair, side);
            if (s && p2p_is_alltoallv(s, k->odd[i].ticket[side])) {
                return true;
            }
        }
    }
    return false;
}

/* collecting */

static struct p2p_case *case_of(struct roll_engine *e, struct comm *c)
{
    struct alltoallv_engine *own = alltoallv_of_engine(e);
    struct p2p_case *k = own->first;
    while (k && k->comm != c) {
        k = k->next;
    }
    if (!k && (k = calloc(1, sizeof(*k)))) {
        k->comm = c;
        k->next = own->first;
        own->first = k;
    }
    return k;
}

static struct odd *odd_new(struct p2p_case *k)
{
    return ROLL_GROW(k->odd, k->odd_room, k->count + 1u) == 0 ? &k->odd[k->count++] : NULL;
}

static bool alltoallv_pair(struct roll_engine *e, struct pair *p, uint32_t index)
{
    const struct node *n = p2p_node(p, index);
    struct p2p_case *k = case_of(e, p->comm);
    struct odd *odd = NULL;
    for (uint32_t i = 0; k && p->said && i < k->count && !odd; i++) {
        odd = k->odd[i].pair == p ? &k->odd[i] : NULL;
    }
    if (!k || (p->said && (!odd || pair_state_of(e, odd) != TAKEN_OUT))) {
        return true; /* the first difference of a pair counts */
    }
    odd = odd ? odd : odd_new(k);
    if (!odd) {
        return true;
    }
    p->said = true;
    *odd = (struct odd){.pair = p, .index = index, .ticket = {n->ticket[0], n->ticket[1]}, .since = e->clock};
    return true;
}

/* which rank it was, and what it did */

/* Orders by the ranks of the pair, so that the order of arrival does not matter. */
static int by_ends(const void *a, const void *b)
{
    const struct odd *p = a, *q = b;
    for (unsigned side = 0; side < 2; side++) {
        if (p->pair->end[side] != q->pair->end[side]) {
            return p->pair->end[side] < q->pair->end[side] ? -1 : 1;
        }
    }
    return 0;
}

static bool in_all(const struct p2p_case *k, uint32_t rank)
{
    uint32_t i = 0;
    while (i < k->count && (k->odd[i].pair->end[0] == rank || k->odd[i].pair->end[1] == rank)) {
        i++;
    }
    return i == k->count;
}

/* The one rank of the communicator that is in every differing pair. NO_SOURCE: there is none, or there are two, as in a
 * single pair of two ranks. */
static uint32_t common_rank(const struct p2p_case *k)
{
    const uint32_t *end = k->odd[0].pair->end;
    bool one = in_all(k, end[0]), two = in_all(k, end[1]);
    if (one && two && end[0] != end[1]) {
        return NO_SOURCE;
    }
    return one ? end[0] : two ? end[1] : NO_SOURCE;
}

/* The sizes of the messages of one side of a pair, from message odd->index on. Returns how many are known. */
static uint32_t read_line(const struct roll_engine *e, const struct odd *odd, unsigned side, uint64_t *bytes)
{
    const struct source *s = end_source(e, odd->pair, side);
    uint32_t known = 0;
    uint64_t t = s && source_log_low(s) > odd->ticket[side] ? source_log_low(s) : odd->ticket[side];
    for (; s && t < s->next && known < LINE_MAX; t++) {
        const struct entry *at = source_entry(s, t);
        if (at && at->pair == odd->pair && p2p_side(&at->rec) == side && at->index == odd->index + known) {
            bytes[known++] = p2p_bytes(&at->rec);
        }
    }
    return known;
}

/* b without its first message equals a, as far as both are known. *seen is set where anything was compared. */
static bool is_ahead(const uint64_t *a, uint32_t na, const uint64_t *b, uint32_t nb, bool *seen)
{
    for (uint32_t i = 0; i < na && i + 1 < nb; i++) {
        *seen = true;
        if (a[i] != b[i + 1]) {
            return false;
        }
    }
    return true;
}

enum shift { NO_SHIFT, LEFT_OUT, TOO_MANY };

/* Whether all messages of the rank are those that its peers make one message later, or the reverse. Messages to itself
 * do not say. */
static enum shift shift_of(const struct roll_engine *e, const struct p2p_case *k, uint32_t rank)
{
    bool out = true, many = true, seen_out = false, seen_many = false;
    for (uint32_t i = 0; i < k->count; i++) {
        if (k->odd[i].pair->end[0] == k->odd[i].pair->end[1]) {
            continue;
        }
        uint64_t mine[LINE_MAX], theirs[LINE_MAX];
        unsigned side = k->odd[i].pair->end[0] == rank ? 0 : 1;
        uint32_t n = read_line(e, &k->odd[i], side, mine), other = read_line(e, &k->odd[i], !side, theirs);
        out = out && is_ahead(mine, n, theirs, other, &seen_out);
        many = many && is_ahead(theirs, other, mine, n, &seen_many);
    }
    out = out && seen_out;
    many = many && seen_many;
    return out == many ? NO_SHIFT : out ? LEFT_OUT : TOO_MANY;
}

static bool any_empty(const struct roll_engine *e, const struct p2p_case *k)
{
    bool any = false;
    for (uint32_t i = 0; i < k->count && !any; i++) {
        any = p2p_bytes(&end_entry(e, &k->odd[i], 0)->rec) == 0 || p2p_bytes(&end_entry(e, &k->odd[i], 1)->rec) == 0;
    }
    return any;
}

/* telling */

static void words_pairs(struct words *w, const struct roll_engine *e, const struct p2p_case *k)
{
    for (uint32_t i = 0; i < k->count && i < PAIRS_TOLD; i++) {
        const struct odd *odd = &k->odd[i];
        words_add(w, "%s%u to %u: %" PRIu64 " bytes sent, %" PRIu64 " expected", i ? "; " : "",
                  end_source(e, odd->pair, 0)->world, end_source(e, odd->pair, 1)->world,
                  p2p_bytes(&end_entry(e, odd, 0)->rec), p2p_bytes(&end_entry(e, odd, 1)->rec));
    }
    words_add(w, k->count > PAIRS_TOLD ? "; and %u more pairs." : ".", k->count - PAIRS_TOLD);
}

static void words_who(struct words *w, const struct roll_engine *e, const struct p2p_case *k, uint32_t rank)
{
    if (rank == NO_SOURCE) {
        words_add(w, " The calls alone do not say which side is wrong.");
        if (any_empty(e, k)) {
            words_add(w, " An empty message is a message: where one side leaves it out, every later message meets the "
                         "wrong one.");
        }
        return;
    }
    uint32_t world = comm_world(e, k->comm, rank);
    enum shift shift = shift_of(e, k, rank);
    words_add(w, " Rank %u takes part in every pair that differs: ", world);
    if (shift == LEFT_OUT) {
        words_add(w, "it has left out an exchange, for its messages here are those of its peers' next one.");
    } else if (shift == TOO_MANY) {
        words_add(w, "it has made an exchange too many, for its next messages are those of its peers here.");
    } else if (any_empty(e, k)) {
        words_add(w, "its split table is probably the wrong one, or it has left out empty messages or a whole "
                     "exchange of them. An empty message is a message, and needs its partner.");
    } else {
        words_add(w, "its split table is probably the wrong one.");
    }
}

/*
 * The trouble begins where the last of the two ends has come: its wall clock is the place of the silence. An end that
 * came early was rejected: what its peer had made meanwhile, and had come back from, counted as beyond the trouble.
 */
static void mute(struct roll_engine *e, const struct p2p_case *k)
{
    const struct source *last = NULL;
    const struct roll_record *rec = NULL;
    for (uint32_t i = 0; i < k->count; i++) {
        for (unsigned side = 0; side < 2; side++) {
            const struct source *s = end_source(e, k->odd[i].pair, side);
            const struct roll_record *own = &end_entry(e, &k->odd[i], side)->rec;
            if (!last || source_line(s, own) > source_line(last, rec)) {
                last = s;
                rec = own;
            }
        }
    }
    comm_mute_at(e, k->comm, last, rec);
    comm_explained(e, k->comm);
}

static void tell(struct roll_engine *e, struct p2p_case *k, bool proven)
{
    struct comm *c = k->comm;
    qsort(k->odd, k->count, sizeof(k->odd[0]), by_ends);
    if (c->muted) {
        return;
    }
    if (!in_alltoallv(e, k)) {
        p2p_say_bytes(e, k->odd[0].pair, k->odd[0].index, k->odd[0].ticket, proven);
        return;
    }
    mute(e, k);
    struct roll_verdict *v = say(e, ROLL_VERDICT_ALLTOALLV_MISMATCH, proven ? ROLL_PROVEN : ROLL_SUSPECTED);
    if (!v) {
        return;
    }
    say_comm(v, c, k->odd[0].index);
    v->field = "count";
    uint32_t rank = common_rank(k);
    bool turned = rank != NO_SOURCE && k->odd[0].pair->end[0] != rank; /* the side of the culprit comes first */
    for (uint32_t i = 0; i < k->count; i++) {
        for (unsigned n = 0; n < 2; n++) {
            unsigned side = turned ? !n : n;
            const struct source *s = end_source(e, k->odd[i].pair, side);
            struct roll_rankset one = {0};
            (void)roll_rankset_add(&one, s->world);
            if (i == 0) {
                say_side(v, s, source_index(e, s), &one, &end_entry(e, &k->odd[i], side)->rec);
            }
            (void)roll_rankset_union(&v->waiting, &one);
            roll_rankset_fini(&one);
        }
    }
    if (rank != NO_SOURCE) {
        (void)roll_rankset_add(&v->culprits, comm_world(e, c, rank));
    }
    struct words w = {.used = 0};
    words_add(&w, "In an all-to-all-v on ");
    words_comm(&w, c);
    words_add(&w, " what is sent is not what is expected: ");
    words_pairs(&w, e, k);
    words_who(&w, e, k, rank);
    if (!proven) {
        words_add(&w, " Suspected: some of these calls have not returned yet and may still be refused.");
    }
    say_text(e, v, "%s", w.text);
}

/* How far a case is: how many pairs may still be taken out, and the age of the oldest pair that may and of the oldest
 * that may not. */
struct progress {
    uint32_t open;
    uint64_t open_ns, sure_ns;
};

/* Drops the pairs of which a call was taken out. */
static struct progress settle(struct roll_engine *e, struct p2p_case *k)
{
    struct progress p = {0};
    uint32_t left = 0;
    for (uint32_t i = 0; i < k->count; i++) {
        enum pair_state state = pair_state_of(e, &k->odd[i]);
        uint64_t age = e->clock - k->odd[i].since;
        if (state == TAKEN_OUT) {
            k->odd[i].pair->said = false;
            pair_stir(k->odd[i].pair);
            continue;
        }
        p.open += state == OPEN;
        uint64_t *oldest = state == OPEN ? &p.open_ns : &p.sure_ns;
        *oldest = age > *oldest ? age : *oldest;
        k->odd[left++] = k->odd[i];
    }
    k->count = left;
    return p;
}

/* Pairs that are certain wait stall/20 for other pairs, and stall/5 where some pairs are open. Pairs that are all open
 * wait suspect_ns. */
static bool may_speak(const struct roll_engine *e, const struct p2p_case *k, const struct progress *p)
{
    uint64_t stall = e->config.stall_ns;
    return e->finishing || p->open_ns >= e->config.suspect_ns ||
           (p->open < k->count && p->sure_ns >= (p->open == 0 ? stall / 20 : stall / 5));
}

static void drop_open(struct roll_engine *e, struct p2p_case *k)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < k->count; i++) {
        if (pair_state_of(e, &k->odd[i]) == SURE) {
            k->odd[left++] = k->odd[i];
        } else {
            k->odd[i].pair->said = false;
            pair_stir(k->odd[i].pair);
        }
    }
    k->count = left;
}

static void alltoallv_tick(struct roll_engine *e)
{
    for (struct p2p_case **at = &alltoallv_of_engine(e)->first; *at;) {
        struct p2p_case *k = *at;
        struct progress progress = settle(e, k);
        if (k->count > 0 && !may_speak(e, k, &progress)) {
            at = &k->next;
            continue;
        }
        bool proven = progress.open < k->count;
        if (proven) {
            drop_open(e, k);
        }
        if (k->count > 0) {
            tell(e, k, proven);
        }
        for (uint32_t i = 0; i < k->count; i++) {
            k->odd[i].pair->said = false; /* the communicator is muted now */
            pair_stir(k->odd[i].pair);
        }
        *at = k->next;
        free(k->odd);
        free(k);
    }
}

static void alltoallv_fini(struct roll_engine *e)
{
    struct alltoallv_engine *own = alltoallv_of_engine(e);
    while (own->first) {
        struct p2p_case *next = own->first->next;
        free(own->first->odd);
        free(own->first);
        own->first = next;
    }
}

const struct detector detect_alltoallv = {.name = "alltoallv",
                                          ENGINE_STATE(alltoallv),
                                          .pair = alltoallv_pair,
                                          .tick = alltoallv_tick,
                                          .fini = alltoallv_fini};
