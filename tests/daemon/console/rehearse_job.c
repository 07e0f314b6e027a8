/*
 * rehearse_job.c: a job as a framework makes one, for the tests of `rollcall rehearse`: on the CUDA runtime and NCCL
 * alone. Three steps on a communicator of all ranks and one of two ranks each, with tensors of 64 MiB that are only
 * reserved. `sick`: in the second step the last rank leaves the sum of its gradients out. `fails`: the last rank ends
 * with 7 at its end. `larger`: the broadcast has twice the bytes. `shorter`: in the second step the last
 * rank sums up half of its gradients. `redop`: it takes the largest
 * instead of the sum. `crashes`: it does so in the second step. `leaves`: it ends with 0 there. `beside`:
 * the sum and the broadcast are on different streams. `evaluates`: it sends parameters round before its steps, has an
 * evaluation behind each second step, and gathers once at its end. STEPS: another number of steps. TOLD: it notes its
 * steps as rollcall.rehearse does. MARKS: it has a range of NVTX around each step, which it counts from 100 on.
 */
#include "tests/interposer/nvtx.h"

#include <cuda_runtime.h>
#include <inttypes.h>
#include <nccl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        int result = (int)(call);                                                                                      \
        if (result != 0) {                                                                                             \
            fprintf(stderr, "%s: %d\n", #call, result);                                                                \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { BYTES = 64 << 20, FEW = 64 };

static int number(const char *name)
{
    const char *text = getenv(name);
    return text != NULL ? atoi(text) : 0;
}

/* Rank 0 writes the id beside the stand-in's memory, where every rank of the job finds it. */
static ncclUniqueId meet(int rank)
{
    char path[4096], fresh[4100];
    ncclUniqueId id;
    snprintf(path, sizeof(path), "%s/id", getenv("HOSTNCCL_DIR"));
    snprintf(fresh, sizeof(fresh), "%s.new", path);
    if (rank == 0) {
        OK(ncclGetUniqueId(&id));
        FILE *f = fopen(fresh, "w");
        OK(f == NULL || fwrite(&id, sizeof(id), 1, f) != 1 || fclose(f) || rename(fresh, path));
        return id;
    }
    while (access(path, R_OK) != 0) {
        usleep(1000);
    }
    FILE *f = fopen(path, "r");
    OK(f == NULL || fread(&id, sizeof(id), 1, f) != 1 || fclose(f));
    return id;
}

/* The notes of a job whose Python tells its steps, and what its groups are called. */
static void tell(int rank, int size, int steps, const uint64_t ended_ns[3])
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/steered.%d", getenv("HOSTCUDA_REPORT"), (int)getpid());
    FILE *f = fopen(path, "w");
    OK(f == NULL);
    fprintf(f, "rank %d\nstep %020d\nstep_end first %020" PRIu64 "\nstep_end second %020" PRIu64 "\n", rank, steps,
            ended_ns[0], ended_ns[1]);
    fprintf(f, "step_end last %020" PRIu64 "\ngroup %d 12 world\tdefault_pg\t/job/train.py\tmain\n", ended_ns[2], size);
    fprintf(f, "allocator 0 %020d\n", 3 << 20);
    OK(fclose(f));
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "healthy";
    int steps = getenv("STEPS") != NULL ? number("STEPS") : 3, larger = strcmp(how, "larger") == 0;
    int rank = number("RANK"), size = number("WORLD_SIZE"), seen = -1;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t world, pair;
    cudaStream_t stream, other;
    void *weights, *few;

    OK(cudaSetDevice(number("LOCAL_RANK")));
    OK(cudaStreamCreate(&stream));
    OK(cudaStreamCreate(&other));
    other = strcmp(how, "beside") == 0 ? other : stream;
    OK(cudaMalloc(&weights, BYTES));
    OK(cudaMalloc(&few, sizeof(int) * FEW));
    config.commName = "world";
    OK(ncclCommInitRankConfig(&world, size, meet(rank), rank, &config));
    config.commName = "pair";
    OK(ncclCommSplit(world, rank / 2, rank, &pair, &config));
    bool evaluates = strcmp(how, "evaluates") == 0;
    uint64_t ended_ns[3] = {0};
    for (size_t i = 0; evaluates && i < 20; i++) {
        OK(ncclBroadcast(weights, weights, 1000 + 8 * i, ncclFloat, 0, world, stream));
    }
    for (int step = 0; step < steps; step++) {
        int count = rank + step;
        char range[32];
        snprintf(range, sizeof(range), "step %d", 100 + step);
        if (getenv("MARKS") != NULL) {
            (void)nvtxRangePushA(range);
        }
        if (strcmp(how, "crashes") == 0 && step == 1 && rank == size - 1) {
            signal(SIGSEGV, SIG_DFL);
            raise(SIGSEGV);
        }
        if (strcmp(how, "leaves") == 0 && step == 1 && rank == size - 1) {
            sleep(3); /* until it has been seen that the rank has begun */
            exit(0);
        }
        OK(cudaMemcpy(few, &count, sizeof(count), cudaMemcpyHostToDevice));
        OK(ncclAllReduce(few, few, 1, ncclInt, ncclMax, world, stream));
        OK(cudaStreamSynchronize(stream));
        OK(cudaMemcpy(&seen, few, sizeof(seen), cudaMemcpyDeviceToHost));
        OK(seen != size - 1 + step); /* short payloads are moved: a job may steer by them */
        if (strcmp(how, "sick") != 0 || step != 1 || rank != size - 1) {
            bool largest = strcmp(how, "redop") == 0 && rank == size - 1;
            bool shorter = strcmp(how, "shorter") == 0 && step == 1 && rank == size - 1;
            OK(ncclAllReduce(weights, weights, shorter ? BYTES / 8 : BYTES / 4, ncclFloat, largest ? ncclMax : ncclSum,
                             world, stream));
        }
        OK(ncclBroadcast(weights, weights, larger ? BYTES / 4 : BYTES / 8, ncclFloat, 0, pair, other));
        OK(cudaStreamSynchronize(other));
        OK(cudaStreamSynchronize(stream));
        struct timespec now;
        OK(clock_gettime(CLOCK_MONOTONIC, &now));
        ended_ns[step > 1 ? 2 : step] = ended_ns[2] = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
        if (getenv("MARKS") != NULL) {
            (void)nvtxRangePop();
        }
        if (evaluates && step % 2 == 1) {
            usleep(1000); /* the report knows moments to a microsecond */
            OK(ncclAllReduce(few, few, 3, ncclInt, ncclSum, world, stream));
        }
    }
    if (evaluates) {
        OK(ncclAllGather(few, weights, 5, ncclInt, world, stream));
        OK(cudaStreamSynchronize(stream));
    }
    if (getenv("TOLD") != NULL) {
        tell(rank, size, steps, ended_ns);
    }
    printf("rank %d of %d, local %d\n", rank, size, number("LOCAL_RANK"));
    OK(ncclCommDestroy(pair));
    OK(ncclCommDestroy(world));
    return strcmp(how, "fails") == 0 && rank == size - 1 ? 7 : 0;
}
