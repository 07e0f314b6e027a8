/*
 * test_collectives.c: every collective x data type x reduction, in place and not, against known results, on processes
 * and on threads.
 *
 * Inputs are small whole numbers chosen so that every partial result is exact in every type; only averages over 3 ranks
 * of floats round, and are compared with a bound.
 */
#include "tests/hostnccl/nccl/harness.h"
#include "tests/hostnccl/nccl/number.h"

#include <stdlib.h>
#include <string.h>

enum coll { ALLREDUCE, REDUCE, REDUCESCATTER, ALLGATHER, BROADCAST, ALLTOALL, GATHER, SCATTER, COLLS };

struct trial {
    const struct rank *r;
    enum coll coll;
    ncclDataType_t type;
    ncclRedOp_t op;
    size_t count;
    int root;
    bool in_place;
};

/* Whether buffers hold one block per rank, and which ranks have a result. */
static const struct {
    bool send_all, recv_all, reduces, rooted_recv, rooted_send, can_be_in_place;
} SHAPES[COLLS] = {
    [ALLREDUCE] = {.reduces = true, .can_be_in_place = true},
    [REDUCE] = {.reduces = true, .rooted_recv = true, .can_be_in_place = true},
    [REDUCESCATTER] = {.send_all = true, .reduces = true, .can_be_in_place = true},
    [ALLGATHER] = {.recv_all = true, .can_be_in_place = true},
    [BROADCAST] = {.can_be_in_place = true},
    [ALLTOALL] = {.send_all = true, .recv_all = true},
    [GATHER] = {.recv_all = true, .rooted_recv = true, .can_be_in_place = true},
    [SCATTER] = {.send_all = true, .rooted_send = true, .can_be_in_place = true},
};

static double input(const struct trial *t, int rank, size_t i)
{
    bool tiny = t->type == ncclFloat8e4m3 || t->type == ncclFloat8e5m2;

    if (t->op == ncclProd) {
        return rank < 3 ? 1 + (double)((i + (size_t)rank) % 2) : 1;
    }
    if (t->op == ncclMax || t->op == ncclMin) {
        return (double)((i * 5 + (size_t)rank * 3) % 7);
    }
    return (double)((i * 7 + (size_t)rank * 3) % (tiny ? 2 : 5));
}

static double reduced(const struct trial *t, size_t i)
{
    double acc = input(t, 0, i);

    for (int r = 1; r < t->r->n; r++) {
        double x = input(t, r, i);
        acc = t->op == ncclProd ? acc * x : t->op == ncclMax ? fmax(acc, x) : t->op == ncclMin ? fmin(acc, x) : acc + x;
    }
    if (t->op == ncclAvg) {
        acc /= t->r->n;
        acc = number_step(t->type) == 0 ? trunc(acc) : acc;
    }
    return acc;
}

static double expected(const struct trial *t, size_t i)
{
    size_t own = (size_t)t->r->rank * t->count;

    switch (t->coll) {
    case REDUCESCATTER:
        return reduced(t, own + i);
    case ALLGATHER:
    case GATHER:
        return input(t, (int)(i / t->count), i % t->count);
    case BROADCAST:
        return input(t, t->root, i);
    case ALLTOALL:
        return input(t, (int)(i / t->count), own + i % t->count);
    case SCATTER:
        return input(t, t->root, own + i);
    default:
        return reduced(t, i);
    }
}

static ncclResult_t call(const struct trial *t, const void *send, void *recv)
{
    ncclComm_t c = t->r->comm;
    cudaStream_t s = t->r->stream;

    switch (t->coll) {
    case ALLREDUCE:
        return ncclAllReduce(send, recv, t->count, t->type, t->op, c, s);
    case REDUCE:
        return ncclReduce(send, recv, t->count, t->type, t->op, t->root, c, s);
    case REDUCESCATTER:
        return ncclReduceScatter(send, recv, t->count, t->type, t->op, c, s);
    case ALLGATHER:
        return ncclAllGather(send, recv, t->count, t->type, c, s);
    case BROADCAST:
        return t->in_place && t->count % 2 ? ncclBcast(recv, t->count, t->type, t->root, c, s)
                                           : ncclBroadcast(send, recv, t->count, t->type, t->root, c, s);
    case ALLTOALL:
        return ncclAlltoAll(send, recv, t->count, t->type, c, s);
    case GATHER:
        return ncclGather(send, recv, t->count, t->type, t->root, c, s);
    default:
        return ncclScatter(send, recv, t->count, t->type, t->root, c, s);
    }
}

