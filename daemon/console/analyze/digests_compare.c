/*
 * digests_compare.c: the digests of all nodes of a run, added up: where calls differ, or stand, and whether the
 * excerpts reach that place.
 *
 * A difference is no finding: only the engine says what is wrong, from records. Where the excerpts of the end have
 * them, it has said so already; where other sections have been fetched for that place, they go to an engine of their
 * own; and where neither is so, the place is told with the command that fetches its records. To take a difference of
 * hashes for a mismatch was rejected: hashes differ, too, where calls do that NCCL does not mind.
 */
#include "daemon/console/analyze/digests_compare.h"

#include "daemon/base/array.h"
#include "daemon/console/console.h"
#include "daemon/digest/digest_bytes.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>

#define STAND_NS UINT64_C(250000000)
#define LATER_NS UINT64_C(10000000000)

/* what is known */

static int add_member(struct digests_compared *c, const struct digest_section *s, const struct roll_rdig_comm *comm,
                      uint32_t spans_at)
{
    uint32_t at = roll_map_get(&c->known_at, comm->key);
    int err = ROLL_GROW(c->member, c->member_room, c->members + 1);
    if (!err && at == ROLL_MAP_NONE) {
        err = ROLL_GROW(c->known, c->known_room, c->knowns + 1);
        err = err ? err : roll_map_add(&c->known_at, comm->key, (uint32_t)c->knowns);
        at = (uint32_t)c->knowns;
        if (!err) {
            c->known[c->knowns++] =
                (struct digest_known){.key = comm->key, .size = comm->size, .first = UINT32_MAX, .whole = true};
        }
    }
    if (err) {
        return err;
    }
    struct digest_known *k = &c->known[at];
    c->member[c->members] = (struct digest_member){s, *comm, spans_at, k->first};
    k->first = (uint32_t)c->members++;
    k->sections++;
    k->from = comm->from > k->from ? comm->from : k->from;
    k->whole = k->whole && (s->view.is.flags & ROLL_RDIG_WHOLE) != 0;
    return 0;
}

/* Takes the digest of one section. One that says what cannot be is told, and used no further. */
static int take_digest(struct digests_compared *c, const struct digest_section *s, uint32_t child)
{
    const uint8_t *at = s->view.digest;
    size_t left = s->view.is.digest_bytes;
    struct roll_digest d = {0};
    int err = 0;
    while (left > 0 && !err) {
        uint32_t bytes = 0;
        err = left < sizeof(bytes) ? ROLL_E_SHORT : 0;
        if (!err) {
            memcpy(&bytes, at, sizeof(bytes));
            err = bytes > left - sizeof(bytes) ? ROLL_E_SHORT : 0;
        }
        roll_digest_clear(&d);
        err = err ? err : roll_digest_decode(at + sizeof(bytes), bytes, &d);
        err = err ? err : roll_sum_take(c->sum, child, &d, 1);
        if (!err) {
            at += sizeof(bytes) + bytes;
            left -= sizeof(bytes) + bytes;
        }
    }
    roll_digest_fini(&d);
    if (err && err != ROLL_E_NOMEM) {
        roll_say("%s: the digest of %s says what cannot be (%s): what it says is not compared", s->path,
                 s->view.is.host, roll_strerror(err));
        *c->digests->cut = true;
        return 0;
    }
    return err;
}

static int take_section(struct digests_compared *c, uint32_t i)
{
    const struct digest_section *s = c->run->section[i];
    uint32_t spans = 0;
    int err = 0;
    for (uint32_t k = 0; k < s->view.is.comms && !err; k++) {
        struct roll_rdig_comm comm;
        roll_rdig_comm(&s->view, k, &comm);
        err = add_member(c, s, &comm, spans);
        spans += comm.spans;
    }
    return err ? err : take_digest(c, s, i);
}

/* places */

/* Of what differs only the first place of a communicator counts: what comes behind it follows from it. */
static int add_place(struct digests_compared *c, const struct digest_place *p)
{
    for (size_t i = 0; i < c->places; i++) {
        struct digest_place *have = &c->place[i];
        if (have->key == p->key && have->messages == p->messages && have->observed == p->observed) {
            bool finer = p->seq >= have->seq && p->last <= have->last;
            if (finer || (p->seq < have->seq && p->last < have->last)) {
                *have = *p;
            }
            return 0;
        }
    }
    int err = ROLL_GROW(c->place, c->place_room, c->places + 1);
    if (!err) {
        c->place[c->places++] = *p;
    }
    return err;
}

static struct digest_place place_of(uint64_t key, const struct roll_span *where)
{
    uint64_t last = ((uint64_t)where->window + where->windows) * ROLL_DIGEST_WINDOW - 1;
    uint32_t seq = where->window * ROLL_DIGEST_WINDOW;
    return (struct digest_place){
        .key = key, .seq = seq, .last = where->windows == 1 || last > UINT32_MAX ? seq : (uint32_t)last};
}

/* A list of spans, copied. */
struct list {
    struct roll_span *at;
    size_t n;
};

