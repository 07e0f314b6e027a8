/*
 * capture.c: stream capture: between cudaStreamBeginCapture and cudaStreamEndCapture a stream does not run what it is
 * given but adds it to a graph. Other streams join the capture by waiting for an event that was recorded in it, and
 * must be joined back before the capture ends.
 *
 * A capture is valid, invalid or ended. A call that a capture cannot represent makes the capture invalid, as the vendor
 * documents: that call fails, every later call that touches the capture fails too, and only cudaStreamEndCapture
 * releases the streams. Being more forgiving was rejected: programs that capture correctly here by luck would fail on a
 * GPU.
 *
 * The next node of a stream depends on the stream's tips: the nodes at the end of what the stream has captured so far.
 * Forking copies tips to another stream, joining adds them. hostcuda_graph_lock guards all of this.
 */
#include "hostnccl/cuda/capture.h"

#include <stdlib.h>

struct hostcuda_capture *hostcuda_captures;
static _Atomic unsigned long long next_id = 1;

static void capture_put(struct hostcuda_capture *capture)
{
    if (capture && atomic_fetch_sub(&capture->refs, 1) == 1) {
        free(capture);
    }
}

void hostcuda_capture_invalidate(struct hostcuda_capture *capture)
{
    if (capture->state == HOSTCUDA_CAPTURE_VALID) {
        capture->state = HOSTCUDA_CAPTURE_INVALID;
    }
}

/* The capture of a stream; NULL when it is not captured. */
struct hostcuda_capture *hostcuda_capture_of(struct hostcuda_stream *stream)
{
    return atomic_load_explicit(&stream->capture, memory_order_relaxed);
}

/* the tips of a stream */

/* Copies a list of nodes, with room for at least one. NULL without memory. */
static struct hostcuda_node **tips_copy(struct hostcuda_node *const *tips, size_t count)
{
    struct hostcuda_node **copy = malloc((count + 1) * sizeof(struct hostcuda_node *));
    for (size_t i = 0; copy && i < count; i++) {
        copy[i] = tips[i];
    }
    return copy;
}

cudaError_t hostcuda_tips_set(struct hostcuda_stream *stream, struct hostcuda_node *const *tips, size_t count)
{
    struct hostcuda_node **copy = tips_copy(tips, count);
    if (!copy) {
        return cudaErrorMemoryAllocation;
    }
    free(stream->tips);
    stream->tips = copy;
    stream->tip_count = count;
    return cudaSuccess;
}

cudaError_t hostcuda_tips_add(struct hostcuda_stream *stream, struct hostcuda_node *const *tips, size_t count)
{
    struct hostcuda_nodes all = {0};
    bool is_done = true;
    for (size_t i = 0; i < stream->tip_count && is_done; i++) {
        is_done = hostcuda_nodes_add(&all, stream->tips[i], true);
    }
    for (size_t i = 0; i < count && is_done; i++) {
        is_done = hostcuda_nodes_add(&all, tips[i], true);
    }
    cudaError_t error = is_done ? hostcuda_tips_set(stream, all.items, all.count) : cudaErrorMemoryAllocation;
    free(all.items);
    return error;
}

/* streams of a capture */

/* Makes the stream take part in the capture from now on. */
static cudaError_t join(struct hostcuda_capture *capture, struct hostcuda_stream *stream,
                        struct hostcuda_node *const *tips, size_t count)
{
    cudaError_t error = hostcuda_tips_set(stream, tips, count);
    if (!error) {
        atomic_fetch_add_explicit(&stream->handle.refs, 1, memory_order_relaxed);
        stream->next_captured = capture->streams;
        capture->streams = stream;
        atomic_store_explicit(&stream->capture, capture, memory_order_release);
    }
    return error;
}

