/*
 * capture.h: what the files about capture share: capture.c, which builds graphs, and capture_rule.c, which refuses the
 * calls that a capture forbids. Everything is guarded by hostcuda_graph_lock.
 */
#ifndef ROLL_HOSTNCCL_CUDA_CAPTURE_H
#define ROLL_HOSTNCCL_CUDA_CAPTURE_H

#include "hostnccl/cuda/graph.h"

struct hostcuda_capture {
    atomic_uint refs; /* one for the capture's own life, and one for each event that was recorded in it */
    enum { HOSTCUDA_CAPTURE_VALID, HOSTCUDA_CAPTURE_INVALID, HOSTCUDA_CAPTURE_ENDED } state;
    struct hostcuda_graph *graph;
    bool owns_graph; /* true until the capture ends well */
    enum cudaStreamCaptureMode mode;
    unsigned long long thread; /* number of the thread that began the capture */
    struct hostcuda_stream *origin;
    struct hostcuda_stream *streams; /* all streams that take part; each holds a reference */
    unsigned long long id;
    struct hostcuda_capture *next; /* in the list of all captures that have not ended */
};

extern struct hostcuda_capture *hostcuda_captures;

/* The capture of a stream; NULL when it is not captured. With the lock held. */
struct hostcuda_capture *hostcuda_capture_of(struct hostcuda_stream *stream);

/*
 * Makes the stream's next node depend on these nodes; the second function adds these nodes to the tips. With the lock
 * held. Errors: cudaErrorMemoryAllocation.
 */
cudaError_t hostcuda_tips_set(struct hostcuda_stream *stream, struct hostcuda_node *const *tips, size_t count);
cudaError_t hostcuda_tips_add(struct hostcuda_stream *stream, struct hostcuda_node *const *tips, size_t count);

/* Makes the capture invalid: no node can be added any more, and only ending the capture helps. With the lock held. */
void hostcuda_capture_invalidate(struct hostcuda_capture *capture);

/* Changes the number of captures under way; calls that need the rules look at this number first. */
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
