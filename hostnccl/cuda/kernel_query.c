/*
 * kernel_query.c: questions about kernels: attributes and occupancy. The device code is not read, so a kernel has the
 * attributes of a small one (32 registers, no static shared memory), and occupancy follows from them, from what the
 * program says, and from the device's properties: programs size grids by these numbers.
 */
#include "hostnccl/cuda/kernel.h"

#include <string.h>

enum { REGISTERS = 32, THREADS_MAX = 1024, WARP = 32, CLUSTER_PORTABLE = 8, CLUSTER_MAX = 16 };

static cudaError_t find(const void *func, struct hostcuda_function **function)
{
    cudaError_t error = hostcuda_enter();
    *function = error ? NULL : hostcuda_function_of(func);
    return error ? error : *function ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}

static int ask(enum cudaDeviceAttr attribute)
{
    int value = 0;
    cudaDeviceGetAttribute(&value, attribute, hostcuda_self()->device);
    return value;
}

/* Programs ask this to learn whether the device has code for the kernel, before they choose a way that needs it. */
HOSTCUDA_EXPORT cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *func)
{
    struct hostcuda_function *function;
    cudaError_t error = attributes ? find(func, &function) : cudaErrorInvalidValue;
    if (!error && hostcuda_is_refused(function)) {
        error = cudaErrorNoKernelImageForDevice;
    }
    if (!error) {
        int version = 10 * ask(cudaDevAttrComputeCapabilityMajor) + ask(cudaDevAttrComputeCapabilityMinor);
        memset(attributes, 0, sizeof(*attributes));
        attributes->maxThreadsPerBlock = THREADS_MAX;
        attributes->numRegs = REGISTERS;
        attributes->ptxVersion = version;
        attributes->binaryVersion = version;
        attributes->maxDynamicSharedSizeBytes = atomic_load(&function->dynamic_shared_bytes);
        attributes->preferredShmemCarveout = -1; /* the driver decides */
    }
    return hostcuda_leave(error);
}

/* Only the attribute that a launch is checked against is kept. */
static cudaError_t set_attribute(struct hostcuda_function *function, enum cudaFuncAttribute attribute, int value)
{
    switch ((int)attribute) {
    case cudaFuncAttributeMaxDynamicSharedMemorySize:
        if (value < 0 || value > ask(cudaDevAttrMaxSharedMemoryPerBlockOptin)) {
            return cudaErrorInvalidValue;
        }
        atomic_store(&function->dynamic_shared_bytes, value);
        return cudaSuccess;
    case cudaFuncAttributePreferredSharedMemoryCarveout:
        return value >= -1 && value <= 100 ? cudaSuccess : cudaErrorInvalidValue;
    default:
        return attribute > cudaFuncAttributePreferredSharedMemoryCarveout && attribute < cudaFuncAttributeMax
                   ? cudaSuccess
                   : cudaErrorInvalidValue;
    }
}

HOSTCUDA_EXPORT cudaError_t cudaFuncSetAttribute(const void *func, enum cudaFuncAttribute attribute, int value)
{
    struct hostcuda_function *function;
    cudaError_t error = find(func, &function);
    return hostcuda_leave(error ? error : set_attribute(function, attribute, value));
}

/* Since CUDA 12.9; older headers do not declare it. */
cudaError_t cudaKernelSetAttributeForDevice(struct CUkern_st *kernel, enum cudaFuncAttribute attribute, int value,
                                            int device);
HOSTCUDA_EXPORT cudaError_t cudaKernelSetAttributeForDevice(struct CUkern_st *kernel, enum cudaFuncAttribute attribute,
                                                            int value, int device)
{
    struct hostcuda_function *function;
    cudaError_t error = find(kernel, &function);
    if (!error && !hostcuda_device_of(device)) {
        error = cudaErrorInvalidDevice;
    }
    return hostcuda_leave(error ? error : set_attribute(function, attribute, value));
}

HOSTCUDA_EXPORT cudaError_t cudaFuncSetCacheConfig(const void *func, enum cudaFuncCache config)
{
    struct hostcuda_function *function;
    cudaError_t error =
        (unsigned int)config <= cudaFuncCachePreferEqual ? find(func, &function) : cudaErrorInvalidValue;
    return hostcuda_leave(error);
}

