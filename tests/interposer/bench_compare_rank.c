/*
 * bench_compare_rank.c: one of the ranks whose fail-fast compare roll_bench measures: `roll_bench_compare_rank RANK
 * RANKS TURNS`.
 *
 * The ranks take turns (a number in the shared file TURNS says whose turn it is): each makes the same batch of calls on
 * one communicator, so the first of a round publishes every place and the others compare with it, in another process,
 * often on another core. The ranks are first by turns. Bare and preloaded calls are timed in the same turn, so their
 * difference is our cost. All calls at once from all ranks were rejected: on few cores the scheduler would be measured.
 */
#include "interposer/wrap/nccl_types.h"

#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 1200
#define BATCH  200
#define WARM   80 /* rounds that do not count */

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank);
ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                            ncclComm_t comm, cudaStream_t stream);

static double over[2][ROUNDS]; /* [publishes, compares]: what a call costs over the bare one, ns */
static int used[2];
static float data[2];

static double now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

static int by_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Takes one turn. Returns the number of calls that did not return ncclSuccess. */
static int turn(ncclComm_t comm, int kind, int round)
{
    int refused = 0;
    double begin = now_ns();
    for (int i = 0; i < BATCH; i++) {
        pncclAllReduce(&data[0], &data[1], 1, 7, 0, comm, NULL);
    }
    double middle = now_ns();
    for (int i = 0; i < BATCH; i++) {
        refused += ncclAllReduce(&data[0], &data[1], 1, 7, 0, comm, NULL) != ncclSuccess;
    }
    double end = now_ns();
    if (round >= WARM) {
        over[kind][used[kind]++] = ((end - middle) - (middle - begin)) / BATCH;
    }
    return refused;
}

static void print(const char *name, int kind, const char *after)
{
    qsort(over[kind], (size_t)used[kind], sizeof(double), by_double);
    printf("\"%s_p50\":%.2f,\"%s_p99\":%.2f%s", name, over[kind][used[kind] / 2], name,
           over[kind][used[kind] * 99 / 100], after);
}

int main(int argc, char **argv)
{
    int rank = argc > 1 ? atoi(argv[1]) : 0, ranks = argc > 2 ? atoi(argv[2]) : 1, refused = 0;
    int fd = argc > 3 ? open(argv[3], O_RDWR) : -1;
    void *map = fd >= 0 ? mmap(NULL, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    ncclComm_t comm = NULL;
    ncclUniqueId id;
    memset(&id, 7, sizeof(id));
    if (map == MAP_FAILED || ncclCommInitRank(&comm, ranks, id, rank) != ncclSuccess) {
        return 1;
    }
    _Atomic uint64_t *whose = map;
    for (int round = 0; round < ROUNDS; round++) {
        int place = (rank + ranks - round % ranks) % ranks; /* in this round */
        uint64_t mine = (uint64_t)round * (uint64_t)ranks + (uint64_t)place;
        while (atomic_load_explicit(whose, memory_order_acquire) != mine) {
            sched_yield();
        }
        refused += turn(comm, place != 0, round);
        atomic_store_explicit(whose, mine + 1, memory_order_release);
    }
    printf("{");
    print("publishes", 0, ",");
    print("compares", 1, ",");
    printf("\"refused\":%d}\n", refused);
    return 0;
}
