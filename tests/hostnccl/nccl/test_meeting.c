/* test_meeting.c: meetings of the ranks on the host (split, shrink, windows): several in one group, aborted ones, ones
 * that do not fit.
 */
#include "tests/hostnccl/nccl/harness.h"

#include <pthread.h>
#include <stdlib.h>

enum { MANY = 8 };

/* Several splits of one parent in one group: each is the same split on all ranks. */
static void case_splits_in_a_group(struct rank *r)
{
    for (int round = 0; round < 5; round++) {
        ncclComm_t child[MANY];
        int in = 1, out[MANY] = {0};

        NCCL(ncclGroupStart());
        for (int i = 0; i < MANY; i++) {
            NCCL(ncclCommSplit(r->comm, i % 2 ? r->rank % 2 : 0, r->rank, &child[i], NULL));
        }
        NCCL(ncclGroupEnd());
        for (int i = 0; i < MANY; i++) {
            NCCL(ncclAllReduce(&in, &out[i], 1, ncclInt, ncclSum, child[i], r->stream));
        }
        CUDA(cudaStreamSynchronize(r->stream));
        for (int i = 0; i < MANY; i++) {
            CHECK(out[i] == (i % 2 ? r->n / 2 : r->n));
            NCCL(ncclCommDestroy(child[i]));
        }
    }
}

static void case_windows_in_a_group(struct rank *r)
{
    void *memory[MANY];

    for (int i = 0; i < MANY; i++) {
        NCCL(ncclMemAlloc(&memory[i], 8192));
    }
    for (int round = 0; round < 20; round++) {
        ncclWindow_t window[MANY] = {0};
        NCCL(ncclGroupStart());
        for (int i = 0; i < MANY; i++) {
            void *aligned = (void *)(((uintptr_t)memory[i] + 4095) / 4096 * 4096);
            NCCL(ncclCommWindowRegister(r->comm, aligned, 64, &window[i], NCCL_WIN_COLL_SYMMETRIC));
        }
        NCCL(ncclGroupEnd());
        for (int i = 0; i < MANY; i++) {
            CHECK(window[i] != NULL);
            NCCL(ncclCommWindowDeregister(r->comm, window[i]));
        }
    }
    for (int i = 0; i < MANY; i++) {
        NCCL(ncclMemFree(memory[i]));
    }
}

/* Splits of a blocking parent into nonblocking children: the next may begin while the last is under way. */
static void case_splits_under_way(struct rank *r)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t child[MANY];
    ncclResult_t state, rc;

    config.blocking = 0;
    for (int i = 0; i < MANY; i++) {
        rc = ncclCommSplit(r->comm, 0, i % 2 ? r->rank : -r->rank, &child[i], &config);
        CHECK(rc == ncclInProgress || rc == ncclSuccess);
    }
    for (int i = 0; i < MANY; i++) {
        int rank = -1;
        do {
            NCCL(ncclCommGetAsyncError(child[i], &state));
            sleep_ms(1);
        } while (state == ncclInProgress);
        NCCL(state);
        NCCL(ncclCommUserRank(child[i], &rank));
        CHECK(rank == (i % 2 ? r->rank : r->n - 1 - r->rank));
        rc = ncclCommDestroy(child[i]);
        CHECK(rc == ncclInProgress || rc == ncclSuccess);
    }
}

static void *abort_soon(void *comm)
{
    sleep_ms(200);
    NCCL(ncclCommAbort(comm));
    return NULL;
}

/* The others shrink without rank 2, rank 1 never comes: only an abort of the parent is left. */
static void case_abort_of_a_shrink(struct rank *r)
{
    ncclComm_t rest = NULL;
    pthread_t thread;
    int gone[] = {2};

    if (r->rank) {
        stay(r);
        return;
    }
    CHECK(pthread_create(&thread, NULL, abort_soon, r->comm) == 0);
    CHECK(ncclCommShrink(r->comm, gone, 1, &rest, NULL, NCCL_SHRINK_DEFAULT) != ncclSuccess);
    pthread_join(thread, NULL);
    CHECK(rest == NULL);
    r->aborted = true;
}

/* A split on one rank, a window on the others: no rank gets a result. */
static void case_split_meets_window(struct rank *r)
{
    ncclComm_t child = NULL;
    ncclWindow_t window = NULL;
    void *memory;
    pthread_t thread;

    NCCL(ncclMemAlloc(&memory, 8192));
    CHECK(pthread_create(&thread, NULL, abort_soon, r->comm) == 0);
    if (r->rank == 0) {
        CHECK(ncclCommSplit(r->comm, 64, 0, &child, NULL) != ncclSuccess);
    } else {
        void *aligned = (void *)(((uintptr_t)memory + 4095) / 4096 * 4096);
        CHECK(ncclCommWindowRegister(r->comm, aligned, 64, &window, NCCL_WIN_COLL_SYMMETRIC) != ncclSuccess);
    }
    pthread_join(thread, NULL);
    CHECK(child == NULL && window == NULL);
    r->aborted = true;
    NCCL(ncclMemFree(memory));
}

/* A list that is refused does not count as a shrink. */
static void case_refused_shrink(struct rank *r)
{
    ncclComm_t rest;
    int bad[] = {99}, gone[] = {1}, sum = 0, one = 1;

    if (r->rank == 0) {
        NCCL_IS(ncclInvalidArgument, ncclCommShrink(r->comm, bad, 1, &rest, NULL, NCCL_SHRINK_DEFAULT));
    }
    if (r->rank != 1) {
        NCCL(ncclCommShrink(r->comm, gone, 1, &rest, NULL, NCCL_SHRINK_DEFAULT));
        NCCL(ncclAllReduce(&one, &sum, 1, ncclInt, ncclSum, rest, r->stream));
        CUDA(cudaStreamSynchronize(r->stream));
        CHECK(sum == r->n - 1);
        NCCL(ncclCommDestroy(rest));
    }
}

static const struct rank_case CASES[] = {
    {"splits_in_a_group", case_splits_in_a_group, false},
    {"windows_in_a_group", case_windows_in_a_group, false},
    {"splits_under_way", case_splits_under_way, false},
    {"abort_of_a_shrink", case_abort_of_a_shrink, false},
    {"split_meets_window", case_split_meets_window, false},
    {"refused_shrink", case_refused_shrink, false},
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

TEST(splits_in_a_group, 4, 4)
TEST(windows_in_a_group, 3, 3)
TEST(splits_under_way, 3, 3)
TEST(abort_of_a_shrink, 3, 0)
TEST(split_meets_window, 3, 0)
TEST(refused_shrink, 4, 4)

#define ROW(text, name)                                                                                                \
    {                                                                                                                  \
        text, test_##name, NULL, NULL, NULL                                                                            \
    }

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ROW("several splits of one communicator share a group", splits_in_a_group),
        ROW("several windows of one communicator share a group", windows_in_a_group),
        ROW("a split may begin while the last is under way", splits_under_way),
        ROW("an abort of the parent ends a shrink whose child is incomplete", abort_of_a_shrink),
        ROW("a split that meets a window: all wait until aborted", split_meets_window),
        ROW("a refused shrink does not count", refused_shrink),
    };

    rank_main(argc, argv, CASES);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
