/*
 * test_skip.c: HOSTNCCL_DATA=skip: payloads above 4 KiB touch no page, shorter ones arrive; ranks meet, wait and
 * disagree as if the bytes were moved. CMakeLists.txt also runs the tests of mismatches, meetings, groups, faults and
 * graphs with it.
 */
#include "tests/hostnccl/nccl/harness.h"

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, SMALL = 4096, BIG = 1 << 20 };

/* Memory that no one has touched. */
static char *fresh(size_t size)
{
    char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    CHECK(p != MAP_FAILED);
    return p;
}

/* The number of pages that have been read or written. */
static size_t touched(char *p, size_t size)
{
    size_t pages = (size + PAGE - 1) / PAGE, found = 0;
    unsigned char *in = malloc(pages);

    CHECK(in && !mincore(p, size, in));
    for (size_t i = 0; i < pages; i++) {
        found += in[i] & 1;
    }
    free(in);
    return found;
}

/* Every call with `bytes` as its size, of bytes from `in` to `out`; both have room for one block per rank. */
enum operation { ALLREDUCE, BROADCAST, REDUCE, ALLGATHER, REDUCESCATTER, ALLTOALL, GATHER, SCATTER, RING, ALONE, LAST };

static void call(struct rank *r, enum operation what, char *in, char *out, size_t bytes)
{
    ncclComm_t alone;

    switch (what) {
    case ALLREDUCE:
        NCCL(ncclAllReduce(in, out, bytes, ncclUint8, ncclSum, r->comm, r->stream));
        break;
    case BROADCAST:
        NCCL(ncclBroadcast(in, out, bytes, ncclUint8, 1, r->comm, r->stream));
        break;
    case REDUCE:
        NCCL(ncclReduce(in, out, bytes, ncclUint8, ncclMax, 1, r->comm, r->stream));
        break;
    case ALLGATHER:
        NCCL(ncclAllGather(in, out, bytes, ncclUint8, r->comm, r->stream));
        break;
    case REDUCESCATTER:
        NCCL(ncclReduceScatter(in, out, bytes, ncclUint8, ncclSum, r->comm, r->stream));
        break;
    case ALLTOALL:
        NCCL(ncclAlltoAll(in, out, bytes, ncclUint8, r->comm, r->stream));
        break;
    case GATHER:
        NCCL(ncclGather(in, out, bytes, ncclUint8, 1, r->comm, r->stream));
        break;
    case SCATTER:
        NCCL(ncclScatter(in, out, bytes, ncclUint8, 1, r->comm, r->stream));
        break;
    case RING:
        NCCL(ncclGroupStart());
        NCCL(ncclSend(in, bytes, ncclUint8, (r->rank + 1) % r->n, r->comm, r->stream));
        NCCL(ncclRecv(out, bytes, ncclUint8, (r->rank + r->n - 1) % r->n, r->comm, r->stream));
        NCCL(ncclGroupEnd());
        break;
    default:
        NCCL(ncclCommSplit(r->comm, r->rank, 0, &alone, NULL));
        NCCL(ncclAllReduce(in, out, bytes, ncclUint8, ncclSum, alone, r->stream));
        finish(r);
        NCCL(ncclCommDestroy(alone));
    }
}

static void case_untouched(struct rank *r)
{
    const size_t room = (size_t)BIG * (size_t)r->n;

    for (enum operation what = 0; what < LAST; what++) {
        char *in = fresh(room), *out = fresh(room);
        call(r, what, in, out, BIG);
        finish(r);
        CHECK(touched(in, room) == 0 && touched(out, room) == 0);
        munmap(in, room);
        munmap(out, room);
    }
}

/* The first byte that each rank has at the end. Every rank r gives r + 1 in every byte. */
static int result_of(const struct rank *r, enum operation what)
{
    bool is_root = r->rank == 1;
    int sum = r->n * (r->n + 1) / 2, previous = (r->rank + r->n - 1) % r->n + 1;

    switch (what) {
    case ALLREDUCE:
    case REDUCESCATTER:
        return sum;
    case BROADCAST:
    case SCATTER:
        return 2;
    case REDUCE:
        return is_root ? r->n : 0;
    case GATHER:
        return is_root ? 1 : 0;
    case RING:
        return previous;
    case ALONE:
        return r->rank + 1;
    default:
        return 1;
    }
}

