/*
 * entry_point.c: the runtime's calls that find functions of the driver interface. The runtime opens libcuda.so.1 by
 * name, as the vendor's runtime does, and asks that library. A driver that is not ours would not know our handles, so
 * it counts as absent.
 */
#include "hostnccl/cuda/hostcuda.h"

#include <dlfcn.h>
#include <string.h>

/* The driver's cuGetProcAddress_v2; the last argument tells why nothing was found, in the numbers of the runtime's
 * list. */
typedef int find_fn(const char *symbol, void **function, int version, uint64_t flags, int *result);

static find_fn *finder;

static void open_driver(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver && dlsym(driver, "hostcuda_register_kernel")) {
        void *found = dlsym(driver, "cuGetProcAddress_v2");
        memcpy(&finder, &found, sizeof(finder));
    }
}

static cudaError_t find(const char *symbol, void **function, unsigned int version, unsigned long long flags,
                        bool is_per_thread, enum cudaDriverEntryPointQueryResult *result)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int found = cudaDriverEntryPointSymbolNotFound;
    cudaError_t error = hostcuda_enter();
    if (!error && (!symbol || !function || flags > cudaEnablePerThreadDefaultStream)) {
        error = cudaErrorInvalidValue;
    }
    if (error) {
        return error;
    }
    pthread_once(&once, open_driver);
    *function = NULL;
    if (flags == cudaEnableDefault && is_per_thread) {
        flags = cudaEnablePerThreadDefaultStream;
    }
    int failure = finder ? finder(symbol, function, (int)version, flags, &found) : 0;
    if (result) {
        *result = (enum cudaDriverEntryPointQueryResult)found;
    }
    return (cudaError_t)failure;
}

HOSTCUDA_EXPORT cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags,
                                                    enum cudaDriverEntryPointQueryResult *result)
{
    return hostcuda_leave(find(symbol, function, CUDART_VERSION, flags, false, result));
}

HOSTCUDA_EXPORT cudaError_t cudaGetDriverEntryPoint_ptsz(const char *symbol, void **function, unsigned long long flags,
                                                         enum cudaDriverEntryPointQueryResult *result);
HOSTCUDA_EXPORT cudaError_t cudaGetDriverEntryPoint_ptsz(const char *symbol, void **function, unsigned long long flags,
                                                         enum cudaDriverEntryPointQueryResult *result)
{
    return hostcuda_leave(find(symbol, function, CUDART_VERSION, flags, true, result));
}

/* Since CUDA 12.5; older headers do not declare it. */
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned int version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *result);
HOSTCUDA_EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned int version,
                                                             unsigned long long flags,
                                                             enum cudaDriverEntryPointQueryResult *result)
{
    return hostcuda_leave(find(symbol, function, version, flags, false, result));
}

HOSTCUDA_EXPORT cudaError_t cudaGetDriverEntryPointByVersion_ptsz(const char *symbol, void **function,
                                                                  unsigned int version, unsigned long long flags,
                                                                  enum cudaDriverEntryPointQueryResult *result);
HOSTCUDA_EXPORT cudaError_t cudaGetDriverEntryPointByVersion_ptsz(const char *symbol, void **function,
                                                                  unsigned int version, unsigned long long flags,
                                                                  enum cudaDriverEntryPointQueryResult *result)
{
    return hostcuda_leave(find(symbol, function, version, flags, true, result));
}
