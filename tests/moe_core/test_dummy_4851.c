/*
 * test_dummy_4851.c: dummy rows as Megatron-LM #4851 put them in, on the host and on the device: gradients exactly zero
 * and present, equal to the run that walks its plan with zero rows instead; real rows untouched to the bit; no decision
 * on the host in the device form.
 */
#include "tests/moe_core/experts_trial.h"

#include "moe_core/include/moe/dummy.h"

/* Everything that experts write, as bytes. */
struct outcome {
    size_t rows, grads[4];
    unsigned char *y, *dx, *grad[4];
    float d_probs[MOST];
};

static void keep(const struct trial *t, struct outcome *out)
{
    const struct moe_experts_config *c = &t->config;
    size_t type = moe_dtype_bytes(c->main_grad), row = HIDDEN * moe_dtype_bytes(c->type);
    const size_t sizes[] = {2 * FFN * HIDDEN, HIDDEN * FFN, 2 * FFN, HIDDEN};
    void *const from[] = {t->weights.d_w1, t->weights.d_w2, t->weights.d_b1, t->weights.d_b2};
    out->rows = (size_t)t->live * row;
    out->y = calloc(1, out->rows + 1);
    out->dx = calloc(1, out->rows + 1);
    assert_true(out->y != NULL && out->dx != NULL);
    memcpy(out->y, t->y, out->rows);
    memcpy(out->dx, t->dx, out->rows);
    memcpy(out->d_probs, t->d_probs, (size_t)t->live * sizeof(float));
    for (int i = 0; i < 4; i++) {
        out->grads[i] = EXPERTS * sizes[i] * type;
        out->grad[i] = calloc(1, out->grads[i]);
        assert_non_null(out->grad[i]);
        memcpy(out->grad[i], from[i], out->grads[i]);
    }
}

static void drop(struct outcome *o)
{
    free(o->y);
    free(o->dx);
    for (int i = 0; i < 4; i++) {
        free(o->grad[i]);
    }
}

/* Forward and backward with zero rows where there are none: remedy FILL, R3. */
static void run_plain(struct trial *t)
{
    assert_int_equal(moe_experts_forward(t->experts, &t->weights, t->x, row_probs(t), t->m, t->live, t->y), 0);
    assert_int_equal(moe_experts_backward(t->experts, &t->weights, t->dy, t->dx, d_row_probs(t)), 0);
    assert_int_equal(moe_device_sync(t->device), 0);
}

static int enqueue_dummy(struct trial *t, moe_dummy_t *dummy, const int64_t *host_m, int64_t rows)
{
    struct moe_dummy_view view;
    int rc = moe_dummy_forward(dummy, t->x, row_probs(t), t->m, host_m, rows, &view);
    rc = rc ? rc : moe_experts_forward(t->experts, &t->weights, view.x, view.row_probs, view.m, view.rows, view.y);
    rc = rc ? rc : moe_dummy_strip(dummy, t->y);
    rc = rc ? rc : moe_dummy_strip_backward(dummy, t->dy);
    rc = rc ? rc : moe_experts_backward(t->experts, &t->weights, view.dy, view.dx, view.d_row_probs);
    return rc ? rc : moe_dummy_backward(dummy, t->dx, d_row_probs(t));
}

static moe_dummy_t *new_dummy(const struct trial *t, enum moe_dummy_form form)
{
    struct moe_dummy_config config = {
        .max_rows = MOST, .hidden = HIDDEN, .experts = EXPERTS, .type = t->config.type, .form = form};
    moe_dummy_t *dummy = NULL;
    assert_int_equal(moe_dummy_new(t->device, &config, &dummy), 0);
    return dummy;
}

static void run_dummy(struct trial *t, enum moe_dummy_form form)
{
    moe_dummy_t *dummy = new_dummy(t, form);
    assert_int_equal(enqueue_dummy(t, dummy, form == MOE_DUMMY_HOST ? t->pattern : NULL, t->live), 0);
    assert_int_equal(moe_device_sync(t->device), 0);
    assert_int_equal(moe_dummy_count(dummy), form == MOE_DUMMY_DEVICE ? -1 : t->live == 0 ? EXPERTS : 0);
    moe_dummy_destroy(&dummy);
}

