/* test_life.c: the life of communicators: init in all its forms, split, shrink, nonblocking, finalize, destroy, abort,
 * revoke, registration. */
#include "tests/hostnccl/nccl/harness.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static _Thread_local int x[64], y[64];

static int sum_of(ncclComm_t comm, int value, cudaStream_t stream)
{
    int out = -1;

    NCCL(ncclAllReduce(&value, &out, 1, ncclInt, ncclSum, comm, stream));
    CUDA(cudaStreamSynchronize(stream));
    return out;
}

static void expect_place(ncclComm_t comm, int rank, int count, int device)
{
    int a = -1, b = -1, c = -1;

    NCCL(ncclCommUserRank(comm, &a));
    NCCL(ncclCommCount(comm, &b));
    NCCL(ncclCommCuDevice(comm, &c));
    CHECK(a == rank && b == count && c == device);
}

static void case_split(struct rank *r)
{
    ncclComm_t half, grand, none = (ncclComm_t)(uintptr_t)8, same, bad;
    int odd = r->rank % 2, place = (r->n - 1 - r->rank) / 2;

    NCCL(ncclCommSplit(r->comm, odd, -r->rank, &half, NULL)); /* by descending rank */
    expect_place(half, place, r->n / 2, r->rank % 8);
    CHECK(sum_of(half, r->rank, r->stream) == (odd ? 1 + 3 + 5 : 0 + 2 + 4));
    NCCL(ncclCommSplit(r->comm, r->rank ? NCCL_SPLIT_NOCOLOR : 7, 0, &none, NULL));
    CHECK((none == NULL) == (r->rank != 0));
    NCCL(ncclCommSplit(half, 0, 5, &grand, NULL)); /* equal keys: the parent's order */
    expect_place(grand, place, r->n / 2, r->rank % 8);
    NCCL(ncclCommSplit(r->comm, 0, 0, &same, NULL));
    CHECK(sum_of(same, 1, r->stream) == r->n && sum_of(grand, 1, r->stream) == r->n / 2);
    NCCL_IS(ncclInvalidArgument, ncclCommSplit(r->comm, -5, 0, &bad, NULL));
    CHECK(sum_of(r->comm, 1, r->stream) == r->n);
    NCCL(ncclCommDestroy(none));
    NCCL(ncclCommDestroy(same));
    NCCL(ncclCommDestroy(half));
    NCCL(ncclCommDestroy(grand));
}

static void case_shrink(struct rank *r)
{
    ncclComm_t rest = NULL, none;
    int gone[] = {1}, bad[] = {99};

    if (r->rank != 1) {
        NCCL(ncclCommShrink(r->comm, gone, 1, &rest, NULL, NCCL_SHRINK_DEFAULT));
        expect_place(rest, r->rank ? r->rank - 1 : 0, r->n - 1, r->rank % 8);
        CHECK(sum_of(rest, r->rank, r->stream) == r->n * (r->n - 1) / 2 - 1);
        NCCL_IS(ncclInvalidArgument, ncclCommShrink(rest, bad, 1, &none, NULL, NCCL_SHRINK_DEFAULT));
        NCCL(ncclCommDestroy(rest));
    }
    CHECK(sum_of(r->comm, 1, r->stream) == r->n); /* the parent lives on */
}

/* Rank 1 is gone in the middle of a collective: the survivors stop it and go on without. */
static void case_shrink_abort(struct rank *r)
{
    ncclComm_t rest;
    int gone[] = {1};

    if (r->rank == 1) {
        _Exit(0);
    }
    NCCL(ncclAllReduce(x, y, 4, ncclInt, ncclSum, r->comm, r->stream));
    CHECK(still_busy(r->stream, 100));
    NCCL(ncclCommShrink(r->comm, gone, 1, &rest, NULL, NCCL_SHRINK_ABORT));
    CUDA(cudaStreamSynchronize(r->stream));
    CHECK(sum_of(rest, 1, r->stream) == r->n - 1);
    NCCL(ncclCommDestroy(rest));
}

