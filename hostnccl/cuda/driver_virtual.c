/*
 * driver_virtual.c: addresses and memory apart, in the driver interface (virtual.c has the idea). Memory of devices
 * only, since memory of the host has no size here that it would count against. A handle for other processes is a file
 * descriptor; one of fabrics names memory of another machine, which is not reachable here.
 */
#include "hostnccl/cuda/driver.h"

#include <string.h>

static void *pointer(CUdeviceptr address)
{
    return (void *)(uintptr_t)address;
}

static struct hostcuda_memory *memory_of(CUmemGenericAllocationHandle handle)
{
    return (struct hostcuda_memory *)(uintptr_t)handle;
}

/* What a program asks for that memory here can be. */
static CUresult check(const CUmemAllocationProp *properties)
{
    if (!properties || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return DRIVER(unsupported("cuMemCreate", "memory is that of a device here"));
    }
    if ((int)properties->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        return DRIVER(unsupported("cuMemCreate", "a handle for other processes is a file descriptor here"));
    }
    return CUDA_SUCCESS;
}

/* The address that the program would like is a wish. */
DRIVER_EXPORT CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr wish,
                                           unsigned long long flags)
{
    void *memory = NULL;
    (void)wish;
    CUresult result = address && !flags ? DRIVER(virtual.reserve(&memory, bytes, alignment)) : CUDA_ERROR_INVALID_VALUE;
    if (!result) {
        *address = (CUdeviceptr)(uintptr_t)memory;
    }
    return result;
}

DRIVER_EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
    return DRIVER(virtual.free(pointer(address), bytes));
}

DRIVER_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                                   const CUmemAllocationProp *properties, unsigned long long flags)
{
    struct hostcuda_memory *memory = NULL;
    CUresult result = handle && !flags ? check(properties) : CUDA_ERROR_INVALID_VALUE;
    if (!result) {
        bool is_shared = properties->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        result = DRIVER(virtual.create(&memory, bytes, properties->location.id, is_shared));
    }
    if (!result) {
        *handle = (CUmemGenericAllocationHandle)(uintptr_t)memory;
    }
    return result;
}

DRIVER_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    return DRIVER(virtual.release(memory_of(handle)));
}

DRIVER_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    struct hostcuda_memory *memory = NULL;
    CUresult result = handle ? DRIVER(virtual.retain(&memory, address)) : CUDA_ERROR_INVALID_VALUE;
    if (!result) {
        *handle = (CUmemGenericAllocationHandle)(uintptr_t)memory;
    }
    return result;
}

DRIVER_EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
                                                              CUmemGenericAllocationHandle handle)
{
    int device = 0;
    bool is_shared = false;
    CUresult result =
        properties ? DRIVER(virtual.about(memory_of(handle), &device, &is_shared)) : CUDA_ERROR_INVALID_VALUE;
    if (!result) {
        *properties = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .requestedHandleTypes = is_shared ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                                                              : CU_MEM_HANDLE_TYPE_NONE,
                                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    }
    return result;
}

DRIVER_EXPORT CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                                unsigned long long flags)
{
    return flags ? CUDA_ERROR_INVALID_VALUE : DRIVER(virtual.map(pointer(address), bytes, offset, memory_of(handle)));
}

DRIVER_EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    return DRIVER(virtual.unmap(pointer(address), bytes));
}

/* Host memory has one access for all devices: what any of the list may do. */
DRIVER_EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *list, size_t count)
{
    int access = 0;
    if (!list || !count) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; i++) {
        access |= (int)list[i].flags;
    }
    return access & ~CU_MEM_ACCESS_FLAGS_PROT_READWRITE
               ? CUDA_ERROR_INVALID_VALUE
               : DRIVER(virtual.access(pointer(address), bytes, (access & 1) != 0, (access & 2) != 0));
}

DRIVER_EXPORT CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *properties,
                                                     CUmemAllocationGranularity_flags which)
{
    CUresult result =
        bytes && (int)which <= CU_MEM_ALLOC_GRANULARITY_RECOMMENDED ? check(properties) : CUDA_ERROR_INVALID_VALUE;
    if (!result) {
        *bytes = HOSTCUDA_VIRTUAL_GRANULE;
    }
    return result;
}

DRIVER_EXPORT CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle,
                                                    CUmemAllocationHandleType type, unsigned long long flags)
{
    if (!out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return DRIVER(virtual.export(out, memory_of(handle)));
}

/* A descriptor comes as the pointer itself. */
DRIVER_EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *from,
                                                      CUmemAllocationHandleType type)
{
    struct hostcuda_memory *memory = NULL;
    if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = DRIVER(virtual.import(&memory, (int)(intptr_t)from));
    if (!result) {
        *handle = (CUmemGenericAllocationHandle)(uintptr_t)memory;
    }
    return result;
}
