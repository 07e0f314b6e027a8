/*
 * layer.h: one MoE layer: route, permute, dispatch, experts, combine, unpermute; forward and backward.
 *
 * Reports to moe_observe and asks moe_remedies as observe.h says. A rank that receives no rows walks its whole plan
 * like any other; with `legacy_skip_empty` it behaves as frameworks did (Megatron-LM #4851, #3626; hazard H1): it
 * skips its experts and its output is detached, so that its backward issues neither of the two all-to-alls that its
 * peers wait for.
 */
#ifndef MOE_LAYER_H
#define MOE_LAYER_H

#include "device.h"
#include "remedy.h"
#include "router.h"

#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_layer moe_layer_t;

struct moe_options {
    bool legacy_skip_empty;
};

struct moe_layer_config {
    uint32_t layer;     /* from 0, for reports and messages */
    int32_t world_rank; /* for messages */
    int64_t max_tokens; /* T at most, on this rank; all ranks of ep must use the same */
    int64_t hidden, ffn, experts;
    int32_t topk;
    bool renormalise;
    struct moe_router_options router; /* all zero: softmax; a capacity is UNSUPPORTED */
    ncclComm_t balance, global;       /* of the router's losses: router.h */
    ncclComm_t ep;                    /* borrowed; NULL: all experts are here */
    struct moe_options options;
};

/* Weights and main_grads (float32, accumulated into); device memory that the caller owns. L = experts / ranks of ep. */
struct moe_layer_weights {
    const float *gate; /* [E,H] */
    const float *w1;   /* [L,2F,H] */
    const float *w2;   /* [L,H,F] */
    float *d_gate, *d_w1, *d_w2;
    const float *gate_bias;   /* [E]; NULL where the router has none */
    const float *expert_bias; /* likewise */
    float *d_gate_bias;       /* [E] or NULL */
};

/* Where in training we are. */
struct moe_step {
    uint32_t step;
    uint16_t microbatch;
};

/* *out is owned; borrows device, ep and the router's groups. Errors: NOMEM, SHAPE, COMM, and those of moe_router_new. One thread at a time. */
int moe_layer_new(moe_device_t *device, const struct moe_layer_config *config, moe_layer_t **out);
void moe_layer_destroy(moe_layer_t **layer);

/*
 * y [T,H] from x [T,H]. x and weights are borrowed until the backward of the same microbatch. Waits once for the
 * stream (the splits of the all-to-all are host numbers). Errors: SHAPE, those of dispatch.h; checked before any
 * collective where the check is local.
 */
int moe_layer_forward(moe_layer_t *layer, const struct moe_layer_weights *weights, const struct moe_step *step,
                      const float *x, int64_t tokens, float *y);

/* dx [T,H] from dy [T,H] (dx is overwritten); adds to the main_grads. Does not wait. Errors: STATE, COMM, DEVICE. */
int moe_layer_backward(moe_layer_t *layer, const float *dy, float *dx);

/* The layer's router, for its losses, its loss scale and the update of expert biases. Borrowed. */
moe_router_t *moe_layer_router(moe_layer_t *layer);

/* Rows received in the last forward (padding not counted), and whether its experts were skipped. */
int64_t moe_layer_rows(const moe_layer_t *layer);
bool moe_layer_skipped(const moe_layer_t *layer);

#ifdef __cplusplus
}
#endif
#endif
