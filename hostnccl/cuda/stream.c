/*
 * stream.c: streams: a queue and a worker thread each. The worker starts with the first operation, runs operations in
 * order outside every lock, and sleeps on a condition variable when there is none. It is detached: closing a stream
 * only tells the worker to leave once it has drained the queue.
 *
 * A pool of workers was rejected: an operation may wait without limit for a stream of another process, as a collective
 * does, so a bounded pool would add deadlocks that CUDA does not have.
 *
 * The legacy default stream is ordered with every blocking stream of its device, both ways. That order is made when an
 * operation is enqueued, under device.order: a mark in each stream that has something new, and a wait for it in the
 * other.
 */
#include "hostnccl/cuda/stream.h"

#include <stdlib.h>
#include <time.h>

enum { WORKER_STACK_BYTES = 2 << 20 };

static _Atomic unsigned long long next_id = 1;

static void run_mark(struct hostcuda_op *op)
{
    hostcuda_mark_close(op->arg.mark);
    hostcuda_mark_put(op->arg.mark);
}

static void run_wait(struct hostcuda_op *op)
{
    hostcuda_mark_wait(op->arg.mark);
    hostcuda_mark_put(op->arg.mark);
}

static void stream_release(struct hostcuda_handle *handle)
{
    struct hostcuda_stream *stream = (struct hostcuda_stream *)handle;
    free(stream->tips);
    pthread_cond_destroy(&stream->work);
    pthread_mutex_destroy(&stream->lock);
    free(stream);
}

struct hostcuda_stream *hostcuda_stream_new(int device, unsigned int flags, int priority)
{
    struct hostcuda_stream *stream = calloc(1, sizeof(*stream));
    if (!stream) {
        return NULL;
    }
    atomic_init(&stream->handle.refs, 2); /* the owner's and the device list's */
    stream->handle.release = stream_release;
    stream->device = device;
    stream->flags = flags;
    stream->priority = priority;
    stream->id = atomic_fetch_add(&next_id, 1);
    stream->tail = &stream->head;
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->work, NULL);

    struct hostcuda_device *on = hostcuda_device_of(device);
    pthread_mutex_lock(&on->order);
    stream->next = on->streams;
    on->streams = stream;
    pthread_mutex_unlock(&on->order);
    return stream;
}

/* Takes a stream that is drained and closed out of its device: no stream has to be ordered behind it any more. */
static void leave_device(struct hostcuda_stream *stream)
{
    struct hostcuda_device *on = hostcuda_device_of(stream->device);
    pthread_mutex_lock(&on->order);
    for (struct hostcuda_stream **link = &on->streams; *link; link = &(*link)->next) {
        if (*link == stream) {
            *link = stream->next;
            break;
        }
    }
    pthread_mutex_unlock(&on->order);
    hostcuda_stream_put(stream);
}

void hostcuda_stream_close(struct hostcuda_stream **owned)
{
    struct hostcuda_stream *stream = *owned;
    *owned = NULL;
    pthread_mutex_lock(&stream->lock);
    bool has_worker = stream->has_worker;
    stream->closing = true;
    pthread_cond_signal(&stream->work);
    pthread_mutex_unlock(&stream->lock);
    if (!has_worker) {
        leave_device(stream);
    }
    hostcuda_stream_put(stream);
}

void hostcuda_stream_put(struct hostcuda_stream *stream)
{
    hostcuda_handle_put(&stream->handle);
}

static void *worker(void *argument)
{
    struct hostcuda_stream *stream = argument;
    struct hostcuda_thread *self = hostcuda_self();
    self->is_worker = true;
    self->device = stream->device;

    pthread_mutex_lock(&stream->lock);
    for (;;) {
        struct hostcuda_op *op = stream->head;
        if (!op) {
            if (stream->closing) {
                break;
            }
            pthread_cond_wait(&stream->work, &stream->lock);
            continue;
        }
        stream->head = op->next;
        if (!stream->head) {
            stream->tail = &stream->head;
        }
        /*
         * A thread woken by a mark may ask at once whether the stream is idle, so the mark itself does not count as
         * work.
         */
        bool is_mark = op->run == run_mark;
        stream->done += is_mark;
        stream->running = op;
        pthread_mutex_unlock(&stream->lock);
        op->run(op);
        pthread_mutex_lock(&stream->lock);
        stream->running = NULL;
        free(op);
        stream->done += !is_mark;
    }
    stream->has_worker = false;
    pthread_mutex_unlock(&stream->lock);
    leave_device(stream);
    return NULL;
}

