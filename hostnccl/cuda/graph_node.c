/*
 * graph_node.c: the calls that add nodes of each kind to a graph, say what a node does, and change it. The parameters
 * of every kind are checked here, so that a node that exists can be run.
 */
#include "hostnccl/cuda/graph_node.h"

#include "hostnccl/cuda/graph_memory.h"
#include "hostnccl/cuda/kernel.h"

#include <stdlib.h>

/* Adds a node behind the named ones. Takes what the work owns. With the lock held. */
static cudaError_t add(cudaGraphNode_t *out, struct hostcuda_graph *graph, const cudaGraphNode_t *before, size_t count,
                       struct hostcuda_work *work)
{
    struct hostcuda_node *node;
    cudaError_t error = out && (before || !count) ? cudaSuccess : cudaErrorInvalidValue;
    for (size_t i = 0; i < count && !error; i++) {
        error = hostcuda_node_of(before[i]) ? cudaSuccess : cudaErrorInvalidValue;
    }
    if (error) {
        hostcuda_work_drop(work);
        return error;
    }
    error = hostcuda_node_add(graph, work, (struct hostcuda_node *const *)before, count, &node);
    if (!error) {
        *out = (cudaGraphNode_t)node;
    }
    return error;
}

/* Enters with the lock held, and finds the graph. */
static cudaError_t enter_with(cudaGraph_t handle, struct hostcuda_graph **graph)
{
    cudaError_t error = hostcuda_enter_work();
    pthread_mutex_lock(&hostcuda_graph_lock);
    *graph = error ? NULL : hostcuda_graph_of(handle);
    return error ? error : *graph ? cudaSuccess : cudaErrorInvalidValue;
}

/* Enters with the lock held, and finds a node of a kind. */
static cudaError_t enter_with_node(cudaGraphNode_t handle, int type, struct hostcuda_node **node)
{
    cudaError_t error = hostcuda_enter_work();
    pthread_mutex_lock(&hostcuda_graph_lock);
    *node = error ? NULL : hostcuda_node_of(handle);
    return error ? error : *node && (*node)->work.type == type ? cudaSuccess : cudaErrorInvalidValue;
}

static cudaError_t leave(cudaError_t error)
{
    pthread_mutex_unlock(&hostcuda_graph_lock);
    return hostcuda_leave(error);
}

/* Adds a node whose work was made, with or without success, from the program's parameters. */
static cudaError_t add_made(cudaGraphNode_t *out, cudaGraph_t handle, const cudaGraphNode_t *before, size_t count,
                            struct hostcuda_work *work, cudaError_t made)
{
    struct hostcuda_graph *graph;
    cudaError_t error = enter_with(handle, &graph);
    error = error ? error : made;
    if (!error) {
        error = add(out, graph, before, count, work);
    } else if (!made) {
        hostcuda_work_drop(work);
    }
    return leave(error);
}

/* host functions */

cudaError_t hostcuda_work_of_host(struct hostcuda_work *work, const struct cudaHostNodeParams *params)
{
    if (!params || !params->fn) {
        return cudaErrorInvalidValue;
    }
    *work =
        (struct hostcuda_work){.type = cudaGraphNodeTypeHost, .arg.host = {.fn = params->fn, .data = params->userData}};
    return cudaSuccess;
}

