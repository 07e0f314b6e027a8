/*
 * driver.c: the driver interface itself: start, errors, devices, contexts, memory. There is one context per device, the
 * primary one; it is current in every thread for the runtime's current device, until the thread says that none is.
 */
#include "hostnccl/cuda/driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

struct CUctx_st {
    atomic_int retained;
};

static struct CUctx_st contexts[HOSTCUDA_DEVICES_MAX];
static atomic_bool is_initialized;
static _Thread_local bool has_none; /* the thread has set its current context to NULL */

enum { STACK_MAX = 16 };
static _Thread_local struct {
    int depth;
    CUcontext before[STACK_MAX];
} pushed;

const struct hostcuda_private *driver_table(void)
{
    static _Atomic(const struct hostcuda_private *) known;
    const struct hostcuda_private *runtime = atomic_load(&known);
    if (!runtime) {
        runtime = hostcuda_find();
        if (runtime && runtime->is_started()) { /* else the program may still start the other one of two runtimes */
            atomic_store(&known, runtime);
        }
    }
    return runtime;
}

const struct hostcuda_private *driver_ready(void)
{
    const struct hostcuda_private *runtime = driver_table();
    return runtime && (atomic_load(&is_initialized) || runtime->is_started()) ? runtime : NULL;
}

const struct hostcuda_private *driver_enter(void)
{
    driver_table()->quiet(true);
    return driver_table();
}

CUresult driver_leave(cudaError_t error)
{
    driver_table()->quiet(false);
    switch (error) { /* nearly all numbers are the same */
    case cudaErrorInvalidPitchValue:
    case cudaErrorInvalidMemcpyDirection:
    case cudaErrorInvalidConfiguration:
        return CUDA_ERROR_INVALID_VALUE;
    case cudaErrorInvalidDeviceFunction:
        return CUDA_ERROR_INVALID_HANDLE;
    default:
        return (CUresult)error;
    }
}

DRIVER_EXPORT CUresult cuInit(unsigned int flags)
{
    int count = 0;
    if (flags) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!driver_table()) {
        return CUDA_ERROR_UNKNOWN;
    }
    CUresult result = driver_leave(driver_enter()->cudaGetDeviceCount(&count));
    if (!result) {
        atomic_store(&is_initialized, true);
    }
    return result;
}

