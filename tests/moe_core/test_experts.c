/*
 * test_experts.c: the experts against a row-at-a-time reference in double: every activation, type, bias, place of
 * probabilities and position of empty experts; recompute and delayed weight gradients change no bit; slack rows; bad
 * input.
 */
#include "tests/moe_core/experts_trial.h"
#include "tests/moe_core/ffn_ref.h"

static void run(struct trial *t)
{
    assert_int_equal(moe_experts_forward(t->experts, &t->weights, t->x, row_probs(t), t->m, t->rows, t->y), 0);
    assert_int_equal(moe_experts_backward(t->experts, &t->weights, t->dy, t->dx, d_row_probs(t)), 0);
    if (t->config.delay_wgrad) {
        assert_int_equal(moe_experts_backward_dw(t->experts), 0);
    }
    assert_int_equal(moe_device_sync(t->device), 0);
}

static struct ffn_ref reference(const struct trial *t, int64_t expert)
{
    const struct moe_experts_config *c = &t->config;
    int64_t h = c->hidden, f = c->ffn;
    struct moe_clamp clamp = c->clamp.limit != 0.0f ? c->clamp : (struct moe_clamp){1.702f, 7.0f, 1.0f};
    return (struct ffn_ref){.hidden = h,
                            .ffn = f,
                            .activation = c->activation,
                            .clamp = clamp,
                            .place = c->place,
                            .w1 = t->w1d + expert * 2 * f * h,
                            .w2 = t->w2d + expert * h * f,
                            .b1 = c->has_bias ? t->b1d + expert * 2 * f : NULL,
                            .b2 = c->has_bias ? t->b2d + expert * h : NULL,
                            .b2_scale = c->bias2_scale != 0.0f ? (double)c->bias2_scale : 1,
                            .round = c->type};
}

/* Everything that a run wrote, against the reference. */
static void check(struct trial *t)
{
    const struct moe_experts_config *c = &t->config;
    int64_t h = c->hidden, f = c->ffn, row = 0;
    double *y = support_doubles(t->rows * h), *dx = support_doubles(t->rows * h), *dp = support_doubles(t->rows);
    double tolerance = typed_tolerance(c->type), grads = fmax(tolerance, typed_tolerance(c->main_grad));
    if (t->overwrite) {
        memset(t->g1d, 0, (size_t)(c->experts * 2 * f * h) * sizeof(*t->g1d));
        memset(t->g2d, 0, (size_t)(c->experts * h * f) * sizeof(*t->g2d));
        memset(t->gb1d, 0, (size_t)(c->experts * 2 * f) * sizeof(*t->gb1d));
        memset(t->gb2d, 0, (size_t)(c->experts * h) * sizeof(*t->gb2d));
    }
    for (int64_t e = 0; e < c->experts; e++) {
        struct ffn_ref ref = reference(t, e);
        struct ffn_grads g = {t->g1d + e * 2 * f * h, t->gb1d + e * 2 * f, t->g2d + e * h * f, t->gb2d + e * h};
        for (int64_t r = 0; r < t->pattern[e]; r++, row++) {
            ffn_forward(&ref, t->xd + row * h, t->pd[row], y + row * h);
            ffn_backward(&ref, t->xd + row * h, t->pd[row], t->dyd + row * h, dx + row * h, dp + row, &g);
        }
    }
    typed_close("y", c->type, t->y, y, t->live * h, tolerance);
    typed_close("dx", c->type, t->dx, dx, t->live * h, tolerance);
    if (c->place != MOE_PROB_SOURCE) {
        typed_close("d_probs", MOE_F32, t->d_probs, dp, t->rows, tolerance);
    }
    typed_close("d_w1", c->main_grad, t->weights.d_w1, t->g1d, c->experts * 2 * f * h, grads);
    typed_close("d_w2", c->main_grad, t->weights.d_w2, t->g2d, c->experts * h * f, grads);
    typed_close("d_b1", c->main_grad, t->weights.d_b1, t->gb1d, c->has_bias ? c->experts * 2 * f : 0, grads);
    typed_close("d_b2", c->main_grad, t->weights.d_b2, t->gb2d, c->has_bias ? c->experts * h : 0, grads);
    free(y);
    free(dx);
    free(dp);
}

