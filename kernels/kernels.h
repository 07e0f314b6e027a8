/*
 * kernels.h: CUDA kernels of moe_core's device back end, behind a C interface.
 *
 * Each function checks its arguments, enqueues on `stream` and returns; nothing waits for the device and nothing is
 * read back. All pointers are device memory, float32, row-major, 16-byte aligned (cudaMalloc gives more). Row and
 * element numbers are 64 bit. Return: 0, -2 (argument), -3 (shape), -10 (launch refused by the runtime): the codes of
 * moe/err.def. Any thread; the current device must be the stream's.
 */
#ifndef MOE_KERNELS_H
#define MOE_KERNELS_H

#include <cuda_runtime.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Stores zeros into slice i of out [groups, elements] for every group with m[i] = 0; the others are not touched. The
 * decision is a predicate on the device's own counts: graph-capturable (remedy R1; TransformerEngine #3019).
 */
int moe_kernel_zero_empty(float *out, const int64_t *m, int64_t groups, int64_t elements, cudaStream_t stream);

/*
 * to[row] = from[token] for every row of the token in a mask-kind row map (moe/permute.h). With `padded`, rows without
 * a token become zero: `to` is then cleared first, rows * width elements. width must be a multiple of 4.
 */
int moe_kernel_map_gather(const float *from, const int32_t *map, int64_t tokens, int64_t experts, int64_t rows,
                          int64_t width, int padded, float *to, cudaStream_t stream);

/* act [rows,width] = silu(gate) * up, with h [rows, 2*width] = [gate | up]. width must be a multiple of 4. */
int moe_kernel_swiglu(const float *h, int64_t rows, int64_t width, float *act, cudaStream_t stream);

/* d_h [rows, 2*width] from h and d_act [rows,width]. width must be a multiple of 4. */
int moe_kernel_swiglu_backward(const float *h, const float *d_act, int64_t rows, int64_t width, float *d_h,
                               cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
