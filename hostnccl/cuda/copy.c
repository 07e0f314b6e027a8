/*
 * Copies and fills, one and two dimensions. What makes them CUDA's and not memcpy's is when they return:
 *   - an asynchronous copy from pageable host memory has read the source when it returns (the source is staged),
 *   - one to pageable host memory, or between host memories, has happened when it returns,
 *   - everything else is only queued; so are the synchronous calls that stay within device memory.
 * Each side must lie inside one known allocation where the direction calls it device memory, and must not be device memory
 * where the direction calls it host memory: a GPU would not reach it either.
 */
#include "hostnccl/cuda/hostcuda.h"

#include <stdlib.h>
#include <string.h>

struct transfer {
    void *dst;
    const void *src;
    size_t dst_pitch, src_pitch, width, height;
    enum cudaMemcpyKind kind;
};

/* What the table of allocations says about the two sides. */
struct sides {
    enum cudaMemoryType dst, src;
};

static void copy_rows(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width, size_t height)
{
    if (width == dst_pitch && width == src_pitch) {
        memmove(dst, src, width * height);
        return;
    }
    for (size_t row = 0; row < height; row++) {
        memmove((char *)dst + row * dst_pitch, (const char *)src + row * src_pitch, width);
    }
}

static void run_copy(struct hostcuda_op *op)
{
    copy_rows(op->arg.copy.dst, op->arg.copy.dst_pitch, op->arg.copy.staged ? op->arg.copy.staged : op->arg.copy.src,
              op->arg.copy.src_pitch, op->arg.copy.width, op->arg.copy.height);
    free(op->arg.copy.staged);
}

static void run_fill(struct hostcuda_op *op)
{
    for (size_t row = 0; row < op->arg.fill.height; row++) {
        memset((char *)op->arg.fill.dst + row * op->arg.fill.pitch, op->arg.fill.value, op->arg.fill.width);
    }
}

/* Bytes from the first to the last one touched; false when they do not fit an address space. */
static bool extent(size_t pitch, size_t width, size_t height, size_t *bytes)
{
    return !__builtin_mul_overflow(pitch, height - 1, bytes) && !__builtin_add_overflow(*bytes, width, bytes);
}

/* The kind of memory at an address; false when the bytes run over the end of its allocation. */
static bool type_of(const void *address, size_t bytes, enum cudaMemoryType *type)
{
    struct hostcuda_range range;
    *type = cudaMemoryTypeUnregistered;
    if (hostcuda_range_find(address, 1, &range)) {
        *type = range.type;
        /* Registered memory is the program's own and goes on beyond what it registered. */
        return range.is_registered || bytes <= range.end - (uintptr_t)address;
    }
    return true;
}

static cudaError_t check(const struct transfer *t, struct sides *sides)
{
    static const struct {
        bool is_device_dst, is_device_src;
    } directions[] = {
        [cudaMemcpyHostToHost] = {false, false},
        [cudaMemcpyHostToDevice] = {true, false},
        [cudaMemcpyDeviceToHost] = {false, true},
        [cudaMemcpyDeviceToDevice] = {true, true},
    };
    size_t dst_bytes, src_bytes;
    if (t->width > t->dst_pitch || t->width > t->src_pitch) {
        return cudaErrorInvalidPitchValue;
    }
    if ((unsigned int)t->kind > cudaMemcpyDefault) {
        return cudaErrorInvalidMemcpyDirection;
    }
    if (!t->dst || !t->src || !extent(t->dst_pitch, t->width, t->height, &dst_bytes) ||
        !extent(t->src_pitch, t->width, t->height, &src_bytes) || !type_of(t->dst, dst_bytes, &sides->dst) ||
        !type_of(t->src, src_bytes, &sides->src)) {
        return cudaErrorInvalidValue;
    }
    if (t->kind == cudaMemcpyDefault) {
        return cudaSuccess;
    }
    /* Pinned and managed memory are good on either side; pageable memory only as host, device memory only as device. */
    enum cudaMemoryType dst_refused =
        directions[t->kind].is_device_dst ? cudaMemoryTypeUnregistered : cudaMemoryTypeDevice;
    enum cudaMemoryType src_refused =
        directions[t->kind].is_device_src ? cudaMemoryTypeUnregistered : cudaMemoryTypeDevice;
    return sides->dst == dst_refused || sides->src == src_refused ? cudaErrorInvalidValue : cudaSuccess;
}

