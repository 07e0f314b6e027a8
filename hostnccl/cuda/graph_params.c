/*
 * graph_params.c: nodes of any kind, described by one struct whose type says which members count; and nodes with a
 * condition, which exist in this form alone.
 *
 * A condition is set by device code, and no device code runs here. So the value of a condition is the one with which
 * its handle begins a launch, for ever, and which bodies run is known when the graph is frozen: a node with a condition
 * is unfolded there like a child graph (exec.c). A loop whose condition begins true would never end, since what ends it
 * is left out; its body runs once. One line says so when the first such node is made. A handle is a number that holds
 * what it was made with, so it needs no table and survives copies of graphs.
 */
#include "hostnccl/cuda/graph_node.h"

#include <stdio.h>
#include <stdlib.h>

/* A handle: a mark of ours, a number of its own, whether each launch begins with the value, the value. */
enum { HANDLE_MARK = 0x5c, HANDLE_MARK_SHIFT = 56, HANDLE_SERIAL_SHIFT = 33 };

HOSTCUDA_EXPORT cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle *handle, cudaGraph_t graph,
                                                             unsigned int value, unsigned int flags)
{
    static _Atomic unsigned int serial;
    cudaError_t error =
        handle && !(flags & ~(unsigned int)cudaGraphCondAssignDefault) ? hostcuda_enter_work() : cudaErrorInvalidValue;
    if (!error) {
        pthread_mutex_lock(&hostcuda_graph_lock);
        error = hostcuda_graph_of(graph) ? cudaSuccess : cudaErrorInvalidValue;
        pthread_mutex_unlock(&hostcuda_graph_lock);
    }
    if (!error) {
        unsigned long long number = (atomic_fetch_add(&serial, 1) + 1) & 0x7fffff;
        *handle = (unsigned long long)HANDLE_MARK << HANDLE_MARK_SHIFT | number << HANDLE_SERIAL_SHIFT |
                  (unsigned long long)(flags != 0) << HOSTCUDA_CONDITION_ASSIGN_SHIFT | value;
    }
    return hostcuda_leave(error);
}

static void say_what_a_condition_is(void)
{
    static atomic_bool is_said;
    if (!atomic_exchange(&is_said, true)) {
        fprintf(stderr,
                "hostcuda: a graph has conditions: the kernels that would set them do not run, so each keeps the "
                "value with which its handle begins a launch, and a loop runs once or not at all\n");
    }
}

/* With the lock held. Fills in what the program gets: the bodies, which are empty graphs. */
static cudaError_t make_condition(struct hostcuda_work *work, struct cudaConditionalNodeParams *params)
{
    struct hostcuda_condition made = {.handle = params->handle, .type = params->type};
    bool is_known = params->handle >> HANDLE_MARK_SHIFT == HANDLE_MARK &&
                    ((params->type == cudaGraphCondTypeIf && (params->size == 1 || params->size == 2)) ||
                     (params->type == cudaGraphCondTypeWhile && params->size == 1) ||
                     (params->type == cudaGraphCondTypeSwitch && params->size > 0));
    if (!is_known) {
        return cudaErrorInvalidValue;
    }
    made.bodies = calloc(params->size, sizeof(struct hostcuda_graph *));
    cudaError_t error = made.bodies ? cudaSuccess : cudaErrorMemoryAllocation;
    for (unsigned int i = 0; !error && i < params->size; i++) {
        error = hostcuda_graph_new(&made.bodies[i]);
        if (!error) {
            made.bodies[i]->is_child = true;
            made.count++;
        }
    }
    *work = (struct hostcuda_work){.type = cudaGraphNodeTypeConditional, .arg.condition = made};
    if (error) {
        hostcuda_work_drop(work);
        return error;
    }
    say_what_a_condition_is();
    return cudaSuccess;
}

