/*
 * kernel_launch.c: launches of kernels. Nothing here can run the code of a GPU, so HOSTCUDA_KERNELS says what a launch
 * means: nothing (skip), what a twin on the host computes (host), or an error (refuse); and HOSTCUDA_CODE names a
 * library that runs kernels whose code it has. A launch is checked as the vendor's is before the policy is asked: a
 * program that would fail on a GPU for its grid fails here too.
 *
 * A skipped launch is counted under its name and leaves the stream alone, because a stream keeps its order without an
 * operation that does nothing. In a capture it is a node, so that the graph has its shape.
 */
#include "hostnccl/cuda/kernel.h"
#include "hostnccl/cuda/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS_MAX = 1024, CONFIGURATIONS_MAX = 16, SHARED_MAX_BYTES = 227 << 10, CLUSTER_OF_CODE = 8 };

static cudaError_t refuse(struct hostcuda_function *function)
{
    static atomic_bool is_said;
    hostcuda_kernel_count(function, HOSTCUDA_REFUSED);
    if (!atomic_exchange(&is_said, true)) {
        fprintf(stderr,
                "hostcuda: the launch of %s is refused: %s; HOSTCUDA_KERNELS=skip leaves kernels out and goes on\n",
                function->name,
                hostcuda_policy() == HOSTCUDA_KERNELS_REFUSE ? "HOSTCUDA_KERNELS=refuse"
                                                             : "there is no GPU that could compute it");
    }
    return cudaErrorNotSupported;
}

static bool is_possible(const struct hostcuda_launch_config *c)
{
    const dim3 *grid = &c->grid, *threads = &c->threads;
    return grid->x && grid->y && grid->z && threads->x && threads->y && threads->z && grid->x <= 0x7fffffff &&
           grid->y <= 0xffff && grid->z <= 0xffff && threads->x <= THREADS_MAX && threads->y <= THREADS_MAX &&
           threads->z <= 64 && threads->x * threads->y * threads->z <= THREADS_MAX;
}

/* Copies the arguments as they are now: first a pointer for each, then the values, aligned. NULL without memory. */
static void *copy_arguments(size_t count, const size_t *sizes, void **arguments, size_t *block_bytes)
{
    size_t bytes = count * sizeof(void *);
    for (size_t i = 0; i < count; i++) {
        bytes += (sizes[i] + 15) / 16 * 16;
    }
    bytes = (bytes + 31) / 16 * 16;
    char *block = malloc(bytes);
    if (!block) {
        return NULL;
    }
    void **pointers = (void **)(void *)block;
    char *at = block + (count * sizeof(void *) + 15) / 16 * 16;
    for (size_t i = 0; i < count; i++) {
        pointers[i] = memcpy(at, arguments[i], sizes[i]);
        at += (sizes[i] + 15) / 16 * 16;
    }
    *block_bytes = bytes;
    return block;
}

bool hostcuda_is_refused(struct hostcuda_function *function)
{
    enum hostcuda_policy policy = hostcuda_policy();
    return policy == HOSTCUDA_KERNELS_REFUSE ||
           (policy == HOSTCUDA_KERNELS_OWN && !function->twin && !hostcuda_code_of(function));
}

