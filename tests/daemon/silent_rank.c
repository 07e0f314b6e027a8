/*
 * silent_rank.c: one rank of a job on hostnccl that works until it is told to stop: `silent_rank DIRECTORY`, RANK and
 * WORLD_SIZE in the environment.
 *
 * Each round is an all-reduce of one number, and a wait; rank 0 gives 1 to it when DIRECTORY/stop is there, so that all
 * stop at the same round. While DIRECTORY/hold.RANK is there, that rank stays in its own code. DIRECTORY/rounds.RANK
 * holds the rounds so far.
 */
#include <cuda_runtime.h>
#include <nccl.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NEED(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "silent_rank: line %d: %s\n", __LINE__, #condition);                                       \
            exit(9);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define ROUNDS_A_WORD 16

static int rank, size;
static const char *directory;

static void share(ncclUniqueId *id)
{
    char path[512], made[520];
    snprintf(path, sizeof(path), "%s/id", directory);
    snprintf(made, sizeof(made), "%s.made", path);
    if (rank == 0) {
        NEED(ncclGetUniqueId(id) == ncclSuccess);
        FILE *f = fopen(made, "wb");
        NEED(f && fwrite(id, sizeof(*id), 1, f) == 1 && fclose(f) == 0 && rename(made, path) == 0);
        return;
    }
    for (int tries = 0; tries < 30000; tries++) {
        FILE *f = fopen(path, "rb");
        bool whole = f && fread(id, sizeof(*id), 1, f) == 1;
        if (f) {
            fclose(f);
        }
        if (whole) {
            return;
        }
        usleep(10000);
    }
    NEED(!"rank 0 never wrote the id");
}

static bool there(const char *name)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", directory, name);
    return access(path, F_OK) == 0;
}

static void tell(unsigned rounds)
{
    char path[512], made[520];
    snprintf(path, sizeof(path), "%s/rounds.%d", directory, rank);
    snprintf(made, sizeof(made), "%s.made", path);
    FILE *f = fopen(made, "w");
    NEED(f && fprintf(f, "%u\n", rounds) > 0 && fclose(f) == 0 && rename(made, path) == 0);
}

int main(int argc, char **argv)
{
    NEED(argc == 2 && getenv("RANK") && getenv("WORLD_SIZE"));
    directory = argv[1];
    rank = atoi(getenv("RANK"));
    size = atoi(getenv("WORLD_SIZE"));
    ncclUniqueId id;
    ncclComm_t comm;
    cudaStream_t stream;
    float *give, *sum, stop = 0;
    int devices = 1;
    char hold[32];
    snprintf(hold, sizeof(hold), "hold.%d", rank);
    share(&id);
    NEED(cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0);
    NEED(cudaSetDevice(rank % devices) == cudaSuccess && cudaStreamCreate(&stream) == cudaSuccess);
    NEED(cudaMalloc((void **)&give, sizeof(float)) == cudaSuccess);
    NEED(cudaMalloc((void **)&sum, sizeof(float)) == cudaSuccess);
    NEED(ncclCommInitRank(&comm, size, id, rank) == ncclSuccess);
    for (unsigned round = 0; stop == 0; round++) {
        float mine = rank == 0 && there("stop");
        while (there(hold)) {
            usleep(10000);
        }
        NEED(cudaMemcpy(give, &mine, sizeof(mine), cudaMemcpyHostToDevice) == cudaSuccess);
        NEED(ncclAllReduce(give, sum, 1, ncclFloat32, ncclSum, comm, stream) == ncclSuccess);
        NEED(cudaStreamSynchronize(stream) == cudaSuccess);
        NEED(cudaMemcpy(&stop, sum, sizeof(stop), cudaMemcpyDeviceToHost) == cudaSuccess);
        if (round % ROUNDS_A_WORD == 0) {
            tell(round);
        }
        usleep(2000);
    }
    NEED(ncclCommDestroy(comm) == ncclSuccess);
    return 0;
}
