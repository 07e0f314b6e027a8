/*
 * test_group.c: groups over several communicators: in which order they are launched, what each of them waits for, and
 * what a group of empty messages is. docs/HOSTNCCL.md says the same in words.
 */
#include "tests/hostnccl/nccl/harness.h"

#include <pthread.h>
#include <stdlib.h>

enum { ROUNDS = 10, COMMS = 3 };

static int x[64], y[64];

static void reduce(ncclComm_t comm, cudaStream_t stream)
{
    NCCL(ncclAllReduce(x, y, 4, ncclInt, ncclSum, comm, stream));
}

static void abort_all(struct rank *r, ncclComm_t *more, int count)
{
    NCCL(ncclCommAbort(r->comm));
    r->aborted = true;
    for (int i = 0; i < count; i++) {
        NCCL(ncclCommAbort(more[i]));
    }
    CUDA(cudaDeviceSynchronize());
}

static void split(struct rank *r, ncclComm_t *comms, int count)
{
    for (int i = 0; i < count; i++) {
        NCCL(ncclCommSplit(r->comm, 0, r->rank, &comms[i], NULL));
    }
}

/* Each rank names the communicators from another one on; the odd ones backwards. One stream. */
static void group_in_order_of(struct rank *r, ncclComm_t *comms, int first, int step)
{
    NCCL(ncclGroupStart());
    for (int i = 0; i < COMMS; i++) {
        reduce(comms[((first + i * step) % COMMS + COMMS) % COMMS], r->stream);
    }
    NCCL(ncclGroupEnd());
}

static void case_opposite_in_a_group(struct rank *r)
{
    ncclComm_t comms[COMMS];

    comms[0] = r->comm;
    split(r, comms + 1, COMMS - 1);
    for (int i = 0; i < ROUNDS; i++) {
        group_in_order_of(r, comms, r->rank + i, r->rank % 2 ? -1 : 1);
        if (i % 2) {
            CUDA(cudaStreamSynchronize(r->stream));
        }
    }
    finish(r);
    for (int i = 1; i < COMMS; i++) {
        NCCL(ncclCommDestroy(comms[i]));
    }
}

/* As older releases: what hangs outside a group hangs inside. */
static void case_opposite_in_program_order(struct rank *r)
{
    ncclComm_t comms[COMMS];

    comms[0] = r->comm;
    split(r, comms + 1, COMMS - 1);
    group_in_order_of(r, comms, 0, 1);
    finish(r);
    group_in_order_of(r, comms, 0, r->rank ? -1 : 1);
    CHECK(still_busy(r->stream, 150));
    meet(r, "busy");
    abort_all(r, comms + 1, COMMS - 1);
}

static void case_opposite_without_group(struct rank *r)
{
    ncclComm_t second;

    split(r, &second, 1);
    reduce(r->rank ? second : r->comm, r->stream);
    reduce(r->rank ? r->comm : second, r->stream);
    CHECK(still_busy(r->stream, 150));
    meet(r, "busy");
    abort_all(r, &second, 1);
}

/* Two ranks of a process: what the second one names goes beside the first one's, so even the program's order is no
 * harm. */
static void case_siblings(struct rank *r)
{
    ncclComm_t a[2], b[2];
    cudaStream_t s[2];
    const int devices[] = {0, 1};

    NCCL(ncclCommInitAll(a, 2, devices));
    NCCL(ncclCommInitAll(b, 2, devices));
    for (int i = 0; i < 2; i++) {
        CUDA(cudaSetDevice(i));
        CUDA(cudaStreamCreate(&s[i]));
    }
    for (int i = 0; i < ROUNDS; i++) {
        static int in[2], out[4];
        NCCL(ncclGroupStart());
        NCCL(ncclAllReduce(&in[0], &out[0], 1, ncclInt, ncclSum, a[0], s[0]));
        NCCL(ncclAllReduce(&in[0], &out[1], 1, ncclInt, ncclSum, b[0], s[0]));
        NCCL(ncclAllReduce(&in[1], &out[2], 1, ncclInt, ncclSum, b[1], s[1]));
        NCCL(ncclAllReduce(&in[1], &out[3], 1, ncclInt, ncclSum, a[1], s[1]));
        NCCL(ncclGroupEnd());
    }
    for (int i = 0; i < 2; i++) {
        CUDA(cudaStreamSynchronize(s[i]));
        NCCL(ncclCommDestroy(a[i]));
        NCCL(ncclCommDestroy(b[i]));
    }
    finish(r);
}

