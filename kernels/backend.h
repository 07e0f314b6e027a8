/*
 * backend.h: what the files of the CUDA back end share on the host's side: the state of a device, and its functions.
 */
#ifndef MOE_KERNELS_BACKEND_H
#define MOE_KERNELS_BACKEND_H

#include "moe_core/base/device.h"
#include "moe_core/include/moe/error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* device->state of a CUDA device. */
struct moe_cuda_state {
    int *error;         /* device: the first error that a kernel found, 0 without one (moe_raise in device.cuh) */
    int *seen;          /* pinned: where moe_device_sync copies it */
    cudaMemPool_t pool; /* scratch memory, in the order of the stream and capturable: moe_scratch_* */
    int multiprocessors;
    void *gemm; /* gemm*.cu's own; NULL until its first use */
};

/*
 * Scratch memory that lives between work enqueued before and after: taken from and given back to the device's pool in
 * the stream's order, so that it costs no wait and can be captured. Not zeroed. *out is NULL for 0 bytes. Errors:
 * NOMEM.
 */
int moe_scratch_get(moe_device_t *device, size_t bytes, void **out);
/* After the last launch that uses it. NULL is allowed. */
void moe_scratch_put(moe_device_t *device, void *memory);

/* gemm*.cu: frees what state->gemm holds; NULL is allowed. */
void moe_cuda_gemm_close(void *gemm);

/* The table's functions (moe/ops.h), each in the file that ops.def names. */
#define MOE_CUDA_OP(name, type) int moe_cuda_##name(moe_device_t *device, const struct type *args);
#include "kernels/ops.def"
#undef MOE_CUDA_OP

#ifdef __cplusplus
}
#endif
#endif
