/*
 * shrink.h: the smallest program that still fails in the same way.
 */
#ifndef ROLL_TESTS_SIMULATION_SHRINK_H
#define ROLL_TESTS_SIMULATION_SHRINK_H

#include "tests/simulation/judge.h"

/* A failure: the correct program, the mistake, and how it ends in one of the first `orders` orders of `seed`. */
struct failure {
    struct program base;
    struct mutation mutation;
    uint64_t seed;
    uint32_t orders;
    enum outcome outcome;
    bool tie;
    uint64_t said; /* the verdicts of the first failing order; shrinking keeps them */
};

/* Makes the failure as small as it gets. */
void shrink(struct failure *f);
/* How one order of a seed is fed. */
struct feed_options feed_how(uint64_t seed, uint32_t order, const struct mutation *k);
/* Is every communicator made before it is used, and does no message go to its own sender outside a group? */
bool program_valid(const struct program *p);
/* Does the program come to its end on all ranks, by more than luck? 1; 0; -1 when a bound of the oracle was too small.
 * The program's story is left in *out. */
int program_correct(const struct program *p, struct story *out, uint64_t seed);
/* Runs the program, in which the mistake is made already. Of two mistakes the last one is the event. */
int execute_mutated(const struct program *p, struct story *out, const struct mutation *k, uint64_t seed);
/* Leaves out `count` units from `first` on, but for those in which the mistake is made. False: there are no such. */
bool program_drop_units(struct program *p, const struct mutation *k, uint32_t first, uint32_t count);
/* Leaves out a rank that has no part in the mistake; those behind it count down. False: it cannot be. */
bool program_drop_rank(struct program *p, struct mutation *k, uint32_t rank);
/* The mistake made in a copy of the program; false when it cannot be. */
bool failure_sick(const struct failure *f, struct program *sick, struct mutation *made);

#endif