/* Payloads of `most` bytes are moved, one more is not. */
static void check_limit(struct rank *r, size_t most)
{
    const size_t room = (most + 1) * (size_t)r->n;
    char *in = malloc(room), *out = malloc(room);

    CHECK(in && out);
    memset(in, r->rank + 1, room);
    for (enum operation what = 0; what < LAST; what++) {
        memset(out, 0, room);
        call(r, what, in, out, most);
        finish(r);
        CHECK(out[0] == result_of(r, what) && out[most - 1] == out[0]);
        memset(out, 0, room);
        call(r, what, in, out, most + 1);
        finish(r);
        CHECK(out[0] == 0 && out[most] == 0);
    }
    free(in);
    free(out);
}

static void case_small(struct rank *r)
{
    check_limit(r, SMALL);
}

/* With HOSTNCCL_DATA=skip:100000. */
static void case_own_limit(struct rank *r)
{
    check_limit(r, 100000);
}

/* Short messages between long ones find their places in the pair's buffer. */
static void case_mixed(struct rank *r)
{
    char in[SMALL], out[SMALL];
    char *big = fresh(BIG);

    for (int i = 0; i < 60 && r->rank < 2; i++) {
        size_t length = i % 3 == 0 ? BIG : (size_t)(1 + i * 61);
        if (r->rank == 0) {
            memset(in, i, sizeof(in));
            NCCL(ncclSend(i % 3 ? in : big, length, ncclUint8, 1, r->comm, r->stream));
        } else {
            memset(out, -1, sizeof(out));
            NCCL(ncclRecv(i % 3 ? out : big, length, ncclUint8, 0, r->comm, r->stream));
        }
        finish(r);
        CHECK(r->rank == 0 || i % 3 == 0 || (out[0] == i && out[length - 1] == i));
    }
    CHECK(touched(big, BIG) == 0);
    munmap(big, BIG);
}

/* The ranks that are early wait, for a collective and for a message. */
static void case_waits(struct rank *r)
{
    char *big = fresh(BIG);

    for (int i = 0; i < 2; i++) {
        bool late = r->rank == 1;
        if (late) {
            await(r, 0, i ? "busy again" : "busy");
        }
        if (i == 0) {
            NCCL(ncclAllReduce(big, big, BIG, ncclUint8, ncclSum, r->comm, r->stream));
        } else if (r->rank < 2) {
            NCCL(late ? ncclRecv(big, BIG, ncclUint8, 0, r->comm, r->stream)
                      : ncclSend(big, BIG, ncclUint8, 1, r->comm, r->stream));
        }
        if (r->rank == 0) {
            CHECK(still_busy(r->stream, 150));
            tell(r, i ? "busy again" : "busy");
        }
        finish(r);
    }
    munmap(big, BIG);
}

/* What two ranks do that disagree; rank 1 is the one that differs. */
static void big_sum(struct rank *r, size_t bytes)
{
    static char x[BIG];

    NCCL(ncclAllReduce(x, x, bytes, ncclUint8, ncclSum, r->comm, r->stream));
}

static void case_missing(struct rank *r)
{
    if (r->rank == 1) {
        stay(r);
        return;
    }
    big_sum(r, BIG);
    expect_hang(r);
}

static void case_bytes(struct rank *r)
{
    big_sum(r, r->rank == 1 ? BIG / 2 : BIG);
    expect_hang(r);
}

static void case_bytes_about_the_limit(struct rank *r)
{
    big_sum(r, r->rank == 1 ? SMALL : SMALL + 1);
    expect_hang(r);
}