static ncclResult_t wait_ready(ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress;

    while (state == ncclInProgress) {
        NCCL(ncclCommGetAsyncError(comm, &state));
        sleep_ms(1);
    }
    return state;
}

static void ok_or_in_progress(ncclResult_t rc)
{
    CHECK(rc == ncclSuccess || rc == ncclInProgress);
}

static void case_nonblocking(struct rank *r)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t state;
    ncclComm_t blocking;
    int a = r->rank, b = -1;

    config.blocking = 0;
    config.commName = "nonblocking";
    if (r->rank == 1) {
        await(r, 0, "looked");
    }
    NCCL_IS(ncclInProgress, ncclCommInitRankConfig(&r->comm, r->n, r->id, r->rank, &config));
    if (r->rank == 0) { /* rank 1 is not there yet */
        NCCL(ncclCommGetAsyncError(r->comm, &state));
        NCCL_IS(ncclInProgress, state);
        NCCL_IS(ncclInvalidArgument, ncclAllReduce(&a, &b, 1, ncclInt, ncclSum, r->comm, r->stream));
        tell(r, "looked");
    }
    NCCL(wait_ready(r->comm));
    expect_place(r->comm, r->rank, r->n, r->rank % 8);
    ok_or_in_progress(ncclAllReduce(&a, &b, 1, ncclInt, ncclSum, r->comm, r->stream));
    NCCL(wait_ready(r->comm)); /* the call is on the stream only now */
    finish(r);
    CHECK(b == r->n * (r->n - 1) / 2);
    NCCL(ncclGroupStart());
    ok_or_in_progress(ncclSend(&a, 1, ncclInt, (r->rank + 1) % r->n, r->comm, r->stream));
    ok_or_in_progress(ncclRecv(&b, 1, ncclInt, (r->rank + r->n - 1) % r->n, r->comm, r->stream));
    NCCL_IS(ncclInProgress, ncclGroupEnd());
    NCCL(wait_ready(r->comm));
    finish(r);
    CHECK(b == (r->rank + r->n - 1) % r->n);

    config.blocking = 1;
    NCCL(ncclCommSplit(r->comm, 0, r->rank, &blocking, &config)); /* a blocking child of a nonblocking parent */
    CHECK(sum_of(blocking, 1, r->stream) == r->n);
    NCCL(ncclGroupStart());
    NCCL(ncclAllReduce(&a, &b, 1, ncclInt, ncclSum, blocking, r->stream));
    NCCL_IS(ncclInvalidArgument, ncclAllReduce(&a, &b, 1, ncclInt, ncclSum, r->comm, r->stream));
    NCCL_IS(ncclInvalidArgument, ncclGroupEnd());
    NCCL(ncclCommDestroy(blocking));

    ok_or_in_progress(ncclCommFinalize(r->comm));
    NCCL(wait_ready(r->comm));
    NCCL(ncclCommDestroy(r->comm));
}

/* A nonblocking init whose last rank never comes: abort ends it. */
static void case_nonblocking_abort(struct rank *r)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t state;

    config.blocking = 0;
    if (r->rank == 1) {
        return;
    }
    NCCL_IS(ncclInProgress, ncclCommInitRankConfig(&r->comm, r->n, r->id, r->rank, &config));
    sleep_ms(100);
    NCCL(ncclCommGetAsyncError(r->comm, &state));
    NCCL_IS(ncclInProgress, state);
    NCCL(ncclCommAbort(r->comm));
}

