/* test_p2p.c: point-to-point, groups and streams: what must work, and in which order it works. */
#include "tests/hostnccl/nccl/harness.h"

#include <stdlib.h>
#include <string.h>

/* Elements that `from` sends `to`: uneven, with zeros. */
static size_t split_of(int from, int to)
{
    return (size_t)((from * 7 + to * 3) % 5) * 1000 + (size_t)((from + to) % 3 ? from : 0);
}

/* An all-to-all of uneven splits. `call_zeros`: empty messages are called on both sides, else left out on both. */
static void uneven(struct rank *r, bool call_zeros)
{
    int *in[8], *out[8];

    NCCL(ncclGroupStart());
    for (int p = 0; p < r->n; p++) {
        size_t to = split_of(r->rank, p), from = split_of(p, r->rank);
        in[p] = malloc((to + 1) * sizeof(int));
        out[p] = calloc(from + 1, sizeof(int));
        for (size_t i = 0; i < to; i++) {
            in[p][i] = r->rank * 1000000 + p * 100000 + (int)i;
        }
        if (to || call_zeros) {
            NCCL(ncclSend(in[p], to, ncclInt, p, r->comm, r->stream));
        }
        if (from || call_zeros) {
            NCCL(ncclRecv(out[p], from, ncclInt, p, r->comm, r->stream));
        }
    }
    NCCL(ncclGroupEnd());
    finish(r);
    for (int p = 0; p < r->n; p++) {
        size_t from = split_of(p, r->rank);
        for (size_t i = 0; i < from; i++) {
            CHECK(out[p][i] == p * 1000000 + r->rank * 100000 + (int)i);
        }
        CHECK(out[p][from] == 0);
        free(in[p]);
        free(out[p]);
    }
}

static void case_uneven(struct rank *r)
{
    for (int i = 0; i < 10; i++) {
        uneven(r, i % 2);
    }
}

static void case_ring_large(struct rank *r)
{
    const size_t bytes = 16u << 20;
    int next = (r->rank + 1) % r->n, previous = (r->rank + r->n - 1) % r->n;
    char *in = malloc(bytes), *out = malloc(bytes);

    for (size_t i = 0; i < bytes; i++) {
        in[i] = (char)(i * 31 + (size_t)r->rank);
    }
    NCCL(ncclGroupStart());
    NCCL(ncclSend(in, bytes, ncclChar, next, r->comm, r->stream));
    NCCL(ncclRecv(out, bytes, ncclChar, previous, r->comm, r->stream));
    NCCL(ncclGroupEnd());
    finish(r);
    for (size_t i = 0; i < bytes; i++) {
        CHECK(out[i] == (char)(i * 31 + (size_t)previous));
    }
    free(in);
    free(out);
}

/* The n-th send meets the n-th receive, in a group, over groups, and with other peers in between. */
static void case_fifo(struct rank *r)
{
    int x[12], y[12] = {0};

    for (int i = 0; i < 12; i++) {
        x[i] = i + 100;
    }
    for (int at = 0; at < 12; at += 4) {
        NCCL(ncclGroupStart());
        for (int i = at; i < at + 4; i++) {
            if (r->rank == 0) {
                NCCL(ncclSend(&x[i], 1, ncclInt, 1, r->comm, r->stream));
            } else if (r->rank == 1) {
                NCCL(ncclRecv(&y[i], 1, ncclInt, 0, r->comm, r->stream));
            }
        }
        NCCL(ncclGroupEnd());
    }
    finish(r);
    CHECK(r->rank != 1 || !memcmp(x, y, sizeof(x)));
}

static void case_self(struct rank *r)
{
    int x[2] = {5, 6}, y[2] = {0};

    NCCL(ncclGroupStart());
    NCCL(ncclRecv(&y[0], 1, ncclInt, r->rank, r->comm, r->stream));
    NCCL(ncclSend(&x[0], 1, ncclInt, r->rank, r->comm, r->stream));
    NCCL(ncclSend(&x[1], 1, ncclInt, r->rank, r->comm, r->stream));
    NCCL(ncclRecv(&y[1], 1, ncclInt, r->rank, r->comm, r->stream));
    NCCL(ncclGroupEnd());
    finish(r);
    CHECK(y[0] == 5 && y[1] == 6);
    NCCL_IS(ncclInvalidUsage, ncclSend(x, 1, ncclInt, r->rank, r->comm, r->stream));
    NCCL(ncclGroupStart());
    NCCL(ncclSend(x, 1, ncclInt, r->rank, r->comm, r->stream));
    NCCL_IS(ncclInvalidUsage, ncclGroupEnd());
    finish(r);
}

