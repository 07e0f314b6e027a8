/*
 * odd.c: one rank of jobs that look odd and are healthy: `failfast_odd NAME [turn]`.
 *
 * Each is a way in which ranks may rightly count, order or repeat their calls differently; none may be refused. After
 * every one come calls whose sizes all differ, so that a rank that is off by one number meets a call that is not its
 * own. With "sick" the last rank makes one of these calls with another size: where comparing must go on, that is
 * refused (status 3).
 */
#include <cuda_runtime.h>
#include <nccl.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT 4096u

static int rank, size;
static bool sick;
static ncclComm_t world;
static cudaStream_t stream;
static float *from, *to;

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "failfast_odd: rank %d: line %d: %s: %s\n", rank, __LINE__, #condition,                    \
                    ncclGetLastError(NULL));                                                                           \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)
#define OK(call)   CHECK((call) == ncclSuccess)
#define CUDA(call) CHECK((call) == cudaSuccess)

/* The id that rank `root` puts under this name; `known`: this one, instead of a new one. */
static ncclUniqueId share_id(const char *name, bool root, const ncclUniqueId *known)
{
    char path[512], temporary[520];
    ncclUniqueId id;
    CHECK(getenv("JOB_DIR") != NULL);
    snprintf(path, sizeof(path), "%s/%s", getenv("JOB_DIR"), name);
    snprintf(temporary, sizeof(temporary), "%s.new", path);
    if (root) {
        if (known != NULL) {
            id = *known;
        } else {
            OK(ncclGetUniqueId(&id));
        }
        FILE *f = fopen(temporary, "wb");
        CHECK(f != NULL && fwrite(&id, sizeof(id), 1, f) == 1 && fclose(f) == 0 && rename(temporary, path) == 0);
        return id;
    }
    for (int i = 0; i < 280000; i++) {
        FILE *f = fopen(path, "rb");
        if (f != NULL) {
            CHECK(fread(&id, sizeof(id), 1, f) == 1);
            fclose(f);
            return id;
        }
        usleep(1000);
    }
    CHECK(!"nobody wrote the id");
    return id;
}

static ncclResult_t reduce(size_t count, ncclComm_t comm)
{
    volatile ncclResult_t result = ncclAllReduce(from, to, count, ncclFloat32, ncclSum, comm, stream);
    return result;
}

/* n calls, each of another size. */
static void ladder(ncclComm_t comm, int n)
{
    for (int i = 1; i <= n; i++) {
        OK(reduce((size_t)(i * 3), comm));
    }
    CUDA(cudaStreamSynchronize(stream));
}

static void finish(bool compared)
{
    ladder(world, 20);
    if (sick && compared) {
        usleep(rank == size - 1 ? 100000 : 0);
        ncclResult_t result = reduce(rank == size - 1 ? 1000 : 999, world);
        if (result == ncclInvalidUsage) {
            printf("refused %s\n", ncclGetLastError(NULL));
            fflush(stdout);
            _exit(3);
        }
        cudaStreamSynchronize(stream);
    }
    ladder(world, 20);
}

/* graphs */

static void begin(void)
{
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
}

static cudaGraphExec_t end(void)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    return exec;
}

static cudaGraphExec_t captured(size_t first, size_t second)
{
    begin();
    OK(reduce(first, world));
    if (second != 0) {
        OK(reduce(second, world));
    }
    return end();
}

static void launch(cudaGraphExec_t exec)
{
    CUDA(cudaGraphLaunch(exec, stream));
    CUDA(cudaStreamSynchronize(stream));
}

/* All ranks do the same: captured calls and calls after launches are compared. */
static void graphs(void)
{
    cudaGraphExec_t a = captured(10, 20), b = captured(30, 0);
    for (int i = 0; i < 5; i++) {
        launch(a);
        ladder(world, 4);
        launch(b);
        launch(b);
    }
    CUDA(cudaGraphExecDestroy(a));
    CUDA(cudaGraphExecDestroy(b));
    finish(true);
}

/* messages */

static void exchange(bool lowered, size_t count, size_t also)
{
    OK(ncclGroupStart());
    if (also != 0) {
        OK(reduce(also, world));
    }
    if (lowered) {
        OK(ncclAlltoAll(from, to, count, ncclFloat32, world, stream));
    }
    for (int peer = 0; !lowered && peer < size; peer++) {
        OK(ncclSend(from + (size_t)peer * count, count, ncclFloat32, peer, world, stream));
        OK(ncclRecv(to + (size_t)peer * count, count, ncclFloat32, peer, world, stream));
    }
    OK(ncclGroupEnd());
    CUDA(cudaStreamSynchronize(stream));
}

/* One rank's AlltoAll is another rank's sends and receives: from then on their numbers differ by one. */
static void lowered(void)
{
    for (int i = 0; i < 4; i++) {
        exchange((rank + i) % 2, 5, 0);
        ladder(world, 6);
        exchange(rank % 2, 7, 0);
        exchange((rank + 1) % 2, 9, 0);
        ladder(world, 6);
    }
    finish(false);
}