struct lanes {
    ncclComm_t comm[2]; /* beside the world: for the group, and for the message */
    cudaStream_t stream[2];
};

static struct lanes lanes_of(struct rank *r)
{
    struct lanes l;

    split(r, l.comm, 2);
    for (int i = 0; i < 2; i++) {
        CUDA(cudaStreamCreateWithFlags(&l.stream[i], cudaStreamNonBlocking));
    }
    return l;
}

/*
 * A group of the world on one stream and of a second communicator on another. Rank 0 has a receive before it on
 * `behind`; rank 1 sends only when its second stream is done. With the receive on the first stream all is well: the
 * second communicator does not wait for it. On the second stream it is a circle.
 */
static void group_behind_receive(struct rank *r, struct lanes *l, cudaStream_t behind)
{
    if (r->rank == 0) {
        NCCL(ncclRecv(y + 8, 1, ncclInt, 1, l->comm[1], behind));
    }
    NCCL(ncclGroupStart());
    reduce(r->comm, r->stream);
    reduce(l->comm[0], l->stream[0]);
    NCCL(ncclGroupEnd());
}

static void case_joined_per_communicator(struct rank *r)
{
    struct lanes l = lanes_of(r);

    for (int i = 0; i < ROUNDS; i++) {
        group_behind_receive(r, &l, r->stream);
        CUDA(cudaStreamSynchronize(l.stream[0]));
        if (r->rank == 1) {
            NCCL(ncclSend(x, 1, ncclInt, 0, l.comm[1], l.stream[1]));
        }
        finish(r);
    }
    CUDA(cudaStreamSynchronize(l.stream[1]));
    NCCL(ncclCommDestroy(l.comm[0]));
    NCCL(ncclCommDestroy(l.comm[1]));
}

static void case_behind_the_second_stream(struct rank *r)
{
    struct lanes l = lanes_of(r);

    group_behind_receive(r, &l, l.stream[0]);
    finish(r); /* the world's part is free */
    CHECK(still_busy(l.stream[0], 150));
    meet(r, "busy");
    abort_all(r, l.comm, 2);
}

/* No group: the second call of a communicator, on a free stream, waits for the first, on a stream that is not. */
static void case_order_across_streams(struct rank *r)
{
    struct lanes l = lanes_of(r);

    if (r->rank == 0) {
        NCCL(ncclRecv(y + 8, 1, ncclInt, 1, l.comm[1], r->stream));
    }
    reduce(r->comm, r->stream);
    reduce(r->comm, l.stream[0]);
    if (r->rank == 1) { /* the sender can tell that nothing has run before */
        CHECK(still_busy(l.stream[0], 150));
        NCCL(ncclSend(x, 1, ncclInt, 0, l.comm[1], l.stream[1]));
    }
    CUDA(cudaDeviceSynchronize());
    NCCL(ncclCommDestroy(l.comm[0]));
    NCCL(ncclCommDestroy(l.comm[1]));
}

/* An all-to-all of empty messages only, sends and receives of all peers. */
static void empty_exchange(struct rank *r)
{
    NCCL(ncclGroupStart());
    for (int p = 0; p < r->n; p++) {
        NCCL(ncclSend(NULL, 0, ncclInt, p, r->comm, r->stream));
        NCCL(ncclRecv(NULL, 0, ncclInt, p, r->comm, r->stream));
    }
    NCCL(ncclGroupEnd());
}

static void case_empty_exchange(struct rank *r)
{
    for (int i = 0; i < ROUNDS; i++) {
        empty_exchange(r);
    }
    finish(r);
}

/* The last rank leaves one out: all others wait in it, for nothing. */
static void case_empty_exchange_skipped(struct rank *r)
{
    empty_exchange(r);
    finish(r);
    if (r->rank == r->n - 1) {
        stay(r);
        return;
    }
    empty_exchange(r);
    expect_hang(r);
}

/* One pair leaves its empty messages out on both sides: nothing is missing. */
static void case_empty_left_out_by_both(struct rank *r)
{
    NCCL(ncclGroupStart());
    for (int p = 0; p < r->n; p++) {
        if (r->rank + p == 1) {
            continue;
        }
        NCCL(ncclSend(NULL, 0, ncclInt, p, r->comm, r->stream));
        NCCL(ncclRecv(NULL, 0, ncclInt, p, r->comm, r->stream));
    }
    NCCL(ncclGroupEnd());
    empty_exchange(r);
    finish(r);
}

