/*
 * memory.c: memory: one table holds every allocation and registration, so that the kind of any pointer is known
 * (device, host, managed or unknown memory), and a wrong or second free is an error instead of a crash. "Device" memory
 * is host memory like the other kinds; only the table makes the difference.
 *
 * The table is libc's search tree over disjoint intervals: a comparison that calls overlapping intervals equal makes a
 * look-up by any address inside one an ordinary search.
 */
#include "hostnccl/cuda/hostcuda.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>

static pthread_rwlock_t table_lock = PTHREAD_RWLOCK_INITIALIZER;
static void *table;

static int compare(const void *a, const void *b)
{
    const struct hostcuda_range *x = a, *y = b;
    return x->end <= y->start ? -1 : x->start >= y->end;
}

static struct hostcuda_range *lookup(uintptr_t start, uintptr_t end)
{
    struct hostcuda_range key = {.start = start, .end = end};
    struct hostcuda_range **node = tfind(&key, &table, compare);
    return node ? *node : NULL;
}

bool hostcuda_range_find(const void *address, size_t bytes, struct hostcuda_range *range)
{
    uintptr_t start = (uintptr_t)address;
    pthread_rwlock_rdlock(&table_lock);
    struct hostcuda_range *found = lookup(start, start + 1);
    if (found && bytes <= found->end - start) {
        *range = *found;
    } else {
        found = NULL;
    }
    pthread_rwlock_unlock(&table_lock);
    return found != NULL;
}

/* Takes the range; false without memory or when it overlaps another. */
static bool table_add(struct hostcuda_range *range)
{
    pthread_rwlock_wrlock(&table_lock);
    struct hostcuda_range **node = tsearch(range, &table, compare);
    bool taken = node && *node == range; /* the node may be gone as soon as the lock is */
    pthread_rwlock_unlock(&table_lock);
    return taken;
}

/* Takes the range that starts exactly at the address out of the table; NULL when there is none of that kind. Returns
 * owned. */
static struct hostcuda_range *table_take(const void *address, bool is_host, bool is_registered)
{
    uintptr_t start = (uintptr_t)address;
    pthread_rwlock_wrlock(&table_lock);
    struct hostcuda_range *found = lookup(start, start + 1);
    if (found && (found->start != start || (found->type == cudaMemoryTypeHost) != is_host ||
                  found->is_registered != is_registered)) {
        found = NULL;
    }
    if (found) {
        tdelete(found, &table, compare);
    }
    pthread_rwlock_unlock(&table_lock);
    return found;
}

/* Device and managed memory counts against the device's limit. */
static bool reserve(struct hostcuda_device *on, size_t bytes)
{
    size_t used = atomic_load(&on->used_bytes);
    do {
        if (bytes > on->total_bytes || used > on->total_bytes - bytes) {
            return false;
        }
    } while (!atomic_compare_exchange_weak(&on->used_bytes, &used, used + bytes));
    return true;
}

/* Fills fresh memory as HOSTCUDA_FILL says, to expose the use of memory that was never written. */
static void fill_fresh(void *memory, size_t bytes)
{
    if (hostcuda_fill_byte() >= 0) {
        memset(memory, hostcuda_fill_byte(), bytes);
    }
}

static void release(struct hostcuda_range *range)
{
    if (range->type != cudaMemoryTypeHost) {
        atomic_fetch_sub(&hostcuda_device_of(range->device)->used_bytes, range->end - range->start);
    }
    if (!range->is_registered) {
        free((void *)range->start);
    }
    free(range);
}

static cudaError_t allocate(void **out, size_t bytes, enum cudaMemoryType type, unsigned int flags)
{
    cudaError_t error = hostcuda_enter_work();
    if (error) {
        return error;
    }
    if (!out) {
        return cudaErrorInvalidValue;
    }
    *out = NULL;
    if (!bytes) {
        return cudaSuccess;
    }
    int device = hostcuda_self()->device;
    struct hostcuda_device *on = hostcuda_device_of(device);
    bool is_counted = type != cudaMemoryTypeHost;
    if (is_counted && !reserve(on, bytes)) {
        return cudaErrorMemoryAllocation;
    }
    void *memory = NULL;
    struct hostcuda_range *range = malloc(sizeof(*range));
    if (!range || posix_memalign(&memory, HOSTCUDA_MALLOC_ALIGN, bytes)) {
        free(range);
        if (is_counted) {
            atomic_fetch_sub(&on->used_bytes, bytes);
        }
        return cudaErrorMemoryAllocation;
    }
    *range = (struct hostcuda_range){
        .start = (uintptr_t)memory, .end = (uintptr_t)memory + bytes, .type = type, .device = device, .flags = flags};
    fill_fresh(memory, bytes);
    if (!table_add(range)) {
        release(range);
        return cudaErrorMemoryAllocation;
    }
    *out = memory;
    return cudaSuccess;
}

