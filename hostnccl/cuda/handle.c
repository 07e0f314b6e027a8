/*
 * handle.c: which stream a handle means. The default streams are made when they are first asked for: the legacy one
 * belongs to the device and stays, the other belongs to the thread and is closed when the thread ends. Every other
 * handle is looked up.
 */
#include "hostnccl/cuda/memory.h"
#include "hostnccl/cuda/stream.h"

static struct hostcuda_stream *per_thread_stream(int device)
{
    struct hostcuda_stream **own = &hostcuda_self()->per_thread[device];
    if (!*own) {
        *own = hostcuda_stream_new(device, cudaStreamDefault, 0);
        hostcuda_thread_ends_with_streams();
    }
    return *own;
}

static struct hostcuda_stream *legacy_stream(int device)
{
    struct hostcuda_device *on = hostcuda_device_of(device);
    pthread_mutex_lock(&on->order);
    struct hostcuda_stream *legacy = on->legacy;
    pthread_mutex_unlock(&on->order);
    if (legacy) {
        return legacy;
    }
    struct hostcuda_stream *fresh = hostcuda_stream_new(device, cudaStreamDefault, 0);
    if (!fresh) {
        return NULL;
    }
    pthread_mutex_lock(&on->order);
    if (!on->legacy) {
        on->legacy = fresh;
        fresh = NULL;
    }
    legacy = on->legacy;
    pthread_mutex_unlock(&on->order);
    if (fresh) { /* another thread was faster */
        hostcuda_stream_close(&fresh);
    }
    return legacy;
}

cudaError_t hostcuda_stream_get(cudaStream_t handle, struct hostcuda_stream **stream)
{
    if (!handle || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
        int device = hostcuda_self()->device;
        *stream = handle == cudaStreamPerThread ? per_thread_stream(device) : legacy_stream(device);
        if (!*stream) {
            return cudaErrorMemoryAllocation;
        }
        atomic_fetch_add_explicit(&(*stream)->handle.refs, 1, memory_order_relaxed);
        return cudaSuccess;
    }
    *stream = (struct hostcuda_stream *)hostcuda_handle_get(HOSTCUDA_STREAM, handle);
    return *stream ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

cudaError_t hostcuda_enter_stream(cudaStream_t handle, struct hostcuda_stream **stream)
{
    cudaError_t error = hostcuda_enter_work();
    return error ? error : hostcuda_stream_get(handle, stream);
}

/* Takes one stream that has a handle away from it; NULL when the device has none left. Returns owned. */
static struct hostcuda_stream *take_one(struct hostcuda_device *on)
{
    struct hostcuda_handle *taken = NULL;
    pthread_mutex_lock(&on->order);
    for (struct hostcuda_stream *stream = on->streams; stream && !taken; stream = stream->next) {
        taken = hostcuda_handle_remove(HOSTCUDA_STREAM, stream);
    }
    pthread_mutex_unlock(&on->order);
    return (struct hostcuda_stream *)taken;
}

void hostcuda_device_reset(int device)
{
    struct hostcuda_device *on = hostcuda_device_of(device);
    for (struct hostcuda_stream *stream; (stream = take_one(on)) != NULL;) {
        hostcuda_stream_close(&stream);
    }
    bool is_idle = true;
    pthread_mutex_lock(&on->order);
    for (struct hostcuda_stream *stream = on->streams; stream; stream = stream->next) {
        is_idle = is_idle && !hostcuda_stream_is_busy(stream);
    }
    pthread_mutex_unlock(&on->order);
    for (int peer = 0; peer < HOSTCUDA_DEVICES_MAX; peer++) {
        atomic_store(&on->peers[peer], false);
    }
    if (is_idle) {
        hostcuda_memory_reset(device);
    }
}
