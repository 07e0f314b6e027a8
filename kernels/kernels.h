/*
 * kernels.h: kernels of the CUDA back end that are no function of its table (backend.h), behind a C interface.
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

/* Whether the library holds code for the current GPU: cudaSuccess, or what the runtime says of it. */
cudaError_t moe_kernels_loadable(void);

#ifdef __cplusplus
}
#endif
#endif
