/*
 * The calls of the CUDA runtime that hostcuda offers, ABI of CUDA 13. See driver_types.h. A call that is not here is not
 * offered: a program that needs it fails when it is compiled or linked, not when it runs.
 */
#ifndef HOSTNCCL_CUDA_RUNTIME_API_H
#define HOSTNCCL_CUDA_RUNTIME_API_H

#define CUDART_VERSION 13000
#define CUDARTAPI
#define CUDART_CB

#include "driver_types.h"

/* With the thread's own default stream, these names stand for others. */
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#define cudaMemcpy               cudaMemcpy_ptds
#define cudaMemcpy2D             cudaMemcpy2D_ptds
#define cudaMemset               cudaMemset_ptds
#define cudaMemset2D             cudaMemset2D_ptds
#define cudaStreamGetCaptureInfo cudaStreamGetCaptureInfo_ptsz
#define cudaStreamIsCapturing    cudaStreamIsCapturing_ptsz
#define cudaMemcpyAsync          cudaMemcpyAsync_ptsz
#define cudaMemcpy2DAsync        cudaMemcpy2DAsync_ptsz
#define cudaMemsetAsync          cudaMemsetAsync_ptsz
#define cudaMemset2DAsync        cudaMemset2DAsync_ptsz
#define cudaStreamQuery          cudaStreamQuery_ptsz
#define cudaStreamGetDevice      cudaStreamGetDevice_ptsz
#define cudaStreamGetFlags       cudaStreamGetFlags_ptsz
#define cudaStreamGetId          cudaStreamGetId_ptsz
#define cudaStreamGetPriority    cudaStreamGetPriority_ptsz
#define cudaEventRecord          cudaEventRecord_ptsz
#define cudaEventRecordWithFlags cudaEventRecordWithFlags_ptsz
#define cudaStreamWaitEvent      cudaStreamWaitEvent_ptsz
#define cudaStreamAddCallback    cudaStreamAddCallback_ptsz
#define cudaStreamSynchronize    cudaStreamSynchronize_ptsz
#define cudaLaunchHostFunc       cudaLaunchHostFunc_ptsz
#define cudaMallocAsync          cudaMallocAsync_ptsz
#define cudaFreeAsync            cudaFreeAsync_ptsz
#endif

/* Arguments that C++ may leave out. */
#ifdef __cplusplus
#define HOSTCUDA_DEFAULT(value) = value
extern "C" {
#else
#define HOSTCUDA_DEFAULT(value)
#endif

/* Errors and versions. */
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);

/* Devices. */
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaInitDevice(int device, unsigned int deviceFlags, unsigned int flags);
cudaError_t cudaSetDeviceFlags(unsigned int flags);
cudaError_t cudaGetDeviceFlags(unsigned int *flags);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device);
cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *text);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDeviceReset(void);
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer);
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags);
cudaError_t cudaDeviceDisablePeerAccess(int peer);
cudaError_t cudaDeviceGetP2PAttribute(int *value, enum cudaDeviceP2PAttr attribute, int src, int dst);

/* Memory. */
cudaError_t cudaMalloc(void **out, size_t bytes);
cudaError_t cudaMallocPitch(void **out, size_t *pitch, size_t width, size_t height);
cudaError_t cudaMallocManaged(void **out, size_t bytes, unsigned int flags HOSTCUDA_DEFAULT(cudaMemAttachGlobal));
cudaError_t cudaMallocAsync(void **out, size_t bytes, cudaStream_t stream);
cudaError_t cudaFree(void *memory);
cudaError_t cudaFreeAsync(void *memory, cudaStream_t stream);
cudaError_t cudaMallocHost(void **out, size_t bytes);
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned int flags);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned int flags);
cudaError_t cudaHostUnregister(void *memory);
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned int flags);
cudaError_t cudaHostGetFlags(unsigned int *flags, void *host);
cudaError_t cudaMemGetInfo(size_t *free, size_t *total);
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer);

/* Copies and fills. */
cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream HOSTCUDA_DEFAULT(0));
cudaError_t cudaMemcpy2D(void *dst, size_t dstPitch, const void *src, size_t srcPitch, size_t width, size_t height,
                         enum cudaMemcpyKind kind);
cudaError_t cudaMemcpy2DAsync(void *dst, size_t dstPitch, const void *src, size_t srcPitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t stream HOSTCUDA_DEFAULT(0));
cudaError_t cudaMemcpyPeer(void *dst, int dstDevice, const void *src, int srcDevice, size_t bytes);
cudaError_t cudaMemcpyPeerAsync(void *dst, int dstDevice, const void *src, int srcDevice, size_t bytes,
                                cudaStream_t stream HOSTCUDA_DEFAULT(0));
cudaError_t cudaMemset(void *dst, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream HOSTCUDA_DEFAULT(0));
cudaError_t cudaMemset2D(void *dst, size_t pitch, int value, size_t width, size_t height);
cudaError_t cudaMemset2DAsync(void *dst, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream HOSTCUDA_DEFAULT(0));

/* Streams. */
cudaError_t cudaStreamCreate(cudaStream_t *stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned int *flags);
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority);
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *id);
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags HOSTCUDA_DEFAULT(0));
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *data, unsigned int flags);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *data);

/* Stream capture: there is none, and these say so. */
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status);
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id HOSTCUDA_DEFAULT(0), cudaGraph_t *graph HOSTCUDA_DEFAULT(0),
                                     const cudaGraphNode_t **dependencies HOSTCUDA_DEFAULT(0),
                                     const cudaGraphEdgeData **edges HOSTCUDA_DEFAULT(0),
                                     size_t *count HOSTCUDA_DEFAULT(0));
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode);

/* Events. */
cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream HOSTCUDA_DEFAULT(0));
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream HOSTCUDA_DEFAULT(0),
                                     unsigned int flags HOSTCUDA_DEFAULT(0));
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end);

#ifdef __cplusplus
}
#endif
#undef HOSTCUDA_DEFAULT

#endif
