/*
 * memory.h: memory of devices: which addresses are whose, their pages, pools, and what other processes use.
 */
#ifndef ROLL_HOSTNCCL_CUDA_MEMORY_H
#define ROLL_HOSTNCCL_CUDA_MEMORY_H

#include "hostnccl/cuda/hostcuda.h"

/* memory.c: who owns which address */

/* One allocation or registration. */
struct hostcuda_range {
    uintptr_t start, end; /* [start, end), the key of the table */
    enum cudaMemoryType type;
    int device;
    unsigned int flags;
    bool is_registered; /* the memory belongs to the program and is not freed */
    bool is_reserved;   /* pages of pages.c that no other process sees */
    bool is_virtual;    /* addresses of virtual.c, with memory at some of them, or of graph_memory.c */
    bool is_of_graph;   /* of graph_memory.c, which tells the library of device code when it is there */
    bool is_mapped;     /* pages that other processes see */
    int file;           /* of mapped pages: the file under them, owned; negative: another process owns the memory */
    struct hostcuda_pool *pool; /* from which it was allocated, owned reference; NULL: none */
};

/* Copies the range that holds all of [address, address + bytes); false when no range does. Any thread. */
bool hostcuda_range_find(const void *address, size_t bytes, struct hostcuda_range *range);

/* Lets `share` turn the range that holds an address into mapped memory, unless it is that already, and copies the
 * result. Errors: those of share; cudaErrorInvalidValue when no range does. */
cudaError_t hostcuda_range_share(const void *address, cudaError_t (*share)(struct hostcuda_range *range),
                                 struct hostcuda_range *copy);

/* Makes memory of another process known as memory of the calling thread's device, until it is removed, which unmaps it.
 * cudaErrorMemoryAllocation; cudaErrorInvalidValue when it is not known. */
cudaError_t hostcuda_range_add_mapped(void *memory, size_t bytes);
cudaError_t hostcuda_range_remove_mapped(const void *memory);

/* The same for addresses of virtual.c, and of graph_memory.c, which stay when the range is removed; `device` is that of
 * the memory. */
cudaError_t hostcuda_range_add_virtual(void *memory, size_t bytes, int device, bool is_of_graph);

/* Counts memory of a device that is not in the table; false: the device has no room. */
bool hostcuda_bytes_take(int device, size_t bytes);
void hostcuda_bytes_give(int device, size_t bytes);

/* A piece of a file of this process that lies somewhere in memory; `file` is borrowed. */
struct hostcuda_piece {
    int file;
    off_t at;
    size_t bytes;
};

/*
 * ipc.c: the files under device memory, in the order of the addresses, so that another process can map the same bytes;
 * memory that has none gets one, in its place and with its content. *out is owned by the caller; *count is 0 where this
 * is no memory of a device. Errors: cudaErrorInvalidValue when the bytes lie in no single allocation, or at addresses
 * without memory; cudaErrorNotSupported for memory that belongs to another process; those of memory and of files.
 */
cudaError_t hostcuda_pieces_of(const void *at, size_t bytes, struct hostcuda_piece **out, size_t *count);

/* pages.c: memory that is reserved, and committed page by page when it is written */

/* Addresses of zeroes; NULL where the machine gives none. Returns owned. */
void *hostcuda_pages_reserve(size_t bytes);
void hostcuda_pages_release(void *memory, size_t bytes);

/* Zeroes reserved memory, and copies reserved memory to other reserved memory that does not overlap it; pages are
 * committed only where they must be. */
void hostcuda_pages_zero(void *memory, size_t bytes);
void hostcuda_pages_copy(void *dst, const void *src, size_t bytes);

/* Copies reserved memory to fresh memory, which is zero and does not overlap the source. */
void hostcuda_pages_carry(void *dst, const void *src, size_t bytes);

/* virtual.c: addresses and memory apart. Sizes are multiples of HOSTCUDA_VIRTUAL_GRANULE. All return
 * cudaErrorInvalidValue for what is not known or does not fit, cudaErrorMemoryAllocation, cudaErrorOperatingSystem. */
cudaError_t hostcuda_virtual_reserve(void **out, size_t bytes, size_t alignment);
cudaError_t hostcuda_virtual_free(void *memory, size_t bytes);
cudaError_t hostcuda_virtual_create(struct hostcuda_memory **out, size_t bytes, int device, bool is_shared);
cudaError_t hostcuda_virtual_release(struct hostcuda_memory *memory);
cudaError_t hostcuda_virtual_retain(struct hostcuda_memory **out,
                                    const void *at); /* one more handle of what lies there */
cudaError_t hostcuda_virtual_about(struct hostcuda_memory *memory, int *device, bool *is_shared);
cudaError_t hostcuda_virtual_map(void *at, size_t bytes, size_t offset, struct hostcuda_memory *handle);
cudaError_t hostcuda_virtual_unmap(void *at, size_t bytes);
cudaError_t hostcuda_virtual_access(void *at, size_t bytes, bool can_read, bool can_write);

/* The second half of hostcuda_pieces_of, for addresses of virtual.c. */
cudaError_t hostcuda_virtual_pieces(const void *at, size_t bytes, struct hostcuda_piece **out, size_t *count);

/* `file` belongs to the caller in both. */
cudaError_t hostcuda_virtual_export(int *file, struct hostcuda_memory *handle);
cudaError_t hostcuda_virtual_import(struct hostcuda_memory **out, int file);

/* Frees everything that belongs to a device; for cudaDeviceReset. */
void hostcuda_memory_reset(int device);

/* For memory_order.c: an allocation of a pool, whose reference it takes on success (cudaErrorMemoryAllocation); whether
 * such a one, or one of cudaMalloc, begins at an address; and its end, at once. */
cudaError_t hostcuda_memory_allocate(void **out, size_t bytes, struct hostcuda_pool *pool);
bool hostcuda_memory_may_free(const void *memory);
void hostcuda_memory_free(const void *memory);

/* What cudaFree does with it: waits for the device first. */
cudaError_t hostcuda_memory_free_now(void *memory);

/* pool.c */

/* Counts bytes that are allocated from a pool, the device's own when the handle is NULL. Returns an owned reference,
 * which hostcuda_pool_give takes. cudaErrorInvalidValue, cudaErrorInvalidDevice, cudaErrorMemoryAllocation. */
cudaError_t hostcuda_pool_take(cudaMemPool_t handle, int device, size_t bytes, struct hostcuda_pool **pool);
void hostcuda_pool_give(struct hostcuda_pool *pool, size_t bytes); /* NULL is allowed */
int hostcuda_pool_device(const struct hostcuda_pool *pool);

/* shared.c: what other processes of the rehearsal use, HOSTCUDA_SHARED */

struct hostcuda_user {
    int pid;
    size_t used_bytes;
};

/* Takes a place for this process, once, when the runtime starts. */
void hostcuda_shared_join(void);

/* Tells what this process uses of a device, which is named by its number before CUDA_VISIBLE_DEVICES. Any thread. */
void hostcuda_shared_set(int physical, size_t used);

/* What all others use; without is_exact, processes that have ended may still count. Any thread. */
size_t hostcuda_shared_others(int physical, bool is_exact);

/* The others that use the device. Returns how many there are, which may be more than the room. */
size_t hostcuda_shared_users(int physical, struct hostcuda_user *users, size_t room);

#endif
