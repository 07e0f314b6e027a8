/*
 * library.c: images of device code that a program loads at run time, and the runtime's calls about them. An image is
 * PTX, machine code (an ELF file) or a fat binary, which holds several and may compress them. Nothing here runs device
 * code; what is read is whether an image defines a kernel, so that a name that is not there is not found, as with the
 * vendor's.
 */
#include "hostnccl/cuda/kernel.h"

#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* First words of a fat binary and of the struct by which a program names one; the pointer stands at its byte 8. */
static const uint32_t FAT = 0xba55ed50, FAT_WRAPPER = 0x466243b1;

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

enum hostcuda_image hostcuda_image_of(const void *image)
{
    uint32_t word;
    if (!strncmp(image, ELFMAG, SELFMAG)) {
        return HOSTCUDA_IMAGE_ELF;
    }
    memcpy(&word, image, sizeof(word));
    if (word == FAT || word == FAT_WRAPPER) {
        return HOSTCUDA_IMAGE_FAT;
    }
    return is_ptx(image) ? HOSTCUDA_IMAGE_PTX : HOSTCUDA_IMAGE_NONE;
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

/* Machine code has a section .text.NAME for each kernel. The image has no length of its own, so its tables are
 * believed, as the vendor's driver does. */
static bool has_section(const char *image, const char *name)
{
    static const char prefix[] = ".text.";
    Elf64_Ehdr head;
    memcpy(&head, image, sizeof(head));
    if (head.e_ident[EI_CLASS] != ELFCLASS64 || !head.e_shoff || head.e_shstrndx >= head.e_shnum) {
        return false;
    }
    Elf64_Shdr section;
    memcpy(&section, image + head.e_shoff + head.e_shstrndx * sizeof(section), sizeof(section));
    const char *strings = image + section.sh_offset;
    for (size_t i = 0; i < head.e_shnum; i++) {
        memcpy(&section, image + head.e_shoff + i * sizeof(section), sizeof(section));
        const char *own = strings + section.sh_name;
        if (!strncmp(own, prefix, sizeof(prefix) - 1) && !strcmp(own + sizeof(prefix) - 1, name)) {
            return true;
        }
    }
    return false;
}

bool hostcuda_image_has(enum hostcuda_image kind, const void *image, const char *name)
{
    return kind == HOSTCUDA_IMAGE_PTX ? has_entry(image, name) : kind != HOSTCUDA_IMAGE_ELF || has_section(image, name);
}

struct CUlib_st {
    struct hostcuda_handle handle;
    enum hostcuda_image kind;
    const void *image;
    void *file; /* owned: the content of a file; NULL: the image is the program's */
};

static void release(struct hostcuda_handle *handle)
{
    struct CUlib_st *library = (struct CUlib_st *)handle;
    free(library->file);
    free(library);
}

/* Takes the file's content, also on failure. */
static cudaError_t load(cudaLibrary_t *out, const void *image, void *file)
{
    enum hostcuda_image kind = hostcuda_image_of(image);
    struct CUlib_st *library = kind ? calloc(1, sizeof(*library)) : NULL;
    cudaError_t error = !kind ? cudaErrorInvalidKernelImage : library ? cudaSuccess : cudaErrorMemoryAllocation;
    if (!error) {
        *library = (struct CUlib_st){.handle = {.release = release}, .kind = kind, .image = image, .file = file};
        atomic_store(&library->handle.refs, 1);
        error = hostcuda_handle_add(HOSTCUDA_LIBRARY, &library->handle);
    }
    if (error) {
        free(library);
        free(file);
        return error;
    }
    *out = library;
    return cudaSuccess;
}

/* The options are for the compiler, and there is no compiler here. */
HOSTCUDA_EXPORT cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code,
                                                enum cudaJitOption *jit_options, void **jit_values,
                                                unsigned int jit_count, enum cudaLibraryOption *options, void **values,
                                                unsigned int count)
{
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    cudaError_t error = library && code ? hostcuda_enter() : cudaErrorInvalidValue;
    return hostcuda_leave(error ? error : load(library, code, NULL));
}

