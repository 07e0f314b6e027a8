/*
 * test_fp8.c: the grouped linear with products of FP8 by FP8 (moe/fp8.h): forward, dgrad and wgrad for every way of
 * scaling rows, type of gradients and way of scaling weights, with empty groups, against double precision.
 *
 * Each result is held against two sums. That of the rounded numbers, from the definition: from it a result may be as
 * far as float32 sums and its own rounding allow, which a product of the rows as they are, or with a scale of another
 * block, is not. And that of the rows as they are: from it a result may be as far as moe/fp8.h says that a rounded
 * number is off. The second would pass rounding that is too fine; the first would pass a definition that is wrong.
 */
#include "tests/moe_core/fp8_rows.h"

#include "moe_core/base/device.h"
#include "moe_core/include/moe/experts.h"
#include "moe_core/include/moe/layer.h"
#include "moe_core/include/moe/linear.h"

enum { GROUPS = 5, N = 144, K = 272, SLACK = 3, ROWS = 160, BLOCKS = 2 * 3 };

static const int64_t patterns[][GROUPS] = {
    {0, 131, 1, 0, 17}, {5, 0, 0, 129, 2}, {0, 0, 0, 0, 0}, {16, 16, 16, 16, 16}};
enum { PATTERNS = sizeof(patterns) / sizeof(patterns[0]) };

struct trial {
    struct moe_linear_config config;
    bool accumulate;
    moe_device_t *device;
    moe_linear_t *linear;
    int64_t *m;
    uint16_t *x, *dy, *x_whole, *dy_whole, *y, *dx, *bias; /* whole: without slack */
    uint8_t *weight;
    float *scale, *main_grad, *before, *bias_grad;
    struct moe_param param[GROUPS], *params[GROUPS];
    const void *biases[GROUPS];
    void *bias_grads[GROUPS];
};

static int64_t blocks_of(const struct trial *t)
{
    return t->config.block_scales ? BLOCKS : 1;
}

static void set_up(struct trial *t, struct moe_fp8 fp8, bool block_scales, bool packed)
{
    uint64_t state = 7;
    t->config = (struct moe_linear_config){.groups = GROUPS,
                                           .out_features = N,
                                           .in_features = K,
                                           .max_rows = ROWS,
                                           .activation = MOE_BF16,
                                           .weight = MOE_E4M3,
                                           .bias = MOE_BF16,
                                           .has_bias = true,
                                           .block_scales = block_scales,
                                           .packed = packed,
                                           .fuse_wgrad_accumulation = true,
                                           .fp8 = fp8};
    assert_int_equal(moe_device_new_host(&t->device), 0);
    assert_int_equal(moe_linear_new(t->device, &t->config, &t->linear), 0);
    t->m = support_array(t->device, GROUPS, sizeof(*t->m));
    t->x = support_array(t->device, ROWS * K, 2);
    t->dy = support_array(t->device, ROWS * N, 2);
    t->x_whole = support_array(t->device, ROWS * K, 2);
    t->dy_whole = support_array(t->device, ROWS * N, 2);
    t->y = support_array(t->device, ROWS * N, 2);
    t->dx = support_array(t->device, ROWS * K, 2);
    t->bias = typed_random(t->device, MOE_BF16, GROUPS * N, 1, &state, NULL);
    t->weight = typed_random(t->device, MOE_E4M3, GROUPS * N * K, 2, &state, NULL);
    t->scale = support_floats(t->device, GROUPS * BLOCKS);
    t->main_grad = support_floats(t->device, GROUPS * N * K);
    t->before = support_floats(t->device, GROUPS * N * K);
    t->bias_grad = support_floats(t->device, GROUPS * N);
    /* Gradients are small, and some columns of both are smaller still: blocks differ in their scales. */
    for (int64_t i = 0; i < ROWS * K; i++) {
        typed_put(MOE_BF16, t->x_whole, i, ldexp(support_random(&state), (int)(i % 7) - (int)(i % K / 100) * 4));
    }
    for (int64_t i = 0; i < ROWS * N; i++) {
        typed_put(MOE_BF16, t->dy_whole, i, ldexp(support_random(&state), -20 - (int)(i % 5) + (int)(i / N % 3) * 5));
    }
    for (int64_t i = 0; i < GROUPS * BLOCKS; i++) {
        t->scale[i] = (float)(0.01 + 0.004 * (double)i); /* no powers of two */
    }
    support_fill(t->before, NULL, GROUPS * N * K, 1e-6, &state);
    for (int g = 0; g < GROUPS; g++) {
        t->biases[g] = t->bias + g * N;
        t->bias_grads[g] = t->bias_grad + g * N;
        t->param[g] = (struct moe_param){
            .data = t->weight + g * N * K, .scale = t->scale + g * blocks_of(t), .main_grad = t->main_grad + g * N * K};
        t->params[g] = !packed || g == 0 ? &t->param[g] : NULL;
    }
}

