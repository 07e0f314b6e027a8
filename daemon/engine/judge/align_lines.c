/*
 * align_lines.c: two ranks' calls from one place on, and the mistakes that turn one line into the other.
 *
 * Five mistakes are tried: a call with a wrong argument, a call of another operation (in both the rest agrees
 * unshifted), k calls left out, k calls made too many, k calls in another order. Each mistake either fits all that is
 * known of both lines, or is excluded. A call that is not known yet excludes nothing: a rank that has made one call may
 * have left out any number. A mistake is certain when it alone is left. To choose the best of several fits and call it
 * proven was rejected: with short lines that is right three times out of five.
 *
 * Call sites are evidence as well. Calls that agree but stand at different places of the program are not the same call.
 * Calls that differ at one place are a wrong argument, unless that place makes different calls anyway (a helper, a
 * loop), or every call nearby comes from it.
 *
 * Parsimony is used twice, where strictness would leave everything open for ever. A block of calls that was left out or
 * added, and of which nothing is seen, is not held against one mistake after which two calls agree; three mistakes are
 * not held against one mistake after which three calls agree. Nothing is proven by the length of such a block alone.
 */
#include "daemon/engine/judge/align.h"

#include <string.h>

#define SHIFT_MAX   8u    /* the largest number of calls permuted that is recognised */
#define BLOCK_MAX   20u   /* the largest number of calls skipped or added that is recognised */
#define BLOCK_MIN   2u    /* so many calls behind a block of more than SHIFT_MAX have to agree before it is certain */
#define UNSEEN_MAX  3u    /* the same where nothing behind these calls is seen; but see try_blocks */
#define FRONT_MIN   4u    /* so many calls have to agree before a difference may be a second mistake */
#define SECOND_COST 2u    /* what that second mistake counts, in mistakes of one call */
#define LOOK_BACK   1024u /* log entries that are looked at for the calls before the place */

/* lines */

static void read_call(const struct source *s, const struct entry *entry, uint64_t ticket, struct line_call *out)
{
    *out = (struct line_call){.sig = match_signature(&entry->rec),
                              .site = site_of(s, &entry->rec),
                              .ticket = ticket,
                              .seq = entry->rec.seq,
                              .rec = &entry->rec};
}

static bool is_counted(const struct source *s, const struct entry *entry, const struct member *m)
{
    return entry && roll_op_class(entry->rec.op) == ROLL_CLASS_COLL && entry->rec.count != 0 &&
           !refused_call(s, entry) && source_member(s, entry->rec.comm) == m;
}

void line_read(const struct roll_engine *e, const struct comm *c, uint32_t rank, uint32_t seq, struct line *out)
{
    const struct member *m = &c->member[rank];
    const struct source *s = e->source[m->source];
    uint64_t oldest = source_log_low(s);
    uint64_t place = s->next;
    out->source = s;
    out->real = out->known = out->befores = 0;
    out->ended = m->gone;
    for (uint64_t ticket = oldest; ticket < s->next && out->real < ALIGN_CALLS; ticket++) {
        const struct entry *entry = source_entry(s, ticket);
        if (is_counted(s, entry, m) && entry->rec.seq == seq + out->real) {
            place = out->real == 0 ? ticket : place;
            read_call(s, entry, ticket, &out->call[out->real++]);
        }
    }
    out->known = out->real;
    for (uint64_t ticket = place; ticket > oldest && place - ticket < LOOK_BACK && out->befores < ALIGN_BEFORE;) {
        const struct entry *entry = source_entry(s, --ticket);
        if (is_counted(s, entry, m) && entry->rec.seq < seq) {
            read_call(s, entry, ticket, &out->before[out->befores++]);
        }
    }
}

/* call sites */

/* At an earlier collective these two places of the program met, and nothing was wrong: they are two arms of a branch,
 * and one call. */
static bool are_twins(const struct line *a, uint64_t site_a, const struct line *b, uint64_t site_b)
{
    for (uint32_t i = 0, k = 0; i < a->befores && k < b->befores;) {
        if (a->before[i].seq == b->before[k].seq) {
            if (a->before[i].site == site_a && b->before[k].site == site_b) {
                return true;
            }
            i++;
            k++;
        } else if (a->before[i].seq > b->before[k].seq) {
            i++;
        } else {
            k++;
        }
    }
    return false;
}