/* Where in-place calls have their two buffers: one inside the other, at this rank's block. */
static void place(const struct trial *t, char *whole, char **send, char **recv)
{
    size_t own = (size_t)t->r->rank * t->count * number_size(t->type);
    bool send_all = SHAPES[t->coll].send_all, recv_all = SHAPES[t->coll].recv_all;

    *send = whole + (recv_all && !send_all ? own : 0);
    *recv = whole + (send_all && !recv_all ? own : 0);
}

static void run_trial(const struct trial *t)
{
    size_t size = number_size(t->type), blocks = (size_t)t->r->n, guard = 64;
    size_t nsend = SHAPES[t->coll].send_all ? t->count * blocks : t->count;
    size_t nrecv = SHAPES[t->coll].recv_all ? t->count * blocks : t->count;
    bool is_root = t->r->rank == t->root;
    bool has_result = !SHAPES[t->coll].rooted_recv || is_root;
    bool in_place = t->in_place && (!(SHAPES[t->coll].rooted_recv || SHAPES[t->coll].rooted_send) || is_root);
    char *a = malloc(blocks * t->count * size + guard), *b = malloc(blocks * t->count * size + guard), *send = a,
         *recv = b;
    double tolerance = t->op == ncclAvg && (t->r->n & (t->r->n - 1)) ? 3 * number_step(t->type) : 0;

    memset(a, 0x5a, blocks * t->count * size + guard);
    memset(b, 0x5a, blocks * t->count * size + guard);
    if (in_place) {
        place(t, a, &send, &recv);
    }
    for (size_t i = 0; i < nsend; i++) {
        number_put(send, i, t->type, input(t, t->r->rank, i));
    }
    NCCL(call(t, send, recv));
    CUDA(cudaStreamSynchronize(t->r->stream));
    for (size_t i = 0; has_result && i < nrecv; i++) {
        double want = expected(t, i), got = number_get(recv, i, t->type);
        if (!(fabs(got - want) <= tolerance * fmax(1, fabs(want)))) {
            print_error(
                "collective %d type %d op %d count %zu root %d in-place %d ranks %d: element %zu is %g, not %g\n",
                t->coll, t->type, t->op, t->count, t->root, t->in_place, t->r->n, i, got, want);
            check_true(false, "the result is right", __FILE__, __LINE__);
        }
    }
    for (size_t i = 0; i < guard; i++) {
        CHECK(a[blocks * t->count * size + i] == 0x5a && b[blocks * t->count * size + i] == 0x5a);
    }
    for (size_t i = 0; !has_result && !in_place && i < nrecv * size; i++) {
        CHECK(recv[i] == 0x5a);
    }
    free(a);
    free(b);
}

static void all_ops(struct trial *t)
{
    for (int op = 0; op < (SHAPES[t->coll].reduces ? ncclNumOps : 1); op++) {
        for (int in_place = 0; in_place <= SHAPES[t->coll].can_be_in_place; in_place++) {
            t->op = (ncclRedOp_t)op;
            t->in_place = in_place;
            t->root = (int)(t->count + (size_t)op) % t->r->n;
            run_trial(t);
        }
    }
}

static void case_matrix(struct rank *r)
{
    static const size_t counts[] = {1, 37, 1500};

    for (int coll = 0; coll < COLLS; coll++) {
        for (int type = 0; type < ncclNumTypes; type++) {
            for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
                struct trial t = {.r = r, .coll = (enum coll)coll, .type = (ncclDataType_t)type, .count = counts[c]};
                all_ops(&t);
            }
        }
    }
}

/* Longer than a piece, with a rest. */
static void case_pieces(struct rank *r)
{
    static const ncclDataType_t types[] = {ncclInt8, ncclFloat16, ncclFloat32, ncclInt64};

    for (int coll = 0; coll < COLLS; coll++) {
        for (size_t k = 0; k < sizeof(types) / sizeof(types[0]); k++) {
            struct trial t = {.r = r, .coll = (enum coll)coll, .type = types[k], .op = ncclSum, .count = 70001};
            t.in_place = k % 2 && SHAPES[coll].can_be_in_place;
            run_trial(&t);
        }
    }
}

static void case_64MiB(struct rank *r)
{
    const size_t count = 16u << 20;
    float *x = malloc(count * sizeof(*x));

    for (size_t i = 0; i < count; i++) {
        x[i] = (float)((i + (size_t)r->rank) % 1000);
    }
    NCCL(ncclAllReduce(x, x, count, ncclFloat, ncclSum, r->comm, r->stream));
    finish(r);
    for (size_t i = 0; i < count; i += 997) {
        float want = 0;
        for (int k = 0; k < r->n; k++) {
            want += (float)((i + (size_t)k) % 1000);
        }
        CHECK(x[i] == want);
    }
    free(x);
}

