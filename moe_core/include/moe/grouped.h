/*
 * grouped.h: grouped linear in float32: one weight per group of rows; forward, dgrad and wgrad.
 *
 * The row counts m [groups] stay on the device: the host never branches on them (TransformerEngine #3019). A group
 * without rows has no rows in Y and dX; its weight gradient is stored as zeros (accumulate = 0) or left bitwise
 * unchanged (accumulate = 1). Weight gradients are float32 main_grads of full shape. All pointers are device memory,
 * borrowed until the enqueued work has run; use them from the device's thread. Source: TransformerEngine
 * grouped_linear.
 */
#ifndef MOE_GROUPED_H
#define MOE_GROUPED_H

#include "device.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The shape of one call: N = out_features, K = in_features. */
struct moe_grouped_shape {
    int64_t groups, out_features, in_features;
    int64_t rows;     /* rows of the buffers; the sum of m must not exceed it (SPLIT in the stream) */
    const int64_t *m; /* [groups], on the device; a negative number is COUNT in the stream */
};

/* Enqueues y [rows,N] = x [rows,K] times the transposed weight w [N,K] of each row's group. Errors: SHAPE. */
int moe_grouped_forward(moe_device_t *device, const struct moe_grouped_shape *shape, const float *x, const float *w,
                        float *y);

/* Enqueues dx [rows,K] = dy [rows,N] times the weight w [N,K] of each row's group. Errors: SHAPE. */
int moe_grouped_dgrad(moe_device_t *device, const struct moe_grouped_shape *shape, const float *dy, const float *w,
                      float *dx);

/* Enqueues dw [groups,N,K] = (accumulate ? dw : 0) + dy^T x for each group. Errors: SHAPE. */
int moe_grouped_wgrad(moe_device_t *device, const struct moe_grouped_shape *shape, const float *dy, const float *x,
                      bool accumulate, float *dw);

#ifdef __cplusplus
}
#endif
#endif
