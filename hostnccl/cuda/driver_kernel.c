/*
 * driver_kernel.c: modules and kernels of the driver interface. What a launch does is said by HOSTCUDA_KERNELS
 * (kernel_launch.c). Where it says that kernels are left out, a module is any image of device code, and has the
 * kernels that the image defines; else a module is PTX, and a kernel is found if the program has registered a host
 * function that stands for it. The translation of PTX was left out: what a program needs here is that a launch came,
 * in order and with its arguments.
 */
#include "hostnccl/cuda/driver_kernel.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct CUmod_st {
    enum hostcuda_image kind;
    char *text;        /* owned: PTX, or the content of a file; NULL: the image is the program's */
    const void *image; /* what is asked for names; the program's must live as long as the module, as Triton's do */
};

DRIVER_EXPORT int hostcuda_register_kernel(const char *name, hostcuda_kernel_fn *fn, size_t count, const size_t *bytes)
{
    const struct hostcuda_private *runtime = driver_table();
    return runtime ? runtime->twin_add(name, fn, count, bytes) : -1;
}

/* Whether launches of kernels without a twin are left out, so that their code may be of any kind. */
static bool is_any_welcome(const struct hostcuda_private *runtime)
{
    enum hostcuda_policy policy = runtime->policy();
    return policy == HOSTCUDA_KERNELS_SKIP || policy == HOSTCUDA_KERNELS_HOST;
}

static CUresult load(CUmodule *module, const void *image, char *file)
{
    const struct hostcuda_private *runtime = driver_ready();
    if (!runtime) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    enum hostcuda_image kind = runtime->image_of(image);
    if (kind == HOSTCUDA_IMAGE_NONE) {
        return CUDA_ERROR_INVALID_IMAGE;
    }
    if (kind != HOSTCUDA_IMAGE_PTX && !is_any_welcome(runtime)) {
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    struct CUmod_st *made = calloc(1, sizeof(*made));
    char *text = made && kind == HOSTCUDA_IMAGE_PTX && !file ? strdup(image) : file;
    if (!made || (kind == HOSTCUDA_IMAGE_PTX && !text)) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *made = (struct CUmod_st){.kind = kind, .text = text, .image = text ? text : image};
    *module = made;
    return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    return module && image ? load(module, image, NULL) : CUDA_ERROR_INVALID_VALUE;
}

/* The options are for the compiler, and there is no compiler here. */
DRIVER_EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count,
                                          CUjit_option *options, void **values)
{
    return count && (!options || !values) ? CUDA_ERROR_INVALID_VALUE : cuModuleLoadData(module, image);
}

DRIVER_EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    return cuModuleLoadData(module, image);
}

DRIVER_EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    struct stat about;
    if (!module || !path) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return CUDA_ERROR_FILE_NOT_FOUND;
    }
    CUresult result = CUDA_ERROR_FILE_NOT_FOUND;
    char *content = NULL;
    if (!fstat(file, &about) && about.st_size > 0) {
        content = calloc(1, (size_t)about.st_size + 8);
        result = !content                                                      ? CUDA_ERROR_OUT_OF_MEMORY
                 : read(file, content, (size_t)about.st_size) == about.st_size ? load(module, content, content)
                                                                               : CUDA_ERROR_FILE_NOT_FOUND;
    }
    close(file);
    if (result) {
        free(content);
    }
    return result;
}

DRIVER_EXPORT CUresult cuModuleUnload(CUmodule module)
{
    if (!module) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    free(module->text);
    free(module);
    return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    const struct hostcuda_private *runtime = driver_ready();
    if (!runtime) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!function || !module || !name || !*name) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!runtime->image_has(module->kind, module->image, name)) {
        return CUDA_ERROR_NOT_FOUND;
    }
    struct hostcuda_function *found = runtime->function_named(name);
    if (!found) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!found->twin && !is_any_welcome(runtime)) {
        return CUDA_ERROR_NOT_FOUND;
    }
    *function = (CUfunction)found;
    return CUDA_SUCCESS;
}

static const char NOT_READ[] = "device code is not read here, so its variables are not known";