static void part(struct hostcuda_capture *capture, struct hostcuda_stream *stream)
{
    for (struct hostcuda_stream **link = &capture->streams; *link; link = &(*link)->next_captured) {
        if (*link == stream) {
            *link = stream->next_captured;
            break;
        }
    }
    free(stream->tips);
    stream->tips = NULL;
    stream->tip_count = 0;
    atomic_store_explicit(&stream->capture, NULL, memory_order_release);
    hostcuda_stream_put(stream);
}

/* Takes every stream out of the capture and forgets it. The graph is left to the caller. */
static void end(struct hostcuda_capture *capture)
{
    for (struct hostcuda_capture **link = &hostcuda_captures; *link; link = &(*link)->next) {
        if (*link == capture) {
            *link = capture->next;
            break;
        }
    }
    hostcuda_capture_count(-1);
    while (capture->streams) {
        part(capture, capture->streams);
    }
    capture->graph->captures--;
    capture->state = HOSTCUDA_CAPTURE_ENDED;
    capture_put(capture);
}

static cudaError_t begin(struct hostcuda_stream *stream, struct hostcuda_graph *graph, bool owns_graph,
                         struct hostcuda_node *const *tips, size_t count, enum cudaStreamCaptureMode mode)
{
    struct hostcuda_capture *capture = calloc(1, sizeof(*capture));
    cudaError_t error = capture ? join(capture, stream, tips, count) : cudaErrorMemoryAllocation;
    if (error) {
        free(capture);
        return error;
    }
    atomic_init(&capture->refs, 1);
    capture->graph = graph;
    capture->owns_graph = owns_graph;
    capture->mode = mode;
    capture->thread = hostcuda_thread_number();
    capture->origin = stream;
    capture->id = atomic_fetch_add(&next_id, 1);
    capture->next = hostcuda_captures;
    hostcuda_captures = capture;
    hostcuda_capture_count(+1);
    graph->captures++;
    return cudaSuccess;
}

/* Whether a capture may begin on the stream. */
static cudaError_t may_begin(cudaStream_t handle, struct hostcuda_stream *stream, enum cudaStreamCaptureMode mode)
{
    if ((unsigned int)mode > cudaStreamCaptureModeRelaxed) {
        return cudaErrorInvalidValue;
    }
    if (!handle || handle == cudaStreamLegacy) {
        return cudaErrorStreamCaptureUnsupported;
    }
    return hostcuda_capture_of(stream) ? cudaErrorIllegalState : cudaSuccess;
}

HOSTCUDA_EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode)
{
    struct hostcuda_stream *stream;
    struct hostcuda_graph *graph = NULL;
    cudaError_t error = hostcuda_enter_stream(handle, &stream);
    if (error) {
        return hostcuda_leave(error);
    }
    pthread_mutex_lock(&hostcuda_graph_lock);
    error = may_begin(handle, stream, mode);
    if (!error) {
        error = hostcuda_graph_new(&graph);
    }
    if (!error) {
        error = begin(stream, graph, true, NULL, 0, mode);
    }
    if (error) {
        hostcuda_graph_free(&graph);
    }
    pthread_mutex_unlock(&hostcuda_graph_lock);
    hostcuda_stream_put(stream);
    return hostcuda_leave(error);
}

/* Since CUDA 12.3; older headers do not declare it. */
cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t handle, cudaGraph_t graph_handle, const cudaGraphNode_t *nodes,
                                          const cudaGraphEdgeData *edges, size_t count,
                                          enum cudaStreamCaptureMode mode);

HOSTCUDA_EXPORT cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t handle, cudaGraph_t graph_handle,
                                                          const cudaGraphNode_t *nodes, const cudaGraphEdgeData *edges,
                                                          size_t count, enum cudaStreamCaptureMode mode)
{
    struct hostcuda_stream *stream;
    cudaError_t error = hostcuda_enter_stream(handle, &stream);
    if (error) {
        return hostcuda_leave(error);
    }
    pthread_mutex_lock(&hostcuda_graph_lock);
    struct hostcuda_graph *graph = hostcuda_graph_of(graph_handle);
    error = may_begin(handle, stream, mode);
    if (!error && (!graph || (count && !nodes))) {
        error = cudaErrorInvalidValue;
    }
    for (size_t i = 0; i < count && !error; i++) {
        struct hostcuda_node *node = hostcuda_node_of(nodes[i]);
        bool is_plain = !edges || !(edges[i].from_port | edges[i].to_port | edges[i].type);
        error = node && node->graph == graph && is_plain ? cudaSuccess : cudaErrorInvalidValue;
    }
    if (!error) {
        error = begin(stream, graph, false, (struct hostcuda_node *const *)nodes, count, mode);
    }
    pthread_mutex_unlock(&hostcuda_graph_lock);
    hostcuda_stream_put(stream);
    return hostcuda_leave(error);
}