/* the reference itself */

/* Sum of dy y over one row, with the number at *at moved by `by`. */
static double moved_loss(const struct ffn_ref *f, const double *x, const double *p, const double *dy, double *at,
                         double by)
{
    double y[HIDDEN], sum = 0, old = *at;
    *at += by;
    ffn_forward(f, x, *p, y);
    *at = old;
    for (int64_t i = 0; i < HIDDEN; i++) {
        sum += dy[i] * y[i];
    }
    return sum;
}

static void differences(const struct ffn_ref *f, double *x, double *p, const double *dy, double *at, const double *want,
                        int64_t n)
{
    const double step = 1e-6;
    for (int64_t i = 0; i < n; i++) {
        double slope = (moved_loss(f, x, p, dy, at + i, step) - moved_loss(f, x, p, dy, at + i, -step)) / (2 * step);
        assert_true(fabs(slope - want[i]) <= 2e-7 * (1 + fabs(want[i])));
    }
}

static void test_the_references_derivatives_are_those_of_finite_differences(void **state)
{
    (void)state;
    uint64_t s = 5;
    int clamped = 0;
    for (int trial = 0; trial < MOE_ACTIVATIONS * 3 * 2; trial++) {
        double w1[2 * FFN * HIDDEN], w2[HIDDEN * FFN], b1[2 * FFN], b2[HIDDEN], x[HIDDEN], dy[HIDDEN], p = 0.7;
        double *all[] = {w1, w2, b1, b2, x, dy};
        const int64_t sizes[] = {2 * FFN * HIDDEN, HIDDEN * FFN, 2 * FFN, HIDDEN, HIDDEN, HIDDEN};
        for (int a = 0; a < 6; a++) {
            for (int64_t i = 0; i < sizes[a]; i++) {
                all[a][i] = (a == 0 ? 3 : 1) * support_random(&s);
            }
        }
        bool bias = trial / 12;
        struct ffn_ref f = {.hidden = HIDDEN,
                            .ffn = FFN,
                            .activation = (enum moe_activation)(trial % 4),
                            .clamp = {1.702f, 2.0f, 1.0f},
                            .place = (enum moe_prob_place)(trial / 4 % 3),
                            .w1 = w1,
                            .w2 = w2,
                            .b1 = bias ? b1 : NULL,
                            .b2 = bias ? b2 : NULL,
                            .b2_scale = 0.5,
                            .exact = true};
        double g1[2 * FFN * HIDDEN] = {0}, g2[HIDDEN * FFN] = {0}, gb1[2 * FFN] = {0}, gb2[HIDDEN] = {0}, dx[HIDDEN],
                            dp, xs[HIDDEN], h[2 * FFN], a[FFN];
        struct ffn_grads grads = {g1, gb1, g2, gb2};
        ffn_backward(&f, x, p, dy, dx, &dp, &grads);
        ffn_hidden(&f, x, p, xs, h, a);
        for (int64_t i = 0; i < 2 * FFN; i++) {
            clamped += f.activation == MOE_SWIGLU_CLAMPED && h[i] > 2;
        }
        differences(&f, x, &p, dy, x, dx, HIDDEN);
        differences(&f, x, &p, dy, &p, &dp, f.place == MOE_PROB_SOURCE ? 0 : 1);
        differences(&f, x, &p, dy, w1, g1, 2 * FFN * HIDDEN);
        differences(&f, x, &p, dy, w2, g2, HIDDEN * FFN);
        differences(&f, x, &p, dy, b1, gb1, bias ? 2 * FFN : 0);
        for (int64_t i = 0; i < HIDDEN; i++) {
            gb2[i] *= f.b2_scale; /* the difference sees the scale, the gradient by contract does not */
        }
        differences(&f, x, &p, dy, b2, gb2, bias ? HIDDEN : 0);
    }
    assert_true(clamped > 5);
}

/* the experts */

