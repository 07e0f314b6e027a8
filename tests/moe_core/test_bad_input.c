/*
 * test_bad_input.c: wrong arguments to a layer and its parts: each has one code and a message that names rank and
 * layer, and is refused before any collective where this rank alone can check it.
 *
 * The program defines the NCCL calls that a layer makes itself, counts them and hands them on: a check that comes too
 * late shows as a call. Ranks are threads on hostnccl.
 */
#include "tests/moe_core/support.h"

#include "moe_core/include/moe/layer.h"
#include "moe_core/include/moe/linear.h"
#include "moe_core/include/moe/permute.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

enum { T = 4, H = 6, F = 4, E = 4, RANK = 5, LAYER = 9 };

static _Atomic int calls;

#define COUNTED(name, parameters, arguments)                                                                           \
    ncclResult_t name parameters                                                                                       \
    {                                                                                                                  \
        static ncclResult_t(*real) parameters;                                                                         \
        if (real == NULL) {                                                                                            \
            *(void **)&real = dlsym(RTLD_NEXT, #name);                                                                 \
        }                                                                                                              \
        atomic_fetch_add(&calls, 1);                                                                                   \
        return real arguments;                                                                                         \
    }
COUNTED(ncclAllGather, (const void *a, void *b, size_t n, ncclDataType_t t, ncclComm_t c, cudaStream_t s),
        (a, b, n, t, c, s))
COUNTED(ncclAllReduce,
        (const void *a, void *b, size_t n, ncclDataType_t t, ncclRedOp_t o, ncclComm_t c, cudaStream_t s),
        (a, b, n, t, o, c, s))
COUNTED(ncclReduceScatter,
        (const void *a, void *b, size_t n, ncclDataType_t t, ncclRedOp_t o, ncclComm_t c, cudaStream_t s),
        (a, b, n, t, o, c, s))
COUNTED(ncclSend, (const void *a, size_t n, ncclDataType_t t, int p, ncclComm_t c, cudaStream_t s), (a, n, t, p, c, s))
COUNTED(ncclRecv, (void *a, size_t n, ncclDataType_t t, int p, ncclComm_t c, cudaStream_t s), (a, n, t, p, c, s))

/* The message of the last failure names the place. */
static void assert_placed(const char *what)
{
    char place[40];
    snprintf(place, sizeof(place), "rank %d, layer %d, ", RANK, LAYER);
    if (strncmp(moe_last_error(), place, strlen(place)) != 0) {
        fail_msg("%s: '%s' does not begin with '%s'", what, moe_last_error(), place);
    }
}

static struct moe_layer_config good(void)
{
    return (struct moe_layer_config){.layer = LAYER,
                                     .world_rank = RANK,
                                     .max_tokens = T,
                                     .hidden = H,
                                     .ffn = F,
                                     .experts = E,
                                     .topk = 2,
                                     .renormalise = true};
}

/* what the constructor refuses */

#define BAD(member, value, code)                                                                                       \
    {                                                                                                                  \
        .what = #member " = " #value, .at = offsetof(struct moe_layer_config, member),                                 \
        .bytes = sizeof(((struct moe_layer_config *)0)->member), .set = (int64_t)(value), .want = (code)               \
    }

static const struct {
    const char *what;
    size_t at, bytes;
    int64_t set;
    int want;
} shapes[] = {
    BAD(topk, 0, MOE_E_SHAPE),
    BAD(topk, E + 1, MOE_E_SHAPE),
    BAD(topk, -1, MOE_E_SHAPE),
    BAD(hidden, 0, MOE_E_SHAPE),
    BAD(hidden, -3, MOE_E_SHAPE),
    BAD(ffn, 0, MOE_E_SHAPE),
    BAD(experts, 0, MOE_E_SHAPE),
    BAD(experts, -4, MOE_E_SHAPE),
    BAD(max_tokens, -1, MOE_E_SHAPE),
    BAD(max_tokens, (int64_t)1 << 40, MOE_E_NOMEM),
    BAD(max_tokens, (int64_t)1 << 61, MOE_E_SHAPE),
    BAD(hidden, (int64_t)1 << 61, MOE_E_SHAPE),
    BAD(ffn, (int64_t)1 << 61, MOE_E_SHAPE),
    BAD(experts, (int64_t)1 << 61, MOE_E_SHAPE),
    BAD(router.groups, 3, MOE_E_SHAPE),
    BAD(router.group_topk, 9, MOE_E_SHAPE),
    BAD(dispatcher, 17, MOE_E_UNSUPPORTED),
    BAD(tp_mode, 8, MOE_E_ARG),
    BAD(activation, 12, MOE_E_ARG),
    BAD(type, MOE_E4M3, MOE_E_UNSUPPORTED),
    BAD(place, 5, MOE_E_ARG),
};

static void test_shapes_that_do_not_fit_are_refused_by_the_constructor(void **state)
{
    (void)state;
    moe_device_t *device = NULL;
    assert_int_equal(moe_device_new_host(&device), 0);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        struct moe_layer_config config = good();
        moe_layer_t *layer = (moe_layer_t *)&config;
        if (strncmp(shapes[i].what, "router.group_topk", 17) == 0) {
            config.router.groups = 2;
        } else if (strncmp(shapes[i].what, "router.groups", 13) == 0) {
            config.router.group_topk = 1;
        }
        memcpy((char *)&config + shapes[i].at, &shapes[i].set, shapes[i].bytes); /* little-endian */
        int rc = moe_layer_new(device, &config, &layer);
        if (rc != shapes[i].want) {
            fail_msg("%s: %d (%s), wanted %d", shapes[i].what, rc, rc ? moe_last_error() : "accepted", shapes[i].want);
        }
        assert_null(layer);
        assert_placed(shapes[i].what);
    }
    moe_device_destroy(&device);
}

