/*
 * launch.c: launching an executable graph: its steps become operations of streams, in an order that respects the edges.
 * Lane 0 is the stream of the launch; every other lane is a stream of the executable graph, held between a mark at the
 * start and one at the end. An edge between two lanes is a mark as well. So a launch uses only streams and marks, and a
 * step that hangs holds back exactly the steps that depend on it. A launch waits for the previous launch of the same
 * executable graph.
 *
 * All operations of a launch are made before the first is queued, and each stream takes its own in one go: a launch
 * that fails for want of memory has not begun, so there are no steps of it that run, no memory of it that counts, and
 * no events that stand for it.
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
    bool *begins;                    /* likewise: it begins a life of its memory */
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
    free(launch->begins);
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

/* A launch, with the marks of its steps. NULL without memory. */
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
    launch->begins = calloc(body->count + 1, sizeof(*launch->begins));
    bool is_done = launch->places && launch->begins;
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

/* No step will run: who waits for an event of the launch does not wait for ever. */
static void withdraw(struct hostcuda_launch *launch)
{
    for (size_t i = 0; i < launch->body->count; i++) {
        if (launch->body->steps[i].node->work.type == cudaGraphNodeTypeEventRecord) {
            hostcuda_mark_close(launch->places[i].event);
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

/* Takes an operation; NULL: there was no memory for it. */
static cudaError_t add(struct hostcuda_chain *chain, struct hostcuda_op *op)
{
    if (!op) {
        return cudaErrorMemoryAllocation;
    }
    *chain->tail = op;
    chain->tail = &op->next;
    chain->count++;
    return cudaSuccess;
}

static void drop(struct hostcuda_chain *chain)
{
    for (struct hostcuda_op *op = chain->head, *next; op; op = next) {
        next = op->next;
        if (op->run == run_step) {
            launch_put(op->arg.step.launch);
        } else {
            hostcuda_mark_put(op->arg.mark);
        }
        free(op);
    }
}

static struct hostcuda_op *step_op(struct hostcuda_launch *launch, size_t index)
{
    struct hostcuda_op *op = calloc(1, sizeof(*op));
    if (op) {
        op->run = run_step;
        op->arg.step.launch = launch;
        op->arg.step.index = index;
        atomic_fetch_add_explicit(&launch->refs, 1, memory_order_relaxed);
    }
    return op;
}

static cudaError_t add_step(struct hostcuda_launch *launch, size_t index, struct hostcuda_chain *chain)
{
    const struct hostcuda_step *step = &launch->body->steps[index];
    cudaError_t error = cudaSuccess;
    for (size_t k = 0; k < step->before_count && !error; k++) {
        if (launch->body->steps[step->before[k]].lane != step->lane) {
            error = add(chain, hostcuda_op_wait(launch->places[step->before[k]].watch));
        }
    }
    if (!error) {
        error = add(chain, step_op(launch, index));
    }
    return error || !step->is_watched ? error : add(chain, hostcuda_op_close(launch->places[index].watch));
}

/* Lets the other lanes begin behind what the first one holds. */
static cudaError_t fork_lanes(struct hostcuda_chain *lanes, size_t count)
{
    struct hostcuda_mark *mark = hostcuda_mark_new();
    cudaError_t error = mark ? add(&lanes[0], hostcuda_op_close(mark)) : cudaErrorMemoryAllocation;
    for (size_t i = 1; i < count && !error; i++) {
        error = add(&lanes[i], hostcuda_op_wait(mark));
    }
    hostcuda_mark_put(mark);
    return error;
}

/* Lets the first lane end behind the others. */
static cudaError_t join_lanes(struct hostcuda_chain *lanes, size_t count)
{
    cudaError_t error = cudaSuccess;
    for (size_t i = 1; i < count && !error; i++) {
        struct hostcuda_mark *mark = hostcuda_mark_new();
        error = mark ? add(&lanes[i], hostcuda_op_close(mark)) : cudaErrorMemoryAllocation;
        if (!error) {
            error = add(&lanes[0], hostcuda_op_wait(mark));
        }
        hostcuda_mark_put(mark);
    }
    return error;
}

/* Makes all operations of the launch; `last` is reached at its end. */
static cudaError_t lay_out(const struct hostcuda_exec *exec, struct hostcuda_launch *launch,
                           struct hostcuda_chain *lanes, size_t count, struct hostcuda_mark *last)
{
    const struct hostcuda_body *body = launch->body;
    cudaError_t error = cudaSuccess;
    if (exec->last && !hostcuda_mark_reached(exec->last)) {
        error = add(&lanes[0], hostcuda_op_wait(exec->last));
    }
    if (!error && count > 1) {
        error = fork_lanes(lanes, count);
    }
    for (size_t i = 0; i < body->count && !error; i++) {
        error = add_step(launch, i, &lanes[body->steps[i].lane]);
    }
    if (!error) {
        error = join_lanes(lanes, count);
    }
    return error ? error : add(&lanes[0], hostcuda_op_close(last));
}

/* Queues all lanes, or nothing. Takes the operations. */
static cudaError_t submit(struct hostcuda_exec *exec, struct hostcuda_launch *launch, struct hostcuda_stream *stream,
                          struct hostcuda_chain *lanes, size_t count)
{
    cudaError_t error = hostcuda_stream_ready(stream);
    for (size_t i = 1; i < count && !error; i++) {
        error = hostcuda_stream_ready(exec->lanes[i - 1]);
    }
    if (!error) {
        error = hostcuda_graph_memory_launch(launch->body, exec->flags & cudaGraphInstantiateFlagAutoFreeOnLaunch,
                                             launch->begins);
    }
    if (error) {
        return error;
    }
    announce(launch);
    error = hostcuda_stream_submit_chain(stream, &lanes[0]);
    if (error) {
        withdraw(launch);
        hostcuda_graph_memory_unlaunch(launch->body, launch->begins);
        return error;
    }
    lanes[0] = (struct hostcuda_chain){.head = NULL};
    for (size_t i = 1; i < count; i++) { /* they are of this graph alone, and their workers run */
        (void)hostcuda_stream_submit_chain(exec->lanes[i - 1], &lanes[i]);
        lanes[i] = (struct hostcuda_chain){.head = NULL};
    }
    return cudaSuccess;
}

static cudaError_t queue(struct hostcuda_exec *exec, struct hostcuda_launch *launch, struct hostcuda_stream *stream)
{
    size_t count = launch->body->lanes ? launch->body->lanes : 1;
    struct hostcuda_chain *lanes = calloc(count, sizeof(*lanes));
    struct hostcuda_mark *last = hostcuda_mark_new();
    cudaError_t error = lanes && last ? cudaSuccess : cudaErrorMemoryAllocation;
    for (size_t i = 0; lanes && i < count; i++) {
        lanes[i].tail = &lanes[i].head;
    }
    if (!error) {
        error = lay_out(exec, launch, lanes, count, last);
    }
    if (!error) {
        error = submit(exec, launch, stream, lanes, count);
    }
    for (size_t i = 0; lanes && i < count; i++) {
        drop(&lanes[i]);
    }
    free(lanes);
    if (error) {
        hostcuda_mark_put(last);
        return error;
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
        error = queue(exec, launch, stream);
    }
    pthread_mutex_unlock(&exec->lock);
    launch_put(launch);
    return error;
}
