/*
 * repeat.c: what repeats in a sequence of calls.
 *
 * A training job makes the same calls in each step, behind a beginning and before an end. For each length of a unit the
 * sequence is compared with itself, moved by that length; the repetition that covers most is taken, and what is left
 * before and behind it is searched in the same way. A repetition inside a unit (the layers of a step) stays as it is:
 * it belongs to the model and has to be the same in each run. To take the repetition that covers most for the only one
 * was rejected: the broadcasts of a large model's parameters are longer than a few steps.
 */
#include "daemon/base/array.h"
#include "daemon/expect/expect.h"
#include "trace/ident.h"

#include <string.h>

#define LOOPS_MOST  64u
#define EFFORT_MOST 400000000u /* comparisons: a second, for a sequence of 20,000 calls and more */

struct search {
    const uint32_t *id;
    uint64_t effort;
    uint32_t loops;
    struct roll_expected_part *part; /* owned */
    size_t parts, room;
    int err;
};

/* Adds a part; calls that do not repeat make one part with those before them. */
static void add_part(struct search *s, uint32_t first, uint32_t calls, uint32_t times)
{
    if (calls > 0 && times == 1 && s->parts > 0 && s->part[s->parts - 1].times == 1) {
        s->part[s->parts - 1].calls += calls;
    } else if (calls > 0 && s->err == 0 && (s->err = ROLL_GROW(s->part, s->room, s->parts + 1)) == 0) {
        s->part[s->parts++] = (struct roll_expected_part){first, calls, times};
    }
}

/* The repetition that covers most of [low, high); of those that cover as much, the one with the shortest unit. */
static struct roll_expected_part longest(struct search *s, uint32_t low, uint32_t high)
{
    struct roll_expected_part best = {0};
    uint64_t covered = 0;
    for (uint32_t unit = 1; unit <= (high - low) / 2 && covered < high - low && s->effort >= high - low; unit++) {
        uint32_t run = 0;
        s->effort -= high - low;
        for (uint32_t i = low; i + unit < high; i++) {
            run = s->id[i] == s->id[i + unit] ? run + 1 : 0;
            uint32_t times = run / unit + 1;
            if (times > 1 && (uint64_t)times * unit > covered) {
                covered = (uint64_t)times * unit;
                best = (struct roll_expected_part){i + 1 - run, unit, times};
            }
        }
    }
    return best;
}

static void search(struct search *s, uint32_t low, uint32_t high)
{
    struct roll_expected_part best = {0};
    if (s->loops < LOOPS_MOST && high - low >= 2) {
        best = longest(s, low, high);
    }
    /* Two calls of a kind in a row are no repetition, unless there is little else. */
    uint64_t covered = (uint64_t)best.calls * best.times;
    if (best.times < 2 || (best.times == 2 && best.calls < 3 && covered * 2 < high - low)) {
        add_part(s, low, high - low, 1);
        return;
    }
    s->loops++;
    search(s, low, best.first);
    add_part(s, best.first, best.calls, best.times);
    /* What goes on with the unit is the beginning of another round, and is not searched by itself. */
    uint32_t rest = best.first + (uint32_t)covered, end = rest;
    while (end < high && s->id[end] == s->id[end - best.calls]) {
        end++;
    }
    add_part(s, rest, end - rest, 1);
    search(s, end, high);
}

int roll_repeats_find(const uint32_t *id, size_t n, struct roll_expected_part **part, size_t *parts)
{
    struct search s = {.id = id, .effort = EFFORT_MOST};
    *part = NULL;
    *parts = 0;
    if (n >= UINT32_MAX) {
        return ROLL_E_LIMIT;
    }
    if (n > 0) {
        search(&s, 0, (uint32_t)n);
    }
    if (s.err != 0) {
        free(s.part);
        return s.err;
    }
    *part = s.part;
    *parts = s.parts;
    return 0;
}

/* calls */

/* Equal calls get one number. A hash is enough here: what it confuses once in 2^64 pairs would cost a line of a report.
 */
