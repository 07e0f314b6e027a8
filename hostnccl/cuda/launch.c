/*
 * launch.c: launching an executable graph: its steps become operations of streams, in an order that respects the edges.
 * Lane 0 is the stream of the launch; every other lane is a stream of the executable graph, held between a mark at the
 * start and one at the end. An edge between two lanes is a mark as well. So a launch uses only streams and marks, and a
 * step that hangs holds back exactly the steps that depend on it. A launch waits for the previous launch of the same
 * executable graph.
 *
 * An interpreter on the worker of the launch stream was rejected: it would run branches one after the other, and two
 * ranks whose branches come in different orders would hang where a GPU does not.
 */
#include "hostnccl/cuda/graph_memory.h"

#include <stdlib.h>

/* One launch; alive until its last step is done. */
struct hostcuda_launch {
    atomic_int refs;
    struct hostcuda_body *body;
    struct hostcuda_place {
        struct hostcuda_mark *watch; /* reached when the step is done; NULL when no other lane waits for it */
        struct hostcuda_mark *event; /* of a step that records or awaits an event */
        void *instance;              /* of prepared work */
    } * places;                      /* one for each step */
};

static void launch_put(struct hostcuda_launch *launch)
{
    if (!launch || atomic_fetch_sub_explicit(&launch->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    for (size_t i = 0; launch->places && i < launch->body->count; i++) {
        hostcuda_mark_put(launch->places[i].watch);
        hostcuda_mark_put(launch->places[i].event);
    }
    free(launch->places);
    hostcuda_body_put(launch->body);
    free(launch);
}

static void run_step(struct hostcuda_op *op)
{
    struct hostcuda_launch *launch = op->arg.step.launch;
    const struct hostcuda_work *work = &launch->body->steps[op->arg.step.index].node->work;
    struct hostcuda_place *place = &launch->places[op->arg.step.index];
    if (work->type == cudaGraphNodeTypeEventRecord) {
        hostcuda_mark_close(place->event);
    } else if (work->type == cudaGraphNodeTypeWaitEvent) {
        if (place->event) {
            hostcuda_mark_wait(place->event);
        }
    } else if (!launch->body->steps[op->arg.step.index].node->is_off) {
        hostcuda_work_run(work, place->instance);
    }
    launch_put(launch);
}

/* Does everything that can fail for want of memory, before the first step is queued. */
static struct hostcuda_launch *launch_new(struct hostcuda_body *body)
{
    struct hostcuda_launch *launch = calloc(1, sizeof(*launch));
    if (!launch) {
        return NULL;
    }
    atomic_init(&launch->refs, 1);
    launch->body = body;
    atomic_fetch_add_explicit(&body->refs, 1, memory_order_relaxed);
    launch->places = calloc(body->count + 1, sizeof(*launch->places));
    bool is_done = launch->places != NULL;
    for (size_t i = 0; is_done && i < body->count; i++) {
        struct hostcuda_place *place = &launch->places[i];
        if (body->steps[i].is_watched) {
            place->watch = hostcuda_mark_new();
            is_done = place->watch != NULL;
        }
        if (is_done && body->steps[i].node->work.type == cudaGraphNodeTypeEventRecord) {
            place->event = hostcuda_mark_new();
            is_done = place->event != NULL;
        }
    }
    if (!is_done) {
        launch_put(launch);
        return NULL;
    }
    return launch;
}

/*
 * Fixes what the events mean in this launch: a step waits for what its event stood for before the launch, and after the
 * launch an event stands for the launch's own record. Host functions that want to know of the launch are told, in the
 * order of the steps.
 */
static void announce(struct hostcuda_launch *launch)
{
    const struct hostcuda_body *body = launch->body;
    for (size_t i = 0; i < body->count; i++) {
        const struct hostcuda_work *work = &body->steps[i].node->work;
        if (work->type == cudaGraphNodeTypeWaitEvent) {
            launch->places[i].event = hostcuda_event_mark(work->arg.event);
        }
    }
    for (size_t i = 0; i < body->count; i++) {
        const struct hostcuda_work *work = &body->steps[i].node->work;
        if (work->type == cudaGraphNodeTypeEventRecord) {
            hostcuda_event_set(work->arg.event, hostcuda_mark_ref(launch->places[i].event));
        } else if (work->type == cudaGraphNodeTypeHost && work->arg.host.how) {
            launch->places[i].instance = work->arg.host.how->prepare(work->arg.host.data);
        }
    }
}

/* Streams for the lanes beside the launch's own, on its device. */
static cudaError_t make_lanes(struct hostcuda_exec *exec, size_t count, int device)
{
    if (exec->lane_device != device) { /* work that still runs in the old lanes continues */
        while (exec->lane_count) {
            hostcuda_stream_close(&exec->lanes[--exec->lane_count]);
        }
        exec->lane_device = device;
    }
    if (count <= exec->lane_count) {
        return cudaSuccess;
    }
    struct hostcuda_stream **lanes = realloc(exec->lanes, count * sizeof(struct hostcuda_stream *));
    if (!lanes) {
        return cudaErrorMemoryAllocation;
    }
    exec->lanes = lanes;
    while (exec->lane_count < count) {
        lanes[exec->lane_count] = hostcuda_stream_new(device, cudaStreamNonBlocking, 0);
        if (!lanes[exec->lane_count]) {
            return cudaErrorMemoryAllocation;
        }
        exec->lane_count++;
    }
    return cudaSuccess;
}

/* Makes a mark behind everything that the stream holds; returns owned, NULL without memory. */
static struct hostcuda_mark *mark_of(struct hostcuda_stream *stream)
{
    struct hostcuda_mark *mark = hostcuda_mark_new();
    if (mark && hostcuda_stream_record(stream, mark)) {
        hostcuda_mark_put(mark);
        mark = NULL;
    }
    return mark;
}

static cudaError_t follow_stream(struct hostcuda_stream *stream, struct hostcuda_stream *other)
{
    struct hostcuda_mark *mark = mark_of(other);
    cudaError_t error = mark ? hostcuda_stream_follow(stream, mark) : cudaErrorMemoryAllocation;
    hostcuda_mark_put(mark);
    return error;
}

static cudaError_t queue_step(struct hostcuda_launch *launch, size_t index, struct hostcuda_stream *stream)
{
    const struct hostcuda_step *step = &launch->body->steps[index];
    cudaError_t error = cudaSuccess;
    for (size_t k = 0; k < step->before_count && !error; k++) {
        if (launch->body->steps[step->before[k]].lane != step->lane) {
            error = hostcuda_stream_follow(stream, launch->places[step->before[k]].watch);
        }
    }
    struct hostcuda_op *op = error ? NULL : calloc(1, sizeof(*op));
    if (!op) {
        return error ? error : cudaErrorMemoryAllocation;
    }
    op->run = run_step;
    op->arg.step.launch = launch;
    op->arg.step.index = index;
    atomic_fetch_add_explicit(&launch->refs, 1, memory_order_relaxed);
    error = hostcuda_stream_submit(stream, op);
    if (error) {
        launch_put(launch);
        free(op);
    } else if (step->is_watched) {
        error = hostcuda_stream_record(stream, launch->places[index].watch);
    }
    return error;
}

static cudaError_t queue(struct hostcuda_exec *exec, struct hostcuda_launch *launch, struct hostcuda_stream *stream)
{
    const struct hostcuda_body *body = launch->body;
    size_t others = body->lanes ? body->lanes - 1 : 0;
    cudaError_t error = exec->last ? hostcuda_stream_follow(stream, exec->last) : cudaSuccess;
    for (size_t i = 0; i < others && !error; i++) {
        error = follow_stream(exec->lanes[i], stream);
    }
    if (!error) {
        announce(launch);
    }
    for (size_t i = 0; i < body->count && !error; i++) {
        size_t lane = body->steps[i].lane;
        error = queue_step(launch, i, lane ? exec->lanes[lane - 1] : stream);
    }
    for (size_t i = 0; i < others && !error; i++) {
        error = follow_stream(stream, exec->lanes[i]);
    }
    struct hostcuda_mark *last = error ? NULL : mark_of(stream);
    if (!last) {
        return error ? error : cudaErrorMemoryAllocation;
    }
    hostcuda_mark_put(exec->last);
    exec->last = last;
    return cudaSuccess;
}

cudaError_t hostcuda_exec_launch(struct hostcuda_exec *exec, struct hostcuda_stream *stream)
{
    pthread_mutex_lock(&exec->lock);
    struct hostcuda_launch *launch = launch_new(exec->body);
    cudaError_t error = launch ? cudaSuccess : cudaErrorMemoryAllocation;
    if (!error && exec->body->lanes > 1) {
        error = make_lanes(exec, exec->body->lanes - 1, stream->device);
    }
    if (!error) {
        error = hostcuda_graph_memory_launch(exec->body, exec->flags & cudaGraphInstantiateFlagAutoFreeOnLaunch);
    }
    if (!error) {
        error = queue(exec, launch, stream);
    }
    pthread_mutex_unlock(&exec->lock);
    launch_put(launch);
    return error;
}