/* Where gradients overwrite, a sum with a zero row may be -0: equal as numbers. Where they are added, in every bit. */
static void check_gradients(const struct trial *t, const struct outcome *plain, const struct outcome *dummy)
{
    const struct moe_experts_config *c = &t->config;
    for (int i = 0; i < (c->has_bias ? 4 : 2); i++) {
        if (!t->overwrite) {
            same("a gradient", plain->grad[i], dummy->grad[i], plain->grads[i]);
        }
        for (size_t j = 0; j < plain->grads[i] / moe_dtype_bytes(c->main_grad); j++) {
            bool empty = t->pattern[j * EXPERTS * moe_dtype_bytes(c->main_grad) / plain->grads[i]] == 0;
            double got = typed_get(c->main_grad, dummy->grad[i], (int64_t)j);
            assert_true(got == typed_get(c->main_grad, plain->grad[i], (int64_t)j));
            assert_true(!empty || !t->overwrite || got == 0.0);
        }
    }
}

static struct trial combination(int i, const int64_t *pattern)
{
    const struct types *ty = &types[i % TYPES];
    int rest = i / TYPES;
    return (struct trial){.pattern = pattern,
                          .overwrite = rest / 24,
                          .config = {.type = ty->row,
                                     .weight = ty->weight,
                                     .bias = ty->row,
                                     .main_grad = ty->main_grad,
                                     .max_rows = MOST + EXPERTS,
                                     .activation = (enum moe_activation)(rest % 4),
                                     .place = (enum moe_prob_place)(rest / 4 % 3),
                                     .has_bias = rest / 12 % 2}};
}
enum { COMBINATIONS = TYPES * MOE_ACTIVATIONS * 3 * 2 * 2 };

static void compare(int i, const int64_t *pattern, enum moe_dummy_form form)
{
    struct trial a = combination(i, pattern), b = combination(i, pattern);
    struct outcome plain, dummy;
    set_up(&a);
    set_up(&b);
    run_plain(&a);
    run_dummy(&b, form);
    keep(&a, &plain);
    keep(&b, &dummy);
    same("y", plain.y, dummy.y, plain.rows);
    same("dx", plain.dx, dummy.dx, plain.rows);
    same("d_probs", plain.d_probs, dummy.d_probs, (size_t)a.live * sizeof(float));
    check_gradients(&a, &plain, &dummy);
    drop(&plain);
    drop(&dummy);
    tear_down(&a);
    tear_down(&b);
}

static void test_a_rank_without_rows_equals_the_run_with_zero_rows(void **state)
{
    (void)state;
    for (int i = 0; i < COMBINATIONS; i++) {
        compare(i, patterns[5], MOE_DUMMY_HOST);
        compare(i, patterns[5], MOE_DUMMY_DEVICE);
    }
}

static void test_real_rows_are_untouched_beside_dummy_rows(void **state)
{
    (void)state;
    for (int i = 0; i < COMBINATIONS; i++) {
        compare(i, patterns[i % 5], MOE_DUMMY_DEVICE);
        compare(i, patterns[i % 5], MOE_DUMMY_HOST); /* some expert has rows, so nothing is put in */
    }
}

/* The experts' output for a zero row is finite, and zero where there is no bias. */
static void test_the_activation_of_a_dummy_row_is_finite(void **state)
{
    (void)state;
    for (int i = 0; i < COMBINATIONS; i++) {
        struct trial t = combination(i, patterns[5]);
        struct moe_dummy_view view;
        set_up(&t);
        moe_dummy_t *dummy = new_dummy(&t, MOE_DUMMY_DEVICE);
        assert_int_equal(moe_dummy_forward(dummy, t.x, row_probs(&t), t.m, NULL, 0, &view), 0);
        assert_int_equal(view.rows, EXPERTS);
        assert_int_equal(moe_experts_forward(t.experts, &t.weights, view.x, view.row_probs, view.m, view.rows, view.y),
                         0);
        assert_int_equal(moe_device_sync(t.device), 0);
        for (int64_t j = 0; j < EXPERTS * HIDDEN; j++) {
            double y = typed_get(t.config.type, view.y, j);
            assert_true(isfinite(y));
            assert_true(t.config.has_bias || y == 0.0);
        }
        moe_dummy_destroy(&dummy);
        tear_down(&t);
    }
}

/* The gradients' arrays, as bytes, out of (or back into) the trial. */
static void swap_gradients(struct trial *t, struct outcome *o, bool back)
{
    void *const arrays[] = {t->weights.d_w1, t->weights.d_w2, t->weights.d_b1, t->weights.d_b2};
    for (int i = 0; i < 4; i++) {
        memcpy(back ? arrays[i] : (void *)o->grad[i], back ? o->grad[i] : arrays[i], o->grads[i]);
    }
}

