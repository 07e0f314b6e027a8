/*
 * copy.c: copies and fills in one and two dimensions. They differ from memcpy in when they return:
 *   - an asynchronous copy from pageable host memory has read the source when it returns (the source is staged),
 *   - one to pageable host memory, or between host memories, has happened when it returns,
 *   - everything else is only queued; so are the synchronous calls that stay within device memory.
 * Each side must lie inside one known allocation where the direction calls it device memory, and must not be device
 * memory where the direction calls it host memory: a GPU would not reach it either.
 */
#include "hostnccl/cuda/memory.h"
#include "hostnccl/cuda/stream.h"

#include <stdlib.h>
#include <string.h>

/* What the table of allocations says about the two sides. */
struct sides {
    enum cudaMemoryType dst, src;
};

/* Bytes from the first to the last one touched; false when they do not fit an address space. */
static bool extent_of(size_t pitch, size_t width, size_t height, size_t *bytes)
{
    return !__builtin_mul_overflow(pitch, height - 1, bytes) && !__builtin_add_overflow(*bytes, width, bytes);
}

static bool extent(const struct hostcuda_copy *t, size_t pitch, size_t slice, size_t *bytes)
{
    size_t before;
    return extent_of(pitch, t->width, t->height, bytes) && !__builtin_mul_overflow(slice, t->depth - 1, &before) &&
           !__builtin_add_overflow(*bytes, before, bytes);
}

/* Finds the kind of memory at an address; false when the bytes run over the end of its allocation. */
static bool type_of(const void *address, size_t bytes, enum cudaMemoryType *type)
{
    struct hostcuda_range range;
    *type = cudaMemoryTypeUnregistered;
    if (hostcuda_range_find(address, 1, &range)) {
        *type = range.type;
        /* Registered memory belongs to the program and continues beyond what was registered. */
        return range.is_registered || bytes <= range.end - (uintptr_t)address;
    }
    return true;
}

static cudaError_t check_sides(const struct hostcuda_copy *t, struct sides *sides)
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
    if (!t->dst || !t->src || !extent(t, t->dst_pitch, t->dst_slice, &dst_bytes) ||
        !extent(t, t->src_pitch, t->src_slice, &src_bytes) || !type_of(t->dst, dst_bytes, &sides->dst) ||
        !type_of(t->src, src_bytes, &sides->src)) {
        return cudaErrorInvalidValue;
    }
    if (t->kind == cudaMemcpyDefault) {
        return cudaSuccess;
    }
    /*
     * Pinned and managed memory is allowed on either side, pageable memory only as host memory, device memory only as
     * device memory.
     */
    enum cudaMemoryType dst_refused =
        directions[t->kind].is_device_dst ? cudaMemoryTypeUnregistered : cudaMemoryTypeDevice;
    enum cudaMemoryType src_refused =
        directions[t->kind].is_device_src ? cudaMemoryTypeUnregistered : cudaMemoryTypeDevice;
    return sides->dst == dst_refused || sides->src == src_refused ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t hostcuda_copy_check(const struct hostcuda_copy *copy)
{
    struct sides sides;
    return check_sides(copy, &sides);
}

cudaError_t hostcuda_fill_check(const struct hostcuda_fill *fill, enum cudaMemoryType *type)
{
    enum cudaMemoryType found;
    size_t bytes;
    if (fill->width > fill->pitch) {
        return cudaErrorInvalidPitchValue;
    }
    if (!extent_of(fill->pitch, fill->width, fill->height, &bytes) || !type_of(fill->dst, bytes, &found) ||
        found == cudaMemoryTypeUnregistered) {
        return cudaErrorInvalidValue;
    }
    if (type) {
        *type = found;
    }
    return cudaSuccess;
}

static bool is_host(enum cudaMemoryType type)
{
    return type == cudaMemoryTypeHost || type == cudaMemoryTypeUnregistered;
}

/* The work of a transfer. */
static struct hostcuda_work work_of(const struct hostcuda_copy *t)
{
    return (struct hostcuda_work){.type = cudaGraphNodeTypeMemcpy, .arg.copy = *t};
}

/* Copies the source now, so that the caller may reuse it; the transfer then reads this copy. NULL without memory. */
static void *stage(struct hostcuda_copy *t)
{
    size_t bytes;
    void *staged = __builtin_mul_overflow(t->width, t->height, &bytes) ? NULL : malloc(bytes);
    if (staged) {
        struct hostcuda_copy into = *t;
        into.dst = staged;
        into.dst_pitch = t->width;
        struct hostcuda_work work = work_of(&into);
        hostcuda_work_run(&work, NULL);
        t->src = staged;
        t->src_pitch = t->width;
    }
    return staged;
}

/*
 * Queues a transfer and returns as early as its kind allows. A captured transfer only becomes a node: it reads its
 * source when the graph runs, pageable or not, and the call waits for nothing.
 */
static cudaError_t transfer_async(const struct hostcuda_copy *t, const struct sides *sides,
                                  struct hostcuda_stream *stream)
{
    if (hostcuda_stream_is_captured(stream)) {
        struct hostcuda_work work = work_of(t);
        return hostcuda_capture_add(stream, &work);
    }
    bool must_wait = is_host(sides->src) ? is_host(sides->dst) : sides->dst == cudaMemoryTypeUnregistered;
    cudaError_t error = hostcuda_capture_refuse_implicit(stream);
    if (error) {
        return error;
    }
    struct hostcuda_copy copy = *t;
    void *staged = NULL;
    if (!must_wait && sides->src == cudaMemoryTypeUnregistered) {
        staged = stage(&copy);
        must_wait = !staged;
    }
    error = hostcuda_stream_copy(stream, &copy, staged);
    return !error && must_wait ? hostcuda_stream_synchronize(stream) : error;
}

