/* test_capture.c: stream capture: what becomes a node, how streams fork and join, and each thing that a capture
 * forbids. */
#include "tests/hostnccl/cuda/gate.h"

#include <pthread.h>
#include <string.h>

#define GLOBAL  cudaStreamCaptureModeGlobal
#define LOCAL   cudaStreamCaptureModeThreadLocal
#define RELAXED cudaStreamCaptureModeRelaxed

static cudaStream_t make_stream(unsigned int flags)
{
    cudaStream_t stream = NULL;
    assert_success(cudaStreamCreateWithFlags(&stream, flags));
    return stream;
}

static cudaStream_t begin(enum cudaStreamCaptureMode mode)
{
    cudaStream_t stream = make_stream(cudaStreamNonBlocking);
    assert_success(cudaStreamBeginCapture(stream, mode));
    return stream;
}

static cudaEvent_t make_event(void)
{
    cudaEvent_t event = NULL;
    assert_success(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
}

/* Ends a capture well; the number of nodes of its graph. */
static size_t end_and_count(cudaStream_t stream)
{
    cudaGraph_t graph = NULL;
    size_t count = 0;
    assert_success(cudaStreamEndCapture(stream, &graph));
    assert_success(cudaGraphGetNodes(graph, NULL, &count));
    assert_success(cudaGraphDestroy(graph));
    assert_success(cudaStreamDestroy(stream));
    return count;
}

/* The capture was made invalid: it says so until its end, which gives no graph, and then the stream works again. */
static void expect_invalid(cudaStream_t stream)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaGraph_t graph = (cudaGraph_t)&status;
    atomic_int done = 0;
    assert_success(cudaStreamIsCapturing(stream, &status));
    assert_int_equal(status, cudaStreamCaptureStatusInvalidated);
    assert_cuda(cudaErrorStreamCaptureInvalidated, cudaLaunchHostFunc(stream, bump, &done));
    assert_cuda(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &graph));
    assert_null(graph);
    assert_success(cudaLaunchHostFunc(stream, bump, &done));
    assert_success(cudaStreamSynchronize(stream));
    assert_int_equal(atomic_load(&done), 1);
    assert_success(cudaStreamDestroy(stream));
}

static void expect_valid(cudaStream_t stream)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    assert_success(cudaStreamIsCapturing(stream, &status));
    assert_int_equal(status, cudaStreamCaptureStatusActive);
}

static void test_captured_work_does_not_run(void **state)
{
    (void)state;
    atomic_int done = 0;
    cudaStream_t stream = begin(GLOBAL);
    for (int i = 0; i < 3; i++) {
        assert_success(cudaLaunchHostFunc(stream, bump, &done));
    }
    expect_valid(stream);
    assert_int_equal(end_and_count(stream), 3);
    assert_int_equal(atomic_load(&done), 0);
}

static void test_each_capture_has_an_id_and_a_graph(void **state)
{
    (void)state;
#if CUDART_VERSION >= 13000
    enum cudaStreamCaptureStatus status;
    unsigned long long first = 0, second = 0;
    cudaGraph_t graph = NULL, ended = NULL;
    const cudaGraphNode_t *tips = NULL;
    size_t count = 99;
    atomic_int done = 0;
    cudaStream_t a = begin(LOCAL), b = begin(LOCAL);
    assert_success(cudaStreamGetCaptureInfo(a, &status, &first, &graph, &tips, NULL, &count));
    assert_int_equal(count, 0);
    assert_success(cudaLaunchHostFunc(a, bump, &done));
    assert_success(cudaStreamGetCaptureInfo(a, &status, &first, &graph, &tips, NULL, &count));
    assert_int_equal(count, 1);
    assert_success(cudaStreamGetCaptureInfo(b, &status, &second, NULL, NULL, NULL, NULL));
    assert_true(first && second && first != second);
    assert_success(cudaStreamEndCapture(a, &ended));
    assert_ptr_equal(ended, graph);
    assert_success(cudaStreamGetCaptureInfo(a, &status, NULL, NULL, NULL, NULL, NULL));
    assert_int_equal(status, cudaStreamCaptureStatusNone);
    assert_success(cudaGraphDestroy(ended));
    assert_success(cudaStreamDestroy(a));
    assert_int_equal(end_and_count(b), 0);
#endif
}