/* Allocates at once and in no stream's order, so no capture sees it. */
static cudaError_t allocate_now(void **out, size_t bytes, enum cudaMemoryType type, unsigned int flags)
{
    cudaError_t error = hostcuda_enter_work();
    if (!error) {
        error = hostcuda_capture_unsafe();
    }
    return error ? error : allocate(out, bytes, type, flags);
}

/* Like the vendor's free, it first waits for the device that owns the memory; NULL is freed at once. */
static cudaError_t deallocate(void *memory, bool is_host)
{
    cudaError_t error = hostcuda_enter_work();
    struct hostcuda_range range;
    if (error || !memory) {
        return error;
    }
    if (!hostcuda_range_find(memory, 1, &range) || range.start != (uintptr_t)memory ||
        (range.type == cudaMemoryTypeHost) != is_host || range.is_registered) {
        return cudaErrorInvalidValue;
    }
    error = hostcuda_capture_unsafe();
    if (!error) {
        error = hostcuda_device_drain(range.device);
    }
    if (error) {
        return error;
    }
    struct hostcuda_range *taken = table_take(memory, is_host, false);
    if (!taken) { /* another thread freed it meanwhile */
        return cudaErrorInvalidValue;
    }
    release(taken);
    return cudaSuccess;
}

HOSTCUDA_EXPORT cudaError_t cudaMalloc(void **out, size_t bytes)
{
    return hostcuda_leave(allocate_now(out, bytes, cudaMemoryTypeDevice, 0));
}

HOSTCUDA_EXPORT cudaError_t cudaFree(void *memory)
{
    return hostcuda_leave(deallocate(memory, false));
}

HOSTCUDA_EXPORT cudaError_t cudaMallocManaged(void **out, size_t bytes, unsigned int flags)
{
    if (!bytes || (flags != cudaMemAttachGlobal && flags != cudaMemAttachHost)) {
        return hostcuda_leave(cudaErrorInvalidValue);
    }
    return hostcuda_leave(allocate_now(out, bytes, cudaMemoryTypeManaged, flags));
}

