/*
 * lone_rank.c: one rank of a job on hostnccl, the last of which hangs by itself: `lone_rank DIRECTORY sync|free`, RANK
 * and WORLD_SIZE in the environment.
 *
 * All ranks make one all-reduce and wait for it. Then the last one enqueues a host function that returns when
 * DIRECTORY/go is there, and waits for its stream, or frees memory, behind that function. The others wait for
 * DIRECTORY/go in their own code. Then all of them end in good order.
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
            fprintf(stderr, "lone_rank: line %d: %s\n", __LINE__, #condition);                                         \
            exit(9);                                                                                                   \
        }                                                                                                              \
    } while (0)

static int rank, size;
static const char *directory;

static bool there(const char *name)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", directory, name);
    return access(path, F_OK) == 0;
}

static void wait_for_go(void *unused)
{
    (void)unused;
    while (!there("go")) {
        usleep(10000);
    }
}

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
    while (!there("id")) {
        usleep(10000);
    }
    FILE *f = fopen(path, "rb");
    NEED(f && fread(id, sizeof(*id), 1, f) == 1 && fclose(f) == 0);
}

int main(int argc, char **argv)
{
    NEED(argc == 3 && getenv("RANK") && getenv("WORLD_SIZE"));
    directory = argv[1];
    rank = atoi(getenv("RANK"));
    size = atoi(getenv("WORLD_SIZE"));
    ncclUniqueId id;
    ncclComm_t comm;
    cudaStream_t stream;
    float *data;
    int devices = 1;
    share(&id);
    NEED(cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0);
    NEED(cudaSetDevice(rank % devices) == cudaSuccess && cudaStreamCreate(&stream) == cudaSuccess);
    NEED(cudaMalloc((void **)&data, 1024 * sizeof(float)) == cudaSuccess);
    NEED(ncclCommInitRank(&comm, size, id, rank) == ncclSuccess);
    NEED(ncclAllReduce(data, data, 1024, ncclFloat32, ncclSum, comm, stream) == ncclSuccess);
    NEED(cudaStreamSynchronize(stream) == cudaSuccess);
    if (rank == size - 1) {
        NEED(cudaLaunchHostFunc(stream, wait_for_go, NULL) == cudaSuccess);
        if (strcmp(argv[2], "sync") == 0) {
            NEED(cudaStreamSynchronize(stream) == cudaSuccess);
        }
    }
    if (rank != size - 1) {
        wait_for_go(NULL);
    }
    NEED(cudaFree(data) == cudaSuccess);
    NEED(ncclCommDestroy(comm) == ncclSuccess);
    return 0;
}
