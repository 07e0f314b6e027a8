/*
 * stream.h: streams: their queues and workers, which one a handle means, events and captures.
 */
#ifndef ROLL_HOSTNCCL_CUDA_STREAM_H
#define ROLL_HOSTNCCL_CUDA_STREAM_H

#include "hostnccl/cuda/work.h"

/* stream.c: queues and workers */

struct hostcuda_op {
    struct hostcuda_op *next;
    void (*run)(struct hostcuda_op
                    *op); /* called on the worker; releases what the arguments own, but not the operation itself */
    union {
        struct hostcuda_mark *mark; /* owned */
        struct {
            struct hostcuda_work work;
            void *staged;   /* owned copy of the source of a copy, or NULL */
            void *instance; /* of prepared work */
        } work;
        struct {
            cudaStreamCallback_t fn;
            void *data;
            cudaStream_t stream; /* as the caller named it */
        } callback;
        struct {
            struct hostcuda_launch *launch; /* owned reference */
            size_t index;
        } step;
        void *memory; /* to be freed */
    } arg;
};

/* Operations in a row, which a stream takes together. */
struct hostcuda_chain {
    struct hostcuda_op *head, **tail; /* the last one's `next`, which is NULL */
    uint64_t count;
};

struct hostcuda_stream {
    struct hostcuda_handle handle;
    int device;
    unsigned int flags;
    int priority;
    unsigned long long id;
    struct hostcuda_stream *next; /* on the device; guarded by device.order */

    pthread_mutex_t lock;
    pthread_cond_t work;
    struct hostcuda_op *head, **tail; /* guarded by lock, as all below down to the empty line */
    struct hostcuda_op
        *running; /* the operation that the worker runs: for debuggers, and for leak checkers in a forked child */
    uint64_t pushed, done; /* operations */
    bool has_worker, closing;

    /* Implicit order with the legacy stream, guarded by device.order. Numbers count submitted operations. */
    uint64_t submitted;
    uint64_t legacy_seen;    /* operations of the legacy stream behind which this stream is ordered */
    uint64_t seen_by_legacy; /* operations of this stream behind which the legacy stream is ordered */

    /* Capture, guarded by the lock of graphs; `capture` may be read without it. */
    _Atomic(struct hostcuda_capture *) capture;
    struct hostcuda_stream *next_captured;
    struct hostcuda_node **tips; /* the nodes on which the stream's next node depends; owned array of borrowed nodes */
    size_t tip_count;
};

/* A new stream on a device; the device's list keeps it until it is drained. Returns owned (one reference), NULL without
 * memory. */
struct hostcuda_stream *hostcuda_stream_new(int device, unsigned int flags, int priority);

/*
 * Blocks signals in a thread that the program did not make: all signals but those that the thread's own code raises,
 * and profiling. `before` receives the previous mask.
 */
void hostcuda_block_signals(sigset_t *before);

/* Takes the owner's reference: queued work still runs, then the stream is freed. Returns at once. */
void hostcuda_stream_close(struct hostcuda_stream **stream);

/* Gives a reference back. */
void hostcuda_stream_put(struct hostcuda_stream *stream);

/*
 * Appends an operation behind everything that it must follow. Takes op on success; on failure the caller keeps it.
 * Errors: cudaErrorMemoryAllocation.
 */
cudaError_t hostcuda_stream_submit(struct hostcuda_stream *stream, struct hostcuda_op *op);

/*
 * The same for a chain, all of it or nothing; one that is not empty. hostcuda_stream_ready makes beforehand what it
 * takes: behind that, submitting fails only where the stream is being destroyed, or must follow new work of the legacy
 * stream. The same errors.
 */
cudaError_t hostcuda_stream_ready(struct hostcuda_stream *stream);
cudaError_t hostcuda_stream_submit_chain(struct hostcuda_stream *stream, struct hostcuda_chain *chain);

/* Operations that close a mark, or wait until it is reached; each takes a reference of its own. NULL without memory. */
struct hostcuda_op *hostcuda_op_close(struct hostcuda_mark *mark);
struct hostcuda_op *hostcuda_op_wait(struct hostcuda_mark *mark);