static void tear_down(struct trial *t)
{
    void *arrays[] = {&t->m,    &t->x,      &t->dy,    &t->x_whole,   &t->dy_whole, &t->y,        &t->dx,
                      &t->bias, &t->weight, &t->scale, &t->main_grad, &t->before,   &t->bias_grad};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        moe_device_free(t->device, arrays[i]);
    }
    moe_linear_destroy(&t->linear);
    moe_device_destroy(&t->device);
}

static int64_t rows_of(const struct trial *t)
{
    int64_t rows = 0;
    for (int g = 0; g < GROUPS; g++) {
        rows += t->m[g];
    }
    return rows;
}

/* Outputs full of poison, gradients as before, slack rows that are NaN. */
static void prepare(struct trial *t, const int64_t *pattern)
{
    memcpy(t->m, pattern, sizeof(patterns[0]));
    memset(t->y, 0x77, ROWS * N * 2);
    memset(t->dx, 0x77, ROWS * K * 2);
    memcpy(t->main_grad, t->before, GROUPS * N * K * sizeof(float));
    memset(t->bias_grad, 0, GROUPS * N * sizeof(float));
    memcpy(t->x, t->x_whole, ROWS * K * 2);
    memcpy(t->dy, t->dy_whole, ROWS * N * 2);
    memset(t->x + rows_of(t) * K, 0xff, (size_t)((ROWS - rows_of(t)) * K) * 2);
    memset(t->dy + rows_of(t) * N, 0xff, (size_t)((ROWS - rows_of(t)) * N) * 2);
}

static void both_ways(struct trial *t)
{
    struct moe_linear_call call = {.weights = t->params, .biases = t->biases, .bias_grads = t->bias_grads};
    assert_int_equal(moe_linear_forward_call(t->linear, &call, t->x, t->m, rows_of(t) + SLACK, t->y), 0);
    assert_int_equal(
        moe_linear_backward(t->linear, t->dy, t->dx, t->accumulate ? MOE_MICROBATCH_LATER : MOE_MICROBATCH_FIRST), 0);
}

/* the answers */

/* A group's rows as they are, as they are rounded, and what each number may lose by that. */
struct rows {
    double *as_is, *rounded, *loss;
};

static struct rows rows_new(enum moe_fp8_rows how, bool down, enum moe_dtype type, int64_t m, int64_t width,
                            const uint16_t *from)
{
    struct rows r = {support_doubles(m * width), support_doubles(m * width), support_doubles(m * width)};
    for (int64_t i = 0; i < m * width; i++) {
        r.as_is[i] = r.rounded[i] = typed_get(MOE_BF16, from, i);
    }
    if (how != MOE_FP8_STORAGE) {
        double *scale = fp8_scales(how, down, type, m, width, r.as_is);
        for (int64_t i = 0; i < m * width; i++) {
            r.rounded[i] = typed_round(type, r.as_is[i] / scale[i]) * scale[i];
            r.loss[i] = fp8_loss(type, r.as_is[i], scale[i]);
        }
        free(scale);
    }
    return r;
}