HOSTCUDA_EXPORT cudaError_t cudaGraphAddHostNode(cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *before,
                                                 size_t count, const struct cudaHostNodeParams *params)
{
    struct hostcuda_work work;
    cudaError_t made = hostcuda_work_of_host(&work, params);
    return add_made(out, graph, before, count, &work, made);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphHostNodeGetParams(cudaGraphNode_t handle, struct cudaHostNodeParams *params)
{
    struct hostcuda_node *node;
    cudaError_t error = enter_with_node(handle, cudaGraphNodeTypeHost, &node);
    if (!error && !params) {
        error = cudaErrorInvalidValue;
    }
    if (!error) {
        *params = (struct cudaHostNodeParams){.fn = node->work.arg.host.fn, .userData = node->work.arg.host.data};
    }
    return leave(error);
}

/* Changes a node that exists. Takes what the work owns. */
static cudaError_t change(cudaGraphNode_t handle, struct hostcuda_work *work, cudaError_t made)
{
    struct hostcuda_node *node;
    if (made) {
        return hostcuda_leave(made);
    }
    cudaError_t error = enter_with_node(handle, work->type, &node);
    if (!error) {
        hostcuda_work_drop(&node->work);
        node->work = *work;
    } else {
        hostcuda_work_drop(work);
    }
    return leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphHostNodeSetParams(cudaGraphNode_t node, const struct cudaHostNodeParams *params)
{
    struct hostcuda_work work;
    cudaError_t made = hostcuda_work_of_host(&work, params);
    return change(node, &work, made);
}

/* copies */

/* One side of a copy in three dimensions: where it starts, and its steps. */
static bool place_of(const struct cudaPitchedPtr *at, const struct cudaPos *pos, const struct cudaExtent *extent,
                     char **start, size_t *pitch, size_t *slice)
{
    size_t rows = at->ysize ? at->ysize : extent->height;
    if (!at->ptr || (at->pitch < pos->x + extent->width && (extent->height > 1 || extent->depth > 1))) {
        return false;
    }
    *pitch = at->pitch ? at->pitch : extent->width;
    *slice = *pitch * rows;
    *start = (char *)at->ptr + pos->z * *slice + pos->y * *pitch + pos->x;
    return true;
}

cudaError_t hostcuda_work_of_copy(struct hostcuda_work *work, const struct cudaMemcpy3DParms *params)
{
    struct hostcuda_copy copy = {0};
    char *src, *dst;
    if (!params || params->srcArray || params->dstArray) {
        return params ? cudaErrorNotSupported : cudaErrorInvalidValue;
    }
    if (!params->extent.width || !params->extent.height || !params->extent.depth ||
        !place_of(&params->srcPtr, &params->srcPos, &params->extent, &src, &copy.src_pitch, &copy.src_slice) ||
        !place_of(&params->dstPtr, &params->dstPos, &params->extent, &dst, &copy.dst_pitch, &copy.dst_slice)) {
        return cudaErrorInvalidValue;
    }
    copy.src = src;
    copy.dst = dst;
    copy.width = params->extent.width;
    copy.height = params->extent.height;
    copy.depth = params->extent.depth;
    copy.kind = params->kind;
    *work = (struct hostcuda_work){.type = cudaGraphNodeTypeMemcpy, .arg.copy = copy};
    return hostcuda_copy_check(&copy);
}

cudaError_t hostcuda_work_of_line(struct hostcuda_work *work, void *dst, const void *src, size_t bytes,
                                  enum cudaMemcpyKind kind)
{
    struct hostcuda_copy copy = {.dst = dst,
                                 .src = src,
                                 .dst_pitch = bytes,
                                 .src_pitch = bytes,
                                 .width = bytes,
                                 .height = 1,
                                 .depth = 1,
                                 .kind = kind};
    *work = (struct hostcuda_work){.type = cudaGraphNodeTypeMemcpy, .arg.copy = copy};
    return bytes ? hostcuda_copy_check(&copy) : cudaErrorInvalidValue;
}

HOSTCUDA_EXPORT cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t *out, cudaGraph_t graph,
                                                   const cudaGraphNode_t *before, size_t count,
                                                   const struct cudaMemcpy3DParms *params)
{
    struct hostcuda_work work;
    cudaError_t made = hostcuda_work_of_copy(&work, params);
    return add_made(out, graph, before, count, &work, made);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t *out, cudaGraph_t graph,
                                                     const cudaGraphNode_t *before, size_t count, void *dst,
                                                     const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
    struct hostcuda_work work;
    cudaError_t made = hostcuda_work_of_line(&work, dst, src, bytes, kind);
    return add_made(out, graph, before, count, &work, made);
}

/* The answer starts at the origin, because the position has become part of the address. */
HOSTCUDA_EXPORT cudaError_t cudaGraphMemcpyNodeGetParams(cudaGraphNode_t handle, struct cudaMemcpy3DParms *params)
{
    struct hostcuda_node *node;
    cudaError_t error = enter_with_node(handle, cudaGraphNodeTypeMemcpy, &node);
    if (!error && !params) {
        error = cudaErrorInvalidValue;
    }
    if (!error) {
        const struct hostcuda_copy *c = &node->work.arg.copy;
        size_t src_rows = c->depth > 1 ? c->src_slice / c->src_pitch : c->height;
        size_t dst_rows = c->depth > 1 ? c->dst_slice / c->dst_pitch : c->height;
        *params = (struct cudaMemcpy3DParms){.srcPtr = {(void *)(uintptr_t)c->src, c->src_pitch, c->width, src_rows},
                                             .dstPtr = {c->dst, c->dst_pitch, c->width, dst_rows},
                                             .extent = {c->width, c->height, c->depth},
                                             .kind = c->kind};
    }
    return leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphMemcpyNodeSetParams(cudaGraphNode_t node, const struct cudaMemcpy3DParms *params)
{
    struct hostcuda_work work;
    cudaError_t made = hostcuda_work_of_copy(&work, params);
    return change(node, &work, made);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphMemcpyNodeSetParams1D(cudaGraphNode_t node, void *dst, const void *src,
                                                           size_t bytes, enum cudaMemcpyKind kind)
{
    struct hostcuda_work work;
    cudaError_t made = hostcuda_work_of_line(&work, dst, src, bytes, kind);
    return change(node, &work, made);
}

/* fills */

cudaError_t hostcuda_work_of_fill(struct hostcuda_work *work, const struct cudaMemsetParams *params)
{
    if (!params || (params->elementSize != 1 && params->elementSize != 2 && params->elementSize != 4) ||
        !params->width || !params->height || params->width > SIZE_MAX / 4) {
        return cudaErrorInvalidValue;
    }
    size_t bytes = params->width * params->elementSize;
    struct hostcuda_fill fill = {.dst = params->dst,
                                 .value = params->value,
                                 .element = params->elementSize,
                                 .pitch = params->height > 1 ? params->pitch : bytes,
                                 .width = bytes,
                                 .height = params->height};
    *work = (struct hostcuda_work){.type = cudaGraphNodeTypeMemset, .arg.fill = fill};
    return hostcuda_fill_check(&fill, NULL);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t *out, cudaGraph_t graph,
                                                   const cudaGraphNode_t *before, size_t count,
                                                   const struct cudaMemsetParams *params)
{
    struct hostcuda_work work;
    cudaError_t made = hostcuda_work_of_fill(&work, params);
    return add_made(out, graph, before, count, &work, made);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphMemsetNodeGetParams(cudaGraphNode_t handle, struct cudaMemsetParams *params)
{
    struct hostcuda_node *node;
    cudaError_t error = enter_with_node(handle, cudaGraphNodeTypeMemset, &node);
    if (!error && !params) {
        error = cudaErrorInvalidValue;
    }
    if (!error) {
        const struct hostcuda_fill *f = &node->work.arg.fill;
        *params = (struct cudaMemsetParams){.dst = f->dst,
                                            .pitch = f->pitch,
                                            .value = f->value,
                                            .elementSize = f->element,
                                            .width = f->width / f->element,
                                            .height = f->height};
    }
    return leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphMemsetNodeSetParams(cudaGraphNode_t node, const struct cudaMemsetParams *params)
{
    struct hostcuda_work work;
    cudaError_t made = hostcuda_work_of_fill(&work, params);
    return change(node, &work, made);
}

/* kernels: a launch with the policy of now */

cudaError_t hostcuda_work_of_kernel(struct hostcuda_work *work, const struct cudaKernelNodeParams *params)
{
    struct hostcuda_function *function = params ? hostcuda_function_of(params->func) : NULL;
    bool is_skipped;
    if (!function) {
        return params ? cudaErrorInvalidDeviceFunction : cudaErrorInvalidValue;
    }
    struct hostcuda_launch_config config = {.grid = params->gridDim,
                                            .threads = params->blockDim,
                                            .shared_bytes = params->sharedMemBytes,
                                            .arguments = params->kernelParams,
                                            .extra = params->extra};
    return hostcuda_work_of_launch(work, function, &config, &is_skipped);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t *out, cudaGraph_t graph,
                                                   const cudaGraphNode_t *before, size_t count,
                                                   const struct cudaKernelNodeParams *params)
{
    struct hostcuda_work work;
    cudaError_t made = hostcuda_work_of_kernel(&work, params);
    return add_made(out, graph, before, count, &work, made);
}

/* The arguments of a launch that is skipped are not known: kernelParams is NULL. */
HOSTCUDA_EXPORT cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t handle, struct cudaKernelNodeParams *params)
{
    struct hostcuda_node *node;
    cudaError_t error = enter_with_node(handle, cudaGraphNodeTypeKernel, &node);
    if (!error && !params) {
        error = cudaErrorInvalidValue;
    }
    if (!error) {
        const struct hostcuda_kernel *k = &node->work.arg.kernel;
        *params = (struct cudaKernelNodeParams){.func = k->function,
                                                .gridDim = {k->grid[0], k->grid[1], k->grid[2]},
                                                .blockDim = {k->threads[0], k->threads[1], k->threads[2]},
                                                .sharedMemBytes = (unsigned int)k->shared_bytes,
                                                .kernelParams = k->block};
    }
    return leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphKernelNodeSetParams(cudaGraphNode_t node,
                                                         const struct cudaKernelNodeParams *params)
{
    struct hostcuda_work work;
    cudaError_t made = hostcuda_work_of_kernel(&work, params);
    return change(node, &work, made);
}

/* nothing, events, graphs */

HOSTCUDA_EXPORT cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t *out, cudaGraph_t graph,
                                                  const cudaGraphNode_t *before, size_t count)
{
    struct hostcuda_work work = {.type = cudaGraphNodeTypeEmpty};
    return add_made(out, graph, before, count, &work, cudaSuccess);
}

cudaError_t hostcuda_work_of_event(struct hostcuda_work *work, int type, cudaEvent_t handle)
{
    struct hostcuda_event *event = hostcuda_event_get(handle);
    if (event && hostcuda_event_is_shared(event)) {
        hostcuda_event_put(event);
        return hostcuda_unsupported("an event of several processes in a graph", "record it in the stream instead");
    }
    *work = (struct hostcuda_work){.type = type, .arg.event = event};
    return event ? cudaSuccess : cudaErrorInvalidValue;
}

HOSTCUDA_EXPORT cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t *out, cudaGraph_t graph,
                                                        const cudaGraphNode_t *before, size_t count, cudaEvent_t event)
{
    struct hostcuda_work work;
    cudaError_t made = hostcuda_work_of_event(&work, cudaGraphNodeTypeEventRecord, event);
    return add_made(out, graph, before, count, &work, made);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphAddEventWaitNode(cudaGraphNode_t *out, cudaGraph_t graph,
                                                      const cudaGraphNode_t *before, size_t count, cudaEvent_t event)
{
    struct hostcuda_work work;
    cudaError_t made = hostcuda_work_of_event(&work, cudaGraphNodeTypeWaitEvent, event);
    return add_made(out, graph, before, count, &work, made);
}

static cudaError_t get_event(cudaGraphNode_t handle, int type, cudaEvent_t *event)
{
    struct hostcuda_node *node;
    cudaError_t error = enter_with_node(handle, type, &node);
    if (!error && !event) {
        error = cudaErrorInvalidValue;
    }
    if (!error) {
        *event = (cudaEvent_t)node->work.arg.event;
    }
    return leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphEventRecordNodeGetEvent(cudaGraphNode_t node, cudaEvent_t *event)
{
    return get_event(node, cudaGraphNodeTypeEventRecord, event);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphEventWaitNodeGetEvent(cudaGraphNode_t node, cudaEvent_t *event)
{
    return get_event(node, cudaGraphNodeTypeWaitEvent, event);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphEventRecordNodeSetEvent(cudaGraphNode_t node, cudaEvent_t event)
{
    struct hostcuda_work work;
    cudaError_t made = hostcuda_work_of_event(&work, cudaGraphNodeTypeEventRecord, event);
    return change(node, &work, made);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphEventWaitNodeSetEvent(cudaGraphNode_t node, cudaEvent_t event)
{
    struct hostcuda_work work;
    cudaError_t made = hostcuda_work_of_event(&work, cudaGraphNodeTypeWaitEvent, event);
    return change(node, &work, made);
}

/* The child becomes a copy of the program's graph, which memory cannot be in. */
HOSTCUDA_EXPORT cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t *out, cudaGraph_t handle,
                                                       const cudaGraphNode_t *before, size_t count,
                                                       cudaGraph_t child_handle)
{
    struct hostcuda_graph *graph;
    struct hostcuda_work work = {.type = cudaGraphNodeTypeGraph};
    cudaError_t error = enter_with(handle, &graph);
    struct hostcuda_graph *child = error ? NULL : hostcuda_graph_of(child_handle);
    if (!error && (!child || child->captures)) {
        error = cudaErrorInvalidValue;
    } else if (!error && hostcuda_graph_has_memory(child)) {
        error = cudaErrorNotSupported;
    }
    if (!error) {
        error = hostcuda_graph_clone(&work.arg.child, child, false);
    }
    if (!error) {
        work.arg.child->is_child = true;
        error = add(out, graph, before, count, &work);
    }
    return leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphChildGraphNodeGetGraph(cudaGraphNode_t handle, cudaGraph_t *child)
{
    struct hostcuda_node *node;
    cudaError_t error = enter_with_node(handle, cudaGraphNodeTypeGraph, &node);
    if (!error && !child) {
        error = cudaErrorInvalidValue;
    }
    if (!error) {
        *child = (cudaGraph_t)node->work.arg.child;
    }
    return leave(error);
}
