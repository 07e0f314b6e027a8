/*
 * test_fault.c: null buffers: the call is taken, then the device faults. The rank's CUDA calls return an illegal
 * address from then on, its other communicators are freed, its peers wait. Messages of a rank to itself without a
 * receive, and messages to a rank that does not exist, are refused.
 */
#include "tests/hostnccl/nccl/harness.h"

#include <stdatomic.h>
#include <string.h>

static int x[64], y[64];
static void *const nothing;

/* The runtime after a fault: every call that would need the device says the same, and nothing takes it back. */
static void check_faulted(struct rank *r)
{
    void *memory;
    cudaEvent_t event;

    CHECK(cudaStreamSynchronize(r->stream) == cudaErrorIllegalAddress);
    CHECK(cudaGetLastError() == cudaErrorIllegalAddress);
    CHECK(cudaPeekAtLastError() == cudaErrorIllegalAddress);
    CHECK(cudaStreamQuery(r->stream) == cudaErrorIllegalAddress);
    CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
    CHECK(cudaMalloc(&memory, 8) == cudaErrorIllegalAddress);
    CHECK(cudaEventCreate(&event) == cudaErrorIllegalAddress);
    CHECK(cudaMemcpy(x, y, 8, cudaMemcpyHostToHost) == cudaErrorIllegalAddress);
    NCCL_IS(ncclUnhandledCudaError, ncclAllReduce(x, y, 1, ncclInt, ncclSum, r->comm, r->stream));
    CHECK(strstr(ncclGetLastError(r->comm), "Cuda failure 700") != NULL);
}

/*
 * Makes the last rank's call fault, and the other ranks' call wait for it. The other ranks wait until the fault has
 * happened: a rank that gave up earlier, on a busy machine, would take away the communicator that the fault needs.
 */
static void faults(struct rank *r)
{
    ncclResult_t async = ncclSuccess;

    if (r->rank != r->n - 1) {
        await(r, r->n - 1, "faulted");
        expect_hang(r);
        return;
    }
    check_faulted(r);
    tell(r, "faulted");
    NCCL(ncclCommGetAsyncError(r->comm, &async));
    NCCL(async); /* the kernel tells CUDA, not NCCL */
    NCCL(ncclCommAbort(r->comm));
    r->aborted = true;
}

static bool odd(const struct rank *r)
{
    return r->rank == r->n - 1;
}

static void case_allreduce_send(struct rank *r)
{
    NCCL(ncclAllReduce(odd(r) ? nothing : x, y, 4, ncclInt, ncclSum, r->comm, r->stream));
    faults(r);
}

static void case_allreduce_recv(struct rank *r)
{
    NCCL(ncclAllReduce(x, odd(r) ? nothing : y, 4, ncclInt, ncclSum, r->comm, r->stream));
    faults(r);
}

static void case_allgather(struct rank *r)
{
    NCCL(ncclAllGather(odd(r) ? nothing : x, y, 4, ncclInt, r->comm, r->stream));
    faults(r);
}

static void case_reducescatter(struct rank *r)
{
    NCCL(ncclReduceScatter(x, odd(r) ? nothing : y, 4, ncclInt, ncclSum, r->comm, r->stream));
    faults(r);
}

static void case_broadcast(struct rank *r)
{
    NCCL(ncclBroadcast(nothing, odd(r) ? nothing : y, 4, ncclInt, r->n - 1, r->comm, r->stream));
    faults(r);
}

/* All blocks of an all-to-all, the first one included, are part of the buffer that is not there. */
static void case_alltoall(struct rank *r)
{
    NCCL(ncclAlltoAll(odd(r) ? nothing : x, y, 4, ncclInt, r->comm, r->stream));
    faults(r);
}

static void case_send(struct rank *r)
{
    if (odd(r)) {
        NCCL(ncclSend(nothing, 4, ncclInt, 0, r->comm, r->stream));
    } else {
        NCCL(ncclRecv(y, 4, ncclInt, r->n - 1, r->comm, r->stream));
    }
    faults(r);
}

/* Data that has arrived cannot be stored, so the sender is never done. */
static void case_receive(struct rank *r)
{
    if (odd(r)) {
        NCCL(ncclRecv(nothing, 4, ncclInt, 0, r->comm, r->stream));
    } else {
        NCCL(ncclSend(x, 4, ncclInt, r->n - 1, r->comm, r->stream));
    }
    faults(r);
}

/* A receive for which nothing arrives writes nothing: it waits, as with a buffer. */
static void case_receive_of_nothing(struct rank *r)
{
    if (r->rank == 0) {
        NCCL(ncclRecv(nothing, 4, ncclInt, 1, r->comm, r->stream));
        expect_hang(r);
    }
}

