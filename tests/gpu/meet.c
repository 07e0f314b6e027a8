/*
 * meet.c: ranks of a GPU check meet through a file that rank 0 renames into place, as the catalogue's do.
 */
#include "tests/gpu/meet.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void gpu_nccl(ncclResult_t result, const char *what)
{
    if (result != ncclSuccess) {
        fprintf(stderr, "gpu check: %s: %s: %s\n", what, ncclGetErrorString(result), ncclGetLastError(NULL));
        exit(9);
    }
}

void gpu_cuda(cudaError_t error, const char *what)
{
    if (error != cudaSuccess) {
        fprintf(stderr, "gpu check: %s: %s\n", what, cudaGetErrorString(error));
        exit(9);
    }
}

static const char *need(const char *name)
{
    const char *value = getenv(name);
    if (!value) {
        fprintf(stderr, "gpu check: %s is not set: start me through scripts/gpu-check\n", name);
        exit(2);
    }
    return value;
}

static void share_id(int rank, ncclUniqueId *id)
{
    char path[512], tmp[520];
    snprintf(path, sizeof path, "%s/id", need("CHECK_DIR"));
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    if (rank == 0) {
        NCCL(ncclGetUniqueId(id));
        FILE *f = fopen(tmp, "wb");
        if (!f || fwrite(id, sizeof *id, 1, f) != 1 || fclose(f) != 0 || rename(tmp, path) != 0) {
            perror("gpu check: writing the unique id");
            exit(9);
        }
        return;
    }
    for (int tries = 0; tries < 6000; tries++) { /* 60 s */
        FILE *f = fopen(path, "rb");
        if (f) {
            size_t n = fread(id, sizeof *id, 1, f);
            fclose(f);
            if (n == 1) {
                return;
            }
        }
        usleep(10000);
    }
    fprintf(stderr, "gpu check: rank 0 never wrote the unique id\n");
    exit(9);
}

void gpu_meet(struct gpu_rank *self)
{
    int devices = 0;
    ncclUniqueId id;
    self->rank = atoi(need("RANK"));
    self->size = atoi(need("WORLD_SIZE"));
    CUDA(cudaGetDeviceCount(&devices));
    CUDA(cudaSetDevice(self->rank % (devices > 0 ? devices : 1)));
    CUDA(cudaStreamCreateWithFlags(&self->stream, cudaStreamNonBlocking));
    share_id(self->rank, &id);
    NCCL(ncclCommInitRank(&self->comm, self->size, id, self->rank));
}
