/*
 * driver_kernel.c: modules and kernels, as far as a machine without a GPU can have them. A module is PTX, kept as text.
 * A kernel that the module names can be launched when the program has registered a host function for it with
 * hostcuda_register_kernel; otherwise the driver does not find the kernel. Translating PTX was rejected: tests need to
 * know that a launch came, in order and with its arguments, not what a GPU would compute.
 *
 * The host function runs once per launch, on the stream's worker, whatever the grid.
 */
#include "hostnccl/cuda/driver_kernel.h"

#include <stdlib.h>
#include <string.h>

enum { KERNELS_MAX = 64 };

struct CUfunc_st {
    char *name;
    hostcuda_kernel_fn *fn;
    size_t count;
    size_t bytes[HOSTCUDA_PARAMETERS_MAX];
};

struct CUmod_st {
    char *text;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUfunc_st kernels[KERNELS_MAX]; /* never forgotten: launches may still run */
static size_t kernel_count;

DRIVER_EXPORT int hostcuda_register_kernel(const char *name, hostcuda_kernel_fn *fn, size_t count, const size_t *bytes)
{
    if (!name || !*name || !fn || count > HOSTCUDA_PARAMETERS_MAX || (count && !bytes)) {
        return -1;
    }
    pthread_mutex_lock(&lock);
    struct CUfunc_st *kernel = kernel_count < KERNELS_MAX ? &kernels[kernel_count] : NULL;
    for (size_t i = 0; kernel && i < kernel_count; i++) {
        kernel = strcmp(kernels[i].name, name) ? kernel : NULL; /* a name means one function for good */
    }
    char *copy = kernel ? strdup(name) : NULL;
    if (copy) {
        *kernel = (struct CUfunc_st){.name = copy, .fn = fn, .count = count};
        for (size_t i = 0; i < count; i++) {
            kernel->bytes[i] = bytes[i];
        }
        kernel_count++;
    }
    pthread_mutex_unlock(&lock);
    return copy ? 0 : -1;
}

/* PTX begins, after comments and blanks, with its version. */
static bool is_ptx(const char *text)
{
    for (;;) {
        text += strspn(text, " \t\r\n");
        const char *end = !strncmp(text, "//", 2)   ? strchr(text, '\n')
                          : !strncmp(text, "/*", 2) ? strstr(text, "*/")
                                                    : NULL;
        if (!end) {
            return !strncmp(text, ".version", 8);
        }
        text = end + (*end == '*' ? 2 : 1);
    }
}

DRIVER_EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!module || !image) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!memcmp(image, "\177ELF", 4)) { /* machine code of a GPU */
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    if (!is_ptx(image)) {
        return CUDA_ERROR_INVALID_IMAGE;
    }
    struct CUmod_st *made = malloc(sizeof(*made));
    char *text = made ? strdup(image) : NULL;
    if (!text) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->text = text;
    *module = made;
    return CUDA_SUCCESS;
}

/* The options are for the compiler, and there is no compiler here. */
DRIVER_EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count,
                                          CUjit_option *options, void **values)
{
    return count && (!options || !values) ? CUDA_ERROR_INVALID_VALUE : cuModuleLoadData(module, image);
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

/* Whether the text defines an entry of that name. */
static bool has_entry(const char *text, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = text; (at = strstr(at, ".entry")) != NULL;) {
        at += strlen(".entry");
        at += strspn(at, " \t\r\n");
        if (!strncmp(at, name, length) && strchr(" \t\r\n(", at[length])) {
            return true;
        }
    }
    return false;
}

DRIVER_EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    if (!function || !module || !name || !*name) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = CUDA_ERROR_NOT_FOUND;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < kernel_count && has_entry(module->text, name); i++) {
        if (!strcmp(kernels[i].name, name)) {
            *function = &kernels[i];
            result = CUDA_SUCCESS;
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* Copies the arguments as they are now: first a pointer for each, then the values, aligned. NULL without memory. */
static void *copy_arguments(const struct CUfunc_st *kernel, void **arguments, size_t *block_bytes)
{
    size_t bytes = kernel->count * sizeof(void *);
    for (size_t i = 0; i < kernel->count; i++) {
        bytes += (kernel->bytes[i] + 15) / 16 * 16;
    }
    bytes = (bytes + 31) / 16 * 16;
    char *block = malloc(bytes);
    if (!block) {
        return NULL;
    }
    void **pointers = (void **)(void *)block;
    char *at = block + (kernel->count * sizeof(void *) + 15) / 16 * 16;
    for (size_t i = 0; i < kernel->count; i++) {
        pointers[i] = memcpy(at, arguments[i], kernel->bytes[i]);
        at += (kernel->bytes[i] + 15) / 16 * 16;
    }
    *block_bytes = bytes;
    return block;
}

DRIVER_EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                      unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                      unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                      void **arguments, void **extra)
{
    (void)shared_bytes;
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!function || !grid_x || !grid_y || !grid_z || !block_x || !block_y || !block_z ||
        (function->count && !arguments)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (extra) { /* arguments packed by the caller */
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    struct hostcuda_kernel kernel = {.fn = function->fn, .count = function->count};
    kernel.block = copy_arguments(function, arguments, &kernel.block_bytes);
    if (!kernel.block) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct hostcuda_work work = {.type = cudaGraphNodeTypeKernel, .arg.kernel = kernel};
    return DRIVER(enqueue(stream, &work));
}
