/*
 * test_bucket.c: gradient buckets over several ranks (threads of this process, on hostnccl): sums, scales, when a
 * bucket is issued, and the error for a bucket that is not issued.
 */
#include "tests/moe_core/support.h"

#include "moe_core/include/moe/bucket.h"

#include <pthread.h>

enum { RANKS = 4, PARAMETERS = 5, COUNT = 48, BATCHES = 3 };

/* Offsets and counts are multiples of the ranks; there is a gap before the last. */
static const struct moe_bucket_parameter parameters[PARAMETERS] = {{"embedding", UINT32_MAX, 0, 8},
                                                                   {"gate", 0, 8, 4},
                                                                   {"w1", 0, 12, 16},
                                                                   {"w2", 0, 28, 8},
                                                                   {"head", UINT32_MAX, 40, 8}};

struct plan {
    enum moe_bucket_op op;
    bool overlap, average, own_stream, wait, only_with_grad;
    int32_t dp;
    size_t bucket_bytes;
    int microbatches;
    int batches;               /* 0: BATCHES */
    int missing_from, missing; /* batch from which a parameter gets no gradient; which; -1: none */
    int missing_rank;          /* on one rank, -1: on all */
};

struct result {
    float grad[BATCHES][COUNT];
    int32_t issued_before_finish[BATCHES];
    size_t shard_offset[PARAMETERS], shard_count[PARAMETERS];
    int32_t buckets;
    int rc;
    char message[512];
};

struct rank {
    const struct plan *plan;
    ncclUniqueId id;
    int rank;
    struct result *result;
};

static float gradient(int rank, int batch, size_t element)
{
    return (float)((rank + 1) * 8 + batch) + (float)element / 64;
}

static bool missing(const struct plan *p, int rank, int batch, int which)
{
    return which == p->missing && batch >= p->missing_from && (p->missing_rank < 0 || p->missing_rank == rank);
}

/* Each parameter's gradient from the last to the first, as backward makes them; on the last microbatch it is whole. */
static int one_batch(const struct rank *r, moe_buckets_t *b, float *grad, int batch)
{
    int rc = 0;
    memset(grad, 0, COUNT * sizeof(*grad)); /* the stream is idle */
    for (int mb = 0; mb < r->plan->microbatches && rc == 0; mb++) {
        for (int i = PARAMETERS; i-- > 0 && rc == 0;) {
            const struct moe_bucket_parameter *p = &parameters[i];
            for (size_t e = p->offset; e < p->offset + p->count && mb == 0; e++) {
                grad[e] = missing(r->plan, r->rank, batch, i) ? 0 : gradient(r->rank, batch, e);
            }
            rc = missing(r->plan, r->rank, batch, i) ? 0 : moe_buckets_ready(b, i);
        }
    }
    r->result->issued_before_finish[batch] = moe_buckets_issued(b);
    rc = rc ? rc : moe_buckets_finish(b);
    return rc;
}

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    struct result *out = r->result;
    const struct plan *p = r->plan;
    ncclComm_t comm = NULL;
    moe_device_t *device = NULL, *side = NULL;
    moe_buckets_t *b = NULL;
    float *grad = NULL;
    out->rc = cudaSetDevice(r->rank) == cudaSuccess ? 0 : MOE_E_DEVICE;
    out->rc |= ncclCommInitRank(&comm, RANKS, r->id, r->rank) == ncclSuccess ? 0 : MOE_E_COMM;
    out->rc |= moe_device_new_host(&device) | moe_device_new_host(&side);
    if (out->rc == 0) {
        out->rc = moe_device_alloc(device, COUNT * sizeof(*grad), (void **)&grad);
        struct moe_buckets_config config = {.grad = grad,
                                            .count = COUNT,
                                            .comm = comm,
                                            .dp = p->dp,
                                            .average_in_collective = p->average,
                                            .op = p->op,
                                            .bucket_bytes = p->bucket_bytes,
                                            .overlap = p->overlap,
                                            .stream = p->own_stream ? moe_device_stream(side) : NULL,
                                            .legacy_wait = p->wait,
                                            .legacy_only_with_grad = p->only_with_grad,
                                            .world_rank = r->rank};
        out->rc = out->rc ? out->rc : moe_buckets_new(device, &config, parameters, PARAMETERS, &b);
    }
    for (int batch = 0; batch < (p->batches > 0 ? p->batches : BATCHES) && out->rc == 0; batch++) {
        out->rc = one_batch(r, b, grad, batch);
        int waited = moe_device_sync(device);
        out->rc = out->rc ? out->rc : waited;
        memcpy(out->grad[batch], grad, sizeof(out->grad[batch]));
    }
    snprintf(out->message, sizeof(out->message), "%s", out->rc != 0 ? moe_last_error() : "");
    for (int32_t i = 0; b != NULL && i < moe_buckets_count(b); i++) {
        out->buckets = moe_buckets_count(b);
        moe_buckets_shard(b, i, &out->shard_offset[i], &out->shard_count[i]);
    }
    moe_buckets_destroy(&b);
    moe_device_free(device, &grad);
    moe_device_destroy(&side);
    moe_device_destroy(&device);
    if (comm != NULL) {
        ncclCommDestroy(comm);
    }
    return NULL;
}

