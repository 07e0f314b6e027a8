/*
 * virtual.c: addresses, memory and what lies where as three things: what cuMemAddressReserve, cuMemCreate and cuMemMap
 * of the driver interface do. Addresses are a mapping without access. Memory is a piece of a file in memory, so that it
 * can lie at several addresses, and keeps what it holds while it lies nowhere. Memory that other processes may get has
 * a file of its own, since they get its descriptor; all other memory has pieces of one file, because a framework makes
 * thousands of them and a process may have few descriptors. A place in that file is used once: what is given back is a
 * hole, and costs nothing.
 *
 * To the table of memory.c addresses with something mapped are one piece of device memory, because a tensor may span
 * many of these mappings. A copy to addresses of it where nothing lies is a fault, as on a device.
 */
#include "hostnccl/cuda/hostcuda.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const size_t GRANULE = HOSTCUDA_VIRTUAL_GRANULE;

struct hostcuda_memory {
    struct hostcuda_handle handle; /* one reference for the program, one for each mapping */
    int device;
    size_t bytes;
    int file;       /* own, if is_shared; else the file of all */
    off_t at;       /* place in that file */
    bool is_shared; /* another process may have it */
    bool is_counted;
    unsigned int held; /* references of the program, guarded by the lock; 0: no handle any more */
};

struct mapping {
    struct mapping *next;
    uintptr_t start, end;
    struct hostcuda_memory *memory; /* owned reference */
};

