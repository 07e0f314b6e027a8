/*
 * device.h: where moe_core computes: one stream, its memory, and the table of functions of a back end.
 *
 * Everything that a back end does is enqueued on the device's stream and returns at once, on the host back end as well
 * (there as host functions of the stream). So the host runs ahead of the work, as it does on a GPU, and compute and
 * communication are ordered by the stream alone. Failures inside the stream are kept and reported by moe_device_sync.
 */
#ifndef MOE_DEVICE_H
#define MOE_DEVICE_H

#include <cuda_runtime.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_device moe_device_t;
struct moe_device_ops;

/*
 * Makes a device of a back end, with a stream of its own on the current CUDA device: "host" (BLAS, one thread) or
 * "cuda" (libmoe_kernels.so, which is loaded from the folder of libmoe_core.so or, if it is not there, as the loader
 * finds it). *out is owned by the caller. Errors: ARG (no such name), UNSUPPORTED ("cuda" without its library or
 * without a GPU that it has code for; moe_last_error says which), NOMEM, DEVICE. Use the device from one thread at a
 * time.
 */
int moe_device_new(const char *backend, moe_device_t **out);

/*
 * How many threads the host back end's products of groups use, all devices together: n, at most MOE_HOST_THREADS (the
 * environment's, read at the first product; 1 without it), or all of those with n = 0. No result depends on it. Returns
 * the number. Any thread.
 */
int moe_device_host_threads(int n);

/* moe_device_new("host", out). */
int moe_device_new_host(moe_device_t **out);

/* Waits for the stream, frees the device and clears the pointer. NULL is allowed. */
void moe_device_destroy(moe_device_t **device);

/* "host" or "cuda". Any thread; static storage. */
const char *moe_device_name(const moe_device_t *device);

/* The stream that everything runs on. Borrowed. */
cudaStream_t moe_device_stream(const moe_device_t *device);

/* The back end's functions (ops.h). Borrowed; any thread. */
const struct moe_device_ops *moe_device_ops(const moe_device_t *device);

/* `bytes` of zeroed memory that the stream's work and NCCL can use, in *out; 0 bytes give a valid pointer. Errors:
 * NOMEM. */
int moe_device_alloc(moe_device_t *device, size_t bytes, void **out);

/* Frees memory of moe_device_alloc after the stream's work is done, and clears the pointer. */
void moe_device_free(moe_device_t *device, void *pointer_to_pointer);

/* Enqueues a copy of `bytes`, in either direction between host and device memory, or inside it. Errors: DEVICE. */
int moe_device_copy(moe_device_t *device, void *to, const void *from, size_t bytes);

/*
 * Enqueues fn on a copy of `args`. fn returns 0 or an error code, which moe_device_sync reports.
 * Host back end only (UNSUPPORTED elsewhere): it is how a program adds operations of its own. fn must not call CUDA or
 * NCCL.
 */
int moe_device_call(moe_device_t *device, int (*fn)(const void *args), const void *args, size_t bytes);

/* Waits for the stream (cudaStreamSynchronize). The first error met in the stream since the last call, or DEVICE, or
 * 0. */
int moe_device_sync(moe_device_t *device);

#ifdef __cplusplus
}
#endif
#endif
