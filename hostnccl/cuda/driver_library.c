/*
 * driver_library.c: libraries of device code in the driver interface: the runtime's (library.c) under other names. A
 * kernel of a library is a function at the same time, so it can be launched as it is.
 */
#include "hostnccl/cuda/driver_kernel.h"

DRIVER_EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit_options,
                                         void **jit_values, unsigned int jit_count, CUlibraryOption *options,
                                         void **values, unsigned int count)
{
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return DRIVER(cudaLibraryLoadData((cudaLibrary_t *)library, code, NULL, NULL, 0, NULL, NULL, 0));
}

DRIVER_EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit_options,
                                             void **jit_values, unsigned int jit_count, CUlibraryOption *options,
                                             void **values, unsigned int count)
{
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return DRIVER(cudaLibraryLoadFromFile((cudaLibrary_t *)library, path, NULL, NULL, 0, NULL, NULL, 0));
}

DRIVER_EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
    return DRIVER(cudaLibraryUnload((cudaLibrary_t)library));
}

DRIVER_EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    return DRIVER(cudaLibraryGetKernel((cudaKernel_t *)kernel, (cudaLibrary_t)library, name));
}

DRIVER_EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary library, const char *name)
{
    (void)address, (void)bytes, (void)library, (void)name;
    return DRIVER(unsupported("cuLibraryGetGlobal", "device code is not read here, so its variables are not known"));
}

DRIVER_EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!function || !kernel) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *function = (CUfunction)kernel;
    return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel,
                                            CUdevice device)
{
    (void)device; /* all are alike */
    return cuFuncGetAttribute(value, attribute, (CUfunction)kernel);
}

DRIVER_EXPORT CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device)
{
    (void)device;
    return cuFuncSetAttribute((CUfunction)kernel, attribute, value);
}
