/*
 * shrink.c: see shrink.h. Tries smaller versions of the correct program (without some units, ranks, single calls; with
 * one stream, no sites, plain waits), makes the mistake again in each, and keeps what still ends in the same outcome.
 * Working on the correct program keeps the truth of the mistake; taking lines out of the sick one would turn it into
 * another mistake.
 */
#include "tests/simulation/shrink.h"

#include <string.h>

static struct program sick, tried;
static struct story story;

bool program_valid(const struct program *p)
{
    mask_t made[COMMS_MAX] = {0}, grouped = 0;
    for (uint32_t i = 0; i < p->acts; i++) {
        const struct act *a = &p->act[i];
        grouped = (mask_t)(a->kind == ACT_GROUP ? grouped | a->ranks
                           : a->kind == ACT_END ? grouped & ~a->ranks
                                                : grouped);
        bool message = a->kind == ACT_SEND || a->kind == ACT_RECV;
        if (message && a->peer == (int)mask_first(a->ranks) && (grouped & a->ranks) == 0) {
            return false; /* to oneself: refused outside a group */
        }
        if (a->comm >= 0 && a->kind != ACT_INIT && (a->ranks & ~made[a->comm]) != 0) {
            return false;
        }
        if (a->kind == ACT_INIT) {
            made[a->comm] = (mask_t)(made[a->comm] | a->ranks);
        } else if (a->kind == ACT_SPLIT && a->child >= 0) {
            made[a->child] = (mask_t)(made[a->child] | a->ranks);
        }
    }
    return true;
}

bool failure_sick(const struct failure *f, struct program *out, struct mutation *made)
{
    *out = f->base;
    *made = f->mutation;
    if (made->kind != MUTATION_NONE && !mutation_apply(out, made)) {
        return false;
    }
    program_tidy(out);
    return true;
}

int execute_mutated(const struct program *p, struct story *out, const struct mutation *k, uint64_t seed)
{
    bool twice = mutation_is_double(k);
    return execute(p, out, twice ? k->then.mark : k->mark, twice ? k->then.who : k->who, seed);
}

/* Does every rank wait for its own work before it ends, or is it luck that it was done? */
static bool waits_before_exit(const struct program *p)
{
    uint64_t dirty[RANKS_MAX][STREAMS_MAX] = {{0}}; /* communicators with work on the stream */
    for (uint32_t i = 0; i < p->acts; i++) {
        const struct act *a = &p->act[i];
        for (mask_t left = a->ranks; left != 0; left = (mask_t)(left & (left - 1))) {
            uint64_t *mine = dirty[mask_first(left)], bit = a->comm >= 0 ? 1ull << a->comm : 0, all = 0;
            for (uint32_t s = 0; s < STREAMS_MAX; s++) {
                mine[s] |= s == a->stream && act_is_call(a) && a->error == 0 ? bit : 0;
                mine[s] &= a->kind == ACT_DESTROY ? ~bit : UINT64_MAX;
                bool waited = a->kind == ACT_DEVICE || (a->kind >= ACT_STREAM && a->kind <= ACT_POLL &&
                                                        s == a->stream && (a->kind != ACT_EVENT || a->count == 0));
                mine[s] = waited ? 0 : mine[s];
                all |= mine[s];
            }
            if ((a->kind == ACT_EXIT && all != 0) || (a->kind == ACT_ABORT && (all & bit) != 0)) {
                return false;
            }
        }
    }
    return true;
}

/* A correct program comes to its end on all ranks, and leaves nothing undone behind. */
int program_correct(const struct program *p, struct story *out, uint64_t seed)
{
    if (execute(p, out, 0, 0, seed) != 0) {
        return -1;
    }
    if (!program_valid(p) || !waits_before_exit(p) || out->hangs || out->stale) {
        return 0;
    }
    for (uint32_t r = 0; r < p->ranks; r++) {
        if (out->rank[r].end_ns == NEVER) {
            return 0;
        }
    }
    return 1;
}

/* What is said about it in the order in which it fails: the codes of all findings, whatever their order. */
static uint64_t said(const struct findings *found)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < found->founds; i++) {
        sum |= 1ull << (found->found[i].code % 61) | 1ull << (61 + found->found[i].certainty % 3);
    }
    return sum;
}

struct feed_options feed_how(uint64_t seed, uint32_t order, const struct mutation *k)
{
    /* A stuck collective is told after a minute (docs/VERDICTS.md), of a creation after two; now and then all others
     * are waited for as long. */
    bool jam = k->kind == MUTATION_JAM;
    return (struct feed_options){.losses = order > 0 && (seed + order) % 7 == 0,
                                 .patience_s = jam                        ? 150
                                               : (seed + order) % 11 == 0 ? 70
                                                                          : 14};
}

