/*
 * reduce.c: gradient reduction over one communicator, bucket by bucket.
 *
 * Every bucket is reduced whether or not a gradient arrived in it: a job whose buckets wait for hooks hangs when an
 * expert has no tokens (hazard H2). Scaling before the sum keeps the result independent of how a library implements an
 * average.
 */
#include "moe_core/include/moe/reduce.h"

#include "moe_core/base/fail.h"
#include "moe_core/include/moe/observe.h"
#include "moe_core/include/moe/ops.h"

int moe_reduce(moe_device_t *device, const struct moe_bucket *bucket)
{
    int ranks = 1;
    if (bucket->comm != NULL && ncclCommCount(bucket->comm, &ranks) != ncclSuccess) {
        return moe_fail(MOE_E_COMM, MOE_NO_RANK, bucket->layer, "size of the reduction's communicator");
    }
    int rc = 0;
    if (bucket->scale != 1.0f) {
        struct moe_scale scale = {.count = bucket->count, .factor = bucket->scale, .data = bucket->grad};
        rc = moe_device_ops(device)->scale(device, &scale);
    }
    if (rc == 0 && ranks > 1) {
        ncclResult_t nc = ncclAllReduce(bucket->grad, bucket->grad, bucket->count, ncclFloat32, ncclSum, bucket->comm,
                                        moe_device_stream(device));
        if (nc != ncclSuccess) {
            return moe_fail(MOE_E_COMM, MOE_NO_RANK, bucket->layer, "AllReduce of gradients: %s",
                            ncclGetErrorString(nc));
        }
    }
    return rc;
}

void moe_step_report(const struct moe_step *step, uint8_t phase, uint64_t tokens)
{
    struct moe_event event = {.size = sizeof(event),
                              .kind = MOE_EV_STEP,
                              .phase = phase,
                              .step = step->step,
                              .microbatch = step->microbatch,
                              .layer = UINT16_MAX,
                              .peer = -1,
                              .count = tokens};
    moe_observe(&event);
}