static void test_every_combination_equals_the_reference(void **state)
{
    (void)state;
    for (int i = 0; i < TYPES * MOE_ACTIVATIONS * 3 * 2; i++) {
        const struct types *ty = &types[i % TYPES];
        int rest = i / TYPES;
        struct trial base = {.config = {.type = ty->row,
                                        .weight = ty->weight,
                                        .bias = ty->row,
                                        .main_grad = ty->main_grad,
                                        .activation = (enum moe_activation)(rest % 4),
                                        .place = (enum moe_prob_place)(rest / 4 % 3),
                                        .has_bias = rest / 12,
                                        .bias2_scale = rest % 2 ? 0.25f : 0.0f}};
        for (int p = 0; p < PATTERNS; p++) {
            struct trial t = base;
            t.pattern = patterns[p];
            t.overwrite = (i + p) % 2;
            set_up(&t);
            run(&t);
            check(&t);
            tear_down(&t);
        }
    }
}

static void test_block_scales_of_fp8_weights_are_those_of_their_expert(void **state)
{
    (void)state;
    static const int64_t pattern[] = {2, 3};
    struct trial t = {.pattern = pattern,
                      .config = {.experts = 2,
                                 .hidden = 130,
                                 .ffn = 140,
                                 .max_rows = MOST,
                                 .type = MOE_F32,
                                 .weight = MOE_E4M3,
                                 .block_scales = true}};
    set_up(&t);
    run(&t);
    check(&t);
    tear_down(&t);
}

static void test_the_clamps_numbers_are_the_callers(void **state)
{
    (void)state;
    struct trial t = {.pattern = patterns[0],
                      .config = {.activation = MOE_SWIGLU_CLAMPED, .clamp = {0.9f, 1.25f, 0.5f}, .has_bias = true}};
    set_up(&t);
    run(&t);
    check(&t);
    tear_down(&t);
}

/* what may not change a bit */

static void assert_same_bits(const struct trial *a, const struct trial *b)
{
    const struct moe_experts_config *c = &a->config;
    size_t row = moe_dtype_bytes(c->type), grad = moe_dtype_bytes(c->main_grad);
    size_t l = (size_t)c->experts, h = (size_t)c->hidden, f = (size_t)c->ffn, rows = (size_t)a->rows;
    same("y", a->y, b->y, rows * h * row);
    same("dx", a->dx, b->dx, rows * h * row);
    same("d_probs", a->d_probs, b->d_probs, rows * sizeof(float));
    same("d_w1", a->weights.d_w1, b->weights.d_w1, l * 2 * f * h * grad);
    same("d_w2", a->weights.d_w2, b->weights.d_w2, l * h * f * grad);
    same("d_b1", a->weights.d_b1, b->weights.d_b1, l * 2 * f * grad);
    same("d_b2", a->weights.d_b2, b->weights.d_b2, l * h * grad);
}

static void test_recompute_and_delayed_gradients_change_no_bit(void **state)
{
    (void)state;
    for (int i = 0; i < TYPES * 3 * 2; i++) {
        struct trial plain = {.pattern = patterns[i % PATTERNS],
                              .config = {.type = types[i % TYPES].row,
                                         .weight = types[i % TYPES].weight,
                                         .main_grad = types[i % TYPES].main_grad,
                                         .activation = (enum moe_activation)(i % 4),
                                         .place = (enum moe_prob_place)(i / TYPES % 3),
                                         .has_bias = i / TYPES / 3}};
        set_up(&plain);
        run(&plain);
        for (int way = 1; way < 6; way++) {
            struct trial other = {.pattern = plain.pattern, .config = plain.config};
            other.config.recompute = (enum moe_recompute)(way / 2);
            other.config.delay_wgrad = way % 2;
            set_up(&other);
            run(&other);
            assert_same_bits(&plain, &other);
            tear_down(&other);
        }
        tear_down(&plain);
    }
}

