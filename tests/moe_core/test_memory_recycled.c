/*
 * test_memory_recycled.c: memory that changes hands: several steps over recycled memory that is NaN give the same bits
 * as new memory in each step, with every dispatcher.
 */
#include "tests/moe_core/memory_trial.h"

#include <pthread.h>

/* several ranks */

struct scene {
    int ranks;
    enum moe_dispatcher_kind kind;
    int recompute; /* 0; MOE_RECOMPUTE_ACTIVATION, MOE_RECOMPUTE_FC1; LAYER: the whole layer */
    bool delay_wgrad;
    bool travel;
    bool own_memory; /* a fresh device in every step */
    int64_t row_budget, row_multiple;
    enum moe_dtype type;
};

enum { STEPS = 4, LAYER = 3 };

struct answer {
    int rc;
    float y[STEPS][T * H], dx[STEPS][T * H], d_gate[E * H], d_w1[E * 2 * F * H], d_w2[E * H * F];
    struct moe_memory_figures figures;
    char message[160];
};

struct rank {
    struct scene *scene;
    struct answer *answer;
    ncclUniqueId id;
    int rank;
};

/* The tokens of a rank in a step; sometimes none, and then all. */
static int64_t tokens_in(int rank, int step)
{
    return step == 1 && rank == 0 ? 0 : step == 2 ? T : 3 + 5 * rank + step;
}

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    struct scene *s = r->scene;
    struct answer *out = r->answer;
    struct model m = {0};
    moe_device_t *device = NULL;
    moe_layer_t *layer = NULL;
    ncclComm_t ep = NULL;
    struct counting *c = calloc(1, sizeof(*c));
    out->rc = cudaSetDevice(r->rank) == cudaSuccess ? 0 : MOE_E_DEVICE;
    out->rc |= ncclCommInitRank(&ep, s->ranks, r->id, r->rank) == ncclSuccess ? 0 : MOE_E_COMM;
    device = device_of(c);
    int64_t local = E / s->ranks;
    make_model(device, &m, r->rank, local);
    struct moe_layer_config config = config_of(ep, r->rank, s->kind);
    config.recompute = s->recompute == LAYER;
    config.experts_recompute = s->recompute == LAYER ? MOE_RECOMPUTE_NONE : (enum moe_recompute)s->recompute;
    config.delay_wgrad = s->delay_wgrad;
    config.place = s->travel ? MOE_PROB_ACTIVATION : MOE_PROB_SOURCE;
    config.row_budget = s->row_budget;
    config.row_multiple = s->row_multiple;
    out->rc = out->rc ? out->rc : moe_layer_new(device, &config, &layer);
    for (int i = 0; i < STEPS && out->rc == 0; i++) {
        if (s->own_memory) { /* what the last step left in the pool is of no use to this one */
            size_t bytes = 0;
            moe_layer_destroy(&layer);
            out->rc = moe_device_trim(device, &bytes);
            out->rc = out->rc ? out->rc : moe_layer_new(device, &config, &layer);
        }
        int64_t n = tokens_in(r->rank, i);
        out->rc = out->rc ? out->rc : run_step(device, layer, &m, n);
        if (out->rc == 0 && s->delay_wgrad) {
            out->rc = moe_layer_backward_dw(layer);
            out->rc = out->rc ? out->rc : moe_device_sync(device);
        }
        memcpy(out->y[i], m.y, (size_t)(n * H) * sizeof(float));
        memcpy(out->dx[i], m.dx, (size_t)(n * H) * sizeof(float));
    }
    snprintf(out->message, sizeof(out->message), "%s", out->rc ? moe_last_error() : "");
    memcpy(out->d_gate, m.d_gate, sizeof(out->d_gate));
    memcpy(out->d_w1, m.d_w1, (size_t)(local * 2 * F * H) * sizeof(float));
    memcpy(out->d_w2, m.d_w2, (size_t)(local * H * F) * sizeof(float));
    moe_device_memory(device, &out->figures);
    moe_layer_destroy(&layer);
    free_model(device, &m);
    moe_device_destroy(&device);
    ncclCommDestroy(ep);
    out->rc = out->rc == 0 && (c->bytes != 0 || c->wrong) ? MOE_E_STATE : out->rc;
    free(c);
    return NULL;
}

static void run(struct scene *s, struct answer *answers)
{
    pthread_t thread[MOST_RANKS];
    struct rank rank[MOST_RANKS];
    ncclUniqueId id;
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    memset(answers, 0, MOST_RANKS * sizeof(*answers));
    for (int i = 0; i < s->ranks; i++) {
        rank[i] = (struct rank){.scene = s, .answer = &answers[i], .id = id, .rank = i};
        assert_int_equal(pthread_create(&thread[i], NULL, run_rank, &rank[i]), 0);
    }
    for (int i = 0; i < s->ranks; i++) {
        pthread_join(thread[i], NULL);
        if (answers[i].rc != 0) {
            fail_msg("rank %d: %d: %s", i, answers[i].rc, answers[i].message);
        }
    }
}