static void case_config(struct rank *r)
{
    ncclConfig_t good = NCCL_CONFIG_INITIALIZER, bad = NCCL_CONFIG_INITIALIZER, old = NCCL_CONFIG_INITIALIZER;

    bad.magic = 1;
    NCCL_IS(ncclInvalidArgument, ncclCommInitRankConfig(&r->comm, r->n, r->id, r->rank, &bad));
    bad = good;
    bad.blocking = 2;
    NCCL_IS(ncclInvalidArgument, ncclCommInitRankConfig(&r->comm, r->n, r->id, r->rank, &bad));
    bad = good;
    bad.minCTAs = 8;
    bad.maxCTAs = 4;
    NCCL_IS(ncclInvalidArgument, ncclCommInitRankConfig(&r->comm, r->n, r->id, r->rank, &bad));
    CHECK(r->comm == NULL);
    /* A caller of 2.14: its structure ends after `blocking`; the rest is not ours to read. */
    old.size = offsetof(ncclConfig_t, cgaClusterSize);
    old.version = NCCL_VERSION(2, 14, 3);
    old.blocking = 1;
    old.cgaClusterSize = 12345;
    NCCL(ncclCommInitRankConfig(&r->comm, r->n, r->id, r->rank, &old));
    CHECK(sum_of(r->comm, 1, r->stream) == r->n);
    NCCL(ncclCommDestroy(r->comm));
}

static void case_scalable(struct rank *r)
{
    ncclUniqueId ids[2] = {r->id, r->id};
    ncclComm_t comm;

    NCCL_IS(ncclInvalidArgument, ncclCommInitRankScalable(&comm, r->n, r->rank, 0, ids, NULL));
    NCCL(ncclCommInitRankScalable(&comm, r->n, r->rank, 2, ids, NULL));
    CHECK(sum_of(comm, 1, r->stream) == r->n);
    NCCL(ncclCommDestroy(comm));
}

/* A group of inits by one thread: each needs the other processes, none may wait for the next. */
static void case_group_of_inits(struct rank *r)
{
    ncclComm_t a, b;
    ncclUniqueId other, all[8];

    NCCL(ncclCommInitRank(&a, r->n, r->id, r->rank));
    NCCL(ncclGetUniqueId(&other));
    NCCL(ncclAllGather(&other, all, sizeof(other), ncclChar, a, r->stream));
    CUDA(cudaStreamSynchronize(r->stream));
    ncclComm_t more[2];
    NCCL(ncclGroupStart());
    for (int i = 0; i < 2; i++) {
        int k = r->rank % 2 ? 1 - i : i; /* in another order on odd ranks */
        NCCL(ncclCommInitRank(&more[k], r->n, all[k], r->rank));
    }
    NCCL(ncclGroupEnd());
    CHECK(sum_of(more[0], 1, r->stream) == r->n && sum_of(more[1], 2, r->stream) == 2 * r->n);
    NCCL(ncclCommSplit(a, 0, 0, &b, NULL));
    NCCL(ncclGroupStart());
    NCCL(ncclCommDestroy(more[0]));
    NCCL(ncclCommDestroy(more[1]));
    NCCL(ncclCommDestroy(a));
    NCCL(ncclGroupEnd());
    NCCL(ncclCommDestroy(b));
}

static void case_revoke(struct rank *r)
{
    ncclComm_t child, rest;
    int gone[] = {0};

    if (r->rank) {
        NCCL(ncclAllReduce(x, y, 4, ncclInt, ncclSum, r->comm, r->stream));
        CHECK(still_busy(r->stream, 100));
    }
    NCCL_IS(ncclInvalidArgument, ncclCommRevoke(r->comm, 1));
    NCCL(ncclCommRevoke(r->comm, NCCL_REVOKE_DEFAULT));
    CUDA(cudaStreamSynchronize(r->stream));
    NCCL_IS(ncclInvalidUsage, ncclAllReduce(x, y, 4, ncclInt, ncclSum, r->comm, r->stream));
    NCCL_IS(ncclInvalidUsage, ncclCommFinalize(r->comm));
    NCCL(ncclCommSplit(r->comm, 0, 0, &child, NULL));
    CHECK(sum_of(child, 1, r->stream) == r->n);
    if (r->rank) {
        NCCL(ncclCommShrink(r->comm, gone, 1, &rest, NULL, NCCL_SHRINK_DEFAULT));
        CHECK(sum_of(rest, 1, r->stream) == r->n - 1);
        NCCL(ncclCommDestroy(rest));
    }
    NCCL(ncclCommDestroy(child));
}

