/*
 * gather.h: whole tensors from the ranks' shares.
 */
#ifndef MOE_CORE_TRAIN_GATHER_H
#define MOE_CORE_TRAIN_GATHER_H

#include "moe_core/train/model.h"
#include "moe_core/train/tensors.h"

/* The communicator of the ranks that together hold a buffer whole; NULL: each rank does. Any thread. */
ncclComm_t gather_comm(const struct job *job, enum tensor_buffer buffer);

/*
 * Every rank's share, one after the other: [ranks, count] floats on the host. Collective on gather_comm. `share` is
 * device memory. Owned by the caller (free); NULL on failure.
 */
float *gather_shares(const struct model *model, enum tensor_buffer buffer, const float *share, int64_t count);

/*
 * Puts the shares of one tensor, [ranks, tensor_local_count], into the whole tensor `to`, on the host. `stride` is the
 * distance of one rank's share from the next one's.
 */
void gather_place(const struct job *job, const struct tensor *t, const float *shares, int64_t stride, float *to);

/*
 * A whole buffer of the model, widened, in the layout of shape.h. `share` is this rank's part of it: parameters,
 * gradients or moments. Collective on gather_comm. Owned by the caller (free); NULL on failure.
 */
double *gather_buffer(const struct model *model, enum tensor_buffer buffer, const float *share);

#endif
