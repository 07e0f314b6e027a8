/*
 * driver_memory.c: memory in the driver interface: questions about pointers, copies and fills.
 */
#include "hostnccl/cuda/driver.h"

#include <string.h>

static void *pointer(CUdeviceptr address)
{
    return (void *)(uintptr_t)address;
}

DRIVER_EXPORT CUresult cuMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    return DRIVER(cudaMemGetInfo(free_bytes, total_bytes));
}

DRIVER_EXPORT CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
    struct hostcuda_about about;
    CUresult result = bytes ? DRIVER(device_about(device, &about)) : CUDA_ERROR_INVALID_VALUE;
    if (!result) {
        *bytes = about.total_bytes;
    }
    return result;
}

/* Finds the allocation or registration that holds an address. */
static CUresult find(CUdeviceptr address, struct hostcuda_range *range)
{
    const struct hostcuda_private *runtime = driver_ready();
    if (!runtime) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    return runtime->range_find(pointer(address), 1, range) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

DRIVER_EXPORT CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
    struct hostcuda_range range;
    CUresult result = find(address, &range);
    if (result) {
        return result == CUDA_ERROR_INVALID_VALUE ? CUDA_ERROR_NOT_FOUND : result;
    }
    if (base) {
        *base = range.start;
    }
    if (bytes) {
        *bytes = range.end - range.start;
    }
    return CUDA_SUCCESS;
}

/* Writes a value of its own size. */
#define ANSWER(type, answer)                                                                                           \
    do {                                                                                                               \
        type held = (answer);                                                                                          \
        memcpy(value, &held, sizeof(held));                                                                            \
    } while (0)

DRIVER_EXPORT CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    struct hostcuda_range range;
    CUcontext context;
    CUresult result = value ? find(address, &range) : CUDA_ERROR_INVALID_VALUE;
    if (result) {
        return result;
    }
    bool is_host = range.type == cudaMemoryTypeHost;
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        result = cuDevicePrimaryCtxRetain(&context, range.device);
        if (!result) {
            ANSWER(CUcontext, context);
            result = cuDevicePrimaryCtxRelease(range.device);
        }
        return result;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        ANSWER(unsigned int, is_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        ANSWER(CUdeviceptr, address);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (range.type == cudaMemoryTypeDevice) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        ANSWER(void *, pointer(address));
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        ANSWER(unsigned int, range.type == cudaMemoryTypeManaged);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        ANSWER(int, range.device);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        ANSWER(CUdeviceptr, range.start);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        ANSWER(size_t, range.end - range.start);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        ANSWER(unsigned int, 1);
        return CUDA_SUCCESS;
    default:
        return DRIVER(unsupported("cuPointerGetAttribute", "the attribute has no meaning for host memory"));
    }
}

/* As documented, an attribute that a pointer does not have is 0 here, and no error. */
DRIVER_EXPORT CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **values,
                                              CUdeviceptr address)
{
    if (!count || !attributes || !values) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    for (unsigned int i = 0; i < count; i++) {
        if (cuPointerGetAttribute(values[i], attributes[i], address)) {
            memset(values[i], 0, sizeof(int)); /* the smallest size that an answer has */
        }
    }
    return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuMemcpyHtoD(CUdeviceptr dst, const void *src, size_t bytes)
{
    return DRIVER(cudaMemcpy(pointer(dst), src, bytes, cudaMemcpyHostToDevice));
}

DRIVER_EXPORT CUresult cuMemcpyDtoH(void *dst, CUdeviceptr src, size_t bytes)
{
    return DRIVER(cudaMemcpy(dst, pointer(src), bytes, cudaMemcpyDeviceToHost));
}

DRIVER_EXPORT CUresult cuMemcpyHtoDAsync(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream)
{
    return DRIVER(cudaMemcpyAsync(pointer(dst), src, bytes, cudaMemcpyHostToDevice, stream));
}

DRIVER_EXPORT CUresult cuMemcpyDtoHAsync(void *dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    return DRIVER(cudaMemcpyAsync(dst, pointer(src), bytes, cudaMemcpyDeviceToHost, stream));
}

DRIVER_EXPORT CUresult cuMemcpyDtoDAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    return DRIVER(cudaMemcpyAsync(pointer(dst), pointer(src), bytes, cudaMemcpyDeviceToDevice, stream));
}

DRIVER_EXPORT CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count, CUstream stream)
{
    return DRIVER(fill(pointer(dst), value, 1, count, stream));
}

DRIVER_EXPORT CUresult cuMemsetD16Async(CUdeviceptr dst, unsigned short value, size_t count, CUstream stream)
{
    return DRIVER(fill(pointer(dst), value, 2, count, stream));
}

DRIVER_EXPORT CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned int value, size_t count, CUstream stream)
{
    return DRIVER(fill(pointer(dst), value, 4, count, stream));
}

/* Of types that older headers do not have; read by kernels only, and none here asks for this form: 128 bytes of 0. */
DRIVER_EXPORT int cuTensorMapEncodeIm2col(void *map, int type, unsigned int rank, void *address)
{
    (void)type, (void)address;
    if (!map || rank < 3 || rank > 5) { /* batch, at least one dimension in space, channels */
        return CUDA_ERROR_INVALID_VALUE;
    }
    memset(map, 0, 128);
    return CUDA_SUCCESS;
}