/* A call returns although its peer comes much later, and nothing of a nested group starts before the outer end. */
static void case_asynchronous(struct rank *r)
{
    int x = 1, y = 0;

    if (r->rank == 1) {
        await(r, 0, "returned");
    }
    NCCL(ncclAllReduce(&x, &y, 1, ncclInt, ncclSum, r->comm, r->stream));
    if (r->rank == 0) {
        CHECK(cudaStreamQuery(r->stream) == cudaErrorNotReady);
        tell(r, "returned");
    }
    finish(r);
    CHECK(y == r->n);
    NCCL(ncclGroupStart());
    NCCL(ncclGroupStart());
    NCCL(ncclAllReduce(&x, &y, 1, ncclInt, ncclSum, r->comm, r->stream));
    NCCL(ncclGroupEnd());
    CHECK(cudaStreamQuery(r->stream) == cudaSuccess);
    x = 10; /* not read yet */
    NCCL(ncclGroupEnd());
    finish(r);
    CHECK(y == 10 * r->n);
}

static void set_after_100ms(void *arg)
{
    sleep_ms(100);
    *(volatile int *)arg = 7;
}

/* Several streams in one group: what they hold is waited for, and they wait for the whole group. */
static void case_streams(struct rank *r)
{
    cudaStream_t other;
    volatile int x = 0;
    int y = 0, a = 1, b = 0;

    CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CUDA(cudaLaunchHostFunc(other, set_after_100ms, (void *)(uintptr_t)&x));
    NCCL(ncclGroupStart());
    NCCL(ncclAllReduce((const void *)(uintptr_t)&x, &y, 1, ncclInt, ncclSum, r->comm, r->stream));
    NCCL(ncclAllReduce(&a, &b, 1, ncclInt, ncclSum, r->comm, other));
    NCCL(ncclGroupEnd());
    CUDA(cudaStreamSynchronize(other));
    CHECK(y == 7 * r->n && b == r->n);
    finish(r);
    /* One communicator, two streams, no group: in the order of the calls. */
    for (int i = 0; i < 20; i++) {
        NCCL(ncclAllReduce(&b, &b, 1, ncclInt, ncclMax, r->comm, i % 2 ? other : r->stream));
    }
    finish(r);
    CUDA(cudaStreamSynchronize(other));
    CHECK(b == r->n);
    CUDA(cudaStreamDestroy(other));
}

static void case_two_comms_in_a_group(struct rank *r)
{
    ncclComm_t second;
    int x = r->rank + 1, y = 0, z = 0;

    NCCL(ncclCommSplit(r->comm, 0, -r->rank, &second, NULL));
    NCCL(ncclGroupStart());
    NCCL(ncclAllReduce(&x, &y, 1, ncclInt, ncclSum, r->comm, r->stream));
    NCCL(ncclReduce(&x, &z, 1, ncclInt, ncclMax, 0, second, r->stream)); /* root: the last rank of the first */
    NCCL(ncclGroupEnd());
    finish(r);
    CHECK(y == r->n * (r->n + 1) / 2);
    CHECK(z == (r->rank == r->n - 1 ? r->n : 0));
    NCCL(ncclCommDestroy(second));
}

/* Inside a group: collectives before point-to-point, larger before smaller, whatever the order of the calls. */
static void case_order_inside_a_group(struct rank *r)
{
    float *big = calloc(50000, sizeof(*big)), small = 1;
    int x = r->rank, y = -1, peer = 1 - r->rank;

    big[49999] = 2;
    NCCL(ncclGroupStart());
    if (r->rank == 0) {
        NCCL(ncclSend(&x, 1, ncclInt, peer, r->comm, r->stream));
        NCCL(ncclRecv(&y, 1, ncclInt, peer, r->comm, r->stream));
        NCCL(ncclAllReduce(&small, &small, 1, ncclFloat, ncclSum, r->comm, r->stream));
        NCCL(ncclAllReduce(big, big, 50000, ncclFloat, ncclSum, r->comm, r->stream));
    } else {
        NCCL(ncclAllReduce(big, big, 50000, ncclFloat, ncclSum, r->comm, r->stream));
        NCCL(ncclRecv(&y, 1, ncclInt, peer, r->comm, r->stream));
        NCCL(ncclAllReduce(&small, &small, 1, ncclFloat, ncclSum, r->comm, r->stream));
        NCCL(ncclSend(&x, 1, ncclInt, peer, r->comm, r->stream));
    }
    NCCL(ncclGroupEnd());
    finish(r);
    CHECK(y == peer && small == 2 && big[49999] == 4);
    free(big);
}

/* AlltoAll is sends and receives: it meets a peer that calls them itself. */
static void case_alltoall_meets_sends(struct rank *r)
{
    int in[2] = {r->rank * 10, r->rank * 10 + 1}, out[2] = {-1, -1};

    if (r->rank == 0) {
        NCCL(ncclAlltoAll(in, out, 1, ncclInt, r->comm, r->stream));
    } else {
        NCCL(ncclGroupStart());
        for (int p = 0; p < 2; p++) {
            NCCL(ncclSend(&in[p], 4, ncclChar, p, r->comm, r->stream));
            NCCL(ncclRecv(&out[p], 4, ncclUint8, p, r->comm, r->stream));
        }
        NCCL(ncclGroupEnd());
    }
    finish(r);
    CHECK(out[0] == r->rank && out[1] == 10 + r->rank);
}

