/*
 * memory_order.c: memory in the order of a stream: cudaMallocAsync, its form with a pool, and cudaFreeAsync. The memory
 * is there when the call returns, because a stream's order matters only for its end. In a capture both calls are nodes,
 * and the memory is the graph's (graph_memory.c). cudaFree is here, too, because what a graph has left may end by it.
 */
#include "hostnccl/cuda/graph_memory.h"
#include "hostnccl/cuda/memory.h"

#include <stdlib.h>

static cudaError_t allocate_from(void **out, size_t bytes, cudaMemPool_t handle, const struct hostcuda_stream *stream)
{
    struct hostcuda_pool *pool = NULL;
    cudaError_t error = hostcuda_pool_take(handle, stream->device, bytes, &pool);
    if (error || !bytes) {
        hostcuda_pool_give(pool, bytes);
        return error;
    }
    error = hostcuda_memory_allocate(out, bytes, pool);
    if (error) {
        hostcuda_pool_give(pool, bytes);
    }
    return error;
}

/* The pool says on which device. */
static cudaError_t capture_allocation(void **out, size_t bytes, cudaMemPool_t handle, struct hostcuda_stream *stream)
{
    struct hostcuda_work work = {.type = cudaGraphNodeTypeMemAlloc};
    struct hostcuda_pool *pool = NULL;
    cudaError_t error = hostcuda_pool_take(handle, stream->device, 0, &pool);
    if (!error && bytes) {
        error = hostcuda_graph_memory_new(&work.arg.memory, bytes, hostcuda_pool_device(pool));
    }
    hostcuda_pool_give(pool, 0);
    if (error || !bytes) {
        return error;
    }
    void *start = hostcuda_graph_memory_facts(work.arg.memory).start;
    error = hostcuda_capture_add(stream, &work);
    if (!error) {
        *out = start;
    }
    return error;
}

static cudaError_t allocate_in_order(void **out, size_t bytes, cudaMemPool_t pool, cudaStream_t handle)
{
    struct hostcuda_stream *stream;
    cudaError_t error = hostcuda_enter_stream(handle, &stream);
    if (error) {
        return hostcuda_leave(error);
    }
    bool is_captured = hostcuda_stream_is_captured(stream);
    error = is_captured ? cudaSuccess : hostcuda_capture_refuse_implicit(stream);
    if (!error && !out) {
        error = cudaErrorInvalidValue;
    }
    if (!error) {
        *out = NULL;
        error = is_captured ? capture_allocation(out, bytes, pool, stream) : allocate_from(out, bytes, pool, stream);
    }
    hostcuda_stream_put(stream);
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaMallocAsync(void **out, size_t bytes, cudaStream_t stream)
{
    return allocate_in_order(out, bytes, NULL, stream);
}

HOSTCUDA_EXPORT cudaError_t cudaMallocFromPoolAsync(void **out, size_t bytes, cudaMemPool_t pool, cudaStream_t stream)
{
    return pool ? allocate_in_order(out, bytes, pool, stream) : hostcuda_leave(cudaErrorInvalidValue);
}

static void run_free(struct hostcuda_op *op)
{
    hostcuda_memory_free(op->arg.memory);
}

/* What a launch of a graph has left; alive until here. */
static void run_free_left(struct hostcuda_op *op)
{
    struct hostcuda_graph_memory *left = hostcuda_graph_memory_of(op->arg.memory);
    if (left) {
        hostcuda_graph_memory_end(left);
    }
    hostcuda_graph_memory_put(left);
}

static cudaError_t submit_free(void *memory, struct hostcuda_stream *stream)
{
    struct hostcuda_graph_memory *left = hostcuda_graph_memory_of(memory);
    cudaError_t error =
        left || hostcuda_memory_may_free(memory) ? hostcuda_capture_refuse_implicit(stream) : cudaErrorInvalidValue;
    struct hostcuda_op *op = error ? NULL : calloc(1, sizeof(*op));
    if (!error && !op) {
        error = cudaErrorMemoryAllocation;
    }
    if (!error && left) {
        error = hostcuda_graph_memory_leave(left);
    }
    if (!error) {
        op->run = left ? run_free_left : run_free;
        op->arg.memory = memory;
        error = hostcuda_stream_submit(stream, op);
        if (error && left) {
            hostcuda_graph_memory_stay(left);
        }
    }
    if (error) {
        free(op);
    }
    hostcuda_graph_memory_put(left);
    return error;
}

/* Only a graph's memory can be freed in a capture. */
static cudaError_t capture_free(void *memory, struct hostcuda_stream *stream)
{
    struct hostcuda_work work = {.type = cudaGraphNodeTypeMemFree, .arg.memory = hostcuda_graph_memory_of(memory)};
    if (work.arg.memory) {
        return hostcuda_capture_add(stream, &work);
    }
    cudaError_t refused = hostcuda_capture_refuse(stream);
    return refused == cudaErrorStreamCaptureInvalidated ? refused : cudaErrorInvalidValue;
}

HOSTCUDA_EXPORT cudaError_t cudaFreeAsync(void *memory, cudaStream_t handle)
{
    struct hostcuda_stream *stream;
    cudaError_t error = hostcuda_enter_stream(handle, &stream);
    if (!error) {
        error = hostcuda_stream_is_captured(stream) ? capture_free(memory, stream) : submit_free(memory, stream);
        hostcuda_stream_put(stream);
    }
    return hostcuda_leave(error);
}

/* What a graph's launch has left. Takes the reference. */
static cudaError_t free_left(struct hostcuda_graph_memory *left)
{
    cudaError_t error = hostcuda_capture_unsafe();
    if (!error) {
        error = hostcuda_device_drain(hostcuda_graph_memory_facts(left).device);
    }
    if (!error) {
        error = hostcuda_graph_memory_leave(left);
    }
    if (!error) {
        hostcuda_graph_memory_end(left);
    }
    hostcuda_graph_memory_put(left);
    return error;
}

HOSTCUDA_EXPORT cudaError_t cudaFree(void *memory)
{
    struct hostcuda_graph_memory *left = NULL;
    cudaError_t error = hostcuda_enter_work();
    if (!error) {
        left = hostcuda_graph_memory_of(memory);
        error = left ? free_left(left) : hostcuda_memory_free_now(memory);
    }
    return hostcuda_leave(error);
}
