/* driver_kernel.h: the one function that libcuda.so.1 exports beside the vendor's: with it a test registers the host
 * function that stands for a kernel. */
#ifndef ROLL_HOSTNCCL_CUDA_DRIVER_KERNEL_H
#define ROLL_HOSTNCCL_CUDA_DRIVER_KERNEL_H

#include "hostnccl/cuda/driver.h"

/*
 * Makes launches of the kernel `name` call fn with one pointer per parameter, from now on; bytes[] are the parameters'
 * sizes. Call it before cuModuleGetFunction. Returns 0, or -1 when an argument is wrong or the name is taken. Any
 * thread.
 */
int hostcuda_register_kernel(const char *name, hostcuda_kernel_fn *fn, size_t count, const size_t *bytes);

#endif
