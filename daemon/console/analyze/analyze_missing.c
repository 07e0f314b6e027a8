/*
 * analyze_missing.c: ranks of a run of which nothing was given: nodes that were left out.
 *
 * A communicator of which not all members were seen proves that there are more ranks; which ones follows from the size
 * of the world. The size alone proves nothing: a rank that never calls NCCL records nothing, and lacks nobody.
 */
#include "daemon/console/analyze/analyze.h"

#include "daemon/console/console.h"
#include "trace/err.h"
#include "trace/rankset.h"

#include <stdio.h>

#define NAMED_BYTES 160 /* of the ranks that are listed */

/* Communicators with members that have no source; *members: the most that one of them lacks. */
static uint32_t communicators_that_lack(roll_engine_t *engine, uint32_t *members)
{
    struct roll_view_comm v;
    uint32_t n = 0;
    for (uint32_t i = 0; roll_engine_comm(engine, i, &v); i++) {
        uint32_t lacks = v.size > v.seen ? v.size - v.seen : 0;
        n += lacks > 0;
        *members = lacks > *members ? lacks : *members;
    }
    return n;
}

/* The ranks of the world that have no source. 0 or NOMEM. */
static int find_missing(roll_engine_t *engine, struct roll_rankset *missing, uint32_t *world)
{
    struct roll_rankset have = {0};
    struct roll_view_source v;
    int err = 0;
    *world = 0;
    for (uint32_t i = 0; roll_engine_source(engine, i, &v) && !err; i++) {
        if (v.info.world_rank >= 0) {
            err = roll_rankset_add(&have, (uint32_t)v.info.world_rank);
        }
        *world = v.info.world_size > (int32_t)*world ? (uint32_t)v.info.world_size : *world;
    }
    uint32_t next = 0;
    for (size_t i = 0; i <= have.used && !err && next < *world; i++) {
        uint32_t end = i < have.used && have.range[i].first < *world ? have.range[i].first : *world;
        err = end > next ? roll_rankset_add_range(missing, next, end - 1) : 0;
        next = i < have.used ? have.range[i].last + 1 : *world;
    }
    roll_rankset_fini(&have);
    return err;
}

int roll_analyze_missing(roll_engine_t *engine, const char *job, uint64_t *ranks)
{
    struct roll_rankset missing = {0};
    char named[NAMED_BYTES];
    uint32_t members = 0, world, comms = communicators_that_lack(engine, &members);
    *ranks = 0;
    if (comms == 0) {
        return 0;
    }
    int err = find_missing(engine, &missing, &world);
    size_t n = err ? 0 : roll_rankset_count(&missing);
    if (n > 0) {
        (void)roll_rankset_format(&missing, named, sizeof(named));
        roll_say("job %s: no record of rank%s %s (%zu of %u): nothing is known of %s calls; a directory is missing, or "
                 "%s never called NCCL",
                 job, n == 1 ? "" : "s", named, n, world, n == 1 ? "its" : "their", n == 1 ? "it" : "they");
        *ranks = n;
    } else if (!err && world == 0) {
        roll_say("job %s: %u communicator%s more members than were recorded: nothing is known of the calls of up to %u "
                 "ranks; a directory is missing, or they never called NCCL",
                 job, comms, comms == 1 ? " has" : "s have", members);
        *ranks = members;
    }
    roll_rankset_fini(&missing);
    return err;
}
