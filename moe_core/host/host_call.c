/*
 * host_call.c: work of the host back end, enqueued as host functions of the stream.
 *
 * The host does the work, but in the stream and not at once: the stream then orders compute and communication as on a
 * GPU, and a rank whose peers hang is stuck at the same place as on a GPU, in cudaStreamSynchronize. Doing the work in
 * the caller was rejected: it would need a stream wait before each piece, and no program would behave like one on a
 * GPU.
 */
#include "moe_core/base/device.h"
#include "moe_core/base/fail.h"
#include "moe_core/host/device_host.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* One piece of work on its way through the stream. */
struct work {
    struct moe_device *device;
    int (*fn)(const void *args);
    bool captured; /* the work belongs to a graph and runs at every replay */
    _Alignas(max_align_t) unsigned char args[];
};

const char moe_host_name[] = "host";

static void CUDART_CB run_work(void *data)
{
    struct work *work = data;
    int rc = work->fn(work->args);
    if (rc != 0) {
        int none = 0; /* the first error is kept until moe_device_sync takes it, after the stream is idle */
        struct moe_host_state *state = work->device->state;
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
    if (device->backend->name != moe_host_name) {
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
