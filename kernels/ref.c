/*
 * ref.c: the twins of the kernels.
 *
 * A twin says what its kernel computes without blocks and vectors, and the GPU check compares the kernel with it. A
 * test that needs no GPU compares the twins with moe_core's host back end.
 */
#include "kernels/ref.h"

#include <math.h>

void moe_kernel_ref_zero_empty(float *out, const int64_t *m, int64_t groups, int64_t elements)
{
    for (int64_t g = 0; g < groups; g++) {
        for (int64_t i = 0; m[g] == 0 && i < elements; i++) {
            out[g * elements + i] = 0;
        }
    }
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

void moe_kernel_ref_swiglu(const float *h, int64_t rows, int64_t width, float *act)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < width; i++) {
            double gate = h[r * 2 * width + i], up = h[r * 2 * width + width + i];
            act[r * width + i] = (float)(gate * sigmoid(gate) * up);
        }
    }
}

void moe_kernel_ref_swiglu_backward(const float *h, const float *d_act, int64_t rows, int64_t width, float *d_h)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < width; i++) {
            double gate = h[r * 2 * width + i], up = h[r * 2 * width + width + i], d = d_act[r * width + i];
            double s = sigmoid(gate);
            d_h[r * 2 * width + i] = (float)(d * up * (s + gate * s * (1 - s)));
            d_h[r * 2 * width + width + i] = (float)(d * gate * s);
        }
    }
}
