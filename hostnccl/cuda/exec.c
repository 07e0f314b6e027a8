/*
 * exec.c: executable graphs: freezing a graph into steps, changing them, and the calls that launch. How a launch runs
 * is in launch.c.
 *
 * A frozen graph is a deep copy, so the program may change or destroy the graph that it came from. Child graphs are
 * unfolded: the steps of a child come after the steps that the child waits for, and an empty step waits for all of
 * them. Steps are dealt to lanes, one lane for each chain of steps that could run beside others: branches of a graph do
 * run beside each other on a GPU, and collectives of different ranks may depend on that.
 */
#include "hostnccl/cuda/graph_memory.h"

#include <stdlib.h>

static bool has_inner(const struct hostcuda_work *work)
{
    return work->type == cudaGraphNodeTypeGraph || work->type == cudaGraphNodeTypeConditional;
}

/* The graph that runs inside a node; NULL: none. */
static const struct hostcuda_graph *inner_of(const struct hostcuda_work *work)
{
    return work->type == cudaGraphNodeTypeGraph ? work->arg.child : hostcuda_condition_body(work);
}

static size_t count_steps(const struct hostcuda_graph *graph)
{
    size_t count = graph->nodes.count;
    for (size_t i = 0; i < graph->nodes.count; i++) {
        const struct hostcuda_work *work = &graph->nodes.items[i]->work;
        const struct hostcuda_graph *inner = has_inner(work) ? inner_of(work) : NULL;
        count += inner ? count_steps(inner) : 0;
    }
    return count;
}

/* Adds the steps of a graph whose roots wait for `outer`; at[] receives the step of each node. */
static cudaError_t unfold(struct hostcuda_body *body, const struct hostcuda_graph *graph, const size_t *outer,
                          size_t outer_count, size_t *at);

/* Adds a step that waits for the steps of the nodes before it. */
static cudaError_t add_step(struct hostcuda_body *body, struct hostcuda_node *node, const size_t *before, size_t count)
{
    size_t *copy = malloc((count + 1) * sizeof(*copy));
    if (!copy) {
        return cudaErrorMemoryAllocation;
    }
    for (size_t i = 0; i < count; i++) {
        copy[i] = before[i];
    }
    body->steps[body->count++] = (struct hostcuda_step){.node = node, .before = copy, .before_count = count};
    return cudaSuccess;
}

/*
 * Adds the steps of a child, then one step that waits for all of the child's last steps (for an empty child: for the
 * steps before the child).
 */
static cudaError_t add_child(struct hostcuda_body *body, struct hostcuda_node *node, const size_t *before, size_t count)
{
    const struct hostcuda_graph *child = inner_of(&node->work);
    if (!child) {
        return add_step(body, node, before, count);
    }
    size_t all = child->nodes.count, ends = 0;
    size_t *at = calloc(all + 1, sizeof(*at)), *last = calloc(all + 1, sizeof(*last));
    unsigned char *goes_on = calloc(all + 1, 1);
    cudaError_t error = at && last && goes_on ? unfold(body, child, before, count, at) : cudaErrorMemoryAllocation;
    for (size_t i = 0; !error && i < all; i++) {
        const struct hostcuda_nodes *inner = &child->nodes.items[i]->before;
        for (size_t k = 0; k < inner->count; k++) {
            goes_on[inner->items[k]->index] = 1;
        }
    }
    for (size_t i = 0; !error && i < all; i++) {
        if (!goes_on[i]) {
            last[ends++] = at[i];
        }
    }
    if (!error) {
        error = all ? add_step(body, node, last, ends) : add_step(body, node, before, count);
    }
    free(at);
    free(last);
    free(goes_on);
    return error;
}

static cudaError_t unfold(struct hostcuda_body *body, const struct hostcuda_graph *graph, const size_t *outer,
                          size_t outer_count, size_t *at)
{
    bool has_cycle;
    struct hostcuda_node **order = hostcuda_graph_sorted(graph, &has_cycle);
    if (!order) {
        return has_cycle ? cudaErrorInvalidValue : cudaErrorMemoryAllocation;
    }
    cudaError_t error = cudaSuccess;
    for (size_t i = 0; i < graph->nodes.count && !error; i++) {
        struct hostcuda_node *node = order[i];
        size_t count = node->before.count;
        size_t *before = malloc((count + outer_count + 1) * sizeof(*before));
        for (size_t k = 0; before && k < count; k++) {
            before[k] = at[node->before.items[k]->index];
        }
        for (size_t k = 0; before && !node->before.count && k < outer_count; k++) {
            before[count++] = outer[k];
        }
        error = !before                  ? cudaErrorMemoryAllocation
                : has_inner(&node->work) ? add_child(body, node, before, count)
                                         : add_step(body, node, before, count);
        at[node->index] = body->count - 1;
        free(before);
    }
    free(order);
    return error;
}

/*
 * Deals steps to lanes: a step continues the lane of the first step before it that no other step continues, or opens a
 * new lane.
 */