static void run(const struct plan *p, struct result *results)
{
    pthread_t thread[RANKS];
    struct rank rank[RANKS];
    ncclUniqueId id;
    memset(results, 0, RANKS * sizeof(*results));
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    for (int r = 0; r < RANKS; r++) {
        rank[r] = (struct rank){p, id, r, &results[r]};
        assert_int_equal(pthread_create(&thread[r], NULL, run_rank, &rank[r]), 0);
    }
    for (int r = 0; r < RANKS; r++) {
        pthread_join(thread[r], NULL);
    }
}

/* The sum over the ranks, divided by dp, wherever this rank has to have it. */
static void check_sums(const struct plan *p, const struct result *results)
{
    for (int r = 0; r < RANKS; r++) {
        size_t checked = 0;
        assert_int_equal(results[r].rc, 0);
        for (int batch = 0; batch < BATCHES; batch++) {
            for (int32_t i = 0; i < results[r].buckets; i++) {
                size_t from = results[r].shard_offset[i], to = from + results[r].shard_count[i];
                for (size_t e = from; e < to; e++) {
                    float want = 0;
                    for (int q = 0; q < RANKS; q++) {
                        want += e >= 36 && e < 40 ? 0 : gradient(q, batch, e);
                    }
                    assert_float_equal(results[r].grad[batch][e], want / (float)p->dp, 1e-4f);
                    checked++;
                }
            }
        }
        assert_int_equal(checked, p->op == MOE_BUCKET_REDUCESCATTER ? COUNT / RANKS * BATCHES : COUNT * BATCHES);
    }
}

static void test_sums_are_right_in_every_mode(void **state)
{
    (void)state;
    static struct result results[RANKS];
    for (unsigned mode = 0; mode < 16; mode++) {
        struct plan p = {.op = mode & 1 ? MOE_BUCKET_REDUCESCATTER : MOE_BUCKET_ALLREDUCE,
                         .overlap = mode & 2,
                         .average = mode & 4,
                         .own_stream = mode & 8,
                         .dp = mode & 1 ? 8 : 4, /* 8: experts, edp 4 of dp 8 */
                         .bucket_bytes = 24 * sizeof(float),
                         .microbatches = 1 + (int)(mode & 1),
                         .missing = -1};
        run(&p, results);
        check_sums(&p, results);
        for (int r = 0; r < RANKS; r++) {
            assert_int_equal(results[r].buckets, 3);
            assert_int_equal(results[r].issued_before_finish[0], 0); /* the first batch is issued at its end */
            assert_int_equal(results[r].issued_before_finish[1], p.overlap ? 3 : 0);
        }
    }
}

