/*
 * router.h: which experts a token goes to, and with what weight.
 *
 * Gate: logits = x gate^T. Scores: softmax over all experts, then the k largest, ties to the lowest index (so that a
 * recomputed forward routes alike); weights are the chosen scores, divided by their sum when `renormalise` is set
 * (Mixtral; equal to softmax over the chosen logits). Source: Megatron-LM router.py and moe_utils.py; torchtitan
 * moe.py (route_norm).
 */
#ifndef MOE_ROUTER_H
#define MOE_ROUTER_H

#include "device.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_router moe_router_t;

struct moe_router_config {
    int64_t max_tokens, hidden, experts;
    int32_t topk;
    bool renormalise;
};

/* *out is owned by the caller; borrows device. Errors: NOMEM, SHAPE (k < 1, k > E, no experts). One thread at
 * a time. */
int moe_router_new(moe_device_t *device, const struct moe_router_config *config, moe_router_t **out);
void moe_router_destroy(moe_router_t **router);

/* Routes x [T,H] by gate [E,H] (both borrowed until backward). T may be 0. Errors: SHAPE (T > max_tokens). */
int moe_router_forward(moe_router_t *router, const float *x, const float *gate, int64_t tokens);

/* Results of the last forward, device memory, borrowed: index [T,k]; probs [T,E] (0 where not chosen); counts [E]. */
const int32_t *moe_router_index(const moe_router_t *router);
const float *moe_router_probs(const moe_router_t *router);
const int64_t *moe_router_counts(const moe_router_t *router);

/*
 * From d_probs [T,E]: dx [T,H] += ..., d_gate [E,H] += ... (main_grad accumulation). Every chosen (token, expert)
 * counts, the rest of d_probs is ignored. Errors: STATE before any forward.
 */
int moe_router_backward(moe_router_t *router, const float *d_probs, float *dx, float *d_gate);

#ifdef __cplusplus
}
#endif
#endif