/* one rank: what forward and backward refuse */

struct fixture {
    moe_device_t *device;
    moe_layer_t *layer;
    struct moe_layer_weights weights;
    float *x, *y, *gate, *w1, *w2;
};

static int setup(void **state)
{
    static struct fixture f;
    uint64_t random = 3;
    struct moe_layer_config config = good();
    assert_int_equal(moe_device_new_host(&f.device), 0);
    assert_int_equal(moe_layer_new(f.device, &config, &f.layer), 0);
    f.x = support_floats(f.device, T * H);
    f.y = support_floats(f.device, T * H);
    f.gate = support_floats(f.device, 2 * E * H);
    f.w1 = support_floats(f.device, 2 * E * 2 * F * H);
    f.w2 = support_floats(f.device, 2 * E * H * F);
    support_fill(f.x, NULL, T * H, 1, &random);
    support_fill(f.gate, NULL, E * H, 1, &random);
    support_fill(f.w1, NULL, E * 2 * F * H, 1, &random);
    support_fill(f.w2, NULL, E * H * F, 1, &random);
    f.weights = (struct moe_layer_weights){.gate = f.gate,
                                           .w1 = f.w1,
                                           .w2 = f.w2,
                                           .d_gate = f.gate + E * H,
                                           .d_w1 = f.w1 + E * 2 * F * H,
                                           .d_w2 = f.w2 + E * H * F};
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    moe_layer_destroy(&f->layer);
    float **arrays[] = {&f->x, &f->y, &f->gate, &f->w1, &f->w2};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        moe_device_free(f->device, arrays[i]);
    }
    moe_device_destroy(&f->device);
    return 0;
}

static const struct moe_step step = {.step = 1};

static void test_numbers_of_tokens_beyond_the_limits_are_refused(void **state)
{
    struct fixture *f = *state;
    static const int64_t bad[] = {-1, T + 1, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(moe_layer_forward(f->layer, &f->weights, &step, f->x, bad[i], f->y), MOE_E_SHAPE);
        assert_placed("tokens");
        assert_int_equal(moe_layer_backward(f->layer, f->x, f->y), MOE_E_STATE);
        assert_placed("backward");
    }
}

static void test_no_tokens_at_all_are_no_error(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(moe_layer_forward(f->layer, &f->weights, &step, f->x, 0, f->y), 0);
    assert_int_equal(moe_layer_backward(f->layer, f->x, f->y), 0);
    assert_int_equal(moe_device_sync(f->device), 0);
    for (int i = 0; i < E * 2 * F * H; i++) {
        assert_true(f->weights.d_w1[i] == 0.0f);
    }
}