void hostcuda_block_signals(sigset_t *before)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF};
    sigset_t all;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
        sigdelset(&all, own[i]);
    }
    pthread_sigmask(SIG_BLOCK, &all, before);
}

static cudaError_t start_worker(struct hostcuda_stream *stream)
{
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t before;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, WORKER_STACK_BYTES);
    hostcuda_block_signals(&before);
    int rc = pthread_create(&thread, &attr, worker, stream);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    stream->has_worker = rc == 0;
    return rc ? cudaErrorMemoryAllocation : cudaSuccess;
}

/* With stream->lock held, as the two below. */
static cudaError_t need_worker(struct hostcuda_stream *stream)
{
    return stream->has_worker ? cudaSuccess : stream->closing ? cudaErrorInvalidResourceHandle : start_worker(stream);
}

static cudaError_t push_chain(struct hostcuda_stream *stream, const struct hostcuda_chain *chain)
{
    cudaError_t error = need_worker(stream);
    if (!error && chain->count) {
        *stream->tail = chain->head;
        stream->tail = chain->tail;
        stream->pushed += chain->count;
        pthread_cond_signal(&stream->work);
    }
    return error;
}

static cudaError_t push(struct hostcuda_stream *stream, struct hostcuda_op *op)
{
    const struct hostcuda_chain one = {.head = op, .tail = &op->next, .count = 1};
    op->next = NULL;
    return push_chain(stream, &one);
}

/* Makes the operation of a mark; the operation takes a reference. */
static struct hostcuda_op *mark_op(void (*run)(struct hostcuda_op *), struct hostcuda_mark *mark)
{
    struct hostcuda_op *op = calloc(1, sizeof(*op));
    if (op) {
        op->run = run;
        op->arg.mark = hostcuda_mark_ref(mark);
    }
    return op;
}

struct hostcuda_op *hostcuda_op_close(struct hostcuda_mark *mark)
{
    return mark_op(run_mark, mark);
}

struct hostcuda_op *hostcuda_op_wait(struct hostcuda_mark *mark)
{
    return mark_op(run_wait, mark);
}

static cudaError_t push_mark(struct hostcuda_stream *stream, void (*run)(struct hostcuda_op *),
                             struct hostcuda_mark *mark)
{
    struct hostcuda_op *op = mark_op(run, mark);
    if (!op) {
        return cudaErrorMemoryAllocation;
    }
    cudaError_t error = push(stream, op);
    if (error) {
        hostcuda_mark_put(op->arg.mark);
        free(op);
    }
    return error;
}

static bool is_busy(const struct hostcuda_stream *stream)
{
    return stream->pushed != stream->done;
}

/* Opens one place of the mark in a stream that is busy; leaves an idle one alone. */
static cudaError_t mark_if_busy(struct hostcuda_stream *stream, struct hostcuda_mark *mark)
{
    cudaError_t error = cudaSuccess;
    pthread_mutex_lock(&stream->lock);
    if (is_busy(stream)) {
        hostcuda_mark_open(mark);
        error = push_mark(stream, run_mark, mark);
        if (error) {
            hostcuda_mark_close(mark);
        }
    }
    pthread_mutex_unlock(&stream->lock);
    return error;
}

static bool is_blocking(const struct hostcuda_stream *stream)
{
    return !(stream->flags & cudaStreamNonBlocking);
}

/* Makes the stream wait for a mark, outside the implicit order. Borrows the mark. */
static cudaError_t follow(struct hostcuda_stream *stream, struct hostcuda_mark *mark)
{
    if (hostcuda_mark_reached(mark)) {
        return cudaSuccess;
    }
    pthread_mutex_lock(&stream->lock);
    cudaError_t error = push_mark(stream, run_wait, mark);
    pthread_mutex_unlock(&stream->lock);
    return error;
}