static void case_function(struct rank *r)
{
    static char x[BIG];

    if (r->rank == 1) {
        NCCL(ncclBroadcast(x, x, BIG, ncclUint8, 0, r->comm, r->stream));
    } else {
        big_sum(r, BIG);
    }
    expect_hang(r);
}

static void case_root(struct rank *r)
{
    static char x[BIG];

    NCCL(ncclBroadcast(x, x, BIG, ncclUint8, r->rank == 1, r->comm, r->stream));
    expect_hang(r);
}

static void case_order(struct rank *r)
{
    big_sum(r, r->rank == 1 ? 2 * SMALL : BIG);
    big_sum(r, r->rank == 1 ? BIG : 2 * SMALL);
    expect_hang(r);
}

/* One call left out: each call meets the next one of the others, and the last one hangs. */
static void case_off_by_one(struct rank *r)
{
    if (r->rank != 1) {
        big_sum(r, BIG);
        CUDA(cudaStreamSynchronize(r->stream));
    }
    big_sum(r, BIG);
    if (r->rank == 1) {
        finish(r);
        stay(r);
        return;
    }
    expect_hang(r);
}

/* Rank 0 sends `sent`, rank 1 receives `received`: which of them is done. */
static void lengths(struct rank *r, size_t sent, size_t received)
{
    static char x[BIG];
    bool is_done = r->rank == 0 ? sent <= received : sent >= received;

    if (r->rank == 0) {
        NCCL(ncclSend(x, sent, ncclUint8, 1, r->comm, r->stream));
    } else {
        NCCL(ncclRecv(x, received, ncclUint8, 0, r->comm, r->stream));
    }
    if (is_done) {
        finish(r);
        stay(r);
    } else {
        expect_hang(r);
    }
}

static void case_sends_more(struct rank *r)
{
    lengths(r, BIG, BIG / 2);
}

static void case_sends_more_than_the_limit(struct rank *r)
{
    lengths(r, BIG, SMALL);
}

static void case_sends_less(struct rank *r)
{
    lengths(r, BIG / 2, BIG);
}

static void case_sends_less_than_the_limit(struct rank *r)
{
    lengths(r, SMALL, BIG);
}

static void case_both_send_first(struct rank *r)
{
    static char x[BIG];

    NCCL(ncclSend(x, BIG, ncclUint8, 1 - r->rank, r->comm, r->stream));
    NCCL(ncclRecv(x, BIG, ncclUint8, 1 - r->rank, r->comm, r->stream));
    expect_hang(r);
}

static void case_no_buffer(struct rank *r)
{
    static char x[BIG];
    void *none = r->rank == 1 ? NULL : x;

    NCCL(ncclAllReduce(none, x, BIG, ncclUint8, ncclSum, r->comm, r->stream));
    if (r->rank == 1) {
        CHECK(cudaStreamSynchronize(r->stream) == cudaErrorIllegalAddress);
        NCCL(ncclCommAbort(r->comm));
        r->aborted = true;
        stay(r);
        _exit(0);
    }
    expect_hang(r);
}

static bool has_segment(void)
{
    DIR *d = opendir(getenv("HOSTNCCL_DIR"));
    bool found = false;

    CHECK(d != NULL);
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        found = found || !strncmp(e->d_name, "hn-", 3);
    }
    closedir(d);
    return found;
}

static void *abort_when_refused(void *arg)
{
    struct rank *r = arg;
    ncclComm_t comm;

    await(r, 1, "refused");
    while (!(comm = __atomic_load_n(&r->comm, __ATOMIC_ACQUIRE))) {
        sleep_ms(2);
    }
    NCCL(ncclCommAbort(comm));
    return NULL;
}