cudaError_t hostcuda_work_of_launch(struct hostcuda_work *work, struct hostcuda_function *function,
                                    const struct hostcuda_launch_config *config, bool *is_skipped)
{
    if (!is_possible(config)) {
        return cudaErrorInvalidConfiguration;
    }
    if (config->shared_bytes > (size_t)atomic_load(&function->dynamic_shared_bytes)) {
        return cudaErrorInvalidValue;
    }
    if (hostcuda_is_refused(function)) {
        return refuse(function);
    }
    const struct hostcuda_code_entry *code = hostcuda_code_of(function);
    if (code && config->threads.x * config->threads.y * config->threads.z > code->threads_max) {
        return cudaErrorLaunchOutOfResources;
    }
    if (code && config->cluster > CLUSTER_OF_CODE) {
        return cudaErrorNotSupported; /* clusters of more blocks, or not along x */
    }
    if (code && config->shared_bytes + code->shared_bytes > SHARED_MAX_BYTES) {
        return cudaErrorInvalidValue;
    }
    *is_skipped = hostcuda_policy() == HOSTCUDA_KERNELS_SKIP || (!function->twin && !code);
    struct hostcuda_kernel kernel = {.function = function,
                                     .grid = {config->grid.x, config->grid.y, config->grid.z},
                                     .threads = {config->threads.x, config->threads.y, config->threads.z},
                                     .shared_bytes = config->shared_bytes,
                                     .is_overlapped = config->is_overlapped,
                                     .cluster = config->cluster};
    if (!*is_skipped) {
        if (config->extra) { /* arguments packed by the caller */
            return cudaErrorNotSupported;
        }
        kernel.fn = function->twin;
        kernel.code = code;
        kernel.count = code ? code->count : function->count;
        if (kernel.count && !config->arguments) {
            return cudaErrorInvalidValue;
        }
        kernel.block =
            copy_arguments(kernel.count, code ? code->bytes : function->bytes, config->arguments, &kernel.block_bytes);
        if (!kernel.block) {
            return cudaErrorMemoryAllocation;
        }
    }
    *work = (struct hostcuda_work){.type = cudaGraphNodeTypeKernel, .arg.kernel = kernel};
    return cudaSuccess;
}

cudaError_t hostcuda_kernel_launch(struct hostcuda_function *function, const struct hostcuda_launch_config *config,
                                   cudaStream_t handle)
{
    struct hostcuda_stream *stream;
    struct hostcuda_work work;
    bool is_skipped = false;
    cudaError_t error = hostcuda_enter_stream(handle, &stream);
    if (error) {
        return error;
    }
    error = hostcuda_work_of_launch(&work, function, config, &is_skipped);
    if (!error && is_skipped && !hostcuda_stream_is_captured(stream)) {
        error = hostcuda_capture_refuse_implicit(stream);
        if (!error) {
            hostcuda_kernel_count(function, HOSTCUDA_SKIPPED);
        }
    } else if (!error) {
        error = hostcuda_stream_do(stream, &work);
    }
    hostcuda_stream_put(stream);
    return error;
}

/* the calls: with a null stream that is the legacy one, or the thread's own */

static cudaError_t launch_as(const void *func, const struct hostcuda_launch_config *config, cudaStream_t stream)
{
    struct hostcuda_function *function = hostcuda_function_of(func);
    cudaError_t error = function ? cudaSuccess : cudaErrorInvalidDeviceFunction;
    return hostcuda_leave(error ? error : hostcuda_kernel_launch(function, config, stream));
}

static cudaError_t launch(const void *func, dim3 grid, dim3 threads, void **arguments, size_t shared_bytes,
                          cudaStream_t stream)
{
    struct hostcuda_launch_config config = {
        .grid = grid, .threads = threads, .shared_bytes = shared_bytes, .arguments = arguments};
    return launch_as(func, &config, stream);
}

static cudaError_t launch_with(const cudaLaunchConfig_t *config, const void *func, void **arguments, bool is_own)
{
    if (!config || (config->numAttrs && !config->attrs)) {
        return hostcuda_leave(cudaErrorInvalidValue);
    }
    cudaStream_t stream = config->stream || !is_own ? config->stream : cudaStreamPerThread;
    struct hostcuda_launch_config made = {.grid = config->gridDim,
                                          .threads = config->blockDim,
                                          .shared_bytes = config->dynamicSmemBytes,
                                          .arguments = arguments};
    for (unsigned int i = 0; i < config->numAttrs; i++) {
        if (config->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization) {
            made.is_overlapped = config->attrs[i].val.programmaticStreamSerializationAllowed != 0;
        }
        if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) {
            dim3 size = {config->attrs[i].val.clusterDim.x, config->attrs[i].val.clusterDim.y,
                         config->attrs[i].val.clusterDim.z};
            if (!size.x || config->gridDim.x % size.x || !size.y || config->gridDim.y % size.y || !size.z ||
                config->gridDim.z % size.z) {
                return hostcuda_leave(cudaErrorInvalidConfiguration);
            }
            made.cluster = size.y * size.z == 1 ? size.x : CLUSTER_OF_CODE + 1; /* along x is what code runs */
        }
    }
    return launch_as(func, &made, stream);
}