static void test_scores_that_are_no_number_are_found_and_placed(void **state)
{
    struct fixture *f = *state;
    f->x[7] = NAN;
    int rc = moe_layer_forward(f->layer, &f->weights, &step, f->x, T, f->y);
    rc = rc ? rc : moe_device_sync(f->device);
    assert_int_equal(rc, MOE_E_NAN);
    assert_placed("NaN");
    f->x[7] = 0.5f;
    assert_int_equal(moe_layer_forward(f->layer, &f->weights, &step, f->x, T, f->y), 0); /* the layer can go on */
    assert_int_equal(moe_layer_backward(f->layer, f->x, f->y), 0);
    assert_int_equal(moe_device_sync(f->device), 0);
}

/* counts of the grouped linear, in the stream */

static const struct {
    int64_t m[2];
    int want;
} counts[] = {
    {{3, 1}, 0},
    {{-1, 3}, MOE_E_COUNT},
    {{3, -3}, MOE_E_COUNT},
    {{3, 2}, MOE_E_SPLIT},
    {{5, 0}, MOE_E_SPLIT},
    {{INT64_MAX, 1}, MOE_E_SPLIT},
    {{INT64_MAX, INT64_MAX}, MOE_E_SPLIT},
    {{INT64_MIN, 0}, MOE_E_COUNT},
};

static void test_counts_that_do_not_fit_write_nothing(void **state)
{
    struct fixture *f = *state;
    struct moe_linear_config config = {.groups = 2, .out_features = H, .in_features = F, .max_rows = 4};
    struct moe_param param[2] = {{.data = f->w2}, {.data = f->w2 + H * F}};
    struct moe_param *weights[2] = {&param[0], &param[1]};
    moe_linear_t *linear = NULL;
    assert_int_equal(moe_linear_new(f->device, &config, &linear), 0);
    float *y = support_floats(f->device, 6 * H);
    int64_t *m = support_array(f->device, 2, sizeof(*m));
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        support_poison(y, 6 * H);
        memcpy(m, counts[i].m, sizeof(counts[i].m));
        assert_int_equal(moe_linear_forward(linear, weights, NULL, f->x, m, 4, y), 0);
        assert_int_equal(moe_device_sync(f->device), counts[i].want);
        assert_true(support_is_poison(y + 4 * H, 2 * H));
        assert_int_equal(support_is_poison(y, 4 * H), counts[i].want != 0);
    }
    assert_int_equal(moe_linear_forward(linear, weights, NULL, f->x, m, 5, y), MOE_E_CAPACITY);
    assert_int_equal(moe_linear_forward(linear, weights, NULL, f->x, m, -1, y), MOE_E_CAPACITY);
    moe_linear_destroy(&linear);
    moe_device_free(f->device, &y);
    moe_device_free(f->device, &m);
}

/* two ranks: what is refused before anything is issued */

struct rank {
    ncclUniqueId id;
    int rank;
    struct moe_layer_config config;
    int use; /* the groups below that get the communicator of two ranks */
    int rc, issued;
    char message[256];
};

enum { AS_EP = 1, AS_ETP = 2, AS_TP_EP = 4, AS_TP = 8 };

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    ncclComm_t comm = NULL;
    moe_device_t *device = NULL;
    moe_layer_t *layer = NULL;
    r->rc = 1;
    if (cudaSetDevice(r->rank) != cudaSuccess || ncclCommInitRank(&comm, 2, r->id, r->rank) != ncclSuccess ||
        moe_device_new_host(&device) != 0) {
        return NULL;
    }
    r->config.groups = (struct moe_groups){.ep = r->use & AS_EP ? comm : NULL,
                                           .etp = r->use & AS_ETP ? comm : NULL,
                                           .tp_ep = r->use & AS_TP_EP ? comm : NULL,
                                           .tp = r->use & AS_TP ? comm : NULL};
    int before = atomic_load(&calls);
    r->rc = moe_layer_new(device, &r->config, &layer);
    r->issued = atomic_load(&calls) - before;
    snprintf(r->message, sizeof(r->message), "%s", moe_last_error());
    moe_layer_destroy(&layer);
    moe_device_destroy(&device);
    ncclCommDestroy(comm);
    return NULL;
}