/* All ranks get the same bits, whatever the rounding: rank 0 first, one rounding per step. */
static void case_bits_are_equal(struct rank *r)
{
    const size_t count = 5000;
    unsigned seed = 7; /* every rank draws the inputs of all */
    float *x = malloc(count * sizeof(*x)), *all = malloc(count * sizeof(*x) * (size_t)r->n);

    for (size_t i = 0; i < count; i++) {
        float want = 0;
        for (int k = 0; k < r->n; k++) {
            float v = (float)rand_r(&seed) / 1e5f;
            want = k ? want + v : v;
            x[i] = k == r->rank ? v : x[i];
        }
        all[i] = want;
    }
    float *want = malloc(count * sizeof(*x));
    memcpy(want, all, count * sizeof(*x));
    NCCL(ncclAllReduce(x, x, count, ncclFloat, ncclSum, r->comm, r->stream));
    finish(r);
    CHECK(!memcmp(x, want, count * sizeof(*x)));
    free(x);
    free(all);
    free(want);
}

static void case_signs(struct rank *r)
{
    int8_t s = (int8_t)(r->rank ? 1 : -1), smax, ssum;
    uint8_t u = (uint8_t)(r->rank ? 1 : 255), umax, umin;
    int32_t avg = r->rank ? 0 : -7, avg_out;

    NCCL(ncclAllReduce(&s, &smax, 1, ncclInt8, ncclMax, r->comm, r->stream));
    NCCL(ncclAllReduce(&u, &umax, 1, ncclUint8, ncclMax, r->comm, r->stream));
    NCCL(ncclAllReduce(&u, &umin, 1, ncclUint8, ncclMin, r->comm, r->stream));
    NCCL(ncclAllReduce(&s, &ssum, 1, ncclInt8, ncclSum, r->comm, r->stream));
    NCCL(ncclAllReduce(&avg, &avg_out, 1, ncclInt32, ncclAvg, r->comm, r->stream));
    finish(r);
    CHECK(smax == 1 && umax == 255 && umin == 1 && ssum == r->n - 2 && avg_out == -7 / r->n);
}

/* Every type, in place and not, with a scalar of the type in host and in device memory. */
static void case_premulsum_of_every_type(struct rank *r)
{
    for (int type = 0; type < ncclNumTypes; type++) {
        ncclRedOp_t op;
        char *scalar, x[16 * 8], y[16 * 8];
        CUDA(cudaMalloc((void **)&scalar, 8));
        number_put(scalar, 0, (ncclDataType_t)type, 2);
        for (int variant = 0; variant < 4; variant++) {
            bool in_place = variant & 1, on_device = variant & 2;
            for (size_t i = 0; i < 16; i++) {
                number_put(x, i, (ncclDataType_t)type, (double)(i % 2));
            }
            NCCL(ncclRedOpCreatePreMulSum(&op, scalar, (ncclDataType_t)type,
                                          on_device ? ncclScalarDevice : ncclScalarHostImmediate, r->comm));
            NCCL(ncclAllReduce(x, in_place ? x : y, 16, (ncclDataType_t)type, op, r->comm, r->stream));
            NCCL(ncclRedOpDestroy(op, r->comm));
            finish(r);
            for (size_t i = 0; i < 16; i++) {
                CHECK(number_get(in_place ? x : y, i, (ncclDataType_t)type) == (double)(i % 2 * 2 * (size_t)r->n));
            }
        }
        CUDA(cudaFree(scalar));
    }
}

