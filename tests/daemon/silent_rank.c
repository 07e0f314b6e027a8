/*
 * silent_rank.c: one rank of a job on hostnccl that works until it is told to stop: `silent_rank DIRECTORY`, RANK and
 * WORLD_SIZE in the environment.
 *
 * Each round is an all-reduce of one number, and a wait; rank 0 gives 1 to it when DIRECTORY/stop is there, so that all
 * stop at the same round. While DIRECTORY/hold.RANK is there, that rank stays in its own code. DIRECTORY/rounds.RANK
 * holds the rounds so far.
 */
#include "meeting.h"

#include <unistd.h>

#define ROUNDS_A_WORD 16

static void tell_rounds(const meeting *m, unsigned rounds)
{
    char name[32], text[16];
    snprintf(name, sizeof(name), "rounds.%d", m->rank);
    int n = snprintf(text, sizeof(text), "%u\n", rounds);
    meeting_tell(m, name, text, (size_t)n);
}

int main(int argc, char **argv)
{
    NEED(argc == 2);
    meeting m = meeting_join(argv[1]);
    float *give, *sum, stop = 0;
    char hold[32];
    snprintf(hold, sizeof(hold), "hold.%d", m.rank);
    NEED(cudaMalloc((void **)&give, sizeof(float)) == cudaSuccess);
    NEED(cudaMalloc((void **)&sum, sizeof(float)) == cudaSuccess);
    for (unsigned round = 0; stop == 0; round++) {
        float mine = m.rank == 0 && meeting_there(&m, "stop");
        meeting_wait(&m, hold, false);
        NEED(cudaMemcpy(give, &mine, sizeof(mine), cudaMemcpyHostToDevice) == cudaSuccess);
        NEED(ncclAllReduce(give, sum, 1, ncclFloat32, ncclSum, m.comm, m.stream) == ncclSuccess);
        NEED(cudaStreamSynchronize(m.stream) == cudaSuccess);
        NEED(cudaMemcpy(&stop, sum, sizeof(stop), cudaMemcpyDeviceToHost) == cudaSuccess);
        if (round % ROUNDS_A_WORD == 0) {
            tell_rounds(&m, round);
        }
        usleep(2000);
    }
    NEED(ncclCommDestroy(m.comm) == ncclSuccess);
    return 0;
}