/* Every dispatcher, several steps over recycled memory that is NaN: the same bits as with new memory in each step. */
static void test_recycled_memory_never_shows(void **state)
{
    (void)state;
    static struct answer recycled[MOST_RANKS], fresh[MOST_RANKS];
    const struct scene scenes[] = {
        {.ranks = 1, .kind = MOE_DISPATCH_ALLTOALL},
        {.ranks = 4, .kind = MOE_DISPATCH_ALLTOALL},
        {.ranks = 4, .kind = MOE_DISPATCH_ALLTOALL, .travel = true, .row_multiple = 4},
        {.ranks = 2, .kind = MOE_DISPATCH_ALLTOALL, .recompute = LAYER},
        {.ranks = 2, .kind = MOE_DISPATCH_ALLTOALL, .recompute = MOE_RECOMPUTE_ACTIVATION},
        {.ranks = 2, .kind = MOE_DISPATCH_ALLTOALL, .recompute = MOE_RECOMPUTE_FC1, .delay_wgrad = true},
        {.ranks = 2, .kind = MOE_DISPATCH_ALLTOALL, .delay_wgrad = true},
        {.ranks = 4, .kind = MOE_DISPATCH_ALLGATHER},
        {.ranks = 2, .kind = MOE_DISPATCH_ALLGATHER, .travel = true},
        {.ranks = 4, .kind = MOE_DISPATCH_DEEPEP},
        {.ranks = 2, .kind = MOE_DISPATCH_DEEPEP, .travel = true, .row_multiple = 4},
        {.ranks = 4, .kind = MOE_DISPATCH_HYBRIDEP},
        {.ranks = 2, .kind = MOE_DISPATCH_HYBRIDEP, .travel = true, .recompute = LAYER},
        {.ranks = 2, .kind = MOE_DISPATCH_HYBRIDEP, .row_budget = 3 * T * K},
    };
    for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++) {
        struct scene s = scenes[i];
        run(&s, recycled);
        s.own_memory = true;
        run(&s, fresh);
        for (int r = 0; r < s.ranks; r++) {
            assert_memory_equal(recycled[r].y, fresh[r].y, sizeof(fresh[r].y));
            assert_memory_equal(recycled[r].dx, fresh[r].dx, sizeof(fresh[r].dx));
            assert_memory_equal(recycled[r].d_gate, fresh[r].d_gate, sizeof(fresh[r].d_gate));
            assert_memory_equal(recycled[r].d_w1, fresh[r].d_w1, sizeof(fresh[r].d_w1));
            assert_memory_equal(recycled[r].d_w2, fresh[r].d_w2, sizeof(fresh[r].d_w2));
            assert_int_equal(recycled[r].figures.in_use, 0);
            for (int j = 0; j < T * H; j++) {
                assert_true(isfinite(recycled[r].y[STEPS - 1][j]) && isfinite(recycled[r].dx[STEPS - 1][j]));
            }
            assert_true(s.row_budget > 0 || recycled[r].figures.most_in_use > 0);
        }
    }
}

enum { ROWS = 21 };

struct experts_answer {
    float y[2][ROWS * H], dx[2][ROWS * H], d_w1[E * 2 * F * H], d_w2[E * H * F];
};

/* Forward of one object, forward of another, backward of the first, backward of the second; twice. */
static void run_experts(bool pooled, enum moe_recompute recompute, bool delay, struct experts_answer *out)
{
    struct counting c = {0};
    moe_device_t *device = device_of(&c);
    struct model m = {0};
    moe_experts_t *experts[2] = {NULL, NULL};
    const struct moe_experts_config config = {.max_rows = ROWS,
                                              .hidden = H,
                                              .ffn = F,
                                              .experts = E,
                                              .recompute = recompute,
                                              .delay_wgrad = delay,
                                              .pooled = pooled};
    make_model(device, &m, 0, E);
    int64_t *counts = support_array(device, E, sizeof(*counts));
    for (int i = 0; i < ROWS; i++) {
        counts[i * i % E]++;
    }
    const struct moe_experts_weights w = {.w1 = m.w1, .w2 = m.w2, .d_w1 = m.d_w1, .d_w2 = m.d_w2};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(moe_experts_new(device, &config, &experts[i]), 0);
    }
    for (int step = 0; step < 2; step++) {
        for (int i = 0; i < 2; i++) {
            assert_int_equal(moe_experts_forward(experts[i], &w, m.x + i * H, NULL, counts, ROWS, m.y), 0);
            assert_int_equal(moe_device_copy(device, out->y[i], m.y, sizeof(out->y[i])), 0);
        }
        for (int i = 0; i < 2; i++) {
            assert_int_equal(moe_experts_backward(experts[i], &w, m.dy + i * H, m.dx, NULL), 0);
            assert_int_equal(delay ? moe_experts_backward_dw(experts[i]) : 0, 0);
            assert_int_equal(moe_device_copy(device, out->dx[i], m.dx, sizeof(out->dx[i])), 0);
        }
    }
    assert_int_equal(moe_device_sync(device), 0);
    assert_int_equal(figures_of(device).in_use, 0);
    assert_int_equal(figures_of(device).most_in_use > 0, pooled);
    memcpy(out->d_w1, m.d_w1, sizeof(out->d_w1));
    memcpy(out->d_w2, m.d_w2, sizeof(out->d_w2));
    for (int i = 0; i < 2; i++) {
        moe_experts_destroy(&experts[i]);
    }
    moe_device_free(device, &counts);
    free_model(device, &m);
    moe_device_destroy(&device);
    assert_int_equal(c.bytes, 0);
}

/* What is computed again in backward comes to other memory than in forward: another object has that by then. */
static void test_experts_of_the_pool_equal_those_with_memory_of_their_own(void **state)
{
    (void)state;
    static struct experts_answer own, pool;
    for (int i = 0; i < 6; i++) {
        enum moe_recompute recompute = (enum moe_recompute)(i % 3);
        run_experts(false, recompute, i >= 3, &own);
        run_experts(true, recompute, i >= 3, &pool);
        assert_memory_equal(&own, &pool, sizeof(own));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recycled_memory_never_shows),
        cmocka_unit_test(test_experts_of_the_pool_equal_those_with_memory_of_their_own),
    };
    setenv("HOSTCUDA_DEVICES", "16", 1); /* before the first call of the runtime */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
