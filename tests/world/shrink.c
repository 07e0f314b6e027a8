/*
 * shrink.c: a plan that goes wrong, made smaller: fewer faults, then a simpler cluster, then fewer ranks and steps of
 * the program.
 */
#include "tests/world/play.h"

#include <stdio.h>
#include <string.h>

#define TRIES 400u /* a plan is played twice for each */

static uint32_t tries;

/* What went wrong, without the numbers in it: two failures of one kind have the same. */
static void kind_of(const char *why, char out[512])
{
    size_t n = 0;
    const char *colon = strchr(why, ';'); /* which findings there were besides */
    for (const char *p = why; *p && p != colon && n < 511; p++) {
        if (*p < '0' || *p > '9') {
            out[n++] = *p;
        }
    }
    out[n] = '\0';
}

static bool keeps(struct plan *plan, const struct plan *tried, const char *kind)
{
    char why[512], now[512];
    if (tries >= TRIES || (tries++, plan_try(tried, why, NULL, NULL)) != PLAN_BAD) {
        return false;
    }
    kind_of(why, now);
    if (strcmp(kind, now) != 0) {
        return false;
    }
    *plan = *tried;
    return true;
}

static bool drop_faults(struct plan *plan, const char *kind)
{
    bool any = false;
    for (uint32_t i = plan->faults; i-- > 0;) {
        struct plan tried = *plan;
        memmove(&tried.fault[i], &tried.fault[i + 1], (tried.faults - i - 1) * sizeof(tried.fault[0]));
        tried.faults--;
        any = keeps(plan, &tried, kind) || any;
    }
    return any;
}

static bool simplify(struct plan *plan, const char *kind)
{
    bool any = false;
    for (int what = 0; what < 8; what++) {
        struct plan tried = *plan;
        tried.second = what == 0 ? false : tried.second;
        tried.relays = what == 1 ? 0 : tried.relays;
        tried.digest = what == 2 ? false : tried.digest;
        tried.trace = what == 3 ? false : tried.trace;
        tried.records = what == 4 ? 4096 : tried.records;
        tried.per_node = what == 5 ? 16 : tried.per_node;
        tried.hours = what == 6 ? 0 : tried.hours;
        tried.slack = what == 6 || what == 7 ? 0 : tried.slack;
        any = (memcmp(&tried, plan, sizeof(tried)) != 0 && keeps(plan, &tried, kind)) || any;
    }
    return any;
}

static bool drop(struct plan *plan, const char *kind, struct drop drop)
{
    struct plan tried = *plan;
    if (tried.drops == DROPS_MAX) {
        return false;
    }
    tried.drop[tried.drops++] = drop;
    return keeps(plan, &tried, kind);
}

static void drop_program(struct plan *plan, const char *kind)
{
    for (uint32_t rank = 16; rank-- > 0;) {
        (void)drop(plan, kind, (struct drop){.rank = true, .first = (uint16_t)rank});
    }
    for (uint32_t size = 128; size > 0; size /= 2) {
        for (uint32_t at = 0; at < 256; at += size) {
            (void)drop(plan, kind, (struct drop){.first = (uint16_t)at, .count = (uint16_t)size});
        }
    }
}

void plan_shrink(struct plan *plan, const char *why)
{
    char kind[512];
    tries = 0;
    kind_of(why, kind);
    while (drop_faults(plan, kind) || simplify(plan, kind)) {
    }
    drop_program(plan, kind);
    while (drop_faults(plan, kind)) {
    }
}