/* Since CUDA 12.3; older headers do not declare it. */
cudaError_t cudaFuncGetName(const char **name, const void *func);
HOSTCUDA_EXPORT cudaError_t cudaFuncGetName(const char **name, const void *func)
{
    struct hostcuda_function *function;
    cudaError_t error = name ? find(func, &function) : cudaErrorInvalidValue;
    if (!error) {
        *name = function->name;
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaGetFuncBySymbol(cudaFunction_t *out, const void *symbol)
{
    struct hostcuda_function *function;
    cudaError_t error = out ? find(symbol, &function) : cudaErrorInvalidValue;
    if (!error) {
        *out = (cudaFunction_t)function;
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaGetKernel(cudaKernel_t *out, const void *func)
{
    struct hostcuda_function *function;
    cudaError_t error = out ? find(func, &function) : cudaErrorInvalidValue;
    if (!error) {
        *out = (cudaKernel_t)function;
    }
    return hostcuda_leave(error);
}

/* What the compiler calls once for every kernel that the program launches; it does not need a device. */
HOSTCUDA_EXPORT cudaError_t __cudaGetKernel(cudaKernel_t *out, const void *func);
HOSTCUDA_EXPORT cudaError_t __cudaGetKernel(cudaKernel_t *out, const void *func)
{
    struct hostcuda_function *function = out ? hostcuda_function_of(func) : NULL;
    if (function) {
        *out = (cudaKernel_t)function;
    }
    return hostcuda_leave(function ? cudaSuccess : out ? cudaErrorInvalidDeviceFunction : cudaErrorInvalidValue);
}

/* occupancy */

/* Blocks of so many threads that fit a multiprocessor by threads and registers. */
static int blocks_by_threads(int threads)
{
    int rounded = (threads + WARP - 1) / WARP * WARP;
    int by_threads = ask(cudaDevAttrMaxThreadsPerMultiProcessor) / rounded;
    int by_registers = ask(cudaDevAttrMaxRegistersPerMultiprocessor) / (REGISTERS * rounded);
    int most = ask(cudaDevAttrMaxBlocksPerMultiprocessor);
    int blocks = by_threads < by_registers ? by_threads : by_registers;
    return blocks < most ? blocks : most;
}

static cudaError_t occupancy(int *blocks, const void *func, int threads, size_t shared_bytes)
{
    struct hostcuda_function *function;
    cudaError_t error = blocks && threads > 0 ? find(func, &function) : cudaErrorInvalidValue;
    if (error) {
        return error;
    }
    *blocks = 0;
    if (threads <= THREADS_MAX && shared_bytes <= (size_t)ask(cudaDevAttrMaxSharedMemoryPerBlockOptin)) {
        int by_threads = blocks_by_threads(threads);
        size_t each = shared_bytes + (size_t)ask(cudaDevAttrReservedSharedMemoryPerBlock);
        size_t by_shared = (size_t)ask(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / each;
        *blocks = by_shared < (size_t)by_threads ? (int)by_shared : by_threads;
    }
    return cudaSuccess;
}

HOSTCUDA_EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *func, int threads,
                                                                          size_t shared_bytes)
{
    return hostcuda_leave(occupancy(blocks, func, threads, shared_bytes));
}

HOSTCUDA_EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *func,
                                                                                   int threads, size_t shared_bytes,
                                                                                   unsigned int flags)
{
    bool is_known = flags <= cudaOccupancyDisableCachingOverride;
    return hostcuda_leave(is_known ? occupancy(blocks, func, threads, shared_bytes) : cudaErrorInvalidValue);
}

HOSTCUDA_EXPORT cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t *shared_bytes, const void *func,
                                                                      int blocks, int threads)
{
    struct hostcuda_function *function;
    cudaError_t error = shared_bytes && blocks > 0 && threads > 0 && threads <= THREADS_MAX ? find(func, &function)
                                                                                            : cudaErrorInvalidValue;
    if (!error) {
        size_t each = (size_t)ask(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / (size_t)blocks;
        size_t reserved = (size_t)ask(cudaDevAttrReservedSharedMemoryPerBlock);
        size_t most = (size_t)ask(cudaDevAttrMaxSharedMemoryPerBlockOptin);
        size_t left = blocks <= blocks_by_threads(threads) && each > reserved ? each - reserved : 0;
        *shared_bytes = left < most ? left : most;
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaOccupancyMaxPotentialClusterSize(int *size, const void *func,
                                                                 const cudaLaunchConfig_t *config)
{
    struct hostcuda_function *function;
    cudaError_t error = size && config ? find(func, &function) : cudaErrorInvalidValue;
    if (!error) {
        *size = CLUSTER_PORTABLE;
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, const void *func,
                                                           const cudaLaunchConfig_t *config)
{
    int blocks = 0;
    cudaError_t error = clusters && config ? cudaSuccess : cudaErrorInvalidValue;
    if (!error) {
        dim3 t = config->blockDim;
        error = occupancy(&blocks, func, (int)(t.x * t.y * t.z), config->dynamicSmemBytes);
    }
    unsigned int size = 1;
    for (unsigned int i = 0; !error && config->attrs && i < config->numAttrs; i++) {
        if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) {
            size = config->attrs[i].val.clusterDim.x * config->attrs[i].val.clusterDim.y *
                   config->attrs[i].val.clusterDim.z;
        }
    }
    if (!error && (!size || size > CLUSTER_MAX)) {
        error = cudaErrorInvalidValue;
    }
    if (!error) {
        *clusters = blocks * ask(cudaDevAttrMultiProcessorCount) / (int)size;
    }
    return hostcuda_leave(error);
}