/* Captured once for the most rows, replayed with other counts: each equals a run of its own without dummy rows. */
static void test_the_device_form_is_decided_by_the_counts_of_the_replay(void **state)
{
    (void)state;
    struct trial t = combination(TYPES * (4 + 12), patterns[0]); /* biases, probabilities inside the activation */
    struct outcome before, plain, replayed;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    set_up(&t);
    const int64_t rows = t.rows;
    moe_dummy_t *dummy = new_dummy(&t, MOE_DUMMY_DEVICE);
    cudaStream_t stream = moe_device_stream(t.device);
    assert_int_equal(t.config.place, MOE_PROB_ACTIVATION);
    keep(&t, &before);
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    assert_int_equal(enqueue_dummy(&t, dummy, NULL, rows), 0);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int p = 0; p < 2 * PATTERNS; p++) {
        t.pattern = patterns[p % PATTERNS];
        t.live = 0;
        for (int e = 0; e < EXPERTS; e++) {
            t.m[e] = t.pattern[e];
            t.live += t.pattern[e];
        }
        swap_gradients(&t, &before, true);
        run_plain(&t);
        keep(&t, &plain);
        swap_gradients(&t, &before, true);
        memset(t.y, 0x33, (size_t)rows * HIDDEN * sizeof(float));
        memset(t.dx, 0x33, (size_t)rows * HIDDEN * sizeof(float));
        assert_int_equal(cudaGraphLaunch(exec, stream), cudaSuccess);
        assert_int_equal(moe_device_sync(t.device), 0);
        keep(&t, &replayed);
        same("y", plain.y, replayed.y, plain.rows);
        same("dx", plain.dx, replayed.dx, plain.rows);
        same("d_probs", plain.d_probs, replayed.d_probs, (size_t)t.live * sizeof(float));
        check_gradients(&t, &plain, &replayed);
        drop(&plain);
        drop(&replayed);
    }
    drop(&before);
    assert_int_equal(cudaGraphExecDestroy(exec), cudaSuccess);
    assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
    moe_dummy_destroy(&dummy);
    tear_down(&t);
}

static void test_bad_input_is_an_error(void **state)
{
    (void)state;
    struct trial t = combination(0, patterns[0]);
    struct moe_dummy_view view;
    struct moe_dummy_config config = {.max_rows = -1, .hidden = HIDDEN, .experts = EXPERTS};
    moe_dummy_t *none = NULL;
    set_up(&t);
    moe_dummy_t *host = new_dummy(&t, MOE_DUMMY_HOST), *device = new_dummy(&t, MOE_DUMMY_DEVICE);
    assert_int_equal(moe_dummy_new(t.device, &config, &none), MOE_E_SHAPE);
    config.max_rows = 1;
    config.type = MOE_E5M2;
    assert_int_equal(moe_dummy_new(t.device, &config, &none), MOE_E_ARG);
    assert_null(none);
    assert_int_equal(moe_dummy_strip(host, t.y), MOE_E_STATE);
    assert_int_equal(moe_dummy_strip_backward(host, t.dy), MOE_E_STATE);
    assert_int_equal(moe_dummy_backward(host, t.dx, NULL), MOE_E_STATE);
    assert_int_equal(moe_dummy_forward(host, t.x, NULL, t.m, t.pattern, MOST + 1, &view), MOE_E_CAPACITY);
    assert_int_equal(moe_dummy_forward(host, t.x, NULL, t.m, NULL, t.rows, &view), MOE_E_ARG);
    assert_int_equal(moe_dummy_forward(device, t.x, NULL, t.m, t.pattern, t.rows, &view), MOE_E_ARG);
    assert_int_equal(moe_dummy_forward(host, t.x, NULL, t.m, t.pattern, t.live - 1, &view), MOE_E_COUNT);
    t.m[0] = -1;
    assert_int_equal(moe_dummy_forward(device, t.x, NULL, t.m, NULL, t.rows, &view), 0);
    assert_int_equal(moe_device_sync(t.device), MOE_E_COUNT);
    t.m[0] = MOST;
    assert_int_equal(moe_dummy_forward(device, t.x, NULL, t.m, NULL, t.rows, &view), 0);
    assert_int_equal(moe_device_sync(t.device), MOE_E_SPLIT);
    assert_int_equal(moe_dummy_backward(device, t.dx, t.d_probs), MOE_E_ARG);
    moe_dummy_destroy(&host);
    moe_dummy_destroy(&device);
    tear_down(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rank_without_rows_equals_the_run_with_zero_rows),
        cmocka_unit_test(test_real_rows_are_untouched_beside_dummy_rows),
        cmocka_unit_test(test_the_activation_of_a_dummy_row_is_finite),
        cmocka_unit_test(test_the_device_form_is_decided_by_the_counts_of_the_replay),
        cmocka_unit_test(test_bad_input_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
