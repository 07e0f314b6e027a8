/* driver_stream.c: the driver interface to streams, events and capture. */
#include "hostnccl/cuda/driver.h"

DRIVER_EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
    return DRIVER(cudaStreamCreateWithPriority(stream, flags, priority));
}

DRIVER_EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
    return DRIVER(cudaStreamCreateWithPriority(stream, flags, 0));
}

DRIVER_EXPORT CUresult cuStreamDestroy(CUstream stream)
{
    return DRIVER(cudaStreamDestroy(stream));
}

DRIVER_EXPORT CUresult cuStreamSynchronize(CUstream stream)
{
    return DRIVER(cudaStreamSynchronize(stream));
}

DRIVER_EXPORT CUresult cuStreamQuery(CUstream stream)
{
    return DRIVER(cudaStreamQuery(stream));
}

DRIVER_EXPORT CUresult cuStreamGetFlags(CUstream stream, unsigned int *flags)
{
    return DRIVER(cudaStreamGetFlags(stream, flags));
}

DRIVER_EXPORT CUresult cuStreamGetPriority(CUstream stream, int *priority)
{
    return DRIVER(cudaStreamGetPriority(stream, priority));
}

DRIVER_EXPORT CUresult cuStreamGetId(CUstream stream, unsigned long long *id)
{
    return DRIVER(cudaStreamGetId(stream, id));
}

DRIVER_EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
    return DRIVER(cudaStreamWaitEvent(stream, event, flags));
}

DRIVER_EXPORT CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
    return DRIVER(cudaEventCreateWithFlags(event, flags));
}

DRIVER_EXPORT CUresult cuEventDestroy(CUevent event)
{
    return DRIVER(cudaEventDestroy(event));
}

DRIVER_EXPORT CUresult cuEventRecord(CUevent event, CUstream stream)
{
    return DRIVER(cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault));
}

DRIVER_EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags)
{
    return DRIVER(cudaEventRecordWithFlags(event, stream, flags));
}

DRIVER_EXPORT CUresult cuEventQuery(CUevent event)
{
    return DRIVER(cudaEventQuery(event));
}

DRIVER_EXPORT CUresult cuEventSynchronize(CUevent event)
{
    return DRIVER(cudaEventSynchronize(event));
}

DRIVER_EXPORT CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
    return DRIVER(cudaEventElapsedTime(ms, start, end));
}

DRIVER_EXPORT CUresult cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *data)
{
    return DRIVER(cudaLaunchHostFunc(stream, fn, data));
}

DRIVER_EXPORT CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode)
{
    return DRIVER(cudaStreamBeginCapture(stream, (enum cudaStreamCaptureMode)mode));
}

DRIVER_EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *nodes,
                                                   const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode)
{
    return DRIVER(cudaStreamBeginCaptureToGraph(stream, graph, nodes, (const cudaGraphEdgeData *)(const void *)edges,
                                                count, (enum cudaStreamCaptureMode)mode));
}

DRIVER_EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    return DRIVER(cudaStreamEndCapture(stream, graph));
}

DRIVER_EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    return DRIVER(cudaStreamIsCapturing(stream, (enum cudaStreamCaptureStatus *)(void *)status));
}

/* The second variant, of programs made for CUDA 12.2 and before: it does not know of edges. */
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **nodes, size_t *count);

DRIVER_EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                                 CUgraph *graph, const CUgraphNode **nodes, size_t *count)
{
    unsigned long long number = 0;
    CUresult result =
        DRIVER(capture_info(stream, (enum cudaStreamCaptureStatus *)(void *)status, &number, graph, nodes, count));
    if (!result && id && *status == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        *id = number;
    }
    return result;
}

DRIVER_EXPORT CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                              CUgraph *graph, const CUgraphNode **nodes, const CUgraphEdgeData **edges,
                                              size_t *count)
{
    if (edges && !nodes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = cuStreamGetCaptureInfo_v2(stream, status, id, graph, nodes, count);
    if (!result && edges && *status == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        *edges = NULL; /* all edges are plain ones */
    }
    return result;
}

DRIVER_EXPORT CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *nodes,
                                                         const CUgraphEdgeData *edges, size_t count, unsigned int flags)
{
    for (size_t i = 0; edges && i < count; i++) {
        if (edges[i].from_port || edges[i].to_port || edges[i].type) {
            return CUDA_ERROR_NOT_SUPPORTED;
        }
    }
    return DRIVER(capture_update(stream, nodes, count, flags));
}

DRIVER_EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    return DRIVER(cudaThreadExchangeStreamCaptureMode((enum cudaStreamCaptureMode *)(void *)mode));
}
