/*
 * Stream capture: hostcuda has none, and the calls that ask say so. Calls that would begin a capture, and graphs, are not
 * exported at all, so that a program which needs them fails when it is linked or loaded, with the name of the call.
 */
#include "hostnccl/cuda/hostcuda.h"

HOSTCUDA_EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *status)
{
    struct hostcuda_stream *stream;
    cudaError_t error = status ? hostcuda_enter() : cudaErrorInvalidValue;
    if (!error) {
        error = hostcuda_stream_get(handle, &stream);
    }
    if (!error) {
        *status = cudaStreamCaptureStatusNone;
        hostcuda_stream_put(stream);
    }
    return hostcuda_leave(error);
}

/* As documented: while nothing is captured, only the status is written. */
#if CUDART_VERSION >= 13000
HOSTCUDA_EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                                     unsigned long long *id, cudaGraph_t *graph,
                                                     const cudaGraphNode_t **dependencies,
                                                     const cudaGraphEdgeData **edges, size_t *count)
{
    (void)id, (void)graph, (void)dependencies, (void)edges, (void)count;
    return cudaStreamIsCapturing(stream, status);
}
#else
HOSTCUDA_EXPORT cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                                        unsigned long long *id, cudaGraph_t *graph,
                                                        const cudaGraphNode_t **dependencies, size_t *count)
{
    (void)id, (void)graph, (void)dependencies, (void)count;
    return cudaStreamIsCapturing(stream, status);
}
#if CUDART_VERSION >= 12030
HOSTCUDA_EXPORT cudaError_t cudaStreamGetCaptureInfo_v3(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                                        unsigned long long *id, cudaGraph_t *graph,
                                                        const cudaGraphNode_t **dependencies,
                                                        const cudaGraphEdgeData **edges, size_t *count)
{
    (void)id, (void)graph, (void)dependencies, (void)edges, (void)count;
    return cudaStreamIsCapturing(stream, status);
}
#endif
#endif

HOSTCUDA_EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    if (!mode || (unsigned int)*mode > cudaStreamCaptureModeRelaxed) {
        return hostcuda_leave(cudaErrorInvalidValue);
    }
    cudaError_t error = hostcuda_enter();
    if (!error) {
        struct hostcuda_thread *self = hostcuda_self();
        enum cudaStreamCaptureMode before = self->capture_mode;
        self->capture_mode = *mode;
        *mode = before;
    }
    return hostcuda_leave(error);
}
