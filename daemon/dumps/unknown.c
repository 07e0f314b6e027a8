/*
 * unknown.c: collectives under names that are not known here, as a newer release of the tool may write them.
 *
 * A rank whose newest call has such a name has come to it all the same, and must not be said to lack it. That its
 * operation differs from what the others call cannot be said either: a name may be new for what others call otherwise.
 */
#include "daemon/dumps/dumps_state.h"

#include "daemon/base/array.h"
#include "daemon/base/map.h"
#include "trace/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t place_of(const struct roll_dump *d, const struct roll_dump_call *c)
{
    uint64_t h = (d->group[c->group].key ^ c->rec.seq) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 31;
}

/* Puts what stands for the unknown calls of a dump between its calls. */
static int merge(struct roll_dump *d, const struct roll_map *at, const struct roll_dump_call *known)
{
    struct roll_dump_call *call = NULL;
    size_t room = 0, n = 0, next = 0;
    int err = ROLL_GROW(call, room, d->calls + d->unknowns + 1);
    for (size_t i = 0; i <= d->calls && err == 0; i++) {
        for (; next < d->unknowns && d->unknown[next].before <= i; next++) {
            uint32_t found = roll_map_get(at, place_of(d, &d->unknown[next].call));
            if (found == ROLL_MAP_NONE) {
                continue;
            }
            struct roll_dump_call one = d->unknown[next].call;
            one.rec = known[found].rec;
            one.rec.enter_ns = d->unknown[next].call.rec.enter_ns;
            one.rec.flags |= ROLL_FLAG_UNSIZED;
            one.rec.count = 1;
            call[n++] = one;
        }
        if (i < d->calls) {
            call[n++] = d->call[i];
        }
    }
    if (err == 0) {
        free(d->call);
        d->call = call;
        d->calls = n;
        d->call_room = room;
    }
    return err;
}

static void tell(const struct dumps_job *job, roll_dumps_say *say, void *ctx)
{
    char ranks[128], line[512];
    struct roll_rankset who = {0};
    const char *name = NULL;
    size_t n = 0;
    for (size_t i = 0; i < job->dumps; i++) {
        const struct roll_dump *d = job->dump[i];
        n += d->unknowns;
        name = name == NULL && d->unknowns > 0 ? d->text + d->unknown[0].name : name;
        if (d->unknowns > 0) {
            (void)roll_rankset_add(&who, (uint32_t)d->rank);
        }
    }
    (void)roll_rankset_format(&who, ranks, sizeof(ranks));
    snprintf(
        line, sizeof(line),
        "%s: %zu call%s of rank%s %s %s a name that is not known here (\"%.64s\"): counted as made, and not compared",
        job->name, n, n == 1 ? "" : "s", roll_rankset_count(&who) == 1 ? "" : "s", ranks, n == 1 ? "has" : "have",
        name);
    say(ctx, line);
    roll_rankset_fini(&who);
}

int dumps_adopt_unknown(struct dumps_job *job, roll_dumps_say *say, void *ctx)
{
    struct roll_map at = {0};
    struct roll_dump_call *known = NULL; /* those of which some dump says what they are */
    size_t room = 0, knowns = 0, unknown = 0;
    int err = 0;
    for (size_t i = 0; i < job->dumps; i++) {
        unknown += job->dump[i]->unknowns;
    }
    for (size_t i = 0; i < job->dumps && unknown > 0 && err == 0; i++) {
        const struct roll_dump *d = job->dump[i];
        for (size_t k = 0; k < d->calls && err == 0; k++) {
            bool usable = roll_op_class(d->call[k].rec.op) == ROLL_CLASS_COLL &&
                          d->call[k].rec.seq != ROLL_DUMP_NO_NUMBER && d->group[d->call[k].group].self >= 0;
            if (usable && roll_map_get(&at, place_of(d, &d->call[k])) == ROLL_MAP_NONE) {
                err = ROLL_GROW(known, room, knowns + 1);
                err = err != 0 ? err : roll_map_add(&at, place_of(d, &d->call[k]), (uint32_t)knowns);
                if (err == 0) {
                    known[knowns++] = d->call[k];
                }
            }
        }
    }
    for (size_t i = 0; i < job->dumps && err == 0; i++) {
        err = job->dump[i]->unknowns > 0 ? merge(job->dump[i], &at, known) : 0;
    }
    if (err == 0 && unknown > 0) {
        tell(job, say, ctx);
    }
    free(known);
    roll_map_fini(&at);
    return err;
}