static cudaError_t deal_lanes(struct hostcuda_body *body)
{
    bool *goes_on = calloc(body->count + 1, sizeof(*goes_on));
    if (!goes_on) {
        return cudaErrorMemoryAllocation;
    }
    for (size_t i = 0; i < body->count; i++) {
        struct hostcuda_step *step = &body->steps[i];
        size_t k = 0;
        while (k < step->before_count && goes_on[step->before[k]]) {
            k++;
        }
        if (k < step->before_count) {
            goes_on[step->before[k]] = true;
            step->lane = body->steps[step->before[k]].lane;
        } else {
            step->lane = body->lanes++;
        }
    }
    for (size_t i = 0; i < body->count; i++) {
        for (size_t k = 0; k < body->steps[i].before_count; k++) {
            struct hostcuda_step *before = &body->steps[body->steps[i].before[k]];
            before->is_watched = before->is_watched || before->lane != body->steps[i].lane;
        }
    }
    free(goes_on);
    return cudaSuccess;
}

cudaError_t hostcuda_body_new(struct hostcuda_body **out, struct hostcuda_graph *graph)
{
    struct hostcuda_body *body = calloc(1, sizeof(*body));
    size_t *at = calloc(graph->nodes.count + 1, sizeof(*at));
    cudaError_t error = body && at ? cudaSuccess : cudaErrorMemoryAllocation;
    if (!error) {
        body->steps = calloc(count_steps(graph) + 1, sizeof(*body->steps));
        error = body->steps ? unfold(body, graph, NULL, 0, at) : cudaErrorMemoryAllocation;
    }
    if (!error) {
        error = deal_lanes(body);
    }
    free(at);
    if (error) {
        if (body) {
            hostcuda_body_free(body);
        }
        return error;
    }
    atomic_init(&body->refs, 1);
    body->graph = graph;
    *out = body;
    return cudaSuccess;
}

/* Freezes a copy of the graph. */
static cudaError_t freeze(struct hostcuda_body **body, const struct hostcuda_graph *graph, bool keep_origin)
{
    struct hostcuda_graph *copy;
    cudaError_t error = hostcuda_graph_clone(&copy, graph, keep_origin);
    if (!error) {
        error = hostcuda_body_new(body, copy);
        if (error) {
            hostcuda_graph_free(&copy);
        }
    }
    return error;
}

/* A graph with nodes of memory has one instantiation at a time. With the lock of graphs. */
static cudaError_t claim(struct hostcuda_exec *exec, struct hostcuda_graph *graph)
{
    if (!hostcuda_graph_has_memory(graph)) {
        return cudaSuccess;
    }
    if (graph->is_instantiated) {
        return cudaErrorInvalidValue;
    }
    graph->is_instantiated = true;
    exec->memory_of = graph;
    exec->memory_of_number = graph->number;
    return cudaSuccess;
}

static void unclaim(struct hostcuda_exec *exec)
{
    if (!exec->memory_of) {
        return;
    }
    pthread_mutex_lock(&hostcuda_graph_lock);
    struct hostcuda_graph *graph = hostcuda_graph_of((cudaGraph_t)exec->memory_of);
    if (graph && graph->number == exec->memory_of_number) {
        graph->is_instantiated = false;
    }
    pthread_mutex_unlock(&hostcuda_graph_lock);
}

static void exec_release(struct hostcuda_handle *handle)
{
    struct hostcuda_exec *exec = (struct hostcuda_exec *)handle;
    unclaim(exec);
    for (size_t i = 0; i < exec->lane_count; i++) {
        hostcuda_stream_close(&exec->lanes[i]);
    }
    free(exec->lanes);
    hostcuda_body_put(exec->body);
    hostcuda_mark_put(exec->last);
    pthread_mutex_destroy(&exec->lock);
    free(exec);
}

struct hostcuda_exec *hostcuda_exec_get(cudaGraphExec_t handle)
{
    return (struct hostcuda_exec *)hostcuda_handle_get(HOSTCUDA_EXEC, handle);
}

/* Enters, and finds the executable graph; on success the caller puts it back. */
static cudaError_t enter_with(cudaGraphExec_t handle, struct hostcuda_exec **exec)
{
    cudaError_t error = hostcuda_enter_work();
    *exec = error ? NULL : hostcuda_exec_get(handle);
    return error ? error : *exec ? cudaSuccess : cudaErrorInvalidValue;
}

