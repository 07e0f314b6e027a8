/*
 * capture_rule.c: the calls that are forbidden while streams are captured. There are three kinds: calls that make no
 * sense on a captured stream or event (waiting, asking whether it is done), calls that would order the legacy stream
 * with a captured one, and calls that no capture sees although it may depend on them (allocations, queries), which the
 * modes of captures and threads regulate. A call that breaks a rule fails and invalidates the capture.
 *
 * Every call of the third kind asks here, so the answer without a capture costs one load.
 */
#include "hostnccl/cuda/capture.h"

static atomic_int active;

void hostcuda_capture_count(int change)
{
    atomic_fetch_add(&active, change);
}

static bool is_any(void)
{
    return atomic_load_explicit(&active, memory_order_acquire) != 0;
}

bool hostcuda_stream_is_legacy(struct hostcuda_stream *stream)
{
    struct hostcuda_device *on = hostcuda_device_of(stream->device);
    pthread_mutex_lock(&on->order);
    bool is_legacy = on->legacy == stream;
    pthread_mutex_unlock(&on->order);
    return is_legacy;
}

struct hostcuda_capture *hostcuda_capture_blocks_legacy(int device)
{
    for (struct hostcuda_capture *capture = hostcuda_captures; capture; capture = capture->next) {
        for (struct hostcuda_stream *stream = capture->streams; stream; stream = stream->next_captured) {
            if (stream->device == device && !(stream->flags & cudaStreamNonBlocking)) {
                return capture;
            }
        }
    }
    return NULL;
}

cudaError_t hostcuda_capture_refuse_implicit(struct hostcuda_stream *stream)
{
    if (!is_any() || !hostcuda_stream_is_legacy(stream)) {
        return cudaSuccess;
    }
    pthread_mutex_lock(&hostcuda_graph_lock);
    struct hostcuda_capture *capture = hostcuda_capture_blocks_legacy(stream->device);
    if (capture) {
        hostcuda_capture_invalidate(capture);
    }
    pthread_mutex_unlock(&hostcuda_graph_lock);
    return capture ? cudaErrorStreamCaptureImplicit : cudaSuccess;
}

cudaError_t hostcuda_capture_refuse(struct hostcuda_stream *stream)
{
    cudaError_t error = cudaSuccess;
    if (hostcuda_stream_is_captured(stream)) {
        pthread_mutex_lock(&hostcuda_graph_lock);
        struct hostcuda_capture *capture = hostcuda_capture_of(stream);
        if (capture) {
            error = capture->state == HOSTCUDA_CAPTURE_VALID ? cudaErrorStreamCaptureUnsupported
                                                             : cudaErrorStreamCaptureInvalidated;
            hostcuda_capture_invalidate(capture);
        }
        pthread_mutex_unlock(&hostcuda_graph_lock);
    }
    return error ? error : hostcuda_capture_refuse_implicit(stream);
}

cudaError_t hostcuda_capture_isolate(struct hostcuda_stream *stream)
{
    pthread_mutex_lock(&hostcuda_graph_lock);
    struct hostcuda_capture *capture = hostcuda_capture_of(stream);
    bool was_valid = capture && capture->state == HOSTCUDA_CAPTURE_VALID;
    if (capture) {
        hostcuda_capture_invalidate(capture);
    }
    pthread_mutex_unlock(&hostcuda_graph_lock);
    return was_valid ? cudaErrorStreamCaptureIsolation : cudaErrorStreamCaptureInvalidated;
}

cudaError_t hostcuda_capture_refuse_event(const struct hostcuda_captured *at)
{
    pthread_mutex_lock(&hostcuda_graph_lock);
    bool is_captured = at->capture != NULL;
    if (is_captured) {
        hostcuda_capture_invalidate(at->capture);
    }
    pthread_mutex_unlock(&hostcuda_graph_lock);
    return is_captured ? cudaErrorCapturedEvent : cudaSuccess;
}

cudaError_t hostcuda_capture_refuse_device(int device)
{
    cudaError_t error = cudaSuccess;
    if (!is_any()) {
        return error;
    }
    pthread_mutex_lock(&hostcuda_graph_lock);
    for (struct hostcuda_capture *capture = hostcuda_captures; capture; capture = capture->next) {
        for (struct hostcuda_stream *stream = capture->streams; stream; stream = stream->next_captured) {
            if (stream->device == device) {
                hostcuda_capture_invalidate(capture);
                error = cudaErrorStreamCaptureUnsupported;
            }
        }
    }
    pthread_mutex_unlock(&hostcuda_graph_lock);
    return error;
}

/* Whether captures of this thread, or of other threads, forbid this thread to make calls that no capture sees. */
static bool is_forbidden(const struct hostcuda_capture *capture, enum cudaStreamCaptureMode mode,
                         unsigned long long thread)
{
    if (mode == cudaStreamCaptureModeRelaxed || capture->mode == cudaStreamCaptureModeRelaxed) {
        return false;
    }
    return capture->thread == thread ||
           (mode == cudaStreamCaptureModeGlobal && capture->mode == cudaStreamCaptureModeGlobal);
}

cudaError_t hostcuda_capture_unsafe(void)
{
    cudaError_t error = cudaSuccess;
    if (!is_any()) {
        return error;
    }
    enum cudaStreamCaptureMode mode = hostcuda_self()->capture_mode;
    unsigned long long thread = hostcuda_thread_number();
    pthread_mutex_lock(&hostcuda_graph_lock);
    for (struct hostcuda_capture *capture = hostcuda_captures; capture; capture = capture->next) {
        if (is_forbidden(capture, mode, thread)) {
            hostcuda_capture_invalidate(capture);
            error = cudaErrorStreamCaptureUnsupported;
        }
    }
    pthread_mutex_unlock(&hostcuda_graph_lock);
    return error;
}

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
