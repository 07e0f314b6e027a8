/*
 * experts.h: the feed-forward experts of one rank: fc1, SwiGLU, fc2, over rows in expert-major order.
 */
#ifndef MOE_EXPERTS_H
#define MOE_EXPERTS_H

#include "device.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_experts moe_experts_t;

struct moe_experts_config {
    int64_t max_rows, hidden, ffn, experts; /* experts: local ones */
};

/* Weights and main_grads of the local experts; device memory that the caller owns. */
struct moe_experts_weights {
    const float *w1; /* [L,2F,H]: gate rows, then up rows */
    const float *w2; /* [L,H,F] */
    float *d_w1, *d_w2;
};

/* *out is owned; borrows device. Errors: NOMEM, SHAPE. One thread at a time. */
int moe_experts_new(moe_device_t *device, const struct moe_experts_config *config, moe_experts_t **out);
void moe_experts_destroy(moe_experts_t **experts);

/* y [rows,H] from x [rows,H]; m [L] rows per expert (device). x and m are borrowed until backward. Errors: CAPACITY. */
int moe_experts_forward(moe_experts_t *experts, const struct moe_experts_weights *weights, const float *x,
                        const int64_t *m, int64_t rows, float *y);

/* dx [rows,H] from dy [rows,H]; adds to d_w1, d_w2. Errors: STATE before any forward. */
int moe_experts_backward(moe_experts_t *experts, const struct moe_experts_weights *weights, const float *dy, float *dx);

#ifdef __cplusplus
}
#endif
#endif
