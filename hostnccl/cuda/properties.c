/*
 * properties.c: the properties of a device. Where a program might size something by a number (multiprocessors, shared
 * memory, warps) the number is that of an H100; where the truth matters (memory, unified addressing) it is the truth.
 * One struct is filled; the attribute call reads the same struct through a table, so the two cannot disagree.
 */
#include "hostnccl/cuda/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME "hostcuda"

enum {
    PCI_BUS_FIRST = 0x10,
    PCI_DOMAIN = 0,
    MAJOR = 9,
    MINOR = 0,
    CLOCK_KHZ = 1980000,
    MULTIPROCESSORS = 132,
    MEMORY_CLOCK_KHZ = 2619000
};

static int pci_bus(const struct hostcuda_device *device)
{
    return PCI_BUS_FIRST + device->physical;
}

/* The same on every process of a machine, different between devices. */
static void make_uuid(const struct hostcuda_device *device, char bytes[16])
{
    memcpy(bytes, "hostcuda-device", 15);
    bytes[15] = (char)device->physical;
}

static void describe(const struct hostcuda_device *device, struct hostcuda_about *about)
{
    *about = (struct hostcuda_about){.physical = device->physical,
                                     .major = MAJOR,
                                     .minor = MINOR,
                                     .total_bytes = device->total_bytes,
                                     .used_bytes = atomic_load(&device->used_bytes),
                                     .others_bytes = hostcuda_shared_others(device->physical, true)};
    snprintf(about->name, sizeof(about->name), NAME);
    snprintf(about->bus, sizeof(about->bus), "%08x:%02x:00.0", (unsigned int)PCI_DOMAIN, (unsigned int)pci_bus(device));
    make_uuid(device, about->uuid);
}

cudaError_t hostcuda_about(int number, struct hostcuda_about *about)
{
    cudaError_t error = hostcuda_enter();
    const struct hostcuda_device *device = error ? NULL : hostcuda_device_of(number);
    if (!device) {
        return hostcuda_leave(error ? error : cudaErrorInvalidDevice);
    }
    describe(device, about);
    return cudaSuccess;
}

cudaError_t hostcuda_about_physical(int physical, struct hostcuda_about *about)
{
    if (physical < 0 || physical >= hostcuda_physical_count()) {
        return hostcuda_leave(cudaErrorInvalidDevice);
    }
    struct hostcuda_device unseen = {.physical = physical, .total_bytes = hostcuda_physical_bytes()};
    const struct hostcuda_device *device = &unseen;
    for (int d = 0; d < hostcuda_device_count(); d++) {
        device = hostcuda_device_of(d)->physical == physical ? hostcuda_device_of(d) : device;
    }
    describe(device, about);
    return cudaSuccess;
}

static void fill_properties(struct cudaDeviceProp *p, const struct hostcuda_device *device)
{
    memset(p, 0, sizeof(*p));
    snprintf(p->name, sizeof(p->name), NAME);
    make_uuid(device, p->uuid.bytes);
    p->totalGlobalMem = device->total_bytes;
    p->sharedMemPerBlock = 48 << 10;
    p->regsPerBlock = 65536;
    p->warpSize = 32;
    p->memPitch = 0x7fffffff;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->totalConstMem = 64 << 10;
    p->major = MAJOR;
    p->minor = MINOR;
    p->textureAlignment = 512;
    p->texturePitchAlignment = 32;
    p->multiProcessorCount = (int)hostcuda_env("HOSTCUDA_SMS", 1, 1024, MULTIPROCESSORS);
    p->canMapHostMemory = 1;
    p->surfaceAlignment = 512;
    p->concurrentKernels = 1;
    p->ECCEnabled = 1;
    p->pciBusID = pci_bus(device);
    p->pciDomainID = PCI_DOMAIN;
    p->asyncEngineCount = 3;
    p->unifiedAddressing = 1;
    p->memoryBusWidth = 5120;
    p->l2CacheSize = 50 << 20;
    p->maxThreadsPerMultiProcessor = 2048;
    p->streamPrioritiesSupported = 1;
    p->globalL1CacheSupported = p->localL1CacheSupported = 1;
    p->sharedMemPerMultiprocessor = 228 << 10;
    p->regsPerMultiprocessor = 65536;
    p->managedMemory = 1;
    p->concurrentManagedAccess = 1;
    p->computePreemptionSupported = 1;
    p->canUseHostPointerForRegisteredMem = 1;
    p->cooperativeLaunch = 1;
    p->sharedMemPerBlockOptin = 227 << 10;
    p->maxBlocksPerMultiProcessor = 32;
    p->reservedSharedMemPerBlock = 1 << 10;
    p->hostRegisterSupported = 1;
    p->hostRegisterReadOnlySupported = 1;
#if CUDART_VERSION >= 13000
    p->hostNumaId = -1;
    p->deviceNumaId = -1;
#else
    p->clockRate = CLOCK_KHZ;
    p->memoryClockRate = MEMORY_CLOCK_KHZ;
    p->deviceOverlap = 1;
    p->computeMode = cudaComputeModeDefault;
    p->singleToDoublePrecisionPerfRatio = 2;
    p->cooperativeMultiDeviceLaunch = 1;
#endif
}

