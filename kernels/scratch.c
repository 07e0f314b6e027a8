/*
 * scratch.c: memory that a kernel's host wrapper needs for the time of its launches, from the pool of its device. It
 * stands apart from backend.c, whose table names all wrappers: they call this file, and would call theirs in a circle.
 */
#include "kernels/backend.h"

int moe_scratch_get(moe_device_t *device, size_t bytes, void **out)
{
    struct moe_cuda_state *state = device->state;
    *out = NULL;
    if (bytes == 0) {
        return 0;
    }
    cudaError_t err = cudaMallocFromPoolAsync(out, bytes, state->pool, device->stream);
    if (err != cudaSuccess) {
        cudaGetLastError();
        *out = NULL;
        return err == cudaErrorMemoryAllocation ? MOE_E_NOMEM : MOE_E_DEVICE;
    }
    return 0;
}

void moe_scratch_put(moe_device_t *device, void *memory)
{
    if (memory != NULL) {
        cudaFreeAsync(memory, device->stream);
    }
}
