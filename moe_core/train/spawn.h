/*
 * spawn.h: moe_train as its own launcher.
 */
#ifndef MOE_CORE_TRAIN_SPAWN_H
#define MOE_CORE_TRAIN_SPAWN_H

#include <stdint.h>

/*
 * Starts `ranks` copies of this program with the same arguments and RANK, LOCAL_RANK, WORLD_SIZE, MOE_RENDEZVOUS set,
 * waits for all, and returns the exit status of the first that failed (128 + signal when it was killed), 0 when none
 * did. When one failed, the others get grace_s seconds.
 */
int spawn_ranks(char **argv, int32_t ranks, uint32_t grace_s);

#endif
