/*
 * driver_refused.c: the functions of driver_refused.def, which return CUDA_ERROR_NOT_SUPPORTED and say so once each.
 * Their arguments are not looked at. And the log of the driver, which is empty here.
 */
#include "hostnccl/cuda/driver.h"

#define REFUSED(name, version, why)                                                                                    \
    DRIVER_EXPORT CUresult name(void)                                                                                  \
    {                                                                                                                  \
        return DRIVER(unsupported(#name, why));                                                                        \
    }
#include "hostnccl/cuda/driver_refused.def"

/* A message comes when the driver meets an error that it can explain; this one explains none. */
DRIVER_EXPORT CUresult cuLogsRegisterCallback(void *callback, void *data, void **handle)
{
    static char registered;
    (void)data;
    if (!callback) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (handle) {
        *handle = &registered;
    }
    return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuLogsUnregisterCallback(void *handle)
{
    return handle ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
