/*
 * job.c: one rank of a job for the tests of fail-fast: `failfast_job NAME sick|healthy|solo`.
 *
 * The last rank makes the mistake of a sick program; every call stands in right_call or wrong_call, which the tests ask
 * for by name. A rank whose call is refused prints one line, "refused <ns it took> <text>", checks what the
 * communicator still answers, and ends with status 3. A rank that is not refused waits for the others, as a training
 * job would.
 */
#include <cuda_runtime.h>
#include <nccl.h>

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define COUNT 1024u

static int rank, size;
static bool culprit, abort_mode;
static ncclComm_t world;
static cudaStream_t stream;
static float *from, *to;

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "failfast_job: rank %d: line %d: %s\n", rank, __LINE__, #condition);                       \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static const char *need(const char *name)
{
    const char *value = getenv(name);
    if (value == NULL) {
        fprintf(stderr, "failfast_job: %s is not set\n", name);
        exit(2);
    }
    return value;
}

static ncclUniqueId share_id(void)
{
    char path[512], temporary[520];
    ncclUniqueId id;
    snprintf(path, sizeof(path), "%s/id", need("JOB_DIR"));
    snprintf(temporary, sizeof(temporary), "%s.new", path);
    if (rank == 0) {
        CHECK(ncclGetUniqueId(&id) == ncclSuccess);
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
    CHECK(!"rank 0 never wrote the id");
    return id;
}

/* Called after a refused call: prints the line, and checks that the communicator answers as docs/INTERPOSER.md
 * promises. */
static void refused(void)
{
    printf("refused %s\n", ncclGetLastError(NULL));
    if (abort_mode) {
        ncclResult_t state = ncclSuccess;
        int n = 0;
        ncclComm_t child = NULL;
        CHECK(ncclAllReduce(from, to, COUNT, ncclFloat32, ncclSum, world, stream) == ncclInvalidUsage);
        CHECK(strstr(ncclGetLastError(world), "aborted") != NULL);
        CHECK(ncclCommGetAsyncError(world, &state) == ncclSuccess && state == ncclInvalidUsage);
        CHECK(ncclCommCount(world, &n) == ncclInvalidUsage && n == 0);
        CHECK(ncclCommSplit(world, 0, 0, &child, NULL) == ncclInvalidUsage && child == NULL);
        CHECK(ncclGroupStart() == ncclSuccess);
        CHECK(ncclAllReduce(from, to, COUNT, ncclFloat32, ncclSum, world, stream) == ncclInvalidUsage);
        CHECK(ncclGroupEnd() == ncclInvalidUsage);
        CHECK(ncclGroupStart() == ncclSuccess && ncclGroupEnd() == ncclSuccess);
        CHECK(ncclCommAbort(world) == ncclSuccess);
    } else {
        int n = 0;
        CHECK(ncclCommCount(world, &n) == ncclSuccess && n == size);
    }
    fflush(stdout);
    _exit(3);
}

static void must(ncclResult_t result)
{
    if (result == ncclInvalidUsage) {
        refused();
    }
    CHECK(result == ncclSuccess);
}

static ncclResult_t reduce(size_t count, ncclDataType_t type, ncclRedOp_t op)
{
    return ncclAllReduce(from, to, count, type, op, world, stream);
}

__attribute__((noinline)) ncclResult_t right_call(size_t count, ncclDataType_t type, ncclRedOp_t op);
__attribute__((noinline)) ncclResult_t wrong_call(size_t count, ncclDataType_t type, ncclRedOp_t op);
__attribute__((noinline)) ncclResult_t right_rooted(int root);
__attribute__((noinline)) ncclResult_t wrong_rooted(int root);
__attribute__((noinline)) ncclResult_t wrong_gather(size_t count);

/* right_call and wrong_call each make their own call, so that the return address lies in them (no tail call: the result
 * is used). */
ncclResult_t right_call(size_t count, ncclDataType_t type, ncclRedOp_t op)
{
    volatile ncclResult_t result = ncclAllReduce(from, to, count, type, op, world, stream);
    return result;
}

ncclResult_t wrong_call(size_t count, ncclDataType_t type, ncclRedOp_t op)
{
    volatile ncclResult_t result = ncclAllReduce(from, to, count, type, op, world, stream);
    return result;
}

ncclResult_t right_rooted(int root)
{
    volatile ncclResult_t result = ncclBroadcast(from, to, COUNT, ncclFloat32, root, world, stream);
    return result;
}

ncclResult_t wrong_rooted(int root)
{
    volatile ncclResult_t result = ncclBroadcast(from, to, COUNT, ncclFloat32, root, world, stream);
    return result;
}

ncclResult_t wrong_gather(size_t count)
{
    volatile ncclResult_t result = ncclAllGather(from, to, count, ncclFloat32, world, stream);
    return result;
}

static void steps(int n)
{
    for (int i = 0; i < n; i++) {
        must(right_call(COUNT, ncclFloat32, ncclSum));
    }
}

static void wait_all(void)
{
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    float sum = (float)(size * (size - 1) / 2);
    CHECK(to[0] == sum && to[COUNT - 1] == sum);
}

static void wrong_count(void)
{
    must(culprit ? wrong_call(COUNT / 2, ncclFloat32, ncclSum) : right_call(COUNT, ncclFloat32, ncclSum));
}

static void wrong_dtype(void)
{
    must(culprit ? wrong_call(COUNT, ncclInt32, ncclSum) : right_call(COUNT, ncclFloat32, ncclSum));
}

static void wrong_redop(void)
{
    must(culprit ? wrong_call(COUNT, ncclFloat32, ncclMax) : right_call(COUNT, ncclFloat32, ncclSum));
}

static void wrong_op(void)
{
    must(culprit ? wrong_gather(COUNT / 8) : right_call(COUNT, ncclFloat32, ncclSum));
}

static void wrong_root(void)
{
    must(culprit ? wrong_rooted(1) : right_rooted(0));
}

static void wrong_bytes(void)
{
    volatile ncclResult_t result = culprit ? wrong_gather(16) : wrong_gather(8);
    must(result);
}

/* A call without elements is dropped by NCCL; the next one shows it. */
static void zero(void)
{
    must(culprit ? wrong_call(0, ncclFloat32, ncclSum) : right_call(COUNT, ncclFloat32, ncclSum));
    must(wrong_gather(8));
}

static void skipped(void)
{
    if (!culprit) {
        must(right_call(COUNT, ncclFloat32, ncclSum));
    }
    must(wrong_call(COUNT / 2, ncclFloat32, ncclSum));
}

static void added(void)
{
    if (culprit) {
        must(wrong_call(COUNT / 2, ncclFloat32, ncclSum));
    }
    must(right_call(COUNT, ncclFloat32, ncclSum));
    must(wrong_gather(8));
}

static ncclResult_t in_group(size_t first, size_t second, size_t third)
{
    CHECK(ncclGroupStart() == ncclSuccess);
    CHECK(ncclGroupStart() == ncclSuccess);
    CHECK(reduce(first, ncclFloat32, ncclSum) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclSuccess);
    CHECK(right_call(second, ncclFloat32, ncclSum) == ncclSuccess);
    if (third != 0) {
        CHECK((culprit ? wrong_call : right_call)(third, ncclFloat32, ncclSum) == ncclSuccess);
    }
    ncclResult_t result = ncclGroupEnd();
    if (result == ncclInvalidUsage) { /* the thread is in no group any more, and NCCL neither */
        CHECK(ncclGroupStart() == ncclSuccess && ncclGroupEnd() == ncclSuccess);
    }
    return result;
}

static void group_count(void)
{
    must(culprit ? in_group(10, 20, 41) : in_group(10, 20, 40));
}

static void group_lacks(void)
{
    must(culprit ? in_group(10, 20, 0) : in_group(10, 20, 40));
    must(wrong_gather(8));
}

/* The order inside a group is free for calls whose sizes differ enough. */
static void group_order(void)
{
    for (int i = 0; i < 20; i++) {
        must(rank % 2 ? in_group(10, 20, 40) : in_group(40, 10, 20));
    }
    steps(1);
}

/* All ranks make the same calls: some in one group, others apart or in two groups; larger ones first, as NCCL sorts. */
static void boundaries(void)
{
    for (int i = 0; i < 10; i++) {
        if (rank % 3 == 0) {
            must(in_group(160, 80, 40));
            must(in_group(20, 10, 0));
        } else if (rank % 3 == 1) {
            must(reduce(160, ncclFloat32, ncclSum));
            must(in_group(80, 40, 20));
            must(reduce(10, ncclFloat32, ncclSum));
        } else {
            for (size_t n = 160; n >= 10; n /= 2) {
                must(reduce(n, ncclFloat32, ncclSum));
            }
        }
    }
    steps(1);
}

/* Other datatypes with as many bytes, where bytes are all that NCCL moves; one PreMulSum per rank, with handles that
 * differ. */
static void looks_odd(void)
{
    ncclRedOp_t op[3];
    float scale = 1.0f;
    for (int i = 0; i <= rank % 3; i++) {
        CHECK(ncclRedOpCreatePreMulSum(&op[i], &scale, ncclFloat32, ncclScalarHostImmediate, world) == ncclSuccess);
    }
    must(rank % 2 ? ncclAllGather(from, to, 8, ncclFloat32, world, stream)
                  : ncclAllGather(from, to, 32, ncclInt8, world, stream));
    must(right_call(0, ncclFloat32, ncclSum));
    must(ncclAllReduce(from, to, COUNT, ncclFloat32, op[rank % 3], world, stream));
    wait_all();
    for (int i = 0; i <= rank % 3; i++) {
        CHECK(ncclRedOpDestroy(op[i], world) == ncclSuccess);
    }
}

/* One rank passes an extra call without elements: nothing differs for NCCL. */
static void extra_zero(void)
{
    if (rank == size - 1) {
        must(right_call(0, ncclFloat32, ncclSum));
    }
    steps(3);
}

/* AlltoAll on some ranks meets sends and receives on others. */
static void lowered(void)
{
    for (int i = 0; i < 3; i++) {
        CHECK(ncclGroupStart() == ncclSuccess);
        for (int peer = 0; peer < size; peer++) {
            CHECK(ncclSend(from + peer, 1, ncclFloat32, peer, world, stream) == ncclSuccess);
            CHECK(ncclRecv(to + peer, 1, ncclFloat32, peer, world, stream) == ncclSuccess);
        }
        must(ncclGroupEnd());
        CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    }
    if (rank % 2) {
        must(ncclAlltoAll(from, to, 1, ncclFloat32, world, stream));
    } else {
        CHECK(ncclGroupStart() == ncclSuccess);
        for (int peer = 0; peer < size; peer++) {
            CHECK(ncclSend(from + peer, 1, ncclFloat32, peer, world, stream) == ncclSuccess);
            CHECK(ncclRecv(to + peer, 1, ncclFloat32, peer, world, stream) == ncclSuccess);
        }
        must(ncclGroupEnd());
    }
    must(right_call(COUNT, ncclFloat32, ncclSum));
}

/* A file of the job's directory: that a rank has come so far, in this round. */
static void path_of(char *path, size_t bytes, int who, int round)
{
    snprintf(path, bytes, "%s/been.%d.%d", need("JOB_DIR"), who, round);
}

static void tell_others(int round)
{
    char path[600];
    path_of(path, sizeof(path), rank, round);
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL && fclose(f) == 0);
}

