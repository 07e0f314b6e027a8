/*
 * limit.c: limits of what device code may use (stack, heap, printf): kept for each device, since programs read back
 * what they set, and without effect, since no device code runs.
 */
#include "hostnccl/cuda/hostcuda.h"

enum { LIMITS = cudaLimitPersistingL2CacheSize + 1 };

/* What a device says at the start; a limit that none has had since CUDA's own synchronisation inside kernels went has
 * no row. */
static const struct {
    bool is_known;
    size_t value, most;
} START[LIMITS] = {
    [cudaLimitStackSize] = {true, 1024, 512u << 10},
    [cudaLimitPrintfFifoSize] = {true, 1u << 20, SIZE_MAX},
    [cudaLimitMallocHeapSize] = {true, 8u << 20, SIZE_MAX},
    [cudaLimitDevRuntimePendingLaunchCount] = {true, 2048, SIZE_MAX},
    [cudaLimitMaxL2FetchGranularity] = {true, 64, 128},
    [cudaLimitPersistingL2CacheSize] = {true, 0, SIZE_MAX},
};

/* What a program set, plus 1; 0: nothing. */
static _Atomic size_t set[HOSTCUDA_DEVICES_MAX][LIMITS];

static cudaError_t check(enum cudaLimit limit)
{
    cudaError_t error = hostcuda_enter();
    return error                           ? error
           : (unsigned int)limit >= LIMITS ? cudaErrorInvalidValue
           : !START[limit].is_known        ? cudaErrorUnsupportedLimit
                                           : cudaSuccess;
}

/* A size that is too large becomes the largest one, as the vendor's driver may do. */
HOSTCUDA_EXPORT cudaError_t cudaDeviceSetLimit(enum cudaLimit limit, size_t value)
{
    cudaError_t error = check(limit);
    if (!error) {
        size_t most = START[limit].most;
        int l2 = 0;
        if (limit == cudaLimitPersistingL2CacheSize &&
            cudaDeviceGetAttribute(&l2, cudaDevAttrMaxPersistingL2CacheSize, hostcuda_self()->device) == cudaSuccess) {
            most = (size_t)l2;
        }
        value = value < most ? value : most;
        atomic_store(&set[hostcuda_self()->device][limit], value == SIZE_MAX ? SIZE_MAX : value + 1);
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaDeviceGetLimit(size_t *value, enum cudaLimit limit)
{
    cudaError_t error = value ? check(limit) : cudaErrorInvalidValue;
    if (!error) {
        size_t kept = atomic_load(&set[hostcuda_self()->device][limit]);
        *value = kept ? kept - 1 : START[limit].value;
    }
    return hostcuda_leave(error);
}
