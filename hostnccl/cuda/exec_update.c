/*
 * exec_update.c: changing an executable graph: as a whole, by a graph of the same shape, or one node at a time. In both
 * cases a new frozen graph takes the place of the old one, so launches from before the change run unchanged.
 *
 * Two graphs have the same shape when their steps, sorted, have the same kinds and the same edges. The vendor documents
 * that it pairs nodes in much the same way. A search for any matching of two graphs was rejected.
 */
#include "hostnccl/cuda/graph_node.h"
#include "hostnccl/cuda/memory.h"

#include <stdlib.h>

/* Whether two addresses are memory of one kind; a side of a copy must keep its kind. */
static bool is_same_memory(const void *a, const void *b)
{
    struct hostcuda_range first, second;
    bool has_first = hostcuda_range_find(a, 1, &first), has_second = hostcuda_range_find(b, 1, &second);
    return has_first == has_second && (!has_first || (first.type == second.type && first.device == second.device));
}

/* Whether a step may become another. */
static enum cudaGraphExecUpdateResult compare_step(const struct hostcuda_work *old, const struct hostcuda_work *new)
{
    if (old->type != new->type) {
        return cudaGraphExecUpdateErrorNodeTypeChanged;
    }
    bool is_same = true;
    if (old->type == cudaGraphNodeTypeMemcpy) {
        is_same = is_same_memory(old->arg.copy.src, new->arg.copy.src) &&
                  is_same_memory(old->arg.copy.dst, new->arg.copy.dst);
    } else if (old->type == cudaGraphNodeTypeMemset) {
        bool is_plane = old->arg.fill.height > 1 || new->arg.fill.height > 1;
        is_same =
            is_same_memory(old->arg.fill.dst, new->arg.fill.dst) &&
            (!is_plane || (old->arg.fill.width == new->arg.fill.width && old->arg.fill.height == new->arg.fill.height));
    } else if (old->type == cudaGraphNodeTypeMemAlloc || old->type == cudaGraphNodeTypeMemFree) {
        is_same = old->arg.memory == new->arg.memory;
    } else if (old->type == HOSTCUDA_NODE_BATCH) {
        is_same = old->arg.batch.count == new->arg.batch.count;
    }
    return is_same ? cudaGraphExecUpdateSuccess : cudaGraphExecUpdateErrorParametersChanged;
}

/* Compares the edges into one step, and its work. */
static void compare_at(const struct hostcuda_body *old, const struct hostcuda_body *new, size_t i,
                       cudaGraphExecUpdateResultInfo *info)
{
    const struct hostcuda_step *a = &old->steps[i], *b = &new->steps[i];
    if (a->before_count != b->before_count) {
        info->result = cudaGraphExecUpdateErrorTopologyChanged;
    }
    for (size_t k = 0; k < a->before_count && !info->result; k++) {
        if (a->before[k] != b->before[k]) {
            info->result = cudaGraphExecUpdateErrorTopologyChanged;
            info->errorFromNode = (cudaGraphNode_t) new->steps[b->before[k]].node->origin;
        }
    }
    if (!info->result) {
        info->result = compare_step(&a->node->work, &b->node->work);
    }
    if (info->result) {
        info->errorNode = (cudaGraphNode_t)b->node->origin;
    }
}

/* With exec->lock. Takes the new body on success. */
static cudaError_t replace(struct hostcuda_exec *exec, struct hostcuda_body *new, cudaGraphExecUpdateResultInfo *info)
{
    struct hostcuda_body *old = exec->body;
    info->result = old->count == new->count ? cudaGraphExecUpdateSuccess : cudaGraphExecUpdateErrorTopologyChanged;
    for (size_t i = 0; i < new->count && !info->result; i++) {
        compare_at(old, new, i, info);
    }
    if (info->result) {
        return cudaErrorGraphExecUpdateFailure;
    }
    /* The program continues to name nodes of the graph that was instantiated. */
    for (size_t i = 0; i < new->count; i++) {
        new->steps[i].node->origin = old->steps[i].node->origin;
        new->steps[i].node->is_off = old->steps[i].node->is_off;
    }
    exec->body = new;
    hostcuda_body_put(old);
    return cudaSuccess;
}

/* Freezes a copy of the graph, with the lock of graphs held. */
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

static cudaError_t enter_with(cudaGraphExec_t handle, struct hostcuda_exec **exec)
{
    cudaError_t error = hostcuda_enter_work();
    *exec = error ? NULL : hostcuda_exec_get(handle);
    if (!error && !*exec) {
        error = cudaErrorInvalidValue;
    }
    if (!error) {
        pthread_mutex_lock(&(*exec)->lock);
    }
    return error;
}

