/*
 * lone_rank.c: one rank of a job on hostnccl, the last of which hangs by itself: `lone_rank DIRECTORY sync|free`, RANK
 * and WORLD_SIZE in the environment.
 *
 * All ranks make one all-reduce and wait for it. Then the last one enqueues a host function that returns when
 * DIRECTORY/go is there, and waits for its stream, or frees memory, behind that function. The others wait for
 * DIRECTORY/go in their own code. Then all of them end in good order.
 */
#include "meeting.h"

#include <string.h>

static void wait_for_go(void *m)
{
    meeting_wait(m, "go", true);
}

int main(int argc, char **argv)
{
    NEED(argc == 3);
    meeting m = meeting_join(argv[1]);
    float *data;
    NEED(cudaMalloc((void **)&data, 1024 * sizeof(float)) == cudaSuccess);
    NEED(ncclAllReduce(data, data, 1024, ncclFloat32, ncclSum, m.comm, m.stream) == ncclSuccess);
    NEED(cudaStreamSynchronize(m.stream) == cudaSuccess);
    if (m.rank == m.size - 1) {
        NEED(cudaLaunchHostFunc(m.stream, wait_for_go, &m) == cudaSuccess);
        if (strcmp(argv[2], "sync") == 0) {
            NEED(cudaStreamSynchronize(m.stream) == cudaSuccess);
        }
    } else {
        wait_for_go(&m);
    }
    NEED(cudaFree(data) == cudaSuccess);
    NEED(ncclCommDestroy(m.comm) == ncclSuccess);
    return 0;
}
