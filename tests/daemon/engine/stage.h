/*
 * stage.h: a scenario (sim.h) of which some ranks are late: the test says which ranks' events the engine reads when,
 * and looks at what is said in between.
 */
#ifndef ROLL_TESTS_DAEMON_ENGINE_STAGE_H
#define ROLL_TESTS_DAEMON_ENGINE_STAGE_H

#include "tests/daemon/engine/sim.h"

struct stage {
    struct sim *sim;
    roll_engine_t *e;
    uint32_t source[64];
    size_t at[64]; /* the next event of each rank */
    uint64_t now;
    char said[1024]; /* what stage_pass returns */
};

/* Takes the scenario; stage_close destroys it. */
void stage_open(struct stage *s, struct sim *sim);
void stage_close(struct stage *s);
/* The engine reads all that the rank has done so far. definitions_only: what the rank is, and not what it called. */
void stage_show(struct stage *s, uint32_t rank, bool definitions_only);
/* Time passes. Returns what is said meanwhile, in order: "certainty code culprits", and "!n" when that supersedes
 * verdict n, "=n" when it confirms it, "~n" when it withdraws it. */
const char *stage_pass(struct stage *s, uint64_t ms);

#endif