static cudaError_t instantiate(cudaGraphExec_t *out, cudaGraph_t handle, unsigned long long flags)
{
    const unsigned long long known = cudaGraphInstantiateFlagAutoFreeOnLaunch | cudaGraphInstantiateFlagUpload |
                                     cudaGraphInstantiateFlagUseNodePriority;
    cudaError_t error = hostcuda_enter_work();
    if (!error && (!out || flags & ~(known | cudaGraphInstantiateFlagDeviceLaunch))) {
        error = cudaErrorInvalidValue;
    } else if (!error && flags & cudaGraphInstantiateFlagDeviceLaunch) {
        error = cudaErrorNotSupported;
    }
    struct hostcuda_exec *exec = error ? NULL : calloc(1, sizeof(*exec));
    if (!exec) {
        return error ? error : cudaErrorMemoryAllocation;
    }
    atomic_init(&exec->handle.refs, 1);
    exec->handle.release = exec_release;
    exec->flags = flags;
    pthread_mutex_init(&exec->lock, NULL);
    pthread_mutex_lock(&hostcuda_graph_lock);
    struct hostcuda_graph *graph = hostcuda_graph_of(handle);
    error = graph && !graph->captures ? claim(exec, graph) : cudaErrorInvalidValue;
    if (!error) {
        error = freeze(&exec->body, graph, false);
    }
    pthread_mutex_unlock(&hostcuda_graph_lock);
    if (!error) {
        error = hostcuda_handle_add(HOSTCUDA_EXEC, &exec->handle);
    }
    if (error) {
        hostcuda_handle_put(&exec->handle);
        return error;
    }
    *out = (cudaGraphExec_t)exec;
    return cudaSuccess;
}

HOSTCUDA_EXPORT cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    return hostcuda_leave(instantiate(exec, graph, flags));
}

HOSTCUDA_EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph,
                                                          unsigned long long flags)
{
    return hostcuda_leave(instantiate(exec, graph, flags));
}

HOSTCUDA_EXPORT cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t *exec, cudaGraph_t graph,
                                                           cudaGraphInstantiateParams *params)
{
    if (!params) {
        return hostcuda_leave(cudaErrorInvalidValue);
    }
    cudaError_t error = instantiate(exec, graph, params->flags);
    params->errNode_out = NULL;
    params->result_out = !error                           ? cudaGraphInstantiateSuccess
                         : error == cudaErrorInvalidValue ? cudaGraphInstantiateInvalidStructure
                                                          : cudaGraphInstantiateError;
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphExecGetFlags(cudaGraphExec_t handle, unsigned long long *flags)
{
    struct hostcuda_exec *exec;
    cudaError_t error = flags ? enter_with(handle, &exec) : cudaErrorInvalidValue;
    if (!error) {
        *flags = exec->flags;
        hostcuda_handle_put(&exec->handle);
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle)
{
    cudaError_t error = hostcuda_enter_work();
    if (!error) {
        struct hostcuda_handle *gone = hostcuda_handle_remove(HOSTCUDA_EXEC, handle);
        error = gone ? cudaSuccess : cudaErrorInvalidValue;
        hostcuda_handle_put(gone);
    }
    return hostcuda_leave(error);
}

/* There is nothing to upload; the call only checks the handles. */
HOSTCUDA_EXPORT cudaError_t cudaGraphUpload(cudaGraphExec_t handle, cudaStream_t stream_handle)
{
    struct hostcuda_exec *exec;
    struct hostcuda_stream *stream;
    cudaError_t error = enter_with(handle, &exec);
    if (!error) {
        error = hostcuda_stream_get(stream_handle, &stream);
        if (!error) {
            error = hostcuda_capture_refuse(stream);
            hostcuda_stream_put(stream);
        }
        hostcuda_handle_put(&exec->handle);
    }
    return hostcuda_leave(error);
}

/* A launch into a captured stream becomes a child graph of the capture, in which no memory may be. */
static cudaError_t capture_launch(struct hostcuda_exec *exec, struct hostcuda_stream *stream)
{
    struct hostcuda_work work = {.type = cudaGraphNodeTypeGraph};
    if (exec->memory_of) {
        return hostcuda_capture_refuse(stream);
    }
    pthread_mutex_lock(&exec->lock);
    pthread_mutex_lock(&hostcuda_graph_lock);
    cudaError_t error = hostcuda_graph_clone(&work.arg.child, exec->body->graph, true);
    if (!error) {
        work.arg.child->is_child = true;
    }
    pthread_mutex_unlock(&hostcuda_graph_lock);
    pthread_mutex_unlock(&exec->lock);
    return error ? error : hostcuda_capture_add(stream, &work);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream_handle)
{
    struct hostcuda_exec *exec;
    struct hostcuda_stream *stream;
    cudaError_t error = enter_with(handle, &exec);
    if (error) {
        return hostcuda_leave(error);
    }
    error = hostcuda_stream_get(stream_handle, &stream);
    if (!error) {
        error = hostcuda_stream_is_captured(stream) ? capture_launch(exec, stream)
                                                    : hostcuda_capture_refuse_implicit(stream);
        if (!error && !hostcuda_stream_is_captured(stream)) {
            error = hostcuda_exec_launch(exec, stream);
        }
        hostcuda_stream_put(stream);
    }
    hostcuda_handle_put(&exec->handle);
    return hostcuda_leave(error);
}
