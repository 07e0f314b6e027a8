/* CUDA graphs: captured calls, launches as collective acts, mixing with other work, lifetimes, and what hangs or is refused. */
#include "tests/hostnccl/harness.h"

#include <pthread.h>
#include <stdlib.h>

static cudaGraph_t end_capture(cudaStream_t stream)
{
    cudaGraph_t graph = NULL;

    CUDA(cudaStreamEndCapture(stream, &graph));
    CHECK(graph != NULL);
    return graph;
}

static cudaGraphExec_t make_exec(cudaGraph_t graph)
{
    cudaGraphExec_t exec = NULL;

    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CUDA(cudaGraphDestroy(graph)); /* what was made from it lives on */
    return exec;
}

/* A graph with one sum of *in over all ranks into *out. */
static cudaGraphExec_t capture_sum(struct rank *r, const int *in, int *out)
{
    CUDA(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
    NCCL(ncclAllReduce(in, out, 1, ncclInt, ncclSum, r->comm, r->stream));
    return make_exec(end_capture(r->stream));
}

static void destroy(struct rank *r, cudaGraphExec_t exec)
{
    CUDA(cudaStreamSynchronize(r->stream));
    CUDA(cudaGraphExecDestroy(exec));
}

/* Nothing happens at capture; each launch sums what is there then. */
static void case_replay(struct rank *r)
{
    int in = r->rank, out = -1;
    cudaGraphExec_t exec = capture_sum(r, &in, &out);

    CUDA(cudaStreamSynchronize(r->stream));
    CHECK(out == -1);
    for (int round = 0; round < 5; round++) {
        in = r->rank + round;
        CUDA(cudaGraphLaunch(exec, r->stream));
        CUDA(cudaStreamSynchronize(r->stream));
        CHECK(out == r->n * (r->n - 1) / 2 + round * r->n);
    }
    destroy(r, exec);
}

/* Work before, inside and after a graph, on two streams, runs in the order of its launch. */
static void case_mixed(struct rank *r)
{
    int in = 1, out[6] = {0};
    cudaStream_t other;
    cudaGraphExec_t exec = capture_sum(r, &in, &out[1]);

    CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    NCCL(ncclAllReduce(&in, &out[0], 1, ncclInt, ncclSum, r->comm, r->stream));
    CUDA(cudaGraphLaunch(exec, r->stream));
    NCCL(ncclAllReduce(&in, &out[2], 1, ncclInt, ncclSum, r->comm, r->stream));
    CUDA(cudaGraphLaunch(exec, other));
    NCCL(ncclAllReduce(&in, &out[3], 1, ncclInt, ncclSum, r->comm, r->stream));
    CUDA(cudaStreamSynchronize(r->stream));
    CUDA(cudaStreamSynchronize(other));
    for (int i = 0; i < 4; i++) {
        CHECK(out[i] == r->n);
    }
    CUDA(cudaStreamDestroy(other));
    destroy(r, exec);
}

/* A ring of sends and receives, and a group with a collective, replayed. */
static void case_groups(struct rank *r)
{
    int in = 100 + r->rank, left = -1, all = -1, right = (r->rank + 1) % r->n, before = (r->rank + r->n - 1) % r->n;

    CUDA(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
    NCCL(ncclGroupStart());
    NCCL(ncclSend(&in, 1, ncclInt, right, r->comm, r->stream));
    NCCL(ncclRecv(&left, 1, ncclInt, before, r->comm, r->stream));
    NCCL(ncclAllReduce(&in, &all, 1, ncclInt, ncclMax, r->comm, r->stream));
    NCCL(ncclGroupEnd());
    cudaGraphExec_t exec = make_exec(end_capture(r->stream));
    for (int round = 0; round < 3; round++) {
        left = all = -1;
        CUDA(cudaGraphLaunch(exec, r->stream));
        CUDA(cudaStreamSynchronize(r->stream));
        CHECK(left == 100 + before && all == 100 + r->n - 1);
    }
    destroy(r, exec);
}

static const struct rank_case cases[] = {
    {"replay", case_replay, false}, {"mixed", case_mixed, false}, {"groups", case_groups, false}, {NULL, NULL, false}};

static void test_each_launch_communicates(void **state)
{
    (void)state;
    ranks_run("replay", 4, 30, NULL);
    threads_run(cases, "replay", 3);
}

static void test_captured_and_other_work_mix_in_order(void **state)
{
    (void)state;
    ranks_run("mixed", 3, 30, NULL);
    threads_run(cases, "mixed", 2);
}

static void test_groups_and_point_to_point_replay(void **state)
{
    (void)state;
    ranks_run("groups", 4, 30, NULL);
}

int main(int argc, char **argv)
{
    rank_main(argc, argv, cases);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_launch_communicates),
        cmocka_unit_test(test_captured_and_other_work_mix_in_order),
        cmocka_unit_test(test_groups_and_point_to_point_replay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
