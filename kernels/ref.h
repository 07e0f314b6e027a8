/*
 * ref.h: the twins of the kernels (kernels.h) on the host: plain loops, with arithmetic in double.
 *
 * No stream and no argument checks; same shapes.
 */
#ifndef ROLL_KERNELS_REF_H
#define ROLL_KERNELS_REF_H

#include <stdint.h>

void moe_kernel_ref_zero_empty(float *out, const int64_t *m, int64_t groups, int64_t elements);
void moe_kernel_ref_swiglu(const float *h, int64_t rows, int64_t width, float *act);
void moe_kernel_ref_swiglu_backward(const float *h, const float *d_act, int64_t rows, int64_t width, float *d_h);

#endif