/* Two layers share the workspace of what is not kept: forward a, b, backward b, a, gradients delayed to the end. */
static void share(enum moe_recompute recompute, bool delay)
{
    struct trial plain[2], shared[2];
    moe_device_t *device = NULL;
    moe_experts_workspace_t *workspace = NULL;
    for (int i = 0; i < 2; i++) {
        plain[i] = (struct trial){.pattern = patterns[2 * i],
                                  .config = {.place = MOE_PROB_INPUT, .has_bias = true, .activation = MOE_GEGLU}};
        set_up(&plain[i]);
        run(&plain[i]);
    }
    struct moe_experts_config config = plain[0].config;
    config.recompute = recompute;
    config.delay_wgrad = delay;
    assert_int_equal(moe_device_new_host(&device), 0);
    assert_int_equal(moe_experts_workspace_new(device, &config, &workspace), 0);
    for (int i = 0; i < 2; i++) {
        shared[i] = (struct trial){.pattern = plain[i].pattern, .config = config};
        set_up(&shared[i]);
        moe_experts_destroy(&shared[i].experts);
        shared[i].config.workspace = workspace;
        assert_int_equal(moe_experts_new(device, &shared[i].config, &shared[i].experts), 0);
    }
    for (int i = 0; i < 2; i++) {
        struct trial *t = &shared[i];
        assert_int_equal(moe_experts_forward(t->experts, &t->weights, t->x, row_probs(t), t->m, t->rows, t->y), 0);
    }
    for (int i = 1; i >= 0; i--) {
        struct trial *t = &shared[i];
        assert_int_equal(moe_experts_backward(t->experts, &t->weights, t->dy, t->dx, d_row_probs(t)), 0);
    }
    for (int i = 1; delay && i >= 0; i--) {
        assert_int_equal(moe_experts_backward_dw(shared[i].experts), 0);
    }
    assert_int_equal(moe_device_sync(device), 0);
    for (int i = 0; i < 2; i++) {
        assert_same_bits(&plain[i], &shared[i]);
        moe_experts_destroy(&shared[i].experts);
        tear_down(&plain[i]);
        tear_down(&shared[i]);
    }
    moe_experts_workspace_destroy(&workspace);
    moe_device_destroy(&device);
}

static void test_layers_share_what_they_do_not_keep(void **state)
{
    (void)state;
    for (int way = 0; way < 6; way++) {
        share((enum moe_recompute)(way / 2), way % 2);
    }
}

static void test_recompute_keeps_less(void **state)
{
    (void)state;
    size_t kept[3], all;
    for (int r = 0; r < 3; r++) {
        struct trial t = {.pattern = patterns[0],
                          .config = {.recompute = (enum moe_recompute)r, .place = MOE_PROB_INPUT, .type = MOE_BF16}};
        set_up(&t);
        moe_experts_memory(t.experts, &kept[r], &all);
        assert_int_equal(all, MOST * (HIDDEN + 6 * FFN) * 2);
        tear_down(&t);
    }
    assert_int_equal(kept[0], MOST * (HIDDEN + 3 * FFN) * 2);
    assert_int_equal(kept[1], MOST * (HIDDEN + 2 * FFN) * 2);
    assert_int_equal(kept[2], 0);
}

/* empty experts, slack */

static void test_an_expert_without_rows_has_a_gradient_that_is_left_alone_or_zero(void **state)
{
    (void)state;
    for (int i = 0; i < TYPES * 2; i++) {
        struct trial t = {.pattern = patterns[5], /* all */
                          .overwrite = i / TYPES,
                          .config = {.type = types[i % TYPES].row,
                                     .weight = types[i % TYPES].weight,
                                     .main_grad = types[i % TYPES].main_grad,
                                     .has_bias = true,
                                     .place = MOE_PROB_ACTIVATION}};
        set_up(&t);
        size_t grad = moe_dtype_bytes(t.config.main_grad),
               bytes[] = {EXPERTS * 2 * FFN * HIDDEN * grad, EXPERTS * HIDDEN * FFN * grad, EXPERTS * 2 * FFN * grad,
                          EXPERTS * HIDDEN * grad};
        void *arrays[] = {t.weights.d_w1, t.weights.d_w2, t.weights.d_b1, t.weights.d_b2}, *before[4];
        for (int a = 0; a < 4; a++) {
            before[a] = calloc(1, bytes[a]);
            assert_non_null(before[a]);
            if (!t.overwrite) {
                memcpy(before[a], arrays[a], bytes[a]);
            }
        }
        run(&t);
        for (int a = 0; a < 4; a++) {
            same("a gradient", arrays[a], before[a], bytes[a]);
            free(before[a]);
        }
        tear_down(&t);
    }
}