DRIVER_EXPORT CUresult cuDriverGetVersion(int *version)
{
    if (!version || !driver_table()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return driver_leave(driver_enter()->cudaRuntimeGetVersion(version));
}

/* The vendor's runtime asks for this table first. */
static const unsigned char RUNTIMES_TABLE[4] = {0x6b, 0xd5, 0xfb, 0x6c};

/* Says once that a module has the vendor's runtime linked into it: it does not come to ours, and needs what no document
 * describes. */
static void say_runtime(const void *caller)
{
    static atomic_flag is_said = ATOMIC_FLAG_INIT;
    Dl_info about;
    if (!atomic_flag_test_and_set(&is_said)) {
        fprintf(stderr,
                "hostcuda: %s has CUDA's runtime linked into it, which wants private parts of the driver that are not "
                "here: its calls fail\n",
                dladdr(caller, &about) && about.dli_fname ? about.dli_fname : "a module");
    }
}

/* The vendor's libraries share private tables by this function, of which none is here. It must exist: NVRTC compiles
 * with the driver's table or, when it is refused one, without, and ends the process where the function is missing. */
DRIVER_EXPORT CUresult cuGetExportTable(const void **table, const CUuuid *name)
{
    if (table) {
        *table = NULL;
    }
    if (name && !memcmp(name->bytes, RUNTIMES_TABLE, sizeof(RUNTIMES_TABLE))) {
        say_runtime(__builtin_return_address(0));
    }
    return table && name ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
}

/* errors: a few have another name here */

static const struct {
    CUresult number;
    const char *name;
} names[] = {
#define NAME(name)                                                                                                     \
    {                                                                                                                  \
        name, #name                                                                                                    \
    }
    NAME(CUDA_SUCCESS),
    NAME(CUDA_ERROR_INVALID_VALUE),
    NAME(CUDA_ERROR_OUT_OF_MEMORY),
    NAME(CUDA_ERROR_NOT_INITIALIZED),
    NAME(CUDA_ERROR_DEINITIALIZED),
    NAME(CUDA_ERROR_NO_DEVICE),
    NAME(CUDA_ERROR_INVALID_DEVICE),
    NAME(CUDA_ERROR_INVALID_IMAGE),
    NAME(CUDA_ERROR_INVALID_CONTEXT),
    NAME(CUDA_ERROR_NO_BINARY_FOR_GPU),
    NAME(CUDA_ERROR_UNSUPPORTED_LIMIT),
    NAME(CUDA_ERROR_INVALID_PTX),
    NAME(CUDA_ERROR_OPERATING_SYSTEM),
    NAME(CUDA_ERROR_INVALID_HANDLE),
    NAME(CUDA_ERROR_ILLEGAL_STATE),
    NAME(CUDA_ERROR_NOT_FOUND),
    NAME(CUDA_ERROR_NOT_READY),
    NAME(CUDA_ERROR_ILLEGAL_ADDRESS),
    NAME(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED),
    NAME(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
    NAME(CUDA_ERROR_LAUNCH_FAILED),
    NAME(CUDA_ERROR_NOT_PERMITTED),
    NAME(CUDA_ERROR_NOT_SUPPORTED),
    NAME(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
    NAME(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
    NAME(CUDA_ERROR_STREAM_CAPTURE_MERGE),
    NAME(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED),
    NAME(CUDA_ERROR_STREAM_CAPTURE_UNJOINED),
    NAME(CUDA_ERROR_STREAM_CAPTURE_ISOLATION),
    NAME(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),
    NAME(CUDA_ERROR_CAPTURED_EVENT),
    NAME(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD),
    NAME(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE),
    NAME(CUDA_ERROR_UNKNOWN),
#undef NAME
};

DRIVER_EXPORT CUresult cuGetErrorName(CUresult error, const char **name)
{
    for (size_t i = 0; name && i < sizeof(names) / sizeof(*names); i++) {
        if (names[i].number == error) {
            *name = names[i].name;
            return CUDA_SUCCESS;
        }
    }
    if (name) {
        *name = NULL;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

DRIVER_EXPORT CUresult cuGetErrorString(CUresult error, const char **text)
{
    const char *name;
    CUresult result = text ? cuGetErrorName(error, &name) : CUDA_ERROR_INVALID_VALUE;
    if (text) {
        *text = result || !driver_table() ? NULL : driver_table()->error_text((cudaError_t)error);
    }
    return result;
}

/* devices and contexts */

/* Whether there is a device with that number. */
static CUresult check_device(CUdevice device)
{
    int count = 0;
    CUresult result = DRIVER(cudaGetDeviceCount(&count));
    return result ? result : device >= 0 && device < count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

DRIVER_EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult result = device ? check_device(ordinal) : CUDA_ERROR_INVALID_VALUE;
    if (!result) {
        *device = ordinal;
    }
    return result;
}

DRIVER_EXPORT CUresult cuDeviceGetCount(int *count)
{
    return count ? DRIVER(cudaGetDeviceCount(count)) : CUDA_ERROR_INVALID_VALUE;
}

DRIVER_EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    struct hostcuda_about about;
    CUresult result = name && length > 0 ? check_device(device) : CUDA_ERROR_INVALID_VALUE;
    if (!result) {
        result = DRIVER(device_about(device, &about));
    }
    if (!result) {
        size_t bytes = strnlen(about.name, (size_t)length - 1);
        memcpy(name, about.name, bytes);
        name[bytes] = '\0';
    }
    return result;
}

DRIVER_EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    struct hostcuda_about about;
    CUresult result = uuid ? check_device(device) : CUDA_ERROR_INVALID_VALUE;
    if (!result) {
        result = DRIVER(device_about(device, &about));
    }
    if (!result) {
        memcpy(uuid, about.uuid, sizeof(about.uuid));
    }
    return result;
}

DRIVER_EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    CUresult result = value ? check_device(device) : CUDA_ERROR_INVALID_VALUE;
    if (result) {
        return result;
    }
    switch (attribute) { /* attributes of the driver interface alone follow what the files of the driver offer */
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
        *value = 1;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1: /* the first variants of these calls are not there */
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1:
        *value = 0;
        return CUDA_SUCCESS;
    default:
        return DRIVER(cudaDeviceGetAttribute(value, (enum cudaDeviceAttr)attribute, device));
    }
}

DRIVER_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    CUresult result = context ? check_device(device) : CUDA_ERROR_INVALID_VALUE;
    if (!result) {
        atomic_fetch_add(&contexts[device].retained, 1);
        *context = &contexts[device];
    }
    return result;
}

DRIVER_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    CUresult result = check_device(device);
    if (result) {
        return result;
    }
    int retained = atomic_load(&contexts[device].retained);
    do {
        if (retained == 0) {
            return CUDA_ERROR_INVALID_CONTEXT;
        }
    } while (!atomic_compare_exchange_weak(&contexts[device].retained, &retained, retained - 1));
    return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
    CUresult result = flags && active ? check_device(device) : CUDA_ERROR_INVALID_VALUE;
    if (!result) {
        *flags = 0;
        *active = driver_table()->is_started() || atomic_load(&contexts[device].retained) > 0;
    }
    return result;
}

/* The number of the device that the context belongs to; negative when it is none of ours. */
static int device_of(CUcontext context)
{
    for (int i = 0; i < HOSTCUDA_DEVICES_MAX; i++) {
        if (context == &contexts[i]) {
            return i;
        }
    }
    return -1;
}

DRIVER_EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
    int device = 0;
    CUresult result = context ? DRIVER(cudaGetDevice(&device)) : CUDA_ERROR_INVALID_VALUE;
    if (!result) {
        *context = has_none ? NULL : &contexts[device];
    }
    return result;
}