static enum site_relation relation(const struct line *a, const struct line_call *of_a, const struct line *b,
                                   const struct line_call *of_b)
{
    if (!of_a->rec || !of_b->rec || of_a->site == 0 || of_b->site == 0) {
        return SITE_UNKNOWN;
    }
    enum site_relation found = site_compare(a->source, of_a->rec, b->source, of_b->rec);
    return found == SITE_OTHER && are_twins(a, of_a->site, b, of_b->site) ? SITE_SAME : found;
}

/* In what x and y differ, z is as x. Calls of other operations have nothing in common. */
static bool is_as_first(const struct roll_record *x, const struct roll_record *y, const struct roll_record *z)
{
    bool flags = ((x->flags ^ y->flags) & ROLL_FLAG_CAPTURED) == 0 || ((x->flags ^ z->flags) & ROLL_FLAG_CAPTURED) == 0;
    return x->op == y->op && x->op == z->op && flags && (x->count == y->count || x->count == z->count) &&
           (x->dtype == y->dtype || x->dtype == z->dtype) && (x->redop == y->redop || x->redop == z->redop) &&
           (x->peer == y->peer || x->peer == z->peer);
}

/*
 * The place in the program of a's first call says which call it is: as far as is seen, that place makes this call and
 * no other, and other calls come from other places. Calls that differ in what the two ranks agree in are no other call:
 * a list that is gathered with a broadcast from each root has one count, and another count is what differs.
 */
static bool is_telling(const struct line *a, const struct line *b)
{
    uint64_t site = a->call[0].site, sig = a->call[0].sig;
    const struct roll_record *mine = a->call[0].rec, *odd = b->call[0].rec;
    bool others = false;
    for (uint32_t i = 0; i < a->real + a->befores + b->befores; i++) {
        const struct line_call *call = i < a->real                ? &a->call[i]
                                       : i < a->real + a->befores ? &a->before[i - a->real]
                                                                  : &b->before[i - a->real - a->befores];
        if (call->site == site && call->sig != sig && !(call->rec && is_as_first(mine, odd, call->rec))) {
            return false;
        }
        others = others || (call->site != 0 && call->site != site);
    }
    return others;
}

/* The first call of b, the odd one, is made by neither line anywhere else nearby: it is no call of another place. */
static bool is_foreign(const struct line *a, const struct line *b)
{
    for (uint32_t i = 0; i < a->known + a->befores + b->befores; i++) {
        const struct line_call *call = i < a->known                ? &a->call[i]
                                       : i < a->known + a->befores ? &a->before[i - a->known]
                                                                   : &b->before[i - a->known - a->befores];
        if (call->sig == b->call[0].sig) {
            return false;
        }
    }
    return true;
}

/*
 * The first calls are a slip: they differ in the reduction, the datatype or the root alone, and the odd one is made
 * nowhere else nearby. When the rest agrees unshifted, nobody believes that a call was added which by chance has the
 * operation and the count of the call in whose place it stands. In a tie either call may be the odd one.
 */
static bool is_slip(const struct line *a, const struct line *b, bool tie)
{
    const struct roll_record *x = a->call[0].rec, *y = b->call[0].rec;
    return x->op == y->op && x->count == y->count && (is_foreign(a, b) || (tie && is_foreign(b, a)));
}

/* which mistakes fit */

/* How one mistake fits two lines. */
struct fit {
    bool fits;
    uint32_t length;  /* calls that are wrong, skipped, added or in another order */
    uint32_t matched; /* pairs of calls that agree if this is the mistake */
    uint32_t cost;    /* how large the mistake is, with a second one behind it */
    uint32_t unit;    /* a wrong call: so many calls of its group are wrong in the same way */
};

/* Two lines, and how they are compared. */
struct trial {
    const struct line *a, *b;
    uint32_t n, m; /* how many calls of each are used */
    bool sites;    /* call sites are compared as well */
    bool slip;     /* the first calls are a slip (is_slip) */
};

static bool agree(const struct trial *t, uint32_t i, uint32_t k)
{
    const struct line_call *x = &t->a->call[i], *y = &t->b->call[k];
    return x->sig == y->sig && (!t->sites || relation(t->a, x, t->b, y) != SITE_OTHER);
}

/*
 * Compares the calls of a from i on with those of b from k on. False: two of them differ. But where several calls have
 * agreed before, the difference is a second mistake, which has its cost.
 */
static bool run_agrees(const struct trial *t, uint32_t i, uint32_t k, struct fit *f)
{
    for (; i < t->n && k < t->m; i++, k++) {
        if (!agree(t, i, k)) {
            f->cost += SECOND_COST;
            return f->matched >= FRONT_MIN;
        }
        f->matched++;
    }
    return true;
}

