/*
 * kernel.h: what the files about kernels share. A *kernel* is known by its name (mangled, as the compiler writes it),
 * whatever file of device code it comes from; a *twin* is a function of the host that stands for it. The address of a
 * kernel's struct is its handle in both interfaces: cudaKernel_t, cudaFunction_t and CUfunction.
 */
#ifndef ROLL_HOSTNCCL_CUDA_KERNEL_H
#define ROLL_HOSTNCCL_CUDA_KERNEL_H

#include "hostnccl/cuda/code.h"
#include "hostnccl/cuda/work.h"

enum { HOSTCUDA_PARAMETERS_MAX = 16 };

/* HOSTCUDA_KERNELS: what becomes of a launch. */
enum hostcuda_policy {
    HOSTCUDA_KERNELS_OWN,   /* not set: twins run, other launches are errors */
    HOSTCUDA_KERNELS_SKIP,  /* nothing is computed */
    HOSTCUDA_KERNELS_HOST,  /* twins run, other kernels are skipped */
    HOSTCUDA_KERNELS_REFUSE /* every launch is an error */
};

struct hostcuda_function {
    struct hostcuda_handle handle; /* alive until the process ends, since launches may be queued */
    struct hostcuda_function *next;
    char *name;
    hostcuda_kernel_fn *twin; /* NULL: none; guarded by the lock of kernel_table.c, as count and bytes */
    size_t count;
    size_t bytes[HOSTCUDA_PARAMETERS_MAX];
    _Atomic(const struct hostcuda_code_entry *) code; /* once is_code_known; NULL: none */
    atomic_bool is_code_known;
    atomic_int dynamic_shared_bytes; /* the most that a launch may ask for */
    struct {
        _Atomic unsigned long long count;
        off_t at;  /* place in the report */
    } launches[3]; /* indexed by enum hostcuda_fate; the places are guarded by the lock of kernel_count.c */
};

/* What became of a launch. */
enum hostcuda_fate { HOSTCUDA_SKIPPED, HOSTCUDA_RUN, HOSTCUDA_REFUSED };

/* runtime.c */
enum hostcuda_policy hostcuda_policy(void);

/* kernel_table.c: which kernels there are */

/* The kernel of that name, made when it is new. NULL without memory. Borrowed. Any thread. */
struct hostcuda_function *hostcuda_function_named(const char *name);

/* The kernel that a launch means: a function of the host that a file of device code has registered, or a handle. NULL:
 * none. Borrowed. Any thread. */
struct hostcuda_function *hostcuda_function_of(const void *func);

/* Gives a kernel a twin. 0, or -1 when an argument is wrong or the kernel has a twin already. */
int hostcuda_twin_add(const char *name, hostcuda_kernel_fn *fn, size_t count, const size_t *bytes);

/* The registered variable at an address of the host, with its memory on the calling thread's device.
 * cudaErrorInvalidSymbol, cudaErrorMemoryAllocation. */
cudaError_t hostcuda_variable(const void *symbol, void **address, size_t *bytes);

/* kernel_code.c: device code that runs on the processor */

/* The library that HOSTCUDA_CODE names. NULL: none. Borrowed. Any thread. */
const struct hostcuda_code *hostcuda_code_loaded(void);

/* The code of a kernel, where the policy lets it run and it has no twin. NULL: none. Borrowed. Any thread. */
const struct hostcuda_code_entry *hostcuda_code_of(struct hostcuda_function *function);

/* kernel_count.c: counts a launch. Any thread. */
void hostcuda_kernel_count(struct hostcuda_function *function, enum hostcuda_fate fate);

/* kernel_launch.c */

struct hostcuda_launch_config {
    dim3 grid, threads;
    size_t shared_bytes;
    void **arguments;     /* one pointer each */
    void **extra;         /* or packed, which twins do not understand */
    bool is_overlapped;   /* code.h */
    unsigned int cluster; /* code.h */
};

/* Whether every launch of the kernel is an error. */
bool hostcuda_is_refused(struct hostcuda_function *function);

/* Makes the work of a launch; *is_skipped: it does nothing. Otherwise as the policy says: cudaErrorNotSupported,
 * cudaErrorInvalidConfiguration, cudaErrorInvalidValue, cudaErrorMemoryAllocation. */
cudaError_t hostcuda_work_of_launch(struct hostcuda_work *work, struct hostcuda_function *function,
                                    const struct hostcuda_launch_config *config, bool *is_skipped);

/* Launches a kernel as the policy says. The same errors, and those of the stream. */
cudaError_t hostcuda_kernel_launch(struct hostcuda_function *function, const struct hostcuda_launch_config *config,
                                   cudaStream_t stream);

/* library.c: what an image of device code is */

enum hostcuda_image { HOSTCUDA_IMAGE_NONE, HOSTCUDA_IMAGE_PTX, HOSTCUDA_IMAGE_ELF, HOSTCUDA_IMAGE_FAT };

enum hostcuda_image hostcuda_image_of(const void *image);

/* Whether an image may hold a kernel of that name; of a fat binary, which may be compressed, that is not known: true.
 */
bool hostcuda_image_has(enum hostcuda_image kind, const void *image, const char *name);

#endif