/* A caller may say only in backward that this microbatch is the first: main_grads are then overwritten, for the first
 * expert as for the last. And the other way round. */
static void test_whether_gradients_are_overwritten_may_be_said_in_backward(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        struct trial a = {.pattern = patterns[1], .overwrite = late, .config = {.has_bias = true}}, b = a;
        set_up(&a);
        set_up(&b);
        run(&a);
        b.weights.overwrite = !late;
        assert_int_equal(moe_experts_forward(b.experts, &b.weights, b.x, row_probs(&b), b.m, b.rows, b.y), 0);
        b.weights.overwrite = late;
        assert_int_equal(moe_experts_backward(b.experts, &b.weights, b.dy, b.dx, d_row_probs(&b)), 0);
        assert_int_equal(moe_device_sync(b.device), 0);
        same("d_w1", a.weights.d_w1, b.weights.d_w1, EXPERTS * 2 * FFN * HIDDEN * sizeof(float));
        same("d_w2", a.weights.d_w2, b.weights.d_w2, EXPERTS * HIDDEN * FFN * sizeof(float));
        same("d_b1", a.weights.d_b1, b.weights.d_b1, EXPERTS * 2 * FFN * sizeof(float));
        same("d_b2", a.weights.d_b2, b.weights.d_b2, EXPERTS * HIDDEN * sizeof(float));
        tear_down(&a);
        tear_down(&b);
    }
}

static void test_slack_rows_are_untouched_or_zero_as_asked(void **state)
{
    (void)state;
    for (int i = 0; i < PATTERNS * 3 * 2; i++) {
        struct trial t = {.pattern = patterns[i % PATTERNS],
                          .sanitize = i / PATTERNS / 3,
                          .config = {.place = (enum moe_prob_place)(i / PATTERNS % 3), .has_bias = true}};
        unsigned char want[SLACK * HIDDEN * sizeof(float)];
        set_up(&t);
        /* What lies in the slack of inputs is not read: a NaN there shows nowhere. */
        for (int64_t j = t.live * HIDDEN; j < t.rows * HIDDEN; j++) {
            ((float *)t.x)[j] = ((float *)t.dy)[j] = NAN;
        }
        t.probs[t.live] = NAN;
        run(&t);
        memset(want, t.sanitize ? 0 : 0x77, sizeof(want));
        same("slack of y", (float *)t.y + t.live * HIDDEN, want, sizeof(want));
        same("slack of dx", (float *)t.dx + t.live * HIDDEN, want, sizeof(want));
        check(&t);
        tear_down(&t);
    }
}

/* hooks and errors */

struct told {
    int which[8], n;
};

static void note(void *arg, int which)
{
    struct told *told = arg;
    told->which[told->n++] = which;
}

static void test_each_parameters_readiness_is_told_once_last_first(void **state)
{
    (void)state;
    for (int way = 0; way < 4; way++) {
        struct told told = {.n = 0};
        bool bias = way % 2, delay = way / 2;
        struct trial t = {.pattern = patterns[5],
                          .config = {.has_bias = bias, .delay_wgrad = delay, .ready = note, .ready_arg = &told}};
        set_up(&t);
        assert_int_equal(moe_experts_forward(t.experts, &t.weights, t.x, NULL, t.m, t.rows, t.y), 0);
        assert_int_equal(moe_experts_backward(t.experts, &t.weights, t.dy, t.dx, NULL), 0);
        if (delay) {
            assert_int_equal(told.n, 0);
            assert_int_equal(moe_experts_backward_dw(t.experts), 0);
        }
        const int with[] = {MOE_EXPERTS_W2, MOE_EXPERTS_B2, MOE_EXPERTS_W1, MOE_EXPERTS_B1};
        const int without[] = {MOE_EXPERTS_W2, MOE_EXPERTS_W1};
        assert_int_equal(told.n, bias ? 4 : 2);
        assert_memory_equal(told.which, bias ? with : without, (size_t)told.n * sizeof(int));
        tear_down(&t);
    }
}

