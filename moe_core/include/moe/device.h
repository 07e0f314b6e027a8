/*
 * device.h: where moe_core computes: one stream, its memory, and the table of functions of a back end.
 *
 * All work of a back end is enqueued on the device's stream, and the call returns at once; on the host back end the
 * work runs as host functions of the stream. So the host runs ahead of the work as it does on a GPU, and the stream
 * alone orders compute and communication. Failures inside the stream are kept, and moe_device_sync reports them.
 */
#ifndef MOE_DEVICE_H
#define MOE_DEVICE_H

#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_device moe_device_t;
struct moe_ops;

/*
 * Makes a device of a back end, with a stream of its own on the current CUDA device. `backend` is "host" (BLAS, one
 * thread) or "cuda" (libmoe_kernels.so, loaded from the folder of libmoe_core.so or, if it is not there, as the loader
 * finds it). *out is owned by the caller. Use a device from one thread at a time. Errors: ARG (unknown name),
 * UNSUPPORTED ("cuda" without its library or without a GPU that the library has code for; moe_last_error says which),
 * NOMEM, DEVICE.
 */
int moe_device_new(const char *backend, moe_device_t **out);

/*
 * The same on a stream of the caller's (of the current CUDA device; NULL is its default stream), so that work of the
 * caller and of the library follow one another without an event. The stream is borrowed, and outlives the device;
 * moe_device_destroy waits for it and leaves it. What a layer puts on a second stream (an overlapped shared expert) is
 * tied to this one by events. Errors: as moe_device_new.
 */
int moe_device_new_on(const char *backend, cudaStream_t stream, moe_device_t **out);

/*
 * Sets how many threads the host back end uses for grouped products, for all devices together, and returns the number
 * in force. n = 0 means all threads that the environment variable MOE_HOST_THREADS allows; a larger n is cut to that
 * limit. The variable is read at the first product; without it the limit is 1. The number of threads never changes a
 * result. Any thread.
 */
int moe_device_host_threads(int n);

/* Short for moe_device_new("host", out); same ownership and errors. */
int moe_device_new_host(moe_device_t **out);

/* Waits for the stream, frees the device and clears the pointer. NULL is allowed. */
void moe_device_destroy(moe_device_t **device);

/* The back end's name, "host" or "cuda". Any thread; static storage. */
const char *moe_device_name(const moe_device_t *device);

/* The stream on which all work of this device runs. Borrowed. */
cudaStream_t moe_device_stream(const moe_device_t *device);

/* The back end's functions (ops.h). Borrowed; any thread. */
const struct moe_ops *moe_device_ops(const moe_device_t *device);

/*
 * Gives `bytes` bytes of zeroed memory in *out, for the stream's work and for NCCL; 0 bytes give a valid pointer. The
 * caller owns the memory and gives it back with moe_device_free. Errors: NOMEM, STATE (the stream is captured).
 */
int moe_device_alloc(moe_device_t *device, size_t bytes, void **out);

/*
 * Frees memory of moe_device_alloc once the stream's work is done, and clears the pointer whose address is
 * `pointer_to_pointer`.
 */
void moe_device_free(moe_device_t *device, void *pointer_to_pointer);

/*
 * Where a device's memory comes from, if not from its back end: functions of a framework (PyTorch's caching allocator,
 * RMM). They are called on the thread that calls the library, for the device's stream, and with `arg`. They are
 * borrowed, with what `arg` points to, until the device is destroyed.
 *
 * alloc gives `bytes` (> 0) bytes that work enqueued on `stream` from now on may use, whatever they hold, aligned to 16
 * bytes at least; NULL: there is no memory. Back end "host": memory that the processor can read.
 * release takes memory back that work enqueued on `stream` before may still use: it must not be given to another stream
 * before that work is done. The library does not wait before it calls release.
 */
struct moe_allocator {
    void *(*alloc)(void *arg, size_t bytes, cudaStream_t stream);
    void (*release)(void *arg, void *memory, size_t bytes, cudaStream_t stream);
    void *arg;
};

/*
 * Takes all memory of the device from `allocator`, which is copied; NULL: from the back end again. A layer that puts
 * work on a second stream (an overlapped shared expert) asks it for that one's memory, too, for that stream. What
 * kernels need for the time of a launch, pinned host memory, and the placeholder gradients that the whole process
 * shares (linear.h) still come from the runtime. Call it before anything is made on the device. Errors: ARG (a function
 * is missing), STATE (the device holds memory of the present allocator).
 */
int moe_device_set_allocator(moe_device_t *device, const struct moe_allocator *allocator);

/*
 * What a device holds, in bytes. `fixed` is memory of moe_device_alloc. The pool serves what lives for a part of a
 * step: the rows of all layers, from the exchange that tells how many there are until their backward. It grows with the
 * rows that come, and keeps what it has for the next step.
 */
struct moe_memory_figures {
    size_t fixed;
    size_t in_use;                     /* of the pool, held by layers now */
    size_t reserved;                   /* of the pool, in all: in use, or kept for later */
    size_t most_in_use, most_reserved; /* the largest since the device was made or moe_device_memory_restart */
    size_t most;                       /* the largest of fixed + reserved in that time */
    uint64_t allocations;              /* how often the allocator gave memory, since the device was made */
};

/* Tells what the device holds. Like the two below on the device's thread; no waiting. */
void moe_device_memory(const moe_device_t *device, struct moe_memory_figures *out);
/* Lets the high-water marks begin again at what is held now. */
void moe_device_memory_restart(moe_device_t *device);

/*
 * Gives back to the allocator what the pool holds and nothing uses, and waits for the stream. *bytes is how much that
 * was. Between a forward and its backward less is free than after it. Errors: STATE (the stream is captured).
 */
int moe_device_trim(moe_device_t *device, size_t *bytes);

/*
 * Enqueues a copy of `bytes` bytes between host and device memory, in either direction, or within device memory. Both
 * buffers are borrowed until the copy has run. Errors: DEVICE.
 */
int moe_device_copy(moe_device_t *device, void *to, const void *from, size_t bytes);

/*
 * Enqueues fn with a copy of the `bytes` bytes at `args`, so that a program can add operations of its own. fn returns 0
 * or an error code, which moe_device_sync reports; fn must not call CUDA or NCCL. Host back end only. Errors:
 * UNSUPPORTED (another back end), NOMEM, DEVICE.
 */
int moe_device_call(moe_device_t *device, int (*fn)(const void *args), const void *args, size_t bytes);

/*
 * Waits for the stream (cudaStreamSynchronize). Returns the first error met in the stream since the last call, else
 * DEVICE if the wait failed, else 0.
 */
int moe_device_sync(moe_device_t *device);

#ifdef __cplusplus
}
#endif
#endif