static void test_who_may_begin_and_end(void **state)
{
    (void)state;
    cudaGraph_t graph = NULL;
    assert_cuda(cudaErrorStreamCaptureUnsupported, cudaStreamBeginCapture(0, RELAXED));
    assert_cuda(cudaErrorStreamCaptureUnsupported, cudaStreamBeginCapture(cudaStreamLegacy, RELAXED));
    cudaStream_t stream = make_stream(cudaStreamNonBlocking);
    assert_cuda(cudaErrorInvalidValue, cudaStreamBeginCapture(stream, (enum cudaStreamCaptureMode)3));
    assert_cuda(cudaErrorIllegalState, cudaStreamEndCapture(stream, &graph));
    assert_success(cudaStreamBeginCapture(stream, GLOBAL));
    assert_cuda(cudaErrorIllegalState, cudaStreamBeginCapture(stream, GLOBAL));
    assert_int_equal(end_and_count(stream), 0);
    /* The thread's own default stream may be captured. */
    assert_success(cudaStreamBeginCapture(cudaStreamPerThread, LOCAL));
    assert_success(cudaStreamEndCapture(cudaStreamPerThread, &graph));
    assert_success(cudaGraphDestroy(graph));
}

/* threads and modes */

struct call {
    cudaError_t (*make)(struct call *call);
    cudaStream_t stream;
    cudaEvent_t event;
    enum cudaStreamCaptureMode mode; /* of the thread that makes the call */
    cudaError_t result;
};

static void *make_call(void *argument)
{
    struct call *call = argument;
    enum cudaStreamCaptureMode mode = call->mode;
    call->result = cudaThreadExchangeStreamCaptureMode(&mode);
    if (!call->result) {
        call->result = call->make(call);
    }
    return NULL;
}

static cudaError_t elsewhere(struct call *call)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, make_call, call), 0);
    pthread_join(thread, NULL);
    return call->result;
}

static cudaError_t end_it(struct call *call)
{
    cudaGraph_t graph = NULL;
    cudaError_t error = cudaStreamEndCapture(call->stream, &graph);
    return error ? error : cudaGraphDestroy(graph);
}

static void test_only_a_relaxed_capture_may_end_in_another_thread(void **state)
{
    (void)state;
    for (int mode = GLOBAL; mode <= RELAXED; mode++) {
        cudaStream_t stream = begin((enum cudaStreamCaptureMode)mode);
        struct call end = {.make = end_it, .stream = stream};
        if (mode == RELAXED) {
            assert_success(elsewhere(&end));
            assert_success(cudaStreamDestroy(stream));
        } else {
            assert_cuda(cudaErrorStreamCaptureWrongThread, elsewhere(&end));
            assert_int_equal(end_and_count(stream), 0);
        }
    }
}

static cudaError_t query_event(struct call *call)
{
    return cudaEventQuery(call->event);
}

static cudaError_t allocate(struct call *call)
{
    void *memory = NULL;
    (void)call;
    cudaError_t error = cudaMalloc(&memory, 16);
    return error ? error : cudaFree(memory);
}

static cudaError_t wait_elsewhere(struct call *call)
{
    return cudaStreamSynchronize(call->stream);
}

static cudaError_t pin(struct call *call)
{
    void *memory = NULL;
    (void)call;
    cudaError_t error = cudaHostAlloc(&memory, 16, 0);
    return error ? error : cudaFreeHost(memory);
}

