/*
 * test_mismatch.c: every kind of disagreement between ranks: each really hangs, on every rank on which it should hang,
 * without a message; or gives the wrong data that NCCL would give. An abort must free what hangs. docs/HOSTNCCL.md has
 * the table.
 */
#include "tests/hostnccl/nccl/harness.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int x[64], y[64];

static void all_reduce(struct rank *r, size_t count)
{
    NCCL(ncclAllReduce(x, y, count, ncclInt, ncclSum, r->comm, r->stream));
}

static void case_missing_rank(struct rank *r)
{
    if (r->rank == 1) {
        stay(r);
        return;
    }
    all_reduce(r, 4);
    expect_hang(r);
}

static void case_missing_in_broadcast(struct rank *r)
{
    if (r->rank == 1) {
        stay(r);
        return;
    }
    NCCL(ncclBroadcast(x, y, 4, ncclInt, 0, r->comm, r->stream));
    expect_hang(r);
}

static void case_function(struct rank *r)
{
    if (r->rank == 1) {
        NCCL(ncclAllGather(x, y, 4, ncclInt, r->comm, r->stream));
    } else {
        all_reduce(r, 4);
    }
    expect_hang(r);
}

static void case_count(struct rank *r)
{
    all_reduce(r, r->rank == 1 ? 5 : 4);
    expect_hang(r);
}

static void case_count_of_reducescatter(struct rank *r)
{
    NCCL(ncclReduceScatter(x, y, r->rank == 1 ? 5 : 4, ncclInt, ncclSum, r->comm, r->stream));
    expect_hang(r);
}

static void case_bytes_of_allgather(struct rank *r)
{
    NCCL(ncclAllGather(x, y, 4, r->rank == 1 ? ncclInt64 : ncclInt, r->comm, r->stream));
    expect_hang(r);
}

static void case_bytes_of_broadcast(struct rank *r)
{
    NCCL(ncclBroadcast(x, y, r->rank == 1 ? 4 : 6, ncclInt, 0, r->comm, r->stream));
    expect_hang(r);
}

static void case_root(struct rank *r)
{
    NCCL(ncclBroadcast(x, y, 4, ncclInt, r->rank == 1, r->comm, r->stream));
    expect_hang(r);
}

static void case_root_of_reduce(struct rank *r)
{
    NCCL(ncclReduce(x, y, 4, ncclInt, ncclSum, r->rank == 1, r->comm, r->stream));
    expect_hang(r);
}

/* The rank with nothing to do skips the call; the others wait. */
static void case_zero_count(struct rank *r)
{
    all_reduce(r, r->rank == 1 ? 0 : 4);
    if (r->rank == 1) {
        finish(r);
        stay(r);
        return;
    }
    expect_hang(r);
}

/* A collective skipped on one rank meets the next one of the others: the signatures are equal, so no rank notices. */
static void case_off_by_one(struct rank *r)
{
    x[0] = 1;
    if (r->rank != 1) {
        all_reduce(r, 1);
        CUDA(cudaStreamSynchronize(r->stream));
        CHECK(y[0] == 100 + r->n - 1);
    }
    x[0] = 100;
    all_reduce(r, 1);
    if (r->rank == 1) {
        finish(r);
        CHECK(y[0] == 100 + r->n - 1);
        stay(r);
        return;
    }
    expect_hang(r);
}

static void case_order(struct rank *r)
{
    for (int i = 0; i < 2; i++) {
        if ((r->rank == 1) == i) {
            all_reduce(r, 4);
        } else {
            NCCL(ncclBroadcast(x, y, 4, ncclInt, 0, r->comm, r->stream));
        }
    }
    expect_hang(r);
}

/* Two communicators, one stream, the opposite order: each waits for the other. */
static void case_order_of_communicators(struct rank *r)
{
    ncclComm_t second, first = r->comm;

    NCCL(ncclCommSplit(r->comm, 0, r->rank, &second, NULL));
    NCCL(ncclAllReduce(x, y, 4, ncclInt, ncclSum, r->rank ? second : first, r->stream));
    NCCL(ncclAllReduce(x, y, 4, ncclInt, ncclSum, r->rank ? first : second, r->stream));
    CHECK(still_busy(r->stream, 150));
    meet(r, "busy");
    NCCL(
        ncclCommAbort(r->rank ? first : second)); /* of the two, the one that is not running: freeing it frees nobody */
    CHECK(still_busy(r->stream, 100));
    meet(r, "still busy");
    NCCL(ncclCommAbort(r->rank ? second : first));
    r->aborted = true;
    CUDA(cudaStreamSynchronize(r->stream));
}