/* Each rank scales its own input by its own scalar. */
static void case_premulsum(struct rank *r)
{
    float host = (float)(r->rank + 1), x[100], y[100];
    ncclRedOp_t by_host, by_device;
    float *device;

    CUDA(cudaMalloc((void **)&device, sizeof(*device)));
    for (int i = 0; i < 100; i++) {
        x[i] = (float)i;
    }
    NCCL(ncclRedOpCreatePreMulSum(&by_host, &host, ncclFloat, ncclScalarHostImmediate, r->comm));
    host = 0; /* was read */
    NCCL(ncclRedOpCreatePreMulSum(&by_device, device, ncclFloat, ncclScalarDevice, r->comm));
    NCCL(ncclAllReduce(x, y, 100, ncclFloat, by_host, r->comm, r->stream));
    NCCL(ncclRedOpDestroy(by_host, r->comm));
    finish(r);
    CHECK(y[10] == (float)(10 * r->n * (r->n + 1) / 2));
    *device = 2; /* is read when the collective runs */
    NCCL(ncclReduceScatter(x, y, 100 / (size_t)r->n, ncclFloat, by_device, r->comm, r->stream));
    finish(r);
    CHECK(y[3] == (float)(2 * r->n) * ((float)(100 / r->n * r->rank) + 3));
    NCCL_IS(ncclInvalidArgument, ncclAllReduce(x, y, 4, ncclInt32, by_device, r->comm, r->stream)); /* another type */
    NCCL_IS(ncclInvalidArgument, ncclAllReduce(x, y, 4, ncclFloat, by_host, r->comm, r->stream));   /* destroyed */
    NCCL(ncclRedOpDestroy(by_device, r->comm));
    NCCL_IS(ncclInvalidArgument, ncclRedOpDestroy(by_device, r->comm));
    NCCL_IS(ncclInvalidArgument, ncclRedOpDestroy(ncclSum, r->comm));
    CUDA(cudaFree(device));
}

/* 64 processes on however few cores: no process starves, and no process spins. */
static void case_crowd(struct rank *r)
{
    int x = r->rank, y = 0, *in = calloc((size_t)r->n, sizeof(*in)), *out = calloc((size_t)r->n, sizeof(*out));

    for (int round = 0; round < 20; round++) {
        NCCL(ncclAllReduce(&x, &y, 1, ncclInt, ncclSum, r->comm, r->stream));
        for (int k = 0; k < r->n; k++) {
            in[k] = r->rank * 1000 + k;
        }
        NCCL(ncclAlltoAll(in, out, 1, ncclInt, r->comm, r->stream));
        finish(r);
        CHECK(y == r->n * (r->n - 1) / 2);
        for (int k = 0; k < r->n; k++) {
            CHECK(out[k] == k * 1000 + r->rank);
        }
    }
    free(in);
    free(out);
}

static const struct rank_case CASES[] = {
    {"matrix", case_matrix, false},
    {"pieces", case_pieces, false},
    {"64MiB", case_64MiB, false},
    {"bits", case_bits_are_equal, false},
    {"signs", case_signs, false},
    {"premulsum", case_premulsum, false},
    {"crowd", case_crowd, false},
    {"premulsum_types", case_premulsum_of_every_type, false},
    {0},
};

static void every_collective_type_and_operation_is_right_on_processes(void **state)
{
    static const int sizes[] = {1, 2, 3, 4, 8};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        ranks_run("matrix", sizes[i], 60, NULL);
    }
}

static void every_collective_type_and_operation_is_right_on_threads(void **state)
{
    (void)state;
    threads_run(CASES, "matrix", 2);
    threads_run(CASES, "matrix", 3);
}

static void messages_longer_than_a_piece_arrive_whole(void **state)
{
    (void)state;
    ranks_run("pieces", 2, 60, NULL);
    ranks_run("pieces", 3, 60, NULL);
    ranks_run("pieces", 8, 60, NULL);
    ranks_run("64MiB", 4, 60, NULL);
}

static void all_ranks_get_the_same_bits_in_rank_order(void **state)
{
    (void)state;
    ranks_run("bits", 4, 20, NULL);
    threads_run(CASES, "bits", 8);
}

static void signed_and_unsigned_differ(void **state)
{
    (void)state;
    ranks_run("signs", 3, 20, NULL);
}

static void each_rank_scales_its_own_input(void **state)
{
    (void)state;
    ranks_run("premulsum", 4, 20, NULL);
    threads_run(CASES, "premulsum", 2);
    ranks_run("premulsum_types", 1, 20, NULL);
    ranks_run("premulsum_types", 4, 20, NULL);
}

static void sixty_four_processes_make_progress(void **state)
{
    (void)state;
    ranks_run("crowd", 64, 60, NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_collective_type_and_operation_is_right_on_processes),
        cmocka_unit_test(every_collective_type_and_operation_is_right_on_threads),
        cmocka_unit_test(messages_longer_than_a_piece_arrive_whole),
        cmocka_unit_test(all_ranks_get_the_same_bits_in_rank_order),
        cmocka_unit_test(signed_and_unsigned_differ),
        cmocka_unit_test(each_rank_scales_its_own_input),
        cmocka_unit_test(sixty_four_processes_make_progress),
    };

    rank_main(argc, argv, CASES);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
