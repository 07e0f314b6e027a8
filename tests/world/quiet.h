/*
 * quiet.h: stretches of hours in which nothing happens to anybody: there the daemons' timers may end together, and
 * rarely, so that days of a cluster are played in a second.
 */
#ifndef ROLL_TESTS_WORLD_QUIET_H
#define ROLL_TESTS_WORLD_QUIET_H

#include "tests/world/plan.h"
#include "tests/world/world.h"

#define STIRS_MAX (FAULTS_MAX + 1)

/* Something that is known to happen, beside what the ranks write. */
struct stir {
    uint64_t from_ns, to_ns;
};

struct quiet {
    uint64_t slack_ns;  /* 0: there are no such stretches */
    uint64_t settle_ns; /* how long after the last stir nothing is quiet */
    struct stir stir[STIRS_MAX];
    uint32_t stirs;
};

/* Of one run, from its beginning; *q is copied. */
void quiet_begin(const struct quiet *q);
/* Finds out whether it is quiet now, and until when. */
void quiet_look(void);
/* When a wait until then ends; WORLD_NEVER stays. */
uint64_t quiet_until(uint64_t until_ns);

#endif