/* AlltoAll on all ranks, and messages too: comparing the rest goes on. */
static void both_kinds(void)
{
    for (int i = 0; i < 4; i++) {
        exchange(true, 5, i % 2 ? 77 : 0);
        exchange(false, 3, 0);
        ladder(world, 5);
    }
    finish(true);
}

/* communicators */

static void splits(void)
{
    ncclComm_t comm[24];
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < 24; i++) { /* equal keys; colours by halves, by pairs, by nobody */
            int color = i % 3 == 0 ? 0 : i % 3 == 1 ? rank % 2 : (rank == i % size ? NCCL_SPLIT_NOCOLOR : 7);
            OK(ncclCommSplit(world, color, 0, &comm[i], NULL));
        }
        for (int k = 0; k < 6; k++) {
            for (int i = 0; i < 24; i++) {
                if (comm[i] != NULL) {
                    OK(reduce((size_t)(100 * i + 7 * k + turn + 1 + (i % 3 == 1 ? rank % 2 * 50 : 0)), comm[i]));
                }
            }
        }
        CUDA(cudaStreamSynchronize(stream));
        for (int i = 0; i < 24; i++) {
            if (comm[i] != NULL) {
                OK(ncclCommDestroy(comm[i]));
            }
        }
    }
    finish(true);
}

/* Two disjoint parts of the job each shrink the communicator to themselves: both children have the same number, and
 * more children follow.
 */
static void shrinks(void)
{
    int other[64], n = 0, mine = rank < size / 2;
    ncclComm_t part, late;
    for (int r = 0; r < size; r++) {
        if ((r < size / 2) != mine) {
            other[n++] = r;
        }
    }
    OK(ncclCommShrink(world, other, n, &part, NULL, NCCL_SHRINK_DEFAULT));
    for (int i = 0; i < 10; i++) {
        OK(reduce((size_t)(i + 1 + mine * 500), part));
    }
    CUDA(cudaStreamSynchronize(stream));
    OK(ncclCommDestroy(part));
    int last = size - 1;
    if (rank != last) { /* numbers of children differ now */
        OK(ncclCommShrink(world, &last, 1, &part, NULL, NCCL_SHRINK_DEFAULT));
        OK(ncclCommDestroy(part));
    }
    for (int k = 0; k < 4; k++) {
        OK(ncclCommSplit(world, 0, rank, &late, NULL));
        for (int i = 0; i < 5; i++) {
            OK(reduce((size_t)(i + 1 + 600 * k), late));
        }
        CUDA(cudaStreamSynchronize(stream));
    }
    finish(true);
}

/* Communicators of one id, one after another, and (turn 2 in the same directory) again in a later run: hostnccl accepts
 * the id again. */
static void one_id(void)
{
    const char *path = getenv("FIXED_ID");
    ncclUniqueId id;
    CHECK(path != NULL);
    FILE *f = fopen(path, "rb");
    bool known = f != NULL;
    if (known) {
        CHECK(fread(&id, sizeof(id), 1, f) == 1 && fclose(f) == 0);
    }
    ladder(world, 1); /* all have looked */
    id = known ? id : share_id("fixed", rank == 0, NULL);
    if (!known && rank == 0) {
        f = fopen(path, "wb");
        CHECK(f != NULL && fwrite(&id, sizeof(id), 1, f) == 1 && fclose(f) == 0);
    }
    const char *turn = getenv("TURN");
    for (int i = 0; i < 3; i++) {
        ncclComm_t comm;
        ladder(world, 1);
        usleep(20000); /* the moments of lines are 17 ms apart */
        OK(ncclCommInitRank(&comm, size, id, rank));
        for (int k = 0; k < 10; k++) {
            OK(reduce((size_t)(100 * i + k + 1 + 400 * (turn != NULL ? atoi(turn) : 0)), comm));
        }
        CUDA(cudaStreamSynchronize(stream));
        OK(ncclCommDestroy(comm));
        ladder(world, 1);
        usleep(20000);
    }
    finish(true);
}

static void nonblocking(void)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm;
    ncclResult_t state = ncclInProgress;
    config.blocking = 0;
    ncclUniqueId id = share_id("nonblocking", rank == 0, NULL);
    ncclResult_t result = ncclCommInitRankConfig(&comm, size, id, rank, &config);
    CHECK(result == ncclSuccess || result == ncclInProgress);
    while (state == ncclInProgress) {
        OK(ncclCommGetAsyncError(comm, &state));
        usleep(1000);
    }
    OK(state);
    for (int i = 1; i < 30; i++) {
        if (i % 5 == 0) {
            OK(ncclGroupStart());
        }
        result = reduce((size_t)i, comm);
        CHECK(result == ncclSuccess || result == ncclInProgress);
        if (i % 5 == 0) {
            result = ncclGroupEnd();
            CHECK(result == ncclSuccess || result == ncclInProgress);
        }
        do {
            OK(ncclCommGetAsyncError(comm, &state));
        } while (state == ncclInProgress);
        OK(state);
    }
    CUDA(cudaStreamSynchronize(stream));
    finish(true);
}

