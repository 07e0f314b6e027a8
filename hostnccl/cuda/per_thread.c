/*
 * per_thread.c: the second set of names. A program compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM calls these through
 * the vendor's header: _ptsz for calls that take a stream, where 0 now means the thread's own default stream, and _ptds
 * for calls that use the default stream without naming it.
 */
#include "hostnccl/cuda/hostcuda.h"

/* PTSZ(call, parameters, arguments): the same call with 0 meaning the thread's own stream. */
#define PTSZ(call, parameters, arguments) PTSZ_OF(call, parameters, arguments)
#define PTSZ_OF(call, parameters, arguments)                                                                           \
    HOSTCUDA_EXPORT cudaError_t call##_ptsz parameters;                                                                \
    HOSTCUDA_EXPORT cudaError_t call##_ptsz parameters                                                                 \
    {                                                                                                                  \
        return call arguments;                                                                                         \
    }
#define OWN(stream) ((stream) ? (stream) : cudaStreamPerThread)

PTSZ(cudaStreamSynchronize, (cudaStream_t s), (OWN(s)))
PTSZ(cudaStreamQuery, (cudaStream_t s), (OWN(s)))
PTSZ(cudaStreamGetFlags, (cudaStream_t s, unsigned int *flags), (OWN(s), flags))
PTSZ(cudaStreamGetPriority, (cudaStream_t s, int *priority), (OWN(s), priority))
PTSZ(cudaStreamGetId, (cudaStream_t s, unsigned long long *id), (OWN(s), id))
cudaError_t cudaStreamGetDevice(cudaStream_t s, int *device);
PTSZ(cudaStreamGetDevice, (cudaStream_t s, int *device), (OWN(s), device))
PTSZ(cudaStreamWaitEvent, (cudaStream_t s, cudaEvent_t event, unsigned int flags), (OWN(s), event, flags))
PTSZ(cudaStreamAddCallback, (cudaStream_t s, cudaStreamCallback_t fn, void *data, unsigned int flags),
     (OWN(s), fn, data, flags))
PTSZ(cudaLaunchHostFunc, (cudaStream_t s, cudaHostFn_t fn, void *data), (OWN(s), fn, data))
PTSZ(cudaEventRecord, (cudaEvent_t event, cudaStream_t s), (event, OWN(s)))
PTSZ(cudaEventRecordWithFlags, (cudaEvent_t event, cudaStream_t s, unsigned int flags), (event, OWN(s), flags))
PTSZ(cudaStreamIsCapturing, (cudaStream_t s, enum cudaStreamCaptureStatus *status), (OWN(s), status))
PTSZ(cudaMallocAsync, (void **out, size_t bytes, cudaStream_t s), (out, bytes, OWN(s)))
PTSZ(cudaMallocFromPoolAsync, (void **out, size_t bytes, cudaMemPool_t pool, cudaStream_t s),
     (out, bytes, pool, OWN(s)))
PTSZ(cudaFreeAsync, (void *memory, cudaStream_t s), (memory, OWN(s)))
PTSZ(cudaMemcpyAsync, (void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t s),
     (dst, src, bytes, kind, OWN(s)))
PTSZ(cudaMemcpy2DAsync,
     (void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width, size_t height,
      enum cudaMemcpyKind kind, cudaStream_t s),
     (dst, dst_pitch, src, src_pitch, width, height, kind, OWN(s)))
PTSZ(cudaMemsetAsync, (void *dst, int value, size_t bytes, cudaStream_t s), (dst, value, bytes, OWN(s)))
PTSZ(cudaMemset2DAsync, (void *dst, size_t pitch, int value, size_t width, size_t height, cudaStream_t s),
     (dst, pitch, value, width, height, OWN(s)))
PTSZ(cudaStreamBeginCapture, (cudaStream_t s, enum cudaStreamCaptureMode mode), (OWN(s), mode))
cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t s, cudaGraph_t graph, const cudaGraphNode_t *nodes,
                                          const cudaGraphEdgeData *edges, size_t count,
                                          enum cudaStreamCaptureMode mode);
PTSZ(cudaStreamBeginCaptureToGraph,
     (cudaStream_t s, cudaGraph_t graph, const cudaGraphNode_t *nodes, const cudaGraphEdgeData *edges, size_t count,
      enum cudaStreamCaptureMode mode),
     (OWN(s), graph, nodes, edges, count, mode))
PTSZ(cudaStreamEndCapture, (cudaStream_t s, cudaGraph_t *graph), (OWN(s), graph))
PTSZ(cudaGraphLaunch, (cudaGraphExec_t exec, cudaStream_t s), (exec, OWN(s)))
PTSZ(cudaGraphUpload, (cudaGraphExec_t exec, cudaStream_t s), (exec, OWN(s)))
PTSZ(cudaGraphInstantiateWithParams, (cudaGraphExec_t * exec, cudaGraph_t graph, cudaGraphInstantiateParams *params),
     (exec, graph, params))
PTSZ(HOSTCUDA_FORM(cudaStreamGetCaptureInfo, _v3),
     (cudaStream_t s, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph,
      const cudaGraphNode_t **dependencies, const cudaGraphEdgeData **edges, size_t *count),
     (OWN(s), status, id, graph, dependencies, edges, count))
PTSZ(HOSTCUDA_FORM(cudaStreamUpdateCaptureDependencies, _v2),
     (cudaStream_t s, cudaGraphNode_t *nodes, const cudaGraphEdgeData *edges, size_t count, unsigned int flags),
     (OWN(s), nodes, edges, count, flags))
#if CUDART_VERSION < 13000
PTSZ(cudaStreamUpdateCaptureDependencies, (cudaStream_t s, cudaGraphNode_t *nodes, size_t count, unsigned int flags),
     (OWN(s), nodes, count, flags))
PTSZ(cudaStreamGetCaptureInfo_v2,
     (cudaStream_t s, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph,
      const cudaGraphNode_t **dependencies, size_t *count),
     (OWN(s), status, id, graph, dependencies, count))
#endif
