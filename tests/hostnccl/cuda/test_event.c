/* test_event.c: events: order between streams, what a record names, time, and what is refused. */
#include "tests/hostnccl/cuda/gate.h"

static void test_a_stream_waits_for_an_event_of_another(void **state)
{
    (void)state;
    cudaStream_t first, second;
    cudaEvent_t event;
    struct gate gate;
    atomic_int done = 0;
    assert_success(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    assert_success(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    assert_success(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    gate_close(&gate, first);
    assert_success(cudaEventRecord(event, first));
    assert_success(cudaStreamWaitEvent(second, event, 0));
    assert_success(cudaLaunchHostFunc(second, bump, &done));
    sleep_ms(30);
    assert_int_equal(atomic_load(&done), 0);
    assert_cuda(cudaErrorNotReady, cudaEventQuery(event));
    assert_success(cudaEventDestroy(event)); /* the wait goes on */
    sleep_ms(10);
    assert_int_equal(atomic_load(&done), 0);
    gate_open(&gate);
    assert_success(cudaStreamSynchronize(second));
    assert_int_equal(atomic_load(&done), 1);
    assert_success(cudaStreamDestroy(first));
    assert_success(cudaStreamDestroy(second));
}

static void test_a_wait_is_for_the_record_at_the_time_of_the_call(void **state)
{
    (void)state;
    cudaStream_t first, second;
    cudaEvent_t event;
    struct gate gate;
    atomic_int done = 0;
    assert_success(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    assert_success(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    assert_success(cudaEventCreate(&event));
    assert_success(cudaStreamWaitEvent(second, event, 0)); /* never recorded: no wait at all */
    assert_success(cudaEventQuery(event));
    assert_success(cudaEventRecord(event, first));
    assert_success(cudaStreamWaitEvent(second, event, 0));
    gate_close(&gate, first);
    assert_success(cudaEventRecord(event, first)); /* a later record does not change the earlier wait */
    assert_success(cudaLaunchHostFunc(second, bump, &done));
    assert_success(cudaStreamSynchronize(second));
    assert_int_equal(atomic_load(&done), 1);
    assert_cuda(cudaErrorNotReady, cudaEventQuery(event));
    gate_open(&gate);
    assert_success(cudaEventSynchronize(event));
    assert_success(cudaEventQuery(event));
    assert_success(cudaEventDestroy(event));
    assert_success(cudaStreamDestroy(first));
    assert_success(cudaStreamDestroy(second));
}

static void test_an_event_on_the_legacy_stream_covers_blocking_streams(void **state)
{
    (void)state;
    cudaStream_t stream;
    cudaEvent_t event;
    struct gate gate;
    assert_success(cudaStreamCreate(&stream));
    assert_success(cudaEventCreate(&event));
    gate_close(&gate, stream);
    assert_success(cudaEventRecord(event, NULL));
    assert_cuda(cudaErrorNotReady, cudaEventQuery(event));
    gate_open(&gate);
    assert_success(cudaEventSynchronize(event));
    assert_success(cudaStreamQuery(stream));
    assert_success(cudaEventDestroy(event));
    assert_success(cudaStreamDestroy(stream));
}

static void doze(void *ms)
{
    sleep_ms((unsigned int)(uintptr_t)ms);
}

static void test_elapsed_time_is_that_of_the_work_between(void **state)
{
    (void)state;
    cudaStream_t stream;
    cudaEvent_t start, end;
    float ms = -1;
    assert_success(cudaStreamCreate(&stream));
    assert_success(cudaEventCreate(&start));
    assert_success(cudaEventCreate(&end));
    assert_success(cudaEventRecord(start, stream));
    assert_success(cudaLaunchHostFunc(stream, doze, (void *)40));
    assert_success(cudaEventRecord(end, stream));
    assert_cuda(cudaErrorNotReady, cudaEventElapsedTime(&ms, start, end));
    assert_success(cudaEventSynchronize(end));
    assert_success(cudaEventElapsedTime(&ms, start, end));
    assert_true(ms >= 40.0f && ms < 200000.0f);
    float back = 0;
    assert_success(cudaEventElapsedTime(&back, end, start));
    assert_true(back == -ms);
    assert_success(cudaEventDestroy(start));
    assert_success(cudaEventDestroy(end));
    assert_success(cudaStreamDestroy(stream));
}

static void test_elapsed_time_needs_two_timed_and_recorded_events(void **state)
{
    (void)state;
    cudaEvent_t timed, untimed, never;
    float ms;
    assert_success(cudaEventCreate(&timed));
    assert_success(cudaEventCreate(&never));
    assert_success(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
    assert_success(cudaEventRecord(timed, NULL));
    assert_success(cudaEventRecord(untimed, NULL));
    assert_success(cudaDeviceSynchronize());
    assert_cuda(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, timed, untimed));
    assert_cuda(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, timed, never));
    assert_cuda(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, never, timed));
    assert_cuda(cudaErrorInvalidValue, cudaEventElapsedTime(NULL, timed, timed));
    assert_success(cudaEventElapsedTime(&ms, timed, timed));
    assert_true(ms == 0.0f);
    assert_success(cudaEventDestroy(timed));
    assert_success(cudaEventDestroy(untimed));
    assert_success(cudaEventDestroy(never));
}

static void test_wrong_events_are_refused(void **state)
{
    (void)state;
    cudaEvent_t event;
    cudaStream_t elsewhere;
    assert_cuda(cudaErrorInvalidValue, cudaEventCreate(NULL));
    assert_cuda(cudaErrorInvalidValue, cudaEventCreateWithFlags(&event, 64));
    assert_cuda(cudaErrorInvalidValue, cudaEventCreateWithFlags(&event, cudaEventInterprocess));
    assert_success(cudaEventCreate(&event));
    assert_cuda(cudaErrorInvalidValue, cudaEventRecordWithFlags(event, NULL, 32));
    assert_success(cudaSetDevice(1));
    assert_success(cudaStreamCreate(&elsewhere));
    assert_success(cudaSetDevice(0));
    assert_cuda(cudaErrorInvalidResourceHandle, cudaEventRecord(event, elsewhere));
    assert_success(cudaStreamWaitEvent(elsewhere, event, 0)); /* waiting across devices is allowed */
    assert_success(cudaStreamDestroy(elsewhere));
    assert_success(cudaEventDestroy(event));
    assert_cuda(cudaErrorInvalidResourceHandle, cudaEventDestroy(event));
    assert_cuda(cudaErrorInvalidResourceHandle, cudaEventQuery(event));
    assert_cuda(cudaErrorInvalidResourceHandle, cudaEventSynchronize(NULL));
    assert_cuda(cudaErrorInvalidResourceHandle, cudaStreamWaitEvent(NULL, event, 0));
}

/* A ring of streams, each waiting for the one before, many times around. */
static void test_events_order_a_long_chain(void **state)
{
    (void)state;
    enum { STREAMS = 5, ROUNDS = 200 };
    cudaStream_t streams[STREAMS];
    cudaEvent_t event;
    static int value; /* not atomic: the chain is what keeps it whole */
    value = 0;
    assert_success(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    for (int i = 0; i < STREAMS; i++) {
        assert_success(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    }
    int *device;
    assert_success(cudaMalloc((void **)&device, sizeof(*device)));
    for (int k = 1; k <= STREAMS * ROUNDS; k++) {
        cudaStream_t stream = streams[k % STREAMS];
        assert_success(cudaStreamWaitEvent(stream, event, 0));
        assert_success(cudaMemcpyAsync(device, &k, sizeof(k), cudaMemcpyHostToDevice, stream));
        assert_success(cudaEventRecord(event, stream));
    }
    assert_success(cudaEventSynchronize(event));
    assert_success(cudaMemcpy(&value, device, sizeof(value), cudaMemcpyDeviceToHost));
    assert_int_equal(value, STREAMS * ROUNDS);
    for (int i = 0; i < STREAMS; i++) {
        assert_success(cudaStreamDestroy(streams[i]));
    }
    assert_success(cudaFree(device));
    assert_success(cudaEventDestroy(event));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, nothing_left, nothing_left)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_stream_waits_for_an_event_of_another),
        TEST(test_a_wait_is_for_the_record_at_the_time_of_the_call),
        TEST(test_an_event_on_the_legacy_stream_covers_blocking_streams),
        TEST(test_elapsed_time_is_that_of_the_work_between),
        TEST(test_elapsed_time_needs_two_timed_and_recorded_events),
        TEST(test_wrong_events_are_refused),
        TEST(test_events_order_a_long_chain),
    };
    return cmocka_run_group_tests_name("hostcuda.event", tests, NULL, NULL);
}