static bool is_host(enum cudaMemoryType type)
{
    return type == cudaMemoryTypeHost || type == cudaMemoryTypeUnregistered;
}

/* Copies the source now, row by row, so that the caller may reuse it. False without memory. */
static bool stage(struct hostcuda_op *op)
{
    size_t width = op->arg.copy.width, height = op->arg.copy.height, bytes;
    if (__builtin_mul_overflow(width, height, &bytes)) {
        return false;
    }
    op->arg.copy.staged = malloc(bytes);
    if (!op->arg.copy.staged) {
        return false;
    }
    copy_rows(op->arg.copy.staged, width, op->arg.copy.src, op->arg.copy.src_pitch, width, height);
    op->arg.copy.src_pitch = width;
    return true;
}

/* Queues a transfer; returns as early as its kind allows. */
static cudaError_t transfer_async(const struct transfer *t, const struct sides *sides, struct hostcuda_stream *stream)
{
    bool must_wait = is_host(sides->src) ? is_host(sides->dst) : sides->dst == cudaMemoryTypeUnregistered;
    struct hostcuda_op *op = calloc(1, sizeof(*op));
    if (!op) {
        return cudaErrorMemoryAllocation;
    }
    op->run = run_copy;
    op->arg.copy.dst = t->dst;
    op->arg.copy.src = t->src;
    op->arg.copy.dst_pitch = t->dst_pitch;
    op->arg.copy.src_pitch = t->src_pitch;
    op->arg.copy.width = t->width;
    op->arg.copy.height = t->height;
    if (!must_wait && sides->src == cudaMemoryTypeUnregistered) {
        must_wait = !stage(op);
    }
    cudaError_t error = hostcuda_stream_submit(stream, op);
    if (error) {
        free(op->arg.copy.staged);
        free(op);
        return error;
    }
    return must_wait ? hostcuda_stream_synchronize(stream) : cudaSuccess;
}

/* A synchronous transfer: on an idle stream the caller copies by itself, which spares two changes of thread. */
static cudaError_t transfer_sync(const struct transfer *t, const struct sides *sides, struct hostcuda_stream *stream)
{
    if (!is_host(sides->dst) && !is_host(sides->src) && !hostcuda_stream_is_idle(stream)) {
        return transfer_async(t, sides, stream);
    }
    cudaError_t error = hostcuda_stream_synchronize(stream);
    if (!error) {
        copy_rows(t->dst, t->dst_pitch, t->src, t->src_pitch, t->width, t->height);
    }
    return error;
}

typedef cudaError_t transfer_fn(const struct transfer *, const struct sides *, struct hostcuda_stream *);

static cudaError_t transfer(const struct transfer *t, cudaStream_t handle, transfer_fn *how)
{
    struct hostcuda_stream *stream;
    struct sides sides;
    cudaError_t error = hostcuda_enter_work();
    if (!error && t->width && t->height) {
        error = check(t, &sides);
        if (!error) {
            error = hostcuda_stream_get(handle, &stream);
        }
        if (!error) {
            error = how(t, &sides, stream);
            hostcuda_stream_put(stream);
        }
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
    return transfer(&(struct transfer){dst, src, bytes, bytes, bytes, 1, kind}, cudaStreamLegacy, transfer_sync);
}

HOSTCUDA_EXPORT cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                                            cudaStream_t stream)
{
    return transfer(&(struct transfer){dst, src, bytes, bytes, bytes, 1, kind}, stream, transfer_async);
}

HOSTCUDA_EXPORT cudaError_t cudaMemcpy2D(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
                                         size_t height, enum cudaMemcpyKind kind)
{
    return transfer(&(struct transfer){dst, src, dst_pitch, src_pitch, width, height, kind}, cudaStreamLegacy,
                    transfer_sync);
}

HOSTCUDA_EXPORT cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                                              size_t width, size_t height, enum cudaMemcpyKind kind,
                                              cudaStream_t stream)
{
    return transfer(&(struct transfer){dst, src, dst_pitch, src_pitch, width, height, kind}, stream, transfer_async);
}

static cudaError_t peer(void *dst, int dst_device, const void *src, int src_device, size_t bytes, cudaStream_t stream)
{
    cudaError_t error = hostcuda_enter_work();
    if (!error && (!hostcuda_device(dst_device) || !hostcuda_device(src_device))) {
        error = cudaErrorInvalidDevice;
    }
    if (error) {
        return hostcuda_leave(error);
    }
    return transfer(&(struct transfer){dst, src, bytes, bytes, bytes, 1, cudaMemcpyDeviceToDevice}, stream,
                    transfer_async);
}

