/*
 * test_router_2416.c: the router's gradient under tensor parallelism (torchtitan #2416): a summand on every tp rank,
 * summed exactly once.
 *
 * Layouts: TP2EP (each tp rank works on a slice of the tokens, experts sharded over the same ranks), DP2EP (experts' F
 * sharded over tp, experts themselves over ep), TP (F sharded, all experts everywhere); score before and after the
 * experts; softmax and sigmoid; with and without a shared expert. Ranks are threads on hostnccl; what they have is
 * compared with one process in double precision. Properties (i) to (v) are numbered as they stand in docs/MOE.md.
 */
#include "tests/moe_core/support.h"

#include "moe_core/include/moe/layer.h"
#include "moe_core/include/moe/observe.h"
#include "moe_core/reference/ref_layer.h"

#include <pthread.h>

enum { T = 8, H = 6, F = 8, S = 8, E = 4, K = 2, MOST = 4, SETS = 2 };

enum layout { TP2EP, DP2EP, TP_ONLY, LAYOUTS };
enum who_sums { LAYER_SUMS, NOBODY_SUMS, TWICE, CALLER_SUMS };

struct scenario {
    enum layout layout;
    int tp, ep; /* ranks: DP2EP tp x ep, else tp */
    enum moe_score score;
    bool before, shared;
    enum who_sums sums;
};

/* Every parameter of the model; the ranks take their parts. */
struct model {
    double gate[E * H], w1[E * 2 * F * H], w2[E * H * F], s1[2 * S * H], s2[H * S];
    double x[SETS][T * H], dy[SETS][T * H];
};

struct result {
    int rc;
    int declared[2]; /* what declaring a sum of the caller's own gave, once and again */
    float y[T * H], dx[T * H], d_gate[E * H], gate[E * H];
    float d_w1[E * 2 * F * H], d_w2[E * H * F], d_s1[2 * S * H], d_s2[H * S];
};

struct rank {
    const struct scenario *scenario;
    const struct model *model;
    ncclUniqueId world;
    int rank;
    struct result *result;
};

static const float rate = 0.25f;

static int ranks_of(const struct scenario *s)
{
    return s->layout == DP2EP ? s->tp * s->ep : s->tp;
}

/* Rank = dp rank * tp + tp rank. */
static int tp_rank(const struct scenario *s, int rank)
{
    return rank % s->tp;
}
static int set_of(const struct scenario *s, int rank)
{
    return rank / s->tp;
}

static void draw(double *to, int64_t count, double scale, uint64_t *state)
{
    for (int64_t i = 0; i < count; i++) {
        to[i] = (double)(float)(scale * support_random(state));
    }
}

static void make_model(struct model *m, uint64_t seed)
{
    draw(m->gate, E * H, 1.0, &seed);
    draw(m->w1, E * 2 * F * H, 0.6, &seed);
    draw(m->w2, E * H * F, 0.6, &seed);
    draw(m->s1, 2 * S * H, 0.6, &seed);
    draw(m->s2, H * S, 0.6, &seed);
    for (int i = 0; i < SETS; i++) {
        draw(m->x[i], T * H, 1.5, &seed);
        draw(m->dy[i], T * H, 1.0, &seed);
    }
}

/* one rank */

/* Rows first .. first + rows of each of `blocks` blocks of `height` rows: how F and S are cut. */
static void cut_rows(float *to, const double *from, int64_t blocks, int64_t height, int64_t first, int64_t rows,
                     int64_t width)
{
    for (int64_t b = 0; b < blocks; b++) {
        for (int64_t i = 0; i < rows * width; i++) {
            to[b * rows * width + i] = (float)from[(b * height + first) * width + i];
        }
    }
}

static void cut_columns(float *to, const double *from, int64_t rows, int64_t width, int64_t first, int64_t columns)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < columns; c++) {
            to[r * columns + c] = (float)from[r * width + first + c];
        }
    }
}

/* The part of the experts and of the shared expert that a rank has. */
struct part {
    int64_t expert, experts, f, fs, s, ss; /* first expert, experts; first column of F, columns; the same of S */
};