static void rows_free(struct rows *r)
{
    free(r->as_is);
    free(r->rounded);
    free(r->loss);
}

/* A sum over rounded numbers, over those that they were, and how far the two may be apart; the sum of absolute values,
 * and of how many. */
struct sum {
    double rounded, as_is, loss, size;
    int64_t terms;
};

static void add(struct sum *s, const struct rows *a, int64_t i, double rounded, double as_is, double loss)
{
    s->rounded += a->rounded[i] * rounded;
    s->as_is += a->as_is[i] * as_is;
    s->loss += a->loss[i] * fabs(as_is) + fabs(a->rounded[i]) * loss;
    s->size += fabs(a->rounded[i] * rounded);
    s->terms++;
}

/* Each number of a sum is rounded to float32 at most terms + 3 times (scale, product, sums), the result once to its
 * type. */
static void check(const char *what, const struct sum *s, double got, enum moe_dtype type)
{
    double sums = (double)(s->terms + 3) * 0x1p-24 * 1.001 * s->size, unit = type == MOE_F32 ? 0x1p-24 : 0x1p-8;
    double own = sums + unit * (fabs(s->rounded) + sums);
    if (!(fabs(got - s->rounded) <= own) || !(fabs(got - s->as_is) <= own + s->loss)) {
        fail_msg("%s: got %.9g; of rounded numbers %.9g within %.3g, of the rows %.9g within %.3g", what, got,
                 s->rounded, own, s->as_is, own + s->loss);
    }
}

static double *weights_of(const struct trial *t, int g)
{
    double *w = support_doubles(N * K);
    for (int64_t i = 0; i < N * K; i++) {
        int64_t block = t->config.block_scales ? i / K / 128 * 3 + i % K / 128 : 0;
        w[i] = typed_get(MOE_E4M3, t->weight, g * N * K + i) * (double)t->scale[g * blocks_of(t) + block];
    }
    return w;
}

static void check_rows(const struct trial *t, int g, int64_t first)
{
    const struct moe_fp8 *f = &t->config.fp8;
    enum moe_dtype grad = f->grad != MOE_F32 ? f->grad : f->rows == MOE_FP8_TENSOR ? MOE_E5M2 : MOE_E4M3;
    struct rows x = rows_new(f->rows, false, MOE_E4M3, t->m[g], K, t->x + first * K),
                dy = rows_new(f->rows, false, grad, t->m[g], N, t->dy + first * N);
    double *w = weights_of(t, g);
    for (int64_t r = 0; r < t->m[g]; r += r % 3 + 1) {
        for (int64_t n = 0; n < N; n++) {
            double bias = typed_get(MOE_BF16, t->bias, g * N + n);
            struct sum s = {bias, bias, 0, fabs(bias), 1};
            for (int64_t k = 0; k < K; k++) {
                add(&s, &x, r * K + k, w[n * K + k], w[n * K + k], 0);
            }
            check("y", &s, typed_get(MOE_BF16, t->y, (first + r) * N + n), MOE_BF16);
        }
        for (int64_t k = 0; k < K; k++) {
            struct sum s = {0};
            for (int64_t n = 0; n < N; n++) {
                add(&s, &dy, r * N + n, w[n * K + k], w[n * K + k], 0);
            }
            check("dx", &s, typed_get(MOE_BF16, t->dx, (first + r) * K + k), MOE_BF16);
        }
    }
    free(w);
    rows_free(&x);
    rows_free(&dy);
}

