/*
 * replay_stream.c: the streams of a rank that is made again, by the numbers that its records have; and the end of a
 * replay that cannot go on. A stream is made when the first call comes on it: records tell of no creation.
 */
#include "hostnccl/replay/replay.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

void stop(const char *what, const char *why)
{
    fprintf(stderr, "roll_replay: %s: %s\n", what, why);
    exit(9);
}

void cuda(cudaError_t error, const char *what)
{
    if (error != cudaSuccess) {
        stop(what, cudaGetErrorString(error));
    }
}

cudaStream_t stream_of(struct rank *r, uint16_t id)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    if (id <= 1) { /* none, and the legacy default stream */
        return NULL;
    }
    pthread_mutex_lock(&lock);
    if (!r->has_stream[id]) {
        cuda(cudaStreamCreateWithFlags(&r->stream[id], cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
        r->has_stream[id] = true;
    }
    pthread_mutex_unlock(&lock);
    return r->stream[id];
}
