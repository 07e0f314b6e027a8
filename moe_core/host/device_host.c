/*
 * device_host.c: the host back end's devices: memory, and work enqueued as host functions of the stream.
 *
 * The host does the work, but in the stream and not at once: the stream then orders compute and communication as on a
 * GPU, and a rank whose peers hang is stuck at the same place as on a GPU, in cudaStreamSynchronize. Doing the work in
 * the caller was rejected: it would need a stream wait before each piece, and no program would behave like one on a
 * GPU. Memory is pinned host memory, so that the same code runs on the vendor's runtime.
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

/* device->state of a host device. */
struct host_state {
    _Atomic int async_error;
};
/* One piece of work on its way through the stream. */
struct work {
    struct moe_device *device;
    int (*fn)(const void *args);
    bool captured; /* the work belongs to a graph and runs at every replay */
    _Alignas(max_align_t) unsigned char args[];
};

static pthread_once_t blas_once = PTHREAD_ONCE_INIT;

static void single_thread_blas(void)
{
    openblas_set_num_threads(1);
}

static void CUDART_CB run_work(void *data)
{
    struct work *work = data;
    int rc = work->fn(work->args);
    if (rc != 0) {
        int none = 0; /* the first error is kept until moe_device_sync takes it, after the stream is idle */
        struct host_state *state = work->device->state;
        atomic_compare_exchange_strong(&state->async_error, &none, rc);
    }
    if (!work->captured) {
        free(work);
    }
}

/* Whether the stream is being captured, and into which graph. */
static cudaError_t capture_of(cudaStream_t stream, cudaGraph_t *graph)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    *graph = NULL;
    cudaError_t err = cudaStreamIsCapturing(stream, &status);
    if (err != cudaSuccess || status != cudaStreamCaptureStatusActive) {
        return err;
    }
#if CUDART_VERSION >= 13000
    return cudaStreamGetCaptureInfo(stream, &status, NULL, graph, NULL, NULL, NULL);
#else
    return cudaStreamGetCaptureInfo_v2(stream, &status, NULL, graph, NULL, NULL);
#endif
}

/* Gives the work to the graph, which frees it when the graph and all its executables are gone. */
static cudaError_t give_to_graph(struct work *work, cudaGraph_t graph)
{
    cudaUserObject_t object;
    cudaError_t err = cudaUserObjectCreate(&object, work, free, 1, cudaUserObjectNoDestructorSync);
    if (err == cudaSuccess) {
        work->captured = true;
        err = cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
    }
    return err;
}

int moe_device_call(moe_device_t *device, int (*fn)(const void *args), const void *args, size_t bytes)
{
    if (device->backend != moe_host_backend()) {
        return moe_fail(MOE_E_UNSUPPORTED, MOE_NO_RANK, MOE_NO_LAYER, "a host function on the %s back end",
                        device->backend->name);
    }
    struct work *work = malloc(sizeof(*work) + bytes);
    if (work == NULL) {
        return moe_fail(MOE_E_NOMEM, MOE_NO_RANK, MOE_NO_LAYER, "%zu bytes of work", bytes);
    }
    cudaGraph_t graph;
    work->device = device;
    work->fn = fn;
    work->captured = false;
    memcpy(work->args, args, bytes);
    cudaError_t err = capture_of(device->stream, &graph);
    if (err == cudaSuccess && graph != NULL) {
        err = give_to_graph(work, graph);
    }
    if (err == cudaSuccess) {
        err = cudaLaunchHostFunc(device->stream, run_work, work);
    }
    if (err != cudaSuccess) {
        if (!work->captured) {
            free(work);
        }
        return moe_fail(MOE_E_DEVICE, MOE_NO_RANK, MOE_NO_LAYER, "cudaLaunchHostFunc: %s", cudaGetErrorString(err));
    }
    return 0;
}

static int open_host(moe_device_t *device, char *why, size_t room)
{
    pthread_once(&blas_once, single_thread_blas);
    device->state = calloc(1, sizeof(struct host_state));
    if (device->state == NULL) {
        snprintf(why, room, "no memory");
        return MOE_E_NOMEM;
    }
    cudaError_t err = cudaStreamCreateWithFlags(&device->stream, cudaStreamNonBlocking);
    if (err != cudaSuccess) {
        free(device->state);
        snprintf(why, room, "cudaStreamCreate: %s", cudaGetErrorString(err));
        return MOE_E_DEVICE;
    }
    return 0;
}

static void close_host(moe_device_t *device)
{
    cudaStreamDestroy(device->stream);
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
    struct host_state *state = device->state;
    cudaError_t err = cudaStreamSynchronize(device->stream);
    *error = err == cudaSuccess ? atomic_exchange(&state->async_error, 0) : 0;
    return err;
}

const struct moe_backend *moe_host_backend(void)
{
    static const struct moe_backend backend = {.abi = MOE_BACKEND_ABI,
                                               .layout = MOE_BACKEND_LAYOUT,
                                               .name = "host",
                                               .ops = moe_host_ops,
                                               .open = open_host,
                                               .close = close_host,
                                               .alloc = alloc_host,
                                               .release = release_host,
                                               .sync = sync_host};
    return &backend;
}