static void case_send_without_recv(struct rank *r)
{
    if (r->rank == 0) {
        NCCL(ncclSend(x, 1, ncclInt, 1, r->comm, r->stream));
        expect_hang(r);
    } else {
        stay(r);
    }
}

static void case_recv_without_send(struct rank *r)
{
    if (r->rank == 0) {
        NCCL(ncclRecv(x, 1, ncclInt, 1, r->comm, r->stream));
        expect_hang(r);
    } else {
        stay(r);
    }
}

/* The receiver has what it asked for; the sender waits for ever with the rest. */
static void case_sends_more(struct rank *r)
{
    for (int i = 0; i < 8; i++) {
        x[i] = i + 1;
    }
    memset(y, 0, sizeof(y));
    if (r->rank == 0) {
        NCCL(ncclSend(x, 8, ncclInt, 1, r->comm, r->stream));
        await(r, 1, "stay"); /* who gives up earlier, on a busy machine, takes away what the other is to receive */
        expect_hang(r);
    } else {
        NCCL(ncclRecv(y, 5, ncclInt, 0, r->comm, r->stream));
        finish(r);
        CHECK(y[4] == 5 && y[5] == 0);
        stay(r);
    }
}

/* The sender is done; the receiver has the beginning and waits for the rest. */
static void case_sends_less(struct rank *r)
{
    for (int i = 0; i < 8; i++) {
        x[i] = i + 1;
    }
    memset(y, 0, sizeof(y));
    if (r->rank == 0) {
        NCCL(ncclSend(x, 5, ncclInt, 1, r->comm, r->stream));
        finish(r);
        stay(r);
    } else {
        NCCL(ncclRecv(y, 8, ncclInt, 0, r->comm, r->stream));
        await(r, 0, "stay");
        expect_hang(r);
        CHECK(y[4] == 5 && y[5] == 0);
    }
}

/* Outside a group, a send waits for its receive: two that send to each other first never get there. */
static void case_both_send_first(struct rank *r)
{
    NCCL(ncclSend(x, 1, ncclInt, 1 - r->rank, r->comm, r->stream));
    NCCL(ncclRecv(y, 1, ncclInt, 1 - r->rank, r->comm, r->stream));
    expect_hang(r);
}

static void case_wrong_peer(struct rank *r)
{
    if (r->rank == 0) {
        NCCL(ncclSend(x, 1, ncclInt, 1, r->comm, r->stream));
    } else {
        NCCL(ncclRecv(x, 1, ncclInt, r->rank == 1 ? 2 : 0, r->comm, r->stream));
    }
    expect_hang(r);
}

/* An all-to-all-v in which rank 1 believes that rank 0 has nothing for it. */
static void case_splits_disagree(struct rank *r)
{
    NCCL(ncclGroupStart());
    for (int p = 0; p < r->n; p++) {
        NCCL(ncclSend(&x[p], 1, ncclInt, p, r->comm, r->stream));
        if (!(r->rank == 1 && p == 0)) {
            NCCL(ncclRecv(&y[p], 1, ncclInt, p, r->comm, r->stream));
        }
    }
    NCCL(ncclGroupEnd());
    if (r->rank == 0) {
        for (int p = 1; p < r->n; p++) {
            await(r, p, "stay");
        }
        expect_hang(r);
    } else {
        finish(r);
        stay(r);
    }
}

static void case_operation(struct rank *r)
{
    x[0] = r->rank + 2;
    NCCL(ncclAllReduce(x, y, 1, ncclInt, r->rank == 1 ? ncclProd : ncclSum, r->comm, r->stream));
    finish(r);
    CHECK(y[0] == (r->rank == 1
                       ? 6
                       : 5)); /* 2 ranks: 2 and 3. The collective is done, the result is wrong, and there is no error */
}