static void case_bad_arguments(struct rank *r)
{
    int x = 1, y = 0;
    ncclSimInfo_t sim = NCCL_SIM_INFO_INITIALIZER;

    NCCL_IS(ncclInvalidUsage, ncclGroupEnd());
    NCCL_IS(ncclInvalidArgument, ncclAllReduce(&x, &y, 1, ncclInt, ncclSum, NULL, r->stream));
    NCCL_IS(ncclInvalidArgument, ncclAllReduce(&x, &y, 1, ncclNumTypes, ncclSum, r->comm, r->stream));
    NCCL_IS(ncclInvalidArgument, ncclAllReduce(&x, &y, 1, (ncclDataType_t)-1, ncclSum, r->comm, r->stream));
    NCCL_IS(ncclInvalidArgument, ncclAllReduce(&x, &y, 1, ncclInt, (ncclRedOp_t)77, r->comm, r->stream));
    NCCL_IS(ncclInvalidArgument, ncclBroadcast(&x, &y, 1, ncclInt, r->n, r->comm, r->stream));
    NCCL_IS(ncclInvalidArgument, ncclReduce(&x, &y, 1, ncclInt, ncclSum, -1, r->comm, r->stream));
    NCCL_IS(ncclInvalidArgument, ncclSend(&x, 1, ncclInt, r->n, r->comm, r->stream));
    CHECK(strstr(ncclGetLastError(r->comm), "ncclSend") != NULL);
    /* The call inside the group reports the error; so does the end, and nothing is launched. */
    NCCL(ncclGroupStart());
    NCCL(ncclAllReduce(&x, &y, 1, ncclInt, ncclSum, r->comm, r->stream));
    NCCL_IS(ncclInvalidArgument, ncclBroadcast(&x, &y, 1, ncclInt, 99, r->comm, r->stream));
    NCCL_IS(ncclInvalidArgument, ncclGroupEnd());
    finish(r);
    CHECK(y == 0);
    NCCL(ncclGroupStart());
    NCCL(ncclAllReduce(&x, &y, 1, ncclInt, ncclSum, r->comm, r->stream));
    NCCL(ncclGroupSimulateEnd(&sim));
    finish(r);
    CHECK(y == 0 && sim.estimatedTime >= 0);
    NCCL(ncclAllReduce(&x, &y, 1, ncclInt, ncclSum, r->comm, r->stream));
    finish(r);
    CHECK(y == r->n);
}

static const struct rank_case CASES[] = {
    {"uneven", case_uneven, false},
    {"ring", case_ring_large, false},
    {"fifo", case_fifo, false},
    {"self", case_self, false},
    {"asynchronous", case_asynchronous, false},
    {"streams", case_streams, false},
    {"two_comms", case_two_comms_in_a_group, false},
    {"order", case_order_inside_a_group, false},
    {"alltoall", case_alltoall_meets_sends, false},
    {"arguments", case_bad_arguments, false},
    {0},
};

#define TEST(name, on_processes, on_threads)                                                                           \
    static void test_##name(void **state)                                                                              \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        ranks_run(#name, on_processes, 30, NULL);                                                                      \
        threads_run(CASES, #name, on_threads);                                                                         \
    }

TEST(uneven, 8, 3)
TEST(ring, 4, 2)
TEST(fifo, 3, 2)
TEST(self, 2, 1)
TEST(asynchronous, 3, 2)
TEST(streams, 3, 2)
TEST(two_comms, 3, 2)
TEST(order, 2, 2)
TEST(alltoall, 2, 2)
/* One thread: the text of the last error is one per process. */
TEST(arguments, 2, 1)

#define ROW(text, name)                                                                                                \
    {                                                                                                                  \
        text, test_##name, NULL, NULL, NULL                                                                            \
    }

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ROW("an all-to-all of uneven splits arrives, with empty messages called or left out", uneven),
        ROW("large messages go round a ring", ring),
        ROW("the n-th send meets the n-th receive", fifo),
        ROW("a send to oneself needs its receive in the group", self),
        ROW("calls return before the peer comes, groups start at the outer end", asynchronous),
        ROW("the streams of a group are joined, those of a communicator are in order", streams),
        ROW("two communicators share a group", two_comms),
        ROW("inside a group, collectives come first and larger ones before smaller ones", order),
        ROW("an all-to-all meets plain sends and receives", alltoall),
        ROW("bad arguments are refused by the call and by the end of the group", arguments),
    };

    rank_main(argc, argv, CASES);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