HOSTCUDA_EXPORT cudaError_t cudaMemcpyPeer(void *dst, int dst_device, const void *src, int src_device, size_t bytes)
{
    return peer(dst, dst_device, src, src_device, bytes, cudaStreamLegacy);
}

HOSTCUDA_EXPORT cudaError_t cudaMemcpyPeerAsync(void *dst, int dst_device, const void *src, int src_device,
                                                size_t bytes, cudaStream_t stream)
{
    return peer(dst, dst_device, src, src_device, bytes, stream);
}

/* Fills are queued whatever the call is called; only memory of the host makes the plain calls wait. */
static cudaError_t fill(void *dst, size_t pitch, int value, size_t width, size_t height, cudaStream_t handle,
                        bool is_async)
{
    struct hostcuda_stream *stream;
    enum cudaMemoryType type;
    size_t bytes;
    cudaError_t error = hostcuda_enter_work();
    if (error || !width || !height) {
        return hostcuda_leave(error);
    }
    if (width > pitch) {
        return hostcuda_leave(cudaErrorInvalidPitchValue);
    }
    if (!extent(pitch, width, height, &bytes) || !type_of(dst, bytes, &type) || type == cudaMemoryTypeUnregistered) {
        return hostcuda_leave(cudaErrorInvalidValue);
    }
    error = hostcuda_stream_get(handle, &stream);
    if (error) {
        return hostcuda_leave(error);
    }
    struct hostcuda_op *op = calloc(1, sizeof(*op));
    error = cudaErrorMemoryAllocation;
    if (op) {
        op->run = run_fill;
        op->arg.fill.dst = dst;
        op->arg.fill.value = value;
        op->arg.fill.pitch = pitch;
        op->arg.fill.width = width;
        op->arg.fill.height = height;
        error = hostcuda_stream_submit(stream, op);
    }
    if (error) {
        free(op);
    } else if (!is_async && type == cudaMemoryTypeHost) {
        error = hostcuda_stream_synchronize(stream);
    }
    hostcuda_stream_put(stream);
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaMemset(void *dst, int value, size_t bytes)
{
    return fill(dst, bytes, value, bytes, 1, cudaStreamLegacy, false);
}

HOSTCUDA_EXPORT cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream)
{
    return fill(dst, bytes, value, bytes, 1, stream, true);
}

HOSTCUDA_EXPORT cudaError_t cudaMemset2D(void *dst, size_t pitch, int value, size_t width, size_t height)
{
    return fill(dst, pitch, value, width, height, cudaStreamLegacy, false);
}

HOSTCUDA_EXPORT cudaError_t cudaMemset2DAsync(void *dst, size_t pitch, int value, size_t width, size_t height,
                                              cudaStream_t stream)
{
    return fill(dst, pitch, value, width, height, stream, true);
}

/* The same for programs whose default stream is the thread's own; see per_thread.c. */
HOSTCUDA_EXPORT cudaError_t cudaMemcpy_ptds(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind);
HOSTCUDA_EXPORT cudaError_t cudaMemcpy2D_ptds(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                                              size_t width, size_t height, enum cudaMemcpyKind kind);
HOSTCUDA_EXPORT cudaError_t cudaMemset_ptds(void *dst, int value, size_t bytes);
HOSTCUDA_EXPORT cudaError_t cudaMemset2D_ptds(void *dst, size_t pitch, int value, size_t width, size_t height);

HOSTCUDA_EXPORT cudaError_t cudaMemcpy_ptds(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
    return transfer(&(struct transfer){dst, src, bytes, bytes, bytes, 1, kind}, cudaStreamPerThread, transfer_sync);
}

HOSTCUDA_EXPORT cudaError_t cudaMemcpy2D_ptds(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                                              size_t width, size_t height, enum cudaMemcpyKind kind)
{
    return transfer(&(struct transfer){dst, src, dst_pitch, src_pitch, width, height, kind}, cudaStreamPerThread,
                    transfer_sync);
}

HOSTCUDA_EXPORT cudaError_t cudaMemset_ptds(void *dst, int value, size_t bytes)
{
    return fill(dst, bytes, value, bytes, 1, cudaStreamPerThread, false);
}

HOSTCUDA_EXPORT cudaError_t cudaMemset2D_ptds(void *dst, size_t pitch, int value, size_t width, size_t height)
{
    return fill(dst, pitch, value, width, height, cudaStreamPerThread, false);
}
