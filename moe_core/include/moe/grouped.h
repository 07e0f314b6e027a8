/*
 * grouped.h: grouped linear: one weight per group of rows; forward, dgrad and wgrad.
 *
 * Row numbers m [groups] stay on the device: nothing here branches on them on the host (TransformerEngine #3019). A
 * group without rows has no rows in Y and dX; its weight gradient is stored as zeros (accumulate = 0) or left bitwise
 * alone (accumulate = 1). Weight gradients are float32 main_grad, full shape, always written as that table says.
 * Source: TransformerEngine grouped_linear.
 */
#ifndef MOE_GROUPED_H
#define MOE_GROUPED_H

#include "device.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct moe_grouped_shape {
    int64_t groups, out_features, in_features;
    int64_t rows;     /* rows of the buffers; sum of m must not exceed it (checked in the stream: SPLIT) */
    const int64_t *m; /* [groups], device; negative: COUNT in the stream */
};

/* y [rows,N] = x [rows,K] times the group's w [N,K] transposed. Errors: SHAPE. */
int moe_grouped_forward(moe_device_t *device, const struct moe_grouped_shape *shape, const float *x, const float *w,
                        float *y);

/* dx [rows,K] = dy [rows,N] times the group's w. Errors: SHAPE. */
int moe_grouped_dgrad(moe_device_t *device, const struct moe_grouped_shape *shape, const float *dy, const float *w,
                      float *dx);

/* dw [groups,N,K] = (accumulate ? dw : 0) + dy^T x per group. Errors: SHAPE. */
int moe_grouped_wgrad(moe_device_t *device, const struct moe_grouped_shape *shape, const float *dy, const float *x,
                      bool accumulate, float *dw);

#ifdef __cplusplus
}
#endif
#endif
