/*
 * form_check.c: what is expected: one process in double precision over the tokens of all ranks.
 */
#include "tests/moe_core/form_ranks.h"
#include "tests/moe_core/typed.h"

enum { SETS = FORM_RANKS };

/*
 * The tokens of a rank as the reference has them: SPLIT takes half of a pair's tokens, and in SHARD only the first rank
 * of a pair counts.
 */
struct slice {
    int64_t first, tokens;
};

static struct slice slice_of(const struct form_case *c, int rank)
{
    int64_t tokens = form_tokens(c, rank);
    if (c->layout == FORM_SPLIT) {
        return (struct slice){rank % 2 * (tokens / 2), tokens / 2};
    }
    return (struct slice){0, c->layout == FORM_SHARD && rank % 2 == 1 ? 0 : tokens};
}

struct truth {
    int64_t counted[FORM_E]; /* tokens of all ranks for each expert in the microbatches so far */
    double x[SETS][FORM_T * FORM_H], dy[SETS][FORM_T * FORM_H], y[SETS][FORM_T * FORM_H], dx[SETS][FORM_T * FORM_H];
    double grad[SETS][MOE_LAYER_PARAMETERS][FORM_MOST]; /* of each set, over all microbatches; the experts' in set 0 */
};

static struct moe_ref_layer reference(const struct form_case *c, const struct form_model *m)
{
    const struct moe_layer_config *l = &c->config;
    const double *p[MOE_LAYER_PARAMETERS];
    for (int i = 0; i < MOE_LAYER_PARAMETERS; i++) {
        p[i] = form_has(c, (enum moe_layer_parameter)i) ? m->parameter[i] : NULL;
    }
    return (struct moe_ref_layer){.router = {.hidden = FORM_H,
                                             .experts = FORM_E,
                                             .topk = l->topk > 0 ? l->topk : 2,
                                             .renormalise = l->renormalise,
                                             .options = l->router},
                                  .ffn = FORM_F,
                                  .shared_ffn = l->shared_ffn,
                                  .activation = l->activation,
                                  .clamp = l->clamp,
                                  .place = l->place,
                                  .loss_scale = (double)c->loss_scale,
                                  .weights = {.gate = p[MOE_LAYER_GATE],
                                              .gate_bias = p[MOE_LAYER_GATE_BIAS],
                                              .expert_bias = l->router.expert_bias ? m->expert_bias : NULL,
                                              .w1 = p[MOE_LAYER_W1],
                                              .b1 = p[MOE_LAYER_B1],
                                              .w2 = p[MOE_LAYER_W2],
                                              .b2 = p[MOE_LAYER_B2],
                                              .shared_w1 = p[MOE_LAYER_SHARED_W1],
                                              .shared_b1 = p[MOE_LAYER_SHARED_B1],
                                              .shared_w2 = p[MOE_LAYER_SHARED_W2],
                                              .shared_b2 = p[MOE_LAYER_SHARED_B2],
                                              .shared_gate = p[MOE_LAYER_SHARED_GATE]}};
}

static void run_batch(const struct form_case *c, const struct form_model *m, int batch, struct truth *t)
{
    struct moe_ref_layer layer = reference(c, m);
    int64_t counts[SETS][FORM_E] = {{0}};
    layer.global_earlier = batch > 0 ? t->counted : NULL;
    layer.microbatches = batch + 1;
    struct moe_ref_set set[SETS];
    for (int r = 0; r < SETS; r++) {
        double x[FORM_T * FORM_H], dy[FORM_T * FORM_H];
        struct slice s = slice_of(c, r);
        double *g[MOE_LAYER_PARAMETERS];
        for (int p = 0; p < MOE_LAYER_PARAMETERS; p++) {
            bool experts = p >= MOE_LAYER_W1 && p <= MOE_LAYER_B2;
            g[p] = (form_frozen(c, r, batch) >> p & 1u) != 0 ? NULL : t->grad[experts ? 0 : r][p];
        }
        form_make_tokens(c, r, batch, x, dy);
        memcpy(t->x[r], x + s.first * FORM_H, (size_t)(s.tokens * FORM_H) * sizeof(double));
        memcpy(t->dy[r], dy + s.first * FORM_H, (size_t)(s.tokens * FORM_H) * sizeof(double));
        set[r] = (struct moe_ref_set){.tokens = s.tokens,
                                      .global = c->config.router.coeff[MOE_LOSS_GLOBAL] != 0.0f,
                                      .counts = counts[r],
                                      .x = t->x[r],
                                      .dy = form_goes_back(c, batch) ? t->dy[r] : NULL,
                                      .y = t->y[r],
                                      .dx = t->dx[r],
                                      .grads = {.gate = g[MOE_LAYER_GATE],
                                                .gate_bias = g[MOE_LAYER_GATE_BIAS],
                                                .w1 = g[MOE_LAYER_W1],
                                                .b1 = g[MOE_LAYER_B1],
                                                .w2 = g[MOE_LAYER_W2],
                                                .b2 = g[MOE_LAYER_B2],
                                                .shared_w1 = g[MOE_LAYER_SHARED_W1],
                                                .shared_b1 = g[MOE_LAYER_SHARED_B1],
                                                .shared_w2 = g[MOE_LAYER_SHARED_W2],
                                                .shared_b2 = g[MOE_LAYER_SHARED_B2],
                                                .shared_gate = g[MOE_LAYER_SHARED_GATE]}};
    }
    assert_int_equal(moe_ref_layer_run(&layer, set, SETS), 0);
    for (int i = 0; i < SETS * FORM_E; i++) {
        t->counted[i % FORM_E] += counts[i / FORM_E][i % FORM_E];
    }
}