/* False: both ranks make no more calls, and b has not `more` calls more than a. */
static bool lengths_allow(const struct trial *t, int more)
{
    bool whole = t->a->ended && t->b->ended && t->a->real < ALIGN_CALLS && t->b->real < ALIGN_CALLS;
    return !whole || (int)t->b->real - (int)t->a->real == more;
}

/* How many of the first calls are wrong in the way of the first ones, and of one group with them: a list of tensors
 * that is gathered with a broadcast for each. */
static uint32_t wrong_unit(const struct trial *t)
{
    const struct roll_record *x = t->a->call[0].rec, *y = t->b->call[0].rec;
    uint32_t n = 1;
    for (; n < t->n && n < t->m; n++) {
        const struct roll_record *mine = t->a->call[n].rec, *theirs = t->b->call[n].rec;
        bool unit = mine && theirs && source_same_unit(x, mine) && source_same_unit(y, theirs);
        bool roots = unit && (x->peer != y->peer || mine->peer == theirs->peer);
        if (!roots || !is_as_first(x, y, mine) || !is_as_first(y, x, theirs)) {
            break;
        }
    }
    return n;
}

/*
 * Tries one wrong call, with the rest unshifted. A wrong line of the program is wrong each time, so the same two calls
 * may meet again. Behind a slip a second mistake may come anywhere, because a wrong reduction stops nobody.
 */
static struct fit try_plain(const struct trial *t)
{
    struct fit f = {.length = 1, .cost = 1, .fits = lengths_allow(t, 0), .unit = wrong_unit(t)};
    for (uint32_t i = f.unit; i < t->n && i < t->m && f.fits; i++) {
        bool again = t->a->call[i].sig == t->a->call[0].sig && t->b->call[i].sig == t->b->call[0].sig;
        bool same = again || agree(t, i, i);
        f.matched += same && !again;
        if (!same) {
            f.cost += SECOND_COST;
            f.fits = t->slip || f.matched >= FRONT_MIN;
            break;
        }
    }
    return f;
}

/* Tries calls that b has left out (skip) or made too many. */
static struct fit try_shift(const struct trial *t, bool skip)
{
    for (uint32_t k = 1; k <= BLOCK_MAX; k++) {
        struct fit f = {.length = k, .cost = k};
        if (lengths_allow(t, skip ? -(int)k : (int)k) && run_agrees(t, skip ? k : 0, skip ? 0 : k, &f) &&
            (f.matched > 0 || k <= UNSEEN_MAX)) {
            f.fits = true;
            return f;
        }
    }
    return (struct fit){.fits = false};
}

/* The first k calls of b, as far as they are known, are among the first k of a. */
static bool permuted(const struct trial *t, uint32_t k, uint32_t *matched)
{
    bool used[SHIFT_MAX] = {false};
    uint32_t unknown = k > t->n ? k - t->n : 0;
    for (uint32_t i = 0; i < k && i < t->m; i++) {
        uint32_t at = 0;
        while (at < k && at < t->n && (used[at] || !agree(t, at, i))) {
            at++;
        }
        if (at < k && at < t->n) {
            used[at] = true;
            ++*matched;
        } else if (unknown == 0) {
            return false;
        } else {
            unknown--;
        }
    }
    return true;
}

/* Tries calls in another order. */
static struct fit try_reorder(const struct trial *t)
{
    for (uint32_t k = 2; k <= SHIFT_MAX; k++) {
        struct fit f = {.length = k, .cost = k - 1};
        bool seen = k <= t->n && k <= t->m;
        if (lengths_allow(t, 0) && (seen || k <= UNSEEN_MAX) && permuted(t, k, &f.matched) && run_agrees(t, k, k, &f)) {
            f.fits = true;
            return f;
        }
    }
    return (struct fit){.fits = false};
}

/* How each mistake fits two lines. */
struct fits {
    struct fit of[ALIGN_REORDER + 1]; /* by kind */
    uint32_t set;                     /* bits of the kinds that fit */
    bool displaced;                   /* the odd call stands at another place of the program than the majority's */
};

/* b stands at a place of the program to which a comes later, and was not there a moment ago: b has gone on, and has
 * made no call too many. */
static bool is_ahead(const struct trial *t, const struct fit *skip)
{
    const struct line_call *there = skip->fits && skip->length < t->n ? &t->a->call[skip->length] : NULL;
    const struct line_call *here = &t->b->call[0];
    bool again = t->b->befores > 0 && t->b->before[0].site == here->site;
    return t->sites && there && !again && relation(t->a, there, t->b, here) == SITE_SAME;
}