/* Enqueues work, or adds it to the capture of the stream. Takes what the work owns, also on failure.
 * cudaErrorMemoryAllocation, errors of capture. */
cudaError_t hostcuda_stream_do(struct hostcuda_stream *stream, struct hostcuda_work *work);

/*
 * Enqueues a copy; `staged` (taken) holds the source's content where the source may change. Errors:
 * cudaErrorMemoryAllocation.
 */
cudaError_t hostcuda_stream_copy(struct hostcuda_stream *stream, const struct hostcuda_copy *copy, void *staged);

/* Closes one place of the mark when everything enqueued so far has run; at once when there is nothing. Takes that place
 * on success; keeps a reference while pending. cudaErrorMemoryAllocation. */
cudaError_t hostcuda_stream_record(struct hostcuda_stream *stream, struct hostcuda_mark *mark);

/*
 * Makes the stream wait for a mark; the calling thread does not wait, because the wait is work of the stream. Borrows
 * the mark. Errors: cudaErrorMemoryAllocation.
 */
cudaError_t hostcuda_stream_follow(struct hostcuda_stream *stream, struct hostcuda_mark *mark);

/* Sleeps until everything enqueued before the call has run. */
cudaError_t hostcuda_stream_synchronize(struct hostcuda_stream *stream);

/* Whether nothing is queued or running, implicit predecessors included. */
bool hostcuda_stream_is_idle(struct hostcuda_stream *stream);

/* Whether something is queued or running on the stream itself. */
bool hostcuda_stream_is_busy(struct hostcuda_stream *stream);

/* Sleeps until every stream of the device has run what was enqueued before the call. */
cudaError_t hostcuda_device_drain(int device);

/* The same, for so long at most, for a caller whom the work of the device may wait for. */
void hostcuda_device_settle(int device, unsigned int at_most_ms);

/* handle.c: which stream a handle means */

/*
 * Finds the stream that a handle means for the calling thread; the caller puts back the reference. Errors:
 * cudaErrorInvalidResourceHandle. hostcuda_enter_stream does hostcuda_enter_work before, and has its errors as well.
 */
cudaError_t hostcuda_stream_get(cudaStream_t handle, struct hostcuda_stream **stream);
cudaError_t hostcuda_enter_stream(cudaStream_t handle, struct hostcuda_stream **stream);

/* Closes every stream that a program made on the device and, unless work is still running, frees its memory. Never
 * waits. */
void hostcuda_device_reset(int device);

/* copy.c: what graphs need of copies */

/*
 * Checks that both sides are what the direction says and lie inside one allocation each. Errors: those of
 * cudaMemcpyAsync.
 */
cudaError_t hostcuda_copy_check(const struct hostcuda_copy *copy);

/* Checks the destination of a fill; *type receives its kind of memory, unless `type` is NULL. */
cudaError_t hostcuda_fill_check(const struct hostcuda_fill *fill, enum cudaMemoryType *type);

/* event.c: what graphs need of events */

struct hostcuda_event *hostcuda_event_ref(struct hostcuda_event *event);
void hostcuda_event_put(struct hostcuda_event *event);

/* The event behind a handle with a reference to put back; NULL when it is not alive. */
struct hostcuda_event *hostcuda_event_get(cudaEvent_t handle);

/* The mark that the event stands for, with a reference; NULL before the first record and after a captured one. */
struct hostcuda_mark *hostcuda_event_mark(struct hostcuda_event *event);

/* Makes the event stand for the mark from now on. Takes the reference. */
void hostcuda_event_set(struct hostcuda_event *event, struct hostcuda_mark *mark);

/* Whether other processes may have the event; then it has no mark, and no place in a graph. */
bool hostcuda_event_is_shared(const struct hostcuda_event *event);

/* event_shared.c: events of several processes */

struct hostcuda_shared_event;

struct hostcuda_shared_event *hostcuda_shared_event_new(void);       /* one reference; NULL without memory */
void hostcuda_shared_event_put(struct hostcuda_shared_event *event); /* NULL is allowed */
bool hostcuda_shared_event_reached(const struct hostcuda_shared_event *event);
void hostcuda_shared_event_wait(struct hostcuda_shared_event *event);