struct reservation {
    struct reservation *next;
    uintptr_t start, end;
    struct mapping *mappings;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below */
static struct reservation *reservations;
static int common_file = -1;
static off_t common_end;

static cudaError_t enter(void)
{
    return hostcuda_enter_work();
}

static struct reservation *reservation_of(uintptr_t start, size_t bytes)
{
    struct reservation *r = reservations;
    while (r && (start < r->start || start >= r->end || bytes > r->end - start)) {
        r = r->next;
    }
    return r;
}

static bool is_aligned(uintptr_t address, size_t bytes)
{
    return bytes && address % GRANULE == 0 && bytes % GRANULE == 0;
}

/* Maps more than is asked for, and gives back what lies before and behind the aligned part. */
static void *reserve_aligned(size_t bytes, size_t alignment)
{
    if (bytes > SIZE_MAX - alignment) {
        return NULL;
    }
    char *all = mmap(NULL, bytes + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) {
        return NULL;
    }
    size_t head = (alignment - (uintptr_t)all % alignment) % alignment;
    if (head) {
        munmap(all, head);
    }
    munmap(all + head + bytes, alignment - head);
    return all + head;
}

cudaError_t hostcuda_virtual_reserve(void **out, size_t bytes, size_t alignment)
{
    cudaError_t error = enter();
    alignment = alignment > GRANULE ? alignment : GRANULE;
    if (!error && (!out || !is_aligned(0, bytes) || (alignment & (alignment - 1)) != 0)) {
        error = cudaErrorInvalidValue;
    }
    struct reservation *r = error ? NULL : calloc(1, sizeof(*r));
    void *memory = r ? reserve_aligned(bytes, alignment) : NULL;
    if (error || !memory) {
        free(r);
        return hostcuda_leave(error ? error : cudaErrorMemoryAllocation);
    }
    *r = (struct reservation){.start = (uintptr_t)memory, .end = (uintptr_t)memory + bytes};
    pthread_mutex_lock(&lock);
    r->next = reservations;
    reservations = r;
    pthread_mutex_unlock(&lock);
    *out = memory;
    return cudaSuccess;
}

cudaError_t hostcuda_virtual_free(void *memory, size_t bytes)
{
    struct reservation *found = NULL;
    cudaError_t error = enter();
    if (error) {
        return hostcuda_leave(error);
    }
    pthread_mutex_lock(&lock);
    for (struct reservation **at = &reservations; *at; at = &(*at)->next) {
        if ((*at)->start == (uintptr_t)memory && (*at)->end - (*at)->start == bytes && !(*at)->mappings) {
            found = *at;
            *at = found->next;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    if (found) {
        munmap(memory, bytes);
        free(found);
    }
    return hostcuda_leave(found ? cudaSuccess : cudaErrorInvalidValue);
}

/* memory */

static void release(struct hostcuda_handle *handle)
{
    struct hostcuda_memory *memory = (struct hostcuda_memory *)handle;
    if (memory->is_shared) {
        close(memory->file);
    } else {
        (void)fallocate(memory->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, memory->at, (off_t)memory->bytes);
    }
    if (memory->is_counted) {
        hostcuda_bytes_give(memory->device, memory->bytes);
    }
    free(memory);
}

/* A piece of a file of its own, or of the common file. False with errno. */
static bool find_place(struct hostcuda_memory *memory)
{
    if (memory->is_shared) {
        memory->file = memfd_create("hostcuda", MFD_CLOEXEC);
        return memory->file >= 0 && !ftruncate(memory->file, (off_t)memory->bytes);
    }
    pthread_mutex_lock(&lock);
    if (common_file < 0) {
        common_file = memfd_create("hostcuda", MFD_CLOEXEC);
    }
    memory->file = common_file;
    memory->at = common_end;
    bool is_there = common_file >= 0 && !ftruncate(common_file, common_end + (off_t)memory->bytes);
    common_end += is_there ? (off_t)memory->bytes : 0;
    pthread_mutex_unlock(&lock);
    return is_there;
}

static cudaError_t announce(struct hostcuda_memory **out, struct hostcuda_memory *memory)
{
    memory->handle.release = release;
    memory->held = 1;
    atomic_store(&memory->handle.refs, 1);
    cudaError_t error = hostcuda_handle_add(HOSTCUDA_MEMORY, &memory->handle);
    if (error) {
        release(&memory->handle);
        return error;
    }
    *out = memory;
    return cudaSuccess;
}

cudaError_t hostcuda_virtual_create(struct hostcuda_memory **out, size_t bytes, int device, bool is_shared)
{
    cudaError_t error = enter();
    if (!error && (!out || !is_aligned(0, bytes))) {
        error = cudaErrorInvalidValue;
    }
    if (!error && !hostcuda_device_of(device)) {
        error = cudaErrorInvalidDevice;
    }
    if (!error && !hostcuda_bytes_take(device, bytes)) {
        error = cudaErrorMemoryAllocation;
    }
    if (error) {
        return hostcuda_leave(error);
    }
    struct hostcuda_memory *memory = calloc(1, sizeof(*memory));
    if (memory) {
        *memory = (struct hostcuda_memory){
            .device = device, .bytes = bytes, .file = -1, .is_shared = is_shared, .is_counted = true};
    }
    if (!memory || !find_place(memory)) {
        if (memory && is_shared && memory->file >= 0) {
            close(memory->file);
        }
        free(memory);
        hostcuda_bytes_give(device, bytes);
        return hostcuda_leave(cudaErrorMemoryAllocation);
    }
    return hostcuda_leave(announce(out, memory));
}

cudaError_t hostcuda_virtual_release(struct hostcuda_memory *memory)
{
    cudaError_t error = enter();
    if (error) {
        return hostcuda_leave(error);
    }
    pthread_mutex_lock(&lock);
    struct hostcuda_handle *handle = hostcuda_handle_get(HOSTCUDA_MEMORY, memory);
    if (handle && --memory->held == 0) {
        hostcuda_handle_put(hostcuda_handle_remove(HOSTCUDA_MEMORY, memory));
    }
    hostcuda_handle_put(handle);
    pthread_mutex_unlock(&lock);
    return hostcuda_leave(handle ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t hostcuda_virtual_about(struct hostcuda_memory *memory, int *device, bool *is_shared)
{
    cudaError_t error = enter();
    struct hostcuda_handle *handle = error ? NULL : hostcuda_handle_get(HOSTCUDA_MEMORY, memory);
    if (handle) {
        *device = memory->device;
        *is_shared = memory->is_shared;
    }
    hostcuda_handle_put(handle);
    return hostcuda_leave(error ? error : handle ? cudaSuccess : cudaErrorInvalidValue);
}

/* mappings */

static bool overlaps(const struct reservation *r, uintptr_t start, uintptr_t end)
{
    for (const struct mapping *m = r->mappings; m; m = m->next) {
        if (m->start < end && start < m->end) {
            return true;
        }
    }
    return false;
}

/* With the lock held. Takes the reference to the memory on success. */
static cudaError_t map_locked(uintptr_t start, size_t bytes, struct hostcuda_memory *memory)
{
    struct reservation *r = reservation_of(start, bytes);
    if (!r || overlaps(r, start, start + bytes)) {
        return cudaErrorInvalidValue;
    }
    struct mapping *m = calloc(1, sizeof(*m));
    cudaError_t error = !m            ? cudaErrorMemoryAllocation
                        : r->mappings ? cudaSuccess
                                      : hostcuda_range_add_virtual((void *)r->start, r->end - r->start, memory->device);
    if (error) {
        free(m);
        return error;
    }
    if (mmap((void *)start, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, memory->file, memory->at) ==
        MAP_FAILED) {
        if (!r->mappings) {
            (void)hostcuda_range_remove_mapped((void *)r->start);
        }
        free(m);
        return cudaErrorMemoryAllocation;
    }
    *m = (struct mapping){.next = r->mappings, .start = start, .end = start + bytes, .memory = memory};
    r->mappings = m;
    return cudaSuccess;
}

cudaError_t hostcuda_virtual_map(void *at, size_t bytes, size_t offset, struct hostcuda_memory *handle)
{
    cudaError_t error = enter();
    struct hostcuda_memory *memory =
        error ? NULL : (struct hostcuda_memory *)hostcuda_handle_get(HOSTCUDA_MEMORY, handle);
    if (!error && (!memory || !is_aligned((uintptr_t)at, bytes) || offset || bytes != memory->bytes)) {
        error = cudaErrorInvalidValue; /* as the vendor's: an offset must be 0, and memory is mapped whole */
    }
    if (!error) {
        pthread_mutex_lock(&lock);
        error = map_locked((uintptr_t)at, bytes, memory);
        pthread_mutex_unlock(&lock);
    }
    if (error) {
        hostcuda_handle_put(memory ? &memory->handle : NULL);
    }
    return hostcuda_leave(error);
}

/* The bytes of [start, end) that are mapped; with `is_whole` only mappings that lie in it as a whole. */
static size_t mapped_in(const struct reservation *r, uintptr_t start, uintptr_t end, bool is_whole)
{
    size_t bytes = 0;
    for (const struct mapping *m = r->mappings; m; m = m->next) {
        if (m->start >= start && m->end <= end) {
            bytes += m->end - m->start;
        } else if (!is_whole && m->start < end && start < m->end) {
            bytes += (m->end < end ? m->end : end) - (m->start > start ? m->start : start);
        }
    }
    return bytes;
}

/* With the lock held. */
static cudaError_t unmap_locked(uintptr_t start, size_t bytes)
{
    struct reservation *r = reservation_of(start, bytes);
    if (!r || mapped_in(r, start, start + bytes, true) != bytes) {
        return cudaErrorInvalidValue;
    }
    if (mmap((void *)start, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
        MAP_FAILED) {
        return cudaErrorOperatingSystem;
    }
    for (struct mapping **at = &r->mappings; *at;) {
        struct mapping *m = *at;
        if (m->start >= start && m->end <= start + bytes) {
            *at = m->next;
            hostcuda_handle_put(&m->memory->handle);
            free(m);
        } else {
            at = &m->next;
        }
    }
    return r->mappings ? cudaSuccess : hostcuda_range_remove_mapped((void *)r->start);
}

static struct mapping *mapping_of(uintptr_t address)
{
    struct reservation *r = reservation_of(address, 1);
    struct mapping *m = r ? r->mappings : NULL;
    while (m && (address < m->start || address >= m->end)) {
        m = m->next;
    }
    return m;
}

/* Memory whose last handle was released, and which still lies somewhere, gets a handle again. */
cudaError_t hostcuda_virtual_retain(struct hostcuda_memory **out, const void *at)
{
    cudaError_t error = out ? enter() : cudaErrorInvalidValue;
    if (error) {
        return hostcuda_leave(error);
    }
    pthread_mutex_lock(&lock);
    struct mapping *m = mapping_of((uintptr_t)at);
    error = m ? cudaSuccess : cudaErrorInvalidValue;
    if (!error && !m->memory->held) {
        error = hostcuda_handle_add(HOSTCUDA_MEMORY, &m->memory->handle);
        atomic_fetch_add(&m->memory->handle.refs, error ? 0 : 1);
    }
    if (!error) {
        m->memory->held++;
        *out = m->memory;
    }
    pthread_mutex_unlock(&lock);
    return hostcuda_leave(error);
}

/* Like a free, it first waits for the device: work that is queued may use the memory. */
cudaError_t hostcuda_virtual_unmap(void *at, size_t bytes)
{
    struct hostcuda_range range;
    cudaError_t error = enter();
    if (!error && (!is_aligned((uintptr_t)at, bytes) || !hostcuda_range_find(at, bytes, &range) || !range.is_virtual)) {
        error = cudaErrorInvalidValue;
    }
    if (!error) {
        error = hostcuda_device_drain(range.device);
    }
    if (!error) {
        pthread_mutex_lock(&lock);
        error = unmap_locked((uintptr_t)at, bytes);
        pthread_mutex_unlock(&lock);
    }
    return hostcuda_leave(error);
}

cudaError_t hostcuda_virtual_access(void *at, size_t bytes, bool can_read, bool can_write)
{
    cudaError_t error = enter();
    if (!error) {
        pthread_mutex_lock(&lock);
        const struct reservation *r = reservation_of((uintptr_t)at, bytes);
        int access = (can_read ? PROT_READ : PROT_NONE) | (can_write ? PROT_WRITE : PROT_NONE);
        if (!is_aligned((uintptr_t)at, bytes) || !r ||
            mapped_in(r, (uintptr_t)at, (uintptr_t)at + bytes, false) != bytes) {
            error = cudaErrorInvalidValue;
        } else if (mprotect(at, bytes, access)) {
            error = cudaErrorOperatingSystem;
        }
        pthread_mutex_unlock(&lock);
    }
    return hostcuda_leave(error);
}

/* other processes */

cudaError_t hostcuda_virtual_export(int *file, struct hostcuda_memory *handle)
{
    cudaError_t error = enter();
    struct hostcuda_memory *memory =
        error ? NULL : (struct hostcuda_memory *)hostcuda_handle_get(HOSTCUDA_MEMORY, handle);
    if (!error && (!file || !memory || !memory->is_shared)) {
        error = cudaErrorInvalidValue;
    }
    if (!error) {
        *file = fcntl(memory->file, F_DUPFD_CLOEXEC, 0);
        error = *file < 0 ? cudaErrorOperatingSystem : cudaSuccess;
    }
    hostcuda_handle_put(memory ? &memory->handle : NULL);
    return hostcuda_leave(error);
}

cudaError_t hostcuda_virtual_import(struct hostcuda_memory **out, int file)
{
    struct stat about;
    cudaError_t error = out ? enter() : cudaErrorInvalidValue;
    if (!error && (fstat(file, &about) || !S_ISREG(about.st_mode) || !is_aligned(0, (size_t)about.st_size))) {
        error = cudaErrorInvalidValue;
    }
    int own = error ? -1 : fcntl(file, F_DUPFD_CLOEXEC, 0);
    struct hostcuda_memory *memory = own < 0 ? NULL : calloc(1, sizeof(*memory));
    if (error || !memory) {
        if (own >= 0) {
            close(own);
        }
        return hostcuda_leave(error ? error : cudaErrorOperatingSystem);
    }
    *memory = (struct hostcuda_memory){
        .device = hostcuda_self()->device, .bytes = (size_t)about.st_size, .file = own, .is_shared = true};
    return hostcuda_leave(announce(out, memory));
}