static void check_gradients(const struct trial *t, int g, int64_t first)
{
    const struct moe_fp8 *f = &t->config.fp8;
    enum moe_dtype grad = f->grad != MOE_F32 ? f->grad : f->rows == MOE_FP8_TENSOR ? MOE_E5M2 : MOE_E4M3;
    enum moe_fp8_rows how = f->wide_wgrad ? MOE_FP8_STORAGE : f->rows;
    struct rows x = rows_new(how, true, MOE_E4M3, t->m[g], K, t->x + first * K),
                dy = rows_new(how, true, grad, t->m[g], N, t->dy + first * N);
    const float *got = t->main_grad + g * N * K, *before = t->before + g * N * K;
    if (t->m[g] == 0 && t->accumulate) {
        assert_memory_equal(got, before, N * K * sizeof(float));
    }
    for (int64_t i = 0; i < N * K; i++) {
        double old = t->accumulate ? (double)before[i] : 0;
        struct sum s = {old, old, 0, fabs(old), 1};
        for (int64_t r = 0; r < t->m[g]; r++) {
            int64_t at = r * K + i % K;
            add(&s, &dy, r * N + i / K, x.rounded[at], x.as_is[at], x.loss[at]);
        }
        check("dw", &s, (double)got[i], MOE_F32);
    }
    for (int64_t n = 0; n < N; n++) { /* of the rows as they are */
        struct sum s = {0};
        for (int64_t r = 0; r < t->m[g]; r++) {
            double one = typed_get(MOE_BF16, t->dy, (first + r) * N + n);
            s = (struct sum){s.rounded + one, s.as_is + one, 0, s.size + fabs(one), s.terms + 1};
        }
        check("db", &s, (double)t->bias_grad[g * N + n], MOE_F32);
    }
    rows_free(&x);
    rows_free(&dy);
}

static void check_all(const struct trial *t)
{
    int64_t first = 0;
    assert_int_equal(moe_device_sync(t->device), 0);
    for (int g = 0; g < GROUPS; first += t->m[g++]) {
        check_rows(t, g, first);
        check_gradients(t, g, first);
    }
    for (int64_t i = first * N; i < ROWS * N; i++) { /* slack is never written */
        assert_int_equal(t->y[i], 0x7777);
    }
    for (int64_t i = first * K; i < ROWS * K; i++) {
        assert_int_equal(t->dx[i], 0x7777);
    }
}

static void test_products_are_of_rounded_rows(void **state)
{
    (void)state;
    for (unsigned way = 0; way < 16; way++) {
        struct trial t = {.accumulate = way % 2 != 0};
        set_up(&t,
               (struct moe_fp8){.rows = way / 8 ? MOE_FP8_TENSOR : MOE_FP8_BLOCKS,
                                .grad = way % 8 == 6   ? MOE_E4M3
                                        : way % 8 == 7 ? MOE_E5M2
                                                       : MOE_F32,
                                .wide_wgrad = way % 8 == 5},
               way / 2 % 2 != 0, way / 4 % 2 != 0);
        prepare(&t, patterns[way % 2]);
        both_ways(&t);
        check_all(&t);
        tear_down(&t);
    }
}

/* Captured once and replayed with other counts, and with none at all. */
static void test_counts_are_read_when_the_graph_runs(void **state)
{
    (void)state;
    struct trial t = {.accumulate = true};
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    set_up(&t, (struct moe_fp8){.rows = MOE_FP8_BLOCKS}, true, false);
    cudaStream_t stream = moe_device_stream(t.device);
    prepare(&t, patterns[3]);
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    both_ways(&t);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int p = 2; p < PATTERNS; p++) {
        prepare(&t, patterns[p]);
        assert_int_equal(cudaGraphLaunch(exec, stream), cudaSuccess);
        check_all(&t);
    }
    assert_int_equal(cudaGraphExecDestroy(exec), cudaSuccess);
    assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
    tear_down(&t);
}