/* Calls that a capture does not see. Rows: the mode of the capture; columns: that of the thread that calls. */
static void test_unsafe_calls_are_refused_as_the_modes_say(void **state)
{
    (void)state;
    static const bool same_thread[3][3] = {{false, false, true}, {false, false, true}, {true, true, true}};
    static const bool other_thread[3][3] = {{false, true, true}, {true, true, true}, {true, true, true}};
    static cudaError_t (*const unsafe[])(struct call *) = {query_event, allocate, wait_elsewhere, pin};
    cudaEvent_t event = make_event();
    cudaStream_t idle = make_stream(cudaStreamNonBlocking);
    for (int captured = GLOBAL; captured <= RELAXED; captured++) {
        for (int caller = GLOBAL; caller <= RELAXED; caller++) {
            for (int n = 0; n < 8; n++) {
                struct call call = {
                    .make = unsafe[n / 2], .stream = idle, .event = event, .mode = (enum cudaStreamCaptureMode)caller};
                cudaStream_t stream = begin((enum cudaStreamCaptureMode)captured);
                bool is_allowed = n % 2 ? other_thread[captured][caller] : same_thread[captured][caller];
                enum cudaStreamCaptureMode mode = GLOBAL;
                cudaError_t result = n % 2 ? elsewhere(&call) : (make_call(&call), call.result);
                assert_success(cudaThreadExchangeStreamCaptureMode(&mode));
                assert_int_equal(mode, n % 2 ? GLOBAL : caller); /* a mode belongs to its thread */
                assert_cuda(is_allowed ? cudaSuccess : cudaErrorStreamCaptureUnsupported, result);
                if (is_allowed) {
                    assert_int_equal(end_and_count(stream), 0);
                } else {
                    expect_invalid(stream);
                }
            }
        }
    }
    assert_success(cudaEventDestroy(event));
    assert_success(cudaStreamDestroy(idle));
}

/* what cannot be asked of a captured stream or event, in any mode */

static void test_a_captured_stream_cannot_be_waited_for_or_asked(void **state)
{
    (void)state;
    cudaStream_t stream = begin(RELAXED);
    assert_cuda(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(stream));
    assert_cuda(cudaErrorStreamCaptureInvalidated, cudaStreamSynchronize(stream));
    expect_invalid(stream);
    stream = begin(RELAXED);
    assert_cuda(cudaErrorStreamCaptureUnsupported, cudaStreamQuery(stream));
    expect_invalid(stream);
    stream = begin(RELAXED);
    assert_cuda(cudaErrorStreamCaptureUnsupported, cudaDeviceSynchronize());
    expect_invalid(stream);
}

static void never(cudaStream_t stream, cudaError_t status, void *data)
{
    (void)stream, (void)status, (void)data;
}

static void test_a_callback_cannot_be_captured(void **state)
{
    (void)state;
    cudaStream_t stream = begin(LOCAL);
    assert_cuda(cudaErrorStreamCaptureUnsupported, cudaStreamAddCallback(stream, never, NULL, 0));
    expect_invalid(stream);
}

static void test_a_captured_event_cannot_be_asked(void **state)
{
    (void)state;
    cudaGraph_t graph;
    float ms;
    cudaStream_t stream = begin(RELAXED);
    cudaEvent_t event = make_event();
    assert_success(cudaEventQuery(event));
    assert_success(cudaEventRecord(event, stream));
    assert_cuda(cudaErrorCapturedEvent, cudaEventQuery(event));
    expect_invalid(stream);
    stream = begin(RELAXED);
    assert_success(cudaEventRecord(event, stream));
    assert_success(cudaStreamEndCapture(stream, &graph)); /* the event stays a captured one */
    assert_cuda(cudaErrorCapturedEvent, cudaEventSynchronize(event));
    assert_cuda(cudaErrorCapturedEvent, cudaEventElapsedTime(&ms, event, event));
    assert_cuda(cudaErrorCapturedEvent, cudaStreamWaitEvent(stream, event, 0));
    assert_success(cudaEventRecord(event, stream)); /* until it is recorded anew */
    assert_success(cudaEventSynchronize(event));
    assert_success(cudaGraphDestroy(graph));
    assert_success(cudaEventDestroy(event));
    assert_success(cudaStreamDestroy(stream));
}

/* the legacy stream */