static void case_type_of_reduction(struct rank *r)
{
    float f = 1.5f;

    memcpy(x, &f, sizeof(f));
    NCCL(ncclAllReduce(x, y, 1, r->rank == 1 ? ncclInt : ncclFloat, ncclSum, r->comm, r->stream));
    finish(r);
    memcpy(&f, y, sizeof(f));
    CHECK((r->rank == 1) == (f != 3.0f));
}

static void case_type_of_copy(struct rank *r)
{
    x[0] = x[1] = r->rank + 1;
    NCCL(ncclAllGather(x, y, r->rank ? 2 : 1, r->rank ? ncclInt : ncclInt64, r->comm, r->stream));
    NCCL(ncclBroadcast(x, x, r->rank ? 8 : 2, r->rank ? ncclChar : ncclFloat, 0, r->comm, r->stream));
    finish(r);
    CHECK(y[0] == 1 && y[3] == 2 && x[1] == 1);
}

static void *abort_later(void *arg)
{
    ncclComm_t comm;

    while (!(comm = __atomic_load_n((ncclComm_t *)arg, __ATOMIC_ACQUIRE))) {
        sleep_ms(5);
    }
    sleep_ms(300);
    NCCL(ncclCommAbort(comm));
    return NULL;
}

/* Blocking host calls that wait for a rank: an abort from another thread ends them. */
static void case_init_without_all(struct rank *r)
{
    ncclComm_t comm = NULL;
    pthread_t thread;

    if (r->rank == 1) {
        return;
    }
    CHECK(!pthread_create(&thread, NULL, abort_later, &comm));
    NCCL_IS(ncclInternalError, ncclCommInitRank(&comm, r->n, r->id, r->rank));
    pthread_join(thread, NULL);
}

static void case_init_sizes_differ(struct rank *r)
{
    ncclComm_t comm = NULL;
    pthread_t thread;

    CHECK(!pthread_create(&thread, NULL, abort_later, &comm));
    NCCL_IS(ncclInternalError, ncclCommInitRank(&comm, r->n + r->rank, r->id, r->rank));
    pthread_join(thread, NULL);
}

static void case_init_one_rank_twice(struct rank *r)
{
    ncclComm_t comm = NULL;
    pthread_t thread;

    CHECK(!pthread_create(&thread, NULL, abort_later, &comm));
    NCCL_IS(ncclInternalError, ncclCommInitRank(&comm, r->n, r->id, 0));
    pthread_join(thread, NULL);
}

/* The last rank gives the number of the rank before it: that number is there twice, and the last rank is missing. */
static void case_init_last_rank_missing(struct rank *r)
{
    ncclComm_t comm = NULL;
    pthread_t thread;

    CHECK(!pthread_create(&thread, NULL, abort_later, &comm));
    NCCL_IS(ncclInternalError, ncclCommInitRank(&comm, r->n, r->id, r->rank == r->n - 1 ? r->rank - 1 : r->rank));
    pthread_join(thread, NULL);
}

static void case_window_without_all(struct rank *r)
{
    static _Alignas(4096) char memory[4096];
    ncclWindow_t window = NULL;
    pthread_t thread;

    if (r->rank == 1) {
        stay(r);
        return;
    }
    CHECK(!pthread_create(&thread, NULL, abort_later, &r->comm));
    NCCL_IS(ncclInternalError, ncclCommWindowRegister(r->comm, memory, 4096, &window, NCCL_WIN_COLL_SYMMETRIC));
    CHECK(window == NULL);
    pthread_join(thread, NULL);
    r->aborted = true;
}

static void case_split_without_all(struct rank *r)
{
    ncclComm_t child = NULL;
    pthread_t thread;

    if (r->rank == 1) {
        stay(r);
        return;
    }
    CHECK(!pthread_create(&thread, NULL, abort_later, &r->comm));
    NCCL_IS(ncclInternalError, ncclCommSplit(r->comm, 0, 0, &child, NULL));
    CHECK(child == NULL);
    pthread_join(thread, NULL);
    r->aborted = true;
}

