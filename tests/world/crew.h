/*
 * crew.h: several processes that play plans side by side, and what they say in the order of the plans.
 */
#ifndef ROLL_TESTS_WORLD_CREW_H
#define ROLL_TESTS_WORLD_CREW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define CREW_MOST 256u

/* What one plan comes to; the tallies of several add up. */
struct tally {
    uint64_t plans, bad, unusable, deaths, lossy, written, lost;
    double world_s, host_s, rank_s;
    size_t agent_most, root_most, relay_most;
};
void tally_add(struct tally *sum, const struct tally *one);

struct crew {
    unsigned workers;  /* processes, 1 to CREW_MOST */
    uint64_t failures; /* it ends after so many bad plans */
    /* Plays plan number i, and prints what there is to say; *out is zero before. */
    void (*play)(uint64_t i, struct tally *out);
    /* This process was ended, in the middle of a plan perhaps: what it leaves behind is removed. */
    void (*clean)(pid_t pid);
};
/*
 * Plays plans 0 to n - 1. What they print comes in the order of their numbers, whatever the number of processes, and so
 * it ends with the same one. 0, or -1 when a process could not be had or has died.
 */
int crew_play(const struct crew *crew, uint64_t n, struct tally *sum);
/* How many processors there are for this process. */
unsigned crew_processors(void);

#endif
