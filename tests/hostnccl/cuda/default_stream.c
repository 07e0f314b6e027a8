/*
 * default_stream.c: compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM: stream 0 is the thread's own, two threads' do not
 * wait for each other, and a program can still reach the legacy stream by its name.
 */
#define CUDA_API_PER_THREAD_DEFAULT_STREAM
#include <cuda_runtime.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>

static sem_t gate;

static void hold(void *unused)
{
    (void)unused;
    while (sem_wait(&gate)) {
    }
}

static void *other_thread(void *memory)
{
    /* Would wait for the main thread's stream if both were the legacy stream. */
    int value = 0;
    if (cudaMemset(memory, 1, sizeof(int)) || cudaMemcpy(&value, memory, sizeof(int), cudaMemcpyDeviceToHost) ||
        cudaStreamSynchronize(0) || cudaStreamQuery(0) || value != 0x01010101) {
        return NULL;
    }
    return memory;
}

int main(void)
{
    pthread_t thread;
    void *memory, *result;
    unsigned long long own, named, legacy;
    sem_init(&gate, 0, 0);
    if (cudaMalloc(&memory, sizeof(int)) || cudaLaunchHostFunc(0, hold, NULL)) {
        return 1;
    }
    pthread_create(&thread, NULL, other_thread, memory);
    pthread_join(thread, &result);
    if (result != memory) {
        fprintf(stderr, "the other thread's default stream did not work by itself\n");
        return 1;
    }
    if (cudaStreamQuery(0) != cudaErrorNotReady || cudaStreamGetId(0, &own) ||
        cudaStreamGetId(cudaStreamPerThread, &named) || cudaStreamGetId(cudaStreamLegacy, &legacy) || own != named ||
        own == legacy) {
        fprintf(stderr, "stream 0 is not the thread's own\n");
        return 1;
    }
    if (cudaStreamQuery(cudaStreamLegacy) != cudaErrorNotReady) {
        fprintf(stderr, "the legacy stream is not ordered behind a thread's default stream\n");
        return 1;
    }
    sem_post(&gate);
    return cudaStreamSynchronize(0) || cudaFree(memory);
}
