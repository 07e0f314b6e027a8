/*
 * static_job.c: one rank of a job that has NCCL linked into it, hidden from the dynamic linker:
 * `static_job MODE RANK SIZE DIRECTORY`.
 *
 *   nonblocking  a nonblocking communicator, so that groups are launched by a thread of NCCL
 *   two          two communicators in one group, sends and all-reduces mixed
 *   count        the last rank all-reduces another count than the others; runs into the mismatch
 *   same         the same without the mistake
 *   wrong-recv   rank 1 receives fewer bytes than rank 0 sends
 *   idle         has NCCL in it and makes no call of it
 *   quiet        makes a communicator and calls, then works without NCCL for a while
 *   workers      the same beside two forked processes that call nothing, like those of a data loader
 */
#include <cuda_runtime.h>
#include <nccl.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT 256

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "static_job: line %d: %s\n", __LINE__, #condition);                                        \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define NCCL(call) CHECK((call) == ncclSuccess)
#define CUDA(call) CHECK((call) == cudaSuccess)

static int rank, size;
static cudaStream_t stream;
static float *send, *recv;
static const char *directory;

/* Rank 0 makes the id and leaves it in a file; the others wait for it. */
static ncclUniqueId share_id(const char *name)
{
    char path[256], temporary[300];
    ncclUniqueId id;
    snprintf(path, sizeof(path), "%s/%s", directory, name);
    snprintf(temporary, sizeof(temporary), "%s.new", path);
    if (rank == 0) {
        NCCL(ncclGetUniqueId(&id));
        int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        CHECK(fd >= 0 && write(fd, &id, sizeof(id)) == (ssize_t)sizeof(id) && close(fd) == 0);
        CHECK(rename(temporary, path) == 0);
        return id;
    }
    int fd = -1;
    for (int i = 0; i < 280000 && (fd = open(path, O_RDONLY)) < 0; i++) {
        usleep(1000);
    }
    CHECK(fd >= 0 && read(fd, &id, sizeof(id)) == (ssize_t)sizeof(id));
    close(fd);
    return id;
}

static void settle(ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress;
    for (int i = 0; i < 560000 && state == ncclInProgress; i++) {
        NCCL(ncclCommGetAsyncError(comm, &state));
        usleep(500);
    }
    CHECK(state == ncclSuccess);
}

static void nonblocking(void)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = NULL;
    config.blocking = 0;
    ncclResult_t rc = ncclCommInitRankConfig(&comm, size, share_id("id"), rank, &config);
    CHECK(rc == ncclSuccess || rc == ncclInProgress);
    settle(comm);
    for (int i = 0; i < 2; i++) {
        NCCL(ncclGroupStart());
        ncclSend(send, 5, ncclFloat32, (rank + 1) % size, comm, stream);
        ncclRecv(recv, 5, ncclFloat32, (rank + size - 1) % size, comm, stream);
        rc = ncclGroupEnd();
        CHECK(rc == ncclSuccess || rc == ncclInProgress);
        settle(comm);
        rc = ncclAllReduce(send, recv, 6, ncclFloat32, ncclSum, comm, stream);
        CHECK(rc == ncclSuccess || rc == ncclInProgress);
        settle(comm);
    }
    CUDA(cudaStreamSynchronize(stream));
    ncclCommDestroy(comm);
}

static void two(void)
{
    ncclComm_t a, b;
    NCCL(ncclCommInitRank(&a, size, share_id("a"), rank));
    NCCL(ncclCommInitRank(&b, size, share_id("b"), rank));
    NCCL(ncclGroupStart());
    NCCL(ncclAllReduce(send, recv, 7, ncclFloat32, ncclSum, a, stream));
    NCCL(ncclSend(send, 8, ncclFloat32, (rank + 1) % size, b, stream));
    NCCL(ncclRecv(recv + 64, 8, ncclFloat32, (rank + size - 1) % size, b, stream));
    NCCL(ncclGroupEnd());
    NCCL(ncclGroupStart());
    NCCL(ncclAllReduce(send, recv, 9, ncclFloat32, ncclSum, a, stream));
    NCCL(ncclAllReduce(send, recv + 64, 10, ncclFloat32, ncclSum, b, stream));
    NCCL(ncclGroupEnd());
    CUDA(cudaStreamSynchronize(stream));
    NCCL(ncclCommDestroy(b));
    NCCL(ncclCommDestroy(a));
}

static void reduce_in_turn(size_t mine)
{
    ncclComm_t comm;
    NCCL(ncclCommInitRank(&comm, size, share_id("id"), rank));
    for (int i = 0; i < 20; i++) {
        NCCL(ncclAllReduce(send, recv, i == 10 ? mine : COUNT, ncclFloat32, ncclSum, comm, stream));
        if (i == 0) { /* up to version 3 nobody tells how many ranks there are: let all be seen */
            CUDA(cudaStreamSynchronize(stream));
            usleep(400000);
        }
    }
    CUDA(cudaStreamSynchronize(stream));
    NCCL(ncclCommDestroy(comm));
}

static void wrong_recv(void)
{
    ncclComm_t comm;
    NCCL(ncclCommInitRank(&comm, size, share_id("id"), rank));
    NCCL(ncclAllReduce(send, recv, COUNT, ncclFloat32, ncclSum, comm, stream));
    if (rank == 0) {
        NCCL(ncclSend(send, 100, ncclFloat32, 1, comm, stream));
    } else if (rank == 1) {
        NCCL(ncclRecv(recv, 60, ncclFloat32, 0, comm, stream));
    }
    NCCL(ncclAllReduce(send, recv, COUNT, ncclFloat32, ncclSum, comm, stream));
    CUDA(cudaStreamSynchronize(stream));
    NCCL(ncclCommDestroy(comm));
}

static void quiet(int workers)
{
    ncclComm_t comm;
    NCCL(ncclCommInitRank(&comm, size, share_id("id"), rank));
    NCCL(ncclAllReduce(send, recv, COUNT, ncclFloat32, ncclSum, comm, stream));
    CUDA(cudaStreamSynchronize(stream));
    for (int i = 0; i < workers; i++) {
        if (fork() == 0) {
            usleep(6500000);
            _exit(0);
        }
    }
    usleep(7000000);
    while (wait(NULL) > 0) {
    }
    NCCL(ncclCommDestroy(comm));
}

int main(int argc, char **argv)
{
    int version = 0;
    if (argc != 5) {
        return 2;
    }
    rank = atoi(argv[2]);
    size = atoi(argv[3]);
    directory = argv[4];
    if (strcmp(argv[1], "idle") == 0) {
        NCCL(ncclGetVersion(&version));
        usleep(7000000);
        return 0;
    }
    CUDA(cudaSetDevice(rank));
    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaMalloc((void **)&send, COUNT * 2 * sizeof(*send)));
    CUDA(cudaMalloc((void **)&recv, COUNT * 2 * sizeof(*recv)));
    if (strcmp(argv[1], "nonblocking") == 0) {
        nonblocking();
    } else if (strcmp(argv[1], "two") == 0) {
        two();
    } else if (strcmp(argv[1], "count") == 0) {
        reduce_in_turn(rank == size - 1 ? COUNT / 2 : COUNT);
    } else if (strcmp(argv[1], "same") == 0) {
        reduce_in_turn(COUNT);
    } else if (strcmp(argv[1], "wrong-recv") == 0) {
        wrong_recv();
    } else if (strcmp(argv[1], "quiet") == 0) {
        quiet(0);
    } else if (strcmp(argv[1], "workers") == 0) {
        quiet(2);
    } else {
        return 2;
    }
    return 0;
}
