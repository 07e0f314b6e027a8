/*
 * part.c: where the lines of the program that two ranks run begin to differ, while the calls themselves still look
 * alike.
 *
 * A rank that leaves out one of several equal calls goes on to the next one, which meets its peers' as if nothing were
 * wrong: nothing differs but the call site. What differs by itself comes much later, as another call, or as the end of
 * the rank. From there this file looks back: from the parting on, each call of the one rank stands at the very place at
 * which the other stands k calls before or behind, and no two stand at one place unshifted. A pair of places that has
 * met before is a branch, and no parting. To compare the sites of each call when it comes was rejected: a branch that
 * only looks at the rank's number is healthy, and each record would pay for it.
 */
#include "daemon/engine/judge/judge.h"

#include <stdlib.h>

#define SHIFT_MAX 20u /* the largest number of calls left out or added that is recognised: align_lines.c */
#define KEPT      64u /* pairs of call sites whose relation is remembered */

/* The collectives of one member from `low` on; owned. */
struct past {
    const struct source *source;
    const struct roll_record **rec; /* by sequence number, less `low` */
    uint32_t low, high;             /* high: behind the last one */
};

struct pasts {
    struct past a, b;
    struct {
        uint32_t a, b; /* ids of call sites, each of its rank */
        enum site_relation is;
    } kept[KEPT];
};

static bool read_past(const struct roll_engine *e, const struct member *m, uint32_t from, struct past *out)
{
    const struct source *s = e->source[m->source];
    uint64_t floor = source_log_low(s);
    from = m->next - from > s->log_mask + 1 && m->next > from ? m->next - (uint32_t)(s->log_mask + 1) : from;
    uint32_t room = m->next > from ? m->next - from : 0, seq = m->next;
    *out = (struct past){.source = s, .low = m->next, .high = m->next};
    out->rec = room > 0 ? calloc(room, sizeof(struct roll_record *)) : NULL;
    for (uint64_t t = s->next; out->rec && t-- > floor && seq > from;) {
        const struct entry *entry = source_entry(s, t);
        bool counts = entry && roll_op_class(entry->rec.op) == ROLL_CLASS_COLL && entry->rec.count != 0 &&
                      !refused_call(s, entry) && source_member(s, entry->rec.comm) == m;
        if (counts && entry->rec.seq != seq - 1) {
            break; /* calls were lost */
        }
        if (counts) {
            out->rec[--seq - from] = &entry->rec;
        }
    }
    if (!out->rec || seq == m->next) {
        return false;
    }
    for (uint32_t i = 0; seq > from && i < m->next - seq; i++) {
        out->rec[i] = out->rec[seq - from + i];
    }
    out->low = seq;
    return true;
}

static const struct roll_record *call_at(const struct past *p, uint32_t seq)
{
    return seq >= p->low && seq < p->high ? p->rec[seq - p->low] : NULL;
}

/* How the places of these two calls stand to each other; UNKNOWN also where the calls differ. */
static enum site_relation compare(struct pasts *p, uint32_t of_a, uint32_t of_b)
{
    const struct roll_record *a = call_at(&p->a, of_a), *b = call_at(&p->b, of_b);
    if (!a || !b || match_signature(a) != match_signature(b)) {
        return SITE_UNKNOWN;
    }
    uint32_t at = (a->callsite * 31u + b->callsite) % KEPT;
    if (a->callsite == 0 || b->callsite == 0) {
        return SITE_UNKNOWN;
    }
    if (p->kept[at].a != a->callsite || p->kept[at].b != b->callsite) {
        p->kept[at].a = a->callsite;
        p->kept[at].b = b->callsite;
        p->kept[at].is = site_compare(p->a.source, a, p->b.source, b);
    }
    return p->kept[at].is;
}

/* The first of the places right before `upto` at which the two surely stand apart, behind one at which they do not;
 * `upto`: there is none. */
static uint32_t first_apart(struct pasts *p, uint32_t upto)
{
    uint32_t low = p->a.low > p->b.low ? p->a.low : p->b.low, at = upto;
    while (at > low && compare(p, at - 1, at - 1) == SITE_OTHER) {
        at--;
    }
    return at > low && compare(p, at - 1, at - 1) == SITE_SAME ? at : upto;
}

/* The two places have met before: two arms of one branch. */
static bool is_branch(const struct pasts *p, uint32_t at)
{
    uint64_t a = site_of(p->a.source, call_at(&p->a, at)), b = site_of(p->b.source, call_at(&p->b, at));
    uint32_t low = p->a.low > p->b.low ? p->a.low : p->b.low;
    for (uint32_t seq = low; seq < at; seq++) {
        const struct roll_record *x = call_at(&p->a, seq), *y = call_at(&p->b, seq);
        if (site_of(p->a.source, x) == a && site_of(p->b.source, y) == b) {
            return true;
        }
    }
    return false;
}

/* How many calls agree, by themselves and in their places, if b has left out k calls at `at` (skip), or made k too
 * many. 0: some do not. */
static uint32_t agree_shifted(struct pasts *p, uint32_t at, uint32_t k, bool skip)
{
    uint32_t a = at + (skip ? k : 0), b = at + (skip ? 0 : k), n = 0;
    for (; a < p->a.high && b < p->b.high; a++, b++, n++) {
        if (compare(p, a, b) != SITE_SAME) {
            return 0;
        }
    }
    return n;
}

static void try_shifts(struct pasts *p, uint32_t at, bool ended, struct parting *out)
{
    uint32_t lacks = p->a.high > p->b.high ? p->a.high - p->b.high : 0;
    for (uint32_t k = 1; k <= SHIFT_MAX; k++) {
        /* Where b makes no more calls, it has left out at least as many as it lacks, and has made none too many. */
        uint32_t skip = !ended || k >= lacks ? agree_shifted(p, at, k, true) : 0;
        uint32_t add = ended ? 0 : agree_shifted(p, at, k, false);
        if (skip > 0 && add > 0) {
            return; /* two calls that take turns: either may be */
        }
        if (skip + add > 0) {
            *out = (struct parting){
                .seq = at, .length = k, .skip = skip > 0, .overlap = skip + add, .a = call_at(&p->a, at)};
            out->b = call_at(&p->b, at);
            return;
        }
    }
}

bool part_find(const struct roll_engine *e, const struct member *a, const struct member *b, uint32_t upto,
               uint32_t look_back, bool ended, struct parting *out)
{
    struct pasts p = {.kept = {{0}}};
    uint32_t from = upto > look_back ? upto - look_back : 0;
    out->length = 0;
    if (read_past(e, a, from, &p.a) && read_past(e, b, from, &p.b)) {
        uint32_t at = first_apart(&p, upto);
        if (at < upto && !is_branch(&p, at)) {
            try_shifts(&p, at, ended, out);
        }
    }
    free(p.a.rec);
    free(p.b.rec);
    return out->length > 0;
}
