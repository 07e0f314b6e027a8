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
 *
 * Reservations, and the mappings of each, are arrays in the order of their addresses: a framework that grows a piece of
 * memory by 2 MiB has ten thousands of mappings, and adds at the end. A tree was rejected: most calls want the
 * neighbours too, and moving 40,000 entries costs less than what the kernel does for the mapping.
 */
#include "hostnccl/cuda/memory.h"
#include "hostnccl/cuda/stream.h"

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
    uintptr_t start, end;
    struct hostcuda_memory *memory; /* owned reference */
};

struct reservation {
    uintptr_t start, end;
    struct mapping *mappings; /* owned, ascending */
    size_t count, room;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below */
static struct reservation **reservations;                /* owned, ascending */
static size_t reservation_count, reservation_room;
static int common_file = -1;
static off_t common_end;

static cudaError_t enter(void)
{
    return hostcuda_enter_work();
}

/* The place of the first reservation that ends behind the address. */
static size_t reservation_at(uintptr_t address)
{
    size_t low = 0, high = reservation_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (reservations[middle]->end > address) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

static struct reservation *reservation_of(uintptr_t start, size_t bytes)
{
    size_t at = reservation_at(start);
    struct reservation *r = at < reservation_count ? reservations[at] : NULL;
    return r && start >= r->start && bytes <= r->end - start ? r : NULL;
}

/* The place of the first mapping that ends behind the address. */
static size_t mapping_at(const struct reservation *r, uintptr_t address)
{
    size_t low = 0, high = r->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (r->mappings[middle].end > address) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

/* Room for one more element, by doubling; false without memory. */
static bool make_room(void **array, size_t *room, size_t count, size_t element)
{
    if (count < *room) {
        return true;
    }
    size_t more = *room ? *room * 2 : 16;
    void *grown = reallocarray(*array, more, element);
    if (grown) {
        *array = grown;
        *room = more;
    }
    return grown != NULL;
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
    bool has_room =
        make_room((void **)&reservations, &reservation_room, reservation_count, sizeof(struct reservation *));
    if (has_room) {
        size_t at = reservation_at(r->start);
        memmove(reservations + at + 1, reservations + at, (reservation_count - at) * sizeof(struct reservation *));
        reservations[at] = r;
        reservation_count++;
    }
    pthread_mutex_unlock(&lock);
    if (!has_room) {
        munmap(memory, bytes);
        free(r);
        return hostcuda_leave(cudaErrorMemoryAllocation);
    }
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
    size_t at = reservation_at((uintptr_t)memory);
    struct reservation *r = at < reservation_count ? reservations[at] : NULL;
    if (r && r->start == (uintptr_t)memory && r->end - r->start == bytes && !r->count) {
        found = r;
        reservation_count--;
        memmove(reservations + at, reservations + at + 1, (reservation_count - at) * sizeof(struct reservation *));
    }
    pthread_mutex_unlock(&lock);
    if (found) {
        munmap(memory, bytes);
        free(found->mappings);
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

/* With the lock held. Takes the reference to the memory on success. */
static cudaError_t map_locked(uintptr_t start, size_t bytes, struct hostcuda_memory *memory)
{
    struct reservation *r = reservation_of(start, bytes);
    size_t at = r ? mapping_at(r, start) : 0;
    if (!r || (at < r->count && r->mappings[at].start < start + bytes)) {
        return cudaErrorInvalidValue;
    }
    cudaError_t error =
        !make_room((void **)&r->mappings, &r->room, r->count, sizeof(*r->mappings)) ? cudaErrorMemoryAllocation
        : r->count                                                                  ? cudaSuccess
                   : hostcuda_range_add_virtual((void *)r->start, r->end - r->start, memory->device, false);
    if (error) {
        return error;
    }
    if (mmap((void *)start, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, memory->file, memory->at) ==
        MAP_FAILED) {
        if (!r->count) {
            (void)hostcuda_range_remove_mapped((void *)r->start);
        }
        return cudaErrorMemoryAllocation;
    }
    memmove(r->mappings + at + 1, r->mappings + at, (r->count - at) * sizeof(*r->mappings));
    r->mappings[at] = (struct mapping){.start = start, .end = start + bytes, .memory = memory};
    r->count++;
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
    for (size_t i = mapping_at(r, start); i < r->count && r->mappings[i].start < end; i++) {
        const struct mapping *m = &r->mappings[i];
        if (m->start >= start && m->end <= end) {
            bytes += m->end - m->start;
        } else if (!is_whole) {
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
    size_t first = mapping_at(r, start), behind = first;
    while (behind < r->count && r->mappings[behind].end <= start + bytes) {
        hostcuda_handle_put(&r->mappings[behind++].memory->handle);
    }
    memmove(r->mappings + first, r->mappings + behind, (r->count - behind) * sizeof(*r->mappings));
    r->count -= behind - first;
    return r->count ? cudaSuccess : hostcuda_range_remove_mapped((void *)r->start);
}

static struct mapping *mapping_of(uintptr_t address)
{
    struct reservation *r = reservation_of(address, 1);
    size_t at = r ? mapping_at(r, address) : 0;
    return r && at < r->count && r->mappings[at].start <= address ? &r->mappings[at] : NULL;
}

/*
 * The pieces of files that lie at [at, at + bytes), in order; neighbours that are neighbours in their file as well are
 * one piece. cudaErrorInvalidValue where something is not mapped.
 */
cudaError_t hostcuda_virtual_pieces(const void *at, size_t bytes, struct hostcuda_piece **out, size_t *count)
{
    uintptr_t start = (uintptr_t)at, end = start + bytes;
    struct hostcuda_piece *pieces = NULL;
    size_t n = 0, room = 0;
    cudaError_t error = cudaSuccess;
    pthread_mutex_lock(&lock);
    const struct reservation *r = reservation_of(start, bytes);
    if (!r || mapped_in(r, start, end, false) != bytes) {
        error = cudaErrorInvalidValue;
    }
    for (size_t i = error ? 0 : mapping_at(r, start); !error && i < r->count && r->mappings[i].start < end; i++) {
        const struct mapping *m = &r->mappings[i];
        uintptr_t from = m->start > start ? m->start : start, to = m->end < end ? m->end : end;
        struct hostcuda_piece piece = {
            .file = m->memory->file, .at = m->memory->at + (off_t)(from - m->start), .bytes = to - from};
        struct hostcuda_piece *last = n ? &pieces[n - 1] : NULL;
        if (last && last->file == piece.file && last->at + (off_t)last->bytes == piece.at) {
            last->bytes += piece.bytes;
        } else if (make_room((void **)&pieces, &room, n, sizeof(*pieces))) {
            pieces[n++] = piece;
        } else {
            error = cudaErrorMemoryAllocation;
        }
    }
    pthread_mutex_unlock(&lock);
    if (error) {
        free(pieces);
        return error;
    }
    *out = pieces;
    *count = n;
    return cudaSuccess;
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