static void test_buckets_fill_from_the_last_parameter_and_cover_the_buffer(void **state)
{
    (void)state;
    static struct result results[RANKS];
    const struct {
        size_t bytes;
        int32_t buckets;
        size_t first_count; /* of the bucket that is complete first */
    } table[] = {{0, 1, COUNT}, {1, PARAMETERS, 8}, {20 * sizeof(float), 3, 20}, {36 * sizeof(float), 2, 36}};
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct plan p = {.dp = 4, .bucket_bytes = table[i].bytes, .microbatches = 1, .missing = -1};
        size_t end = COUNT;
        run(&p, results);
        assert_int_equal(results[0].rc, 0);
        assert_int_equal(results[0].buckets, table[i].buckets);
        assert_int_equal(results[0].shard_count[0], table[i].first_count);
        for (int32_t b = 0; b < results[0].buckets; b++) {
            assert_int_equal(results[0].shard_offset[b] + results[0].shard_count[b], end);
            end = results[0].shard_offset[b];
        }
        assert_int_equal(end, 0);
    }
}

static void test_a_bucket_that_never_got_complete_names_its_parameters(void **state)
{
    (void)state;
    static struct result results[RANKS];
    struct plan p = {.overlap = true,
                     .dp = 4,
                     .bucket_bytes = 28 * sizeof(float),
                     .microbatches = 1,
                     .missing_from = 1,
                     .missing = 1,
                     .missing_rank = -1};
    run(&p, results);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(results[r].rc, MOE_E_STATE);
        assert_non_null(strstr(results[r].message, "1 of 3 parameters have no gradient: gate"));
        assert_int_equal(results[r].issued_before_finish[1], 1);
    }
}

static void test_the_first_batch_must_count_every_parameter(void **state)
{
    (void)state;
    static struct result results[RANKS];
    struct plan p = {.overlap = true, .dp = 4, .microbatches = 1, .batches = 1, .missing = 3, .missing_rank = 2};
    run(&p,
        results); /* all is issued at the end of the first batch: rank 2 alone fails, and not by hanging the others */
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(results[r].rc == MOE_E_STATE && strstr(results[r].message, "w2") != NULL, r == 2);
    }
}

static void test_without_overlap_a_missing_gradient_is_only_zero(void **state)
{
    (void)state;
    static struct result results[RANKS];
    struct plan p = {.dp = 4, .microbatches = 1, .missing_from = 1, .missing = 2, .missing_rank = 3};
    run(&p, results);
    for (int r = 0; r < RANKS; r++) {
        float want = 0;
        for (int q = 0; q < 3; q++) {
            want += gradient(q, 1, 12);
        }
        assert_int_equal(results[r].rc, 0);
        assert_float_equal(results[r].grad[1][12], want / 4, 1e-4f);
    }
}

static void test_legacy_wait_leaves_the_bucket_out_without_a_word(void **state)
{
    (void)state;
    static struct result results[RANKS];
    struct plan p = {.overlap = true,
                     .dp = 1,
                     .bucket_bytes = 28 * sizeof(float),
                     .microbatches = 1,
                     .missing_from = 1,
                     .missing = 1,
                     .missing_rank = -1,
                     .wait = true};
    run(&p, results);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(results[r].rc, 0);
        assert_int_equal(results[r].issued_before_finish[1], 1);
        assert_true(results[r].grad[1][0] == gradient(r, 1, 0));   /* not reduced: its own */
        assert_true(results[r].grad[1][40] != gradient(r, 1, 40)); /* reduced */
    }
}