/*
 * A stream whose work waits at a gate takes calls behind the one that will fault, however fast the fault is: a call
 * that came after it would be refused.
 */
static void wait_at_gate(void *gate)
{
    while (!atomic_load((atomic_bool *)gate)) {
        sleep_ms(1);
    }
}

static void case_to_itself(struct rank *r)
{
    static atomic_bool gate;

    CUDA(cudaLaunchHostFunc(r->stream, wait_at_gate, &gate));
    NCCL(ncclGroupStart());
    NCCL(ncclSend(odd(r) ? nothing : x, 4, ncclInt, r->rank, r->comm, r->stream));
    NCCL(ncclRecv(y, 4, ncclInt, r->rank, r->comm, r->stream));
    NCCL(ncclGroupEnd());
    NCCL(ncclAllReduce(x, y, 4, ncclInt, ncclSum, r->comm, r->stream));
    atomic_store(&gate, true);
    faults(r);
}

static void case_graph(struct rank *r)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;

    CUDA(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
    NCCL(ncclAllReduce(odd(r) ? nothing : x, y, 4, ncclInt, ncclSum, r->comm, r->stream));
    CUDA(cudaStreamEndCapture(r->stream, &graph));
    CUDA(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    CUDA(cudaGraphLaunch(exec, r->stream));
    faults(r);
}

static void note(void *arg)
{
    *(volatile int *)arg = 1;
}

/* A hung communicator of the same process, a host function behind the fault, and destroy: none holds the process. */
static void case_everything_stops(struct rank *r)
{
    static volatile int ran;
    static atomic_bool gate;
    ncclComm_t second;
    cudaStream_t other;

    NCCL(ncclCommSplit(r->comm, 0, r->rank, &second, NULL));
    CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    if (!odd(r)) {
        NCCL(ncclAllReduce(x, y, 4, ncclInt, ncclSum, r->comm, r->stream));
        await(r, r->n - 1, "faulted");
        expect_hang(r);
        NCCL(ncclCommAbort(second));
        return;
    }
    NCCL(ncclAllReduce(x, y, 4, ncclInt, ncclSum, second, other)); /* no other rank calls it */
    CUDA(cudaLaunchHostFunc(r->stream, wait_at_gate, &gate));
    NCCL(ncclAllReduce(nothing, y, 4, ncclInt, ncclSum, r->comm, r->stream));
    CUDA(cudaLaunchHostFunc(r->stream, note, (void *)(uintptr_t)&ran));
    atomic_store(&gate, true);
    CHECK(cudaStreamSynchronize(other) == cudaErrorIllegalAddress);
    CHECK(cudaStreamSynchronize(r->stream) == cudaErrorIllegalAddress);
    CHECK(!ran);
    tell(r, "faulted");
    NCCL_IS(ncclUnhandledCudaError, ncclCommDestroy(second));
    NCCL_IS(ncclUnhandledCudaError, ncclCommDestroy(r->comm));
    r->aborted = true;
}

/* Nothing to read or write: no buffer is needed. */
static void case_zero_count(struct rank *r)
{
    NCCL(ncclAllReduce(nothing, nothing, 0, ncclInt, ncclSum, r->comm, r->stream));
    NCCL(ncclAlltoAll(nothing, nothing, 0, ncclInt, r->comm, r->stream));
    NCCL(ncclGroupStart());
    for (int p = 0; p < r->n; p++) {
        NCCL(ncclSend(nothing, 0, ncclInt, p, r->comm, r->stream));
        NCCL(ncclRecv(nothing, 0, ncclInt, p, r->comm, r->stream));
    }
    NCCL(ncclGroupEnd());
    /* Only the root of a broadcast reads, only that of a reduce writes. */
    NCCL(ncclBroadcast(r->rank ? nothing : x, y, 4, ncclInt, 0, r->comm, r->stream));
    NCCL(ncclReduce(x, r->rank ? nothing : y, 4, ncclInt, ncclSum, 0, r->comm, r->stream));
    NCCL(ncclGather(x, r->rank ? nothing : y, 4, ncclInt, 0, r->comm, r->stream));
    NCCL(ncclScatter(r->rank ? nothing : x, y, 4, ncclInt, 0, r->comm, r->stream));
    finish(r);
}

/*
 * Half a message of a rank to itself is refused where the outermost group ends; no rank waits, and the communicator
 * stays usable.
 */
static void case_half_to_itself(struct rank *r)
{
    NCCL_IS(ncclInvalidUsage, ncclRecv(y, 1, ncclInt, r->rank, r->comm, r->stream));
    NCCL_IS(ncclInvalidUsage, ncclRecv(nothing, 0, ncclInt, r->rank, r->comm, r->stream));
    NCCL(ncclGroupStart());
    NCCL(ncclRecv(y, 1, ncclInt, r->rank, r->comm, r->stream));
    NCCL(ncclRecv(y, 1, ncclInt, r->rank, r->comm, r->stream));
    NCCL(ncclSend(x, 1, ncclInt, r->rank, r->comm, r->stream));
    NCCL_IS(ncclInvalidUsage, ncclGroupEnd());
    finish(r);
    NCCL(ncclAllReduce(x, y, 4, ncclInt, ncclSum, r->comm, r->stream));
    finish(r);
}

static void case_to_nobody(struct rank *r)
{
    NCCL_IS(ncclInvalidArgument, ncclSend(x, 1, ncclInt, r->n, r->comm, r->stream));
    NCCL_IS(ncclInvalidArgument, ncclRecv(y, 1, ncclInt, -1, r->comm, r->stream));
    NCCL(ncclGroupStart());
    NCCL(ncclSend(x, 1, ncclInt, (r->rank + 1) % r->n, r->comm, r->stream));
    NCCL_IS(ncclInvalidArgument, ncclRecv(y, 1, ncclInt, r->n, r->comm, r->stream));
    NCCL_IS(ncclInvalidArgument, ncclGroupEnd());
    finish(r);
    NCCL(ncclAllReduce(x, y, 4, ncclInt, ncclSum, r->comm, r->stream));
    finish(r);
}

static const struct rank_case CASES[] = {
    {"allreduce_send", case_allreduce_send, false},
    {"allreduce_recv", case_allreduce_recv, false},
    {"allgather", case_allgather, false},
    {"reducescatter", case_reducescatter, false},
    {"broadcast", case_broadcast, false},
    {"alltoall", case_alltoall, false},
    {"send", case_send, false},
    {"receive", case_receive, false},
    {"receive_of_nothing", case_receive_of_nothing, false},
    {"to_itself", case_to_itself, false},
    {"graph", case_graph, false},
    {"everything_stops", case_everything_stops, false},
    {"zero_count", case_zero_count, false},
    {"half_to_itself", case_half_to_itself, false},
    {"to_nobody", case_to_nobody, false},
    {0},
};

#define TEST(name, ...)                                                                                                \
    static void test_##name(void **state)                                                                              \
    {                                                                                                                  \
        static const int counts[] = {__VA_ARGS__};                                                                     \
        (void)state;                                                                                                   \
        for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {                                              \
            ranks_run(#name, counts[i], 30, NULL);                                                                     \
        }                                                                                                              \
    }

TEST(allreduce_send, 2, 3, 4, 8)
TEST(allreduce_recv, 3)
TEST(allgather, 3)
TEST(reducescatter, 2)
TEST(broadcast, 3)
TEST(alltoall, 2, 4)
TEST(send, 2)
TEST(receive, 2)
TEST(receive_of_nothing, 2)
TEST(to_itself, 2)
TEST(graph, 3)
TEST(everything_stops, 2, 3, 4, 8)
TEST(zero_count, 1, 2, 3, 4, 8)
TEST(half_to_itself, 1, 2, 4)
TEST(to_nobody, 2, 3, 4, 8)

/* Alone, a collective is a copy. */
static void test_alone(void **state)
{
    (void)state;
    ranks_run("allreduce_send", 1, 30, NULL);
    ranks_run("allgather", 1, 30, NULL);
}

#define ROW(text, name)                                                                                                \
    {                                                                                                                  \
        text, test_##name, NULL, NULL, NULL                                                                            \
    }

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ROW("an all-reduce of nothing faults, its peers hang", allreduce_send),
        ROW("an all-reduce to nowhere faults", allreduce_recv),
        ROW("an all-gather of nothing faults", allgather),
        ROW("a reduce-scatter to nowhere faults", reducescatter),
        ROW("a broadcast of nothing faults, receivers need no source", broadcast),
        ROW("an all-to-all of nothing faults, all its blocks", alltoall),
        ROW("a send of nothing faults", send),
        ROW("a receive to nowhere faults when something comes", receive),
        ROW("a receive to nowhere waits while nothing comes", receive_of_nothing),
        ROW("a message of nothing to oneself faults", to_itself),
        ROW("a captured call faults when it is launched", graph),
        ROW("one rank alone faults too", alone),
        ROW("after a fault nothing of the process runs or waits", everything_stops),
        ROW("empty messages and what a rank does not use need no buffer", zero_count),
        ROW("half a message to oneself is refused", half_to_itself),
        ROW("a peer that does not exist is refused", to_nobody),
    };

    rank_main(argc, argv, CASES);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
