/*
 * ranks.c: one rank of a real job on NCCL and the CUDA runtime: `ranks MODE RANK SIZE DIRECTORY`. Built against the
 * vendor's headers where there are any, run on hostnccl. Checks its own results; the test checks what was recorded.
 */
#include <cuda_runtime.h>
#include <nccl.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT 1024

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "ranks: line %d: %s\n", __LINE__, #condition);                                             \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define NCCL(call) CHECK((call) == ncclSuccess)
#define CUDA(call) CHECK((call) == cudaSuccess)

static int rank, size;
static ncclComm_t world;
static cudaStream_t stream;
static float *send, *recv;

/* Rank 0 makes the id and leaves it in a file; the others wait for it. */
static ncclUniqueId share_id(const char *directory)
{
    char path[256], temporary[300];
    ncclUniqueId id;
    snprintf(path, sizeof(path), "%s/id", directory);
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

static void start(const char *directory)
{
    ncclUniqueId id = share_id(directory);
    CUDA(cudaSetDevice(rank));
    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaMalloc((void **)&send, COUNT * sizeof(*send) * (size_t)size));
    CUDA(cudaMalloc((void **)&recv, COUNT * sizeof(*recv) * (size_t)size));
    for (int i = 0; i < COUNT * size; i++) {
        send[i] = (float)rank;
    }
    NCCL(ncclCommInitRank(&world, size, id, rank));
}

/* The one caller of the all-reduces: the test asks for it by name. */
__attribute__((noinline)) void train_step(size_t count);
void train_step(size_t count)
{
    NCCL(ncclAllReduce(send, recv, count, ncclFloat32, ncclSum, world, stream));
}

static void collectives(void)
{
    for (volatile int i = 0; i < 3; i++) {
        train_step(COUNT);
    }
    CUDA(cudaStreamSynchronize(stream));
    CHECK(recv[COUNT - 1] == (float)(size * (size - 1) / 2));
    NCCL(ncclBroadcast(send, recv, 7, ncclInt8, size - 1, world, stream));
    NCCL(ncclReduce(send, recv, 8, ncclFloat32, ncclMax, 0, world, stream));
    NCCL(ncclAllGather(send, recv, 9, ncclFloat32, world, stream));
    NCCL(ncclReduceScatter(send, recv, 10, ncclFloat32, ncclSum, world, stream));
    NCCL(ncclAlltoAll(send, recv, 11, ncclFloat32, world, stream));
    NCCL(ncclAllReduce(send, recv, 0, ncclFloat32, ncclSum, world, stream));
    NCCL(ncclBcast(recv, 12, ncclFloat32, 0, world, stream));
    CUDA(cudaDeviceSynchronize());
}

static void ring_exchange(void)
{
    NCCL(ncclGroupStart());
    NCCL(ncclSend(send, 13, ncclFloat32, (rank + 1) % size, world, stream));
    NCCL(ncclRecv(recv, 13, ncclFloat32, (rank + size - 1) % size, world, stream));
    NCCL(ncclGroupEnd());
    cudaEvent_t event;
    CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CUDA(cudaEventRecord(event, stream));
    CUDA(cudaEventSynchronize(event));
    CUDA(cudaEventDestroy(event));
    CHECK(recv[0] == (float)((rank + size - 1) % size));
}

static void halves(void)
{
    ncclComm_t half = NULL;
    NCCL(ncclCommSplit(world, rank % 2, rank, &half, NULL));
    NCCL(ncclAllReduce(send, recv, 14, ncclFloat32, ncclSum, half, stream));
    CUDA(cudaStreamSynchronize(stream));
    NCCL(ncclCommDestroy(half));
}

static void count_one(void **parameters)
{
    __atomic_add_fetch(*(uint64_t **)parameters[0], 1, __ATOMIC_RELEASE);
}

/* The driver comes into the process as it does with the vendor's runtime; the kernel is what a device would run. */
static void bring_driver(void)
{
    static const size_t bytes[] = {sizeof(uint64_t)};
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    CHECK(driver != NULL);
    int (*name_kernel)(const char *, void (*)(void **), size_t, const size_t *) =
        (int (*)(const char *, void (*)(void **), size_t, const size_t *))dlsym(driver, "hostcuda_register_kernel");
    CHECK(name_kernel != NULL && name_kernel("roll_count", count_one, 1, bytes) == 0);
}

/* Three calls on a stream, three captured and launched four times, and two more; all waited for. */
static void graphs(void)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    bring_driver();
    for (int i = 0; i < 3; i++) {
        train_step(COUNT);
    }
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < 3; i++) {
        train_step(COUNT);
    }
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 4; i++) {
        CUDA(cudaGraphLaunch(exec, stream));
    }
    CUDA(cudaStreamSynchronize(stream));
    CHECK(recv[COUNT - 1] == (float)(size * (size - 1) / 2));
    train_step(COUNT); /* this call asks which earlier ones are complete */
    train_step(COUNT);
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
    NCCL(ncclCommDestroy(world));
}

/* A good wait, and three that end in an error: there is no buffer to send, so the device faults. */
static void fault(void)
{
    cudaEvent_t event;
    CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    train_step(COUNT);
    CUDA(cudaStreamSynchronize(stream));
    NCCL(ncclAllReduce(NULL, recv, COUNT, ncclFloat32, ncclSum, world, stream));
    CHECK(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
    CHECK(cudaEventSynchronize(event) == cudaErrorIllegalAddress);
    CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        return 2;
    }
    rank = atoi(argv[2]);
    size = atoi(argv[3]);
    start(argv[4]);
    if (strcmp(argv[1], "skip") == 0) { /* the last rank leaves a call out, and waits */
        if (rank == size - 1) {
            sleep(600);
        }
        train_step(COUNT);
        CUDA(cudaStreamSynchronize(stream));
        return 1; /* the rank hangs before this line */
    }
    if (strcmp(argv[1], "graphs") == 0) {
        graphs();
        return 0;
    }
    if (strcmp(argv[1], "fault") == 0) {
        fault();
        return 0;
    }
    collectives();
    ring_exchange();
    halves();
    NCCL(ncclCommFinalize(world));
    NCCL(ncclCommDestroy(world));
    return 0;
}