/* No call of the one line is a call of the other. */
static bool are_disjoint(const struct trial *t)
{
    for (uint32_t i = 0; i < t->n; i++) {
        for (uint32_t k = 0; k < t->m; k++) {
            if (agree(t, i, k)) {
                return false;
            }
        }
    }
    return true;
}

/*
 * All that is known of b may lie behind a block that b has left out, and all that is known of a behind a block that b
 * has made too many. Where the two share no call, and there is no other single mistake, the calls of the one being
 * more than UNSEEN_MAX does not speak against its block: a checkpoint is long, and a rank that leaves it out stands at
 * the next step. To hold the shorter block for certain was rejected for that reason.
 */
static void try_blocks(const struct trial *t, const struct fit *plain, struct fit *skip, struct fit *add)
{
    bool again = plain->fits && t->n > plain->unit && t->m > plain->unit; /* the same wrong call a second time */
    if (again || !are_disjoint(t)) {
        return;
    }
    if (!skip->fits && !t->a->ended) {
        *skip = (struct fit){.fits = true, .length = t->n, .cost = t->n};
    }
    if (!add->fits && !t->b->ended) {
        *add = (struct fit){.fits = true, .length = t->m, .cost = t->m};
    }
}

/* Tries all mistakes. sites: with call sites. */
static struct fits try_all(const struct line *a, uint32_t n, const struct line *b, enum align_kind plain, bool slip,
                           bool sites)
{
    struct trial t = {.a = a, .b = b, .n = n, .m = b->real, .sites = sites, .slip = slip};
    struct fits f = {.set = 0};
    enum site_relation first = sites ? relation(a, &a->call[0], b, &b->call[0]) : SITE_UNKNOWN;
    bool pinned = first == SITE_SAME && is_foreign(a, b) && is_telling(a, b);
    f.of[plain] = try_plain(&t);
    if (first == SITE_OTHER && (plain == ALIGN_ARGUMENT || site_is_home(a->source, b->source, b->call[0].rec))) {
        f.of[plain].fits = false;
        f.displaced = true;
    }
    if (!pinned) {
        f.of[ALIGN_SKIP] = try_shift(&t, true);
        f.of[ALIGN_ADD] = try_shift(&t, false);
        f.of[ALIGN_REORDER] = try_reorder(&t);
        try_blocks(&t, &f.of[plain], &f.of[ALIGN_SKIP], &f.of[ALIGN_ADD]);
        if (is_ahead(&t, &f.of[ALIGN_SKIP]) && f.of[ALIGN_ADD].matched == 0) {
            f.of[ALIGN_ADD].fits = false;
        }
    }
    for (unsigned kind = 0; kind <= ALIGN_REORDER; kind++) {
        f.set |= f.of[kind].fits ? ALIGN_BIT(kind) : 0;
    }
    return f;
}

/* the likeliest */

/* No call that follows is known: which mistake is it most often? */
static enum align_kind by_itself(const struct line *a, const struct line *b, enum align_kind plain, uint32_t set)
{
    enum site_relation first = relation(a, &a->call[0], b, &b->call[0]);
    enum align_kind order[3] = {plain, ALIGN_SKIP, ALIGN_ADD};
    if (first == SITE_OTHER) {
        bool at_home = site_is_home(a->source, b->source, b->call[0].rec);
        order[0] = at_home ? ALIGN_SKIP : ALIGN_ADD;
        order[1] = at_home ? ALIGN_ADD : plain;
        order[2] = at_home ? plain : ALIGN_SKIP;
    }
    for (unsigned i = 0; i < 3; i++) {
        if ((set & ALIGN_BIT(order[i])) != 0) {
            return order[i];
        }
    }
    return ALIGN_REORDER;
}

static bool is_better(const struct fit *a, const struct fit *b)
{
    if ((a->matched > 0) != (b->matched > 0)) {
        return a->matched > 0;
    }
    if (a->cost != b->cost) {
        return a->cost < b->cost;
    }
    return a->matched > b->matched;
}

