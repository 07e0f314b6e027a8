/*
 * Events: a name for the mark that was recorded last. Recording replaces the mark, so whoever waits for an earlier record
 * keeps waiting for that one, and destroying an event never has to wait.
 */
#include "hostnccl/cuda/hostcuda.h"

#include <stdlib.h>

struct hostcuda_event {
    struct hostcuda_handle handle;
    int device;
    unsigned int flags;
    pthread_mutex_t lock;
    struct hostcuda_mark *mark; /* owned; NULL before the first record; guarded by lock */
};

static void event_release(struct hostcuda_handle *handle)
{
    struct hostcuda_event *event = (struct hostcuda_event *)handle;
    hostcuda_mark_put(event->mark);
    pthread_mutex_destroy(&event->lock);
    free(event);
}

/* The recorded mark with a reference of its own, or NULL. */
static struct hostcuda_mark *recorded(struct hostcuda_event *event)
{
    pthread_mutex_lock(&event->lock);
    struct hostcuda_mark *mark = event->mark ? hostcuda_mark_ref(event->mark) : NULL;
    pthread_mutex_unlock(&event->lock);
    return mark;
}

/* Enters, and finds the event; on success the caller puts it back. */
static cudaError_t enter_with(cudaEvent_t handle, struct hostcuda_event **event)
{
    cudaError_t error = hostcuda_enter_work();
    if (!error) {
        *event = (struct hostcuda_event *)hostcuda_handle_get(HOSTCUDA_EVENT, handle);
        error = *event ? cudaSuccess : cudaErrorInvalidResourceHandle;
    }
    return error;
}

HOSTCUDA_EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    const unsigned int known = cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;
    cudaError_t error = hostcuda_enter_work();
    if (error) {
        return hostcuda_leave(error);
    }
    if (!event || flags & ~known || (flags & cudaEventInterprocess && !(flags & cudaEventDisableTiming))) {
        return hostcuda_leave(cudaErrorInvalidValue);
    }
    struct hostcuda_event *made = calloc(1, sizeof(*made));
    if (!made) {
        return hostcuda_leave(cudaErrorMemoryAllocation);
    }
    atomic_init(&made->handle.refs, 1);
    made->handle.release = event_release;
    made->device = hostcuda_self()->device;
    made->flags = flags;
    pthread_mutex_init(&made->lock, NULL);
    error = hostcuda_handle_add(HOSTCUDA_EVENT, &made->handle);
    if (error) {
        hostcuda_handle_put(&made->handle);
        return hostcuda_leave(error);
    }
    *event = (cudaEvent_t)made;
    return cudaSuccess;
}

HOSTCUDA_EXPORT cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

HOSTCUDA_EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    cudaError_t error = hostcuda_enter_work();
    if (!error) {
        struct hostcuda_handle *gone = hostcuda_handle_remove(HOSTCUDA_EVENT, event);
        error = gone ? cudaSuccess : cudaErrorInvalidResourceHandle;
        hostcuda_handle_put(gone);
    }
    return hostcuda_leave(error);
}

/* Borrows both. The event keeps the new mark only if the stream took it. */
static cudaError_t record(struct hostcuda_event *event, struct hostcuda_stream *stream)
{
    if (event->device != stream->device) {
        return cudaErrorInvalidResourceHandle;
    }
    struct hostcuda_mark *mark = hostcuda_mark_new();
    if (!mark) {
        return cudaErrorMemoryAllocation;
    }
    cudaError_t error = hostcuda_stream_record(stream, mark);
    if (error) {
        hostcuda_mark_put(mark);
        return error;
    }
    pthread_mutex_lock(&event->lock);
    struct hostcuda_mark *before = event->mark;
    event->mark = mark;
    pthread_mutex_unlock(&event->lock);
    hostcuda_mark_put(before);
    return cudaSuccess;
}

HOSTCUDA_EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t on, unsigned int flags)
{
    struct hostcuda_event *event;
    struct hostcuda_stream *stream;
    cudaError_t error = enter_with(handle, &event);
    if (error) {
        return hostcuda_leave(error);
    }
    /* "External" only means something to a capture; outside one the vendor refuses it. */
    error = flags == cudaEventRecordDefault    ? hostcuda_stream_get(on, &stream)
            : flags == cudaEventRecordExternal ? cudaErrorIllegalState
                                               : cudaErrorInvalidValue;
    if (!error) {
        error = record(event, stream);
        hostcuda_stream_put(stream);
    }
    hostcuda_handle_put(&event->handle);
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

HOSTCUDA_EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t on, cudaEvent_t handle, unsigned int flags)
{
    struct hostcuda_event *event;
    struct hostcuda_stream *stream;
    if (flags & ~(unsigned int)cudaEventWaitExternal) {
        return hostcuda_leave(cudaErrorInvalidValue);
    }
    cudaError_t error = enter_with(handle, &event);
    if (error) {
        return hostcuda_leave(error);
    }
    error = hostcuda_stream_get(on, &stream);
    if (!error) {
        struct hostcuda_mark *mark = recorded(event);
        if (mark) {
            error = hostcuda_stream_follow(stream, mark);
            hostcuda_mark_put(mark);
        }
        hostcuda_stream_put(stream);
    }
    hostcuda_handle_put(&event->handle);
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaEventQuery(cudaEvent_t handle)
{
    struct hostcuda_event *event;
    cudaError_t error = enter_with(handle, &event);
    if (!error) {
        struct hostcuda_mark *mark = recorded(event);
        error = !mark || hostcuda_mark_reached(mark) ? cudaSuccess : cudaErrorNotReady;
        hostcuda_mark_put(mark);
        hostcuda_handle_put(&event->handle);
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t handle)
{
    struct hostcuda_event *event;
    cudaError_t error = enter_with(handle, &event);
    if (!error) {
        struct hostcuda_mark *mark = recorded(event);
        hostcuda_handle_put(&event->handle);
        if (mark) {
            hostcuda_mark_wait(mark);
            hostcuda_mark_put(mark);
        }
    }
    return hostcuda_leave(error);
}

/* The time of a recorded event. */
static cudaError_t time_of(struct hostcuda_event *event, uint64_t *time_ns)
{
    cudaError_t error = cudaErrorInvalidResourceHandle;
    struct hostcuda_mark *mark = recorded(event);
    if (mark && !(event->flags & cudaEventDisableTiming)) {
        error = hostcuda_mark_reached(mark) ? cudaSuccess : cudaErrorNotReady;
        *time_ns = atomic_load_explicit(&mark->time_ns, memory_order_relaxed);
    }
    hostcuda_mark_put(mark);
    return error;
}

HOSTCUDA_EXPORT cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    struct hostcuda_event *first, *second;
    uint64_t from = 0, to = 0;
    if (!ms) {
        return hostcuda_leave(cudaErrorInvalidValue);
    }
    cudaError_t error = enter_with(start, &first);
    if (error) {
        return hostcuda_leave(error);
    }
    error = enter_with(end, &second);
    if (!error) {
        cudaError_t first_error = time_of(first, &from), second_error = time_of(second, &to);
        error = first_error == cudaErrorInvalidResourceHandle || !second_error ? first_error : second_error;
        if (!error && first->device != second->device) {
            error = cudaErrorInvalidResourceHandle;
        }
        hostcuda_handle_put(&second->handle);
    }
    hostcuda_handle_put(&first->handle);
    if (!error) {
        *ms = (float)((double)(int64_t)(to - from) / 1e6);
    }
    return hostcuda_leave(error);
}