static void case_told(struct rank *r)
{
    ncclResult_t async = ncclSuccess;

    all_reduce(r, r->rank == 1 ? 5 : 4);
    CUDA(cudaStreamSynchronize(r->stream));
    NCCL(ncclCommGetAsyncError(r->comm, &async));
    NCCL_IS(ncclInvalidUsage, async);
    CHECK(strstr(ncclGetLastError(r->comm), "AllReduce") != NULL);
    NCCL_IS(ncclInvalidUsage, ncclAllReduce(x, y, 4, ncclInt, ncclSum, r->comm, r->stream));
}

/* One line on standard error, and then it hangs all the same. */
static void case_printed(struct rank *r)
{
    char line[256] = "";
    int ends[2];

    CHECK(!pipe(ends));
    int before = dup(STDERR_FILENO);
    dup2(ends[1], STDERR_FILENO);
    all_reduce(r, r->rank == 1 ? 5 : 4);
    CHECK(read(ends[0], line, sizeof(line) - 1) > 0);
    dup2(before, STDERR_FILENO);
    CHECK(strstr(line, "AllReduce of") && strstr(line, "hanging"));
    expect_hang(r);
}

/* A peer that dies is not noticed, as on NVLink and shared memory. */
static void case_peer_dies(struct rank *r)
{
    all_reduce(r, 4);
    finish(r);
    if (r->rank == 1) {
        _Exit(0);
    }
    all_reduce(r, 4);
    CHECK(still_busy(r->stream, 400));
    expect_hang(r);
}

/* Descriptors of processes that this one has open. */
static int open_pidfds(void)
{
    int found = 0;

    for (int fd = 0; fd < 256; fd++) {
        char path[32], target[64] = "";
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        (void)!readlink(path, target, sizeof(target) - 1);
        found += strstr(target, "pidfd") != NULL;
    }
    return found;
}

static void case_peer_dies_and_is_told(struct rank *r)
{
    ncclResult_t async = ncclSuccess;

    all_reduce(r, 4);
    finish(r);
    if (r->rank == 1) {
        sleep_ms(400); /* the others have looked at it while it lived */
        _Exit(0);
    }
    all_reduce(r, 4);
    CUDA(cudaStreamSynchronize(r->stream));
    NCCL(ncclCommGetAsyncError(r->comm, &async));
    NCCL_IS(ncclRemoteError, async);
    CHECK(open_pidfds() > 0);
    NCCL(ncclCommAbort(r->comm));
    CHECK(open_pidfds() == 0);
    r->aborted = true;
}

static const struct rank_case CASES[] = {
    {"missing_rank", case_missing_rank, false},
    {"missing_in_broadcast", case_missing_in_broadcast, false},
    {"function", case_function, false},
    {"count", case_count, false},
    {"count_of_reducescatter", case_count_of_reducescatter, false},
    {"bytes_of_allgather", case_bytes_of_allgather, false},
    {"bytes_of_broadcast", case_bytes_of_broadcast, false},
    {"root", case_root, false},
    {"root_of_reduce", case_root_of_reduce, false},
    {"zero_count", case_zero_count, false},
    {"off_by_one", case_off_by_one, false},
    {"order", case_order, false},
    {"order_of_communicators", case_order_of_communicators, false},
    {"send_without_recv", case_send_without_recv, false},
    {"recv_without_send", case_recv_without_send, false},
    {"sends_more", case_sends_more, false},
    {"sends_less", case_sends_less, false},
    {"both_send_first", case_both_send_first, false},
    {"wrong_peer", case_wrong_peer, false},
    {"splits_disagree", case_splits_disagree, false},
    {"operation", case_operation, false},
    {"type_of_reduction", case_type_of_reduction, false},
    {"type_of_copy", case_type_of_copy, false},
    {"init_without_all", case_init_without_all, true},
    {"init_sizes_differ", case_init_sizes_differ, true},
    {"split_without_all", case_split_without_all, false},
    {"init_one_rank_twice", case_init_one_rank_twice, true},
    {"init_last_rank_missing", case_init_last_rank_missing, true},
    {"window_without_all", case_window_without_all, false},
    {"told", case_told, false},
    {"printed", case_printed, false},
    {"peer_dies", case_peer_dies, false},
    {"peer_dies_and_is_told", case_peer_dies_and_is_told, false},
    {0},
};

#define TEST(name, n, env)                                                                                             \
    static void test_##name(void **state)                                                                              \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        ranks_run(#name, n, 20, env);                                                                                  \
    }