/* The child is taken, not copied, where the program says so: its handle stays good and is the node's. */
static cudaError_t add_child(cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *before, size_t count,
                             const struct cudaChildGraphNodeParams *params)
{
    bool is_moved = params->ownership == cudaGraphChildGraphOwnershipMove;
    if (!is_moved && params->ownership != cudaGraphChildGraphOwnershipClone) {
        return hostcuda_leave(cudaErrorInvalidValue);
    }
    cudaGraphNode_t made;
    cudaError_t error = is_moved ? hostcuda_enter_work() : cudaSuccess;
    if (!error && is_moved) {
        pthread_mutex_lock(&hostcuda_graph_lock);
        const struct hostcuda_graph *child = hostcuda_graph_of(params->graph);
        error = child && !child->is_child && params->graph != graph ? cudaSuccess : cudaErrorInvalidValue;
        pthread_mutex_unlock(&hostcuda_graph_lock);
    }
    if (error) {
        return hostcuda_leave(error);
    }
    error = cudaGraphAddChildGraphNode(out ? &made : NULL, graph, before, count, params->graph);
    if (!error) {
        *out = made;
    }
    if (!error && is_moved) {
        pthread_mutex_lock(&hostcuda_graph_lock);
        struct hostcuda_node *node = hostcuda_node_of(made);
        struct hostcuda_graph *child = hostcuda_graph_of(params->graph);
        if (node && child) {
            hostcuda_graph_free(&node->work.arg.child);
            child->is_child = true;
            node->work.arg.child = child;
        }
        pthread_mutex_unlock(&hostcuda_graph_lock);
    }
    return error;
}

static cudaError_t add_condition(cudaGraphNode_t *out, cudaGraph_t handle, const cudaGraphNode_t *before, size_t count,
                                 struct cudaConditionalNodeParams *params)
{
    struct hostcuda_work work;
    struct hostcuda_node *node = NULL;
    cudaError_t error = out && (before || !count) ? hostcuda_enter_work() : cudaErrorInvalidValue;
    pthread_mutex_lock(&hostcuda_graph_lock);
    struct hostcuda_graph *graph = error ? NULL : hostcuda_graph_of(handle);
    for (size_t i = 0; !error && i < count; i++) {
        error = hostcuda_node_of(before[i]) ? cudaSuccess : cudaErrorInvalidValue;
    }
    error = error ? error : graph ? make_condition(&work, params) : cudaErrorInvalidValue;
    if (!error) {
        error = hostcuda_node_add(graph, &work, (struct hostcuda_node *const *)before, count, &node);
    }
    if (!error) {
        params->phGraph_out = (cudaGraph_t *)node->work.arg.condition.bodies;
        *out = (cudaGraphNode_t)node;
    }
    pthread_mutex_unlock(&hostcuda_graph_lock);
    return hostcuda_leave(error);
}

static cudaError_t add_allocation(cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *before, size_t count,
                                  struct cudaMemAllocNodeParamsV2 *params)
{
    struct cudaMemAllocNodeParams older = {.poolProps = params->poolProps,
                                           .accessDescs = params->accessDescs,
                                           .accessDescCount = params->accessDescCount,
                                           .bytesize = params->bytesize};
    cudaError_t error = cudaGraphAddMemAllocNode(out, graph, before, count, &older);
    if (!error) {
        params->dptr = older.dptr;
    }
    return error;
}

static const char NO_SEMAPHORES[] = "semaphores of other interfaces";

static cudaError_t add_any(cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *before, size_t count,
                           struct cudaGraphNodeParams *params)
{
    if (!params) {
        return hostcuda_leave(cudaErrorInvalidValue);
    }
    switch (params->type) {
    case cudaGraphNodeTypeKernel:
        return cudaGraphAddKernelNode(out, graph, before, count, &params->kernel);
    case cudaGraphNodeTypeMemcpy:
        return params->memcpy.flags ? hostcuda_leave(cudaErrorInvalidValue)
                                    : cudaGraphAddMemcpyNode(out, graph, before, count, &params->memcpy.copyParams);
    case cudaGraphNodeTypeMemset:
        return cudaGraphAddMemsetNode(out, graph, before, count, &params->memset);
    case cudaGraphNodeTypeHost:
        return cudaGraphAddHostNode(out, graph, before, count, &params->host);
    case cudaGraphNodeTypeGraph:
        return add_child(out, graph, before, count, &params->graph);
    case cudaGraphNodeTypeEmpty:
        return cudaGraphAddEmptyNode(out, graph, before, count);
    case cudaGraphNodeTypeWaitEvent:
        return cudaGraphAddEventWaitNode(out, graph, before, count, params->eventWait.event);
    case cudaGraphNodeTypeEventRecord:
        return cudaGraphAddEventRecordNode(out, graph, before, count, params->eventRecord.event);
    case cudaGraphNodeTypeConditional:
        return add_condition(out, graph, before, count, &params->conditional);
    case cudaGraphNodeTypeMemAlloc:
        return add_allocation(out, graph, before, count, &params->alloc);
    case cudaGraphNodeTypeMemFree:
        return cudaGraphAddMemFreeNode(out, graph, before, count, params->free.dptr);
    case cudaGraphNodeTypeExtSemaphoreSignal:
    case cudaGraphNodeTypeExtSemaphoreWait:
        return hostcuda_leave(hostcuda_unsupported("cudaGraphAddNode of a semaphore", NO_SEMAPHORES));
    default:
        return hostcuda_leave(cudaErrorInvalidValue);
    }
}