static void test_legacy_only_with_grad_reduces_what_there_is(void **state)
{
    (void)state;
    static struct result results[RANKS];
    struct plan p = {
        .dp = 4, .microbatches = 1, .missing_from = 1, .missing = 2, .missing_rank = -1, .only_with_grad = true};
    run(&p, results);
    for (int r = 0; r < RANKS; r++) {
        float first = 0, last = 0;
        for (int q = 0; q < RANKS; q++) {
            first += gradient(q, 2, 0) / 4;
            last += gradient(q, 2, 47) / 4;
        }
        assert_int_equal(results[r].rc, 0);
        assert_float_equal(results[r].grad[2][0], first, 1e-4f);
        assert_float_equal(results[r].grad[2][47], last, 1e-4f);
        assert_true(results[r].grad[2][12] == 0);
    }
}

static void test_bad_ranges_are_refused(void **state)
{
    (void)state;
    moe_device_t *device = NULL;
    moe_buckets_t *b = NULL;
    float *grad = NULL;
    assert_int_equal(moe_device_new_host(&device), 0);
    grad = support_floats(device, COUNT);
    struct moe_buckets_config config = {.grad = grad, .count = COUNT};
    const struct moe_bucket_parameter bad[][2] = {
        {{"a", 0, 0, 8}, {"b", 0, 4, 8}},            /* overlap */
        {{"a", 0, 0, 8}, {"b", 0, 44, 8}},           /* beyond the end */
        {{"a", 0, 0, 0}, {"b", 0, 44, 4}},           /* nothing */
        {{"a", 0, 8, 8}, {"b", 0, 0, 8}},            /* descending */
        {{"a", 0, 0, 8}, {"b", 0, SIZE_MAX - 3, 8}}, /* wraps */
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(moe_buckets_new(device, &config, bad[i], 2, &b), MOE_E_SHAPE);
        assert_null(b);
    }
    assert_int_equal(moe_buckets_new(device, &config, parameters, 0, &b), MOE_E_ARG);
    assert_int_equal(moe_buckets_new(device, &config, parameters, PARAMETERS, &b), 0);
    assert_int_equal(moe_buckets_ready(b, PARAMETERS), MOE_E_ARG);
    assert_int_equal(moe_buckets_ready(b, -1), MOE_E_ARG);
    moe_buckets_destroy(&b);
    moe_device_free(device, &grad);
    moe_device_destroy(&device);
}

static void test_more_gradients_than_in_the_first_batch_are_refused(void **state)
{
    (void)state;
    moe_device_t *device = NULL;
    moe_buckets_t *b = NULL;
    assert_int_equal(moe_device_new_host(&device), 0);
    float *grad = support_floats(device, COUNT);
    struct moe_buckets_config config = {.grad = grad, .count = COUNT, .overlap = true};
    assert_int_equal(moe_buckets_new(device, &config, parameters, PARAMETERS, &b), 0);
    for (int32_t i = 0; i < PARAMETERS; i++) {
        assert_int_equal(moe_buckets_ready(b, i), 0);
    }
    assert_int_equal(moe_buckets_finish(b), 0);
    assert_int_equal(moe_buckets_ready(b, 2), 0);
    assert_int_equal(moe_buckets_ready(b, 2), MOE_E_STATE);
    assert_non_null(strstr(moe_last_error(), "w1"));
    moe_buckets_destroy(&b);
    moe_device_free(device, &grad);
    moe_device_destroy(&device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_are_right_in_every_mode),
        cmocka_unit_test(test_buckets_fill_from_the_last_parameter_and_cover_the_buffer),
        cmocka_unit_test(test_a_bucket_that_never_got_complete_names_its_parameters),
        cmocka_unit_test(test_the_first_batch_must_count_every_parameter),
        cmocka_unit_test(test_without_overlap_a_missing_gradient_is_only_zero),
        cmocka_unit_test(test_legacy_wait_leaves_the_bucket_out_without_a_word),
        cmocka_unit_test(test_legacy_only_with_grad_reduces_what_there_is),
        cmocka_unit_test(test_bad_ranges_are_refused),
        cmocka_unit_test(test_more_gradients_than_in_the_first_batch_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
