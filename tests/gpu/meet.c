/*
 * meet.c: ranks of a GPU check meet through a file that rank 0 renames into place, as the catalogue's do.
 */
#include "tests/gpu/meet.h"

#include "interposer/cuda/count_ptx.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
    snprintf(path, sizeof(path), "%s/id", need("CHECK_DIR"));
    snprintf(tmp, sizeof(tmp), "%s.tmp", path);
    if (rank == 0) {
        NCCL(ncclGetUniqueId(id));
        FILE *f = fopen(tmp, "wb");
        if (!f || fwrite(id, sizeof(*id), 1, f) != 1 || fclose(f) != 0 || rename(tmp, path) != 0) {
            perror("gpu check: writing the unique id");
            exit(9);
        }
        return;
    }
    for (int tries = 0; tries < 6000; tries++) { /* 60 s */
        FILE *f = fopen(path, "rb");
        if (f) {
            size_t n = fread(id, sizeof(*id), 1, f);
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

/* What the counting kernel does, for the driver that has no device to run it on. */
static void count(void **arguments)
{
    uint64_t *word;
    memcpy(&word, arguments[0], sizeof(word));
    __atomic_fetch_add(word, 1, __ATOMIC_RELAXED);
}

void *gpu_driver(void)
{
    static const size_t bytes[] = {sizeof(uint64_t)};
    int (*stand_in)(const char *, void (*)(void **), size_t, const size_t *) = NULL;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    void *symbol = driver ? dlsym(driver, "hostcuda_register_kernel") : NULL;
    memcpy(&stand_in, &symbol, sizeof(symbol));
    if (stand_in && stand_in(ROLL_COUNT_KERNEL, count, 1, bytes) != 0) {
        fprintf(stderr, "gpu check: the stand-in takes no kernel\n");
        exit(9);
    }
    return driver;
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