HOSTCUDA_EXPORT cudaError_t HOSTCUDA_FORM(cudaGraphAddNode, _v2)(cudaGraphNode_t *out, cudaGraph_t graph,
                                                                 const cudaGraphNode_t *before,
                                                                 const cudaGraphEdgeData *edges, size_t count,
                                                                 struct cudaGraphNodeParams *params)
{
    for (size_t i = 0; edges && i < count; i++) {
        if (edges[i].from_port || edges[i].to_port || edges[i].type) { /* of kernels that start early */
            return hostcuda_leave(cudaErrorNotSupported);
        }
    }
    return add_any(out, graph, before, count, params);
}

#if CUDART_VERSION < 13000
HOSTCUDA_EXPORT cudaError_t cudaGraphAddNode(cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *before,
                                             size_t count, struct cudaGraphNodeParams *params)
{
    return add_any(out, graph, before, count, params);
}
#endif

HOSTCUDA_EXPORT cudaError_t cudaGraphNodeSetParams(cudaGraphNode_t node, struct cudaGraphNodeParams *params)
{
    if (!params) {
        return hostcuda_leave(cudaErrorInvalidValue);
    }
    switch (params->type) {
    case cudaGraphNodeTypeKernel:
        return cudaGraphKernelNodeSetParams(node, &params->kernel);
    case cudaGraphNodeTypeMemcpy:
        return cudaGraphMemcpyNodeSetParams(node, &params->memcpy.copyParams);
    case cudaGraphNodeTypeMemset:
        return cudaGraphMemsetNodeSetParams(node, &params->memset);
    case cudaGraphNodeTypeHost:
        return cudaGraphHostNodeSetParams(node, &params->host);
    case cudaGraphNodeTypeWaitEvent:
        return cudaGraphEventWaitNodeSetEvent(node, params->eventWait.event);
    case cudaGraphNodeTypeEventRecord:
        return cudaGraphEventRecordNodeSetEvent(node, params->eventRecord.event);
    default: /* of other kinds nothing can be changed */
        return hostcuda_leave(cudaErrorInvalidValue);
    }
}

HOSTCUDA_EXPORT cudaError_t cudaGraphExecNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                       struct cudaGraphNodeParams *params)
{
    if (!params) {
        return hostcuda_leave(cudaErrorInvalidValue);
    }
    switch (params->type) {
    case cudaGraphNodeTypeKernel:
        return cudaGraphExecKernelNodeSetParams(exec, node, &params->kernel);
    case cudaGraphNodeTypeMemcpy:
        return cudaGraphExecMemcpyNodeSetParams(exec, node, &params->memcpy.copyParams);
    case cudaGraphNodeTypeMemset:
        return cudaGraphExecMemsetNodeSetParams(exec, node, &params->memset);
    case cudaGraphNodeTypeHost:
        return cudaGraphExecHostNodeSetParams(exec, node, &params->host);
    case cudaGraphNodeTypeWaitEvent:
        return cudaGraphExecEventWaitNodeSetEvent(exec, node, params->eventWait.event);
    case cudaGraphNodeTypeEventRecord:
        return cudaGraphExecEventRecordNodeSetEvent(exec, node, params->eventRecord.event);
    case cudaGraphNodeTypeGraph:
        return hostcuda_leave(hostcuda_unsupported("cudaGraphExecNodeSetParams of a child graph",
                                                   "update the executable graph as a whole"));
    default:
        return hostcuda_leave(cudaErrorInvalidValue);
    }
}