/* The likeliest of the mistakes in `set`. */
static enum align_kind likeliest(const struct line *a, const struct line *b, enum align_kind plain,
                                 const struct fits *f, uint32_t set)
{
    const enum align_kind order[4] = {plain, ALIGN_SKIP, ALIGN_REORDER, ALIGN_ADD};
    enum align_kind best = ALIGN_UNKNOWN;
    for (unsigned i = 0; i < 4; i++) {
        /* One call may agree by chance: it is no sign of a block of calls. */
        bool in = (set & ALIGN_BIT(order[i])) != 0 && f->of[order[i]].matched > (f->of[order[i]].cost > 1);
        if (in && (best == ALIGN_UNKNOWN || is_better(&f->of[order[i]], &f->of[best]))) {
            best = order[i];
        }
    }
    return best != ALIGN_UNKNOWN ? best : by_itself(a, b, plain, set);
}

/* Bits of the mistakes that are left besides the likeliest, without those that parsimony leaves out. */
static uint32_t rivals(const struct fits *f, uint32_t set, enum align_kind best)
{
    const struct fit *b = &f->of[best];
    uint32_t left = 0;
    for (unsigned kind = 0; kind <= ALIGN_REORDER; kind++) {
        const struct fit *r = &f->of[kind];
        bool unseen = r->matched == 0 && r->cost >= 2 && b->cost == 1 && b->matched >= 2;
        bool costly = r->cost >= 3 * b->cost && b->matched >= 3;
        if ((set & ALIGN_BIT(kind)) != 0 && kind != best && !unseen && !costly) {
            left |= ALIGN_BIT(kind);
        }
    }
    return left;
}

/* Tries all mistakes with call sites; where none fits, without them. */
static struct fits try_best(const struct line *a, uint32_t n, const struct line *b, enum align_kind plain, bool slip)
{
    struct fits f = try_all(a, n, b, plain, slip, true);
    return f.set != 0 ? f : try_all(a, n, b, plain, slip, false);
}

/* Calls agree after the slip, and where a second mistake comes after them, no single mistake of another kind explains
 * more. */
static bool slip_is_sure(const struct fits *f, enum align_kind plain)
{
    const struct fit *own = &f->of[plain];
    bool sure = own->fits && own->matched > 0;
    for (unsigned kind = 0; own->cost > 1 && kind <= ALIGN_REORDER; kind++) {
        sure = sure && (kind == (unsigned)plain || !f->of[kind].fits || f->of[kind].matched <= own->matched);
    }
    return sure;
}

void lines_compare(const struct line *a, const struct line *b, enum align_kind plain, bool tie, struct align_guess *out)
{
    /* Once by the calls that were really made, and once with those that the majority will make next by the history. */
    bool slip = is_slip(a, b, tie);
    struct fits real = try_best(a, a->real, b, plain, slip), all = try_best(a, a->known, b, plain, slip);
    *out = (struct align_guess){.kind = plain, .length = 1};
    bool launches = plain == ALIGN_ARGUMENT && a->call[0].rec->op == ROLL_OP_GRAPH_LAUNCH;
    if (launches && is_foreign(a, b)) {
        return; /* nobody else launches this graph: whatever was meant, the two launch different graphs */
    }
    if (slip && slip_is_sure(&real, plain)) {
        out->overlap = real.of[plain].matched;
        return;
    }
    if (real.set == 0) {
        return; /* no single mistake fits: all that is certain is that the two make different calls here */
    }
    bool history = (all.set & real.set) != 0;
    const struct fits *f = history ? &all : &real;
    uint32_t set = history ? all.set & real.set : real.set;
    out->kind = likeliest(a, b, plain, f, set);
    out->length = f->of[out->kind].length;
    out->overlap = f->of[out->kind].matched;
    out->open = rivals(f, set, out->kind);
    uint32_t strict = rivals(&real, real.set, out->kind);
    /*
     * No later call has shown the mistake. Then other mistakes may be excluded, but not a branch that makes its call in
     * the place of the peers' call; unless the odd call stands where the peers make calls as well.
     */
    bool at_home = f->displaced && site_is_home(a->source, b->source, b->call[0].rec);
    if (out->overlap == 0 && out->kind != plain && !at_home) {
        out->open |= ALIGN_BIT(plain);
    }
    if ((out->kind == ALIGN_SKIP || out->kind == ALIGN_ADD) && out->length > SHIFT_MAX && out->overlap > 0 &&
        out->overlap < BLOCK_MIN) {
        out->open |= ALIGN_BIT(plain);
    }
    if (out->kind == ALIGN_REORDER && (out->length > a->real || out->length > b->real)) {
        out->open |= ALIGN_BIT(ALIGN_SKIP);
    }
    /* Where the history alone excludes the others, that is believed when three calls have agreed with it. */
    if (out->open == 0 && out->overlap < 3) {
        out->open = strict;
    }
}