/* The operation of a stream that records the event, or waits for the last record until now; owned, NULL without memory.
 * One that no stream takes must be dropped. */
struct hostcuda_op *hostcuda_shared_event_record(struct hostcuda_shared_event *event);
struct hostcuda_op *hostcuda_shared_event_follow(struct hostcuda_shared_event *event);
void hostcuda_shared_event_drop(struct hostcuda_op *op);

/* Writes the handle for another process; false where the event is another process's. */
bool hostcuda_shared_event_give(struct hostcuda_shared_event *event, cudaIpcEventHandle_t *handle);

/* Returns owned. cudaErrorInvalidResourceHandle, cudaErrorDeviceUninitialized for the own process's handle,
 * cudaErrorMapBufferObjectFailed where the owner is gone, cudaErrorMemoryAllocation. */
cudaError_t hostcuda_shared_event_open(struct hostcuda_shared_event **out, const cudaIpcEventHandle_t *handle);

/* capture.c: streams that record instead of run */

static inline bool hostcuda_stream_is_captured(struct hostcuda_stream *stream)
{
    return atomic_load_explicit(&stream->capture, memory_order_acquire) != NULL;
}

/*
 * Adds work to the capture of the stream, as a node behind the stream's tips that becomes the new tip. Takes what the
 * work owns, also on failure. Errors: cudaErrorStreamCaptureInvalidated, cudaErrorMemoryAllocation.
 */
cudaError_t hostcuda_capture_add(struct hostcuda_stream *stream, struct hostcuda_work *work);

/*
 * Refuses what a capture cannot hold. On a captured stream: invalidates the capture, cudaErrorStreamCaptureUnsupported.
 * On a legacy stream that would have to wait for a captured stream: invalidates the capture of that stream,
 * cudaErrorStreamCaptureImplicit.
 */
cudaError_t hostcuda_capture_refuse(struct hostcuda_stream *stream);

/* Does only the second half of hostcuda_capture_refuse. */
cudaError_t hostcuda_capture_refuse_implicit(struct hostcuda_stream *stream);

/*
 * Refuses, as the modes of the capture and of the calling thread demand, a call that no capture sees although it may
 * depend on it (allocations, queries): cudaErrorStreamCaptureUnsupported, and the capture is invalidated.
 */
cudaError_t hostcuda_capture_unsafe(void);

/*
 * Refuses a call about a whole device while streams of the device are captured: cudaErrorStreamCaptureUnsupported, and
 * its captures are invalidated.
 */
cudaError_t hostcuda_capture_refuse_device(int device);

/*
 * Takes a stream that is being destroyed out of its capture, which is invalid from then on. If the stream began the
 * capture, the capture ends.
 */
void hostcuda_capture_forget(struct hostcuda_stream *stream);

/* The part of an event that says where in a capture it was recorded. Guarded by the lock of graphs. */
struct hostcuda_captured {
    struct hostcuda_capture *capture; /* owned reference; NULL: not captured */
    struct hostcuda_node **tips;      /* owned array */
    size_t tip_count;
};

/* Records an event in a captured stream. */
cudaError_t hostcuda_capture_record(struct hostcuda_stream *stream, struct hostcuda_captured *at);

/* Makes a stream wait for a captured event, which joins the stream to the capture. */
cudaError_t hostcuda_capture_follow(struct hostcuda_stream *stream, const struct hostcuda_captured *at);

/*
 * Refuses the wait of a captured stream for an event outside its capture: cudaErrorStreamCaptureIsolation, and the
 * capture is invalidated.
 */
cudaError_t hostcuda_capture_isolate(struct hostcuda_stream *stream);

/*
 * Refuses an event that was recorded in a capture, ended or not: cudaErrorCapturedEvent; a capture under way is
 * invalidated.
 */
cudaError_t hostcuda_capture_refuse_event(const struct hostcuda_captured *at);
void hostcuda_captured_clear(struct hostcuda_captured *at);

#endif
