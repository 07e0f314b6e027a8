/*
 * test_reference.c: the reference against finite differences, and the layer on one rank against the reference.
 */
#include "tests/moe_core/support.h"

#include "moe_core/include/moe/layer.h"
#include "moe_core/reference/ref.h"
#include "moe_core/reference/ref_layer.h"

enum { T = 6, H = 8, F = 5, E = 4 };

struct twin {
    double x[T * H], dy[T * H], gate[E * H], w1[E * 2 * F * H], w2[E * H * F];
    double dx[T * H], d_gate[E * H], d_w1[E * 2 * F * H], d_w2[E * H * F];
};

static void fill(double *to, size_t count, double scale, uint64_t *state)
{
    for (size_t i = 0; i < count; i++) {
        to[i] = (double)(float)(scale * support_random(state));
    }
}

static struct moe_ref twin_ref(struct twin *t, int32_t topk)
{
    uint64_t state = 11;
    memset(t, 0, sizeof(*t));
    fill(t->x, T * H, 1, &state);
    fill(t->dy, T * H, 1, &state);
    fill(t->gate, E * H, 1, &state);
    fill(t->w1, E * 2 * F * H, 0.5, &state);
    fill(t->w2, E * H * F, 0.5, &state);
    return (struct moe_ref){.hidden = H,
                            .ffn = F,
                            .experts = E,
                            .topk = topk,
                            .renormalise = topk > 1,
                            .gate = t->gate,
                            .w1 = t->w1,
                            .w2 = t->w2};
}

static double objective(const struct moe_ref *ref, const struct twin *t)
{
    double y[T * H], sum = 0;
    assert_int_equal(moe_ref_forward(ref, T, t->x, y), 0);
    for (int i = 0; i < T * H; i++) {
        sum += y[i] * t->dy[i];
    }
    return sum;
}

/* Central differences of the objective by each of `values`, against `gradient`. */
static void check_differences(const char *what, const struct moe_ref *ref, struct twin *t, double *values,
                              const double *gradient, int count)
{
    const double h = 1e-6;
    for (int i = 0; i < count; i++) {
        double keep = values[i];
        values[i] = keep + h;
        double up = objective(ref, t);
        values[i] = keep - h;
        double down = objective(ref, t);
        values[i] = keep;
        if (fabs((up - down) / (2 * h) - gradient[i]) > 1e-6) {
            fail_msg("top-%d, %s[%d]: difference %.9g, gradient %.9g", ref->topk, what, i, (up - down) / (2 * h),
                     gradient[i]);
        }
    }
}

static void test_reference_gradients_equal_finite_differences(void **state)
{
    (void)state;
    static struct twin t;
    for (int32_t topk = 1; topk <= 3; topk++) {
        struct moe_ref ref = twin_ref(&t, topk);
        struct moe_ref_grads grads = {t.d_gate, t.d_w1, t.d_w2};
        assert_int_equal(moe_ref_backward(&ref, T, t.x, t.dy, t.dx, &grads), 0);
        check_differences("x", &ref, &t, t.x, t.dx, T * H);
        check_differences("gate", &ref, &t, t.gate, t.d_gate, E * H);
        check_differences("w1", &ref, &t, t.w1, t.d_w1, E * 2 * F * H);
        check_differences("w2", &ref, &t, t.w2, t.d_w2, E * H * F);
    }
}

/* The router's formulas against differences of its objective, the choice held fixed. */
static void check_router_differences(const struct moe_ref_router *router, struct twin *t, double *values,
                                     const double *gradient, int count)
{
    const double h = 1e-6;
    int32_t index[T * E], all[T * E];
    double probs[T * E];
    struct moe_ref_routing fixed = {.index = index, .all = all, .probs = probs};
    assert_int_equal(moe_ref_router_forward(router, T, t->x, &fixed), 0);
    for (int i = 0; i < count; i++) {
        double keep = values[i];
        values[i] = keep + h;
        double up = moe_ref_router_objective(router, T, t->x, t->w1, 3, &fixed);
        values[i] = keep - h;
        double down = moe_ref_router_objective(router, T, t->x, t->w1, 3, &fixed);
        values[i] = keep;
        if (fabs((up - down) / (2 * h) - gradient[i]) > 1e-6) {
            fail_msg("score %d, after %d, [%d]: difference %.9g, gradient %.9g", (int)router->config.options.score,
                     router->config.options.after, i, (up - down) / (2 * h), gradient[i]);
        }
    }
}

