/*
 * graph_program.c: a C program that captures and replays, as frameworks do, against whatever <cuda_runtime.h> it is
 * given: two streams fork and join in a capture, the graph is instantiated by each of the three calls, replayed with
 * new data, updated, and drawn on by hand. Compiled and linked in several ways, with the default stream of either kind;
 * exits 0.
 */
#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>

enum { COUNT = 4096 };

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        cudaError_t error_ = (call);                                                                                   \
        if (error_ != cudaSuccess) {                                                                                   \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_));                 \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)
#define REQUIRE(what)                                                                                                  \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "%s:%d: not %s\n", __FILE__, __LINE__, #what);                                             \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

static int *values; /* device memory, which host functions may touch here */

static void add_one(void *unused)
{
    (void)unused;
    for (int i = 0; i < COUNT / 2; i++) {
        values[i]++;
    }
}

static void double_up(void *unused)
{
    (void)unused;
    for (int i = COUNT / 2; i < COUNT; i++) {
        values[i] *= 2;
    }
}

/* host -> device, then both halves on a stream each, then device -> host. */
static int capture(cudaStream_t stream, cudaStream_t side, int *host, cudaGraph_t *graph)
{
    cudaEvent_t fork, join;
    CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaMemcpyAsync(values, host, COUNT * sizeof(int), cudaMemcpyHostToDevice, stream));
    CHECK(cudaEventRecord(fork, stream));
    CHECK(cudaStreamWaitEvent(side, fork, 0));
    CHECK(cudaLaunchHostFunc(stream, add_one, NULL));
    CHECK(cudaLaunchHostFunc(side, double_up, NULL));
    CHECK(cudaEventRecord(join, side));
    CHECK(cudaStreamWaitEvent(stream, join, 0));
    CHECK(cudaMemcpyAsync(host, values, COUNT * sizeof(int), cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamEndCapture(stream, graph));
    CHECK(cudaEventDestroy(fork));
    CHECK(cudaEventDestroy(join));
    return 0;
}

static int replay(cudaGraphExec_t exec, cudaStream_t stream, int *host)
{
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT; i++) {
            host[i] = i + round;
        }
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaStreamSynchronize(stream));
        for (int i = 0; i < COUNT; i++) {
            REQUIRE(host[i] == (i < COUNT / 2 ? i + round + 1 : 2 * (i + round)));
        }
    }
    return 0;
}

int main(void)
{
    cudaStream_t stream, side;
    cudaGraph_t graph, other;
    cudaGraphExec_t exec;
    cudaGraphInstantiateParams params;
    cudaGraphExecUpdateResultInfo info;
    size_t nodes = 0;
    int *host, *second;

    CHECK(cudaMallocHost((void **)&host, COUNT * sizeof(int)));
    CHECK(cudaMallocHost((void **)&second, COUNT * sizeof(int)));
    CHECK(cudaMalloc((void **)&values, COUNT * sizeof(int)));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    REQUIRE(capture(stream, side, host, &graph) == 0);
    REQUIRE(capture(stream, side, second, &other) == 0);
    CHECK(cudaGraphGetNodes(graph, NULL, &nodes));
    REQUIRE(nodes == 4);

    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    REQUIRE(replay(exec, stream, host) == 0);
    CHECK(cudaGraphExecUpdate(exec, other, &info));
    REQUIRE(replay(exec, side, second) == 0);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphInstantiateWithFlags(&exec, graph, cudaGraphInstantiateFlagAutoFreeOnLaunch));
    CHECK(cudaGraphUpload(exec, stream));
    REQUIRE(replay(exec, cudaStreamPerThread, host) == 0);
    CHECK(cudaGraphExecDestroy(exec));
    memset(&params, 0, sizeof(params));
    params.flags = cudaGraphInstantiateFlagUpload;
    params.uploadStream = stream;
    CHECK(cudaGraphInstantiateWithParams(&exec, graph, &params));
    REQUIRE(params.result_out == cudaGraphInstantiateSuccess);
    REQUIRE(replay(exec, 0, host) == 0); /* the default stream, whichever it is */
    CHECK(cudaGraphExecDestroy(exec));

    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaGraphDestroy(other));
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaStreamDestroy(side));
    CHECK(cudaFree(values));
    CHECK(cudaFreeHost(host));
    CHECK(cudaFreeHost(second));
    printf("graphs replayed\n");
    return 0;
}
