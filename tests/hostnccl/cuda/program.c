/*
 * program.c: a C program as a user writes it, against whatever <cuda_runtime.h> it is given: scales a vector in pieces
 * over several streams, joins them with events, checks the result. Compiled and linked in several ways; prints the
 * device and exits 0.
 */
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STREAMS = 4, PIECE = 1000, COUNT = STREAMS * PIECE };

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        cudaError_t error_ = (call);                                                                                   \
        if (error_ != cudaSuccess) {                                                                                   \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_));                 \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

struct piece {
    float *values;
    float factor;
};

static void scale(void *data)
{
    struct piece *piece = (struct piece *)data;
    for (int i = 0; i < PIECE; i++) {
        piece->values[i] *= piece->factor;
    }
}

int main(void)
{
    struct cudaDeviceProp properties;
    cudaStream_t streams[STREAMS];
    cudaEvent_t done[STREAMS], start, end;
    struct piece pieces[STREAMS];
    float *host, *device, ms;

    CHECK(cudaGetDeviceProperties(&properties, 0));
    CHECK(cudaMallocHost((void **)&host, COUNT * sizeof(float)));
    CHECK(cudaMalloc((void **)&device, COUNT * sizeof(float)));
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&end));
    for (int i = 0; i < COUNT; i++) {
        host[i] = (float)i;
    }
    /* The default stream is whichever the compilation chose; the event carries the order either way. */
    CHECK(cudaMemcpyAsync(device, host, COUNT * sizeof(float), cudaMemcpyHostToDevice, 0));
    CHECK(cudaEventRecord(start, 0));
    for (int s = 0; s < STREAMS; s++) {
        pieces[s].values = device + s * PIECE;
        pieces[s].factor = (float)(s + 1);
        CHECK(cudaStreamCreateWithFlags(&streams[s], cudaStreamNonBlocking));
        CHECK(cudaEventCreateWithFlags(&done[s], cudaEventDisableTiming));
        CHECK(cudaStreamWaitEvent(streams[s], start, 0));
        CHECK(cudaLaunchHostFunc(streams[s], scale, &pieces[s]));
        CHECK(cudaEventRecord(done[s], streams[s]));
        CHECK(cudaStreamWaitEvent(0, done[s], 0));
    }
    CHECK(cudaEventRecord(end, 0));
    CHECK(cudaMemcpyAsync(host, device, COUNT * sizeof(float), cudaMemcpyDeviceToHost, 0));
    CHECK(cudaStreamSynchronize(0));
    CHECK(cudaEventElapsedTime(&ms, start, end));
    for (int i = 0; i < COUNT; i++) {
        if (host[i] != (float)i * (float)(i / PIECE + 1)) {
            fprintf(stderr, "element %d is %g\n", i, (double)host[i]);
            return 1;
        }
    }
    for (int s = 0; s < STREAMS; s++) {
        CHECK(cudaStreamDestroy(streams[s]));
        CHECK(cudaEventDestroy(done[s]));
    }
    CHECK(cudaFree(device));
    CHECK(cudaFreeHost(host));
    printf("%s\n", properties.name);
    return strcmp(properties.name, "hostcuda") != 0 || ms < 0;
}
