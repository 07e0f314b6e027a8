/*
 * words.h: a few numbers of every rank to every rank of a group, for what is agreed on outside of forwards.
 */
#ifndef MOE_CORE_BASE_WORDS_H
#define MOE_CORE_BASE_WORDS_H

#include "moe_core/include/moe/device.h"

#include <nccl.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

/*
 * Gathers `count` int64 numbers of each of the `ranks` ranks of comm into all [ranks, count], on the host. COLLECTIVE,
 * and a wait. A rank without device memory takes part all the same. `what` names the numbers in messages; on success
 * moe_last_error stays as it was. Errors: NOMEM (not even pinned host memory), COMM, DEVICE.
 */
int moe_words_gather(moe_device_t *device, ncclComm_t comm, int ranks, const char *what, const int64_t *mine,
                     size_t count, int64_t *all);

#pragma GCC visibility pop

#endif
