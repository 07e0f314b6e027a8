/*
 * graph_memory.c: memory that a graph owns: what cudaMallocAsync and cudaFreeAsync become in a capture.
 *
 * An allocation has its address from the making of its node on, the same for all launches, because the program writes
 * the address into other nodes. It is there, for kernels and in the count of the device's bytes, from the launch until
 * the node that frees it has run, or the program has freed what a launch left: what a kernel touches outside of that is
 * no memory of the device, and the library of device code is told so. The pages go back when it is freed, so a launch
 * does not find what the one before has left.
 *
 * Nodes hold references, those of frozen graphs too, and so does each launch that has not been freed: such memory
 * outlives its graph. A stretch of addresses that allocations share when they do not live at the same time, as the
 * vendor's graphs have it, was rejected: a program that uses memory after its end would find another's numbers and go
 * on.
 */
#include "hostnccl/cuda/graph_memory.h"
#include "hostnccl/cuda/memory.h"

#include <stdlib.h>
#include <string.h>

struct hostcuda_graph_memory {
    struct hostcuda_graph_memory *next; /* of all */
    unsigned int refs;
    void *start;
    size_t bytes;
    int device;
    unsigned long long owner;                   /* number of the graph that has the node which allocates; 0: none yet */
    bool is_freed_by_owner, is_freed_by_others; /* there is a node for it */
    unsigned int lives;                         /* launches that have allocated it, and are not freed */
    bool is_left;                               /* the last one leaves it to the program */
    bool is_there;                              /* a stream has come to the allocation, and to no free */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below, and what is in them */
static struct hostcuda_graph_memory *all;
static uint64_t used[HOSTCUDA_DEVICES_MAX], high[HOSTCUDA_DEVICES_MAX];

cudaError_t hostcuda_graph_memory_new(struct hostcuda_graph_memory **out, size_t bytes, int device)
{
    if (!bytes) {
        return cudaErrorInvalidValue;
    }
    struct hostcuda_graph_memory *made = calloc(1, sizeof(*made));
    void *start = made ? hostcuda_pages_reserve(bytes) : NULL;
    if (!start || hostcuda_range_add_virtual(start, bytes, device, true)) {
        if (start) {
            hostcuda_pages_release(start, bytes);
        }
        free(made);
        return cudaErrorMemoryAllocation;
    }
    *made = (struct hostcuda_graph_memory){.refs = 1, .start = start, .bytes = bytes, .device = device};
    pthread_mutex_lock(&lock);
    made->next = all;
    all = made;
    pthread_mutex_unlock(&lock);
    *out = made;
    return cudaSuccess;
}

struct hostcuda_graph_memory *hostcuda_graph_memory_ref(struct hostcuda_graph_memory *memory)
{
    pthread_mutex_lock(&lock);
    memory->refs++;
    pthread_mutex_unlock(&lock);
    return memory;
}

void hostcuda_graph_memory_put(struct hostcuda_graph_memory *memory)
{
    if (!memory) {
        return;
    }
    pthread_mutex_lock(&lock);
    bool is_last = --memory->refs == 0;
    for (struct hostcuda_graph_memory **link = &all; is_last && *link; link = &(*link)->next) {
        if (*link == memory) {
            *link = memory->next;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    if (is_last) {
        (void)hostcuda_range_remove_mapped(memory->start);
        hostcuda_pages_release(memory->start, memory->bytes);
        free(memory);
    }
}

struct hostcuda_graph_memory *hostcuda_graph_memory_of(const void *address)
{
    pthread_mutex_lock(&lock);
    struct hostcuda_graph_memory *found = all;
    while (found && found->start != address) {
        found = found->next;
    }
    if (found) {
        found->refs++;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

struct hostcuda_graph_memory_facts hostcuda_graph_memory_facts(const struct hostcuda_graph_memory *memory)
{
    return (struct hostcuda_graph_memory_facts){memory->start, memory->bytes, memory->device};
}

/* which nodes there may be */

static bool is_of_memory(const struct hostcuda_work *work)
{
    return work->type == cudaGraphNodeTypeMemAlloc || work->type == cudaGraphNodeTypeMemFree;
}

bool hostcuda_graph_has_memory(const struct hostcuda_graph *graph)
{
    for (size_t i = 0; i < graph->nodes.count; i++) {
        if (is_of_memory(&graph->nodes.items[i]->work)) {
            return true;
        }
    }
    return false;
}

static bool frees(const struct hostcuda_graph *graph, const struct hostcuda_graph_memory *memory)
{
    for (size_t i = 0; i < graph->nodes.count; i++) {
        const struct hostcuda_work *work = &graph->nodes.items[i]->work;
        if (work->type == cudaGraphNodeTypeMemFree && work->arg.memory == memory) {
            return true;
        }
    }
    return false;
}

cudaError_t hostcuda_graph_memory_may(const struct hostcuda_graph *graph, const struct hostcuda_work *work)
{
    if (!is_of_memory(work)) {
        return cudaSuccess;
    }
    if (graph->is_child) {
        return cudaErrorNotSupported;
    }
    if (work->type == cudaGraphNodeTypeMemAlloc) {
        return cudaSuccess;
    }
    const struct hostcuda_graph_memory *memory = work->arg.memory;
    pthread_mutex_lock(&lock);
    bool may = memory->owner == graph->number ? !memory->is_freed_by_owner && !memory->is_freed_by_others
                                              : !memory->is_freed_by_owner && !frees(graph, memory);
    pthread_mutex_unlock(&lock);
    return may ? cudaSuccess : cudaErrorInvalidValue;
}

void hostcuda_graph_memory_placed(const struct hostcuda_graph *graph, const struct hostcuda_work *work)
{
    if (!is_of_memory(work)) {
        return;
    }
    struct hostcuda_graph_memory *memory = work->arg.memory;
    pthread_mutex_lock(&lock);
    if (work->type == cudaGraphNodeTypeMemAlloc) {
        memory->owner = graph->number;
    } else if (memory->owner == graph->number) {
        memory->is_freed_by_owner = true;
    } else {
        memory->is_freed_by_others = true;
    }
    pthread_mutex_unlock(&lock);
}

/* launches */

/* One life more, which keeps the memory; its bytes count while there is any: launches behind each other share them.
 * With the lock. False: no room. */
static bool begin_life(struct hostcuda_graph_memory *memory)
{
    if (memory->lives == 0) {
        if (!hostcuda_bytes_take(memory->device, memory->bytes)) {
            return false;
        }
        used[memory->device] += memory->bytes;
        if (used[memory->device] > high[memory->device]) {
            high[memory->device] = used[memory->device];
        }
    }
    memory->lives++;
    memory->refs++;
    return true;
}

/* With the lock. The caller gives the life's reference back. */
static void end_life(struct hostcuda_graph_memory *memory)
{
    if (--memory->lives == 0) {
        used[memory->device] -= memory->bytes;
        hostcuda_bytes_give(memory->device, memory->bytes);
    }
}

static bool has_step(const struct hostcuda_body *body, int type, const struct hostcuda_graph_memory *memory)
{
    for (size_t i = 0; i < body->count; i++) {
        const struct hostcuda_work *work = &body->steps[i].node->work;
        if (work->type == type && work->arg.memory == memory) {
            return true;
        }
    }
    return false;
}

/* Whether the steps may run now. With the lock. */
static bool may_launch(const struct hostcuda_body *body, bool frees_what_is_left)
{
    for (size_t i = 0; i < body->count; i++) {
        const struct hostcuda_work *work = &body->steps[i].node->work;
        const struct hostcuda_graph_memory *memory = is_of_memory(work) ? work->arg.memory : NULL;
        bool allocates = work->type == cudaGraphNodeTypeMemAlloc;
        if (memory && allocates && memory->is_left && !frees_what_is_left) {
            return false;
        }
        if (memory && !allocates && !memory->is_left && !has_step(body, cudaGraphNodeTypeMemAlloc, memory)) {
            return false; /* nobody has allocated it */
        }
    }
    return true;
}

/* Ends the lives that a launch began; what it would have freed is as it was before. With the lock. */
static void take_back(const struct hostcuda_body *body, const bool *begins)
{
    for (size_t i = 0; i < body->count; i++) {
        const struct hostcuda_work *work = &body->steps[i].node->work;
        if (begins[i]) {
            end_life(work->arg.memory);
            work->arg.memory->refs--; /* the node has one still */
        }
    }
}

cudaError_t hostcuda_graph_memory_launch(const struct hostcuda_body *body, bool frees_what_is_left, bool *begins)
{
    pthread_mutex_lock(&lock);
    cudaError_t error = may_launch(body, frees_what_is_left) ? cudaSuccess : cudaErrorInvalidValue;
    for (size_t i = 0; i < body->count && !error; i++) {
        const struct hostcuda_work *work = &body->steps[i].node->work;
        if (work->type == cudaGraphNodeTypeMemAlloc && !work->arg.memory->is_left) {
            begins[i] = begin_life(work->arg.memory);
            error = begins[i] ? cudaSuccess : cudaErrorMemoryAllocation;
        }
    }
    for (size_t i = 0; i < body->count && !error; i++) {
        const struct hostcuda_work *work = &body->steps[i].node->work;
        if (is_of_memory(work)) {
            work->arg.memory->is_left = !has_step(body, cudaGraphNodeTypeMemFree, work->arg.memory);
        }
    }
    if (error) {
        take_back(body, begins);
    }
    pthread_mutex_unlock(&lock);
    return error;
}

void hostcuda_graph_memory_unlaunch(const struct hostcuda_body *body, const bool *begins)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < body->count; i++) { /* what the launch found was left, unless it began a life */
        const struct hostcuda_work *work = &body->steps[i].node->work;
        if (work->type == cudaGraphNodeTypeMemAlloc) {
            work->arg.memory->is_left = !begins[i];
        } else if (work->type == cudaGraphNodeTypeMemFree &&
                   !has_step(body, cudaGraphNodeTypeMemAlloc, work->arg.memory)) {
            work->arg.memory->is_left = true;
        }
    }
    take_back(body, begins);
    pthread_mutex_unlock(&lock);
}

cudaError_t hostcuda_graph_memory_leave(struct hostcuda_graph_memory *memory)
{
    pthread_mutex_lock(&lock);
    bool was_left = memory->is_left;
    memory->is_left = false;
    pthread_mutex_unlock(&lock);
    return was_left ? cudaSuccess : cudaErrorInvalidValue;
}

void hostcuda_graph_memory_stay(struct hostcuda_graph_memory *memory)
{
    pthread_mutex_lock(&lock);
    memory->is_left = true;
    pthread_mutex_unlock(&lock);
}

/* streams come to a node, or to a free outside of graphs */

static bool set_there(struct hostcuda_graph_memory *memory, bool is_there)
{
    pthread_mutex_lock(&lock);
    bool was = memory->is_there;
    memory->is_there = is_there;
    pthread_mutex_unlock(&lock);
    return was;
}

void hostcuda_graph_memory_end(struct hostcuda_graph_memory *memory)
{
    set_there(memory, false);
    hostcuda_code_memory(memory->start, memory->bytes, false);
    hostcuda_pages_zero(memory->start, memory->bytes);
    pthread_mutex_lock(&lock);
    end_life(memory);
    pthread_mutex_unlock(&lock);
    hostcuda_graph_memory_put(memory);
}

void hostcuda_graph_memory_run(struct hostcuda_graph_memory *memory, bool allocates)
{
    if (!allocates) {
        hostcuda_graph_memory_end(memory);
        return;
    }
    if (set_there(memory, true)) { /* left by the launch before, and freed by this one */
        hostcuda_pages_zero(memory->start, memory->bytes);
    } else {
        hostcuda_code_memory(memory->start, memory->bytes, true);
    }
    if (hostcuda_fill_byte() >= 0) {
        memset(memory->start, hostcuda_fill_byte(), memory->bytes);
    }
}

uint64_t hostcuda_graph_memory_used(int device, bool is_high)
{
    pthread_mutex_lock(&lock);
    uint64_t bytes = is_high ? high[device] : used[device];
    pthread_mutex_unlock(&lock);
    return bytes;
}

void hostcuda_graph_memory_forget_high(int device)
{
    pthread_mutex_lock(&lock);
    high[device] = used[device];
    pthread_mutex_unlock(&lock);
}
