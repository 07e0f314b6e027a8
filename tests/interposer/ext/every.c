/*
 * every.c: one rank that calls every function of prototypes.txt, linked and looked up, and checks that each arrives as
 * it was passed and that its result comes back: `ext_every`.
 *
 * A synchronisation before each call makes the next dense product worth a record, so that there is one record a call.
 */
#include <cuda_runtime.h>
#include <nccl.h>

#include <stdbool.h>
#include <stdio.h>

extern char every_area[32][256]; /* nobody may write into it */
extern int every_wrong, every_seen;
char every_area[32][256];
int every_wrong, every_seen;
int every_call(bool looked_up, void (*before)(void));

static cudaStream_t stream;

static void before(void)
{
    every_wrong += cudaStreamSynchronize(stream) != cudaSuccess;
}

int main(void)
{
    ncclUniqueId id;
    ncclComm_t comm;
    if (cudaStreamCreate(&stream) != cudaSuccess || ncclGetUniqueId(&id) != ncclSuccess ||
        ncclCommInitRank(&comm, 1, id, 0) != ncclSuccess) {
        return 2;
    }
    int linked = every_call(false, before), looked_up = every_call(true, before);
    for (size_t i = 0; i < sizeof(every_area); i++) {
        every_wrong += every_area[i / 256][i % 256] != 0;
    }
    every_wrong += ncclCommDestroy(comm) != ncclSuccess;
    fprintf(stderr, "ext_every: %d calls, %d arrived, %d wrong\n", linked + looked_up, every_seen, every_wrong);
    return every_seen == linked + looked_up && every_wrong == 0 ? 0 : 1;
}