static struct part part_of(const struct scenario *s, int rank)
{
    int64_t t = tp_rank(s, rank);
    struct part p = {.experts = E, .fs = F / s->tp, .f = t * (F / s->tp), .ss = S / s->tp, .s = t * (S / s->tp)};
    if (s->layout == TP2EP) {
        p = (struct part){
            .expert = t * (E / s->tp), .experts = E / s->tp, .fs = F, .ss = S / s->tp, .s = t * (S / s->tp)};
    } else if (s->layout == DP2EP) {
        p.experts = E / s->ep;
        p.expert = set_of(s, rank) * p.experts;
    }
    return p;
}

static struct moe_layer_config config_of(const struct scenario *s, int rank, ncclComm_t tp, ncclComm_t ep)
{
    return (struct moe_layer_config){
        .layer = 1,
        .world_rank = rank,
        .max_tokens = T,
        .hidden = H,
        .ffn = F,
        .experts = E,
        .topk = K,
        .renormalise = true,
        .router = {.score = s->score},
        .options = {.legacy_router_unsummed = s->sums == NOBODY_SUMS, .legacy_router_summed_twice = s->sums == TWICE},
        .groups = {.ep = ep, .tp = tp},
        .router_sum = s->sums == CALLER_SUMS ? MOE_ROUTER_SUM_CALLER : MOE_ROUTER_SUM_LAYER,
        .tp_mode = s->layout == TP2EP ? MOE_TP_SPLIT_TOKENS : MOE_TP_SHARD_EXPERTS,
        .place = s->before ? MOE_PROB_INPUT : MOE_PROB_SOURCE,
        .shared_ffn = s->shared ? S : 0};
}

