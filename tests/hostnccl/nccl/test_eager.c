/*
 * test_eager.c: HOSTNCCL_EAGER: short sends without a group that are done before their receive, as NCCL's buffers may
 * let them. Off, nothing is buffered; on, what does not fit, what is longer and what is grouped still waits.
 */
#include "tests/hostnccl/nccl/harness.h"

#include <stdlib.h>
#include <string.h>

enum { MESSAGES = 200, LONGEST = 90000 };

/* Each sends to the next and waits, then receives. */
static void head_to_head(struct rank *r, int *out, size_t count)
{
    static int in[LONGEST];
    int next = (r->rank + 1) % r->n;

    for (size_t i = 0; i < count; i++) {
        in[i] = r->rank * 1000 + (int)i;
    }
    NCCL(ncclSend(in, count, ncclInt, next, r->comm, r->stream));
    CUDA(cudaStreamSynchronize(r->stream));
    NCCL(ncclRecv(out, count, ncclInt, (r->rank + r->n - 1) % r->n, r->comm, r->stream));
    finish(r);
}

static void case_head_to_head(struct rank *r)
{
    int previous = (r->rank + r->n - 1) % r->n;

    for (int i = 0; i < 10; i++) {
        int out[256] = {0};
        head_to_head(r, out, 256);
        for (int k = 0; k < 256; k++) {
            CHECK(out[k] == previous * 1000 + k);
        }
    }
}

/* One element more than the limit of 1024 bytes; and any number without a limit. */
static void case_too_long(struct rank *r)
{
    static int x[257];

    NCCL(ncclSend(x, 257, ncclInt, (r->rank + 1) % r->n, r->comm, r->stream));
    expect_hang(r);
}

static void case_grouped(struct rank *r)
{
    int x = 0;

    NCCL(ncclGroupStart());
    NCCL(ncclSend(&x, 1, ncclInt, (r->rank + 1) % r->n, r->comm, r->stream));
    NCCL(ncclGroupEnd());
    expect_hang(r);
}

static void case_empty(struct rank *r)
{
    NCCL(ncclSend(NULL, 0, ncclInt, (r->rank + 1) % r->n, r->comm, r->stream));
    finish(r);
    NCCL(ncclRecv(NULL, 0, ncclInt, (r->rank + r->n - 1) % r->n, r->comm, r->stream));
    finish(r);
    NCCL(ncclRecv(NULL, 0, ncclInt, (r->rank + r->n - 1) % r->n, r->comm, r->stream));
    expect_hang(r); /* a receive is never done without its send */
}

/* The sender may end before the receiver has come. */
static void case_received_after_the_end(struct rank *r)
{
    int x = 7, y = 0;

    if (r->rank == 0) {
        NCCL(ncclSend(&x, 1, ncclInt, 1, r->comm, r->stream));
        finish(r);
    } else if (r->rank == 1) {
        sleep_ms(100);
        NCCL(ncclRecv(&y, 1, ncclInt, 0, r->comm, r->stream));
        finish(r);
        CHECK(y == 7);
    }
}

/* 256 KiB are there: four messages of 64 KiB are done without a receiver, the fifth waits for one. */
static void case_room(struct rank *r)
{
    static char x[65536], y[65536];
    int go = 0;

    if (r->rank == 0) {
        for (int i = 0; i < 5; i++) {
            x[0] = (char)i;
            NCCL(ncclSend(x, sizeof(x), ncclChar, 1, r->comm, r->stream));
            if (i < 4) {
                CUDA(cudaStreamSynchronize(r->stream));
            }
        }
        CHECK(still_busy(r->stream, 150));
    }
    /* Rank 1 receives only when rank 0 has looked. */
    if (r->rank == 0) {
        cudaStream_t other;
        ncclComm_t second;
        NCCL(ncclCommSplit(r->comm, 0, 0, &second, NULL));
        CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
        NCCL(ncclSend(&go, 1, ncclInt, 1, second, other));
        CUDA(cudaStreamSynchronize(other));
        NCCL(ncclCommDestroy(second));
    } else {
        ncclComm_t second;
        NCCL(ncclCommSplit(r->comm, 0, 1, &second, NULL));
        NCCL(ncclRecv(&go, 1, ncclInt, 0, second, r->stream));
        finish(r);
        for (int i = 0; i < 5; i++) {
            NCCL(ncclRecv(y, sizeof(y), ncclChar, 0, r->comm, r->stream));
            finish(r);
            CHECK(y[0] == i);
        }
        NCCL(ncclCommDestroy(second));
    }
    finish(r);
}

/* Short ones, long ones that wait, and empty ones, in one order: all arrive, as they were sent. */
static size_t length_of(int i)
{
    const size_t lengths[] = {1, 250, 0, 256, 300, 7, LONGEST, 33};

    return lengths[(size_t)i * 5 % (sizeof(lengths) / sizeof(lengths[0]))];
}

