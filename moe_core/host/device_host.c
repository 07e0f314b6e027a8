/*
 * device_host.c: the host back end's devices and their memory; host_call.c enqueues their work.
 *
 * Memory is pinned host memory, so that the same code runs on the vendor's runtime.
 */
#include "moe_core/host/device_host.h"

#include "moe_core/base/device.h"
#include "moe_core/base/fail.h"

#include <cblas.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static pthread_once_t blas_once = PTHREAD_ONCE_INIT;

static void single_thread_blas(void)
{
    openblas_set_num_threads(1);
}

static int open_host(moe_device_t *device, char *why, size_t room)
{
    pthread_once(&blas_once, single_thread_blas);
    device->state = calloc(1, sizeof(struct moe_host_state));
    if (device->state == NULL) {
        snprintf(why, room, "no memory");
        return MOE_E_NOMEM;
    }
    cudaError_t err =
        device->borrowed ? cudaSuccess : cudaStreamCreateWithFlags(&device->stream, cudaStreamNonBlocking);
    if (err != cudaSuccess) {
        free(device->state);
        snprintf(why, room, "cudaStreamCreate: %s", cudaGetErrorString(err));
        return MOE_E_DEVICE;
    }
    return 0;
}

static void close_host(moe_device_t *device)
{
    if (!device->borrowed) {
        cudaStreamDestroy(device->stream);
    }
    free(device->state);
}

/*
 * Asks for huge pages, before the first touch: rows are met in any order, and with small pages each row of a permuted
 * buffer is a miss of the translation cache (unpermute of short rows takes half as long again). The result is not
 * checked: without huge pages everything works, only slower.
 */
static void wish_huge(void *memory, size_t bytes)
{
    const uintptr_t huge = (uintptr_t)2 << 20;
    uintptr_t begin = ((uintptr_t)memory + huge - 1) / huge * huge, end = ((uintptr_t)memory + bytes) / huge * huge;
    if (begin < end) {
        madvise((unsigned char *)memory + (begin - (uintptr_t)memory), end - begin, MADV_HUGEPAGE);
    }
}

static void *alloc_host(moe_device_t *device, size_t bytes)
{
    (void)device;
    void *memory = NULL;
    if (cudaMallocHost(&memory, bytes) != cudaSuccess) {
        return NULL;
    }
    wish_huge(memory, bytes);
    return memset(memory, 0, bytes);
}

static void release_host(moe_device_t *device, void *memory)
{
    (void)device;
    cudaFreeHost(memory);
}

static cudaError_t sync_host(moe_device_t *device, int *error)
{
    struct moe_host_state *state = device->state;
    cudaError_t err = cudaStreamSynchronize(device->stream);
    *error = err == cudaSuccess ? atomic_exchange(&state->async_error, 0) : 0;
    return err;
}

const struct moe_backend *moe_host_backend(void)
{
    static const struct moe_backend backend = {.abi = MOE_BACKEND_ABI,
                                               .layout = MOE_BACKEND_LAYOUT,
                                               .name = moe_host_name,
                                               .ops = moe_host_ops,
                                               .open = open_host,
                                               .close = close_host,
                                               .alloc = alloc_host,
                                               .release = release_host,
                                               .sync = sync_host};
    return &backend;
}