static void run_layer(struct rank *r, moe_device_t *device, ncclComm_t tp, ncclComm_t ep)
{
    const struct scenario *s = r->scenario;
    const struct model *m = r->model;
    struct result *out = r->result;
    struct part p = part_of(s, r->rank);
    int set = set_of(s, r->rank);
    moe_layer_t *layer = NULL;
    float *x = support_floats(device, T * H), *dy = support_floats(device, T * H), *y = support_floats(device, T * H),
          *dx = support_floats(device, T * H), *gate = support_floats(device, E * H),
          *d_gate = support_floats(device, E * H), *w1 = support_floats(device, p.experts * 2 * p.fs * H),
          *d_w1 = support_floats(device, p.experts * 2 * p.fs * H), *w2 = support_floats(device, p.experts * H * p.fs),
          *d_w2 = support_floats(device, p.experts * H * p.fs), *s1 = support_floats(device, 2 * p.ss * H),
          *d_s1 = support_floats(device, 2 * p.ss * H), *s2 = support_floats(device, H * p.ss),
          *d_s2 = support_floats(device, H * p.ss);
    cut_rows(x, m->x[set], 1, T, 0, T, H);
    cut_rows(dy, m->dy[set], 1, T, 0, T, H);
    cut_rows(gate, m->gate, 1, E, 0, E, H);
    cut_rows(w1, m->w1 + p.expert * 2 * F * H, p.experts * 2, F, p.f, p.fs, H);
    cut_columns(w2, m->w2 + p.expert * H * F, p.experts * H, F, p.f, p.fs);
    cut_rows(s1, m->s1, 2, S, p.s, p.ss, H);
    cut_columns(s2, m->s2, H, S, p.s, p.ss);
    struct moe_layer_config config = config_of(s, r->rank, tp, ep);
    struct moe_layer_weights weights = {.gate = gate, .w1 = w1, .w2 = w2, .d_gate = d_gate, .d_w1 = d_w1, .d_w2 = d_w2};
    if (s->shared) {
        weights.shared = (struct moe_shared_weights){.w1 = s1, .w2 = s2, .d_w1 = d_s1, .d_w2 = d_s2};
    }
    struct moe_step step = {.step = 2};
    int rc = moe_layer_new(device, &config, &layer);
    rc = rc ? rc : moe_layer_forward(layer, &weights, &step, x, T, y);
    rc = rc ? rc : moe_layer_backward(layer, dy, dx);
    out->rc = rc ? rc : moe_device_sync(device);
    for (int i = 0; i < 2 && out->rc == 0; i++) {
        out->declared[i] = moe_layer_declare_router_sum(layer);
    }
    if (out->rc != 0) {
        fprintf(stderr, "rank %d: %s\n", r->rank, moe_last_error());
    }
    memcpy(out->y, y, sizeof(out->y));
    memcpy(out->dx, dx, sizeof(out->dx));
    memcpy(out->d_gate, d_gate, sizeof(out->d_gate));
    for (int i = 0; i < E * H; i++) {
        out->gate[i] = gate[i] - rate * d_gate[i];
    }
    memcpy(out->d_w1, d_w1, (size_t)(p.experts * 2 * p.fs * H) * sizeof(float));
    memcpy(out->d_w2, d_w2, (size_t)(p.experts * H * p.fs) * sizeof(float));
    memcpy(out->d_s1, d_s1, (size_t)(2 * p.ss * H) * sizeof(float));
    memcpy(out->d_s2, d_s2, (size_t)(H * p.ss) * sizeof(float));
    float **arrays[] = {&x, &dy, &y, &dx, &gate, &d_gate, &w1, &d_w1, &w2, &d_w2, &s1, &d_s1, &s2, &d_s2};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        moe_device_free(device, arrays[i]);
    }
    moe_layer_destroy(&layer);
}

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    const struct scenario *s = r->scenario;
    ncclComm_t world = NULL, tp = NULL, ep = NULL;
    moe_device_t *device = NULL;
    int rc = cudaSetDevice(r->rank) == cudaSuccess ? 0 : MOE_E_DEVICE;
    rc |= ncclCommInitRank(&world, ranks_of(s), r->world, r->rank) == ncclSuccess ? 0 : MOE_E_COMM;
    rc |= rc                                                                                        ? rc
          : ncclCommSplit(world, set_of(s, r->rank), tp_rank(s, r->rank), &tp, NULL) == ncclSuccess ? 0
                                                                                                    : MOE_E_COMM;
    if (s->layout != TP_ONLY && rc == 0) {
        int color = s->layout == TP2EP ? 0 : tp_rank(s, r->rank);
        int key = s->layout == TP2EP ? r->rank : set_of(s, r->rank);
        rc |= ncclCommSplit(world, color, key, &ep, NULL) == ncclSuccess ? 0 : MOE_E_COMM;
    }
    rc = rc ? rc : moe_device_new_host(&device);
    r->result->rc = rc;
    if (rc == 0) {
        run_layer(r, device, tp, ep);
    }
    moe_device_destroy(&device);
    ncclComm_t comms[] = {ep, tp, world};
    for (size_t i = 0; i < 3; i++) {
        if (comms[i] != NULL) {
            ncclCommDestroy(comms[i]);
        }
    }
    return NULL;
}

static void run(const struct scenario *s, const struct model *m, struct result *results)
{
    pthread_t thread[MOST];
    struct rank rank[MOST];
    ncclUniqueId id;
    memset(results, 0, MOST * sizeof(*results));
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    for (int r = 0; r < ranks_of(s); r++) {
        rank[r] = (struct rank){.scenario = s, .model = m, .world = id, .rank = r, .result = &results[r]};
        assert_int_equal(pthread_create(&thread[r], NULL, run_rank, &rank[r]), 0);
    }
    for (int r = 0; r < ranks_of(s); r++) {
        pthread_join(thread[r], NULL);
    }
    for (int r = 0; r < ranks_of(s); r++) {
        assert_int_equal(results[r].rc, 0);
    }
}

/* one process */

struct truth {
    double y[SETS][T * H], dx[SETS][T * H], d_gate[SETS][E * H];
    double d_w1[E * 2 * F * H], d_w2[E * H * F], d_s1[SETS][2 * S * H], d_s2[SETS][H * S];
};