HOSTCUDA_EXPORT cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int number)
{
    cudaError_t error = properties ? hostcuda_enter() : cudaErrorInvalidValue;
    struct hostcuda_device *device = error ? NULL : hostcuda_device_of(number);
    if (!error && !device) {
        error = cudaErrorInvalidDevice;
    }
    if (!error) {
        fill_properties(properties, device);
    }
    return hostcuda_leave(error);
}

#define FIELD(attribute, member)                                                                                       \
    {                                                                                                                  \
        cudaDevAttr##attribute, offsetof(struct cudaDeviceProp, member), sizeof(((struct cudaDeviceProp *)0)->member)  \
    }

static const struct {
    int attribute;
    size_t offset, size;
} fields[] = {
    FIELD(MaxThreadsPerBlock, maxThreadsPerBlock),
    FIELD(MaxBlockDimX, maxThreadsDim[0]),
    FIELD(MaxBlockDimY, maxThreadsDim[1]),
    FIELD(MaxBlockDimZ, maxThreadsDim[2]),
    FIELD(MaxGridDimX, maxGridSize[0]),
    FIELD(MaxGridDimY, maxGridSize[1]),
    FIELD(MaxGridDimZ, maxGridSize[2]),
    FIELD(MaxSharedMemoryPerBlock, sharedMemPerBlock),
    FIELD(TotalConstantMemory, totalConstMem),
    FIELD(WarpSize, warpSize),
    FIELD(MaxPitch, memPitch),
    FIELD(MaxRegistersPerBlock, regsPerBlock),
    FIELD(TextureAlignment, textureAlignment),
    FIELD(GpuOverlap, concurrentKernels),
    FIELD(MultiProcessorCount, multiProcessorCount),
    FIELD(Integrated, integrated),
    FIELD(CanMapHostMemory, canMapHostMemory),
    FIELD(SurfaceAlignment, surfaceAlignment),
    FIELD(ConcurrentKernels, concurrentKernels),
    FIELD(EccEnabled, ECCEnabled),
    FIELD(PciBusId, pciBusID),
    FIELD(PciDeviceId, pciDeviceID),
    FIELD(PciDomainId, pciDomainID),
    FIELD(TccDriver, tccDriver),
    FIELD(GlobalMemoryBusWidth, memoryBusWidth),
    FIELD(L2CacheSize, l2CacheSize),
    FIELD(MaxThreadsPerMultiProcessor, maxThreadsPerMultiProcessor),
    FIELD(AsyncEngineCount, asyncEngineCount),
    FIELD(UnifiedAddressing, unifiedAddressing),
    FIELD(TexturePitchAlignment, texturePitchAlignment),
    FIELD(ComputeCapabilityMajor, major),
    FIELD(ComputeCapabilityMinor, minor),
    FIELD(StreamPrioritiesSupported, streamPrioritiesSupported),
    FIELD(GlobalL1CacheSupported, globalL1CacheSupported),
    FIELD(LocalL1CacheSupported, localL1CacheSupported),
    FIELD(MaxSharedMemoryPerMultiprocessor, sharedMemPerMultiprocessor),
    FIELD(MaxRegistersPerMultiprocessor, regsPerMultiprocessor),
    FIELD(ManagedMemory, managedMemory),
    FIELD(IsMultiGpuBoard, isMultiGpuBoard),
    FIELD(MultiGpuBoardGroupID, multiGpuBoardGroupID),
    FIELD(HostNativeAtomicSupported, hostNativeAtomicSupported),
    FIELD(PageableMemoryAccess, pageableMemoryAccess),
    FIELD(ConcurrentManagedAccess, concurrentManagedAccess),
    FIELD(ComputePreemptionSupported, computePreemptionSupported),
    FIELD(CanUseHostPointerForRegisteredMem, canUseHostPointerForRegisteredMem),
    FIELD(CooperativeLaunch, cooperativeLaunch),
    FIELD(MaxSharedMemoryPerBlockOptin, sharedMemPerBlockOptin),
    FIELD(HostRegisterSupported, hostRegisterSupported),
    FIELD(PageableMemoryAccessUsesHostPageTables, pageableMemoryAccessUsesHostPageTables),
    FIELD(DirectManagedMemAccessFromHost, directManagedMemAccessFromHost),
    FIELD(MaxBlocksPerMultiprocessor, maxBlocksPerMultiProcessor),
    FIELD(MaxPersistingL2CacheSize, persistingL2CacheMaxSize),
    FIELD(MaxAccessPolicyWindowSize, accessPolicyMaxWindowSize),
    FIELD(ReservedSharedMemoryPerBlock, reservedSharedMemPerBlock),
    FIELD(SparseCudaArraySupported, sparseCudaArraySupported),
    FIELD(HostRegisterReadOnlySupported, hostRegisterReadOnlySupported),
    FIELD(TimelineSemaphoreInteropSupported, timelineSemaphoreInteropSupported),
    FIELD(MemoryPoolsSupported, memoryPoolsSupported),
    FIELD(GPUDirectRDMASupported, gpuDirectRDMASupported),
    FIELD(GPUDirectRDMAFlushWritesOptions, gpuDirectRDMAFlushWritesOptions),
    FIELD(GPUDirectRDMAWritesOrdering, gpuDirectRDMAWritesOrdering),
    FIELD(MemoryPoolSupportedHandleTypes, memoryPoolSupportedHandleTypes),
    FIELD(ClusterLaunch, clusterLaunch),
    FIELD(DeferredMappingCudaArraySupported, deferredMappingCudaArraySupported),
    FIELD(IpcEventSupport, ipcEventSupported),
};

