/*
 * round.c: which time round of its training loop the job is in, where nobody tells it: learned from the calls of one
 * rank.
 *
 * The rank that makes the first collective is followed. Its collectives, over all communicators, are a row of symbols:
 * operation, communicator, the job's line, and of a reduction the amount. A part that repeats at the end of this row is
 * one time round. Rooms and effort are bounded, and the other ranks cost nothing: at 16,384 ranks each rank's own row
 * would be a gigabyte. On one communicator a layer may be what repeats, so each communicator by itself was rejected.
 *
 * A wrong number is worse than none. So it is shown only
 *   - where the rank was watched from its first call on and nothing of it is lost (a dump is a window);
 *   - after FIRM rounds without a break: a loop over microbatches is shorter;
 *   - where no loop inside it makes most kinds of its calls, which could be the step itself, in a loop that evaluates;
 *   - until breaks come at equal distances, twice: then what repeats is a part of something that repeats.
 * Calls from functions that are named as evaluations and checkpoints are ("evaluate", "save_checkpoint") stand beside
 * the loop, and are left out.
 */
#include "daemon/engine/model/engine_state.h"
#include "trace/signature.h"

#include <stdlib.h>
#include <string.h>

#define KEPT        4096u /* symbols; a power of two */
#define PERIOD_MOST 1024u
#define FOUND       4u /* rounds at the end of the row that make something a repetition */
#define FIRM        100u

struct rounds {
    uint32_t leader;       /* the source that is followed */
    uint32_t symbol[KEPT]; /* by index & (KEPT - 1) */
    uint32_t scratch[KEPT];
    uint64_t total;    /* symbols so far */
    uint64_t next_try; /* how many there are when a period is looked for next */
    uint32_t period;   /* of what repeats; 0 = nothing does */
    uint64_t begin;    /* index of the first symbol of its first round */
    bool unclear;      /* a loop inside of it could be the step */
    uint64_t before;   /* rounds of the same part before the last break */
    uint64_t content,
        last_content;    /* of the part, and of the part before the last break: the same wherever it begins */
    uint64_t last_run;   /* rounds between the last two breaks */
    uint64_t held_until; /* so long the number from before the break is still told */
    uint32_t held;
    bool off; /* nothing is learned any more */
};

static uint32_t at(const struct rounds *r, uint64_t index)
{
    return r->symbol[index & (KEPT - 1)];
}

static uint32_t symbol_of(const struct roll_engine *e, const struct source *s, const struct roll_record *rec)
{
    bool reduces = roll_op_has(rec->op, ROLL_TRAIT_REDOP) || rec->op == ROLL_OP_GRAPH_LAUNCH;
    uint64_t line = site_line(e, s, rec->callsite);
    uint64_t what[] = {rec->op, rec->comm, line, reduces ? rec->count : 0};
    return (uint32_t)line_hash(1, what, sizeof(what));
}

/* How far the row repeats itself backwards from its end, for each distance up to PERIOD_MOST (the Z function of the
 * reversed row). Returns the length of the row that was looked at. */
static uint32_t repeats(struct rounds *r)
{
    uint32_t n = r->total < KEPT ? (uint32_t)r->total : KEPT, left = 0, right = 0, *z = r->scratch;
    for (uint32_t i = 1; i < n; i++) {
        uint32_t known = i < right ? (right - i < z[i - left] ? right - i : z[i - left]) : 0;
        while (i + known < n && at(r, r->total - 1 - known) == at(r, r->total - 1 - i - known)) {
            known++;
        }
        z[i] = known;
        if (i + known > right) {
            left = i;
            right = i + known;
        }
    }
    return n;
}

static uint64_t content_of(const struct rounds *r, uint32_t period)
{
    uint64_t sum = period;
    for (uint32_t i = 1; i <= period; i++) {
        uint32_t symbol = at(r, r->total - i);
        sum += line_hash(7, &symbol, sizeof(symbol));
    }
    return sum;
}

static int by_value(const void *a, const void *b)
{
    uint32_t x, y;
    memcpy(&x, a, sizeof(x));
    memcpy(&y, b, sizeof(y));
    return (x > y) - (x < y);
}

/* How many kinds of symbols there are from `first` on. Overwrites the scratch. */
static uint32_t kinds(struct rounds *r, uint64_t first, uint32_t n)
{
    uint32_t count = n > 0;
    for (uint32_t i = 0; i < n; i++) {
        r->scratch[i] = at(r, first + i);
    }
    qsort(r->scratch, n, sizeof(r->scratch[0]), by_value);
    for (uint32_t i = 1; i < n; i++) {
        count += r->scratch[i] != r->scratch[i - 1];
    }
    return count;
}