static void case_finalize(struct rank *r)
{
    NCCL(ncclAllReduce(x, y, 4, ncclInt, ncclSum, r->comm, r->stream));
    NCCL(ncclCommFinalize(r->comm));
    CUDA(cudaStreamSynchronize(r->stream));
    NCCL_IS(ncclInvalidArgument, ncclAllReduce(x, y, 4, ncclInt, ncclSum, r->comm, r->stream));
    NCCL_IS(ncclInvalidArgument, ncclCommFinalize(r->comm));
}

/* Destroy waits for what was launched. */
static void case_destroy_waits(struct rank *r)
{
    struct timespec before, after;

    if (r->rank == 1) {
        await(r, 0, "destroys");
        sleep_ms(300);
    }
    x[0] = 1;
    NCCL(ncclAllReduce(x, y, 1, ncclInt, ncclSum, r->comm, r->stream));
    clock_gettime(CLOCK_MONOTONIC, &before);
    tell(r, "destroys");
    NCCL(ncclCommDestroy(r->comm));
    clock_gettime(CLOCK_MONOTONIC, &after);
    r->aborted = true;
    CHECK(y[0] == r->n);
    CHECK(r->rank || (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000 > 50);
    CUDA(cudaStreamSynchronize(r->stream));
}

/* Plans that are queued behind a hung one find the communicator gone and do nothing. */
static void case_abort_of_a_queue(struct rank *r)
{
    if (r->rank == 1) {
        stay(r);
        return;
    }
    for (int i = 0; i < 20; i++) {
        NCCL(ncclAllReduce(x, y, 4, ncclInt, ncclSum, r->comm, r->stream));
    }
    expect_hang(r);
}

static void case_registration(struct rank *r)
{
    void *handle, *memory;
    ncclWindow_t window = NULL;

    NCCL_IS(ncclInvalidArgument, ncclMemAlloc(NULL, 10));
    NCCL(ncclMemAlloc(&memory, 8192));
    NCCL(ncclCommRegister(r->comm, memory, 8192, &handle));
    NCCL(ncclCommDeregister(r->comm, handle));
    NCCL_IS(ncclInvalidUsage, ncclCommDeregister(r->comm, handle));
    char *aligned = (char *)(((uintptr_t)memory + 4095) / 4096 * 4096);
    NCCL_IS(ncclInvalidArgument, ncclCommWindowRegister(r->comm, aligned + 8, 64, &window, NCCL_WIN_COLL_SYMMETRIC));
    NCCL(ncclCommWindowRegister(r->comm, aligned, 64, &window, NCCL_WIN_COLL_SYMMETRIC));
    CHECK(window != NULL);
    NCCL(ncclCommWindowDeregister(r->comm, window));
    NCCL_IS(ncclInvalidArgument, ncclCommWindowDeregister(r->comm, window));
    NCCL(ncclMemFree(memory));
}

static void init_all_checks_its_devices(void **state)
{
    ncclComm_t comms[4];
    int twice[] = {0, 0}, missing[] = {0, 77}, swapped[] = {3, 1}, rank, device, version;

    (void)state;
    assert_int_equal(ncclCommInitAll(NULL, 2, NULL), ncclInvalidArgument);
    assert_int_equal(ncclCommInitAll(comms, 0, NULL), ncclInvalidArgument);
    assert_int_equal(ncclCommInitAll(comms, 2, twice), ncclInvalidUsage);
    assert_int_equal(ncclCommInitAll(comms, 2, missing), ncclInvalidArgument);
    assert_int_equal(ncclCommInitAll(comms, 2, swapped), ncclSuccess);
    assert_int_equal(ncclCommUserRank(comms[0], &rank), ncclSuccess);
    assert_int_equal(ncclCommCuDevice(comms[0], &device), ncclSuccess);
    assert_int_equal(rank, 0);
    assert_int_equal(device, 3);
    /* One thread drives both ranks in a group, on each device's default stream. */
    int in[2] = {3, 4}, out[2] = {0};
    assert_int_equal(ncclGroupStart(), ncclSuccess);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ncclAllReduce(&in[i], &out[i], 1, ncclInt, ncclSum, comms[i], NULL), ncclSuccess);
    }
    assert_int_equal(ncclGroupEnd(), ncclSuccess);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(cudaSetDevice(swapped[i]), cudaSuccess);
        assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
        assert_int_equal(out[i], 7);
        assert_int_equal(ncclCommDestroy(comms[i]), ncclSuccess);
    }
    assert_int_equal(ncclGetVersion(&version), ncclSuccess);
    assert_int_equal(version, 23203); /* the newest release whose functions are all there */
    assert_string_equal(ncclGetErrorString(ncclInvalidUsage), "invalid usage");
    assert_int_equal(ncclGetUniqueId(NULL), ncclInvalidArgument);
    ncclUniqueId foreign = {{0}};
    assert_int_equal(ncclCommInitRank(comms, 1, foreign, 0), ncclInvalidArgument);
}

