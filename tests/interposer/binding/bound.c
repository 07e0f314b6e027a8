/*
 * bound.c: the process that `roll_bench binding` measures: one call of the fake NCCL by each way of binding, and one
 * lookup. `roll_bench_bound EXTENSION`: prints its figures as one line of JSON, in nanoseconds, medians over batches.
 *
 * All ways are timed in turn in one process, in short batches, so that a noisy neighbour hits all alike. The loop of
 * the linked call is compiled twice from here: into the program, and into the extension, which is opened with
 * RTLD_DEEPBIND and so binds past the preload unless the auditor is there.
 */
#include "interposer/wrap/nccl_types.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BATCHES 1000
#define BATCH   500

typedef ncclResult_t (*all_reduce_t)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                                     cudaStream_t);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank);
ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                            ncclComm_t comm, cudaStream_t stream);
void bound_linked(ncclComm_t comm);

static float data[2];

void bound_linked(ncclComm_t comm)
{
    for (int i = 0; i < BATCH; i++) {
        ncclAllReduce(&data[0], &data[1], 1, 7, 0, comm, NULL);
    }
}

#ifndef BOUND_EXTENSION
enum way { BARE, LINKED, LOOKED_UP, DEEP, LOOK_UP_OURS, LOOK_UP_OTHER, WAYS };
static const char *const names[WAYS] = {"bare", "linked", "looked_up", "deep", "dlsym_nccl", "dlsym_other"};
static double per_call[WAYS][BATCHES];

static double now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

static void call_by(all_reduce_t call, ncclComm_t comm)
{
    for (int i = 0; i < BATCH; i++) {
        call(&data[0], &data[1], 1, 7, 0, comm, NULL);
    }
}

static void look_up(void *handle, const char *name)
{
    for (int i = 0; i < BATCH; i++) {
        void *volatile found = dlsym(handle, name);
        (void)found;
    }
}

static int by_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    ncclComm_t comm;
    ncclUniqueId id;
    void *nccl = dlopen("libnccl.so.2", RTLD_NOW),
         *extension = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_DEEPBIND) : NULL;
    void (*deep)(ncclComm_t) = extension != NULL ? (void (*)(ncclComm_t))dlsym(extension, "bound_linked") : NULL;
    all_reduce_t looked_up = nccl != NULL ? (all_reduce_t)dlsym(nccl, "ncclAllReduce") : NULL;
    if (deep == NULL || looked_up == NULL || ncclGetUniqueId(&id) != ncclSuccess ||
        ncclCommInitRank(&comm, 2, id, 0) != ncclSuccess) {
        fprintf(stderr, "roll_bench_bound: %s\n", dlerror());
        return 1;
    }
    for (int b = -BATCHES / 4; b < BATCHES; b++) { /* the first quarter only warms up */
        double at[WAYS + 1];
        at[0] = now_ns();
        call_by(pncclAllReduce, comm);
        at[1] = now_ns();
        bound_linked(comm);
        at[2] = now_ns();
        call_by(looked_up, comm);
        at[3] = now_ns();
        deep(comm);
        at[4] = now_ns();
        look_up(nccl, "ncclAllReduce");
        at[5] = now_ns();
        look_up(nccl, "fake_progress");
        at[6] = now_ns();
        for (int w = 0; w < WAYS && b >= 0; w++) {
            per_call[w][b] = (at[w + 1] - at[w]) / BATCH;
        }
    }
    printf("{");
    for (int w = 0; w < WAYS; w++) {
        qsort(per_call[w], BATCHES, sizeof(per_call[w][0]), by_double);
        printf("%s\"%s\":%.2f", w > 0 ? "," : "", names[w], per_call[w][BATCHES / 2]);
    }
    printf("}\n");
    return 0;
}
#endif
