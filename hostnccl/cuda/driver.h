/*
 * driver.h: hostcuda's driver interface, libcuda.so.1: the runtime's objects under the names of the driver. This header
 * is what its files share. As with the vendor's, handles of streams, events and graphs are the same in both libraries.
 *
 * Everything goes to the runtime's own functions through the private table, never through its public names: a library
 * that stands between a program and the runtime must not see a call of the driver a second time.
 */
#ifndef ROLL_HOSTNCCL_CUDA_DRIVER_H
#define ROLL_HOSTNCCL_CUDA_DRIVER_H

#include "hostnccl/cuda/private.h"
#include "hostnccl/include/cuda.h"

#define DRIVER_EXPORT __attribute__((visibility("default")))

/* The runtime's table; NULL where the runtime is not ours. */
const struct hostcuda_private *driver_table(void);

/* The runtime's table; NULL before cuInit and before the runtime has started. */
const struct hostcuda_private *driver_ready(void);

/* Begins a call into the runtime that leaves its last error alone; returns the table. */
const struct hostcuda_private *driver_enter(void);

/* Ends the call, and turns the runtime's error into the driver's. */
CUresult driver_leave(cudaError_t error);

/* The result of a call of the runtime. */
#define DRIVER(call) (driver_ready() ? driver_leave(driver_enter()->call) : CUDA_ERROR_NOT_INITIALIZED)

/* driver_refused.c */
#define REFUSED(name, version, why) DRIVER_EXPORT CUresult name(void);
#include "hostnccl/cuda/driver_refused.def"
#undef REFUSED

/* driver_tensor.c, driver_memory.c: older headers do not have the types. */
DRIVER_EXPORT int cuTensorMapEncodeTiled(void *map, int type, unsigned int rank, void *address, const uint64_t *dims,
                                         const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                                         int interleave, int swizzle, int l2, int fill);
DRIVER_EXPORT int cuTensorMapEncodeIm2col(void *map, int type, unsigned int rank, void *address);

/* Since CUDA 12.8; older headers do not declare them. */
DRIVER_EXPORT CUresult cuLogsRegisterCallback(void *callback, void *data, void **handle);
DRIVER_EXPORT CUresult cuLogsUnregisterCallback(void *handle);

#endif
