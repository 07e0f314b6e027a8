/*
 * memory.c: memory: one table holds every allocation and registration, so that the kind of any pointer is known
 * (device, host, managed or unknown memory), and a wrong or second free is an error instead of a crash. Memory of a
 * device is host memory like the other kinds; but its pages are reserved and not committed (pages.c), and count
 * against the device's size.
 *
 * The table is libc's search tree over disjoint intervals: a comparison that calls overlapping intervals equal makes a
 * look-up by any address inside one an ordinary search.
 */
#include "hostnccl/cuda/memory.h"
#include "hostnccl/cuda/stream.h"

#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
    if (taken && !range->is_of_graph) {
        hostcuda_code_memory((const void *)range->start, range->end - range->start, true);
    }
    pthread_rwlock_unlock(&table_lock);
    return taken;
}

/* Whether another process owns the memory, or virtual.c: whoever frees it is wrong. */
static bool is_foreign(const struct hostcuda_range *range)
{
    return range->is_mapped && range->file < 0;
}

/* Takes the range that starts exactly at the address out of the table; NULL when there is none of that kind. Returns
 * owned. */
static struct hostcuda_range *table_take(const void *address, bool is_host, bool is_registered)
{
    uintptr_t start = (uintptr_t)address;
    pthread_rwlock_wrlock(&table_lock);
    struct hostcuda_range *found = lookup(start, start + 1);
    if (found && (found->start != start || (found->type == cudaMemoryTypeHost) != is_host ||
                  found->is_registered != is_registered || is_foreign(found))) {
        found = NULL;
    }
    if (found) {
        hostcuda_code_memory((const void *)found->start, found->end - found->start, false);
        tdelete(found, &table, compare);
    }
    pthread_rwlock_unlock(&table_lock);
    return found;
}

/* Tells others what is in use now, and notes a new high-water mark. The report has a line for each device that was
 * used. */
static void note_used(struct hostcuda_device *on, size_t high)
{
    static pthread_mutex_t peak_lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&peak_lock);
    hostcuda_shared_set(on->physical, atomic_load(&on->used_bytes));
    if (high > on->peak_bytes) {
        on->peak_bytes = high;
        if (on->peak_at < 0 && hostcuda_report_is_wanted()) {
            int start = snprintf(NULL, 0, "memory %d peak ", on->physical);
            on->peak_at =
                hostcuda_report_line(start, "memory %d peak %020d of %020zu\n", on->physical, 0, on->total_bytes);
        }
        hostcuda_report_number(on->peak_at, high);
    }
    pthread_mutex_unlock(&peak_lock);
}

/* Whether so many bytes are left, of those that other processes leave. */
static bool has_room(const struct hostcuda_device *on, size_t used, size_t bytes)
{
    for (int i = 0; i < 2; i++) { /* who has ended is left out only where it matters, because that is looked up */
        size_t others = hostcuda_shared_others(on->physical, i > 0), left = on->total_bytes - used;
        if (used <= on->total_bytes && others <= left && bytes <= left - others) {
            return true;
        }
        if (!others) {
            break;
        }
    }
    return false;
}

/* Device and managed memory counts against the device's limit. */
static bool reserve(struct hostcuda_device *on, size_t bytes)
{
    size_t used = atomic_load(&on->used_bytes);
    do {
        if (!has_room(on, used, bytes)) {
            return false;
        }
    } while (!atomic_compare_exchange_weak(&on->used_bytes, &used, used + bytes));
    note_used(on, used + bytes);
    return true;
}

bool hostcuda_bytes_take(int device, size_t bytes)
{
    return reserve(hostcuda_device_of(device), bytes);
}

void hostcuda_bytes_give(int device, size_t bytes)
{
    struct hostcuda_device *on = hostcuda_device_of(device);
    note_used(on, atomic_fetch_sub(&on->used_bytes, bytes));
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
    size_t bytes = range->end - range->start;
    if (range->type != cudaMemoryTypeHost && !is_foreign(range)) {
        hostcuda_bytes_give(range->device, bytes);
    }
    hostcuda_pool_give(range->pool, bytes);
    if (range->is_mapped && range->file >= 0) {
        close(range->file);
    }
    if ((range->is_reserved || range->is_mapped) && !range->is_virtual) {
        hostcuda_pages_release((void *)range->start, bytes);
    } else if (!range->is_registered && !range->is_virtual) {
        free((void *)range->start);
    }
    free(range);
}

/* Pinned host memory is ordinary memory. */
static void *aligned(size_t bytes)
{
    void *memory = NULL;
    return posix_memalign(&memory, HOSTCUDA_MALLOC_ALIGN, bytes) ? NULL : memory;
}

/* What an allocation is to be. */
struct wish {
    enum cudaMemoryType type;
    unsigned int flags;
    int device;
    struct hostcuda_pool *pool; /* which counts the bytes; NULL: none */
};

