/*
 * test_environment.c: what the environment and fork decide. Each case runs in a child of its own, because the runtime
 * reads its environment once; the parent never calls CUDA, so its children may.
 */
#include "tests/hostnccl/cuda/gate.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LIMIT_S = 280 };

/* In a child: leaves with the line number when the condition does not hold. */
#define expect(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);                              \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

/* Runs the case in a child, with what it writes to standard error in text; its exit status must be 0. */
static void in_child(void (*body)(void), char *text, size_t size)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        alarm(LIMIT_S); /* a hang is a failure */
        if (text) {
            dup2(ends[1], STDERR_FILENO);
        }
        close(ends[0]);
        close(ends[1]);
        body();
        exit(0); /* with destructors: leaving must work as well */
    }
    close(ends[1]);
    size_t length = 0;
    for (ssize_t n = 1; text && n > 0 && length + 1 < size;) {
        n = read(ends[0], text + length, size - 1 - length);
        length += n > 0 ? (size_t)n : 0;
    }
    if (text) {
        text[length] = 0;
    }
    close(ends[0]);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void no_devices(void)
{
    int count = 5;
    void *memory;
    setenv("HOSTCUDA_DEVICES", "0", 1);
    expect(cudaGetDeviceCount(&count) == cudaErrorNoDevice);
    expect(count == 0);
    expect(cudaSetDevice(0) == cudaErrorNoDevice);
    expect(cudaMalloc(&memory, 8) == cudaErrorNoDevice);
    expect(cudaStreamSynchronize(NULL) == cudaErrorNoDevice);
}

static void three_devices(void)
{
    int count = 0;
    setenv("HOSTCUDA_DEVICES", "3", 1);
    expect(cudaGetDeviceCount(&count) == cudaSuccess);
    expect(count == 3);
    expect(cudaSetDevice(2) == cudaSuccess);
    expect(cudaSetDevice(3) == cudaErrorInvalidDevice);
}

static void nonsense(void)
{
    int count = 0;
    setenv("HOSTCUDA_DEVICES", "many", 1);
    expect(cudaGetDeviceCount(&count) == cudaSuccess);
    expect(count == 8);
}

static void visible(void)
{
    int count = 0;
    char bus[16];
    setenv("CUDA_VISIBLE_DEVICES", "3,1,99,0", 1);
    expect(cudaGetDeviceCount(&count) == cudaSuccess);
    expect(count == 2); /* the list ends at the first entry that is no device */
    expect(cudaDeviceGetPCIBusId(bus, sizeof(bus), 0) == cudaSuccess);
    expect(!strcmp(bus, "0000:13:00.0"));
    expect(cudaDeviceGetPCIBusId(bus, sizeof(bus), 1) == cudaSuccess);
    expect(!strcmp(bus, "0000:11:00.0"));
}

static void test_the_number_of_devices_is_chosen(void **state)
{
    (void)state;
    char text[512];
    in_child(no_devices, NULL, 0);
    in_child(three_devices, NULL, 0);
    in_child(visible, NULL, 0);
    in_child(nonsense, text, sizeof(text));
    assert_non_null(strstr(text, "HOSTCUDA_DEVICES=many"));
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1); /* one line */
}

static void forks_while_in_use(void)
{
    static struct gate gate;
    static atomic_int is_held;
    cudaStream_t stream;
    cudaEvent_t event;
    void *memory;
    expect(cudaStreamCreate(&stream) == cudaSuccess);
    expect(cudaEventCreate(&event) == cudaSuccess);
    expect(cudaMalloc(&memory, 64) == cudaSuccess);
    sem_init(&gate.sem, 0, 0);
    expect(cudaLaunchHostFunc(stream, bump, &is_held) == cudaSuccess);
    expect(cudaLaunchHostFunc(stream, gate_hold, &gate) == cudaSuccess);
    expect(cudaEventRecord(event, stream) == cudaSuccess);
    /* A sanitizer's allocator does not survive a fork while another thread is inside it: let the worker fall asleep. */
    while (!atomic_load(&is_held)) {
        sleep_ms(1);
    }
    sleep_ms(50);
    pid_t pid = fork();
    if (!pid) {
        int count;
        alarm(LIMIT_S);
        expect(cudaGetDeviceCount(&count) == cudaErrorInitializationError);
        expect(cudaStreamSynchronize(stream) == cudaErrorInitializationError);
        expect(cudaEventSynchronize(event) == cudaErrorInitializationError);
        expect(cudaFree(memory) == cudaErrorInitializationError);
        expect(cudaLaunchHostFunc(stream, gate_hold, &gate) == cudaErrorInitializationError);
        expect(cudaDeviceSynchronize() == cudaErrorInitializationError);
        expect(cudaGetLastError() == cudaErrorInitializationError);
        exit(0);
    }
    int status;
    expect(waitpid(pid, &status, 0) == pid);
    expect(status == 0);
    gate_open(&gate);
    expect(cudaStreamSynchronize(stream) == cudaSuccess);
    expect(cudaFree(memory) == cudaSuccess);
}

