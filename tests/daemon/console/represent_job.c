/*
 * represent_job.c: a job for the tests of `rollcall rehearse --represent`: on the CUDA runtime and NCCL alone, four
 * steps on a communicator of all ranks, and on one of every fourth rank, whose members it tells hostnccl where it runs
 * on that. Gradients of 64 MiB are only reserved. `sick`: in the second step the last rank that runs leaves the sum of
 * its gradients out. `untold`: the members of the second communicator are not told.
 */
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        int result = (int)(call);                                                                                      \
        if (result != 0) {                                                                                             \
            fprintf(stderr, "%s: %d\n", #call, result);                                                                \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { BYTES = 64 << 20, STEPS = 4, STRIDE = 4 };

static int number(const char *name)
{
    const char *text = getenv(name);
    return text != NULL ? atoi(text) : 0;
}

/* Whoever comes first makes the id: which ranks run is nothing that this job knows. */
static ncclUniqueId meet(const char *name)
{
    char path[4096], fresh[4200];
    ncclUniqueId id;
    snprintf(path, sizeof(path), "%s/%s", getenv("HOSTNCCL_DIR"), name);
    snprintf(fresh, sizeof(fresh), "%s.%d", path, (int)getpid());
    OK(ncclGetUniqueId(&id));
    FILE *f = fopen(fresh, "w");
    OK(f == NULL || fwrite(&id, sizeof(id), 1, f) != 1 || fclose(f));
    (void)link(fresh, path); /* it fails where another rank was first */
    unlink(fresh);
    f = fopen(path, "r");
    OK(f == NULL || fread(&id, sizeof(id), 1, f) != 1 || fclose(f));
    return id;
}

static ncclComm_t join(const char *name, const char *file, int size, int rank)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm;
    config.commName = name;
    OK(ncclCommInitRankConfig(&comm, size, meet(file), rank, &config));
    return comm;
}

/* The communicator of the ranks that differ from this one by multiples of four. */
static ncclComm_t join_column(int rank, int size, int is_told)
{
    typedef int (*tell_t)(const char *, const int *, int);
    tell_t tell = (tell_t)dlsym(RTLD_DEFAULT, "hostncclTell");
    int ranks[4096], count = 0;
    char file[32];
    for (int r = rank % STRIDE; r < size; r += STRIDE) {
        ranks[count++] = r;
    }
    if (tell != NULL && is_told) {
        OK(tell("column", ranks, count));
    }
    snprintf(file, sizeof(file), "column%d", rank % STRIDE);
    return join("column", file, count, rank / STRIDE);
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "healthy";
    int rank = number("RANK"), size = number("WORLD_SIZE"), culprit = number("CULPRIT"), sum = 0;
    cudaStream_t stream;
    void *weights, *few;

    OK(cudaSetDevice(number("LOCAL_RANK") % 8));
    OK(cudaStreamCreate(&stream));
    OK(cudaMalloc(&weights, BYTES));
    OK(cudaMalloc(&few, sizeof(int)));
    ncclComm_t world = join("world", "world", size, rank);
    ncclComm_t column = join_column(rank, size, strcmp(how, "untold") != 0);
    for (int step = 0; step < STEPS; step++) {
        int one = 1;
        OK(cudaMemcpy(few, &one, sizeof(one), cudaMemcpyHostToDevice));
        OK(ncclAllReduce(few, few, 1, ncclInt, ncclSum, world, stream));
        OK(cudaMemcpyAsync(&sum, few, sizeof(sum), cudaMemcpyDeviceToHost, stream));
        OK(cudaStreamSynchronize(stream));
        OK(sum != size); /* all ranks are counted, also those that do not run */
        if (strcmp(how, "sick") != 0 || step != 1 || rank != culprit) {
            OK(ncclAllReduce(weights, weights, BYTES / 4, ncclFloat, ncclSum, column, stream));
        }
        OK(ncclBroadcast(weights, weights, BYTES / 8, ncclFloat, size - 1, world, stream));
        OK(ncclGroupStart());
        OK(ncclSend(weights, 1024, ncclFloat, (rank + 1) % size, world, stream));
        OK(ncclRecv(weights, 1024, ncclFloat, (rank + size - 1) % size, world, stream));
        OK(ncclGroupEnd());
        OK(cudaStreamSynchronize(stream));
    }
    printf("rank %d of %d, local %d of %d\n", rank, size, number("LOCAL_RANK"), number("LOCAL_WORLD_SIZE"));
    OK(ncclCommDestroy(column));
    OK(ncclCommDestroy(world));
    return 0;
}