static void case_mixed(struct rank *r)
{
    int *x = malloc((LONGEST + 1) * sizeof(*x)), *y = malloc((LONGEST + 1) * sizeof(*y));

    for (int i = 0; i < MESSAGES && r->rank < 2; i++) {
        size_t n = length_of(i);
        if (r->rank == 0) {
            for (size_t k = 0; k < n; k++) {
                x[k] = i * 100000 + (int)k;
            }
            NCCL(ncclSend(x, n, ncclInt, 1, r->comm, r->stream));
            CUDA(cudaStreamSynchronize(r->stream));
            continue;
        }
        if (i % 20 == 0) {
            sleep_ms(5); /* the sender runs ahead */
        }
        y[n] = -1;
        NCCL(ncclRecv(y, n, ncclInt, 0, r->comm, r->stream));
        finish(r);
        for (size_t k = 0; k < n; k++) {
            CHECK(y[k] == i * 100000 + (int)k);
        }
        CHECK(y[n] == -1);
    }
    finish(r);
    free(x);
    free(y);
}

/* A receiver that asks for less leaves the rest to the next message: the data is wrong, and no rank waits. */
static void case_lengths_differ(struct rank *r)
{
    int x[6] = {1, 2, 3, 4, 5, 6}, y[4] = {0};

    if (r->rank == 0) {
        NCCL(ncclSend(x, 4, ncclInt, 1, r->comm, r->stream));
        NCCL(ncclSend(x + 4, 2, ncclInt, 1, r->comm, r->stream));
        finish(r);
        stay(r);
    } else if (r->rank == 1) {
        NCCL(ncclRecv(y, 2, ncclInt, 0, r->comm, r->stream));
        finish(r);
        CHECK(y[0] == 1 && y[1] == 2);
        NCCL(ncclRecv(y, 2, ncclInt, 0, r->comm, r->stream));
        finish(r);
        CHECK(y[0] == 3 && y[1] == 4);
        NCCL(ncclRecv(y, 2, ncclInt, 0, r->comm, r->stream));
        expect_hang(r);
    }
}

static const struct rank_case CASES[] = {
    {"head_to_head", case_head_to_head, false},
    {"too_long", case_too_long, false},
    {"grouped", case_grouped, false},
    {"empty", case_empty, false},
    {"received_after_the_end", case_received_after_the_end, false},
    {"room", case_room, false},
    {"mixed", case_mixed, false},
    {"lengths_differ", case_lengths_differ, false},
    {0},
};

#define TEST(name, env, ...)                                                                                           \
    static void test_##name(void **state)                                                                              \
    {                                                                                                                  \
        static const int counts[] = {__VA_ARGS__};                                                                     \
        (void)state;                                                                                                   \
        for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {                                              \
            ranks_run(#name, counts[i], 30, env);                                                                      \
        }                                                                                                              \
    }

TEST(head_to_head, "HOSTNCCL_EAGER=1024", 2, 3, 4, 8)
TEST(too_long, "HOSTNCCL_EAGER=1024", 2, 3, 4, 8)
TEST(grouped, "HOSTNCCL_EAGER=1024", 2, 3)
TEST(empty, "HOSTNCCL_EAGER=1024", 2, 3, 4, 8)
TEST(received_after_the_end, "HOSTNCCL_EAGER=1024", 2, 3)
TEST(room, "HOSTNCCL_EAGER=65536", 2)
TEST(mixed, "HOSTNCCL_EAGER=1024", 2, 3)
TEST(lengths_differ, "HOSTNCCL_EAGER=1024", 2)

static void test_off(void **state)
{
    (void)state;
    for (int n = 2; n <= 8; n = n < 4 ? n + 1 : 2 * n) {
        ranks_run("too_long", n, 30, NULL);
        ranks_run("too_long", n, 30, "HOSTNCCL_EAGER=0");
    }
    ranks_run("mixed", 2, 30, NULL);
}

#define ROW(text, name)                                                                                                \
    {                                                                                                                  \
        text, test_##name, NULL, NULL, NULL                                                                            \
    }

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ROW("without the setting no send is done before its receive", off),
        ROW("short sends are done before their receives", head_to_head),
        ROW("longer ones are not", too_long),
        ROW("those of a group are not", grouped),
        ROW("an empty send is done, an empty receive waits", empty),
        ROW("what was sent is there when the sender has ended", received_after_the_end),
        ROW("the buffer has an end", room),
        ROW("short and long messages arrive in their order", mixed),
        ROW("lengths that differ: the rest is the next message's", lengths_differ),
    };

    rank_main(argc, argv, CASES);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