static const struct rank_case CASES[] = {
    {"split", case_split, false},
    {"shrink", case_shrink, false},
    {"shrink_abort", case_shrink_abort, false},
    {"nonblocking", case_nonblocking, true},
    {"nonblocking_abort", case_nonblocking_abort, true},
    {"config", case_config, true},
    {"scalable", case_scalable, true},
    {"group_of_inits", case_group_of_inits, true},
    {"revoke", case_revoke, false},
    {"finalize", case_finalize, false},
    {"destroy_waits", case_destroy_waits, false},
    {"abort_of_a_queue", case_abort_of_a_queue, false},
    {"registration", case_registration, false},
    {0},
};

#define TEST(name, on_processes, on_threads)                                                                           \
    static void test_##name(void **state)                                                                              \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        ranks_run(#name, on_processes, 20, NULL);                                                                      \
        if (on_threads) {                                                                                              \
            threads_run(CASES, #name, on_threads);                                                                     \
        }                                                                                                              \
    }

TEST(split, 6, 6)
TEST(shrink, 4, 4)
TEST(shrink_abort, 3, 0)
TEST(nonblocking, 3, 0)
TEST(nonblocking_abort, 2, 0)
TEST(config, 2, 0)
TEST(scalable, 2, 0)
TEST(group_of_inits, 4, 0)
TEST(revoke, 3, 3)
TEST(finalize, 2, 2)
TEST(destroy_waits, 2, 2)
TEST(abort_of_a_queue, 2, 2)
TEST(registration, 2, 2)

#define ROW(text, name)                                                                                                \
    {                                                                                                                  \
        text, test_##name, NULL, NULL, NULL                                                                            \
    }

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(init_all_checks_its_devices),
        ROW("split by colour and key; NOCOLOR has none", split),
        ROW("shrink leaves out ranks, the parent lives on", shrink),
        ROW("shrink with abort goes on without a dead rank", shrink_abort),
        ROW("nonblocking calls are in progress until they are not", nonblocking),
        ROW("a nonblocking init can be aborted", nonblocking_abort),
        ROW("configurations are checked, older ones understood", config),
        ROW("init with several unique ids", scalable),
        ROW("a group of inits and destroys", group_of_inits),
        ROW("revoke stops work and allows split and shrink", revoke),
        ROW("after finalize nothing is accepted", finalize),
        ROW("destroy waits for launched work", destroy_waits),
        ROW("an abort empties the queue", abort_of_a_queue),
        ROW("registrations and windows are given back once", registration),
    };

    rank_main(argc, argv, CASES);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
