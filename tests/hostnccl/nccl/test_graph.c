/* test_graph.c: CUDA graphs: captured calls, launches as collective acts, mixing with other work, lifetimes, and what
 * hangs or is refused. */
#include "tests/faults/refuse.h"
#include "tests/hostnccl/nccl/harness.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

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

/*
 * A launch that finds no memory takes no place in the communicator's order: what is launched next does not wait for it,
 * and the peers, who launch once, meet the launch that did not fail.
 */
static void case_fails(struct rank *r)
{
    int in = r->rank, out = -1, after = -1;
    int64_t refused = 0;
    cudaGraphExec_t exec = capture_sum(r, &in, &out);

    refuse_in("cudaGraphLaunch");
    for (bool fails = r->rank == 0; fails; refused += fails) {
        refuse_begin(refused, false);
        cudaError_t error = cudaGraphLaunch(exec, r->stream);
        fails = refusing.asked > refused;
        refuse_end();
        CHECK(error == (fails ? cudaErrorMemoryAllocation : cudaSuccess));
        (void)cudaGetLastError();
    }
    CHECK(r->rank != 0 || refused > 4);
    if (r->rank != 0) {
        CUDA(cudaGraphLaunch(exec, r->stream));
    }
    NCCL(ncclAllReduce(&in, &after, 1, ncclInt, ncclMax, r->comm, r->stream));
    CUDA(cudaStreamSynchronize(r->stream));
    CHECK(out == r->n * (r->n - 1) / 2 && after == r->n - 1);
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

/*
 * A captured call does not run, and does not count as launched, before its graph is launched: a peer that only captured
 * makes no rank hang.
 */
static void case_capture_alone(struct rank *r)
{
    int in = 1, out = 0;

    if (r->rank == 0) {
        CUDA(cudaGraphExecDestroy(capture_sum(r, &in, &out)));
    }
    NCCL(ncclAllReduce(&in, &out, 1, ncclInt, ncclSum, r->comm, r->stream));
    CUDA(cudaStreamSynchronize(r->stream));
    CHECK(out == r->n);
}

/* Some ranks launch what they captured, the others make the call at once: NCCL does not promise that these meet, so all
 * hang. */
static void case_half_captured(struct rank *r)
{
    int in = 1, out = 0;
    cudaGraphExec_t exec = r->rank % 2 ? capture_sum(r, &in, &out) : NULL;

    if (exec) {
        CUDA(cudaGraphLaunch(exec, r->stream));
    } else {
        NCCL(ncclAllReduce(&in, &out, 1, ncclInt, ncclSum, r->comm, r->stream));
    }
    expect_hang(r);
    CHECK(out == 0);
    if (exec) {
        destroy(r, exec);
    }
}

/* Only some ranks launch, or one launches once less: the others hang. */
static void case_one_does_not_launch(struct rank *r)
{
    int in = 1, out = 0;
    cudaGraphExec_t exec = capture_sum(r, &in, &out);

    CUDA(cudaGraphLaunch(exec, r->stream));
    CUDA(cudaStreamSynchronize(r->stream));
    if (r->rank) {
        CUDA(cudaGraphLaunch(exec, r->stream));
        expect_hang(r);
    } else {
        NCCL(ncclCommAbort(r->comm));
        r->aborted = true;
    }
    destroy(r, exec);
}

/* Ranks launch graphs that hold different collectives: all hang. */
static void case_different_graphs(struct rank *r)
{
    int in[4] = {1, 1, 1, 1}, out[4] = {0};

    CUDA(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
    NCCL(ncclAllReduce(in, out, r->rank ? 1 : 4, ncclInt, ncclSum, r->comm, r->stream));
    cudaGraphExec_t exec = make_exec(end_capture(r->stream));
    CUDA(cudaGraphLaunch(exec, r->stream));
    expect_hang(r);
    destroy(r, exec);
}

/* Two communicators on two branches, which ranks captured in different orders: branches run beside each other. */
static void case_branches(struct rank *r)
{
    int in = 1, out[2] = {0};
    ncclComm_t second;
    cudaStream_t side;
    cudaEvent_t fork, join;

    NCCL(ncclCommSplit(r->comm, 0, r->rank, &second, NULL));
    CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    CUDA(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    CUDA(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
    CUDA(cudaEventRecord(fork, r->stream));
    CUDA(cudaStreamWaitEvent(side, fork, 0));
    for (int i = 0; i < 2; i++) {
        int which = (i + r->rank) % 2;
        NCCL(ncclAllReduce(&in, &out[which], 1, ncclInt, ncclSum, which ? second : r->comm, which ? side : r->stream));
    }
    CUDA(cudaEventRecord(join, side));
    CUDA(cudaStreamWaitEvent(r->stream, join, 0));
    cudaGraphExec_t exec = make_exec(end_capture(r->stream));
    for (int round = 0; round < 3; round++) {
        out[0] = out[1] = 0;
        CUDA(cudaGraphLaunch(exec, r->stream));
        CUDA(cudaStreamSynchronize(r->stream));
        CHECK(out[0] == r->n && out[1] == r->n);
    }
    destroy(r, exec);
    NCCL(ncclCommDestroy(second));
    CUDA(cudaEventDestroy(fork));
    CUDA(cudaEventDestroy(join));
    CUDA(cudaStreamDestroy(side));
}

/* The streams of a communicator in one group: all captured into one graph, or none. */
static void case_streams_of_a_group(struct rank *r)
{
    int in = 1, out[2] = {0};
    cudaStream_t other;
    cudaGraph_t graph = NULL;

    CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    for (int both = 0; both < 2; both++) {
        CUDA(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
        if (both) {
            CUDA(cudaStreamBeginCapture(other, cudaStreamCaptureModeThreadLocal)); /* another graph */
        }
        NCCL(ncclGroupStart());
        NCCL(ncclAllReduce(&in, &out[0], 1, ncclInt, ncclSum, r->comm, r->stream));
        NCCL_IS(ncclInvalidUsage, ncclAllReduce(&in, &out[1], 1, ncclInt, ncclSum, r->comm, other));
        NCCL_IS(ncclInvalidUsage, ncclGroupEnd());
        graph = end_capture(r->stream);
        CUDA(cudaGraphDestroy(graph));
        if (both) {
            CUDA(cudaGraphDestroy(end_capture(other)));
        }
    }
    NCCL(ncclAllReduce(&in, &out[0], 1, ncclInt, ncclSum, r->comm, r->stream)); /* no harm was done */
    CUDA(cudaStreamSynchronize(r->stream));
    CHECK(out[0] == r->n && out[1] == 0);
    CUDA(cudaStreamDestroy(other));
}

/* Two streams of one capture in a group are joined around it, as outside a capture. */
static void case_two_streams_of_one_graph(struct rank *r)
{
    int in = 1, out[2] = {0};
    cudaStream_t side;
    cudaEvent_t event;

    CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CUDA(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
    CUDA(cudaEventRecord(event, r->stream));
    CUDA(cudaStreamWaitEvent(side, event, 0));
    NCCL(ncclGroupStart());
    NCCL(ncclAllReduce(&in, &out[0], 1, ncclInt, ncclSum, r->comm, r->stream));
    NCCL(ncclAllReduce(&in, &out[1], 1, ncclInt, ncclSum, r->comm, side));
    NCCL(ncclGroupEnd());
    CUDA(cudaEventRecord(event, side));
    CUDA(cudaStreamWaitEvent(r->stream, event, 0));
    cudaGraphExec_t exec = make_exec(end_capture(r->stream));
    CUDA(cudaGraphLaunch(exec, r->stream));
    CUDA(cudaStreamSynchronize(r->stream));
    CHECK(out[0] == r->n && out[1] == r->n);
    destroy(r, exec);
    CUDA(cudaEventDestroy(event));
    CUDA(cudaStreamDestroy(side));
}

static void *destroy_later(void *argument)
{
    sleep_ms(150);
    CUDA(cudaGraphExecDestroy(argument));
    return NULL;
}

/* As in NCCL, a communicator is only destroyed when the last graph that holds calls of it is gone. */
static void case_destroy_waits_for_graphs(struct rank *r)
{
    int in = 1, out = 0;
    ncclComm_t second, keep = r->comm;
    pthread_t thread;
    struct timespec before, after;

    NCCL(ncclCommSplit(r->comm, 0, r->rank, &second, NULL));
    r->comm = second;
    cudaGraphExec_t exec = capture_sum(r, &in, &out);
    r->comm = keep;
    CUDA(cudaGraphLaunch(exec, r->stream));
    CUDA(cudaStreamSynchronize(r->stream));
    CHECK(out == r->n);
    CHECK(!pthread_create(&thread, NULL, destroy_later, exec));
    clock_gettime(CLOCK_MONOTONIC, &before);
    NCCL(ncclCommDestroy(second));
    clock_gettime(CLOCK_MONOTONIC, &after);
    CHECK((after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000 >= 100);
    pthread_join(thread, NULL);
}

/* An abort does not wait, and a graph that is launched afterwards does nothing. */
static void case_abort_with_a_graph(struct rank *r)
{
    int in = 1, out = 0;
    cudaGraphExec_t exec = capture_sum(r, &in, &out);

    NCCL(ncclCommAbort(r->comm));
    r->aborted = true;
    CUDA(cudaGraphLaunch(exec, r->stream));
    CUDA(cudaStreamSynchronize(r->stream));
    CHECK(out == 0);
    destroy(r, exec);
}

/* A capture that fails, and one that is thrown away, leave nothing behind: the communicator can be destroyed. */
static void case_thrown_away(struct rank *r)
{
    int in = 1, out = 0;
    cudaGraph_t graph = NULL;

    CUDA(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
    NCCL(ncclAllReduce(&in, &out, 1, ncclInt, ncclSum, r->comm, r->stream));
    CHECK(cudaStreamSynchronize(r->stream) == cudaErrorStreamCaptureUnsupported);
    NCCL_IS(ncclUnhandledCudaError, ncclAllReduce(&in, &out, 1, ncclInt, ncclSum, r->comm, r->stream));
    CHECK(cudaStreamEndCapture(r->stream, &graph) == cudaErrorStreamCaptureInvalidated);
    NCCL(ncclAllReduce(&in, &out, 1, ncclInt, ncclSum, r->comm, r->stream));
    CUDA(cudaStreamSynchronize(r->stream));
    CHECK(out == r->n);
}

/* Many launches in flight at once, of calls larger than a piece. */
static void case_many_launches(struct rank *r)
{
    enum { COUNT = 100000, LAUNCHES = 20 };
    int *in = malloc(COUNT * sizeof(*in)), *out = calloc(COUNT, sizeof(*out));

    CHECK(in && out);
    for (int i = 0; i < COUNT; i++) {
        in[i] = r->rank + i;
    }
    CUDA(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeRelaxed));
    NCCL(ncclAllReduce(in, out, COUNT, ncclInt, ncclSum, r->comm, r->stream));
    NCCL(ncclBroadcast(out, out, COUNT, ncclInt, r->n - 1, r->comm, r->stream));
    cudaGraphExec_t exec = make_exec(end_capture(r->stream));
    for (int i = 0; i < LAUNCHES; i++) {
        CUDA(cudaGraphLaunch(exec, r->stream));
    }
    CUDA(cudaStreamSynchronize(r->stream));
    for (int i = 0; i < COUNT; i += 997) {
        CHECK(out[i] == r->n * i + r->n * (r->n - 1) / 2);
    }
    destroy(r, exec);
    free(in);
    free(out);
}

static const struct rank_case cases[] = {{"replay", case_replay, false},
                                         {"mixed", case_mixed, false},
                                         {"fails", case_fails, false},
                                         {"groups", case_groups, false},
                                         {"capture_alone", case_capture_alone, false},
                                         {"half_captured", case_half_captured, false},
                                         {"one_does_not_launch", case_one_does_not_launch, false},
                                         {"different_graphs", case_different_graphs, false},
                                         {"branches", case_branches, false},
                                         {"streams_of_a_group", case_streams_of_a_group, false},
                                         {"two_streams", case_two_streams_of_one_graph, false},
                                         {"destroy_waits", case_destroy_waits_for_graphs, false},
                                         {"abort", case_abort_with_a_graph, false},
                                         {"thrown_away", case_thrown_away, false},
                                         {"many_launches", case_many_launches, false},
                                         {NULL, NULL, false}};

static void test_each_launch_communicates(void **state)
{
    (void)state;
    ranks_run("replay", 4, 30, NULL);
    threads_run(cases, "replay", 3);
    ranks_run("many_launches", 3, 30, NULL);
}

static void test_captured_and_other_work_mix_in_order(void **state)
{
    (void)state;
    ranks_run("mixed", 3, 30, NULL);
    threads_run(cases, "mixed", 2);
}

static void test_a_launch_that_fails_takes_no_place(void **state)
{
    (void)state;
    ranks_run("fails", 2, 30, NULL);
}

static void test_groups_and_point_to_point_replay(void **state)
{
    (void)state;
    ranks_run("groups", 4, 30, NULL);
    ranks_run("two_streams", 2, 30, NULL);
}

static void test_capturing_is_no_communication(void **state)
{
    (void)state;
    ranks_run("capture_alone", 3, 30, NULL);
}

static void test_a_launch_that_a_rank_leaves_out_hangs_the_others(void **state)
{
    (void)state;
    ranks_run("one_does_not_launch", 3, 30, NULL);
}

static void test_different_graphs_hang(void **state)
{
    (void)state;
    ranks_run("half_captured", 4, 30, NULL);
    ranks_run("different_graphs", 2, 30, NULL);
}

static void test_communicators_on_branches_do_not_wait_for_each_other(void **state)
{
    (void)state;
    ranks_run("branches", 2, 30, NULL);
    threads_run(cases, "branches", 2);
}

static void test_streams_of_a_group_are_captured_together(void **state)
{
    (void)state;
    ranks_run("streams_of_a_group", 2, 30, NULL);
}

static void test_lifetimes_of_communicator_and_graph(void **state)
{
    (void)state;
    ranks_run("destroy_waits", 2, 30, NULL);
    ranks_run("abort", 2, 30, NULL);
    ranks_run("thrown_away", 2, 30, NULL);
}

int main(int argc, char **argv)
{
    rank_main(argc, argv, cases);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_launch_communicates),
        cmocka_unit_test(test_captured_and_other_work_mix_in_order),
        cmocka_unit_test(test_a_launch_that_fails_takes_no_place),
        cmocka_unit_test(test_groups_and_point_to_point_replay),
        cmocka_unit_test(test_capturing_is_no_communication),
        cmocka_unit_test(test_a_launch_that_a_rank_leaves_out_hangs_the_others),
        cmocka_unit_test(test_different_graphs_hang),
        cmocka_unit_test(test_communicators_on_branches_do_not_wait_for_each_other),
        cmocka_unit_test(test_streams_of_a_group_are_captured_together),
        cmocka_unit_test(test_lifetimes_of_communicator_and_graph),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
