/*
 * work.c: work: what a stream does when an operation comes up, and what a node of a graph does at every launch. One
 * description serves both, so that a captured call and a call that runs at once cannot come to mean different things.
 *
 * A description owns what is needed to do the work again later (references, arrays, parameters), but not the memory
 * that the work reads and writes: as with the vendor's graphs, a captured copy reads its source when the graph runs.
 */
#include "hostnccl/cuda/graph.h"
#include "hostnccl/cuda/memory.h"

#include <stdlib.h>
#include <string.h>

/* Below this size a copy or a fill is done byte by byte: asking about pages would take longer than it saves. */
enum { SPARSE_LEAST_BYTES = 64 << 10 };

/* Whether it is worth while to think of pages: the bytes are reserved memory, and many. */
static bool is_sparse(const void *address, size_t bytes)
{
    struct hostcuda_range range;
    return bytes >= SPARSE_LEAST_BYTES && hostcuda_range_find(address, bytes, &range) && range.is_reserved;
}

/* One run of bytes. The sides may overlap. */
static void copy_run(void *dst, const void *src, size_t bytes)
{
    uintptr_t to = (uintptr_t)dst, from = (uintptr_t)src;
    bool is_apart = to + bytes <= from || from + bytes <= to;
    if (is_apart && is_sparse(src, bytes) && is_sparse(dst, bytes)) {
        hostcuda_pages_copy(dst, src, bytes);
    } else {
        memmove(dst, src, bytes);
    }
}

static void run_copy(const struct hostcuda_copy *c)
{
    for (size_t slice = 0; slice < c->depth; slice++) {
        char *dst = (char *)c->dst + slice * c->dst_slice;
        const char *src = (const char *)c->src + slice * c->src_slice;
        if (c->width == c->dst_pitch && c->width == c->src_pitch) {
            copy_run(dst, src, c->width * c->height);
            continue;
        }
        for (size_t row = 0; row < c->height; row++) {
            memmove(dst + row * c->dst_pitch, src + row * c->src_pitch, c->width);
        }
    }
}

static void run_fill(const struct hostcuda_fill *f)
{
    if (!f->value && (f->height == 1 || f->pitch == f->width) && is_sparse(f->dst, f->width * f->height)) {
        hostcuda_pages_zero(f->dst, f->width * f->height);
        return;
    }
    for (size_t row = 0; row < f->height; row++) {
        char *dst = (char *)f->dst + row * f->pitch;
        if (f->element == 1) {
            memset(dst, (int)f->value, f->width);
            continue;
        }
        for (size_t at = 0; at < f->width; at += f->element) {
            memcpy(dst + at, &f->value, f->element); /* little-endian: the low bytes come first */
        }
    }
}

void hostcuda_work_run(const struct hostcuda_work *work, void *instance)
{
    if (hostcuda_fault() && !(work->type == cudaGraphNodeTypeHost && work->arg.host.how)) {
        return;
    }
    switch (work->type) {
    case cudaGraphNodeTypeHost:
        if (work->arg.host.how) {
            work->arg.host.how->run(instance);
        } else {
            work->arg.host.fn(work->arg.host.data);
        }
        break;
    case cudaGraphNodeTypeMemcpy:
        run_copy(&work->arg.copy);
        break;
    case cudaGraphNodeTypeMemset:
        run_fill(&work->arg.fill);
        break;
    case cudaGraphNodeTypeKernel:
        hostcuda_kernel_run(&work->arg.kernel);
        break;
    case HOSTCUDA_NODE_BATCH:
        hostcuda_memory_ops_run(work->arg.batch.ops, work->arg.batch.count);
        break;
    case cudaGraphNodeTypeMemAlloc:
    case cudaGraphNodeTypeMemFree:
        hostcuda_graph_memory_run(work->arg.memory, work->type == cudaGraphNodeTypeMemAlloc);
        break;
    default: /* empty nodes and child graphs do nothing themselves; events are the launch's */
        break;
    }
}