DRIVER_EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!context) {
        has_none = true;
        return CUDA_SUCCESS;
    }
    int device = device_of(context);
    CUresult result = device < 0 ? CUDA_ERROR_INVALID_CONTEXT : DRIVER(cudaSetDevice(device));
    if (!result) {
        has_none = false;
    }
    return result == CUDA_ERROR_INVALID_DEVICE ? CUDA_ERROR_INVALID_CONTEXT : result;
}

DRIVER_EXPORT CUresult cuCtxPushCurrent(CUcontext context)
{
    CUcontext before;
    if (pushed.depth == STACK_MAX) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = context ? cuCtxGetCurrent(&before) : CUDA_ERROR_INVALID_CONTEXT;
    if (!result) {
        result = cuCtxSetCurrent(context);
    }
    if (!result) {
        pushed.before[pushed.depth++] = before;
    }
    return result;
}

DRIVER_EXPORT CUresult cuCtxPopCurrent(CUcontext *context)
{
    CUcontext now;
    CUresult result = cuCtxGetCurrent(&now);
    if (!result && !now) {
        result = CUDA_ERROR_INVALID_CONTEXT;
    }
    if (!result) {
        result = cuCtxSetCurrent(pushed.depth ? pushed.before[--pushed.depth] : NULL);
    }
    if (!result && context) {
        *context = now;
    }
    return result;
}

DRIVER_EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    if (!device) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = DRIVER(cudaGetDevice(device));
    return !result && has_none ? CUDA_ERROR_INVALID_CONTEXT : result;
}

/* The limits have the runtime's numbers. */
DRIVER_EXPORT CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    return has_none ? CUDA_ERROR_INVALID_CONTEXT : DRIVER(cudaDeviceSetLimit((enum cudaLimit)limit, value));
}

DRIVER_EXPORT CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
    return has_none ? CUDA_ERROR_INVALID_CONTEXT : DRIVER(cudaDeviceGetLimit(value, (enum cudaLimit)limit));
}

DRIVER_EXPORT CUresult cuCtxSynchronize(void)
{
    return DRIVER(cudaDeviceSynchronize());
}

DRIVER_EXPORT CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    int device = 0;
    CUresult result = context ? DRIVER(stream_device(stream, &device)) : CUDA_ERROR_INVALID_VALUE;
    if (!result) {
        *context = &contexts[device];
    }
    return result;
}

/* memory: an address is a number here */

static void *pointer(CUdeviceptr address)
{
    return (void *)(uintptr_t)address;
}

DRIVER_EXPORT CUresult cuMemAlloc(CUdeviceptr *out, size_t bytes)
{
    void *memory = NULL;
    CUresult result = out && bytes ? DRIVER(cudaMalloc(&memory, bytes)) : CUDA_ERROR_INVALID_VALUE;
    if (!result) {
        *out = (CUdeviceptr)(uintptr_t)memory;
    }
    return result;
}

DRIVER_EXPORT CUresult cuMemFree(CUdeviceptr memory)
{
    return DRIVER(cudaFree(pointer(memory)));
}

DRIVER_EXPORT CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned int flags)
{
    return out && bytes ? DRIVER(cudaHostAlloc(out, bytes, flags)) : CUDA_ERROR_INVALID_VALUE;
}

DRIVER_EXPORT CUresult cuMemFreeHost(void *memory)
{
    return memory ? DRIVER(cudaFreeHost(memory)) : CUDA_ERROR_INVALID_VALUE;
}

DRIVER_EXPORT CUresult cuMemHostRegister(void *memory, size_t bytes, unsigned int flags)
{
    return DRIVER(cudaHostRegister(memory, bytes, flags));
}

DRIVER_EXPORT CUresult cuMemHostUnregister(void *memory)
{
    return DRIVER(cudaHostUnregister(memory));
}

DRIVER_EXPORT CUresult cuMemHostGetDevicePointer(CUdeviceptr *out, void *host, unsigned int flags)
{
    void *device = NULL;
    CUresult result = out ? DRIVER(cudaHostGetDevicePointer(&device, host, flags)) : CUDA_ERROR_INVALID_VALUE;
    if (!result) {
        *out = (CUdeviceptr)(uintptr_t)device;
    }
    return result;
}
