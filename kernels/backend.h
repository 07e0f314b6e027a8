/*
 * backend.h: what the files of the CUDA back end share on the host's side: the state of a device, and its functions.
 */
#ifndef ROLL_KERNELS_BACKEND_H
#define ROLL_KERNELS_BACKEND_H

#include "moe_core/base/device.h"
#include "moe_core/include/moe/error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* device->state of a CUDA device. */
struct moe_cuda_state {
    int *error;         /* device: the first error that a kernel found, 0 without one (moe_raise in device.cuh) */
    int *seen;          /* pinned: where moe_device_sync copies it */
    cudaMemPool_t pool; /* scratch memory in the order of the stream, which can be captured: moe_scratch_* */
    int multiprocessors;
    void *gemm; /* owned by gemm*.cu; NULL until the first product */
};

/*
 * Takes scratch memory for work that the stream runs between this call and moe_scratch_put. The device's pool gives and
 * takes it in the order of the stream, so that nothing waits and the calls can be captured. The memory is not zeroed.
 * *out is NULL for 0 bytes. Errors: NOMEM.
 */
int moe_scratch_get(moe_device_t *device, size_t bytes, void **out);
/* Gives scratch memory back, after the last launch that uses it. NULL is allowed. */
void moe_scratch_put(moe_device_t *device, void *memory);

/* gemm*.cu: frees what state->gemm holds; NULL is allowed. */
void moe_cuda_gemm_close(void *gemm);

/* The table's functions (moe/ops.h), each in the file that ops.def names. */
#define MOE_CUDA_OP(name, type) int moe_cuda_##name(moe_device_t *device, const struct type *args);
#include "moe_core/base/ops.def"
#undef MOE_CUDA_OP

#ifdef __cplusplus
}
#endif
#endif
