/* test_stream.c: streams: order, asynchrony, the implicit order with the legacy stream, life and death. */
#include "tests/hostnccl/cuda/gate.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

enum { STEPS = 200, MANY = 256 };

static int log_of[STEPS];
static int logged;

static void log_step(void *step)
{
    log_of[logged++] = (int)(intptr_t)step;
}

static void test_a_stream_runs_its_work_in_order(void **state)
{
    (void)state;
    cudaStream_t stream;
    logged = 0;
    assert_success(cudaStreamCreate(&stream));
    for (intptr_t i = 0; i < STEPS; i++) {
        assert_success(cudaLaunchHostFunc(stream, log_step, (void *)i));
    }
    assert_success(cudaStreamSynchronize(stream));
    assert_int_equal(logged, STEPS);
    for (int i = 0; i < STEPS; i++) {
        assert_int_equal(log_of[i], i);
    }
    assert_success(cudaStreamDestroy(stream));
}

static void test_a_blocked_stream_blocks_neither_caller_nor_other_streams(void **state)
{
    (void)state;
    cudaStream_t blocked, other;
    struct gate gate;
    atomic_int behind = 0, beside = 0;
    assert_success(cudaStreamCreateWithFlags(&blocked, cudaStreamNonBlocking));
    assert_success(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    gate_close(&gate, blocked);
    assert_success(cudaLaunchHostFunc(blocked, bump, &behind));
    assert_success(cudaLaunchHostFunc(other, bump, &beside));
    assert_success(cudaStreamSynchronize(other));
    assert_int_equal(atomic_load(&beside), 1);
    assert_int_equal(atomic_load(&behind), 0);
    assert_cuda(cudaErrorNotReady, cudaStreamQuery(blocked));
    assert_success(cudaStreamQuery(other));
    gate_open(&gate);
    assert_success(cudaStreamSynchronize(blocked));
    assert_int_equal(atomic_load(&behind), 1);
    assert_success(cudaStreamQuery(blocked));
    assert_success(cudaStreamDestroy(blocked));
    assert_success(cudaStreamDestroy(other));
}

static void test_legacy_stream_waits_for_blocking_streams(void **state)
{
    (void)state;
    cudaStream_t stream;
    struct gate gate;
    atomic_int done = 0;
    assert_success(cudaStreamCreate(&stream));
    gate_close(&gate, stream);
    assert_success(cudaLaunchHostFunc(0, bump, &done));
    sleep_ms(30);
    assert_int_equal(atomic_load(&done), 0);
    assert_cuda(cudaErrorNotReady, cudaStreamQuery(0));
    gate_open(&gate);
    assert_success(cudaStreamSynchronize(0));
    assert_int_equal(atomic_load(&done), 1);
    assert_success(cudaStreamDestroy(stream));
}

static void test_blocking_streams_wait_for_the_legacy_stream(void **state)
{
    (void)state;
    cudaStream_t first, second;
    struct gate gate;
    atomic_int done = 0;
    assert_success(cudaStreamCreate(&first));
    assert_success(cudaStreamCreate(&second));
    gate_close(&gate, cudaStreamLegacy);
    assert_success(cudaLaunchHostFunc(first, bump, &done));
    assert_success(cudaLaunchHostFunc(second, bump, &done));
    sleep_ms(30);
    assert_int_equal(atomic_load(&done), 0);
    gate_open(&gate);
    assert_success(cudaStreamSynchronize(first));
    assert_success(cudaStreamSynchronize(second));
    assert_int_equal(atomic_load(&done), 2);
    assert_success(cudaStreamDestroy(first));
    assert_success(cudaStreamDestroy(second));
}

/* first -> legacy -> second: the legacy work stands between the two as a barrier. */
static void test_legacy_work_is_a_barrier_between_blocking_streams(void **state)
{
    (void)state;
    cudaStream_t first, second;
    struct gate gate;
    logged = 0;
    assert_success(cudaStreamCreate(&first));
    assert_success(cudaStreamCreate(&second));
    gate_close(&gate, first);
    assert_success(cudaLaunchHostFunc(first, log_step, (void *)1));
    assert_success(cudaLaunchHostFunc(NULL, log_step, (void *)2));
    assert_success(cudaLaunchHostFunc(second, log_step, (void *)3));
    gate_open(&gate);
    assert_success(cudaStreamSynchronize(second));
    assert_int_equal(logged, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(log_of[i], i + 1);
    }
    assert_success(cudaStreamDestroy(first));
    assert_success(cudaStreamDestroy(second));
}

/* A wait for an event is work of the stream that waits: the legacy order holds for it too, both ways. */
static void test_a_wait_for_an_event_takes_part_in_the_legacy_order(void **state)
{
    (void)state;
    for (int legacy_waits = 0; legacy_waits < 2; legacy_waits++) {
        cudaStream_t apart, blocking;
        cudaEvent_t event;
        struct gate gate;
        atomic_int done = 0;
        assert_success(cudaStreamCreateWithFlags(&apart, cudaStreamNonBlocking));
        assert_success(cudaStreamCreate(&blocking));
        assert_success(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        gate_close(&gate, apart);
        assert_success(cudaEventRecord(event, apart));
        assert_success(cudaStreamWaitEvent(legacy_waits ? 0 : blocking, event, 0));
        assert_success(cudaLaunchHostFunc(legacy_waits ? blocking : 0, bump, &done));
        sleep_ms(30);
        assert_int_equal(atomic_load(&done), 0);
        gate_open(&gate);
        assert_success(cudaDeviceSynchronize());
        assert_int_equal(atomic_load(&done), 1);
        assert_success(cudaEventDestroy(event));
        assert_success(cudaStreamDestroy(apart));
        assert_success(cudaStreamDestroy(blocking));
    }
}

static void test_non_blocking_streams_ignore_the_legacy_stream(void **state)
{
    (void)state;
    cudaStream_t stream;
    struct gate gate;
    atomic_int done = 0;
    assert_success(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    gate_close(&gate, NULL);
    assert_success(cudaLaunchHostFunc(stream, bump, &done));
    assert_success(cudaStreamSynchronize(stream));
    assert_int_equal(atomic_load(&done), 1);
    gate_open(&gate);
    assert_success(cudaStreamSynchronize(NULL));
    gate_close(&gate, stream);
    assert_success(cudaLaunchHostFunc(NULL, bump, &done));
    assert_success(cudaStreamSynchronize(NULL));
    assert_int_equal(atomic_load(&done), 2);
    gate_open(&gate);
    assert_success(cudaStreamSynchronize(stream)); /* the gate is gone when this function returns */
    assert_success(cudaStreamDestroy(stream));
}

static void test_legacy_streams_of_two_devices_are_apart(void **state)
{
    (void)state;
    struct gate gate;
    atomic_int done = 0;
    gate_close(&gate, NULL);
    assert_success(cudaSetDevice(1));
    assert_success(cudaLaunchHostFunc(NULL, bump, &done));
    assert_success(cudaDeviceSynchronize());
    assert_int_equal(atomic_load(&done), 1);
    assert_success(cudaSetDevice(0));
    gate_open(&gate);
    assert_success(cudaDeviceSynchronize());
}

static void test_device_synchronize_waits_for_every_stream(void **state)
{
    (void)state;
    cudaStream_t streams[8];
    atomic_int done = 0;
    for (int i = 0; i < 8; i++) {
        assert_success(cudaStreamCreateWithFlags(&streams[i], i & 1 ? cudaStreamNonBlocking : cudaStreamDefault));
        for (int k = 0; k < 20; k++) {
            assert_success(cudaLaunchHostFunc(streams[i], bump, &done));
        }
    }
    assert_success(cudaDeviceSynchronize());
    assert_int_equal(atomic_load(&done), 160);
    for (int i = 0; i < 8; i++) {
        assert_success(cudaStreamDestroy(streams[i]));
    }
}

static void test_destroy_returns_at_once_and_the_work_still_runs(void **state)
{
    (void)state;
    cudaStream_t stream;
    struct gate gate;
    atomic_int done = 0;
    assert_success(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    gate_close(&gate, stream);
    assert_success(cudaLaunchHostFunc(stream, bump, &done));
    uint64_t before = now_ms();
    assert_success(cudaStreamDestroy(stream));
    assert_true(now_ms() - before < 200000); /* the wait has an end */
    assert_int_equal(atomic_load(&done), 0);
    assert_cuda(cudaErrorInvalidResourceHandle, cudaStreamQuery(stream));
    gate_open(&gate);
    assert_success(cudaDeviceSynchronize());
    assert_int_equal(atomic_load(&done), 1);
}

/* A worker takes no signal of the process: a program that waits for one must get it, however many streams there are. */
static void test_workers_leave_signals_to_the_program(void **state)
{
    (void)state;
    cudaStream_t stream;
    atomic_int done = 0;
    sigset_t signals, before;
    assert_success(cudaStreamCreate(&stream));
    assert_success(cudaLaunchHostFunc(stream, bump, &done));
    assert_success(cudaStreamSynchronize(stream));
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &signals, &before);
    kill(getpid(), SIGUSR1); /* would end the process if another thread could take it */
    assert_int_equal(sigtimedwait(&signals, NULL, &(struct timespec){.tv_sec = 5}), SIGUSR1);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    assert_success(cudaStreamDestroy(stream));
}

static void test_many_streams_work_at_the_same_time(void **state)
{
    (void)state;
    static cudaStream_t streams[MANY];
    static struct gate gates[MANY];
    atomic_int done = 0;
    for (int i = 0; i < MANY; i++) {
        assert_success(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
        gate_close(&gates[i], streams[i]);
        assert_success(cudaLaunchHostFunc(streams[i], bump, &done));
    }
    for (int i = MANY - 1; i >= 0; i--) {
        gate_open(&gates[i]);
        assert_success(cudaStreamSynchronize(streams[i]));
        assert_int_equal(atomic_load(&done), MANY - i);
    }
    for (int i = 0; i < MANY; i++) {
        assert_success(cudaStreamDestroy(streams[i]));
    }
}

static void test_flags_priority_device_and_id_are_kept(void **state)
{
    (void)state;
    cudaStream_t stream, other;
    unsigned int flags;
    int priority, least, greatest, device;
    unsigned long long id, other_id;
    assert_success(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    assert_true(greatest < least);
    assert_success(cudaSetDevice(3));
    assert_success(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest - 10));
    assert_success(cudaSetDevice(0));
    assert_success(cudaStreamCreate(&other));
    assert_success(cudaStreamGetFlags(stream, &flags));
    assert_int_equal(flags, cudaStreamNonBlocking);
    assert_success(cudaStreamGetPriority(stream, &priority));
    assert_int_equal(priority, greatest);
    assert_success(cudaStreamGetDevice(stream, &device));
    assert_int_equal(device, 3);
    assert_success(cudaStreamGetId(stream, &id));
    assert_success(cudaStreamGetId(other, &other_id));
    assert_true(id != other_id);
    assert_success(cudaStreamDestroy(stream));
    assert_success(cudaStreamDestroy(other));
}

static struct {
    cudaStream_t stream;
    cudaError_t status;
} called;

static void on_callback(cudaStream_t stream, cudaError_t status, void *data)
{
    called.stream = stream;
    called.status = status;
    bump(data);
}

static void test_callback_is_given_its_stream_and_status(void **state)
{
    (void)state;
    cudaStream_t stream;
    atomic_int done = 0;
    assert_success(cudaStreamCreate(&stream));
    assert_success(cudaStreamAddCallback(stream, on_callback, &done, 0));
    assert_success(cudaStreamSynchronize(stream));
    assert_int_equal(atomic_load(&done), 1);
    assert_ptr_equal(called.stream, stream);
    assert_success(called.status);
    assert_cuda(cudaErrorInvalidValue, cudaStreamAddCallback(stream, on_callback, &done, 1));
    assert_cuda(cudaErrorInvalidValue, cudaStreamAddCallback(stream, NULL, &done, 0));
    assert_success(cudaStreamDestroy(stream));
}

static cudaError_t inside[4];

static void call_the_runtime(void *stream)
{
    int device;
    void *memory;
    inside[0] = cudaStreamSynchronize(stream);
    inside[1] = cudaMalloc(&memory, 16);
    inside[2] = cudaLaunchHostFunc(stream, call_the_runtime, stream);
    inside[3] = cudaGetDevice(&device);
}

static void test_host_functions_may_not_call_what_waits_or_enqueues(void **state)
{
    (void)state;
    cudaStream_t stream;
    assert_success(cudaStreamCreate(&stream));
    assert_success(cudaLaunchHostFunc(stream, call_the_runtime, stream));
    assert_success(cudaStreamSynchronize(stream));
    for (int i = 0; i < 3; i++) {
        assert_cuda(cudaErrorNotPermitted, inside[i]);
    }
    assert_success(inside[3]);
    assert_success(cudaGetLastError()); /* the worker's error is not ours */
    assert_success(cudaStreamDestroy(stream));
}

static void test_wrong_handles_and_arguments_are_refused(void **state)
{
    (void)state;
    int not_a_stream = 0;
    cudaStream_t stream;
    unsigned int flags;
    assert_cuda(cudaErrorInvalidValue, cudaStreamCreate(NULL));
    assert_cuda(cudaErrorInvalidValue, cudaStreamCreateWithFlags(&stream, 8));
    assert_success(cudaStreamCreate(&stream));
    assert_cuda(cudaErrorInvalidValue, cudaLaunchHostFunc(stream, NULL, NULL));
    assert_cuda(cudaErrorInvalidValue, cudaStreamGetFlags(stream, NULL));
    assert_success(cudaStreamDestroy(stream));
    assert_cuda(cudaErrorInvalidResourceHandle, cudaStreamDestroy(stream));
    assert_cuda(cudaErrorInvalidResourceHandle, cudaStreamSynchronize(stream));
    assert_cuda(cudaErrorInvalidResourceHandle, cudaStreamDestroy((cudaStream_t)&not_a_stream));
    assert_cuda(cudaErrorInvalidResourceHandle, cudaStreamGetFlags((cudaStream_t)&not_a_stream, &flags));
    assert_cuda(cudaErrorInvalidResourceHandle, cudaStreamDestroy(NULL));
    assert_cuda(cudaErrorInvalidResourceHandle, cudaStreamDestroy(cudaStreamLegacy));
    assert_cuda(cudaErrorInvalidResourceHandle, cudaPeekAtLastError());
    assert_cuda(cudaErrorInvalidResourceHandle, cudaGetLastError());
    assert_success(cudaGetLastError());
}

struct thread_case {
    struct gate *gate; /* or NULL */
    atomic_int *done;
    unsigned long long id;
};

static void *use_own_stream(void *argument)
{
    struct thread_case *test = argument;
    if (test->gate) {
        cudaLaunchHostFunc(cudaStreamPerThread, gate_hold, test->gate);
    }
    cudaLaunchHostFunc(cudaStreamPerThread, bump, test->done);
    cudaStreamGetId(cudaStreamPerThread, &test->id);
    if (!test->gate) {
        cudaStreamSynchronize(cudaStreamPerThread);
    }
    return NULL;
}

static void test_each_thread_has_a_default_stream_of_its_own(void **state)
{
    (void)state;
    struct gate gate;
    atomic_int held = 0, freely = 0;
    struct thread_case blocked = {&gate, &held, 0}, other = {NULL, &freely, 0};
    pthread_t first, second;
    sem_init(&gate.sem, 0, 0);
    pthread_create(&first, NULL, use_own_stream, &blocked);
    pthread_join(first, NULL); /* the thread's stream outlives the thread until it is drained */
    pthread_create(&second, NULL, use_own_stream, &other);
    pthread_join(second, NULL);
    assert_int_equal(atomic_load(&held), 0);
    assert_int_equal(atomic_load(&freely), 1);
    assert_true(blocked.id != other.id);
    gate_open(&gate);
    assert_success(cudaDeviceSynchronize());
    assert_int_equal(atomic_load(&held), 1);
}

static void *submit_and_synchronize(void *argument)
{
    cudaStream_t *streams = argument;
    atomic_int done = 0;
    for (int i = 0; i < STEPS; i++) {
        cudaStream_t stream = i % 3 == 2 ? NULL : streams[i % 3];
        cudaLaunchHostFunc(stream, bump, &done);
        if (i % 16 == 0) {
            cudaStreamSynchronize(stream);
        }
    }
    cudaDeviceSynchronize();
    return (void *)(intptr_t)atomic_load(&done);
}

static void test_threads_may_share_streams(void **state)
{
    (void)state;
    cudaStream_t streams[2];
    pthread_t threads[6];
    assert_success(cudaStreamCreate(&streams[0]));
    assert_success(cudaStreamCreateWithFlags(&streams[1], cudaStreamNonBlocking));
    for (int i = 0; i < 6; i++) {
        pthread_create(&threads[i], NULL, submit_and_synchronize, streams);
    }
    for (int i = 0; i < 6; i++) {
        void *done;
        pthread_join(threads[i], &done);
        assert_int_equal((intptr_t)done, STEPS);
    }
    assert_success(cudaStreamDestroy(streams[0]));
    assert_success(cudaStreamDestroy(streams[1]));
}

static void test_streams_are_not_captured(void **state)
{
    (void)state;
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaStream_t stream;
    assert_success(cudaStreamCreate(&stream));
    assert_success(cudaStreamIsCapturing(stream, &status));
    assert_int_equal(status, cudaStreamCaptureStatusNone);
#if CUDART_VERSION >= 13000
    status = cudaStreamCaptureStatusActive;
    assert_success(cudaStreamGetCaptureInfo(stream, &status, NULL, NULL, NULL, NULL, NULL));
    assert_int_equal(status, cudaStreamCaptureStatusNone);
#endif
    assert_success(cudaThreadExchangeStreamCaptureMode(&mode));
    assert_int_equal(mode, cudaStreamCaptureModeGlobal);
    assert_success(cudaThreadExchangeStreamCaptureMode(&mode));
    assert_int_equal(mode, cudaStreamCaptureModeRelaxed);
    assert_success(cudaStreamDestroy(stream));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, nothing_left, nothing_left)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_stream_runs_its_work_in_order),
        TEST(test_a_blocked_stream_blocks_neither_caller_nor_other_streams),
        TEST(test_legacy_stream_waits_for_blocking_streams),
        TEST(test_blocking_streams_wait_for_the_legacy_stream),
        TEST(test_legacy_work_is_a_barrier_between_blocking_streams),
        TEST(test_a_wait_for_an_event_takes_part_in_the_legacy_order),
        TEST(test_non_blocking_streams_ignore_the_legacy_stream),
        TEST(test_legacy_streams_of_two_devices_are_apart),
        TEST(test_device_synchronize_waits_for_every_stream),
        TEST(test_destroy_returns_at_once_and_the_work_still_runs),
        TEST(test_workers_leave_signals_to_the_program),
        TEST(test_many_streams_work_at_the_same_time),
        TEST(test_flags_priority_device_and_id_are_kept),
        TEST(test_callback_is_given_its_stream_and_status),
        TEST(test_host_functions_may_not_call_what_waits_or_enqueues),
        TEST(test_wrong_handles_and_arguments_are_refused),
        TEST(test_each_thread_has_a_default_stream_of_its_own),
        TEST(test_threads_may_share_streams),
        TEST(test_streams_are_not_captured),
    };
    return cmocka_run_group_tests_name("hostcuda.stream", tests, NULL, NULL);
}
