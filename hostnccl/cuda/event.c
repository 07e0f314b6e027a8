/*
 * event.c: events: an event is a name for the mark that was recorded last. Recording replaces the mark, so a waiter for
 * an earlier record keeps waiting for the earlier mark, and destroying an event never has to wait.
 */
#include "hostnccl/cuda/graph.h"

#include <stdlib.h>

struct hostcuda_event {
    struct hostcuda_handle handle;
    int device;
    unsigned int flags;
    pthread_mutex_t lock;
    struct hostcuda_mark *mark;        /* owned; NULL before the first record; guarded by lock */
    struct hostcuda_captured captured; /* guarded by the lock of graphs */
    atomic_bool is_captured;           /* whether `captured` is set; spares taking the lock of graphs */
    struct hostcuda_shared_event
        *shared; /* owned; of several processes, and then there is no mark; NULL: of this one */
};

static void event_release(struct hostcuda_handle *handle)
{
    struct hostcuda_event *event = (struct hostcuda_event *)handle;
    hostcuda_captured_clear(&event->captured);
    hostcuda_mark_put(event->mark);
    hostcuda_shared_event_put(event->shared);
    pthread_mutex_destroy(&event->lock);
    free(event);
}

struct hostcuda_event *hostcuda_event_ref(struct hostcuda_event *event)
{
    atomic_fetch_add_explicit(&event->handle.refs, 1, memory_order_relaxed);
    return event;
}

void hostcuda_event_put(struct hostcuda_event *event)
{
    hostcuda_handle_put(&event->handle);
}

struct hostcuda_event *hostcuda_event_get(cudaEvent_t handle)
{
    return (struct hostcuda_event *)hostcuda_handle_get(HOSTCUDA_EVENT, handle);
}

struct hostcuda_mark *hostcuda_event_mark(struct hostcuda_event *event)
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

bool hostcuda_event_is_shared(const struct hostcuda_event *event)
{
    return event->shared != NULL;
}

/* Takes `shared`. */
static cudaError_t make(cudaEvent_t *event, unsigned int flags, struct hostcuda_shared_event *shared)
{
    struct hostcuda_event *made = calloc(1, sizeof(*made));
    if (!made) {
        hostcuda_shared_event_put(shared);
        return cudaErrorMemoryAllocation;
    }
    atomic_init(&made->handle.refs, 1);
    made->handle.release = event_release;
    made->device = hostcuda_self()->device;
    made->flags = flags;
    made->shared = shared;
    pthread_mutex_init(&made->lock, NULL);
    cudaError_t error = hostcuda_handle_add(HOSTCUDA_EVENT, &made->handle);
    if (error) {
        hostcuda_handle_put(&made->handle);
        return error;
    }
    *event = (cudaEvent_t)made;
    return cudaSuccess;
}

