/*
 * graphs.c: NCCL under CUDA graph capture: calls captured once and replayed, with the data checked after each replay.
 *
 *   gpu_graphs healthy        every rank captures the same two collectives and replays them; rank 0 prints the launch
 * cost as JSON gpu_graphs capture-some   the last rank makes the calls that the others capture: it waits in the device
 * for peers whose calls only became nodes gpu_graphs graph-differ   all ranks capture two graphs alike, and the last
 * rank launches the other one
 *
 * The program uses the CUDA runtime's API alone. The graph functions are weak: where the runtime (the stand-in, of an
 * older tree) has none, the program says so and ends with 77.
 */
#include "tests/gpu/meet.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#pragma weak cudaStreamBeginCapture
#pragma weak cudaStreamEndCapture
#pragma weak cudaGraphInstantiate
#pragma weak cudaGraphLaunch
#pragma weak cudaGraphExecDestroy
#pragma weak cudaGraphDestroy

enum { ELEMENTS = 2048, REPLAYS = 200, CHECKED = 8, WRONG_DATA = 8, NOT_HERE = 77 };

static uint64_t ns[REPLAYS];

static uint64_t now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

struct job {
    struct gpu_rank rank;
    float *in, *middle, *out, *host;
};

/* out = sum over ranks of (sum over ranks of in), two collectives of different sizes. */
static void collectives(struct job *j, bool both)
{
    NCCL(ncclAllReduce(j->in, j->middle, ELEMENTS, ncclFloat32, ncclSum, j->rank.comm, j->rank.stream));
    if (both) {
        NCCL(ncclAllReduce(j->middle, j->out, ELEMENTS / 2, ncclFloat32, ncclSum, j->rank.comm, j->rank.stream));
    }
}

static void fill(struct job *j, float value)
{
    for (int i = 0; i < ELEMENTS; i++) {
        j->host[i] = value;
    }
    CUDA(cudaMemcpy(j->in, j->host, ELEMENTS * sizeof(float), cudaMemcpyHostToDevice));
    CUDA(cudaMemset(j->out, 0xff, ELEMENTS * sizeof(float)));
    CUDA(cudaDeviceSynchronize());
}

/* Whether the first half of out is the twofold sum of (rank + round) over all ranks. */
static bool right(struct job *j, int round)
{
    int n = j->rank.size;
    float want = (float)(n * (n * (n - 1) / 2 + n * round));
    CUDA(cudaStreamSynchronize(j->rank.stream));
    CUDA(cudaMemcpy(j->host, j->out, ELEMENTS * sizeof(float), cudaMemcpyDeviceToHost));
    for (int i = 0; i < ELEMENTS / 2; i++) {
        if (!(j->host[i] == want)) {
            fprintf(stderr, "gpu check: rank %d, replay %d: element %d is %g, not %g\n", j->rank.rank, round, i,
                    (double)j->host[i], (double)want);
            return false;
        }
    }
    return true;
}

static cudaGraphExec_t capture(struct job *j, bool both)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamBeginCapture(j->rank.stream, cudaStreamCaptureModeThreadLocal));
    collectives(j, both);
    CUDA(cudaStreamEndCapture(j->rank.stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    return exec;
}

static bool replay(struct job *j, cudaGraphExec_t exec)
{
    for (int round = 0; round < CHECKED; round++) {
        fill(j, (float)(j->rank.rank + round));
        CUDA(cudaGraphLaunch(exec, j->rank.stream));
        if (!right(j, round)) {
            return false;
        }
    }
    for (int i = 0; i < REPLAYS; i++) {
        uint64_t begin = now();
        CUDA(cudaGraphLaunch(exec, j->rank.stream));
        ns[i] = now() - begin;
        if (i % 16 == 0) {
            CUDA(cudaStreamSynchronize(j->rank.stream));
        }
    }
    CUDA(cudaStreamSynchronize(j->rank.stream));
    return true;
}

static void prepare(struct job *j)
{
    size_t bytes = ELEMENTS * sizeof(float);
    gpu_meet(&j->rank);
    CUDA(cudaMalloc((void **)&j->in, bytes));
    CUDA(cudaMalloc((void **)&j->middle, bytes));
    CUDA(cudaMalloc((void **)&j->out, bytes));
    j->host = malloc(bytes);
    if (!j->host) {
        perror("gpu check");
        exit(9);
    }
    fill(j, (float)j->rank.rank);
    collectives(j, true); /* connections are made outside of the capture */
    if (!right(j, 0)) {
        exit(WRONG_DATA);
    }
}

int main(int argc, char **argv)
{
    const char *mode = argc == 2 ? argv[1] : "";
    struct job j = {.in = NULL};
    bool some = strcmp(mode, "capture-some") == 0, differ = strcmp(mode, "graph-differ") == 0;
    if (!some && !differ && strcmp(mode, "healthy") != 0) {
        fprintf(stderr, "usage: gpu_graphs healthy|capture-some|graph-differ\n");
        return 2;
    }
    (void)gpu_driver();
    if (!cudaStreamBeginCapture || !cudaStreamEndCapture || !cudaGraphInstantiate || !cudaGraphLaunch) {
        fprintf(stderr, "gpu check: this CUDA runtime has no graphs\n");
        return NOT_HERE;
    }
    prepare(&j);
    bool last = j.rank.rank == j.rank.size - 1;
    if (some && last) {
        collectives(&j, true);
        CUDA(cudaStreamSynchronize(j.rank.stream));
    }
    cudaGraphExec_t both = some && last ? NULL : capture(&j, true), one = some && last ? NULL : capture(&j, false);
    if (both && !replay(&j, differ && last ? one : both)) {
        return WRONG_DATA;
    }
    if (j.rank.rank == 0) {
        qsort(ns, REPLAYS, sizeof(*ns), by_size);
        printf("{\"graph_launch\":{\"calls\":%d,\"p50_ns\":%llu,\"p99_ns\":%llu},\"replays_checked\":%d}\n", REPLAYS,
               (unsigned long long)ns[REPLAYS / 2], (unsigned long long)ns[REPLAYS * 99 / 100], CHECKED);
    }
    if (both) {
        CUDA(cudaGraphExecDestroy(both));
        CUDA(cudaGraphExecDestroy(one));
    }
    NCCL(ncclCommDestroy(j.rank.comm));
    return 0;
}
