/*
 * The calls of the CUDA runtime that are about streams. Each finds the stream that the handle means, acts, gives the stream
 * back, and keeps an error as the thread's last one.
 */
#include "hostnccl/cuda/hostcuda.h"

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
            hostcuda_stream_close(&gone);
        } else {
            error = cudaErrorInvalidResourceHandle;
        }
    }
    return hostcuda_leave(error);
}

/* Enters, and finds the stream; on success the caller puts it back. */
static cudaError_t enter_with(cudaStream_t handle, bool for_work, struct hostcuda_stream **stream)
{
    cudaError_t error = for_work ? hostcuda_enter_work() : hostcuda_enter();
    return error ? error : hostcuda_stream_get(handle, stream);
}

HOSTCUDA_EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    struct hostcuda_stream *stream;
    cudaError_t error = enter_with(handle, true, &stream);
    if (!error) {
        error = hostcuda_stream_synchronize(stream);
        hostcuda_stream_put(stream);
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    struct hostcuda_stream *stream;
    cudaError_t error = enter_with(handle, true, &stream);
    if (!error) {
        error = hostcuda_stream_is_idle(stream) ? cudaSuccess : cudaErrorNotReady;
        hostcuda_stream_put(stream);
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned int *flags)
{
    struct hostcuda_stream *stream;
    cudaError_t error = flags ? enter_with(handle, false, &stream) : cudaErrorInvalidValue;
    if (!error) {
        *flags = stream->flags;
        hostcuda_stream_put(stream);
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t handle, int *priority)
{
    struct hostcuda_stream *stream;
    cudaError_t error = priority ? enter_with(handle, false, &stream) : cudaErrorInvalidValue;
    if (!error) {
        *priority = stream->priority;
        hostcuda_stream_put(stream);
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaStreamGetId(cudaStream_t handle, unsigned long long *id)
{
    struct hostcuda_stream *stream;
    cudaError_t error = id ? enter_with(handle, false, &stream) : cudaErrorInvalidValue;
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
    cudaError_t error = device ? enter_with(handle, false, &stream) : cudaErrorInvalidValue;
    if (!error) {
        *device = stream->device;
        hostcuda_stream_put(stream);
    }
    return hostcuda_leave(error);
}

/* Submits an operation built by the caller, and frees it if that fails. */
static cudaError_t submit(cudaStream_t handle, const struct hostcuda_op *wanted)
{
    struct hostcuda_stream *stream;
    cudaError_t error = enter_with(handle, true, &stream);
    if (error) {
        return error;
    }
    struct hostcuda_op *op = malloc(sizeof(*op));
    error = cudaErrorMemoryAllocation;
    if (op) {
        *op = *wanted;
        error = hostcuda_stream_submit(stream, op);
    }
    if (error) {
        free(op);
    }
    hostcuda_stream_put(stream);
    return error;
}

static void run_host(struct hostcuda_op *op)
{
    op->arg.host.fn(op->arg.host.data);
}

HOSTCUDA_EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *data)
{
    if (!fn) {
        return hostcuda_leave(cudaErrorInvalidValue);
    }
    return hostcuda_leave(submit(stream, &(struct hostcuda_op){.run = run_host, .arg.host = {fn, data}}));
}

static void run_callback(struct hostcuda_op *op)
{
    op->arg.callback.fn(op->arg.callback.stream, cudaSuccess, op->arg.callback.data);
}

HOSTCUDA_EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t fn, void *data,
                                                  unsigned int flags)
{
    if (!fn || flags) {
        return hostcuda_leave(cudaErrorInvalidValue);
    }
    return hostcuda_leave(
        submit(stream, &(struct hostcuda_op){.run = run_callback, .arg.callback = {fn, data, stream}}));
}

HOSTCUDA_EXPORT cudaError_t cudaDeviceSynchronize(void)
{
    cudaError_t error = hostcuda_enter_work();
    return hostcuda_leave(error ? error : hostcuda_device_drain(hostcuda_self()->device));
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