/* A gradient that overflowed is seen in its row of dx and its row of dw, and changes nothing else in any bit. */
static void test_what_overflowed_stays_visible(void **state)
{
    (void)state;
    enum { ROW = 7, COLUMN = 130 };
    for (unsigned way = 0; way < 4; way++) {
        struct trial t = {0}, plain = {0};
        struct moe_fp8 fp8 = {.rows = way % 2 ? MOE_FP8_TENSOR : MOE_FP8_BLOCKS};
        set_up(&t, fp8, true, false);
        set_up(&plain, fp8, true, false);
        prepare(&t, patterns[0]);
        prepare(&plain, patterns[0]);
        t.dy[ROW * N + COLUMN] = way / 2 ? 0x7f80 : 0x7fc0; /* infinity, NaN */
        plain.dy[ROW * N + COLUMN] = 0;
        both_ways(&t);
        both_ways(&plain);
        assert_int_equal(moe_device_sync(t.device), 0);
        assert_int_equal(moe_device_sync(plain.device), 0);
        for (int64_t i = 0; i < rows_of(&t) * K; i++) {
            assert_true(i / K == ROW ? isnan(typed_get(MOE_BF16, t.dx, i)) : t.dx[i] == plain.dx[i]);
        }
        for (int64_t i = 0; i < GROUPS * N * K; i++) { /* the row is in group 1 */
            bool hit = i / K == N + COLUMN;
            assert_true(hit ? isnan(t.main_grad[i]) : t.main_grad[i] == plain.main_grad[i]);
        }
        tear_down(&t);
        tear_down(&plain);
    }
}

/* Nothing of a forward is kept in the object: taken up again behind another microbatch, the first one's gradients are
 * those of an object that served it alone, in every bit. */
static void test_a_forward_is_taken_up_again(void **state)
{
    (void)state;
    for (int way = 0; way < 2; way++) {
        struct trial t = {0}, alone = {0};
        struct moe_fp8 fp8 = {.rows = way ? MOE_FP8_TENSOR : MOE_FP8_BLOCKS};
        set_up(&t, fp8, true, true);
        set_up(&alone, fp8, true, true);
        prepare(&alone, patterns[0]);
        both_ways(&alone);
        assert_int_equal(moe_device_sync(alone.device), 0);
        prepare(&t, patterns[1]);
        struct moe_linear_call call = {.weights = t.params, .biases = t.biases, .bias_grads = t.bias_grads};
        assert_int_equal(moe_linear_forward_call(t.linear, &call, t.x, t.m, rows_of(&t), t.y), 0);
        assert_int_equal(moe_device_sync(t.device), 0);
        prepare(&t, patterns[0]);
        assert_int_equal(moe_linear_resume(t.linear, &call, t.x, t.m, rows_of(&t)), 0);
        assert_int_equal(moe_linear_backward(t.linear, t.dy, t.dx, MOE_MICROBATCH_FIRST), 0);
        assert_int_equal(moe_device_sync(t.device), 0);
        assert_memory_equal(t.dx, alone.dx, ROWS * K * 2);
        assert_memory_equal(t.main_grad, alone.main_grad, GROUPS * N * K * sizeof(float));
        tear_down(&t);
        tear_down(&alone);
    }
}

static int no_products(moe_device_t *device, const struct moe_linear_pass *pass)
{
    (void)device;
    return pass->fp8 != MOE_FP8_STORAGE ? MOE_E_UNSUPPORTED : 0;
}

static struct moe_ops poor;

static const struct moe_ops *poor_ops(void)
{
    return &poor;
}

