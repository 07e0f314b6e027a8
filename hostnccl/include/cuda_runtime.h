/*
 * cuda_runtime.h: what programs include. In C it is cuda_runtime_api.h; in C++ the calls that return memory also take a
 * pointer to a typed pointer, as with the vendor's header.
 */
#ifndef HOSTNCCL_CUDA_RUNTIME_H
#define HOSTNCCL_CUDA_RUNTIME_H

#include "cuda_runtime_api.h"

#ifdef __cplusplus

template <class T> static inline cudaError_t cudaMalloc(T **out, size_t bytes)
{
    return ::cudaMalloc(reinterpret_cast<void **>(out), bytes);
}

template <class T> static inline cudaError_t cudaMallocPitch(T **out, size_t *pitch, size_t width, size_t height)
{
    return ::cudaMallocPitch(reinterpret_cast<void **>(out), pitch, width, height);
}

template <class T>
static inline cudaError_t cudaMallocManaged(T **out, size_t bytes, unsigned int flags = cudaMemAttachGlobal)
{
    return ::cudaMallocManaged(reinterpret_cast<void **>(out), bytes, flags);
}

template <class T> static inline cudaError_t cudaMallocAsync(T **out, size_t bytes, cudaStream_t stream)
{
    return ::cudaMallocAsync(reinterpret_cast<void **>(out), bytes, stream);
}

template <class T> static inline cudaError_t cudaHostAlloc(T **out, size_t bytes, unsigned int flags)
{
    return ::cudaHostAlloc(reinterpret_cast<void **>(out), bytes, flags);
}

template <class T> static inline cudaError_t cudaMallocHost(T **out, size_t bytes, unsigned int flags = 0)
{
    return ::cudaHostAlloc(reinterpret_cast<void **>(out), bytes, flags);
}

template <class T> static inline cudaError_t cudaHostGetDevicePointer(T **device, void *host, unsigned int flags)
{
    return ::cudaHostGetDevicePointer(reinterpret_cast<void **>(device), host, flags);
}

static inline cudaError_t cudaEventCreate(cudaEvent_t *event, unsigned int flags)
{
    return ::cudaEventCreateWithFlags(event, flags);
}

#endif

#endif