/* Makes a synchronous transfer. On an idle stream the caller copies by itself, which spares two changes of thread. */
static cudaError_t transfer_sync(const struct hostcuda_copy *t, const struct sides *sides,
                                 struct hostcuda_stream *stream)
{
    cudaError_t error = hostcuda_capture_refuse(stream);
    if (!error) {
        error = hostcuda_capture_unsafe();
    }
    if (error) {
        return error;
    }
    if (!is_host(sides->dst) && !is_host(sides->src) && !hostcuda_stream_is_idle(stream)) {
        return transfer_async(t, sides, stream);
    }
    error = hostcuda_stream_synchronize(stream);
    if (!error) {
        struct hostcuda_work work = work_of(t);
        hostcuda_work_run(&work, NULL);
    }
    return error;
}

typedef cudaError_t transfer_fn(const struct hostcuda_copy *, const struct sides *, struct hostcuda_stream *);

/* Rows of a plane. */
static struct hostcuda_copy plane(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
                                  size_t height, enum cudaMemcpyKind kind)
{
    return (struct hostcuda_copy){.dst = dst,
                                  .src = src,
                                  .dst_pitch = dst_pitch,
                                  .src_pitch = src_pitch,
                                  .width = width,
                                  .height = height,
                                  .depth = 1,
                                  .kind = kind};
}

static struct hostcuda_copy line(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
    return plane(dst, bytes, src, bytes, bytes, 1, kind);
}

static cudaError_t transfer(struct hostcuda_copy copy, cudaStream_t handle, transfer_fn *how)
{
    struct hostcuda_stream *stream;
    struct sides sides;
    cudaError_t error = hostcuda_enter_work();
    if (!error && copy.width && copy.height) {
        error = check_sides(&copy, &sides);
        if (!error) {
            error = hostcuda_stream_get(handle, &stream);
        }
        if (!error) {
            error = how(&copy, &sides, stream);
            hostcuda_stream_put(stream);
        }
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
    return transfer(line(dst, src, bytes, kind), cudaStreamLegacy, transfer_sync);
}

HOSTCUDA_EXPORT cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                                            cudaStream_t stream)
{
    return transfer(line(dst, src, bytes, kind), stream, transfer_async);
}

HOSTCUDA_EXPORT cudaError_t cudaMemcpy2D(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
                                         size_t height, enum cudaMemcpyKind kind)
{
    return transfer(plane(dst, dst_pitch, src, src_pitch, width, height, kind), cudaStreamLegacy, transfer_sync);
}

HOSTCUDA_EXPORT cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                                              size_t width, size_t height, enum cudaMemcpyKind kind,
                                              cudaStream_t stream)
{
    return transfer(plane(dst, dst_pitch, src, src_pitch, width, height, kind), stream, transfer_async);
}

static cudaError_t peer(void *dst, int dst_device, const void *src, int src_device, size_t bytes, cudaStream_t stream)
{
    cudaError_t error = hostcuda_enter_work();
    if (!error && (!hostcuda_device_of(dst_device) || !hostcuda_device_of(src_device))) {
        error = cudaErrorInvalidDevice;
    }
    if (error) {
        return hostcuda_leave(error);
    }
    return transfer(line(dst, src, bytes, cudaMemcpyDeviceToDevice), stream, transfer_async);
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

/* Queues a fill, whatever the call's name says; the plain calls wait only for fills of host memory. */
static cudaError_t fill(void *dst, size_t pitch, int value, size_t width, size_t height, cudaStream_t handle,
                        bool is_async)
{
    struct hostcuda_stream *stream;
    enum cudaMemoryType type;
    struct hostcuda_fill what = {
        .dst = dst, .value = (unsigned int)value, .element = 1, .pitch = pitch, .width = width, .height = height};
    cudaError_t error = hostcuda_enter_work();
    if (error || !width || !height) {
        return hostcuda_leave(error);
    }
    error = hostcuda_fill_check(&what, &type);
    if (error) {
        return hostcuda_leave(error);
    }
    error = hostcuda_stream_get(handle, &stream);
    if (error) {
        return hostcuda_leave(error);
    }
    bool must_wait = !is_async && type == cudaMemoryTypeHost;
    if (must_wait) {
        error = hostcuda_capture_refuse(stream);
    }
    if (!error) {
        struct hostcuda_work work = {.type = cudaGraphNodeTypeMemset, .arg.fill = what};
        error = hostcuda_stream_do(stream, &work);
    }
    if (!error && must_wait) {
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
    return transfer(line(dst, src, bytes, kind), cudaStreamPerThread, transfer_sync);
}

HOSTCUDA_EXPORT cudaError_t cudaMemcpy2D_ptds(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                                              size_t width, size_t height, enum cudaMemcpyKind kind)
{
    return transfer(plane(dst, dst_pitch, src, src_pitch, width, height, kind), cudaStreamPerThread, transfer_sync);
}

HOSTCUDA_EXPORT cudaError_t cudaMemset_ptds(void *dst, int value, size_t bytes)
{
    return fill(dst, bytes, value, bytes, 1, cudaStreamPerThread, false);
}

HOSTCUDA_EXPORT cudaError_t cudaMemset2D_ptds(void *dst, size_t pitch, int value, size_t width, size_t height)
{
    return fill(dst, pitch, value, width, height, cudaStreamPerThread, false);
}
