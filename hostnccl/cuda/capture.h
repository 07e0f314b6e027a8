/*
 * What the files about capture share: capture.c, which builds graphs, and capture_rule.c, which says what is forbidden
 * meanwhile. Everything is guarded by hostcuda_graph_lock.
 */
#ifndef HOSTNCCL_CUDA_CAPTURE_H
#define HOSTNCCL_CUDA_CAPTURE_H

#include "hostnccl/cuda/graph.h"

struct hostcuda_capture {
    atomic_uint refs; /* its own life, and one for each event that was recorded in it */
    enum { HOSTCUDA_CAPTURE_VALID, HOSTCUDA_CAPTURE_INVALID, HOSTCUDA_CAPTURE_ENDED } state;
    struct hostcuda_graph *graph;
    bool owns_graph; /* until it ends well */
    enum cudaStreamCaptureMode mode;
    unsigned long long thread; /* that began it */
    struct hostcuda_stream *origin;
    struct hostcuda_stream *streams; /* all that take part; each holds a reference */
    unsigned long long id;
    struct hostcuda_capture *next; /* of all that have not ended */
};

extern struct hostcuda_capture *hostcuda_captures;

/* The capture of a stream; NULL when it is not captured. With the lock held. */
struct hostcuda_capture *hostcuda_capture_of(struct hostcuda_stream *stream);

/* The stream's next node depends on these nodes, or on these too. With the lock held. cudaErrorMemoryAllocation. */
cudaError_t hostcuda_tips_set(struct hostcuda_stream *stream, struct hostcuda_node *const *tips, size_t count);
cudaError_t hostcuda_tips_add(struct hostcuda_stream *stream, struct hostcuda_node *const *tips, size_t count);

/* Nothing can be added any more; only the end helps. With the lock held. */
void hostcuda_capture_invalidate(struct hostcuda_capture *capture);

/* One capture more or less: calls that ask for rules look at this number first. */
void hostcuda_capture_count(int change);

/* Whether it is the default stream of its device. */
bool hostcuda_stream_is_legacy(struct hostcuda_stream *stream);

/* The first capture that holds a blocking stream of the device, so that its legacy stream cannot be used; or NULL. */
struct hostcuda_capture *hostcuda_capture_blocks_legacy(int device);

/* What cudaStreamGetCaptureInfo and cudaStreamUpdateCaptureDependencies do in every version. Not with the lock held. */
cudaError_t hostcuda_capture_info(cudaStream_t handle, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                  cudaGraph_t *graph, const cudaGraphNode_t **tips, size_t *count);
cudaError_t hostcuda_capture_update(cudaStream_t handle, cudaGraphNode_t *nodes, size_t count, unsigned int flags);

#endif
