/*
 * flex.h: what only the Flex dispatchers (deepep, hybridep) have: padding, a row budget and its overflow, the group's
 * buffer.
 */
#ifndef MOE_FLEX_H
#define MOE_FLEX_H

#include "dispatcher.h"
#include "ep_buffer.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The static row budget of HybridEP: int(tokens k factor), rounded up to a multiple of `multiple` (0, 1: no rounding).
 * Source: Megatron-LM, moe_hybridep. Any thread.
 */
int64_t moe_flex_budget(int64_t tokens, int32_t k, float factor, int64_t multiple);

/* T_pad of the last prepare; T itself where nothing pads, and for dispatchers of other kinds. */
int64_t moe_flex_padded(const moe_dispatcher_t *dispatcher);

/*
 * How many choices found no row in the row budget, summed since the last moe_flex_replay: int64 [1] on the device,
 * borrowed. NULL without a budget.
 */
const int64_t *moe_flex_dropped_sum(const moe_dispatcher_t *dispatcher);

/*
 * Tells at the end of a step whether rows were dropped, so that the step must be replayed with a larger budget, and
 * sets that sum to 0. A replay is collective (larger buffers, the same layers again), so the answer
 * must be the same on all ranks (hazard H26: Megatron-LM #6229). The call therefore is an AllReduce MAX of the sum,
 * int64 [1], on the dispatch group, and a wait. `alone` is the legacy behaviour: each rank answers for itself and no
 * collective is issued. *dropped is the largest number of any rank; with `alone` the rank's own number. Errors:
 * UNSUPPORTED (no budget), COMM, DEVICE.
 */
int moe_flex_replay(moe_dispatcher_t *dispatcher, bool alone, bool *replay, int64_t *dropped);

/* Describes the group's communication buffer. Errors: UNSUPPORTED (another kind of dispatcher). */
int moe_flex_buffer(const moe_dispatcher_t *dispatcher, struct moe_ep_buffer_info *info);

#ifdef __cplusplus
}
#endif
#endif