static void find_truth(const struct scenario *s, const struct model *m, struct truth *t)
{
    int sets = ranks_of(s) / s->tp;
    struct moe_ref_layer layer = {
        .router = {.hidden = H, .experts = E, .topk = K, .renormalise = true, .options = {.score = s->score}},
        .ffn = F,
        .shared_ffn = s->shared ? S : 0,
        .place = s->before ? MOE_PROB_INPUT : MOE_PROB_SOURCE,
        .weights = {.gate = m->gate, .w1 = m->w1, .w2 = m->w2, .shared_w1 = m->s1, .shared_w2 = m->s2}};
    struct moe_ref_set set[SETS];
    memset(t, 0, sizeof(*t));
    for (int i = 0; i < sets; i++) {
        set[i] = (struct moe_ref_set){
            .tokens = T,
            .x = m->x[i],
            .dy = m->dy[i],
            .y = t->y[i],
            .dx = t->dx[i],
            .grads = {
                .gate = t->d_gate[i], .w1 = t->d_w1, .w2 = t->d_w2, .shared_w1 = t->d_s1[i], .shared_w2 = t->d_s2[i]}};
    }
    assert_int_equal(moe_ref_layer_run(&layer, set, sets), 0);
}

/* comparing */

static const double tolerance = 2e-5; /* float32 sums of some ten terms; a factor of 1/P or P is far beyond it */

static double off(const float *got, const double *want, int64_t count)
{
    double worst = 0, size = 1e-30;
    for (int64_t i = 0; i < count; i++) {
        worst = fmax(worst, fabs((double)got[i] - want[i]));
        size = fmax(size, fabs(want[i]));
    }
    return worst / size;
}

static void sum_over_tp(const struct scenario *s, int set, const struct result *results, size_t offset, int64_t count,
                        float *out)
{
    for (int64_t i = 0; i < count; i++) {
        double sum = 0;
        for (int t = 0; t < s->tp; t++) {
            const float *part = (const float *)((const char *)&results[set * s->tp + t] + offset);
            sum += (double)part[i];
        }
        out[i] = (float)sum;
    }
}

static void check_experts(const struct scenario *s, const struct result *results, const struct truth *t)
{
    for (int r = 0; r < ranks_of(s); r++) {
        struct part p = part_of(s, r);
        float want1[E * 2 * F * H], want2[E * H * F];
        double wide[E * 2 * F * H];
        cut_rows(want1, t->d_w1 + p.expert * 2 * F * H, p.experts * 2, F, p.f, p.fs, H);
        for (int64_t i = 0; i < p.experts * 2 * p.fs * H; i++) {
            wide[i] = (double)want1[i];
        }
        support_close("d_w1", results[r].d_w1, wide, p.experts * 2 * p.fs * H, tolerance);
        cut_columns(want2, t->d_w2 + p.expert * H * F, p.experts * H, F, p.f, p.fs);
        for (int64_t i = 0; i < p.experts * H * p.fs; i++) {
            wide[i] = (double)want2[i];
        }
        support_close("d_w2", results[r].d_w2, wide, p.experts * H * p.fs, tolerance);
        if (s->shared) {
            cut_rows(want1, t->d_s1[set_of(s, r)], 2, S, p.s, p.ss, H);
            for (int64_t i = 0; i < 2 * p.ss * H; i++) {
                wide[i] = (double)want1[i];
            }
            support_close("d_shared_w1", results[r].d_s1, wide, 2 * p.ss * H, tolerance);
        }
    }
}

/* (i) replicas equal in every bit, (ii) equal to one process, (iii) dx too, (v) replicas stay equal after an optimizer
 * step. */
static void check_summed(const struct scenario *s, const struct result *results, const struct truth *t)
{
    float sum[T * H];
    for (int r = 0; r < ranks_of(s); r++) {
        int set = set_of(s, r);
        assert_memory_equal(results[r].d_gate, results[set * s->tp].d_gate, sizeof(results[r].d_gate));
        assert_memory_equal(results[r].gate, results[set * s->tp].gate, sizeof(results[r].gate));
        support_close("d_gate", results[r].d_gate, t->d_gate[set], E * H, tolerance);
    }
    for (int set = 0; set < ranks_of(s) / s->tp; set++) {
        sum_over_tp(s, set, results, offsetof(struct result, y), T * H, sum);
        support_close("y", sum, t->y[set], T * H, tolerance);
        sum_over_tp(s, set, results, offsetof(struct result, dx), T * H, sum);
        support_close("dx", sum, t->dx[set], T * H, tolerance);
    }
    check_experts(s, results, t);
}

