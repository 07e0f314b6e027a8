/*
 * ipc.c: memory that other processes of the machine use. An allocation begins as pages of its own process (pages.c).
 * The first handle that is asked for turns it into a file in memory, in its place and with its content, and the handle
 * says where another process finds that file: /proc/PID/fd/N of the owner, as long as the owner lives and keeps the
 * memory, which is also how long the vendor's handles are good. A file for each allocation from the start was
 * rejected: it would cost a descriptor each, and few allocations are ever shared.
 */
#include "hostnccl/cuda/memory.h"
#include "hostnccl/cuda/stream.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* What a handle holds; the vendor's has 64 bytes. */
struct ticket {
    char magic[8];
    int64_t pid;
    int64_t file;
    uint64_t inode; /* tells the file from a later one with the same number */
    uint64_t bytes;
    uint64_t device;
    char unused[16];
};

_Static_assert(sizeof(struct ticket) == sizeof(cudaIpcMemHandle_t), "a handle is one ticket");

static const char MAGIC[8] = "hostipc1";

/* Turns reserved memory into a mapped file of the same content. Nothing of the device may run meanwhile. */
static cudaError_t share(struct hostcuda_range *range)
{
    size_t bytes = range->end - range->start;
    void *memory = (void *)range->start;
    int file = memfd_create("hostcuda", MFD_CLOEXEC);
    if (file < 0) {
        return cudaErrorOperatingSystem;
    }
    void *other = MAP_FAILED;
    if (!ftruncate(file, (off_t)bytes)) {
        other = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    }
    if (other == MAP_FAILED) {
        close(file);
        return cudaErrorOperatingSystem;
    }
    hostcuda_pages_carry(other, memory, bytes);
    munmap(other, bytes);
    if (mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file, 0) == MAP_FAILED) {
        close(file);
        return cudaErrorOperatingSystem;
    }
    range->is_reserved = false;
    range->is_mapped = true;
    range->file = file;
    return cudaSuccess;
}

cudaError_t hostcuda_pieces_of(const void *at, size_t bytes, struct hostcuda_piece **out, size_t *count)
{
    /* What runs meanwhile may write to pages that are being moved. It may also be a collective that waits for a rank
     * which registers first, so that the wait has an end. */
    enum { SETTLE_MS = 1000 };
    struct hostcuda_range range;
    *out = NULL;
    *count = 0;
    if (!hostcuda_range_find(at, 1, &range) || range.type == cudaMemoryTypeHost) {
        return cudaSuccess;
    }
    if (range.is_virtual) {
        return hostcuda_virtual_pieces(at, bytes, out, count);
    }
    if (bytes > range.end - (uintptr_t)at) {
        return cudaErrorInvalidValue;
    }
    if (range.is_mapped && range.file < 0) {
        return cudaErrorNotSupported;
    }
    if (!range.is_mapped) {
        hostcuda_device_settle(range.device, SETTLE_MS);
    }
    cudaError_t error = hostcuda_range_share(at, share, &range);
    struct hostcuda_piece *piece = error ? NULL : malloc(sizeof(*piece));
    if (!piece) {
        return error ? error : cudaErrorMemoryAllocation;
    }
    *piece = (struct hostcuda_piece){.file = range.file, .at = (off_t)((uintptr_t)at - range.start), .bytes = bytes};
    *out = piece;
    *count = 1;
    return cudaSuccess;
}

HOSTCUDA_EXPORT cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *memory)
{
    struct hostcuda_range range;
    struct stat about;
    cudaError_t error = handle ? hostcuda_enter_work() : cudaErrorInvalidValue;
    if (!error && (!hostcuda_range_find(memory, 1, &range) || range.type != cudaMemoryTypeDevice || range.pool ||
                   (range.is_mapped && range.file < 0))) { /* the last: the memory is another process's */
        error = cudaErrorInvalidValue;
    }
    if (!error && !range.is_mapped) {
        error = hostcuda_device_drain(range.device);
    }
    if (!error) {
        error = hostcuda_range_share(memory, share, &range);
    }
    if (!error && fstat(range.file, &about)) {
        error = cudaErrorOperatingSystem;
    }
    if (!error) {
        struct ticket ticket = {.pid = getpid(),
                                .file = range.file,
                                .inode = about.st_ino,
                                .bytes = range.end - range.start,
                                .device = (uint64_t)range.device};
        memcpy(ticket.magic, MAGIC, sizeof(MAGIC));
        memcpy(handle, &ticket, sizeof(ticket));
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaIpcOpenMemHandle(void **memory, cudaIpcMemHandle_t handle, unsigned int flags)
{
    struct ticket ticket;
    struct stat about;
    char path[64];
    cudaError_t error =
        memory && flags <= cudaIpcMemLazyEnablePeerAccess ? hostcuda_enter_work() : cudaErrorInvalidValue;
    if (error) {
        return hostcuda_leave(error);
    }
    memcpy(&ticket, &handle, sizeof(ticket));
    if (memcmp(ticket.magic, MAGIC, sizeof(MAGIC)) != 0 || !ticket.bytes) {
        return hostcuda_leave(cudaErrorInvalidValue);
    }
    if (ticket.pid == getpid()) { /* as the vendor's: a handle is for another process */
        return hostcuda_leave(cudaErrorDeviceUninitialized);
    }
    snprintf(path, sizeof(path), "/proc/%lld/fd/%lld", (long long)ticket.pid, (long long)ticket.file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    void *at = MAP_FAILED;
    if (file >= 0 && !fstat(file, &about) && about.st_ino == ticket.inode && (uint64_t)about.st_size == ticket.bytes) {
        at = mmap(NULL, ticket.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    }
    if (file >= 0) {
        close(file);
    }
    if (at == MAP_FAILED) {
        return hostcuda_leave(cudaErrorMapBufferObjectFailed);
    }
    error = hostcuda_range_add_mapped(at, ticket.bytes);
    if (error) {
        munmap(at, ticket.bytes);
        return hostcuda_leave(error);
    }
    *memory = at;
    return cudaSuccess;
}

HOSTCUDA_EXPORT cudaError_t cudaIpcCloseMemHandle(void *memory)
{
    struct hostcuda_range range;
    cudaError_t error = hostcuda_enter_work();
    if (!error && (!hostcuda_range_find(memory, 1, &range) || range.start != (uintptr_t)memory || !range.is_mapped ||
                   range.is_virtual || range.file >= 0)) {
        error = cudaErrorInvalidValue;
    }
    if (!error) {
        error = hostcuda_device_drain(range.device);
    }
    return hostcuda_leave(error ? error : hostcuda_range_remove_mapped(memory));
}