static int number_calls(const struct roll_expected_call *calls, const uint32_t *call, const uint16_t *comm, size_t n,
                        bool has_counts, uint32_t *id)
{
    struct roll_map known = {0};
    uint32_t numbers = 0;
    int err = 0;
    for (size_t i = 0; i < n && err == 0; i++) {
        const struct roll_expected_call *c = &calls[call[i]];
        const uint64_t what[] = {(uint64_t)c->op << 24 | (uint64_t)c->dtype << 16 | (uint64_t)c->redop << 8 |
                                     c->captured | (uint64_t)(comm != NULL ? comm[i] : 0) << 32,
                                 (uint32_t)c->peer, has_counts ? c->count : ROLL_EXPECTED_ANY};
        uint64_t key = roll_hash64(1, what, sizeof(what));
        id[i] = roll_map_get(&known, key);
        if (id[i] == ROLL_MAP_NONE) {
            id[i] = numbers++;
            err = roll_map_add(&known, key, id[i]);
        }
    }
    roll_map_fini(&known);
    return err;
}

/* A row of calls of one kind with a root, and of different amounts, beside other calls: the parameters of a model that
 * are sent round in the beginning look so, and they are no steps. */
static bool is_row(const struct roll_expected_part *part, size_t n, const uint32_t *exact,
                   const struct roll_expected_call *first)
{
    bool differs = false;
    for (uint32_t i = 1; part->calls == 1 && i < part->times; i++) {
        differs = differs || exact[part->first + i] != exact[part->first];
    }
    return differs && part->times < n && roll_op_has(first->op, ROLL_TRAIT_ROOT);
}

/* The calls from `begin` on that are in repetitions. */
static uint64_t covered(const struct roll_expected_part *part, size_t parts, uint32_t begin)
{
    uint64_t n = 0;
    for (size_t i = 0; i < parts; i++) {
        uint32_t end = part[i].first + part[i].calls * part[i].times;
        n += part[i].times > 1 && end > begin ? end - (part[i].first > begin ? part[i].first : begin) : 0;
    }
    return n;
}

/* Where the repetition begins that covers most. What stands before it happens once, and says nothing about steps. */
static uint32_t main_begin(const struct roll_expected_part *part, size_t parts)
{
    uint64_t most = 0;
    uint32_t begin = 0;
    for (size_t i = 0; i < parts; i++) {
        uint64_t mine = part[i].times > 1 ? (uint64_t)part[i].calls * part[i].times : 0;
        begin = mine > most ? part[i].first : begin;
        most = mine > most ? mine : most;
    }
    return begin;
}

/* Takes rows out of what repeats. */
static void keep_rows(struct roll_expected_part *part, size_t parts, size_t n, const uint32_t *exact,
                      const struct roll_expected_call *calls, const uint32_t *call)
{
    for (size_t i = 0; i < parts; i++) {
        if (is_row(&part[i], n, exact, &calls[call[part[i].first]])) {
            part[i].calls *= part[i].times;
            part[i].times = 1;
        }
    }
}

int roll_repeats_learn(const struct roll_expected_call *calls, const uint32_t *call, const uint16_t *comm, size_t n,
                       struct roll_expected_part **part, size_t *parts)
{
    struct roll_expected_part *loose = NULL;
    size_t looses = 0;
    uint32_t *exact = calloc(n + 1, sizeof(*exact)), *kind = calloc(n + 1, sizeof(*kind));
    *part = NULL;
    *parts = 0;
    int err = exact != NULL && kind != NULL ? number_calls(calls, call, comm, n, true, exact) : ROLL_E_NOMEM;
    err = err == 0 ? roll_repeats_find(exact, n, part, parts) : err;
    if (err == 0 && covered(*part, *parts, 0) * 2 < n) {
        /* Little repeats to the letter. Amounts that follow the data differ from step to step: without them? The calls
         * of the beginning are left out of the comparison, and the same job may do something else each second step, so
         * half as much to the letter still says more. */
        err = number_calls(calls, call, comm, n, false, kind);
        err = err == 0 ? roll_repeats_find(kind, n, &loose, &looses) : err;
    }
    if (err == 0 && looses > 0) {
        keep_rows(loose, looses, n, exact, calls, call);
        uint32_t begin = main_begin(loose, looses);
        if (covered(loose, looses, begin) > 2 * covered(*part, *parts, begin)) {
            struct roll_expected_part *swap = *part;
            *part = loose;
            *parts = looses;
            loose = swap;
        }
    }
    if (err != 0) {
        free(*part);
        *part = NULL;
        *parts = 0;
    }
    free(loose);
    free(exact);
    free(kind);
    return err;
}