static void leave(struct hostcuda_exec *exec)
{
    pthread_mutex_unlock(&exec->lock);
    hostcuda_handle_put(&exec->handle);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphExecUpdate(cudaGraphExec_t handle, cudaGraph_t graph_handle,
                                                cudaGraphExecUpdateResultInfo *info)
{
    struct hostcuda_exec *exec;
    struct hostcuda_body *new = NULL;
    if (!info) {
        return hostcuda_leave(cudaErrorInvalidValue);
    }
    *info = (cudaGraphExecUpdateResultInfo){.result = cudaGraphExecUpdateError};
    cudaError_t error = enter_with(handle, &exec);
    if (error) {
        return hostcuda_leave(error);
    }
    pthread_mutex_lock(&hostcuda_graph_lock);
    struct hostcuda_graph *graph = hostcuda_graph_of(graph_handle);
    error = graph && !graph->captures ? freeze(&new, graph, false) : cudaErrorInvalidValue;
    pthread_mutex_unlock(&hostcuda_graph_lock);
    if (!error) {
        error = replace(exec, new, info);
        if (error) {
            hostcuda_body_put(new);
        }
    }
    leave(exec);
    return hostcuda_leave(error);
}

/* Finds the step of a node of the instantiated graph; NULL when there is none of that kind. */
static struct hostcuda_node *find(const struct hostcuda_body *body, cudaGraphNode_t node, int type)
{
    for (size_t i = 0; i < body->count; i++) {
        struct hostcuda_node *own = body->steps[i].node;
        if (own->origin == (struct hostcuda_node *)node && own->work.type == type) {
            return own;
        }
    }
    return NULL;
}

/* Gives one node of the executable graph other work, from the next launch on. Takes what the work owns. */
static cudaError_t set(cudaGraphExec_t handle, cudaGraphNode_t node, struct hostcuda_work *work, cudaError_t made)
{
    struct hostcuda_exec *exec;
    struct hostcuda_body *new = NULL;
    cudaError_t error = made ? made : enter_with(handle, &exec);
    if (error) {
        if (!made) {
            hostcuda_work_drop(work);
        }
        return hostcuda_leave(error);
    }
    pthread_mutex_lock(&hostcuda_graph_lock);
    error = freeze(&new, exec->body->graph, true);
    struct hostcuda_node *own = error ? NULL : find(new, node, work->type);
    if (!error && (!own || compare_step(&own->work, work))) {
        error = cudaErrorInvalidValue;
    }
    if (!error) {
        hostcuda_work_drop(&own->work);
        own->work = *work;
    } else {
        hostcuda_work_drop(work);
    }
    pthread_mutex_unlock(&hostcuda_graph_lock);
    struct hostcuda_body *gone = error ? new : exec->body;
    if (!error) {
        exec->body = new;
    }
    hostcuda_body_put(gone);
    leave(exec);
    return hostcuda_leave(error);
}

/* Only kernels, copies and fills can be switched off. With exec->lock. */
static struct hostcuda_node *find_switch(const struct hostcuda_exec *exec, cudaGraphNode_t node)
{
    struct hostcuda_node *own = find(exec->body, node, cudaGraphNodeTypeKernel);
    own = own ? own : find(exec->body, node, cudaGraphNodeTypeMemcpy);
    return own ? own : find(exec->body, node, cudaGraphNodeTypeMemset);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphNodeSetEnabled(cudaGraphExec_t handle, cudaGraphNode_t node, unsigned int is_on)
{
    struct hostcuda_exec *exec;
    struct hostcuda_body *new = NULL;
    cudaError_t error = enter_with(handle, &exec);
    if (error) {
        return hostcuda_leave(error);
    }
    struct hostcuda_node *own = find_switch(exec, node);
    error = own ? cudaSuccess : cudaErrorInvalidValue;
    if (!error && own->is_off == !is_on) {
        leave(exec);
        return cudaSuccess;
    }
    if (!error) {
        pthread_mutex_lock(&hostcuda_graph_lock);
        error = freeze(&new, exec->body->graph, true);
        pthread_mutex_unlock(&hostcuda_graph_lock);
    }
    if (!error) {
        struct hostcuda_body *old = exec->body;
        exec->body = new;
        find_switch(exec, node)->is_off = !is_on;
        hostcuda_body_put(old);
    }
    leave(exec);
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphNodeGetEnabled(cudaGraphExec_t handle, cudaGraphNode_t node, unsigned int *is_on)
{
    struct hostcuda_exec *exec;
    cudaError_t error = is_on ? enter_with(handle, &exec) : cudaErrorInvalidValue;
    if (error) {
        return hostcuda_leave(error);
    }
    const struct hostcuda_node *own = find_switch(exec, node);
    if (own) {
        *is_on = !own->is_off;
    }
    leave(exec);
    return hostcuda_leave(own ? cudaSuccess : cudaErrorInvalidValue);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphExecHostNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                           const struct cudaHostNodeParams *params)
{
    struct hostcuda_work work;
    cudaError_t made = hostcuda_work_of_host(&work, params);
    return set(exec, node, &work, made);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                             const struct cudaKernelNodeParams *params)
{
    struct hostcuda_work work;
    cudaError_t made = hostcuda_work_of_kernel(&work, params);
    return set(exec, node, &work, made);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphExecMemcpyNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                             const struct cudaMemcpy3DParms *params)
{
    struct hostcuda_work work;
    cudaError_t made = hostcuda_work_of_copy(&work, params);
    return set(exec, node, &work, made);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t exec, cudaGraphNode_t node, void *dst,
                                                               const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
    struct hostcuda_work work;
    cudaError_t made = hostcuda_work_of_line(&work, dst, src, bytes, kind);
    return set(exec, node, &work, made);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                             const struct cudaMemsetParams *params)
{
    struct hostcuda_work work;
    cudaError_t made = hostcuda_work_of_fill(&work, params);
    return set(exec, node, &work, made);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphExecEventRecordNodeSetEvent(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                                 cudaEvent_t event)
{
    struct hostcuda_work work;
    cudaError_t made = hostcuda_work_of_event(&work, cudaGraphNodeTypeEventRecord, event);
    return set(exec, node, &work, made);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphExecEventWaitNodeSetEvent(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                               cudaEvent_t event)
{
    struct hostcuda_work work;
    cudaError_t made = hostcuda_work_of_event(&work, cudaGraphNodeTypeWaitEvent, event);
    return set(exec, node, &work, made);
}
