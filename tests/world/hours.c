/*
 * hours.c: see hours.h.
 *
 * A job pauses where all of its ranks do something else than call: they load data, write a checkpoint, or compile. Such
 * moments are looked for in the story, and all that comes behind one comes later. To stretch all times alike was
 * rejected: who comes a little later than the others would come minutes later, and that is a finding.
 */
#include "tests/world/hours.h"

#include "tests/world/play.h"
#include "tests/world/world.h"

#include <stdio.h>
#include <stdlib.h>

#define HOUR_NS (3600 * S_)
#define PAUSES  8u
#define MOMENTS 4096u

struct span {
    uint64_t from_ns, to_ns;
};
struct pause {
    uint64_t at_ns, lasts_ns;
};

void hours_plan(struct plan *plan, uint32_t hours)
{
    struct rng rng = {.state = (plan->seed + 1) * 0x9fb21c651e98df25u};
    plan->hours = hours;
    plan->records = PLAN_RECORDS;
    for (uint32_t i = 0; i < plan->faults; i++) {
        plan->fault[i].at_ms = rng_below(&rng, hours * 3600000);
    }
}

static int by_begin(const void *a, const void *b)
{
    uint64_t x = ((const struct span *)a)->from_ns, y = ((const struct span *)b)->from_ns;
    return x < y ? -1 : x > y;
}

/* The calls of all ranks, each with the work that it has begun, in order. Who never comes back from a call is left out
 * from there on: the others may pause all the same. Owned. */
static struct span *spans_of(const struct story *story, uint32_t ranks, size_t *count)
{
    struct span *span = malloc((size_t)RANKS_MAX * LOGS_MAX * sizeof(*span));
    size_t n = 0;
    if (!span) {
        abort();
    }
    for (uint32_t r = 0; r < ranks; r++) {
        for (uint32_t i = 0; i < story->rank[r].logs; i++) {
            const struct log *log = &story->rank[r].log[i];
            uint64_t done = log->done_ns == NEVER ? 0 : log->done_ns;
            uint64_t back = log->back_ns == NEVER ? log->enter_ns : log->back_ns;
            span[n++] = (struct span){log->enter_ns, back > done ? back : done};
        }
    }
    qsort(span, n, sizeof(*span), by_begin);
    *count = n;
    return span;
}

/* Moments at which nobody is in a call: behind all that began before, and before all that comes. */
static uint32_t moments_of(const struct span *span, size_t n, uint64_t moment[MOMENTS])
{
    uint64_t busy_ns = 0;
    uint32_t found = 0;
    for (size_t i = 0; i < n && found < MOMENTS; i++) {
        if (span[i].from_ns > busy_ns + 1) {
            moment[found++] = span[i].from_ns - 1;
        }
        busy_ns = span[i].to_ns > busy_ns ? span[i].to_ns : busy_ns;
    }
    return found;
}

static void shift(uint64_t *at, const struct pause pause[PAUSES], uint32_t pauses)
{
    uint64_t more = 0;
    for (uint32_t i = 0; i < pauses && *at != NEVER; i++) {
        more += *at > pause[i].at_ns ? pause[i].lasts_ns : 0;
    }
    *at += more;
}

static void shift_rank(struct rank_story *rank, const struct pause pause[PAUSES], uint32_t pauses)
{
    for (uint32_t i = 0; i < rank->logs; i++) {
        shift(&rank->log[i].enter_ns, pause, pauses);
        shift(&rank->log[i].back_ns, pause, pauses);
        shift(&rank->log[i].done_ns, pause, pauses);
    }
    for (uint32_t t = 0; t < THREADS_MAX; t++) {
        shift(&rank->poll[t].since_ns, pause, pauses);
        shift(&rank->poll[t].next_ns, pause, pauses);
    }
    shift(&rank->stop_ns, pause, pauses);
    shift(&rank->end_ns, pause, pauses);
}

void hours_pause(struct story *story, uint32_t ranks, uint64_t seed, uint32_t hours)
{
    static uint64_t moment[MOMENTS];
    struct rng rng = {.state = (seed + 1) * 0xc2b2ae3d27d4eb4fu};
    struct pause pause[PAUSES];
    size_t n;
    struct span *span = spans_of(story, ranks, &n);
    uint32_t moments = moments_of(span, n, moment), pauses = moments ? 1 + rng_below(&rng, PAUSES) : 0;
    free(span);
    for (uint32_t i = 0; i < pauses; i++) {
        uint64_t most_ns = hours * HOUR_NS / pauses;
        pause[i].at_ns = moment[rng_below(&rng, moments)];
        pause[i].lasts_ns = most_ns * (300 + rng_below(&rng, 600)) / 1000;
        if (play_loud) {
            printf("all ranks pause for %.1f s at %.6f s, beside other pauses\n", (double)pause[i].lasts_ns / 1e9,
                   (double)pause[i].at_ns / 1e9);
        }
    }
    for (uint32_t r = 0; r < ranks; r++) {
        shift_rank(&story->rank[r], pause, pauses);
    }
    shift(&story->event_ns, pause, pauses);
    shift(&story->still_ns, pause, pauses);
}