/* One process, all devices: every rank has a job of its own, and one group holds a call of each member. */
static void init_all(void)
{
    enum { N = 4 };
    ncclComm_t comm[N];
    cudaStream_t s[N];
    OK(ncclCommInitAll(comm, N, NULL));
    for (int d = 0; d < N; d++) {
        CUDA(cudaSetDevice(d));
        CUDA(cudaStreamCreate(&s[d]));
    }
    for (int i = 1; i <= 20; i++) {
        OK(ncclGroupStart());
        for (int d = 0; d < N; d++) {
            OK(ncclAllReduce(from, from, (size_t)i, ncclFloat32, ncclSum, comm[d], s[d]));
            OK(ncclAllReduce(from, from, (size_t)i * 50, ncclFloat32, ncclSum, comm[d], s[d]));
        }
        OK(ncclGroupEnd());
    }
    if (sick) {
        OK(ncclGroupStart());
        for (int d = 0; d < N; d++) {
            OK(ncclAllReduce(from, from, d == 2 ? 9 : 8, ncclFloat32, ncclSum, comm[d], s[d]));
        }
        CHECK(ncclGroupEnd() == ncclInvalidUsage && strstr(ncclGetLastError(NULL), "the count differs") != NULL);
        OK(ncclGroupStart());
        for (int d = 0; d < N; d++) {
            OK(ncclAllReduce(from, from, 8, ncclFloat32, ncclSum, comm[d], s[d]));
        }
        OK(ncclGroupEnd());
    }
    for (int d = 0; d < N; d++) {
        CUDA(cudaStreamSynchronize(s[d]));
    }
    CUDA(cudaSetDevice(rank));
    finish(!sick);
}

static void *second_thread(void *arg)
{
    ncclComm_t comm = arg;
    cudaStream_t own;
    CUDA(cudaSetDevice(rank));
    CUDA(cudaStreamCreate(&own));
    for (int i = 0; i < 3000; i++) {
        OK(ncclAllReduce(from, to + COUNT, (size_t)(i % 17 + 1), ncclFloat32, ncclSum, comm, own));
    }
    CUDA(cudaStreamSynchronize(own));
    return NULL;
}

static void threads(void)
{
    ncclComm_t comm;
    pthread_t thread;
    OK(ncclCommSplit(world, 0, rank, &comm, NULL));
    CHECK(pthread_create(&thread, NULL, second_thread, comm) == 0);
    for (int i = 0; i < 3000; i++) {
        OK(reduce((size_t)(i % 13 + 1), world));
    }
    CHECK(pthread_join(thread, NULL) == 0);
    CUDA(cudaStreamSynchronize(stream));
    finish(true);
}

/* More calls than 16 bits count, more communicators than a set has lines, and ranks that pause now and then. */
static void many(void)
{
    ncclComm_t comm[40];
    for (int i = 0; i < 40; i++) {
        OK(ncclCommSplit(world, 0, rank, &comm[i], NULL));
    }
    for (int i = 0; i < 70000; i++) {
        OK(reduce((size_t)(i % 251 + 1), i % 8 ? world : comm[i / 8 % 40]));
        if (i % 4096 == 4095) {
            CUDA(cudaStreamSynchronize(stream));
            usleep(((unsigned)i / 4096u * 7u + (unsigned)rank * 5u) % 11u * 1000u);
        }
    }
    finish(true);
}

static const struct {
    const char *name;
    void (*run)(void);
} programs[] = {
    {"graphs", graphs},   {"lowered", lowered}, {"both-kinds", both_kinds},   {"splits", splits},
    {"shrinks", shrinks}, {"one-id", one_id},   {"nonblocking", nonblocking}, {"init-all", init_all},
    {"threads", threads}, {"many", many},
};

int main(int argc, char **argv)
{
    void (*run)(void) = NULL;
    for (size_t i = 0; argc >= 2 && i < sizeof(programs) / sizeof(programs[0]); i++) {
        run = strcmp(argv[1], programs[i].name) == 0 ? programs[i].run : run;
    }
    if (run == NULL || getenv("RANK") == NULL || getenv("WORLD_SIZE") == NULL) {
        fprintf(stderr, "usage: RANK=.. WORLD_SIZE=.. failfast_odd NAME [sick]\n");
        return 2;
    }
    rank = atoi(getenv("RANK"));
    size = atoi(getenv("WORLD_SIZE"));
    sick = argc > 2 && strcmp(argv[2], "sick") == 0;
    CUDA(cudaSetDevice(rank));
    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaMalloc((void **)&from, 8 * COUNT * sizeof(float)));
    CUDA(cudaMalloc((void **)&to, 8 * COUNT * sizeof(float)));
    memset(from, 0, 8 * COUNT * sizeof(float));
    OK(ncclCommInitRank(&world, size, share_id("id", rank == 0, NULL), rank));
    ladder(world, 3);
    run();
    OK(ncclCommDestroy(world));
    printf("done\n");
    return 0;
}