static void test_bad_input_is_an_error_and_writes_nothing(void **state)
{
    (void)state;
    struct trial t = {.pattern = patterns[0],
                      .config = {.has_bias = true, .place = MOE_PROB_ACTIVATION, .delay_wgrad = true}};
    set_up(&t);
    moe_experts_t *e = t.experts;
    struct moe_experts_weights *w = &t.weights, lacking = t.weights;
    assert_int_equal(moe_experts_backward(e, w, t.dy, t.dx, t.d_probs), MOE_E_STATE);
    assert_int_equal(moe_experts_backward_dw(e), MOE_E_STATE);
    assert_int_equal(moe_experts_forward(e, w, t.x, t.probs, t.m, MOST + 1, t.y), MOE_E_CAPACITY);
    assert_int_equal(moe_experts_forward(e, w, t.x, t.probs, t.m, -1, t.y), MOE_E_CAPACITY);
    assert_int_equal(moe_experts_forward(e, w, t.x, NULL, t.m, t.rows, t.y), MOE_E_ARG);
    assert_int_equal(moe_experts_forward(e, w, t.x, t.probs, NULL, t.rows, t.y), MOE_E_ARG);
    lacking.b2 = NULL;
    assert_int_equal(moe_experts_forward(e, &lacking, t.x, t.probs, t.m, t.rows, t.y), MOE_E_ARG);
    assert_non_null(strstr(moe_last_error(), "b2"));
    lacking = t.weights;
    lacking.d_w1 = NULL;
    assert_int_equal(moe_experts_forward(e, &lacking, t.x, t.probs, t.m, t.rows, t.y), MOE_E_ARG);
    t.m[1] = -1;
    assert_int_equal(moe_experts_forward(e, w, t.x, t.probs, t.m, t.rows, t.y), 0);
    assert_int_equal(moe_device_sync(t.device), MOE_E_COUNT);
    t.m[1] = t.rows;
    assert_int_equal(moe_experts_forward(e, w, t.x, t.probs, t.m, t.rows, t.y), 0);
    assert_int_equal(moe_device_sync(t.device), MOE_E_SPLIT);
    t.m[1] = t.pattern[1];
    assert_int_equal(moe_experts_forward(e, w, t.x, t.probs, t.m, t.rows, t.y), 0);
    assert_int_equal(moe_experts_backward(e, &lacking, t.dy, t.dx, t.d_probs), MOE_E_ARG);
    assert_int_equal(moe_experts_backward(e, w, t.dy, t.dx, t.d_probs), 0);
    assert_int_equal(moe_experts_backward(e, w, t.dy, t.dx, t.d_probs), MOE_E_STATE);
    assert_int_equal(moe_experts_backward_dw(e), 0);
    assert_int_equal(moe_experts_backward_dw(e), MOE_E_STATE);
    tear_down(&t);
}

/* Without any gradient's place: the same y, and no backward. */
static void test_inference_needs_no_gradients(void **state)
{
    (void)state;
    struct trial t = {.pattern = patterns[0], .config = {.has_bias = true, .place = MOE_PROB_ACTIVATION}};
    set_up(&t);
    struct moe_experts_weights alone = t.weights;
    size_t bytes = (size_t)(t.rows * t.config.hidden) * moe_dtype_bytes(t.config.type);
    assert_int_equal(moe_experts_forward(t.experts, &t.weights, t.x, t.probs, t.m, t.rows, t.y), 0);
    assert_int_equal(moe_device_sync(t.device), 0);
    void *want = malloc(bytes);
    assert_non_null(want);
    memcpy(want, t.y, bytes);
    memset(t.y, 0x77, bytes); /* as set_up did: slack rows stay so */
    alone.d_w1 = alone.d_w2 = alone.d_b1 = alone.d_b2 = NULL;
    assert_int_equal(moe_experts_forward(t.experts, &alone, t.x, t.probs, t.m, t.rows, t.y), 0);
    assert_int_equal(moe_device_sync(t.device), 0);
    assert_memory_equal(t.y, want, bytes);
    free(want);
    assert_int_equal(moe_experts_backward(t.experts, &alone, t.dy, t.dx, t.d_probs), MOE_E_ARG);
    assert_non_null(strstr(moe_last_error(), "without gradients"));
    alone.d_w2 = t.weights.d_w2; /* some, not all */
    assert_int_equal(moe_experts_forward(t.experts, &alone, t.x, t.probs, t.m, t.rows, t.y), MOE_E_ARG);
    assert_non_null(strstr(moe_last_error(), "d_w1"));
    tear_down(&t);
}