static void wait_for_others(int round)
{
    for (int who = 0; who < size; who++) {
        char path[600];
        bool there = who == rank;
        path_of(path, sizeof(path), who, round);
        for (int i = 0; !there && i < 280000; i++) {
            usleep(1000);
            there = access(path, F_OK) == 0;
        }
        CHECK(there);
    }
}

/* A refused call takes no number: the right call takes the place of the wrong one, and the job goes on. */
static void mended(void)
{
    for (int i = 0; i < 5; i++) {
        if (culprit) {
            wait_for_others(i); /* they have made the right call */
            CHECK(wrong_call(COUNT / 2, ncclFloat32, ncclSum) == ncclInvalidUsage);
            CHECK(strstr(ncclGetLastError(NULL), "the count differs (512 here, 1024 there)") != NULL);
            CHECK(in_group(10, 20, 40) == ncclInvalidUsage);
        }
        steps(1);
        tell_others(i);
        wait_all();
        must(in_group(10, 20, 40));
    }
    if (culprit) { /* NCCL's own error is newer than our text, so its text is given */
        int n;
        CHECK(strstr(ncclGetLastError(NULL), "rollcall") != NULL);
        CHECK(ncclCommCount(NULL, &n) == ncclInvalidArgument);
        CHECK(strstr(ncclGetLastError(NULL), "rollcall") == NULL);
    }
}