static int list_of(const struct digest_section *s, uint32_t first, uint32_t n, struct list *out)
{
    *out = (struct list){malloc((n + 1) * sizeof(*out->at)), n};
    if (!out->at) {
        return ROLL_E_NOMEM;
    }
    roll_rdig_spans(&s->view, first, n, out->at);
    out->n = roll_spans_are(out->at, n) ? n : 0; /* of a list that cannot be nothing is believed */
    return 0;
}

static uint64_t end_of(const struct list *l)
{
    return l->n == 0 ? 0 : (uint64_t)l->at[l->n - 1].window + l->at[l->n - 1].windows;
}

/* Compares a list with the longest one until now, and keeps the longer one of both. Takes `one`. */
static void compare(struct list *best, struct list one, struct roll_span *where, bool *differs)
{
    struct roll_span here;
    if (roll_spans_differ(best->at, best->n, one.at, one.n, &here) &&
        (!*differs || here.window < where->window || (here.window == where->window && here.windows < where->windows))) {
        *where = here;
        *differs = true;
    }
    bool longer = end_of(&one) > end_of(best);
    free(longer ? best->at : one.at);
    *best = longer ? one : *best;
}

/* Where windows differ that the levels have forgotten long ago. */
static int compare_spans(struct digests_compared *c, const struct digest_known *k)
{
    struct list best = {0};
    struct roll_span where = {0};
    bool differs = false;
    int err = 0;
    for (uint32_t i = k->first; i != UINT32_MAX && !err; i = c->member[i].next) {
        struct list one;
        err = list_of(c->member[i].section, c->member[i].spans_at, c->member[i].comm.spans, &one);
        if (!err) {
            compare(&best, one, &where, &differs);
        }
    }
    free(best.at);
    if (!err && differs) {
        struct digest_place p = place_of(k->key, &where);
        err = add_place(c, &p);
    }
    return err;
}

/* What was fetched of a range tells more exactly where in it something differs. */
static int compare_ranges(struct digests_compared *c)
{
    const struct digest_run *run = c->run;
    int err = 0;
    for (size_t i = run->ends, next; i < run->all && !err; i = next) {
        const struct roll_rdig_section *first = &run->section[i]->view.is;
        struct list best = {0};
        struct roll_span where = {0};
        bool differs = false;
        for (next = i; next < run->all && !err; next++) {
            const struct digest_section *s = run->section[next];
            if (s->view.is.kind != first->kind || s->view.is.key != first->key || s->view.is.seq != first->seq ||
                s->view.is.last != first->last) {
                break;
            }
            struct list one;
            err = list_of(s, 0, first->kind == ROLL_RDIG_RANGE ? s->view.is.spans : 0, &one);
            if (!err) {
                compare(&best, one, &where, &differs);
            }
        }
        free(best.at);
        if (!err && differs) {
            struct digest_place p = place_of(first->key, &where);
            err = add_place(c, &p);
        }
        if (!err && first->kind == ROLL_RDIG_PLACE && digest_known_of(c, first->key)) { /* a node has found it wanting,
                                                                                    or it was asked for */
            err = add_place(c, &(struct digest_place){.key = first->key, .seq = first->seq, .last = first->last});
        }
    }
    return err;
}

static int take_hints(struct digests_compared *c, const struct roll_digest *up)
{
    int err = up->short_of_memory ? ROLL_E_NOMEM : 0;
    for (size_t i = 0; i < up->hints && !err; i++) {
        const struct roll_digest_hint *h = &up->hint[i];
        struct digest_place p = {.key = h->key, .seq = h->seq, .last = h->seq};
        p.stands = h->why == ROLL_HINT_STANDS;
        p.messages = h->why == ROLL_HINT_MESSAGES;
        p.observed = h->why == ROLL_HINT_OBSERVED;
        if (p.messages) { /* seq: which of their sums */
            p.seq = p.last = 0;
        }
        bool looks = p.stands || p.messages || p.observed || h->why == ROLL_HINT_DIFFERS;
        if (digest_known_of(c, h->key) && looks) {
            err = add_place(c, &p);
        }
    }
    return err;
}

int roll_digests_compare(roll_digests_t *digests, const struct digest_run *run)
{
    struct digests_compared c = {.digests = digests, .run = run};
    struct roll_digest up = {0};
    c.sum = roll_sum_new(&(struct roll_sum_config){.stand_ns = STAND_NS, .is_root = true});
    int err = c.sum ? 0 : ROLL_E_NOMEM;
    for (uint32_t i = 0; i < run->ends && !err; i++) {
        err = take_section(&c, i);
    }
    if (!err) {
        roll_sum_cut(c.sum, 1, &up);
        roll_sum_cut(c.sum, LATER_NS, &up); /* nobody moves any more: what stands now stands for good */
        err = take_hints(&c, &up);
    }
    for (size_t i = 0; i < c.knowns && !err; i++) {
        err = compare_spans(&c, &c.known[i]);
    }
    err = err ? err : compare_ranges(&c);
    for (size_t i = 0; i < c.places && !err; i++) {
        err = roll_digests_look_at(&c, &c.place[i]);
    }
    if (!err) {
        roll_digests_tell_rest(&c);
    }
    roll_sum_destroy(&c.sum);
    roll_digest_fini(&up);
    roll_map_fini(&c.known_at);
    free(c.known);
    free(c.member);
    free(c.place);
    return err;
}
