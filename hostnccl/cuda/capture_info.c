/*
 * capture_info.c: questions to a stream about its capture, and changes of what the stream's next node depends on. A
 * question never makes a capture invalid.
 */
#include "hostnccl/cuda/capture.h"

/* Finds the stream and its capture, with the lock held until leave_capture. `status`: what to say. */
static cudaError_t enter_query(cudaStream_t handle, struct hostcuda_stream **stream, struct hostcuda_capture **capture,
                               enum cudaStreamCaptureStatus *status)
{
    cudaError_t error = hostcuda_enter();
    *stream = NULL;
    if (!error) {
        error = hostcuda_stream_get(handle, stream);
    }
    pthread_mutex_lock(&hostcuda_graph_lock);
    *capture = error ? NULL : hostcuda_capture_of(*stream);
    if (!error && hostcuda_stream_is_legacy(*stream) && hostcuda_capture_blocks_legacy((*stream)->device)) {
        error = cudaErrorStreamCaptureImplicit; /* a question does no harm to the capture */
    }
    *status = !*capture                                     ? cudaStreamCaptureStatusNone
              : (*capture)->state == HOSTCUDA_CAPTURE_VALID ? cudaStreamCaptureStatusActive
                                                            : cudaStreamCaptureStatusInvalidated;
    return error;
}

static cudaError_t leave_query(struct hostcuda_stream *stream, cudaError_t error)
{
    pthread_mutex_unlock(&hostcuda_graph_lock);
    if (stream) {
        hostcuda_stream_put(stream);
    }
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *out)
{
    struct hostcuda_stream *stream;
    struct hostcuda_capture *capture;
    enum cudaStreamCaptureStatus status;
    if (!out) {
        return hostcuda_leave(cudaErrorInvalidValue);
    }
    cudaError_t error = enter_query(handle, &stream, &capture, &status);
    if (!error) {
        *out = status;
    }
    return leave_query(stream, error);
}

/* Writes to the pointers that are not NULL; while the capture is not valid, only the status. */
cudaError_t hostcuda_capture_info(cudaStream_t handle, enum cudaStreamCaptureStatus *out, unsigned long long *id,
                                  cudaGraph_t *graph, const cudaGraphNode_t **tips, size_t *count)
{
    struct hostcuda_stream *stream;
    struct hostcuda_capture *capture;
    enum cudaStreamCaptureStatus status;
    if (!out) {
        return hostcuda_leave(cudaErrorInvalidValue);
    }
    cudaError_t error = enter_query(handle, &stream, &capture, &status);
    if (!error) {
        *out = status;
    }
    if (!error && status == cudaStreamCaptureStatusActive) {
        if (id) {
            *id = capture->id;
        }
        if (graph) {
            *graph = (cudaGraph_t)capture->graph;
        }
        if (tips) {
            *tips = (const cudaGraphNode_t *)stream->tips;
        }
        if (count) {
            *count = stream->tip_count;
        }
    }
    return leave_query(stream, error);
}

/* Makes nodes of the stream's capture its tips, or adds them to the tips. Flags: those of the vendor's enumeration. */
cudaError_t hostcuda_capture_update(cudaStream_t handle, cudaGraphNode_t *nodes, size_t count, unsigned int flags)
{
    struct hostcuda_stream *stream;
    struct hostcuda_capture *capture;
    enum cudaStreamCaptureStatus status;
    cudaError_t error = enter_query(handle, &stream, &capture, &status);
    if (!error && (flags > cudaStreamSetCaptureDependencies || (count && !nodes))) {
        error = cudaErrorInvalidValue;
    } else if (!error && !capture) {
        error = cudaErrorIllegalState;
    } else if (!error && status != cudaStreamCaptureStatusActive) {
        error = cudaErrorStreamCaptureInvalidated;
    }
    for (size_t i = 0; i < count && !error; i++) {
        struct hostcuda_node *node = hostcuda_node_of(nodes[i]);
        error = node && node->graph == capture->graph ? cudaSuccess : cudaErrorInvalidValue;
    }
    if (!error) {
        struct hostcuda_node *const *tips = (struct hostcuda_node *const *)nodes;
        error = flags == cudaStreamSetCaptureDependencies ? hostcuda_tips_set(stream, tips, count)
                                                          : hostcuda_tips_add(stream, tips, count);
    }
    return leave_query(stream, error);
}

/* The edges of all nodes here are plain ones, which is what no array of edges means. */
HOSTCUDA_EXPORT cudaError_t HOSTCUDA_FORM(cudaStreamGetCaptureInfo, _v3)(cudaStream_t stream,
                                                                         enum cudaStreamCaptureStatus *status,
                                                                         unsigned long long *id, cudaGraph_t *graph,
                                                                         const cudaGraphNode_t **dependencies,
                                                                         const cudaGraphEdgeData **edges, size_t *count)
{
    cudaError_t error = edges && !dependencies ? hostcuda_leave(cudaErrorInvalidValue)
                                               : hostcuda_capture_info(stream, status, id, graph, dependencies, count);
    if (!error && edges && *status == cudaStreamCaptureStatusActive) {
        *edges = NULL;
    }
    return error;
}

HOSTCUDA_EXPORT cudaError_t HOSTCUDA_FORM(cudaStreamUpdateCaptureDependencies,
                                          _v2)(cudaStream_t stream, cudaGraphNode_t *nodes,
                                               const cudaGraphEdgeData *edges, size_t count, unsigned int flags)
{
    for (size_t i = 0; edges && i < count; i++) {
        if (edges[i].from_port || edges[i].to_port || edges[i].type) {
            return hostcuda_leave(cudaErrorNotSupported);
        }
    }
    return hostcuda_capture_update(stream, nodes, count, flags);
}

#if CUDART_VERSION < 13000
HOSTCUDA_EXPORT cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                                        unsigned long long *id, cudaGraph_t *graph,
                                                        const cudaGraphNode_t **dependencies, size_t *count)
{
    return hostcuda_capture_info(stream, status, id, graph, dependencies, count);
}

HOSTCUDA_EXPORT cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t *nodes,
                                                                size_t count, unsigned int flags)
{
    return hostcuda_capture_update(stream, nodes, count, flags);
}
#endif
