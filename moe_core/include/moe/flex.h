/*
 * flex.h: what only the Flex dispatchers have: padding, a row budget and its overflow, the group's buffer.
 */
#ifndef MOE_FLEX_H
#define MOE_FLEX_H

#include "dispatcher.h"
#include "ep_buffer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* int(tokens k factor), rounded up to a multiple of `multiple` (0, 1: none): the static budget of HybridEP
 * (Megatron-LM, moe_hybridep). Any thread. */
int64_t moe_flex_budget(int64_t tokens, int32_t k, float factor, int64_t multiple);

/* T_pad of the last prepare; T itself where nothing pads, and with other kinds. */
int64_t moe_flex_padded(const moe_dispatcher_t *dispatcher);

/* Choices that the row budget had no row for, summed since the last moe_flex_replay: int64 [1] on the device, borrowed.
 * NULL without a budget. */
const int64_t *moe_flex_dropped(const moe_dispatcher_t *dispatcher);

/*
 * At the end of a step: whether rows were dropped and the step is to be replayed with more; the sum above starts again
 * from 0. A replay is collective (larger buffers, the same layers again), so the answer must be the same on all ranks
 * (hazard H26: Megatron-LM #6229): AllReduce MAX of the sum, int64 [1], on the dispatch group, and a wait. `alone`: the
 * legacy behaviour, each rank answers for itself and no collective is issued. *dropped: the largest number of any rank,
 * or the rank's own. Errors: UNSUPPORTED (no budget), COMM, DEVICE.
 */
int moe_flex_replay(moe_dispatcher_t *dispatcher, bool alone, bool *replay, int64_t *dropped);

/* The group's buffer. Errors: UNSUPPORTED (another kind of dispatcher). */
int moe_flex_buffer(const moe_dispatcher_t *dispatcher, struct moe_ep_buffer_info *info);

#ifdef __cplusplus
}
#endif
#endif