/* Whether a part of the period that is made twice and more in a row has most kinds of its calls. */
static bool is_unclear(struct rounds *r, uint32_t period)
{
    uint64_t first = r->total - 2ull * period; /* two rounds, because the part may lie across the end of one */
    uint32_t all = kinds(r, first, period);
    for (uint32_t unit = 1; unit <= period / 2; unit++) {
        uint32_t run = 0;
        for (uint32_t i = 0; i + unit < 2 * period; i++) {
            run = at(r, first + i) == at(r, first + i + unit) ? run + 1 : 0;
            if (run == unit && kinds(r, first + i + 1, unit) * 2 > all) {
                return true;
            }
        }
    }
    return all < 2; /* one call alone: how many there are in a step is not to be seen */
}

/* Looks for what repeats at the end of the row: the same part as before the break, else what covers most. */
static void look(struct rounds *r)
{
    uint32_t n = repeats(r), best = 0, covered = 0, again = 0;
    r->next_try = r->total + 16 + n / 8;
    for (uint32_t p = 1; p <= PERIOD_MOST && p < n; p++) {
        uint32_t run = r->scratch[p] + p;
        if (run >= FOUND * p && run > covered) {
            best = p;
            covered = run;
        }
        again =
            again == 0 && r->last_content != 0 && run >= FOUND * p && content_of(r, p) == r->last_content ? p : again;
    }
    if (again != 0) {
        best = again;
        covered = r->scratch[again] + again;
    }
    if (best == 0) {
        return;
    }
    r->period = best;
    r->begin = r->total - covered;
    r->content = content_of(r, best);
    r->before = r->content == r->last_content ? r->before : 0;
    r->unclear = is_unclear(r, best);
}

/* The row does not go on as before. */
static void broken(struct rounds *r, uint64_t end, uint32_t held)
{
    uint64_t run = (end - r->begin) / r->period;
    r->held = held; /* the break may be the mistake that a verdict is about, and the job end with it */
    r->held_until = end + r->period;
    if (run >= FIRM && !r->unclear) {
        bool same = r->content == r->last_content;
        r->off = same && run == r->last_run; /* twice at one distance */
        r->before = (same ? r->before : 0) + run;
        r->last_content = r->content;
        r->last_run = run;
    }
    r->period = 0;
    r->next_try = r->total + 16;
}

void round_call(struct roll_engine *e, const struct source *s, const struct roll_record *rec)
{
    struct rounds *r = e->rounds;
    if (!r) {
        r = e->rounds = calloc(1, sizeof(*r));
        if (!r) {
            return; /* nobody needs the number */
        }
        r->leader = s->number;
    }
    if (r->leader != s->number || r->off || (rec->flags & ROLL_FLAG_CAPTURED) != 0 ||
        site_stands_aside(e, s, rec->callsite)) {
        return;
    }
    uint32_t symbol = symbol_of(e, s, rec);
    bool goes_on = r->period != 0 && symbol == at(r, r->total - r->period);
    uint32_t held = r->period != 0 && !goes_on ? round_now(e) : ROLL_STEP_NONE;
    r->symbol[r->total & (KEPT - 1)] = symbol;
    r->total++;
    if (r->period != 0 && !goes_on) {
        broken(r, r->total - 1, held);
    }
    if (r->period == 0 && !r->off && r->total >= r->next_try) {
        look(r);
    }
}

uint32_t round_now(const struct roll_engine *e)
{
    const struct rounds *r = e->rounds;
    const struct source *s = r ? e->source[r->leader] : NULL;
    if (!s || r->off || s->lost > 0 || s->late || s->snapshot) {
        return ROLL_STEP_NONE;
    }
    if (r->period == 0 || r->unclear) {
        return r->held_until != 0 && r->total <= r->held_until ? r->held : ROLL_STEP_NONE;
    }
    uint64_t run = (r->total - r->begin) / r->period, all = r->before + run;
    bool firm = run >= FIRM || (r->before >= FIRM && run >= FOUND);
    return firm && all < ROLL_STEP_NONE ? (uint32_t)all : ROLL_STEP_NONE;
}

void rounds_free(struct roll_engine *e)
{
    free(e->rounds);
    e->rounds = NULL;
}
