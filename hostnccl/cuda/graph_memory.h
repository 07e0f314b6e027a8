/*
 * graph_memory.h: memory that a graph owns (graph_memory.c). A lock of its own guards it, which may be taken with the
 * lock of graphs held; inside it nothing is locked but the table of allocations and the count of a device's bytes.
 */
#ifndef ROLL_HOSTNCCL_CUDA_GRAPH_MEMORY_H
#define ROLL_HOSTNCCL_CUDA_GRAPH_MEMORY_H

#include "hostnccl/cuda/graph.h"

/* An allocation, with its address, of no graph yet. Returns a reference. cudaErrorInvalidValue for no bytes,
 * cudaErrorMemoryAllocation where the machine has no addresses. */
cudaError_t hostcuda_graph_memory_new(struct hostcuda_graph_memory **out, size_t bytes, int device);

/* The allocation that begins at an address, with a reference; NULL: none. */
struct hostcuda_graph_memory *hostcuda_graph_memory_of(const void *address);

/* What a program may ask of it. */
struct hostcuda_graph_memory_facts {
    void *start;
    size_t bytes;
    int device;
};
struct hostcuda_graph_memory_facts hostcuda_graph_memory_facts(const struct hostcuda_graph_memory *memory);

/* Whether the graph has nodes that allocate or free. With the lock of graphs. */
bool hostcuda_graph_has_memory(const struct hostcuda_graph *graph);

/*
 * Whether a node with this work may be added to the graph: an allocation is freed once, in the graph that owns it or in
 * others. cudaErrorInvalidValue; cudaErrorNotSupported inside another graph. The second function notes that it was.
 * Other work than of memory is always welcome. With the lock of graphs.
 */
cudaError_t hostcuda_graph_memory_may(const struct hostcuda_graph *graph, const struct hostcuda_work *work);
void hostcuda_graph_memory_placed(const struct hostcuda_graph *graph, const struct hostcuda_work *work);

/*
 * A launch begins: the bytes of what it allocates count from here on. cudaErrorInvalidValue where an earlier launch has
 * left an allocation and the graph does not free that itself, or where it frees what nobody has left;
 * cudaErrorMemoryAllocation where the device has no room. begins[] says of each step whether it begins a life.
 */
cudaError_t hostcuda_graph_memory_launch(const struct hostcuda_body *body, bool frees_what_is_left, bool *begins);
/* Undoes it, where no step of the launch was queued. */
void hostcuda_graph_memory_unlaunch(const struct hostcuda_body *body, const bool *begins);

/*
 * The program frees what a launch has left, outside of graphs: `leave` when it calls, cudaErrorInvalidValue where
 * nothing was left or it was freed already; `end` when its stream has come so far.
 */
cudaError_t hostcuda_graph_memory_leave(struct hostcuda_graph_memory *memory);
/* Undoes `leave`, where the stream did not take the free: the program may free it again. */
void hostcuda_graph_memory_stay(struct hostcuda_graph_memory *memory);
void hostcuda_graph_memory_end(struct hostcuda_graph_memory *memory);

/* Bytes of a device that launches have allocated: now, and at most so far, which the second function begins anew. */
uint64_t hostcuda_graph_memory_used(int device, bool is_high);
void hostcuda_graph_memory_forget_high(int device);

#endif