/* A call that NCCL refuses, or only simulates, takes no number either, and leaves nothing to compare with. The call
 * that NCCL refuses here looks right from outside: it has another operator that the user made. */
static void failing(void)
{
    const ncclRedOp_t unknown = (ncclRedOp_t)4711;
    ncclRedOp_t op;
    float scale = 1.0f;
    CHECK(ncclRedOpCreatePreMulSum(&op, &scale, ncclFloat32, ncclScalarHostImmediate, world) == ncclSuccess);
    for (int i = 0; i < 5; i++) {
        if (rank == i % size) {
            ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
            CHECK(right_call(COUNT, ncclFloat32, unknown) == ncclInvalidArgument);
            CHECK(ncclGroupStart() == ncclSuccess);
            CHECK(right_call(COUNT, ncclFloat32, op) == ncclSuccess);
            CHECK(right_call(COUNT, ncclFloat32, unknown) == ncclInvalidArgument);
            CHECK(ncclGroupEnd() == ncclInvalidArgument);
            CHECK(ncclGroupStart() == ncclSuccess);
            CHECK(right_call(79, ncclFloat32, ncclSum) == ncclSuccess);
            CHECK(ncclGroupSimulateEnd(&info) == ncclSuccess);
        }
        must(right_call(COUNT, ncclFloat32, op));
        must(right_call(COUNT, ncclFloat32, op));
        must(ncclAllGather(from, to, 8, ncclFloat32, world, stream));
        steps(1);
        wait_all();
    }
    CHECK(ncclRedOpDestroy(op, world) == ncclSuccess);
}

