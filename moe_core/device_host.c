/*
 * device_host.c: a device of the host back end: a stream, memory, and work enqueued as host functions of the stream.
 *
 * Work is enqueued and not done at once, although it is the host that does it: the order of compute and communication
 * is then the stream's, as on a GPU, and a rank whose peers hang shows up where it does there, in
 * cudaStreamSynchronize. Doing the work in the caller was rejected: it would need a stream wait before each piece, and
 * no program would behave like the real one. Memory is pinned host memory, so that the same code runs on the vendor's
 * runtime.
 */
#include "moe_core/device_host.h"
#include "moe_core/fail.h"

#include <cblas.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct moe_device {
    const struct moe_device_ops *ops;
    cudaStream_t stream;
    _Atomic int async_error;
};

/* One piece of work on its way through the stream. */
struct work {
    struct moe_device *device;
    int (*fn)(const void *args);
    bool captured; /* it belongs to a graph and runs at every replay */
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
        int none = 0; /* the first error is kept; moe_device_sync takes it after the stream is idle */
        atomic_compare_exchange_strong(&work->device->async_error, &none, rc);
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

/* The graph frees the work when it and all its executables are gone. */
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
    struct work *work = malloc(sizeof *work + bytes);
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

int moe_device_new_host(moe_device_t **out)
{
    *out = NULL;
    pthread_once(&blas_once, single_thread_blas);
    moe_device_t *device = calloc(1, sizeof *device);
    if (device == NULL) {
        return moe_fail(MOE_E_NOMEM, MOE_NO_RANK, MOE_NO_LAYER, "a device");
    }
    device->ops = moe_host_ops();
    cudaError_t err = cudaStreamCreateWithFlags(&device->stream, cudaStreamNonBlocking);
    if (err != cudaSuccess) {
        free(device);
        return moe_fail(MOE_E_DEVICE, MOE_NO_RANK, MOE_NO_LAYER, "cudaStreamCreate: %s", cudaGetErrorString(err));
    }
    *out = device;
    return 0;
}

void moe_device_destroy(moe_device_t **device)
{
    if (*device != NULL) {
        cudaStreamSynchronize((*device)->stream);
        cudaStreamDestroy((*device)->stream);
        free(*device);
        *device = NULL;
    }
}

const char *moe_device_name(const moe_device_t *device)
{
    return device->ops->name;
}

cudaStream_t moe_device_stream(const moe_device_t *device)
{
    return device->stream;
}

const struct moe_device_ops *moe_device_ops(const moe_device_t *device)
{
    return device->ops;
}

int moe_device_alloc(moe_device_t *device, size_t bytes, void **out)
{
    (void)device;
    size_t size = bytes > 0 ? bytes : 1;
    if (cudaMallocHost(out, size) != cudaSuccess) {
        *out = NULL;
        return moe_fail(MOE_E_NOMEM, MOE_NO_RANK, MOE_NO_LAYER, "%zu bytes of device memory", bytes);
    }
    memset(*out, 0, size);
    return 0;
}

void moe_device_free(moe_device_t *device, void *pointer_to_pointer)
{
    void *memory = NULL;
    memcpy(&memory, pointer_to_pointer, sizeof memory);
    if (memory != NULL) {
        cudaStreamSynchronize(device->stream);
        cudaFreeHost(memory);
        memory = NULL;
        memcpy(pointer_to_pointer, &memory, sizeof memory);
    }
}

int moe_device_copy(moe_device_t *device, void *to, const void *from, size_t bytes)
{
    if (bytes == 0) {
        return 0;
    }
    cudaError_t err = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, device->stream);
    if (err != cudaSuccess) {
        return moe_fail(MOE_E_DEVICE, MOE_NO_RANK, MOE_NO_LAYER, "cudaMemcpyAsync: %s", cudaGetErrorString(err));
    }
    return 0;
}

int moe_device_sync(moe_device_t *device)
{
    cudaError_t err = cudaStreamSynchronize(device->stream);
    if (err != cudaSuccess) {
        return moe_fail(MOE_E_DEVICE, MOE_NO_RANK, MOE_NO_LAYER, "cudaStreamSynchronize: %s", cudaGetErrorString(err));
    }
    int rc = atomic_exchange(&device->async_error, 0);
    if (rc != 0) {
        return moe_fail(rc, MOE_NO_RANK, MOE_NO_LAYER, "found while the stream ran");
    }
    return 0;
}