static void test_bad_configurations_are_refused(void **state)
{
    (void)state;
    const struct moe_experts_config good = {.max_rows = 4, .hidden = 4, .ffn = 4, .experts = 2};
    struct {
        struct moe_experts_config config;
        int want;
    } cases[10];
    int n = 0;
#define BAD(code, ...)                                                                                                 \
    cases[n].config = good;                                                                                            \
    cases[n].config.__VA_ARGS__;                                                                                       \
    cases[n++].want = code
    BAD(MOE_E_SHAPE, experts = 0);
    BAD(MOE_E_SHAPE, ffn = 0);
    BAD(MOE_E_SHAPE, max_rows = -1);
    BAD(MOE_E_ARG, type = MOE_E4M3);
    BAD(MOE_E_ARG, main_grad = MOE_E5M2);
    BAD(MOE_E_ARG, activation = MOE_ACTIVATIONS);
    BAD(MOE_E_ARG, place = (enum moe_prob_place)3);
    BAD(MOE_E_ARG, recompute = (enum moe_recompute)3);
    BAD(MOE_E_ARG, bias2_scale = NAN);
    moe_device_t *device = NULL;
    moe_experts_t *experts = NULL;
    moe_experts_workspace_t *small = NULL;
    assert_int_equal(moe_device_new_host(&device), 0);
    for (int i = 0; i < n; i++) {
        assert_int_equal(moe_experts_new(device, &cases[i].config, &experts), cases[i].want);
        assert_null(experts);
    }
    struct moe_experts_config config = good;
    assert_int_equal(moe_experts_workspace_new(device, &good, &small), 0);
    config.workspace = small;
    config.max_rows = 5;
    assert_int_equal(moe_experts_new(device, &config, &experts), MOE_E_CAPACITY);
    config.max_rows = 4;
    config.recompute = MOE_RECOMPUTE_FC1; /* needs more than the workspace was made for */
    assert_int_equal(moe_experts_new(device, &config, &experts), MOE_E_CAPACITY);
    moe_experts_workspace_destroy(&small);
    moe_device_destroy(&device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_references_derivatives_are_those_of_finite_differences),
        cmocka_unit_test(test_every_combination_equals_the_reference),
        cmocka_unit_test(test_block_scales_of_fp8_weights_are_those_of_their_expert),
        cmocka_unit_test(test_the_clamps_numbers_are_the_callers),
        cmocka_unit_test(test_recompute_and_delayed_gradients_change_no_bit),
        cmocka_unit_test(test_layers_share_what_they_do_not_keep),
        cmocka_unit_test(test_recompute_keeps_less),
        cmocka_unit_test(test_an_expert_without_rows_has_a_gradient_that_is_left_alone_or_zero),
        cmocka_unit_test(test_whether_gradients_are_overwritten_may_be_said_in_backward),
        cmocka_unit_test(test_slack_rows_are_untouched_or_zero_as_asked),
        cmocka_unit_test(test_each_parameters_readiness_is_told_once_last_first),
        cmocka_unit_test(test_bad_input_is_an_error_and_writes_nothing),
        cmocka_unit_test(test_inference_needs_no_gradients),
        cmocka_unit_test(test_bad_configurations_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