static void test_the_legacy_stream_cannot_depend_on_a_captured_one(void **state)
{
    (void)state;
    enum cudaStreamCaptureStatus status;
    atomic_int done = 0;
    void *memory;
    assert_success(cudaMalloc(&memory, 16));
    cudaStream_t stream = make_stream(cudaStreamDefault);
    assert_success(cudaStreamBeginCapture(stream, RELAXED));
    assert_cuda(cudaErrorStreamCaptureImplicit, cudaStreamIsCapturing(0, &status)); /* asking is harmless */
    expect_valid(stream);
    assert_cuda(cudaErrorStreamCaptureImplicit, cudaLaunchHostFunc(0, bump, &done));
    expect_invalid(stream);
    stream = make_stream(cudaStreamDefault);
    assert_success(cudaStreamBeginCapture(stream, RELAXED));
    assert_cuda(cudaErrorStreamCaptureImplicit, cudaMemset(memory, 0, 16));
    expect_invalid(stream);
    stream = make_stream(cudaStreamDefault);
    assert_success(cudaStreamBeginCapture(stream, RELAXED));
    assert_cuda(cudaErrorStreamCaptureImplicit, cudaMemcpy(memory, &done, 4, cudaMemcpyHostToDevice));
    expect_invalid(stream);
    /* A non-blocking stream leaves the legacy one alone. */
    stream = begin(RELAXED);
    assert_success(cudaStreamIsCapturing(0, &status));
    assert_int_equal(status, cudaStreamCaptureStatusNone);
    assert_success(cudaLaunchHostFunc(0, bump, &done));
    assert_success(cudaMemcpy(memory, &done, 4, cudaMemcpyHostToDevice));
    assert_int_equal(atomic_load(&done), 1);
    assert_int_equal(end_and_count(stream), 0);
    assert_success(cudaFree(memory));
}

/* several streams */

static void test_streams_join_and_leave_by_events(void **state)
{
    (void)state;
    enum cudaStreamCaptureStatus status;
    atomic_int done = 0;
    cudaEvent_t fork = make_event(), join = make_event();
    cudaStream_t first = begin(GLOBAL), second = make_stream(cudaStreamNonBlocking);
    assert_success(cudaLaunchHostFunc(first, bump, &done));
    assert_success(cudaEventRecord(fork, first));
    assert_success(cudaStreamWaitEvent(second, fork, 0));
    expect_valid(second);
    assert_success(cudaLaunchHostFunc(second, bump, &done));
    assert_success(cudaEventRecord(join, second));
    assert_success(cudaStreamWaitEvent(first, join, 0));
    assert_success(cudaLaunchHostFunc(first, bump, &done));
    assert_int_equal(end_and_count(first), 3);
    assert_success(cudaStreamIsCapturing(second, &status));
    assert_int_equal(status, cudaStreamCaptureStatusNone);
    assert_success(cudaLaunchHostFunc(second, bump, &done)); /* runs again */
    assert_success(cudaStreamSynchronize(second));
    assert_int_equal(atomic_load(&done), 1);
    assert_success(cudaEventDestroy(fork));
    assert_success(cudaEventDestroy(join));
    assert_success(cudaStreamDestroy(second));
}

static void test_a_stream_that_was_not_joined_spoils_the_end(void **state)
{
    (void)state;
    atomic_int done = 0;
    cudaGraph_t graph = (cudaGraph_t)&done;
    cudaEvent_t fork = make_event();
    cudaStream_t first = begin(GLOBAL), second = make_stream(cudaStreamNonBlocking);
    assert_success(cudaEventRecord(fork, first));
    assert_success(cudaStreamWaitEvent(second, fork, 0));
    assert_cuda(cudaErrorStreamCaptureUnmatched, cudaStreamEndCapture(second, &graph)); /* not where it began */
    expect_invalid(first);
    first = begin(GLOBAL);
    assert_success(cudaEventRecord(fork, first));
    assert_success(cudaStreamWaitEvent(second, fork, 0));
    assert_success(cudaLaunchHostFunc(second, bump, &done));
    assert_cuda(cudaErrorStreamCaptureUnjoined, cudaStreamEndCapture(first, &graph));
    assert_null(graph);
    assert_success(cudaStreamSynchronize(second)); /* both are free */
    assert_success(cudaStreamSynchronize(first));
    assert_int_equal(atomic_load(&done), 0);
    /* A stream that joined but did nothing need not be joined back. */
    assert_success(cudaStreamBeginCapture(first, GLOBAL));
    assert_success(cudaLaunchHostFunc(first, bump, &done));
    assert_success(cudaEventRecord(fork, first));
    assert_success(cudaStreamWaitEvent(second, fork, 0));
    assert_int_equal(end_and_count(first), 1);
    assert_success(cudaEventDestroy(fork));
    assert_success(cudaStreamDestroy(second));
}