/* Attributes that CUDA 13 no longer has in the struct. */
static const struct {
    int attribute, value;
} constants[] = {
    {cudaDevAttrClockRate, CLOCK_KHZ},
    {cudaDevAttrMemoryClockRate, MEMORY_CLOCK_KHZ},
    {cudaDevAttrKernelExecTimeout, 0},
    {cudaDevAttrComputeMode, cudaComputeModeDefault},
    {cudaDevAttrSingleToDoublePrecisionPerfRatio, 2},
    {cudaDevAttrCanFlushRemoteWrites, 0},
    {cudaDevAttrNumaConfig, 0},
    {cudaDevAttrNumaId, -1},
    {cudaDevAttrHostNumaId, -1},
    {cudaDevAttrMpsEnabled, 0},
    {cudaDevAttrMemSyncDomainCount, 4},
};

static int read_field(const struct cudaDeviceProp *p, size_t offset, size_t size)
{
    const char *at = (const char *)p + offset;
    if (size == sizeof(size_t)) {
        size_t wide;
        memcpy(&wide, at, sizeof(wide));
        return (int)wide;
    }
    int value;
    memcpy(&value, at, sizeof(value));
    return value;
}

HOSTCUDA_EXPORT cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int number)
{
    cudaError_t error = value ? hostcuda_enter() : cudaErrorInvalidValue;
    struct hostcuda_device *device = error ? NULL : hostcuda_device_of(number);
    if (!device) {
        return hostcuda_leave(error ? error : cudaErrorInvalidDevice);
    }
    struct cudaDeviceProp properties;
    fill_properties(&properties, device);
    for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++) {
        if (fields[i].attribute == (int)attribute) {
            *value = read_field(&properties, fields[i].offset, fields[i].size);
            return cudaSuccess;
        }
    }
    for (size_t i = 0; i < sizeof(constants) / sizeof(*constants); i++) {
        if (constants[i].attribute == (int)attribute) {
            *value = constants[i].value;
            return cudaSuccess;
        }
    }
    /* CUDA knows these attributes, but they are about textures, surfaces or graphics, which do not exist here. */
    *value = 0;
    return attribute > 0 && attribute < cudaDevAttrMax ? cudaSuccess : hostcuda_leave(cudaErrorInvalidValue);
}

HOSTCUDA_EXPORT cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int number)
{
    cudaError_t error = text && length > 0 ? hostcuda_enter() : cudaErrorInvalidValue;
    struct hostcuda_device *device = error ? NULL : hostcuda_device_of(number);
    if (!error && !device) {
        error = cudaErrorInvalidDevice;
    }
    if (!error && snprintf(text, (size_t)length, "%04x:%02x:00.0", (unsigned int)PCI_DOMAIN,
                           (unsigned int)pci_bus(device)) >= length) {
        error = cudaErrorInvalidValue;
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaDeviceGetByPCIBusId(int *number, const char *text)
{
    unsigned int domain = 0, bus = 0, slot = 0, function = 0;
    cudaError_t error = number && text ? hostcuda_enter() : cudaErrorInvalidValue;
    if (error) {
        return hostcuda_leave(error);
    }
    if (sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) {
        domain = 0;
        if (sscanf(text, "%x:%x.%x", &bus, &slot, &function) < 2) {
            return hostcuda_leave(cudaErrorInvalidValue);
        }
    }
    for (int d = 0; d < hostcuda_device_count(); d++) {
        if (domain == PCI_DOMAIN && bus == (unsigned int)pci_bus(hostcuda_device_of(d)) && !slot && !function) {
            *number = d;
            return cudaSuccess;
        }
    }
    return hostcuda_leave(cudaErrorInvalidDevice);
}