#define OWN(stream) ((stream) ? (stream) : cudaStreamPerThread)
#define LAUNCH(call, type)                                                                                             \
    HOSTCUDA_EXPORT cudaError_t call(type func, dim3 grid, dim3 threads, void **arguments, size_t shared_bytes,        \
                                     cudaStream_t stream);                                                             \
    HOSTCUDA_EXPORT cudaError_t call(type func, dim3 grid, dim3 threads, void **arguments, size_t shared_bytes,        \
                                     cudaStream_t stream)                                                              \
    {                                                                                                                  \
        return launch(func, grid, threads, arguments, shared_bytes, stream);                                           \
    }                                                                                                                  \
    HOSTCUDA_EXPORT cudaError_t call##_ptsz(type func, dim3 grid, dim3 threads, void **arguments, size_t shared_bytes, \
                                            cudaStream_t stream);                                                      \
    HOSTCUDA_EXPORT cudaError_t call##_ptsz(type func, dim3 grid, dim3 threads, void **arguments, size_t shared_bytes, \
                                            cudaStream_t stream)                                                       \
    {                                                                                                                  \
        return launch(func, grid, threads, arguments, shared_bytes, OWN(stream));                                      \
    }

LAUNCH(cudaLaunchKernel, const void *)
LAUNCH(cudaLaunchCooperativeKernel, const void *) /* it is like any other: nothing waits for its blocks */
LAUNCH(__cudaLaunchKernel, struct CUkern_st *)

HOSTCUDA_EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *func, void **arguments)
{
    return launch_with(config, func, arguments, false);
}

HOSTCUDA_EXPORT cudaError_t cudaLaunchKernelExC_ptsz(const cudaLaunchConfig_t *config, const void *func,
                                                     void **arguments);
HOSTCUDA_EXPORT cudaError_t cudaLaunchKernelExC_ptsz(const cudaLaunchConfig_t *config, const void *func,
                                                     void **arguments)
{
    return launch_with(config, func, arguments, true);
}

/* The compiler passes what stands between <<< and >>> around the call of the function that launches. */

static _Thread_local struct {
    size_t depth;
    struct {
        dim3 grid, threads;
        size_t shared_bytes;
        cudaStream_t stream;
    } kept[CONFIGURATIONS_MAX];
} pushed;

HOSTCUDA_EXPORT unsigned int __cudaPushCallConfiguration(dim3 grid, dim3 threads, size_t shared_bytes,
                                                         struct CUstream_st *stream);
HOSTCUDA_EXPORT cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *threads, size_t *shared_bytes, void *stream);

/* 0: the call that follows launches. */
HOSTCUDA_EXPORT unsigned int __cudaPushCallConfiguration(dim3 grid, dim3 threads, size_t shared_bytes,
                                                         struct CUstream_st *stream)
{
    if (pushed.depth == CONFIGURATIONS_MAX) {
        return 1;
    }
    pushed.kept[pushed.depth].grid = grid;
    pushed.kept[pushed.depth].threads = threads;
    pushed.kept[pushed.depth].shared_bytes = shared_bytes;
    pushed.kept[pushed.depth++].stream = stream;
    return 0;
}

HOSTCUDA_EXPORT cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *threads, size_t *shared_bytes, void *stream)
{
    if (!pushed.depth) {
        return cudaErrorMissingConfiguration;
    }
    pushed.depth--;
    *grid = pushed.kept[pushed.depth].grid;
    *threads = pushed.kept[pushed.depth].threads;
    *shared_bytes = pushed.kept[pushed.depth].shared_bytes;
    *(cudaStream_t *)stream = pushed.kept[pushed.depth].stream;
    return cudaSuccess;
}
