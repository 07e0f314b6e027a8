/*
 * backend.c: the CUDA back end as moe_core sees it: devices, memory, errors found by kernels, and the table of
 * functions.
 *
 * An error that a kernel finds (a count below zero, a score that is no number) is known when the kernel runs, long
 * after its launch: the kernel stores it in one word of device memory, where the first error stays, and moe_device_sync
 * copies the word behind everything else in the stream and clears it. Asserting in the kernel was rejected: it would
 * end the context, and with it the job.
 */
#include "kernels/backend.h"

#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>

static int fail(char *why, size_t room, const char *what, cudaError_t err)
{
    snprintf(why, room, "%s: %s", what, cudaGetErrorString(err));
    cudaGetLastError(); /* the error is reported, so later launches must not find it again */
    return err == cudaErrorMemoryAllocation ? MOE_E_NOMEM : MOE_E_DEVICE;
}

/* Whether there is a GPU that the kernels have code for. */
static int find_gpu(char *why, size_t room, int *device, int *multiprocessors)
{
    int count = 0;
    cudaError_t err = cudaGetDeviceCount(&count);
    if (err != cudaSuccess || count == 0) {
        fail(why, room, "no GPU", err != cudaSuccess ? err : cudaErrorNoDevice);
        return MOE_E_UNSUPPORTED;
    }
    err = cudaGetDevice(device);
    if (err == cudaSuccess) {
        err = cudaDeviceGetAttribute(multiprocessors, cudaDevAttrMultiProcessorCount, *device);
    }
    if (err != cudaSuccess) {
        return fail(why, room, "the current GPU", err);
    }
    err = moe_kernels_loadable();
    if (err != cudaSuccess) {
        fail(why, room, "no code for this GPU in " MOE_KERNELS_LIBRARY, err);
        return MOE_E_UNSUPPORTED;
    }
    return 0;
}

static cudaError_t make_pool(int device, cudaMemPool_t *pool)
{
    struct cudaMemPoolProps props = {.allocType = cudaMemAllocationTypePinned,
                                     .location = {.type = cudaMemLocationTypeDevice, .id = device}};
    uint64_t keep =
        UINT64_MAX; /* scratch memory is needed again at once, so it never goes back to the driver between two layers */
    cudaError_t err = cudaMemPoolCreate(pool, &props);
    return err != cudaSuccess ? err : cudaMemPoolSetAttribute(*pool, cudaMemPoolAttrReleaseThreshold, &keep);
}

static void close_cuda(moe_device_t *device)
{
    struct moe_cuda_state *state = device->state;
    moe_cuda_gemm_close(state->gemm);
    if (device->borrowed || device->stream != NULL) {
        cudaStreamSynchronize(device->stream);
    }
    if (!device->borrowed && device->stream != NULL) {
        cudaStreamDestroy(device->stream);
    }
    if (state->pool != NULL) {
        cudaMemPoolDestroy(state->pool);
    }
    cudaFree(state->error);
    cudaFreeHost(state->seen);
    free(state);
    device->state = NULL;
}

static int open_cuda(moe_device_t *device, char *why, size_t room)
{
    int gpu = 0, multiprocessors = 0, rc = find_gpu(why, room, &gpu, &multiprocessors);
    if (rc != 0) {
        return rc;
    }
    struct moe_cuda_state *state = calloc(1, sizeof(*state));
    if (state == NULL) {
        snprintf(why, room, "no memory");
        return MOE_E_NOMEM;
    }
    device->state = state;
    state->multiprocessors = multiprocessors;
    cudaError_t err =
        device->borrowed ? cudaSuccess : cudaStreamCreateWithFlags(&device->stream, cudaStreamNonBlocking);
    err = err != cudaSuccess ? err : cudaMalloc((void **)&state->error, sizeof(*state->error));
    err = err != cudaSuccess ? err : cudaMemsetAsync(state->error, 0, sizeof(*state->error), device->stream);
    err = err != cudaSuccess ? err : cudaMallocHost((void **)&state->seen, sizeof(*state->seen));
    err = err != cudaSuccess ? err : make_pool(gpu, &state->pool);
    err = err != cudaSuccess ? err : cudaStreamSynchronize(device->stream);
    if (err != cudaSuccess) {
        rc = fail(why, room, "a stream and its memory", err);
        close_cuda(device);
    }
    return rc;
}

/*
 * The memory is zeroed before the function returns, because other streams (NCCL's, a framework's) may use it at once.
 */
static void *alloc_cuda(moe_device_t *device, size_t bytes)
{
    void *memory = NULL;
    cudaError_t err = cudaMalloc(&memory, bytes);
    err = err != cudaSuccess ? err : cudaMemsetAsync(memory, 0, bytes, device->stream);
    err = err != cudaSuccess ? err : cudaStreamSynchronize(device->stream);
    if (err != cudaSuccess) {
        cudaGetLastError();
        cudaFree(memory);
        return NULL;
    }
    return memory;
}

static void release_cuda(moe_device_t *device, void *memory)
{
    (void)device;
    cudaFree(memory);
}

static cudaError_t sync_cuda(moe_device_t *device, int *error)
{
    struct moe_cuda_state *state = device->state;
    *error = 0;
    cudaError_t err =
        cudaMemcpyAsync(state->seen, state->error, sizeof(*state->seen), cudaMemcpyDeviceToHost, device->stream);
    err = err != cudaSuccess ? err : cudaStreamSynchronize(device->stream);
    if (err != cudaSuccess || *state->seen == 0) {
        return err;
    }
    *error = *state->seen;
    err = cudaMemsetAsync(state->error, 0, sizeof(*state->error), device->stream);
    return err != cudaSuccess ? err : cudaStreamSynchronize(device->stream);
}

static int zero_cuda(moe_device_t *device, void *data, size_t bytes)
{
    return bytes == 0 || cudaMemsetAsync(data, 0, bytes, device->stream) == cudaSuccess ? 0 : MOE_E_DEVICE;
}

static const struct moe_ops *ops_cuda(void)
{
    static const struct moe_ops ops = {
        .name = "cuda",
        .zero = zero_cuda,
#define MOE_CUDA_OP(name, type) .name = moe_cuda_##name,
#include "moe_core/base/ops.def"
#undef MOE_CUDA_OP
    };
    return &ops;
}

__attribute__((visibility("default"))) const struct moe_backend *moe_kernels_backend(void);

const struct moe_backend *moe_kernels_backend(void)
{
    static const struct moe_backend backend = {.abi = MOE_BACKEND_ABI,
                                               .layout = MOE_BACKEND_LAYOUT,
                                               .name = "cuda",
                                               .ops = ops_cuda,
                                               .open = open_cuda,
                                               .close = close_cuda,
                                               .alloc = alloc_cuda,
                                               .release = release_cuda,
                                               .sync = sync_cuda};
    return &backend;
}
