/*
 * reduce.h: gradient reduction, and the report of a new training step.
 *
 * Scaling: gradients are sums over a rank's own tokens, divided by their number. A mean over all ranks' tokens is
 * therefore: scale by 1 / dp, sum. For experts too it is dp, not edp: an expert's gradient already holds the tokens of
 * its whole ep group (Megatron-LM param_and_grad_buffer).
 */
#ifndef MOE_REDUCE_H
#define MOE_REDUCE_H

#include "device.h"
#include "layer.h"

#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One buffer of main_grads that is reduced by one AllReduce. */
struct moe_bucket {
    float *grad; /* device; the caller's */
    size_t count;
    float scale;     /* applied before the sum */
    ncclComm_t comm; /* dp for dense parameters, edp for experts; NULL: only scale */
    uint32_t layer;  /* UINT32_MAX for none */
};

/* Scales one bucket and sums it over its communicator (left out when that has one rank). Errors: COMM, DEVICE. */
int moe_reduce(moe_device_t *device, const struct moe_bucket *bucket);

/* Tells the observer which part of a step begins (phases as in trace/op.h), and with how many local tokens. */
void moe_step_report(const struct moe_step *step, uint8_t phase, uint64_t tokens);

#ifdef __cplusplus
}
#endif
#endif