/* Rank 0 posts an empty send that rank 1 does not receive, in a group or not. */
static void one_sided(struct rank *r, bool is_send)
{
    if (r->rank == 0) {
        NCCL(is_send ? ncclSend(NULL, 0, ncclInt, 1, r->comm, r->stream)
                     : ncclRecv(NULL, 0, ncclInt, 1, r->comm, r->stream));
        expect_hang(r);
    } else {
        stay(r);
    }
}

static void case_empty_send_alone(struct rank *r)
{
    one_sided(r, true);
}

static void case_empty_receive_alone(struct rank *r)
{
    one_sided(r, false);
}

/* An empty message meets the next one that is not: one side has nothing to wait for, the other waits. */
static void case_empty_meets_full(struct rank *r)
{
    if (r->rank == 0) {
        NCCL(ncclSend(NULL, 0, ncclInt, 1, r->comm, r->stream));
        finish(r);
        stay(r);
    } else if (r->rank == 1) {
        NCCL(ncclRecv(y, 1, ncclInt, 0, r->comm, r->stream));
        expect_hang(r);
    } else {
        stay(r);
    }
}

static const struct rank_case CASES[] = {
    {"opposite_in_a_group", case_opposite_in_a_group, false},
    {"opposite_in_program_order", case_opposite_in_program_order, false},
    {"opposite_without_group", case_opposite_without_group, false},
    {"siblings", case_siblings, false},
    {"joined_per_communicator", case_joined_per_communicator, false},
    {"behind_the_second_stream", case_behind_the_second_stream, false},
    {"order_across_streams", case_order_across_streams, false},
    {"empty_exchange", case_empty_exchange, false},
    {"empty_exchange_skipped", case_empty_exchange_skipped, false},
    {"empty_left_out_by_both", case_empty_left_out_by_both, false},
    {"empty_send_alone", case_empty_send_alone, false},
    {"empty_receive_alone", case_empty_receive_alone, false},
    {"empty_meets_full", case_empty_meets_full, false},
    {0},
};

/* At 2, 3, 4 and 8 ranks. */
#define TEST(name, env)                                                                                                \
    static void test_##name(void **state)                                                                              \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        for (const int *n = RANKS; *n; n++) {                                                                          \
            ranks_run(#name, *n, 30, env);                                                                             \
        }                                                                                                              \
    }

static const int RANKS[] = {2, 3, 4, 8, 0};

TEST(opposite_in_a_group, NULL)
TEST(opposite_in_program_order, "HOSTNCCL_GROUP_ORDER=program")
TEST(opposite_without_group, NULL)
TEST(joined_per_communicator, NULL)
TEST(behind_the_second_stream, NULL)
TEST(order_across_streams, NULL)
TEST(empty_exchange, NULL)
TEST(empty_exchange_skipped, NULL)
TEST(empty_left_out_by_both, NULL)
TEST(empty_send_alone, NULL)
TEST(empty_receive_alone, NULL)
TEST(empty_meets_full, NULL)

/* In both orders of groups the two ranks of the process stand together. */
static void test_siblings(void **state)
{
    (void)state;
    ranks_run("siblings", 1, 30, NULL);
    ranks_run("siblings", 1, 30, "HOSTNCCL_GROUP_ORDER=program");
}

#define ROW(text, name)                                                                                                \
    {                                                                                                                  \
        text, test_##name, NULL, NULL, NULL                                                                            \
    }

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ROW("opposite orders of communicators inside one group do not hang", opposite_in_a_group),
        ROW("HOSTNCCL_GROUP_ORDER=program: they hang, as on older releases", opposite_in_program_order),
        ROW("opposite orders of two communicators without a group hang", opposite_without_group),
        ROW("ranks of one process are launched beside each other in a group", siblings),
        ROW("a group waits for each communicator's own streams, not for the first one", joined_per_communicator),
        ROW("a group whose second stream holds what its peer will send later hangs", behind_the_second_stream),
        ROW("calls of one communicator are in order over its streams", order_across_streams),
        ROW("a group of empty messages meets its like", empty_exchange),
        ROW("a rank that leaves out a group of empty messages: the others hang", empty_exchange_skipped),
        ROW("empty messages left out on both sides match as nothing", empty_left_out_by_both),
        ROW("an empty send without receive hangs", empty_send_alone),
        ROW("an empty receive without send hangs", empty_receive_alone),
        ROW("an empty send meets a receive of more: the receiver waits", empty_meets_full),
    };

    rank_main(argc, argv, CASES);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