/* A rank whose setting is not that of the first rank is told so. */
static void case_settings_differ(struct rank *r)
{
    pthread_t thread;

    if (r->rank == 1) {
        CHECK(!setenv("HOSTNCCL_DATA", "move", 1)); /* this rank has called nothing yet */
        while (!has_segment()) {
            sleep_ms(2);
        }
        NCCL_IS(ncclInvalidUsage, ncclCommInitRank(&r->comm, r->n, r->id, r->rank));
        CHECK(strstr(ncclGetLastError(NULL), "HOSTNCCL_DATA leaves out other payloads here (0 bytes and more") != NULL);
        tell(r, "refused");
        return;
    }
    CHECK(!pthread_create(&thread, NULL, abort_when_refused, r));
    NCCL_IS(ncclInternalError, ncclCommInitRank(&r->comm, r->n, r->id, r->rank));
    pthread_join(thread, NULL);
}

static const struct rank_case CASES[] = {
    {"untouched", case_untouched, false},
    {"small", case_small, false},
    {"own_limit", case_own_limit, false},
    {"mixed", case_mixed, false},
    {"waits", case_waits, false},
    {"missing", case_missing, false},
    {"bytes", case_bytes, false},
    {"bytes_about_the_limit", case_bytes_about_the_limit, false},
    {"function", case_function, false},
    {"root", case_root, false},
    {"order", case_order, false},
    {"off_by_one", case_off_by_one, false},
    {"sends_more", case_sends_more, false},
    {"sends_more_than_the_limit", case_sends_more_than_the_limit, false},
    {"sends_less", case_sends_less, false},
    {"sends_less_than_the_limit", case_sends_less_than_the_limit, false},
    {"both_send_first", case_both_send_first, false},
    {"no_buffer", case_no_buffer, false},
    {"settings_differ", case_settings_differ, true},
    {0},
};

#define TEST(name, ...) TEST_WITH(name, "HOSTNCCL_DATA=skip", __VA_ARGS__)
#define TEST_WITH(name, setting, ...)                                                                                  \
    static void test_##name(void **state)                                                                              \
    {                                                                                                                  \
        static const int counts[] = {__VA_ARGS__};                                                                     \
        (void)state;                                                                                                   \
        for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {                                              \
            ranks_run(#name, counts[i], 30, setting);                                                                  \
        }                                                                                                              \
    }

TEST(untouched, 2, 4)
TEST(small, 2, 3)
TEST_WITH(own_limit, "HOSTNCCL_DATA=skip:100000", 2, 3)
TEST(mixed, 2)
TEST(waits, 2, 3)
TEST(missing, 3)
TEST(bytes, 2, 4)
TEST(bytes_about_the_limit, 2)
TEST(function, 3)
TEST(root, 3)
TEST(order, 3)
TEST(off_by_one, 3)
TEST(sends_more, 2)
TEST(sends_more_than_the_limit, 2)
TEST(sends_less, 2)
TEST(sends_less_than_the_limit, 2)
TEST(both_send_first, 2)
TEST(no_buffer, 2)
TEST(settings_differ, 2)

#define ROW(text, name)                                                                                                \
    {                                                                                                                  \
        text, test_##name, NULL, NULL, NULL                                                                            \
    }

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ROW("long payloads touch no page of any buffer", untouched),
        ROW("payloads of up to 4 KiB arrive", small),
        ROW("the limit is what the setting says", own_limit),
        ROW("short messages arrive between long ones", mixed),
        ROW("early ranks wait for late ones", waits),
        ROW("a rank that does not come: the others hang", missing),
        ROW("different bytes: all hang", bytes),
        ROW("different bytes on both sides of the limit: all hang", bytes_about_the_limit),
        ROW("different functions: all hang", function),
        ROW("different roots: all hang", root),
        ROW("different order: all hang", order),
        ROW("one call left out: the last one hangs", off_by_one),
        ROW("more sent than received: the sender hangs", sends_more),
        ROW("a long message for a short receive: the sender hangs", sends_more_than_the_limit),
        ROW("less sent than received: the receiver hangs", sends_less),
        ROW("a short message for a long receive: the receiver hangs", sends_less_than_the_limit),
        ROW("two ranks that both send first hang", both_send_first),
        ROW("a null buffer faults", no_buffer),
        ROW("ranks with different settings are told so", settings_differ),
    };

    rank_main(argc, argv, CASES);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