/*
 * Puts the next operation of a blocking stream behind the operations that the legacy order demands. With device.order
 * held.
 */
static cudaError_t order_implicitly(struct hostcuda_device *on, struct hostcuda_stream *stream)
{
    struct hostcuda_stream *legacy = on->legacy;
    if (!legacy || (stream != legacy && stream->legacy_seen == legacy->submitted)) {
        return cudaSuccess;
    }
    struct hostcuda_mark *mark = hostcuda_mark_new();
    if (!mark) {
        return cudaErrorMemoryAllocation;
    }
    cudaError_t error = cudaSuccess;
    if (stream != legacy) {
        error = mark_if_busy(legacy, mark);
        stream->legacy_seen = legacy->submitted;
    } else {
        for (struct hostcuda_stream *other = on->streams; other && !error; other = other->next) {
            if (other != legacy && is_blocking(other) && other->seen_by_legacy != other->submitted) {
                error = mark_if_busy(other, mark);
                other->seen_by_legacy = other->submitted;
            }
        }
    }
    hostcuda_mark_close(mark);
    if (!error) {
        error = follow(stream, mark);
    }
    hostcuda_mark_put(mark);
    return error;
}

/* Runs `append` on the stream with its lock held, behind its implicit predecessors. */
static cudaError_t in_order(struct hostcuda_stream *stream, cudaError_t (*append)(struct hostcuda_stream *, void *),
                            void *what)
{
    struct hostcuda_device *on = is_blocking(stream) ? hostcuda_device_of(stream->device) : NULL;
    cudaError_t error = cudaSuccess;
    if (on) {
        pthread_mutex_lock(&on->order);
        error = order_implicitly(on, stream);
    }
    if (!error) {
        pthread_mutex_lock(&stream->lock);
        error = append(stream, what);
        pthread_mutex_unlock(&stream->lock);
    }
    if (on) {
        stream->submitted++;
        pthread_mutex_unlock(&on->order);
    }
    return error;
}

static cudaError_t append_op(struct hostcuda_stream *stream, void *op)
{
    return push(stream, op);
}

static cudaError_t append_mark(struct hostcuda_stream *stream, void *mark)
{
    if (is_busy(stream)) {
        return push_mark(stream, run_mark, mark);
    }
    hostcuda_mark_close(mark);
    return cudaSuccess;
}

cudaError_t hostcuda_stream_submit(struct hostcuda_stream *stream, struct hostcuda_op *op)
{
    return in_order(stream, append_op, op);
}

static cudaError_t append_chain(struct hostcuda_stream *stream, void *chain)
{
    return push_chain(stream, chain);
}

static cudaError_t append_nothing(struct hostcuda_stream *stream, void *unused)
{
    (void)unused;
    return need_worker(stream);
}

cudaError_t hostcuda_stream_ready(struct hostcuda_stream *stream)
{
    return in_order(stream, append_nothing, NULL);
}

cudaError_t hostcuda_stream_submit_chain(struct hostcuda_stream *stream, struct hostcuda_chain *chain)
{
    return in_order(stream, append_chain, chain);
}

static void run_work(struct hostcuda_op *op)
{
    hostcuda_work_run(&op->arg.work.work, op->arg.work.instance);
    hostcuda_work_drop(&op->arg.work.work);
    free(op->arg.work.staged);
}

cudaError_t hostcuda_stream_do(struct hostcuda_stream *stream, struct hostcuda_work *work)
{
    if (hostcuda_stream_is_captured(stream)) {
        return hostcuda_capture_add(stream, work);
    }
    cudaError_t error = hostcuda_capture_refuse_implicit(stream);
    struct hostcuda_op *op = error ? NULL : calloc(1, sizeof(*op));
    if (!op) {
        hostcuda_work_drop(work);
        return error ? error : cudaErrorMemoryAllocation;
    }
    op->run = run_work;
    op->arg.work.work = *work;
    if (work->type == cudaGraphNodeTypeHost && work->arg.host.how) {
        op->arg.work.instance = work->arg.host.how->prepare(work->arg.host.data);
    }
    error = hostcuda_stream_submit(stream, op);
    if (error) {
        hostcuda_work_drop(work);
        free(op);
    }
    return error;
}