/* A child of fork compares nothing, and its parent goes on. */
static void forked(void)
{
    steps(2);
    pid_t child = fork();
    if (child == 0) {
        /* The communicator is of no use here, but a call must neither be refused nor crash: NCCL refuses NULL. */
        _exit(ncclAllReduce(from, to, 1, ncclFloat32, ncclSum, NULL, stream) == ncclInvalidArgument ? 0 : 1);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    steps(2);
}

/* A rank dies while it publishes: ranks that come later are not held up by its unfinished line. */
static void killed(void)
{
    if (culprit) {
        raise(SIGKILL);
    }
    steps(1);
}

/* So many calls that every line of the table is used again. */
static void long_run(void)
{
    for (int i = 0; i < 300; i++) {
        for (int k = 0; k < 64; k++) {
            must(reduce((size_t)(k % 7 + 1), ncclFloat32, ncclSum));
        }
        CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    }
    steps(1);
}

static const struct {
    const char *name;
    void (*run)(void);
} programs[] = {
    {"count", wrong_count},
    {"dtype", wrong_dtype},
    {"redop", wrong_redop},
    {"op", wrong_op},
    {"root", wrong_root},
    {"bytes", wrong_bytes},
    {"zero", zero},
    {"skipped", skipped},
    {"added", added},
    {"group-count", group_count},
    {"group-lacks", group_lacks},
    {"group-order", group_order},
    {"boundaries", boundaries},
    {"looks-odd", looks_odd},
    {"extra-zero", extra_zero},
    {"lowered", lowered},
    {"mended", mended},
    {"failing", failing},
    {"forked", forked},
    {"killed", killed},
    {"long", long_run},
};

int main(int argc, char **argv)
{
    void (*run)(void) = NULL;
    for (size_t i = 0; argc == 3 && i < sizeof(programs) / sizeof(programs[0]); i++) {
        run = strcmp(argv[1], programs[i].name) == 0 ? programs[i].run : run;
    }
    if (run == NULL) {
        fprintf(stderr, "usage: failfast_job NAME sick|healthy\n");
        return 2;
    }
    rank = atoi(need("RANK"));
    size = atoi(need("WORLD_SIZE"));
    culprit = strcmp(argv[2], "sick") == 0 && rank == size - 1;
    const char *wish = getenv("ROLLCALL_ON_MISMATCH");
    abort_mode = wish != NULL && strcmp(wish, "abort") == 0;
    CHECK(cudaSetDevice(rank) == cudaSuccess && cudaStreamCreate(&stream) == cudaSuccess);
    CHECK(cudaMalloc((void **)&from, 4 * COUNT * 8) == cudaSuccess);
    CHECK(cudaMalloc((void **)&to, 4 * COUNT * 8) == cudaSuccess);
    for (unsigned i = 0; i < COUNT * 8; i++) {
        from[i] = (float)rank;
    }
    CHECK(ncclCommInitRank(&world, size, share_id(), rank) == ncclSuccess);
    steps(3);
    wait_all();
    run();
    steps(2);
    wait_all();
    CHECK(ncclCommDestroy(world) == ncclSuccess);
    printf("done\n");
    return 0;
}
