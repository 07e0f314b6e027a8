/*
 * reduce.h: gradient reduction, and the report of a new training step.
 *
 * Gradients are sums over a rank's own tokens, divided by their number. A mean over the tokens of all ranks is
 * therefore scaled by 1 / dp, then summed. The divisor is dp for experts too, not edp: an expert's gradient already
 * holds the tokens of its whole ep group (Megatron-LM param_and_grad_buffer).
 */
#ifndef MOE_REDUCE_H
#define MOE_REDUCE_H

#include "device.h"
#include "layer.h"

#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A buffer of main_grads that one AllReduce reduces. */
struct moe_bucket {
    float *grad; /* device memory [count], owned by the caller */
    size_t count;
    float scale;     /* factor of each element before the sum */
    ncclComm_t comm; /* dp for dense parameters, edp for experts; borrowed; NULL: gradients are only scaled */
    uint32_t layer;  /* appears in messages; UINT32_MAX: no layer */
};

/*
 * Enqueues the scaling of one bucket and its sum over the communicator, which is left out when the communicator has one
 * rank. The device's thread. Errors: COMM, DEVICE.
 */
int moe_reduce(moe_device_t *device, const struct moe_bucket *bucket);

/*
 * Tells the observer that part `phase` of a step begins (enum moe_phase of observe.h), with `tokens` local tokens. Any
 * thread.
 */
void moe_step_report(const struct moe_step *step, uint8_t phase, uint64_t tokens);

#ifdef __cplusplus
}
#endif
#endif
