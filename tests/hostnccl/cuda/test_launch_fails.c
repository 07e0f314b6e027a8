/*
 * test_launch_fails.c: a launch of a graph that finds no memory has not begun: nothing of it runs, nothing of it
 * counts, no event stands for it, and the next launch works. Each request of the launch is refused once, alone and with
 * all that follow it.
 */
#include "tests/hostnccl/cuda/gate.h"

#include "tests/faults/refuse.h"

enum { BYTES = 3 * 4096 + 100 };

static cudaStream_t stream, side;

static int make_streams(void **state)
{
    (void)state;
    return cudaStreamCreateWithFlags(&stream, cudaStreamDefault) != cudaSuccess ||
           cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking) != cudaSuccess;
}

/* What the device has given away. */
static size_t taken(void)
{
    size_t left, total;
    assert_success(cudaMemGetInfo(&left, &total));
    return total - left;
}

static uint64_t used(void)
{
    uint64_t bytes = ~UINT64_C(0);
    assert_success(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrUsedMemCurrent, &bytes));
    return bytes;
}

/* Two branches, memory that one of them fills, and an event for the outside at the end of each. */
struct branches {
    cudaEvent_t fork, join, outside[2];
    cudaGraphExec_t exec;
    atomic_int ran;
    char *memory, out;
};

static void make(struct branches *b, bool leaves)
{
    cudaGraph_t graph = NULL;
    cudaEvent_t *events[] = {&b->fork, &b->join, &b->outside[0], &b->outside[1]};
    *b = (struct branches){.out = 1};
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
        assert_success(cudaEventCreateWithFlags(events[i], cudaEventDisableTiming));
    }
    assert_success(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    assert_success(cudaMallocAsync((void **)&b->memory, BYTES, stream));
    assert_success(cudaEventRecord(b->fork, stream));
    assert_success(cudaStreamWaitEvent(side, b->fork, 0));
    assert_success(cudaLaunchHostFunc(side, bump, &b->ran));
    assert_success(cudaEventRecordWithFlags(b->outside[0], side, cudaEventRecordExternal));
    assert_success(cudaMemsetAsync(b->memory, 7, BYTES, stream));
    assert_success(cudaMemcpyAsync(&b->out, b->memory + BYTES - 1, 1, cudaMemcpyDeviceToHost, stream));
    assert_success(cudaEventRecord(b->join, side));
    assert_success(cudaStreamWaitEvent(stream, b->join, 0));
    if (!leaves) {
        assert_success(cudaFreeAsync(b->memory, stream));
    }
    assert_success(cudaEventRecordWithFlags(b->outside[1], stream, cudaEventRecordExternal));
    assert_success(cudaStreamEndCapture(stream, &graph));
    assert_success(cudaGraphInstantiate(&b->exec, graph, 0));
    assert_success(cudaGraphDestroy(graph));
}

static void destroy(struct branches *b)
{
    cudaEvent_t events[] = {b->fork, b->join, b->outside[0], b->outside[1]};
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
        assert_success(cudaEventDestroy(events[i]));
    }
    assert_success(cudaGraphExecDestroy(b->exec));
}

/* The n-th request of a launch is refused. False: it makes no more than n. */
static bool fails(struct branches *b, int64_t n, bool once, size_t before)
{
    refuse_begin(n, once);
    cudaError_t error = cudaGraphLaunch(b->exec, stream);
    bool was_refused = refusing.asked > n;
    refuse_end();
    assert_cuda(was_refused ? cudaErrorMemoryAllocation : cudaSuccess, error);
    if (was_refused) {
        cudaGetLastError();
        assert_int_equal(used(), 0);
        assert_int_equal(taken(), before);
        assert_success(cudaEventQuery(b->outside[0]));
        assert_success(cudaEventQuery(b->outside[1]));
        assert_success(cudaDeviceSynchronize());
        assert_int_equal(b->out, 1);
        assert_int_equal(b->ran, 0);
    }
    return was_refused;
}

static void refuse_each(bool once, bool leaves)
{
    struct branches b;
    size_t before = taken();
    int64_t n = 0;
    make(&b, leaves);
    while (fails(&b, n, once, before)) {
        n++;
    }
    assert_in_range(n, 10, 200); /* one launch and its marks, and each step's operation */
    assert_success(cudaDeviceSynchronize());
    assert_int_equal(b.out, 7);
    assert_int_equal(b.ran, 1);
    if (leaves) {
        assert_int_equal(used(), BYTES);
        assert_success(cudaFree(b.memory));
    }
    assert_success(cudaGraphLaunch(b.exec, stream));
    assert_success(cudaDeviceSynchronize());
    assert_int_equal(b.ran, 2);
    if (leaves) {
        assert_success(cudaFree(b.memory));
    }
    assert_int_equal(used(), 0);
    assert_int_equal(taken(), before);
    destroy(&b);
}

static void test_a_launch_that_finds_no_memory_has_not_begun(void **state)
{
    (void)state;
    for (int once = 0; once < 2; once++) {
        refuse_each(once == 1, false);
        refuse_each(once == 1, true);
    }
}

/* Behind work that is still to run, and behind the launch before, whose end the next one waits for. */
static void test_a_launch_that_fails_leaves_the_one_before_alone(void **state)
{
    (void)state;
    struct gate gate;
    struct branches b;
    make(&b, false);
    gate_close(&gate, stream);
    assert_success(cudaGraphLaunch(b.exec, stream));
    for (int64_t n = 0; n < 12; n++) {
        refuse_begin(n, false);
        assert_cuda(cudaErrorMemoryAllocation, cudaGraphLaunch(b.exec, stream));
        refuse_end();
        cudaGetLastError();
        assert_cuda(cudaErrorNotReady, cudaEventQuery(b.outside[1])); /* it stands for the launch before */
        cudaGetLastError();
    }
    assert_int_equal(used(), BYTES);
    assert_success(cudaGraphLaunch(b.exec, stream));
    gate_open(&gate);
    assert_success(cudaDeviceSynchronize());
    assert_int_equal(b.ran, 2);
    assert_int_equal(used(), 0);
    destroy(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_a_launch_that_finds_no_memory_has_not_begun, nothing_left),
        cmocka_unit_test_teardown(test_a_launch_that_fails_leaves_the_one_before_alone, nothing_left),
    };
    refuse_in("cudaGraphLaunch");
    return cmocka_run_group_tests(tests, make_streams, NULL);
}
