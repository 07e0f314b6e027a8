/*
 * graph_memory_node.c: the calls about memory that a graph owns: its nodes made by hand, what they say, and how much of
 * a device launches have allocated. Nothing is kept back when memory is freed, so what is reserved is what is used.
 */
#include "hostnccl/cuda/graph_memory.h"

#include <string.h>

/* Adds a node with the lock of graphs. Takes the work. */
static cudaError_t add(cudaGraphNode_t *out, cudaGraph_t handle, const cudaGraphNode_t *before, size_t count,
                       struct hostcuda_work *work)
{
    struct hostcuda_node *node;
    pthread_mutex_lock(&hostcuda_graph_lock);
    struct hostcuda_graph *graph = hostcuda_graph_of(handle);
    cudaError_t error = graph ? cudaSuccess : cudaErrorInvalidValue;
    for (size_t i = 0; i < count && !error; i++) {
        error = hostcuda_node_of(before[i]) ? cudaSuccess : cudaErrorInvalidValue;
    }
    if (error) {
        hostcuda_work_drop(work);
    } else {
        error = hostcuda_node_add(graph, work, (struct hostcuda_node *const *)before, count, &node);
    }
    if (!error) {
        *out = (cudaGraphNode_t)node;
    }
    pthread_mutex_unlock(&hostcuda_graph_lock);
    return error;
}

static cudaError_t check(const struct cudaMemAllocNodeParams *params)
{
    if (params->poolProps.allocType != cudaMemAllocationTypePinned ||
        params->poolProps.location.type != cudaMemLocationTypeDevice ||
        params->poolProps.handleTypes != cudaMemHandleTypeNone) {
        return cudaErrorInvalidValue;
    }
    if (!hostcuda_device_of(params->poolProps.location.id)) {
        return cudaErrorInvalidDevice;
    }
    for (size_t i = 0; i < params->accessDescCount; i++) { /* every device reaches all memory here */
        if (!params->accessDescs || !hostcuda_device_of(params->accessDescs[i].location.id)) {
            return cudaErrorInvalidValue;
        }
    }
    return cudaSuccess;
}

HOSTCUDA_EXPORT cudaError_t cudaGraphAddMemAllocNode(cudaGraphNode_t *out, cudaGraph_t graph,
                                                     const cudaGraphNode_t *before, size_t count,
                                                     struct cudaMemAllocNodeParams *params)
{
    struct hostcuda_work work = {.type = cudaGraphNodeTypeMemAlloc};
    cudaError_t error = out && params && (before || !count) ? hostcuda_enter_work() : cudaErrorInvalidValue;
    if (!error) {
        error = check(params);
    }
    if (!error) {
        error = hostcuda_graph_memory_new(&work.arg.memory, params->bytesize, params->poolProps.location.id);
    }
    if (error) {
        return hostcuda_leave(error);
    }
    void *start = hostcuda_graph_memory_facts(work.arg.memory).start;
    error = add(out, graph, before, count, &work);
    if (!error) {
        params->dptr = start;
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphAddMemFreeNode(cudaGraphNode_t *out, cudaGraph_t graph,
                                                    const cudaGraphNode_t *before, size_t count, void *memory)
{
    struct hostcuda_work work = {.type = cudaGraphNodeTypeMemFree};
    cudaError_t error = out && (before || !count) ? hostcuda_enter_work() : cudaErrorInvalidValue;
    if (!error) {
        work.arg.memory = hostcuda_graph_memory_of(memory);
        error = work.arg.memory ? add(out, graph, before, count, &work) : cudaErrorInvalidValue;
    }
    return hostcuda_leave(error);
}

/* What the memory of a node of the kind is. */
static cudaError_t facts_of(cudaGraphNode_t handle, int type, struct hostcuda_graph_memory_facts *facts)
{
    cudaError_t error = hostcuda_enter_work();
    if (error) {
        return error;
    }
    pthread_mutex_lock(&hostcuda_graph_lock);
    const struct hostcuda_node *node = hostcuda_node_of(handle);
    error = node && node->work.type == type ? cudaSuccess : cudaErrorInvalidValue;
    if (!error) {
        *facts = hostcuda_graph_memory_facts(node->work.arg.memory);
    }
    pthread_mutex_unlock(&hostcuda_graph_lock);
    return error;
}

HOSTCUDA_EXPORT cudaError_t cudaGraphMemAllocNodeGetParams(cudaGraphNode_t node, struct cudaMemAllocNodeParams *params)
{
    struct hostcuda_graph_memory_facts facts;
    cudaError_t error = params ? facts_of(node, cudaGraphNodeTypeMemAlloc, &facts) : cudaErrorInvalidValue;
    if (!error) {
        *params = (struct cudaMemAllocNodeParams){
            .poolProps = {.allocType = cudaMemAllocationTypePinned,
                          .location = {.type = cudaMemLocationTypeDevice, .id = facts.device}},
            .bytesize = facts.bytes,
            .dptr = facts.start};
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphMemFreeNodeGetParams(cudaGraphNode_t node, void *memory)
{
    struct hostcuda_graph_memory_facts facts;
    cudaError_t error = memory ? facts_of(node, cudaGraphNodeTypeMemFree, &facts) : cudaErrorInvalidValue;
    if (!error) {
        memcpy(memory, &facts.start, sizeof(facts.start));
    }
    return hostcuda_leave(error);
}

/* how much */

static bool is_high(enum cudaGraphMemAttributeType attribute)
{
    return attribute == cudaGraphMemAttrUsedMemHigh || attribute == cudaGraphMemAttrReservedMemHigh;
}

static cudaError_t check_attribute(int device, enum cudaGraphMemAttributeType attribute, const void *value)
{
    cudaError_t error = value ? hostcuda_enter() : cudaErrorInvalidValue;
    if (!error && !hostcuda_device_of(device)) {
        error = cudaErrorInvalidDevice;
    }
    return !error && (unsigned int)attribute > cudaGraphMemAttrReservedMemHigh ? cudaErrorInvalidValue : error;
}

HOSTCUDA_EXPORT cudaError_t cudaDeviceGetGraphMemAttribute(int device, enum cudaGraphMemAttributeType attribute,
                                                           void *value)
{
    cudaError_t error = check_attribute(device, attribute, value);
    if (!error) {
        uint64_t bytes = hostcuda_graph_memory_used(device, is_high(attribute));
        memcpy(value, &bytes, sizeof(bytes));
    }
    return hostcuda_leave(error);
}

/* A high-water mark can only be set to 0, and is then what is in use. */
HOSTCUDA_EXPORT cudaError_t cudaDeviceSetGraphMemAttribute(int device, enum cudaGraphMemAttributeType attribute,
                                                           void *value)
{
    static const uint64_t zero;
    cudaError_t error = check_attribute(device, attribute, value);
    if (!error && (!is_high(attribute) || memcmp(value, &zero, sizeof(zero)) != 0)) {
        error = cudaErrorInvalidValue;
    }
    if (!error) {
        hostcuda_graph_memory_forget_high(device);
    }
    return hostcuda_leave(error);
}

/* Nothing is kept back, so there is nothing to give up. */
HOSTCUDA_EXPORT cudaError_t cudaDeviceGraphMemTrim(int device)
{
    cudaError_t error = hostcuda_enter();
    return hostcuda_leave(error || hostcuda_device_of(device) ? error : cudaErrorInvalidDevice);
}