HOSTCUDA_EXPORT cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event_handle)
{
    struct hostcuda_event *event;
    cudaError_t error = handle ? enter_with(event_handle, &event) : cudaErrorInvalidValue;
    if (!error) {
        bool is_given = event->shared && hostcuda_shared_event_give(event->shared, handle);
        error = is_given ? cudaSuccess : cudaErrorInvalidResourceHandle;
        hostcuda_handle_put(&event->handle);
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle)
{
    struct hostcuda_shared_event *shared = NULL;
    cudaError_t error = event ? hostcuda_enter_work() : cudaErrorInvalidValue;
    if (!error) {
        error = hostcuda_shared_event_open(&shared, &handle);
    }
    if (!error) {
        error = make(event, cudaEventDisableTiming | cudaEventInterprocess, shared);
    }
    return hostcuda_leave(error);
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
    struct hostcuda_shared_event *shared = flags & cudaEventInterprocess ? hostcuda_shared_event_new() : NULL;
    if (flags & cudaEventInterprocess && !shared) {
        return hostcuda_leave(cudaErrorMemoryAllocation);
    }
    return hostcuda_leave(make(event, flags, shared));
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

/* Makes the event stand for the mark, or for nothing. Takes the reference. */
static void set_mark(struct hostcuda_event *event, struct hostcuda_mark *mark)
{
    pthread_mutex_lock(&event->lock);
    struct hostcuda_mark *before = event->mark;
    event->mark = mark;
    pthread_mutex_unlock(&event->lock);
    hostcuda_mark_put(before);
}

void hostcuda_event_set(struct hostcuda_event *event, struct hostcuda_mark *mark)
{
    set_mark(event, mark);
    if (atomic_load(&event->is_captured)) {
        pthread_mutex_lock(&hostcuda_graph_lock);
        hostcuda_captured_clear(&event->captured);
        atomic_store(&event->is_captured, false);
        pthread_mutex_unlock(&hostcuda_graph_lock);
    }
}

/* Takes the operation of an event of several processes. */
static cudaError_t submit(struct hostcuda_stream *stream, struct hostcuda_op *op)
{
    cudaError_t error = op ? hostcuda_stream_submit(stream, op) : cudaErrorMemoryAllocation;
    if (op && error) {
        hostcuda_shared_event_drop(op);
    }
    return error;
}

/*
 * Records the event in a stream that is not captured; borrows both. The event keeps the new mark only if the stream
 * took it.
 */
static cudaError_t record(struct hostcuda_event *event, struct hostcuda_stream *stream)
{
    cudaError_t error = hostcuda_capture_refuse_implicit(stream);
    if (error) {
        return error;
    }
    if (event->shared) {
        error = submit(stream, hostcuda_shared_event_record(event->shared));
        if (!error) {
            hostcuda_event_set(event, NULL);
        }
        return error;
    }
    struct hostcuda_mark *mark = hostcuda_mark_new();
    if (!mark) {
        return cudaErrorMemoryAllocation;
    }
    error = hostcuda_stream_record(stream, mark);
    if (error) {
        hostcuda_mark_put(mark);
        return error;
    }
    hostcuda_event_set(event, mark);
    return cudaSuccess;
}

/* Adds a node that records the event, or waits for it, at every launch. */
static cudaError_t add_node(struct hostcuda_event *event, struct hostcuda_stream *stream, int type)
{
    if (event->shared) {
        return hostcuda_unsupported("an event of several processes in a graph", "record it in the stream instead");
    }
    struct hostcuda_work work = {.type = type, .arg.event = hostcuda_event_ref(event)};
    return hostcuda_capture_add(stream, &work);
}

static cudaError_t record_somehow(struct hostcuda_event *event, struct hostcuda_stream *stream, unsigned int flags)
{
    if (event->device != stream->device) {
        return cudaErrorInvalidResourceHandle;
    }
    if (!hostcuda_stream_is_captured(stream)) {
        /* "External" only means something to a capture; outside one the vendor refuses it. */
        return flags == cudaEventRecordExternal ? cudaErrorIllegalState : record(event, stream);
    }
    if (flags == cudaEventRecordExternal) {
        return add_node(event, stream, cudaGraphNodeTypeEventRecord);
    }
    cudaError_t error = hostcuda_capture_record(stream, &event->captured);
    if (!error) {
        atomic_store(&event->is_captured, true);
        set_mark(event, NULL);
    }
    return error;
}

HOSTCUDA_EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t on, unsigned int flags)
{
    struct hostcuda_event *event;
    struct hostcuda_stream *stream;
    cudaError_t error = enter_with(handle, &event);
    if (error) {
        return hostcuda_leave(error);
    }
    error = flags & ~(unsigned int)cudaEventRecordExternal ? cudaErrorInvalidValue : hostcuda_stream_get(on, &stream);
    if (!error) {
        error = record_somehow(event, stream, flags);
        hostcuda_stream_put(stream);
    }
    hostcuda_handle_put(&event->handle);
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

static cudaError_t wait_somehow(struct hostcuda_event *event, struct hostcuda_stream *stream, unsigned int flags)
{
    bool is_capturing = hostcuda_stream_is_captured(stream);
    if (is_capturing && flags == cudaEventWaitExternal) {
        return add_node(event, stream, cudaGraphNodeTypeWaitEvent);
    }
    if (flags == cudaEventWaitExternal) {
        return cudaErrorIllegalState;
    }
    if (atomic_load(&event->is_captured)) {
        return hostcuda_capture_follow(stream, &event->captured);
    }
    if (event->shared) {
        cudaError_t refused =
            is_capturing ? hostcuda_capture_isolate(stream) : hostcuda_capture_refuse_implicit(stream);
        return refused ? refused : submit(stream, hostcuda_shared_event_follow(event->shared));
    }
    struct hostcuda_mark *mark = hostcuda_event_mark(event);
    if (!mark) { /* never recorded: there is nothing to wait for */
        return cudaSuccess;
    }
    cudaError_t error = is_capturing ? hostcuda_capture_isolate(stream) : hostcuda_capture_refuse_implicit(stream);
    if (!error) {
        error = hostcuda_stream_follow(stream, mark);
    }
    hostcuda_mark_put(mark);
    return error;
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
        error = wait_somehow(event, stream, flags);
        hostcuda_stream_put(stream);
    }
    hostcuda_handle_put(&event->handle);
    return hostcuda_leave(error);
}

/*
 * Enters with the event. If the event was recorded at all, it must have been recorded by a stream that is not captured.
 */
static cudaError_t enter_to_ask(cudaEvent_t handle, struct hostcuda_event **event)
{
    cudaError_t error = enter_with(handle, event);
    if (error) {
        return error;
    }
    if (atomic_load(&(*event)->is_captured)) {
        error = hostcuda_capture_refuse_event(&(*event)->captured);
    }
    if (!error) {
        error = hostcuda_capture_unsafe();
    }
    if (error) {
        hostcuda_handle_put(&(*event)->handle);
    }
    return error;
}

HOSTCUDA_EXPORT cudaError_t cudaEventQuery(cudaEvent_t handle)
{
    struct hostcuda_event *event;
    cudaError_t error = enter_to_ask(handle, &event);
    if (!error) {
        struct hostcuda_mark *mark = hostcuda_event_mark(event);
        bool is_reached =
            event->shared ? hostcuda_shared_event_reached(event->shared) : !mark || hostcuda_mark_reached(mark);
        error = is_reached ? cudaSuccess : cudaErrorNotReady;
        hostcuda_mark_put(mark);
        hostcuda_handle_put(&event->handle);
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t handle)
{
    struct hostcuda_event *event;
    cudaError_t error = enter_to_ask(handle, &event);
    if (!error) {
        struct hostcuda_mark *mark = hostcuda_event_mark(event);
        if (event->shared) {
            hostcuda_shared_event_wait(event->shared);
            error = hostcuda_fault();
        }
        hostcuda_handle_put(&event->handle);
        if (mark) {
            hostcuda_mark_wait(mark);
            hostcuda_mark_put(mark);
            error = hostcuda_fault();
        }
    }
    return hostcuda_leave(error);
}

/* The time of a recorded event. */
static cudaError_t time_of(struct hostcuda_event *event, uint64_t *time_ns)
{
    cudaError_t error = cudaErrorInvalidResourceHandle;
    if (atomic_load(&event->is_captured)) {
        return cudaErrorCapturedEvent;
    }
    struct hostcuda_mark *mark = hostcuda_event_mark(event);
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

#if CUDART_VERSION < 13000
HOSTCUDA_EXPORT cudaError_t cudaEventElapsedTime_v2(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    return cudaEventElapsedTime(ms, start, end);
}
#endif
