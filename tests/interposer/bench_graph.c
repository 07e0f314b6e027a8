/*
 * bench_graph.c: the rank of `roll_bench graph`: measures what a launch of a graph costs, and a call with completion
 * learnt. It runs on the fakes, whose own work is a few instructions, so the cost is that of the preload. Prints its
 * figures as one line of JSON.
 *
 * Batches of all kinds in turn, in one process; the figure is the median. A graph without NCCL calls, which is only
 * forwarded, is the base.
 */
#include "interposer/wrap/nccl_types.h"
#include "tests/interposer/fakecuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BATCHES 400
#define BATCH   100

ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank);
ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);

#define STREAM ((void *)(uintptr_t)0x7010)

enum kind { EMPTY, COLLECTIVES, MESSAGES, CALL, KINDS };

static ncclComm_t comm;
static float data[2];
static void *exec[KINDS];
static double batch_ns[KINDS][BATCHES];

static double now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

static int capture(enum kind kind, int calls)
{
    void *graph = NULL;
    int bad = cudaStreamBeginCapture(STREAM, 0);
    for (int i = 0; i < calls; i++) {
        bad |= kind == MESSAGES ? (int)ncclSend(data, 1, 7, 1, comm, STREAM)
                                : (int)ncclAllReduce(data, data + 1, 1, 7, ncclSum, comm, STREAM);
    }
    return bad | cudaStreamEndCapture(STREAM, &graph) | cudaGraphInstantiate(&exec[kind], graph, 0);
}

static double batch(enum kind kind)
{
    double start = now_ns();
    for (int i = 0; i < BATCH; i++) {
        if (kind == CALL) {
            ncclAllReduce(data, data + 1, 1, 7, ncclSum, comm, STREAM);
        } else {
            cudaGraphLaunch(exec[kind], STREAM);
        }
    }
    double took = (now_ns() - start) / BATCH;
    fake_run();
    return took;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(void)
{
    static const char *const names[KINDS] = {"empty", "collectives_100", "messages_128", "call"};
    ncclUniqueId id;
    if (ncclGetUniqueId(&id) != ncclSuccess || ncclCommInitRank(&comm, 2, id, 0) != ncclSuccess ||
        capture(EMPTY, 0) != 0 || capture(COLLECTIVES, 100) != 0 || capture(MESSAGES, 128) != 0) {
        return 1;
    }
    for (int b = 0; b < BATCHES; b++) {
        for (int k = 0; k < KINDS; k++) {
            batch_ns[k][b] = batch((enum kind)k);
        }
    }
    for (int k = 0; k < KINDS; k++) {
        qsort(batch_ns[k], BATCHES, sizeof(double), by_size);
        printf("%s\"%s\":%.1f", k == 0 ? "{" : ",", names[k], batch_ns[k][BATCHES / 2]);
    }
    printf("}\n");
    return 0;
}
