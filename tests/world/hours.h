/*
 * hours.h: hours of a cluster, in which mostly nothing happens.
 */
#ifndef ROLL_TESTS_WORLD_HOURS_H
#define ROLL_TESTS_WORLD_HOURS_H

#include "tests/simulation/execute.h"
#include "tests/world/plan.h"

/* Makes a plan of so many hours of it: its faults are sparse, and its rings as long as jobs have them. */
void hours_plan(struct plan *plan, uint32_t hours);
/* Lets all ranks of a job pause together, some times, at moments at which none is in a call: together for most of the
 * hours. A job without such a moment stays as it is. */
void hours_pause(struct story *story, uint32_t ranks, uint64_t seed, uint32_t hours);

#endif