DRIVER_EXPORT CUresult cuModuleGetGlobal(CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name)
{
    (void)address, (void)bytes, (void)module, (void)name;
    return DRIVER(unsupported("cuModuleGetGlobal", NOT_READ));
}

/* launches */

static CUresult launch(CUfunction function, const struct hostcuda_launch_config *config, CUstream stream)
{
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    return function ? DRIVER(kernel_launch((struct hostcuda_function *)function, config, stream))
                    : CUDA_ERROR_INVALID_VALUE;
}

DRIVER_EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                      unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                      unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                      void **arguments, void **extra)
{
    struct hostcuda_launch_config config = {.grid = {grid_x, grid_y, grid_z},
                                            .threads = {block_x, block_y, block_z},
                                            .shared_bytes = shared_bytes,
                                            .arguments = arguments,
                                            .extra = extra};
    return launch(function, &config, stream);
}

/* Like any other launch: nothing waits for the kernel's blocks. */
DRIVER_EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                                 unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                                 unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                                 void **arguments)
{
    return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, arguments,
                          NULL);
}

/* The attributes (clusters, priorities, the start of the next kernel) say how a GPU would run it. */
DRIVER_EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments,
                                        void **extra)
{
    return config ? cuLaunchKernel(function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                                   config->blockDimY, config->blockDimZ, config->sharedMemBytes, config->hStream,
                                   arguments, extra)
                  : CUDA_ERROR_INVALID_VALUE;
}

/* questions about kernels */

DRIVER_EXPORT CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
    struct cudaFuncAttributes all;
    CUresult result = value ? DRIVER(cudaFuncGetAttributes(&all, function)) : CUDA_ERROR_INVALID_VALUE;
    if (result) {
        return result;
    }
    switch ((int)attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = all.maxThreadsPerBlock;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA:
        *value = 0;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *value = all.numRegs;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
        *value = all.ptxVersion;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        *value = all.binaryVersion;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = all.maxDynamicSharedSizeBytes;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        *value = all.preferredShmemCarveout;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

DRIVER_EXPORT CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    return DRIVER(cudaFuncSetAttribute(function, (enum cudaFuncAttribute)attribute, value));
}

DRIVER_EXPORT CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config)
{
    return DRIVER(cudaFuncSetCacheConfig(function, (enum cudaFuncCache)config));
}

DRIVER_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function,
                                                                            int threads, size_t shared_bytes,
                                                                            unsigned int flags)
{
    return DRIVER(
        cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared_bytes, flags));
}

DRIVER_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads,
                                                                   size_t shared_bytes)
{
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared_bytes, 0);
}

DRIVER_EXPORT CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function, const CUlaunchConfig *config)
{
    if (!config) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    cudaLaunchConfig_t same = {.gridDim = {config->gridDimX, config->gridDimY, config->gridDimZ},
                               .blockDim = {config->blockDimX, config->blockDimY, config->blockDimZ},
                               .dynamicSmemBytes = config->sharedMemBytes,
                               .stream = config->hStream,
                               .attrs = (cudaLaunchAttribute *)config->attrs,
                               .numAttrs = config->numAttrs};
    return DRIVER(cudaOccupancyMaxActiveClusters(clusters, function, &same));
}

/* the compiler */

static const char NO_LINKER[] = "there is no linker for device code here";

DRIVER_EXPORT CUresult cuLinkCreate(unsigned int count, CUjit_option *options, void **values, CUlinkState *state)
{
    (void)count, (void)options, (void)values, (void)state;
    return DRIVER(unsupported("cuLinkCreate", NO_LINKER));
}

DRIVER_EXPORT CUresult cuLinkAddData(CUlinkState state, CUjitInputType type, void *data, size_t bytes, const char *name,
                                     unsigned int count, CUjit_option *options, void **values)
{
    (void)state, (void)type, (void)data, (void)bytes, (void)name, (void)count, (void)options, (void)values;
    return DRIVER(unsupported("cuLinkAddData", NO_LINKER));
}

DRIVER_EXPORT CUresult cuLinkComplete(CUlinkState state, void **cubin, size_t *bytes)
{
    (void)state, (void)cubin, (void)bytes;
    return DRIVER(unsupported("cuLinkComplete", NO_LINKER));
}
