/*
 * check_gather.h: whole tensors from the ranks' shares, for --check.
 */
#ifndef MOE_CORE_TRAIN_CHECK_GATHER_H
#define MOE_CORE_TRAIN_CHECK_GATHER_H

#include "moe_core/train/model.h"

/* All experts of the model in the layout of shape.h, from every rank's share of them; collective on the job's block.
 * Owned; NULL on failure. */
double *check_gather_experts(const struct model *model, const float *share);

/* The whole shared experts, collective on tp. Owned; NULL on failure. */
double *check_gather_shared(const struct model *model, const float *share);

#endif