/* Takes the reference of the wish's pool on success. */
static cudaError_t allocate(void **out, size_t bytes, const struct wish *wish)
{
    struct hostcuda_device *on = hostcuda_device_of(wish->device);
    bool is_counted = wish->type != cudaMemoryTypeHost;
    if (is_counted && !reserve(on, bytes)) {
        return cudaErrorMemoryAllocation;
    }
    struct hostcuda_range *range = malloc(sizeof(*range));
    void *memory = !range ? NULL : is_counted ? hostcuda_pages_reserve(bytes) : aligned(bytes);
    if (!memory) {
        free(range);
        if (is_counted) {
            hostcuda_bytes_give(wish->device, bytes);
        }
        return cudaErrorMemoryAllocation;
    }
    *range = (struct hostcuda_range){.start = (uintptr_t)memory,
                                     .end = (uintptr_t)memory + bytes,
                                     .type = wish->type,
                                     .device = wish->device,
                                     .flags = wish->flags,
                                     .is_reserved = is_counted};
    fill_fresh(memory, bytes);
    if (!table_add(range)) {
        release(range);
        return cudaErrorMemoryAllocation;
    }
    range->pool = wish->pool;
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
    if (!error && !out) {
        error = cudaErrorInvalidValue;
    }
    if (error) {
        return error;
    }
    *out = NULL;
    struct wish wish = {.type = type, .flags = flags, .device = hostcuda_self()->device};
    return bytes ? allocate(out, bytes, &wish) : cudaSuccess;
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
        (range.type == cudaMemoryTypeHost) != is_host || range.is_registered || is_foreign(&range)) {
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

cudaError_t hostcuda_memory_free_now(void *memory)
{
    return deallocate(memory, false);
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

/* what memory_order.c does with the table */

cudaError_t hostcuda_memory_allocate(void **out, size_t bytes, struct hostcuda_pool *pool)
{
    struct wish wish = {.type = cudaMemoryTypeDevice, .device = hostcuda_pool_device(pool), .pool = pool};
    return allocate(out, bytes, &wish);
}

bool hostcuda_memory_may_free(const void *memory)
{
    struct hostcuda_range range;
    return hostcuda_range_find(memory, 1, &range) && range.start == (uintptr_t)memory &&
           range.type == cudaMemoryTypeDevice && !is_foreign(&range);
}

void hostcuda_memory_free(const void *memory)
{
    struct hostcuda_range *range = table_take(memory, false, false);
    if (range) {
        release(range);
    }
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
    size_t used = atomic_load(&on->used_bytes) + hostcuda_shared_others(on->physical, true);
    *free_bytes = used < on->total_bytes ? on->total_bytes - used : 0;
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

/* memory of other processes: ipc.c */

cudaError_t hostcuda_range_share(const void *address, cudaError_t (*share)(struct hostcuda_range *range),
                                 struct hostcuda_range *copy)
{
    uintptr_t start = (uintptr_t)address;
    cudaError_t error = cudaErrorInvalidValue;
    pthread_rwlock_wrlock(&table_lock);
    struct hostcuda_range *found = lookup(start, start + 1);
    if (found) {
        error = found->is_mapped ? cudaSuccess : share(found);
        *copy = *found;
    }
    pthread_rwlock_unlock(&table_lock);
    return error;
}

static cudaError_t add_foreign(void *memory, size_t bytes, int device, bool is_virtual, bool is_of_graph)
{
    struct hostcuda_range *range = malloc(sizeof(*range));
    if (!range) {
        return cudaErrorMemoryAllocation;
    }
    *range = (struct hostcuda_range){.start = (uintptr_t)memory,
                                     .end = (uintptr_t)memory + bytes,
                                     .type = cudaMemoryTypeDevice,
                                     .device = device,
                                     .is_virtual = is_virtual,
                                     .is_of_graph = is_of_graph,
                                     .is_mapped = true,
                                     .file = -1};
    if (!table_add(range)) {
        free(range);
        return cudaErrorMemoryAllocation;
    }
    return cudaSuccess;
}

cudaError_t hostcuda_range_add_mapped(void *memory, size_t bytes)
{
    return add_foreign(memory, bytes, hostcuda_self()->device, false, false);
}

cudaError_t hostcuda_range_add_virtual(void *memory, size_t bytes, int device, bool is_of_graph)
{
    return add_foreign(memory, bytes, device, true, is_of_graph);
}

cudaError_t hostcuda_range_remove_mapped(const void *memory)
{
    uintptr_t start = (uintptr_t)memory;
    pthread_rwlock_wrlock(&table_lock);
    struct hostcuda_range *found = lookup(start, start + 1);
    found = found && found->start == start && is_foreign(found) ? found : NULL;
    if (found && !found->is_of_graph) {
        hostcuda_code_memory((const void *)found->start, found->end - found->start, false);
    }
    if (found) {
        tdelete(found, &table, compare);
    }
    pthread_rwlock_unlock(&table_lock);
    if (!found) {
        return cudaErrorInvalidValue;
    }
    release(found);
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
    if ((visit == postorder || visit == leaf) && !sweep.found && range->device == sweep.device && !range->is_virtual) {
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