TEST(missing_rank, 3, NULL)
TEST(missing_in_broadcast, 3, NULL)
TEST(function, 3, NULL)
TEST(count, 4, NULL)
TEST(count_of_reducescatter, 2, NULL)
TEST(bytes_of_allgather, 2, NULL)
TEST(bytes_of_broadcast, 3, NULL)
TEST(root, 3, NULL)
TEST(root_of_reduce, 3, NULL)
TEST(zero_count, 3, NULL)
TEST(off_by_one, 3, NULL)
TEST(order, 3, NULL)
TEST(order_of_communicators, 2, NULL)
TEST(send_without_recv, 2, NULL)
TEST(recv_without_send, 2, NULL)
TEST(sends_more, 2, NULL)
TEST(sends_less, 2, NULL)
TEST(both_send_first, 2, NULL)
TEST(wrong_peer, 3, NULL)
TEST(splits_disagree, 4, NULL)
TEST(operation, 2, NULL)
TEST(type_of_reduction, 2, NULL)
TEST(type_of_copy, 2, NULL)
TEST(init_without_all, 2, NULL)
TEST(init_sizes_differ, 2, NULL)
TEST(split_without_all, 3, NULL)
TEST(init_one_rank_twice, 2, NULL)
TEST(init_last_rank_missing, 4, NULL)
TEST(window_without_all, 3, NULL)
TEST(printed, 2, "HOSTNCCL_ON_MISMATCH=print")
TEST(told, 3, "HOSTNCCL_ON_MISMATCH=error")
TEST(peer_dies, 3, NULL)
TEST(peer_dies_and_is_told, 3, "HOSTNCCL_PEER_DEATH=error")

#define ROW(text, name)                                                                                                \
    {                                                                                                                  \
        text, test_##name, NULL, NULL, NULL                                                                            \
    }

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ROW("a rank that does not come: the others hang", missing_rank),
        ROW("a rank that misses a broadcast: root and receivers hang", missing_in_broadcast),
        ROW("different functions: all hang", function),
        ROW("different counts in an all-reduce: all hang", count),
        ROW("different counts in a reduce-scatter: all hang", count_of_reducescatter),
        ROW("different bytes in an all-gather: all hang", bytes_of_allgather),
        ROW("different bytes in a broadcast: all hang", bytes_of_broadcast),
        ROW("different roots of a broadcast: all hang", root),
        ROW("different roots of a reduce: all hang", root_of_reduce),
        ROW("zero count on one rank: it passes, the others hang", zero_count),
        ROW("one call left out: equal calls meet one late, the last one hangs", off_by_one),
        ROW("different order: all hang", order),
        ROW("different order of two communicators: all hang", order_of_communicators),
        ROW("a send without receive hangs", send_without_recv),
        ROW("a receive without send hangs", recv_without_send),
        ROW("more sent than received: the receiver has its part, the sender hangs", sends_more),
        ROW("less sent than received: the receiver has a part and hangs", sends_less),
        ROW("two ranks that both send first hang", both_send_first),
        ROW("a wrong peer: all hang", wrong_peer),
        ROW("splits that disagree: the rank whose send is not taken hangs", splits_disagree),
        ROW("different reductions: done, wrong data", operation),
        ROW("different types of equal size in a reduction: done, wrong data", type_of_reduction),
        ROW("different types of equal bytes in a copy: done, right data", type_of_copy),
        ROW("init waits for a rank that does not come, an abort frees it", init_without_all),
        ROW("init with different sizes: all wait", init_sizes_differ),
        ROW("split waits for a rank that does not come, an abort frees it", split_without_all),
        ROW("init of one rank twice: all wait", init_one_rank_twice),
        ROW("init of four in which one rank is there twice: all wait", init_last_rank_missing),
        ROW("a window waits for a rank that does not come, an abort frees it", window_without_all),
        ROW("HOSTNCCL_ON_MISMATCH=print says so and hangs", printed),
        ROW("HOSTNCCL_ON_MISMATCH=error tells instead", told),
        ROW("the death of a peer is not noticed", peer_dies),
        ROW("HOSTNCCL_PEER_DEATH=error tells of it", peer_dies_and_is_told),
    };

    rank_main(argc, argv, CASES);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