static void test_router_formulas_equal_finite_differences(void **state)
{
    (void)state;
    static struct twin t;
    for (int score = 0; score < 8; score++) {
        twin_ref(&t, 2);
        struct moe_ref_router router = {
            .config = {.hidden = H,
                       .experts = E,
                       .topk = 2,
                       .renormalise = score >= 4,
                       .options = {.score = (enum moe_score)(score % 4 % 3),
                                   .after = score % 4 == 3,
                                   .scale = 1.5f,
                                   .capacity_factor = 0.75f,
                                   .coeff = {0.5f, 0.25f, 0.125f, 0.0625f},
                                   .sequences = 2}},
            .ranks = 2,
            .gate = t.gate,
        };
        int32_t index[T * E], all[T * E];
        struct moe_ref_routing routing = {.index = index, .all = all};
        struct moe_ref_router_grads grads = {t.dx, t.d_gate, NULL};
        assert_int_equal(moe_ref_router_forward(&router, T, t.x, &routing), 0);
        assert_int_equal(moe_ref_router_backward(&router, T, t.x, &routing, t.w1, 3, &grads), 0);
        check_router_differences(&router, &t, t.x, t.dx, T * H);
        check_router_differences(&router, &t, t.gate, t.d_gate, E * H);
    }
}

/* The two references of the plain layer share no line. */
static void test_references_agree(void **state)
{
    (void)state;
    static struct twin t, other;
    for (int32_t topk = 1; topk <= E; topk++) {
        struct moe_ref ref = twin_ref(&t, topk);
        struct moe_ref_grads grads = {t.d_gate, t.d_w1, t.d_w2};
        double y[T * H], y2[T * H];
        twin_ref(&other, topk);
        struct moe_ref_layer layer = {
            .router = {.hidden = H, .experts = E, .topk = topk, .renormalise = topk > 1},
            .ffn = F,
            .weights = {.gate = t.gate, .w1 = t.w1, .w2 = t.w2},
        };
        struct moe_ref_set set = {.tokens = T,
                                  .x = t.x,
                                  .dy = t.dy,
                                  .y = y2,
                                  .dx = other.dx,
                                  .grads = {.gate = other.d_gate, .w1 = other.d_w1, .w2 = other.d_w2}};
        assert_int_equal(moe_ref_forward(&ref, T, t.x, y), 0);
        assert_int_equal(moe_ref_backward(&ref, T, t.x, t.dy, t.dx, &grads), 0);
        assert_int_equal(moe_ref_layer_run(&layer, &set, 1), 0);
        const struct {
            const double *a, *b;
            int count;
        } pairs[] = {{y, y2, T * H},
                     {t.dx, other.dx, T * H},
                     {t.d_gate, other.d_gate, E * H},
                     {t.d_w1, other.d_w1, E * 2 * F * H},
                     {t.d_w2, other.d_w2, E * H * F}};
        for (size_t p = 0; p < sizeof(pairs) / sizeof(pairs[0]); p++) {
            for (int i = 0; i < pairs[p].count; i++) {
                assert_true(fabs(pairs[p].a[i] - pairs[p].b[i]) < 1e-12);
            }
        }
    }
}

/* Device copy of a double array. */
static float *narrow(moe_device_t *device, const double *from, int64_t count)
{
    float *to = support_floats(device, count);
    for (int64_t i = 0; i < count; i++) {
        to[i] = (float)from[i];
    }
    return to;
}