static const struct {
    const char *what;
    int use;
    int64_t experts, ffn;
    enum moe_tp_mode mode;
    int64_t tokens;
    int want;
    int told; /* how often ranks that meet tell each other whether they can go on: in each step of making */
} groups[] = {
    {"as it should be", AS_EP, 4, 4, MOE_TP_SEQUENCE, T, 0, 2},
    {"experts that two ranks cannot share", AS_EP, 3, 4, MOE_TP_SEQUENCE, T, MOE_E_SHAPE, 1},
    {"an F that two ranks cannot share", AS_ETP | AS_TP_EP, 4, 3, MOE_TP_SEQUENCE, T, MOE_E_SHAPE, 1},
    {"tp_ep of two ranks for ep x etp of four", AS_EP | AS_ETP | AS_TP_EP, 4, 4, MOE_TP_SEQUENCE, T, MOE_E_COMM, 1},
    {"tp_ep of two ranks for one", AS_TP_EP, 4, 4, MOE_TP_SEQUENCE, T, MOE_E_COMM, 1},
    {"tokens that two ranks cannot share", AS_TP, 4, 4, MOE_TP_SPLIT_TOKENS, 3, MOE_E_SHAPE, 1},
    {"an F that tp cannot share", AS_TP, 4, 3, MOE_TP_SHARD_EXPERTS, T, MOE_E_SHAPE, 1},
};

static void test_communicators_of_another_size_are_refused_on_all_ranks(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
        pthread_t thread[2];
        struct rank rank[2];
        ncclUniqueId id;
        assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
        for (int r = 0; r < 2; r++) {
            rank[r] = (struct rank){.id = id, .rank = r, .config = good(), .use = groups[i].use};
            rank[r].config.experts = groups[i].experts;
            rank[r].config.ffn = groups[i].ffn;
            rank[r].config.tp_mode = groups[i].mode;
            rank[r].config.max_tokens = groups[i].tokens;
            assert_int_equal(pthread_create(&thread[r], NULL, run_rank, &rank[r]), 0);
        }
        for (int r = 0; r < 2; r++) {
            pthread_join(thread[r], NULL);
        }
        for (int r = 0; r < 2; r++) {
            if (rank[r].rc != groups[i].want) {
                fail_msg("%s: %d (%s), wanted %d", groups[i].what, rank[r].rc, rank[r].message, groups[i].want);
            }
            assert_in_range(rank[r].issued, groups[i].told, 2 * groups[i].told); /* by this rank, or by both */
            if (groups[i].want != 0) {
                assert_non_null(strstr(rank[r].message, "rank 5, layer 9, "));
            }
        }
    }
}

/* A number of tokens that only this rank gets wrong: its peers are not called. */
static void test_a_local_mistake_is_found_before_the_exchange(void **state)
{
    struct fixture *f = *state;
    ncclComm_t comm = NULL;
    ncclUniqueId id;
    moe_layer_t *layer = NULL;
    struct moe_layer_config config = good();
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    assert_int_equal(ncclCommInitRank(&comm, 1, id, 0), ncclSuccess);
    config.groups.ep = comm;
    assert_int_equal(moe_layer_new(f->device, &config, &layer), 0);
    int before = atomic_load(&calls);
    assert_int_equal(moe_layer_forward(layer, &f->weights, &step, f->x, T + 1, f->y), MOE_E_SHAPE);
    assert_int_equal(atomic_load(&calls), before);
    moe_layer_destroy(&layer);
    ncclCommDestroy(comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes_that_do_not_fit_are_refused_by_the_constructor),
        cmocka_unit_test_setup_teardown(test_numbers_of_tokens_beyond_the_limits_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_tokens_at_all_are_no_error, setup, teardown),
        cmocka_unit_test_setup_teardown(test_scores_that_are_no_number_are_found_and_placed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_counts_that_do_not_fit_write_nothing, setup, teardown),
        cmocka_unit_test(test_communicators_of_another_size_are_refused_on_all_ranks),
        cmocka_unit_test_setup_teardown(test_a_local_mistake_is_found_before_the_exchange, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
