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
 * caller owns the memory and gives it back with moe_device_free. Errors: NOMEM.
 */
int moe_device_alloc(moe_device_t *device, size_t bytes, void **out);

/*
 * Frees memory of moe_device_alloc once the stream's work is done, and clears the pointer whose address is
 * `pointer_to_pointer`.
 */
void moe_device_free(moe_device_t *device, void *pointer_to_pointer);

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