cudaError_t hostcuda_stream_copy(struct hostcuda_stream *stream, const struct hostcuda_copy *copy, void *staged)
{
    struct hostcuda_op *op = calloc(1, sizeof(*op));
    cudaError_t error = cudaErrorMemoryAllocation;
    if (op) {
        op->run = run_work;
        op->arg.work.work = (struct hostcuda_work){.type = cudaGraphNodeTypeMemcpy, .arg.copy = *copy};
        op->arg.work.staged = staged;
        error = hostcuda_stream_submit(stream, op);
    }
    if (error) {
        free(staged);
        free(op);
    }
    return error;
}

static cudaError_t append_wait(struct hostcuda_stream *stream, void *mark)
{
    return push_mark(stream, run_wait, mark);
}

cudaError_t hostcuda_stream_follow(struct hostcuda_stream *stream, struct hostcuda_mark *mark)
{
    return hostcuda_mark_reached(mark) ? cudaSuccess : in_order(stream, append_wait, mark);
}

cudaError_t hostcuda_stream_record(struct hostcuda_stream *stream, struct hostcuda_mark *mark)
{
    return in_order(stream, append_mark, mark);
}

cudaError_t hostcuda_stream_synchronize(struct hostcuda_stream *stream)
{
    struct hostcuda_mark *mark = hostcuda_mark_new();
    if (!mark) {
        return cudaErrorMemoryAllocation;
    }
    cudaError_t error = hostcuda_stream_record(stream, mark);
    if (!error) {
        hostcuda_mark_wait(mark);
    }
    hostcuda_mark_put(mark);
    return error ? error : hostcuda_fault();
}

bool hostcuda_stream_is_busy(struct hostcuda_stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    bool busy = is_busy(stream);
    pthread_mutex_unlock(&stream->lock);
    return busy;
}

bool hostcuda_stream_is_idle(struct hostcuda_stream *stream)
{
    struct hostcuda_device *on = hostcuda_device_of(stream->device);
    bool busy = hostcuda_stream_is_busy(stream);
    if (!busy && on->legacy == stream) {
        pthread_mutex_lock(&on->order);
        for (struct hostcuda_stream *other = on->streams; other && !busy; other = other->next) {
            busy = is_blocking(other) && hostcuda_stream_is_busy(other);
        }
        pthread_mutex_unlock(&on->order);
    }
    return !busy;
}

/* A mark behind everything that was enqueued on the device. Returns owned. */
static cudaError_t mark_device(int device, struct hostcuda_mark **out)
{
    struct hostcuda_device *on = hostcuda_device_of(device);
    struct hostcuda_mark *mark = hostcuda_mark_new();
    if (!mark) {
        return cudaErrorMemoryAllocation;
    }
    cudaError_t error = cudaSuccess;
    pthread_mutex_lock(&on->order);
    for (struct hostcuda_stream *stream = on->streams; stream && !error; stream = stream->next) {
        error = mark_if_busy(stream, mark);
    }
    pthread_mutex_unlock(&on->order);
    hostcuda_mark_close(mark);
    if (error) {
        hostcuda_mark_put(mark);
        return error;
    }
    *out = mark;
    return cudaSuccess;
}

cudaError_t hostcuda_device_drain(int device)
{
    struct hostcuda_mark *mark;
    cudaError_t error = mark_device(device, &mark);
    if (error) {
        return error;
    }
    hostcuda_mark_wait(mark);
    hostcuda_mark_put(mark);
    return hostcuda_fault();
}

void hostcuda_device_settle(int device, unsigned int at_most_ms)
{
    struct hostcuda_mark *mark;
    const struct timespec a_millisecond = {.tv_nsec = 1000000};
    if (mark_device(device, &mark)) {
        return;
    }
    for (unsigned int i = 0; i < at_most_ms && !hostcuda_mark_reached(mark); i++) {
        nanosleep(&a_millisecond, NULL);
    }
    hostcuda_mark_put(mark);
}
