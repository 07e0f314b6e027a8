/*
 * play.h: a plan is played, and what came of it is judged.
 */
#ifndef ROLL_TESTS_WORLD_PLAY_H
#define ROLL_TESTS_WORLD_PLAY_H

#include "tests/simulation/feed.h"
#include "tests/simulation/judge.h"
#include "tests/world/plan.h"

#include <sys/types.h>

/* What a run left. */
struct played {
    enum outcome outcome;                     /* of the first job */
    struct findings found;                    /* what was said of it and counts */
    uint64_t lost;                            /* records that the root counts as lost, of the first job */
    uint64_t written;                         /* and those that its ranks wrote */
    uint64_t world_ns;                        /* how much time passed in the world */
    uint64_t host_ns;                         /* the same, times hosts */
    uint64_t rank_ns;                         /* and times ranks */
    size_t agent_most, root_most, relay_most; /* bytes of memory */
    uint64_t deaths;
    uint64_t turns, print; /* of the world, at its end */
    char trouble[512];     /* what went against an invariant; "" = nothing */
};

enum verdict_of_plan { PLAN_GOOD, PLAN_BAD, PLAN_UNUSABLE /* there is no such program, or the engine itself errs */ };

/*
 * Plays the plan without its faults, then with them, and says whether all invariants held. `why` holds one line. The
 * two runs are left in *calm and *run where they are not NULL.
 */
enum verdict_of_plan plan_try(const struct plan *plan, char why[512], struct played *calm, struct played *run);
/* Makes the plan smaller as long as it goes wrong in the same way; why: in which. */
void plan_shrink(struct plan *plan, const char *why);
extern bool play_loud; /* logs of the daemons are shown */

/* Removes what a process has left that was ended while it played. */
void play_clean(pid_t pid);

/* play.c */
/* The program, the mistake in it and what its ranks do; made by plan_try. */
struct script {
    struct program program;
    struct story story;
    struct mutation mutation;
};
/* Plays with these faults. second: the script of the second job, NULL: there is none. */
void play(const struct plan *plan, const struct script *script, const struct script *second, bool with_faults,
          struct played *out);

/* told.c */
struct roll_verdict_list;
/* What a root has said of a job; of a file, between two places in it (to 0: until its end). */
void told_take(const struct roll_verdict_list *list, struct findings *out);
void told_read(const char *path, long from, long to, const char *job, struct findings *out);

#endif