static void test_captures_do_not_mix_with_each_other_or_the_outside(void **state)
{
    (void)state;
    cudaEvent_t event = make_event(), outside = make_event();
    cudaStream_t running = make_stream(cudaStreamNonBlocking), first = begin(RELAXED), second = begin(RELAXED);
    assert_success(cudaEventRecord(event, first));
    assert_cuda(cudaErrorStreamCaptureMerge, cudaStreamWaitEvent(second, event, 0));
    expect_invalid(first);
    expect_invalid(second);
    first = begin(LOCAL);
    assert_success(cudaStreamWaitEvent(first, outside, 0)); /* never recorded: nothing to wait for */
    assert_success(cudaEventRecord(outside, running));
    assert_cuda(cudaErrorStreamCaptureIsolation, cudaStreamWaitEvent(first, outside, 0));
    expect_invalid(first);
    /* As an external event it is a node. */
    assert_cuda(cudaErrorIllegalState, cudaStreamWaitEvent(running, outside, cudaEventWaitExternal));
    assert_cuda(cudaErrorIllegalState, cudaEventRecordWithFlags(outside, running, cudaEventRecordExternal));
    first = begin(LOCAL);
    assert_success(cudaStreamWaitEvent(first, outside, cudaEventWaitExternal));
    assert_success(cudaEventRecordWithFlags(outside, first, cudaEventRecordExternal));
    assert_int_equal(end_and_count(first), 2);
    assert_success(cudaEventQuery(outside)); /* recorded by the running stream, not captured */
    assert_success(cudaEventDestroy(event));
    assert_success(cudaEventDestroy(outside));
    assert_success(cudaStreamDestroy(running));
}

static void test_destroying_a_captured_stream_ends_what_it_began(void **state)
{
    (void)state;
    cudaEvent_t fork = make_event();
    cudaStream_t first = begin(GLOBAL), second = make_stream(cudaStreamNonBlocking);
    assert_success(cudaEventRecord(fork, first));
    assert_success(cudaStreamWaitEvent(second, fork, 0));
    assert_success(cudaStreamDestroy(second));
    expect_invalid(first);
    first = begin(GLOBAL);
    second = make_stream(cudaStreamNonBlocking);
    assert_success(cudaEventRecord(fork, first));
    assert_success(cudaStreamWaitEvent(second, fork, 0));
    assert_success(cudaStreamDestroy(first));
    assert_success(cudaStreamSynchronize(second)); /* the capture is gone, and its mode with it */
    assert_success(cudaStreamDestroy(second));
    assert_success(cudaEventDestroy(fork));
}

