/*
 * stream_api.c: the calls of the CUDA runtime that are about streams. Each finds the stream that the handle means,
 * acts, gives the stream back, and keeps an error as the thread's last one.
 */
#include "hostnccl/cuda/stream.h"

#include <stdlib.h>

HOSTCUDA_EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority)
{
    cudaError_t error = hostcuda_enter_work();
    if (error) {
        return hostcuda_leave(error);
    }
    if (!stream || flags & ~(unsigned int)cudaStreamNonBlocking) {
        return hostcuda_leave(cudaErrorInvalidValue);
    }
    if (priority < HOSTCUDA_PRIORITY_GREATEST) {
        priority = HOSTCUDA_PRIORITY_GREATEST;
    } else if (priority > HOSTCUDA_PRIORITY_LEAST) {
        priority = HOSTCUDA_PRIORITY_LEAST;
    }
    struct hostcuda_stream *made = hostcuda_stream_new(hostcuda_self()->device, flags, priority);
    if (!made) {
        return hostcuda_leave(cudaErrorMemoryAllocation);
    }
    error = hostcuda_handle_add(HOSTCUDA_STREAM, &made->handle);
    if (error) {
        hostcuda_stream_close(&made);
        return hostcuda_leave(error);
    }
    *stream = (cudaStream_t)made;
    return cudaSuccess;
}

HOSTCUDA_EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

HOSTCUDA_EXPORT cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

HOSTCUDA_EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    cudaError_t error = hostcuda_enter_work();
    if (!error) {
        struct hostcuda_stream *gone = (struct hostcuda_stream *)hostcuda_handle_remove(HOSTCUDA_STREAM, stream);
        if (gone) {
            hostcuda_capture_forget(gone);
            hostcuda_stream_close(&gone);
        } else {
            error = cudaErrorInvalidResourceHandle;
        }
    }
    return hostcuda_leave(error);
}

/* Enters for calls that look at a stream and change nothing; on success the caller puts it back. */
static cudaError_t enter_to_look(cudaStream_t handle, struct hostcuda_stream **stream)
{
    cudaError_t error = hostcuda_enter();
    return error ? error : hostcuda_stream_get(handle, stream);
}

/* Enters for calls that ask how far a stream is, which a capture cannot answer. */
static cudaError_t enter_to_ask(cudaStream_t handle, struct hostcuda_stream **stream)
{
    cudaError_t error = hostcuda_enter_stream(handle, stream);
    if (error) {
        return error;
    }
    error = hostcuda_capture_refuse(*stream);
    if (!error) {
        error = hostcuda_capture_unsafe();
    }
    if (error) {
        hostcuda_stream_put(*stream);
    }
    return error;
}

HOSTCUDA_EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    struct hostcuda_stream *stream;
    cudaError_t error = enter_to_ask(handle, &stream);
    if (!error) {
        error = hostcuda_stream_synchronize(stream);
        hostcuda_stream_put(stream);
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    struct hostcuda_stream *stream;
    cudaError_t error = enter_to_ask(handle, &stream);
    if (!error) {
        error = hostcuda_stream_is_idle(stream) ? cudaSuccess : cudaErrorNotReady;
        hostcuda_stream_put(stream);
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned int *flags)
{
    struct hostcuda_stream *stream;
    cudaError_t error = flags ? enter_to_look(handle, &stream) : cudaErrorInvalidValue;
    if (!error) {
        *flags = stream->flags;
        hostcuda_stream_put(stream);
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t handle, int *priority)
{
    struct hostcuda_stream *stream;
    cudaError_t error = priority ? enter_to_look(handle, &stream) : cudaErrorInvalidValue;
    if (!error) {
        *priority = stream->priority;
        hostcuda_stream_put(stream);
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaStreamGetId(cudaStream_t handle, unsigned long long *id)
{
    struct hostcuda_stream *stream;
    cudaError_t error = id ? enter_to_look(handle, &stream) : cudaErrorInvalidValue;
    if (!error) {
        *id = stream->id;
        hostcuda_stream_put(stream);
    }
    return hostcuda_leave(error);
}

/* Since CUDA 12.8; older headers do not declare it. */
cudaError_t cudaStreamGetDevice(cudaStream_t handle, int *device);

HOSTCUDA_EXPORT cudaError_t cudaStreamGetDevice(cudaStream_t handle, int *device)
{
    struct hostcuda_stream *stream;
    cudaError_t error = device ? enter_to_look(handle, &stream) : cudaErrorInvalidValue;
    if (!error) {
        *device = stream->device;
        hostcuda_stream_put(stream);
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t fn, void *data)
{
    struct hostcuda_stream *stream;
    cudaError_t error = fn ? hostcuda_enter_stream(handle, &stream) : cudaErrorInvalidValue;
    if (!error) {
        struct hostcuda_work work = {.type = cudaGraphNodeTypeHost, .arg.host = {.fn = fn, .data = data}};
        error = hostcuda_stream_do(stream, &work);
        hostcuda_stream_put(stream);
    }
    return hostcuda_leave(error);
}

static void run_callback(struct hostcuda_op *op)
{
    op->arg.callback.fn(op->arg.callback.stream, hostcuda_fault(), op->arg.callback.data);
}

/* Unlike a host function, a callback cannot be captured. */
HOSTCUDA_EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t fn, void *data,
                                                  unsigned int flags)
{
    struct hostcuda_stream *stream;
    cudaError_t error = fn && !flags ? hostcuda_enter_stream(handle, &stream) : cudaErrorInvalidValue;
    if (error) {
        return hostcuda_leave(error);
    }
    error = hostcuda_capture_refuse(stream);
    struct hostcuda_op *op = error ? NULL : malloc(sizeof(*op));
    if (op) {
        *op = (struct hostcuda_op){.run = run_callback, .arg.callback = {fn, data, handle}};
        error = hostcuda_stream_submit(stream, op);
    } else if (!error) {
        error = cudaErrorMemoryAllocation;
    }
    if (error) {
        free(op);
    }
    hostcuda_stream_put(stream);
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaDeviceSynchronize(void)
{
    cudaError_t error = hostcuda_enter_work();
    int device = hostcuda_self()->device;
    if (!error) {
        error = hostcuda_capture_refuse_device(device);
    }
    if (!error) {
        error = hostcuda_capture_unsafe();
    }
    return hostcuda_leave(error ? error : hostcuda_device_drain(device));
}

HOSTCUDA_EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    cudaError_t error = hostcuda_enter();
    if (!error && least) {
        *least = HOSTCUDA_PRIORITY_LEAST;
    }
    if (!error && greatest) {
        *greatest = HOSTCUDA_PRIORITY_GREATEST;
    }
    return hostcuda_leave(error);
}