static void compare(const char *what, int rank, int batch, const float *got, const double *want, int64_t count,
                    double tolerance, double size)
{
    for (int64_t i = 0; i < count; i++) {
        size = fmax(size, fabs(want[i]));
    }
    for (int64_t i = 0; i < count; i++) {
        if (!(fabs((double)got[i] - want[i]) <= tolerance * size)) {
            fail_msg("rank %d, microbatch %c: %s[%lld]: got %.9g, want %.9g", rank, 'A' + batch, what, (long long)i,
                     (double)got[i], want[i]);
        }
    }
}

/* y or dx: with the same tokens on a pair the ranks have summands; rows beyond a rank's tokens were not touched. */
static void check_rows(const struct form_case *c, const struct form_result *results, const char *what, int batch,
                       bool is_dx, const struct truth *t, double tolerance)
{
    bool pair = c->layout == FORM_SPLIT || c->layout == FORM_SHARD;
    for (int r = 0; r < FORM_RANKS; r += pair ? 2 : 1) {
        float sum[FORM_T * FORM_H];
        double want[FORM_T * FORM_H] = {0};
        int64_t count = form_tokens(c, r) * FORM_H, at = 0;
        for (int i = 0; i < (pair ? 2 : 1); i++) {
            const struct form_result *out = &results[r + i];
            const float *rows = is_dx ? out->dx[batch] : out->y[batch];
            int64_t part = slice_of(c, r + i).tokens * FORM_H;
            memcpy(want + at, is_dx ? t->dx[r + i] : t->y[r + i], (size_t)part * sizeof(double));
            at += part;
            for (int64_t j = 0; j < FORM_T * FORM_H; j++) {
                sum[j] = (i > 0 ? sum[j] : 0) + rows[j];
                if (isnan(rows[j]) != (j >= count)) {
                    fail_msg("rank %d, microbatch %c: %s[%lld] is %s", r + i, 'A' + batch, what, (long long)j,
                             j < count ? "not written" : "written, and is no token's");
                }
            }
        }
        compare(what, r, batch, sum, want, count, tolerance, 1e-30);
    }
}

static const char *const names[MOE_LAYER_PARAMETERS] = {"d_gate",      "d_gate_bias", "d_w1",         "d_b1",
                                                        "d_w2",        "d_b2",        "d_shared_w1",  "d_shared_b1",
                                                        "d_shared_w2", "d_shared_b2", "d_shared_gate"};

static void check_gradient(const struct form_case *c, const struct form_result *results, const struct truth *t, int r,
                           enum moe_layer_parameter p, double tolerance)
{
    struct form_cut cut = form_cut_of(c, r, p);
    int64_t count = form_cut_count(&cut);
    bool experts = p >= MOE_LAYER_W1 && p <= MOE_LAYER_B2;
    bool frozen = (c->thawed == 0 && (c->frozen[r] >> p & 1u) != 0) || !form_has(c, p);
    double *want = support_doubles(count), times = c->layers > 0 ? c->layers : 1;
    for (int64_t i = 0; i < count && !frozen; i++) {
        want[i] = experts ? form_cut_get(&cut, t->grad[0][p], i)
                  : form_on_tp(c)
                      ? form_cut_get(&cut, t->grad[r / 2 * 2][p], i) + form_cut_get(&cut, t->grad[r / 2 * 2 + 1][p], i)
                      : form_cut_get(&cut, t->grad[r][p], i);
        want[i] *= times;
    }
    /* what is frozen is exactly what it was; a sum that begins with 0.75 has its roundings */
    compare(names[p], r, 0, results[r].grad[p], want, count, frozen ? 0 : tolerance, 1);
    free(want);
}

void form_check(const struct form_case *c, const struct form_result *results, double tolerance)
{
    struct form_model *m = malloc(sizeof(*m));
    struct truth *t = calloc(1, sizeof(*t));
    assert_non_null(m);
    assert_non_null(t);
    for (int r = 0; r < FORM_RANKS; r++) {
        if (results[r].rc != 0) {
            fail_msg("%s: rank %d: %d (%s)", form_name(c->layout), r, results[r].rc, results[r].message);
        }
    }
    form_make_model(c, m);
    for (int b = 0; b < FORM_BATCHES; b++) {
        if (form_goes(c, b)) {
            run_batch(c, m, b, t);
            check_rows(c, results, "y", b, false, t, tolerance);
        }
        if (form_goes_back(c, b)) {
            check_rows(c, results, "dx", b, true, t, tolerance);
        }
    }
    for (int r = 0; r < FORM_RANKS; r++) {
        for (int p = 0; p < MOE_LAYER_PARAMETERS; p++) {
            check_gradient(c, results, t, r, (enum moe_layer_parameter)p, tolerance);
        }
    }
    free(m);
    free(t);
}

void form_equal(const struct form_case *c, const struct form_result *a, const struct form_result *b)
{
    for (int r = 0; r < FORM_RANKS; r++) {
        assert_int_equal(a[r].rc, 0);
        assert_int_equal(b[r].rc, 0);
        for (int n = 0; n < FORM_BATCHES; n++) {
            size_t rows = (size_t)(form_tokens(c, r) * FORM_H) * sizeof(float);
            assert_memory_equal(a[r].y[n], b[r].y[n], rows);
            assert_memory_equal(a[r].dx[n], b[r].dx[n], rows);
        }
        assert_memory_equal(a[r].grad, b[r].grad, sizeof(a[r].grad));
    }
}