/* the end */

/* Marks the nodes, and puts those on the list that were not marked before. */
static size_t mark_nodes(unsigned char *marked, struct hostcuda_node **todo, size_t count,
                         struct hostcuda_node *const *nodes, size_t node_count)
{
    for (size_t i = 0; i < node_count; i++) {
        if (!marked[nodes[i]->index]) {
            marked[nodes[i]->index] = 1;
            todo[count++] = nodes[i];
        }
    }
    return count;
}

/*
 * Checks that every stream that took part was joined back: the last nodes of that stream must come before the last
 * nodes of the first stream.
 */
static cudaError_t check_joined(const struct hostcuda_capture *capture)
{
    size_t all = capture->graph->nodes.count + 1;
    unsigned char *joined = calloc(all, 1);
    struct hostcuda_node **todo = malloc(all * sizeof(struct hostcuda_node *));
    cudaError_t error = joined && todo ? cudaSuccess : cudaErrorMemoryAllocation;
    size_t count = error ? 0 : mark_nodes(joined, todo, 0, capture->origin->tips, capture->origin->tip_count);
    while (count) {
        const struct hostcuda_nodes *before = &todo[--count]->before;
        count = mark_nodes(joined, todo, count, before->items, before->count);
    }
    for (struct hostcuda_stream *stream = capture->streams; stream && !error; stream = stream->next_captured) {
        for (size_t i = 0; i < stream->tip_count; i++) {
            error = joined[stream->tips[i]->index] ? error : cudaErrorStreamCaptureUnjoined;
        }
    }
    free(joined);
    free(todo);
    return error;
}

/* With the lock held. */
static cudaError_t end_capture(struct hostcuda_stream *stream, cudaGraph_t *out)
{
    struct hostcuda_capture *capture = hostcuda_capture_of(stream);
    if (!capture) {
        return cudaErrorIllegalState;
    }
    if (capture->origin != stream) {
        hostcuda_capture_invalidate(capture);
        return cudaErrorStreamCaptureUnmatched;
    }
    if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != hostcuda_thread_number()) {
        return cudaErrorStreamCaptureWrongThread;
    }
    struct hostcuda_graph *graph = capture->graph;
    bool owns_graph = capture->owns_graph;
    cudaError_t error =
        capture->state == HOSTCUDA_CAPTURE_VALID ? check_joined(capture) : cudaErrorStreamCaptureInvalidated;
    end(capture);
    if (!error) {
        *out = (cudaGraph_t)graph;
    } else if (owns_graph) {
        hostcuda_graph_free(&graph);
    }
    return error;
}

HOSTCUDA_EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph)
{
    struct hostcuda_stream *stream;
    cudaError_t error = graph ? hostcuda_enter_stream(handle, &stream) : cudaErrorInvalidValue;
    if (!error) {
        *graph = NULL;
        pthread_mutex_lock(&hostcuda_graph_lock);
        error = end_capture(stream, graph);
        pthread_mutex_unlock(&hostcuda_graph_lock);
        hostcuda_stream_put(stream);
    }
    return hostcuda_leave(error);
}