/* Reads a file with a zero behind it. cudaErrorFileNotFound, cudaErrorMemoryAllocation. */
static cudaError_t read_file(const char *path, void **content)
{
    struct stat about;
    cudaError_t error = cudaErrorFileNotFound;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    *content = NULL;
    if (file >= 0 && !fstat(file, &about) && about.st_size > 0) {
        size_t size = (size_t)about.st_size;
        *content = calloc(1, size + 8);
        error = !*content                                     ? cudaErrorMemoryAllocation
                : read(file, *content, size) == about.st_size ? cudaSuccess
                                                              : cudaErrorFileNotFound;
    }
    if (file >= 0) {
        close(file);
    }
    if (error) {
        free(*content);
    }
    return error;
}

HOSTCUDA_EXPORT cudaError_t cudaLibraryLoadFromFile(cudaLibrary_t *library, const char *path,
                                                    enum cudaJitOption *jit_options, void **jit_values,
                                                    unsigned int jit_count, enum cudaLibraryOption *options,
                                                    void **values, unsigned int count)
{
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    void *content = NULL;
    cudaError_t error = library && path ? hostcuda_enter() : cudaErrorInvalidValue;
    if (!error) {
        error = read_file(path, &content);
    }
    return hostcuda_leave(error ? error : load(library, content, content));
}

HOSTCUDA_EXPORT cudaError_t cudaLibraryUnload(cudaLibrary_t library)
{
    cudaError_t error = hostcuda_enter();
    struct hostcuda_handle *handle = error ? NULL : hostcuda_handle_remove(HOSTCUDA_LIBRARY, library);
    hostcuda_handle_put(handle);
    return hostcuda_leave(error ? error : handle ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

HOSTCUDA_EXPORT cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name)
{
    cudaError_t error = kernel && name ? hostcuda_enter() : cudaErrorInvalidValue;
    if (error) {
        return hostcuda_leave(error);
    }
    struct CUlib_st *own = (struct CUlib_st *)hostcuda_handle_get(HOSTCUDA_LIBRARY, library);
    struct hostcuda_function *function = NULL;
    if (!own) {
        error = cudaErrorInvalidResourceHandle;
    } else if (!hostcuda_image_has(own->kind, own->image, name)) {
        error = cudaErrorSymbolNotFound;
    } else {
        function = hostcuda_function_named(name);
        error = function ? cudaSuccess : cudaErrorMemoryAllocation;
    }
    hostcuda_handle_put(own ? &own->handle : NULL);
    if (!error) {
        *kernel = (cudaKernel_t)function;
    }
    return hostcuda_leave(error);
}

static const char NOT_READ[] = "device code is not read here, so its list of kernels and variables is not known";

HOSTCUDA_EXPORT cudaError_t cudaLibraryGetGlobal(void **address, size_t *bytes, cudaLibrary_t library, const char *name)
{
    (void)address, (void)bytes, (void)library, (void)name;
    return hostcuda_leave(hostcuda_unsupported("cudaLibraryGetGlobal", NOT_READ));
}

HOSTCUDA_EXPORT cudaError_t cudaLibraryGetManaged(void **address, size_t *bytes, cudaLibrary_t library,
                                                  const char *name)
{
    (void)address, (void)bytes, (void)library, (void)name;
    return hostcuda_leave(hostcuda_unsupported("cudaLibraryGetManaged", NOT_READ));
}

HOSTCUDA_EXPORT cudaError_t cudaLibraryGetUnifiedFunction(void **function, cudaLibrary_t library, const char *symbol)
{
    (void)function, (void)library, (void)symbol;
    return hostcuda_leave(hostcuda_unsupported("cudaLibraryGetUnifiedFunction", NOT_READ));
}

/* Since CUDA 12.5; older headers do not declare it. */
cudaError_t cudaLibraryGetKernelCount(unsigned int *count, struct CUlib_st *library);
HOSTCUDA_EXPORT cudaError_t cudaLibraryGetKernelCount(unsigned int *count, struct CUlib_st *library)
{
    (void)count, (void)library;
    return hostcuda_leave(hostcuda_unsupported("cudaLibraryGetKernelCount", NOT_READ));
}

cudaError_t cudaLibraryEnumerateKernels(struct CUkern_st **kernels, unsigned int count, struct CUlib_st *library);
HOSTCUDA_EXPORT cudaError_t cudaLibraryEnumerateKernels(struct CUkern_st **kernels, unsigned int count,
                                                        struct CUlib_st *library)
{
    (void)kernels, (void)count, (void)library;
    return hostcuda_leave(hostcuda_unsupported("cudaLibraryEnumerateKernels", NOT_READ));
}