/* (iv) before the sum each rank has a share: they add up, and none is the whole; after a step the replicas have parted.
 */
static void check_unsummed(const struct scenario *s, const struct result *results, const struct truth *t)
{
    float sum[E * H];
    for (int set = 0; set < ranks_of(s) / s->tp; set++) {
        sum_over_tp(s, set, results, offsetof(struct result, d_gate), E * H, sum);
        support_close("sum of d_gate", sum, t->d_gate[set], E * H, tolerance);
        for (int k = 0; k < s->tp; k++) {
            assert_true(off(results[set * s->tp + k].d_gate, t->d_gate[set], E * H) > 1e-2);
        }
        assert_memory_not_equal(results[set * s->tp].gate, results[set * s->tp + 1].gate, sizeof(results[0].gate));
    }
}

static void check_twice(const struct scenario *s, const struct result *results, const struct truth *t)
{
    for (int r = 0; r < ranks_of(s); r++) {
        double want[E * H];
        for (int i = 0; i < E * H; i++) {
            want[i] = s->tp * t->d_gate[set_of(s, r)][i];
        }
        support_close("d_gate, twice", results[r].d_gate, want, E * H, tolerance);
        assert_memory_equal(results[r].d_gate, results[set_of(s, r) * s->tp].d_gate, sizeof(results[r].d_gate));
    }
}

/* A second declared reduction is refused: it would make the gradient too large by P (#2416 after #1878).
 */
static void check_declared(const struct scenario *s, const struct result *results)
{
    for (int r = 0; r < ranks_of(s); r++) {
        assert_int_equal(results[r].declared[0], s->sums == LAYER_SUMS || s->sums == TWICE ? MOE_E_STATE : 0);
        assert_int_equal(results[r].declared[1], MOE_E_STATE);
    }
}

static void try_layout(enum layout layout, int tp, int ep)
{
    static struct result results[MOST];
    static struct model model;
    static struct truth truth;
    for (int bits = 0; bits < 8; bits++) {
        for (enum who_sums sums = LAYER_SUMS; sums <= CALLER_SUMS; sums++) {
            struct scenario s = {.layout = layout,
                                 .tp = tp,
                                 .ep = ep,
                                 .score = bits & 1 ? MOE_SCORE_SIGMOID : MOE_SCORE_SOFTMAX,
                                 .before = bits & 2,
                                 .shared = bits & 4,
                                 .sums = sums};
            make_model(&model, 77 + (uint64_t)bits);
            find_truth(&s, &model, &truth);
            run(&s, &model, results);
            if (sums == LAYER_SUMS) {
                check_summed(&s, results, &truth);
            } else if (sums == TWICE) {
                check_twice(&s, results, &truth);
            } else {
                check_unsummed(&s, results, &truth);
            }
            check_declared(&s, results);
        }
    }
}

static void test_tp2ep_sums_the_routers_gradient_once(void **state)
{
    (void)state;
    try_layout(TP2EP, 2, 1);
    try_layout(TP2EP, 4, 1);
}

static void test_dp2ep_sums_the_routers_gradient_once(void **state)
{
    (void)state;
    try_layout(DP2EP, 2, 2);
}

static void test_tp_alone_sums_the_routers_gradient_once(void **state)
{
    (void)state;
    try_layout(TP_ONLY, 2, 1);
    try_layout(TP_ONLY, 4, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tp2ep_sums_the_routers_gradient_once),
        cmocka_unit_test(test_dp2ep_sums_the_routers_gradient_once),
        cmocka_unit_test(test_tp_alone_sums_the_routers_gradient_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