static bool fails(struct failure *f)
{
    struct mutation made;
    if (program_correct(&f->base, &story, f->seed) != 1 || !failure_sick(f, &sick, &made) ||
        execute_mutated(&sick, &story, &made, f->seed) != 0) {
        return false;
    }
    /* The vote must stay what it was: a minority a minority, a tie a tie. */
    mask_t members = made.comm >= 0 ? sick.comm[made.comm].members : 0;
    bool tie = mutation_is_tie(&sick, &made);
    if (mask_count((mask_t)(members & made.who)) * 2 > mask_count(members) || (f->said != 0 && tie != f->tie)) {
        return false;
    }
    f->tie = tie;
    for (uint32_t order = 0; order < f->orders; order++) {
        struct findings found;
        struct latency latency;
        struct feed_options how = feed_how(f->seed, order, &made);
        if (feed(&sick, &story, f->seed * 1000 + order, &how, &found) == 0 &&
            judge(&sick, &made, &story, &found, &latency) == f->outcome && (f->said == 0 || f->said == said(&found))) {
            f->said = said(&found);
            return true;
        }
    }
    return false;
}

/* Keeps `tried` when it still fails. */
static bool keep(struct failure *f)
{
    struct program before = f->base;
    f->base = tried;
    program_tidy(&f->base);
    if (fails(f)) {
        return true;
    }
    f->base = before;
    return false;
}

bool program_drop_units(struct program *p, const struct mutation *k, uint32_t first, uint32_t count)
{
    bool change = false;
    for (uint32_t i = 0; i < p->acts; i++) {
        struct act *a = &p->act[i];
        if (a->unit >= first && a->unit < first + count && a->unit != k->unit &&
            (!mutation_is_double(k) || a->unit != k->then.unit)) {
            a->ranks = 0;
            change = true;
        }
    }
    return change;
}

static bool drop_units(struct failure *f)
{
    bool any = false;
    for (uint32_t size = f->base.units; size > 0; size /= 2) {
        for (uint32_t first = 0; first < f->base.units; first += size) {
            tried = f->base;
            any = (program_drop_units(&tried, &f->mutation, first, size) && keep(f)) || any;
        }
    }
    return any;
}

static bool is_retried(const struct program *p, uint16_t unit)
{
    for (uint32_t i = 0; i < p->acts; i++) {
        if (p->act[i].unit == unit && p->act[i].error != 0) {
            return true;
        }
    }
    return false;
}

static bool drop_acts(struct failure *f)
{
    bool any = false;
    for (uint32_t i = f->base.acts; i-- > 0;) {
        if (i >= f->base.acts) {
            continue;
        }
        tried = f->base;
        struct act *a = &tried.act[i];
        if (a->kind == ACT_SEND || a->kind == ACT_RECV || a->kind == ACT_INIT) {
            continue; /* with their partners, by units and ranks */
        }
        if (a->kind == ACT_MEET || (a->error == 0 && is_retried(&tried, a->unit))) {
            continue; /* a refused call without the one that follows it would be another mistake */
        }
        if (a->kind == ACT_GROUP) {
            for (uint32_t k = i + 1; k < tried.acts && tried.act[k].unit == a->unit; k++) {
                if (tried.act[k].kind == ACT_END) {
                    tried.act[k].ranks = 0;
                    break;
                }
            }
        } else if (a->kind == ACT_END) {
            continue;
        }
        a->ranks = 0;
        any = keep(f) || any;
    }
    return any;
}

/* A message and its partner: the next of the pair in the same unit. */
static bool drop_messages(struct failure *f)
{
    bool any = false;
    for (uint32_t i = f->base.acts; i-- > 0;) {
        if (i >= f->base.acts || f->base.act[i].kind != ACT_SEND) {
            continue;
        }
        tried = f->base;
        struct act *a = &tried.act[i];
        for (uint32_t k = 0; k < tried.acts; k++) {
            struct act *b = &tried.act[k];
            if (b->kind == ACT_RECV && b->unit == a->unit && b->comm == a->comm && b->ranks == BIT(a->peer) &&
                b->peer == (int)mask_first(a->ranks)) {
                b->ranks = 0;
                break;
            }
        }
        a->ranks = 0;
        any = keep(f) || any;
    }
    return any;
}

static mask_t squeeze(mask_t set, uint32_t rank)
{
    mask_t low = (mask_t)(BIT(rank) - 1);
    return (mask_t)((set & low) | (set >> 1 & ~low));
}

