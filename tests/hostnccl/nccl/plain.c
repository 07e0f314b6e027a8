/* plain.c: a C program as a user writes it: two devices of one process, one thread, default streams. Exits 0 when the
 * sums are right. */
#include <cuda_runtime.h>
#include <nccl.h>
#include <stdio.h>

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        if ((call) != 0) {                                                                                             \
            fprintf(stderr, "%s failed\n", #call);                                                                     \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

int main(void)
{
    enum { DEVICES = 2, COUNT = 1000 };
    ncclComm_t comms[DEVICES];
    cudaStream_t streams[DEVICES];
    float *in[DEVICES], *out[DEVICES], host[COUNT];

    TRY(ncclCommInitAll(comms, DEVICES, NULL));
    for (int d = 0; d < DEVICES; d++) {
        for (int i = 0; i < COUNT; i++) {
            host[i] = (float)(i + d);
        }
        TRY(cudaSetDevice(d));
        TRY(cudaStreamCreate(&streams[d]));
        TRY(cudaMalloc((void **)&in[d], sizeof(host)));
        TRY(cudaMalloc((void **)&out[d], sizeof(host)));
        TRY(cudaMemcpy(in[d], host, sizeof(host), cudaMemcpyHostToDevice));
    }
    TRY(ncclGroupStart());
    for (int d = 0; d < DEVICES; d++) {
        TRY(ncclAllReduce(in[d], out[d], COUNT, ncclFloat, ncclSum, comms[d], streams[d]));
    }
    TRY(ncclGroupEnd());
    for (int d = 0; d < DEVICES; d++) {
        TRY(cudaSetDevice(d));
        TRY(cudaStreamSynchronize(streams[d]));
        TRY(cudaMemcpy(host, out[d], sizeof(host), cudaMemcpyDeviceToHost));
        for (int i = 0; i < COUNT; i++) {
            TRY(host[i] != (float)(2 * i + 1));
        }
        TRY(cudaFree(in[d]));
        TRY(cudaFree(out[d]));
        TRY(cudaStreamDestroy(streams[d]));
        TRY(ncclCommDestroy(comms[d]));
    }
    return 0;
}