static void test_a_forked_child_is_refused_and_the_parent_goes_on(void **state)
{
    (void)state;
    in_child(forks_while_in_use, NULL, 0);
}

static void leaves_with_blocked_streams(void)
{
    static struct gate gates[8];
    cudaStream_t stream;
    for (int i = 0; i < 8; i++) {
        expect(cudaStreamCreateWithFlags(&stream, i & 1) == cudaSuccess);
        sem_init(&gates[i].sem, 0, 0);
        expect(cudaLaunchHostFunc(stream, gate_hold, &gates[i]) == cudaSuccess);
    }
    expect(cudaMemsetAsync(NULL, 0, 0, NULL) == cudaSuccess);
}

static void rest(void *unused)
{
    (void)unused;
    sleep_ms(1);
}

static void leaves_with_running_streams(void)
{
    cudaStream_t stream;
    for (int i = 0; i < 8; i++) {
        expect(cudaStreamCreate(&stream) == cudaSuccess);
        for (int k = 0; k < 2000; k++) {
            expect(cudaLaunchHostFunc(stream, rest, NULL) == cudaSuccess);
        }
    }
}

static void test_a_process_may_leave_at_any_time(void **state)
{
    (void)state;
    in_child(leaves_with_blocked_streams, NULL, 0);
    in_child(leaves_with_running_streams, NULL, 0);
}

static uint64_t cpu_ms(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * 1000u + (uint64_t)used.tv_nsec / 1000000u;
}

static void open_later(void *gate)
{
    sleep_ms(500);
    gate_open(gate);
}

static void waits_in_every_way(void)
{
    static struct gate gate;
    cudaStream_t held, opener, follower, idle;
    cudaEvent_t event;
    expect(cudaStreamCreateWithFlags(&held, cudaStreamNonBlocking) == cudaSuccess);
    expect(cudaStreamCreateWithFlags(&opener, cudaStreamNonBlocking) == cudaSuccess);
    expect(cudaStreamCreateWithFlags(&follower, cudaStreamNonBlocking) == cudaSuccess);
    expect(cudaStreamCreateWithFlags(&idle, cudaStreamNonBlocking) == cudaSuccess);
    expect(cudaEventCreate(&event) == cudaSuccess);
    expect(cudaLaunchHostFunc(idle, rest, NULL) == cudaSuccess);
    sem_init(&gate.sem, 0, 0);
    expect(cudaLaunchHostFunc(held, gate_hold, &gate) == cudaSuccess);
    expect(cudaEventRecord(event, held) == cudaSuccess);
    expect(cudaStreamWaitEvent(follower, event, 0) == cudaSuccess);
    uint64_t wall = now_ms(), cpu = cpu_ms();
    expect(cudaLaunchHostFunc(opener, open_later, &gate) == cudaSuccess);
    expect(cudaStreamSynchronize(follower) == cudaSuccess);
    expect(now_ms() - wall >= 490);
    expect(cpu_ms() - cpu <= 100); /* a spinning waiter would use 500 */
}

static void test_waiting_takes_no_processor_time(void **state)
{
    (void)state;
    in_child(waits_in_every_way, NULL, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_number_of_devices_is_chosen),
        cmocka_unit_test(test_a_forked_child_is_refused_and_the_parent_goes_on),
        cmocka_unit_test(test_a_process_may_leave_at_any_time),
        cmocka_unit_test(test_waiting_takes_no_processor_time),
    };
    unsetenv("HOSTCUDA_DEVICES");
    unsetenv("CUDA_VISIBLE_DEVICES");
    return cmocka_run_group_tests_name("hostcuda.environment", tests, NULL, NULL);
}
