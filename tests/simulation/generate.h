/*
 * generate.h: a random correct program from a seed.
 */
#ifndef ROLL_TESTS_SIMULATION_GENERATE_H
#define ROLL_TESTS_SIMULATION_GENERATE_H

#include "tests/simulation/program.h"

/* Same seed, same program. Never fails: what does not fit is left out whole. */
void generate(struct program *p, uint64_t seed);

#endif