/* The parameters of a kernel: pointers into the same block. */
static cudaError_t copy_kernel(struct hostcuda_kernel *kernel)
{
    const char *from = kernel->block;
    if (!from) { /* a launch that is skipped */
        return cudaSuccess;
    }
    char *block = malloc(kernel->block_bytes ? kernel->block_bytes : 1);
    if (!block) {
        return cudaErrorMemoryAllocation;
    }
    memcpy(block, from, kernel->block_bytes);
    void **pointers = (void **)(void *)block;
    for (size_t i = 0; i < kernel->count; i++) {
        pointers[i] = block + ((const char *)pointers[i] - from);
    }
    kernel->block = block;
    return cudaSuccess;
}

static void drop_condition(struct hostcuda_condition *c)
{
    for (unsigned int i = 0; i < c->count; i++) {
        hostcuda_graph_free(&c->bodies[i]);
    }
    free(c->bodies);
}

static cudaError_t copy_condition(struct hostcuda_condition *copy, const struct hostcuda_condition *from)
{
    copy->count = 0;
    copy->bodies = calloc(from->count, sizeof(struct hostcuda_graph *));
    cudaError_t error = copy->bodies ? cudaSuccess : cudaErrorMemoryAllocation;
    for (unsigned int i = 0; !error && i < from->count; i++) {
        error = hostcuda_graph_clone(&copy->bodies[i], from->bodies[i], false);
        if (!error) {
            copy->bodies[i]->is_child = true;
            copy->count++;
        }
    }
    if (error) {
        drop_condition(copy);
    }
    return error;
}

cudaError_t hostcuda_work_copy(struct hostcuda_work *copy, const struct hostcuda_work *work)
{
    *copy = *work;
    switch (work->type) {
    case cudaGraphNodeTypeEventRecord:
    case cudaGraphNodeTypeWaitEvent:
        hostcuda_event_ref(copy->arg.event);
        return cudaSuccess;
    case cudaGraphNodeTypeGraph:
        return hostcuda_graph_clone(&copy->arg.child, work->arg.child, false);
    case cudaGraphNodeTypeConditional:
        return copy_condition(&copy->arg.condition, &work->arg.condition);
    case HOSTCUDA_NODE_BATCH:
        copy->arg.batch.ops = malloc((work->arg.batch.count + 1) * sizeof(*work->arg.batch.ops));
        if (!copy->arg.batch.ops) {
            return cudaErrorMemoryAllocation;
        }
        memcpy(copy->arg.batch.ops, work->arg.batch.ops, work->arg.batch.count * sizeof(*work->arg.batch.ops));
        return cudaSuccess;
    case cudaGraphNodeTypeKernel:
        return copy_kernel(&copy->arg.kernel);
    case cudaGraphNodeTypeMemAlloc:
    case cudaGraphNodeTypeMemFree:
        hostcuda_graph_memory_ref(copy->arg.memory);
        return cudaSuccess;
    default:
        return cudaSuccess;
    }
}

void hostcuda_work_drop(struct hostcuda_work *work)
{
    switch (work->type) {
    case cudaGraphNodeTypeEventRecord:
    case cudaGraphNodeTypeWaitEvent:
        hostcuda_event_put(work->arg.event);
        break;
    case cudaGraphNodeTypeGraph:
        hostcuda_graph_free(&work->arg.child);
        break;
    case cudaGraphNodeTypeConditional:
        drop_condition(&work->arg.condition);
        break;
    case HOSTCUDA_NODE_BATCH:
        free(work->arg.batch.ops);
        break;
    case cudaGraphNodeTypeKernel:
        free(work->arg.kernel.block);
        break;
    case cudaGraphNodeTypeMemAlloc:
    case cudaGraphNodeTypeMemFree:
        hostcuda_graph_memory_put(work->arg.memory);
        break;
    default:
        break;
    }
    work->type = cudaGraphNodeTypeEmpty;
}