static void check_layer(int32_t topk, int64_t tokens)
{
    static struct twin t;
    struct moe_ref ref = twin_ref(&t, topk);
    struct moe_ref_grads grads = {t.d_gate, t.d_w1, t.d_w2};
    double y[T * H];
    assert_int_equal(moe_ref_forward(&ref, tokens, t.x, y), 0);
    assert_int_equal(moe_ref_backward(&ref, tokens, t.x, t.dy, t.dx, &grads), 0);

    moe_device_t *device = NULL;
    moe_layer_t *layer = NULL;
    assert_int_equal(moe_device_new_host(&device), 0);
    struct moe_layer_config config = {
        .max_tokens = T, .hidden = H, .ffn = F, .experts = E, .topk = topk, .renormalise = topk > 1};
    assert_int_equal(moe_layer_new(device, &config, &layer), 0);
    float *x = narrow(device, t.x, T * H), *dy = narrow(device, t.dy, T * H), *gate = narrow(device, t.gate, E * H);
    float *w1 = narrow(device, t.w1, E * 2 * F * H), *w2 = narrow(device, t.w2, E * H * F);
    float *out = support_floats(device, T * H), *dx = support_floats(device, T * H),
          *d_gate = support_floats(device, E * H);
    float *d_w1 = support_floats(device, E * 2 * F * H), *d_w2 = support_floats(device, E * H * F);
    support_poison(out, T * H);
    support_poison(dx, T * H);
    struct moe_layer_weights weights = {.gate = gate, .w1 = w1, .w2 = w2, .d_gate = d_gate, .d_w1 = d_w1, .d_w2 = d_w2};
    struct moe_step step = {0};
    assert_int_equal(moe_layer_backward(layer, dy, dx), MOE_E_STATE);
    assert_int_equal(moe_layer_forward(layer, &weights, &step, x, tokens, out), 0);
    assert_int_equal(moe_layer_backward(layer, dy, dx), 0);
    assert_int_equal(moe_device_sync(device), 0);
    support_close("y", out, y, tokens * H, 1e-5);
    support_close("dx", dx, t.dx, tokens * H, 1e-5);
    support_close("d_gate", d_gate, t.d_gate, E * H, 1e-5);
    support_close("d_w1", d_w1, t.d_w1, E * 2 * F * H, 1e-5);
    support_close("d_w2", d_w2, t.d_w2, E * H * F, 1e-5);
    assert_true(support_is_poison(out + tokens * H, (T - tokens) * H));
    /* A second microbatch adds to the main_grads and overwrites the rest. */
    assert_int_equal(moe_layer_forward(layer, &weights, &step, x, tokens, out), 0);
    assert_int_equal(moe_layer_backward(layer, dy, dx), 0);
    assert_int_equal(moe_device_sync(device), 0);
    double *twice[] = {t.d_gate, t.d_w1, t.d_w2};
    const int64_t counts[] = {E * H, E * 2 * F * H, E * H * F};
    for (int i = 0; i < 3; i++) {
        for (int64_t j = 0; j < counts[i]; j++) {
            twice[i][j] *= 2;
        }
    }
    support_close("y", out, y, tokens * H, 1e-5);
    support_close("dx", dx, t.dx, tokens * H, 1e-5);
    support_close("d_gate, twice", d_gate, t.d_gate, E * H, 1e-5);
    support_close("d_w1, twice", d_w1, t.d_w1, E * 2 * F * H, 1e-5);
    support_close("d_w2, twice", d_w2, t.d_w2, E * H * F, 1e-5);
    assert_int_equal(moe_layer_forward(layer, &weights, &step, x, T + 1, out), MOE_E_SHAPE);
    assert_non_null(strstr(moe_last_error(), "rank 0, layer 0"));
    void *arrays[] = {&x, &dy, &gate, &w1, &w2, &out, &dx, &d_gate, &d_w1, &d_w2};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        moe_device_free(device, arrays[i]);
    }
    moe_layer_destroy(&layer);
    moe_device_destroy(&device);
}

static void test_layer_on_one_rank_equals_the_reference(void **state)
{
    (void)state;
    for (int32_t topk = 1; topk <= E; topk++) {
        check_layer(topk, T);
        check_layer(topk, 1);
        check_layer(topk, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_gradients_equal_finite_differences),
        cmocka_unit_test(test_router_formulas_equal_finite_differences),
        cmocka_unit_test(test_references_agree),
        cmocka_unit_test(test_layer_on_one_rank_equals_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