bool program_drop_rank(struct program *p, struct mutation *k, uint32_t rank)
{
    if (p->ranks < 2 || rank >= p->ranks || ((k->who | k->then.who) & BIT(rank)) != 0) {
        return false;
    }
    p->ranks--;
    for (uint32_t c = 0; c < p->comms; c++) {
        p->comm[c].members = squeeze((mask_t)(p->comm[c].members & ~BIT(rank)), rank);
    }
    for (uint32_t i = 0; i < p->acts; i++) {
        struct act *a = &p->act[i];
        a->ranks = squeeze((mask_t)(a->ranks & ~BIT(rank)), rank);
        if (a->kind == ACT_DOOM || a->peer < 0) {
            continue;
        }
        if (a->peer == (int)rank && a->kind == ACT_COLL) {
            a->peer = (int8_t)mask_first(p->comm[a->comm].members);
        } else if (a->peer == (int)rank) {
            a->ranks = 0;
        } else if (a->peer > (int)rank) {
            a->peer--;
        }
        if (a->comm >= 0 && act_is_call(a) && mask_count(p->comm[a->comm].members) < 2) {
            a->ranks = 0;
        }
    }
    k->who = squeeze(k->who, rank);
    k->then.who = squeeze(k->then.who, rank);
    return true;
}

static bool drop_rank(struct failure *f, uint32_t rank)
{
    struct mutation before = f->mutation;
    tried = f->base;
    if (program_drop_rank(&tried, &f->mutation, rank) && keep(f)) {
        return true;
    }
    f->mutation = before;
    return false;
}

static bool drop_ranks(struct failure *f)
{
    bool any = false;
    for (uint32_t r = f->base.ranks; r-- > 0;) {
        any = drop_rank(f, r) || any;
    }
    return any;
}

static void drop_comms(struct failure *f)
{
    for (uint32_t c = f->base.comms; c-- > 0;) {
        bool used = false;
        for (uint32_t i = 0; i < f->base.acts; i++) {
            used = used || f->base.act[i].comm == (int)c || f->base.act[i].child == (int)c;
        }
        if (used || (int)c == f->mutation.comm ||
            (mutation_is_double(&f->mutation) && (int)c == f->mutation.then.comm)) {
            continue;
        }
        tried = f->base;
        struct mutation before = f->mutation;
        memmove(&tried.comm[c], &tried.comm[c + 1], (tried.comms - c - 1) * sizeof(tried.comm[0]));
        tried.comms--;
        for (uint32_t i = 0; i < tried.acts; i++) {
            tried.act[i].comm = (int8_t)(tried.act[i].comm - (tried.act[i].comm > (int)c));
            tried.act[i].child = (int8_t)(tried.act[i].child - (tried.act[i].child > (int)c));
        }
        for (uint32_t i = 0; i < tried.comms; i++) {
            tried.comm[i].parent = (int8_t)(tried.comm[i].parent - (tried.comm[i].parent > (int)c));
        }
        f->mutation.comm = (int8_t)(f->mutation.comm - (f->mutation.comm > (int)c));
        f->mutation.then.comm = (int8_t)(f->mutation.then.comm - (f->mutation.then.comm > (int)c));
        if (!keep(f)) {
            f->mutation = before;
        }
    }
}

static void simplify(struct failure *f)
{
    for (int what = 0; what < 7; what++) {
        tried = f->base;
        for (uint32_t i = 0; i < tried.acts; i++) {
            struct act *a = &tried.act[i];
            bool wait = a->kind >= ACT_STREAM && a->kind <= ACT_POLL;
            a->stream = what == 0 ? 0 : a->stream;
            a->site = what == 1 ? 0 : a->site;
            a->kind = what == 2 && wait ? ACT_STREAM : what == 3 && wait ? ACT_DEVICE : a->kind;
            a->thread = what == 6 ? 0 : a->thread;
        }
        tried.completion = what == 4 ? false : tried.completion;
        tried.pace_ns = what == 5 ? 2000 : tried.pace_ns;
        for (uint32_t c = 0; what == 6 && c < tried.comms; c++) {
            tried.comm[c].nonblocking = false;
        }
        (void)keep(f);
    }
    while (mask_count(f->mutation.who) > 1) {
        mask_t before = f->mutation.who;
        f->mutation.who = (mask_t)(before & (before - 1));
        tried = f->base;
        if (!keep(f)) {
            f->mutation.who = before;
            break;
        }
    }
}

void shrink(struct failure *f)
{
    bool any = fails(f);
    for (int round = 0; any && round < 8; round++) {
        any = drop_units(f);
        any = drop_ranks(f) || any;
        any = drop_acts(f) || any;
        any = drop_messages(f) || any;
        drop_comms(f);
        simplify(f);
    }
}