/* Refused when it is made, by name. */
static void test_what_cannot_be_computed_is_refused(void **state)
{
    (void)state;
    static const struct {
        struct moe_linear_config config;
        int error;
        const char *words;
    } bad[] = {
        {{.weight = MOE_E5M2, .fp8 = {.rows = MOE_FP8_BLOCKS}}, MOE_E_ARG, "float8e5m2 weights"},
        {{.weight = MOE_BF16, .fp8 = {.rows = MOE_FP8_TENSOR}}, MOE_E_ARG, "bfloat16 weights"},
        {{.activation = MOE_F16, .fp8 = {.rows = MOE_FP8_BLOCKS}}, MOE_E_ARG, "float16 rows"},
        {{.fp8 = {.rows = MOE_FP8_BLOCKS, .grad = MOE_BF16}}, MOE_E_ARG, "bfloat16 gradients"},
        {{.fp8 = {.rows = (enum moe_fp8_rows)3}}, MOE_E_ARG, "way 3"},
        {{.fp8 = {.grad = MOE_E4M3}}, MOE_E_ARG, "rows stay as they are"},
        {{.fp8 = {.wide_wgrad = true}}, MOE_E_ARG, "wide_wgrad"},
        {{.out_features = 24, .fp8 = {.rows = MOE_FP8_BLOCKS}}, MOE_E_SHAPE, "24 x 32"},
        {{.in_features = 40, .fp8 = {.rows = MOE_FP8_TENSOR}}, MOE_E_SHAPE, "16 x 40"},
    };
    moe_device_t *device = NULL;
    moe_linear_t *linear = NULL;
    assert_int_equal(moe_device_new_host(&device), 0);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct moe_linear_config c = bad[i].config;
        c.groups = 1;
        c.out_features = c.out_features != 0 ? c.out_features : 16;
        c.in_features = c.in_features != 0 ? c.in_features : 32;
        c.activation = c.activation != MOE_F32 ? c.activation : MOE_BF16;
        c.weight = c.weight != MOE_F32 ? c.weight : MOE_E4M3;
        assert_int_equal(moe_linear_new(device, &c, &linear), bad[i].error);
        assert_non_null(strstr(moe_last_error(), bad[i].words));
        assert_null(linear);
    }
    struct moe_linear_config good = {.groups = 1,
                                     .out_features = 16,
                                     .in_features = 32,
                                     .activation = MOE_BF16,
                                     .weight = MOE_E4M3,
                                     .fp8 = {.rows = MOE_FP8_BLOCKS}};
    struct moe_device other = *device;
    struct moe_backend backend = *device->backend;
    poor = *moe_device_ops(device);
    poor.linear = no_products;
    backend.ops = poor_ops;
    other.backend = &backend;
    assert_int_equal(moe_linear_new(&other, &good, &linear), MOE_E_UNSUPPORTED);
    assert_non_null(strstr(moe_last_error(), "FP8 by FP8"));
    assert_null(linear);
    assert_int_equal(moe_linear_new(device, &good, &linear), 0);
    moe_linear_destroy(&linear);
    moe_device_destroy(&device);
}

/* The linears are made with what experts and layers are asked for. */
static void test_experts_and_layers_hand_it_on(void **state)
{
    (void)state;
    moe_device_t *device = NULL;
    moe_experts_t *experts = NULL;
    moe_layer_t *layer = NULL;
    assert_int_equal(moe_device_new_host(&device), 0);
    struct moe_experts_config c = {.max_rows = 4,
                                   .hidden = 16,
                                   .ffn = 24,
                                   .experts = 2,
                                   .type = MOE_BF16,
                                   .weight = MOE_E4M3,
                                   .fp8 = {.rows = MOE_FP8_BLOCKS}};
    assert_int_equal(moe_experts_new(device, &c, &experts), MOE_E_SHAPE); /* fc2 has 24 in-features */
    assert_non_null(strstr(moe_last_error(), "16 x 24"));
    assert_null(experts);
    struct moe_layer_config l = {.max_tokens = 4,
                                 .hidden = 16,
                                 .ffn = 24,
                                 .experts = 2,
                                 .topk = 1,
                                 .type = MOE_BF16,
                                 .weight = MOE_E4M3,
                                 .fp8 = {.rows = MOE_FP8_TENSOR}};
    assert_int_equal(moe_layer_new(device, &l, &layer), MOE_E_SHAPE);
    assert_non_null(strstr(moe_last_error(), "16 x 24"));
    assert_null(layer);
    c.ffn = 32;
    assert_int_equal(moe_experts_new(device, &c, &experts), 0);
    moe_experts_destroy(&experts);
    moe_device_destroy(&device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_are_of_rounded_rows),
        cmocka_unit_test(test_counts_are_read_when_the_graph_runs),
        cmocka_unit_test(test_what_overflowed_stays_visible),
        cmocka_unit_test(test_a_forward_is_taken_up_again),
        cmocka_unit_test(test_what_cannot_be_computed_is_refused),
        cmocka_unit_test(test_experts_and_layers_hand_it_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