#if CUDART_VERSION >= 13000
static void test_nodes_made_by_hand_stand_in_the_capture(void **state)
{
    (void)state;
    enum cudaStreamCaptureStatus status;
    const cudaGraphNode_t *tips;
    cudaGraphNode_t hand, last, before[2];
    cudaGraph_t graph;
    size_t count = 0;
    atomic_int done = 0;
    const struct cudaHostNodeParams params = {bump, &done};
    cudaStream_t stream = begin(LOCAL);
    assert_success(cudaLaunchHostFunc(stream, bump, &done));
    assert_success(cudaStreamGetCaptureInfo(stream, &status, NULL, &graph, &tips, NULL, &count));
    assert_success(cudaGraphAddHostNode(&hand, graph, tips, count, &params));
    assert_cuda(cudaErrorInvalidValue, cudaGraphDestroy(graph)); /* the graph is being captured */
    assert_success(cudaStreamUpdateCaptureDependencies(stream, &hand, NULL, 1, cudaStreamSetCaptureDependencies));
    assert_success(cudaLaunchHostFunc(stream, bump, &done));
    assert_success(cudaStreamGetCaptureInfo(stream, &status, NULL, NULL, &tips, NULL, &count));
    assert_int_equal(count, 1);
    last = tips[0];
    assert_success(cudaGraphNodeGetDependencies(last, NULL, NULL, &count));
    assert_int_equal(count, 1);
    assert_success(cudaGraphNodeGetDependencies(last, before, NULL, &count));
    assert_ptr_equal(before[0], hand);
    assert_success(cudaStreamUpdateCaptureDependencies(stream, &hand, NULL, 1, cudaStreamAddCaptureDependencies));
    assert_success(cudaStreamGetCaptureInfo(stream, &status, NULL, NULL, &tips, NULL, &count));
    assert_int_equal(count, 2);
    assert_int_equal(end_and_count(stream), 3);
    cudaStream_t idle = make_stream(cudaStreamNonBlocking);
    assert_cuda(cudaErrorIllegalState, cudaStreamUpdateCaptureDependencies(idle, &hand, NULL, 1, 0));
    assert_success(cudaStreamDestroy(idle));
}

static void test_capture_into_a_graph_that_exists(void **state)
{
    (void)state;
    cudaGraph_t graph, same = NULL;
    cudaGraphNode_t root;
    size_t count = 0;
    atomic_int done = 0;
    cudaStream_t stream = make_stream(cudaStreamNonBlocking);
    assert_success(cudaGraphCreate(&graph, 0));
    assert_success(cudaGraphAddEmptyNode(&root, graph, NULL, 0));
    assert_success(cudaStreamBeginCaptureToGraph(stream, graph, &root, NULL, 1, LOCAL));
    assert_success(cudaLaunchHostFunc(stream, bump, &done));
    assert_success(cudaStreamEndCapture(stream, &same));
    assert_ptr_equal(same, graph);
    assert_success(cudaGraphGetEdges(graph, NULL, NULL, NULL, &count));
    assert_int_equal(count, 1);
    assert_success(cudaStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0, LOCAL));
    assert_cuda(cudaErrorStreamCaptureUnsupported, cudaStreamQuery(stream));
    assert_cuda(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &same));
    assert_success(cudaGraphDestroy(graph)); /* the program's own graph outlives a failed capture */
    assert_success(cudaStreamDestroy(stream));
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_captured_work_does_not_run),
        cmocka_unit_test(test_each_capture_has_an_id_and_a_graph),
        cmocka_unit_test(test_who_may_begin_and_end),
        cmocka_unit_test(test_only_a_relaxed_capture_may_end_in_another_thread),
        cmocka_unit_test(test_unsafe_calls_are_refused_as_the_modes_say),
        cmocka_unit_test(test_a_captured_stream_cannot_be_waited_for_or_asked),
        cmocka_unit_test(test_a_callback_cannot_be_captured),
        cmocka_unit_test(test_a_captured_event_cannot_be_asked),
        cmocka_unit_test(test_the_legacy_stream_cannot_depend_on_a_captured_one),
        cmocka_unit_test(test_streams_join_and_leave_by_events),
        cmocka_unit_test(test_a_stream_that_was_not_joined_spoils_the_end),
        cmocka_unit_test(test_captures_do_not_mix_with_each_other_or_the_outside),
        cmocka_unit_test(test_destroying_a_captured_stream_ends_what_it_began),
#if CUDART_VERSION >= 13000
        cmocka_unit_test(test_nodes_made_by_hand_stand_in_the_capture),
        cmocka_unit_test(test_capture_into_a_graph_that_exists),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