HOSTCUDA_EXPORT cudaError_t cudaMallocPitch(void **out, size_t *pitch, size_t width, size_t height)
{
    size_t bytes;
    if (!pitch || width > SIZE_MAX - HOSTCUDA_PITCH_ALIGN) {
        return hostcuda_leave(cudaErrorInvalidValue);
    }
    size_t padded = (width + HOSTCUDA_PITCH_ALIGN - 1) / HOSTCUDA_PITCH_ALIGN * HOSTCUDA_PITCH_ALIGN;
    if (__builtin_mul_overflow(padded, height, &bytes)) {
        return hostcuda_leave(cudaErrorMemoryAllocation);
    }
    cudaError_t error = allocate_now(out, bytes, cudaMemoryTypeDevice, 0);
    if (!error) {
        *pitch = padded;
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaMallocAsync(void **out, size_t bytes, cudaStream_t handle)
{
    struct hostcuda_stream *stream;
    cudaError_t error = hostcuda_enter_work();
    if (!error) {
        error = hostcuda_stream_get(handle, &stream);
    }
    if (!error) {
        error = hostcuda_capture_refuse(stream);
        if (!error) {
            error = allocate(out, bytes, cudaMemoryTypeDevice, 0);
        }
        hostcuda_stream_put(stream);
    }
    return hostcuda_leave(error);
}

static void run_free(struct hostcuda_op *op)
{
    struct hostcuda_range *range = table_take(op->arg.memory, false, false);
    if (range) {
        release(range);
    }
}

HOSTCUDA_EXPORT cudaError_t cudaFreeAsync(void *memory, cudaStream_t handle)
{
    struct hostcuda_stream *stream;
    struct hostcuda_range range;
    cudaError_t error = hostcuda_enter_work();
    if (error) {
        return hostcuda_leave(error);
    }
    if (!hostcuda_range_find(memory, 1, &range) || range.start != (uintptr_t)memory ||
        range.type != cudaMemoryTypeDevice) {
        return hostcuda_leave(cudaErrorInvalidValue);
    }
    error = hostcuda_stream_get(handle, &stream);
    if (error) {
        return hostcuda_leave(error);
    }
    error = hostcuda_capture_refuse(stream);
    struct hostcuda_op *op = error ? NULL : calloc(1, sizeof(*op));
    if (op) {
        op->run = run_free;
        op->arg.memory = memory;
        error = hostcuda_stream_submit(stream, op);
    } else if (!error) {
        error = cudaErrorMemoryAllocation;
    }
    if (error) {
        free(op);
    }
    hostcuda_stream_put(stream);
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned int flags)
{
    const unsigned int known = cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
    if (flags & ~known) {
        return hostcuda_leave(cudaErrorInvalidValue);
    }
    return hostcuda_leave(allocate_now(out, bytes, cudaMemoryTypeHost, flags));
}

HOSTCUDA_EXPORT cudaError_t cudaMallocHost(void **out, size_t bytes)
{
    return hostcuda_leave(allocate_now(out, bytes, cudaMemoryTypeHost, cudaHostAllocDefault));
}

HOSTCUDA_EXPORT cudaError_t cudaFreeHost(void *memory)
{
    return hostcuda_leave(deallocate(memory, true));
}

HOSTCUDA_EXPORT cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned int flags)
{
    const unsigned int known =
        cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterIoMemory | cudaHostRegisterReadOnly;
    cudaError_t error = hostcuda_enter_work();
    if (error) {
        return hostcuda_leave(error);
    }
    if (!memory || !bytes || flags & ~known) {
        return hostcuda_leave(cudaErrorInvalidValue);
    }
    error = hostcuda_capture_unsafe();
    if (error) {
        return hostcuda_leave(error);
    }
    struct hostcuda_range *range = malloc(sizeof(*range));
    if (!range) {
        return hostcuda_leave(cudaErrorMemoryAllocation);
    }
    *range = (struct hostcuda_range){.start = (uintptr_t)memory,
                                     .end = (uintptr_t)memory + bytes,
                                     .type = cudaMemoryTypeHost,
                                     .device = hostcuda_self()->device,
                                     .flags = flags,
                                     .is_registered = true};
    if (!table_add(range)) {
        free(range);
        return hostcuda_leave(cudaErrorHostMemoryAlreadyRegistered);
    }
    return cudaSuccess;
}

HOSTCUDA_EXPORT cudaError_t cudaHostUnregister(void *memory)
{
    cudaError_t error = hostcuda_enter_work();
    if (!error && !memory) {
        error = cudaErrorInvalidValue;
    }
    if (!error) {
        struct hostcuda_range *range = table_take(memory, true, true);
        if (range) {
            release(range);
        } else {
            error = cudaErrorHostMemoryNotRegistered;
        }
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned int flags)
{
    struct hostcuda_range range;
    cudaError_t error = hostcuda_enter();
    if (!error) {
        bool is_known = device && !flags && hostcuda_range_find(host, 1, &range) && range.type == cudaMemoryTypeHost;
        error = is_known ? cudaSuccess : cudaErrorInvalidValue;
    }
    if (!error) {
        *device = host;
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaHostGetFlags(unsigned int *flags, void *host)
{
    struct hostcuda_range range;
    cudaError_t error = hostcuda_enter();
    if (!error) {
        bool is_known = flags && hostcuda_range_find(host, 1, &range) && range.type == cudaMemoryTypeHost;
        error = is_known ? cudaSuccess : cudaErrorInvalidValue;
    }
    if (!error) {
        /* There is one address space, so all host memory is mapped, whether that was asked for or not. */
        *flags = range.flags | cudaHostAllocMapped;
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    cudaError_t error = hostcuda_enter();
    if (error) {
        return hostcuda_leave(error);
    }
    if (!free_bytes || !total_bytes) {
        return hostcuda_leave(cudaErrorInvalidValue);
    }
    struct hostcuda_device *on = hostcuda_device_of(hostcuda_self()->device);
    *total_bytes = on->total_bytes;
    *free_bytes = on->total_bytes - atomic_load(&on->used_bytes);
    return cudaSuccess;
}

HOSTCUDA_EXPORT cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer)
{
    struct hostcuda_range range;
    cudaError_t error = hostcuda_enter();
    if (error) {
        return hostcuda_leave(error);
    }
    if (!attributes) {
        return hostcuda_leave(cudaErrorInvalidValue);
    }
    memset(attributes, 0, sizeof(*attributes));
    if (!hostcuda_range_find(pointer, 1, &range)) {
        attributes->type = cudaMemoryTypeUnregistered;
        attributes->device = -2; /* what the vendor's answers for memory that belongs to no device */
        attributes->hostPointer = (void *)(uintptr_t)pointer;
        return cudaSuccess;
    }
    attributes->type = range.type;
    attributes->device = range.device;
    attributes->devicePointer = (void *)(uintptr_t)pointer;
    attributes->hostPointer = range.type == cudaMemoryTypeDevice ? NULL : (void *)(uintptr_t)pointer;
    return cudaSuccess;
}

static struct {
    int device;
    struct hostcuda_range *found;
} sweep; /* twalk hands nothing to its action; guarded by table_lock */

static void sweep_node(const void *node, VISIT visit, int depth)
{
    (void)depth;
    struct hostcuda_range *range = *(struct hostcuda_range *const *)node;
    if ((visit == postorder || visit == leaf) && !sweep.found && range->device == sweep.device) {
        sweep.found = range;
    }
}

void hostcuda_memory_reset(int device)
{
    do {
        pthread_rwlock_wrlock(&table_lock);
        sweep.device = device;
        sweep.found = NULL;
        twalk(table, sweep_node);
        struct hostcuda_range *range = sweep.found;
        if (range) {
            tdelete(range, &table, compare);
        }
        pthread_rwlock_unlock(&table_lock);
        if (!range) {
            return;
        }
        release(range);
    } while (true);
}