void hostcuda_capture_forget(struct hostcuda_stream *stream)
{
    if (!hostcuda_stream_is_captured(stream)) {
        return;
    }
    pthread_mutex_lock(&hostcuda_graph_lock);
    struct hostcuda_capture *capture = hostcuda_capture_of(stream);
    if (capture && capture->origin == stream) {
        struct hostcuda_graph *graph = capture->graph;
        bool owns_graph = capture->owns_graph;
        end(capture);
        if (owns_graph) {
            hostcuda_graph_free(&graph);
        }
    } else if (capture) {
        hostcuda_capture_invalidate(capture);
        part(capture, stream);
    }
    pthread_mutex_unlock(&hostcuda_graph_lock);
}

/* what streams and events do in a capture */

/* Takes the lock, and finds the capture of the stream if it can still be added to. */
static cudaError_t enter_capture(struct hostcuda_stream *stream, struct hostcuda_capture **capture)
{
    pthread_mutex_lock(&hostcuda_graph_lock);
    *capture = hostcuda_capture_of(stream);
    return *capture && (*capture)->state == HOSTCUDA_CAPTURE_VALID ? cudaSuccess : cudaErrorStreamCaptureInvalidated;
}

static cudaError_t leave_capture(cudaError_t error)
{
    pthread_mutex_unlock(&hostcuda_graph_lock);
    return error;
}

cudaError_t hostcuda_capture_add(struct hostcuda_stream *stream, struct hostcuda_work *work)
{
    struct hostcuda_capture *capture;
    struct hostcuda_node *node;
    cudaError_t error = enter_capture(stream, &capture);
    if (error) {
        hostcuda_work_drop(work);
        return leave_capture(error);
    }
    error = hostcuda_node_add(capture->graph, work, stream->tips, stream->tip_count, &node);
    if (!error) {
        error = hostcuda_tips_set(stream, &node, 1);
    }
    if (error) {
        hostcuda_capture_invalidate(capture);
    }
    return leave_capture(error);
}

void hostcuda_captured_clear(struct hostcuda_captured *at)
{
    capture_put(at->capture);
    free(at->tips);
    *at = (struct hostcuda_captured){0};
}

cudaError_t hostcuda_capture_record(struct hostcuda_stream *stream, struct hostcuda_captured *at)
{
    struct hostcuda_capture *capture;
    cudaError_t error = enter_capture(stream, &capture);
    if (error) {
        return leave_capture(error);
    }
    struct hostcuda_node **tips = tips_copy(stream->tips, stream->tip_count);
    if (!tips) {
        return leave_capture(cudaErrorMemoryAllocation);
    }
    atomic_fetch_add(&capture->refs, 1);
    hostcuda_captured_clear(at);
    *at = (struct hostcuda_captured){.capture = capture, .tips = tips, .tip_count = stream->tip_count};
    return leave_capture(cudaSuccess);
}

/* With the lock held. */
static cudaError_t follow(struct hostcuda_stream *stream, const struct hostcuda_captured *at)
{
    struct hostcuda_capture *theirs = at->capture, *own = hostcuda_capture_of(stream);
    if (theirs->state == HOSTCUDA_CAPTURE_ENDED) {
        if (own) {
            hostcuda_capture_invalidate(own);
        }
        return cudaErrorCapturedEvent;
    }
    if (own && own != theirs) {
        hostcuda_capture_invalidate(own);
        hostcuda_capture_invalidate(theirs);
        return cudaErrorStreamCaptureMerge;
    }
    if (theirs->state != HOSTCUDA_CAPTURE_VALID) {
        return cudaErrorStreamCaptureInvalidated;
    }
    if (own) {
        return hostcuda_tips_add(stream, at->tips, at->tip_count);
    }
    if (hostcuda_stream_is_legacy(stream)) {
        hostcuda_capture_invalidate(theirs);
        return cudaErrorStreamCaptureImplicit;
    }
    return join(theirs, stream, at->tips, at->tip_count);
}

cudaError_t hostcuda_capture_follow(struct hostcuda_stream *stream, const struct hostcuda_captured *at)
{
    pthread_mutex_lock(&hostcuda_graph_lock);
    return leave_capture(follow(stream, at));
}
