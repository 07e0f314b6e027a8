/*
 * linear_trial.h: one grouped linear with its data, of any type, with a parameter for each group or one packed for all,
 * and the exact answers with how far from them a result may be.
 */
#ifndef ROLL_TESTS_MOE_CORE_LINEAR_TRIAL_H
#define ROLL_TESTS_MOE_CORE_LINEAR_TRIAL_H

#include "tests/moe_core/typed.h"

#include "moe_core/include/moe/linear.h"

enum { GROUPS = 4, N = 5, K = 7, SLACK = 2, ROWS = 12 + SLACK };

static const int64_t empties[][GROUPS] = {
    {3, 1, 4, 2}, /* none */
    {0, 3, 1, 4}, /* first */
    {3, 0, 1, 4}, /* middle */
    {3, 1, 4, 0}, /* last */
    {0, 0, 0, 0}, /* all */
};
enum { EMPTIES = sizeof(empties) / sizeof(empties[0]) };

/*
 * How far a result of `type` may be from the exact sum of `terms` products, whose absolute values add up to `size`:
 * every product and every sum is rounded to float32 (u = 2^-24, each of the terms at most terms + 2 times: its scale,
 * its product, its sums), and the whole once to the type (half a unit of its last place; of a float16 near zero half
 * its smallest number).
 */
static inline double bound(enum moe_dtype type, double exact, double size, int64_t terms)
{
    double sums = (double)(terms + 2) * 0x1p-24 * 1.001 * size;
    double unit = type == MOE_F32 ? 0x1p-24 : type == MOE_BF16 ? 0x1p-8 : 0x1p-11;
    return sums + unit * (fabs(exact) + sums) + (type == MOE_F16 ? 0x1p-25 : 0);
}

/* One combination, its arrays and the reference's answers. */
struct trial {
    struct moe_linear_config config;
    enum moe_dtype main_type;
    bool accumulate, host_counts;
    int weights; /* parameters: GROUPS, or 1 that is packed */
    const int64_t *pattern;
    moe_device_t *device;
    moe_linear_t *linear;
    int64_t rows, *m;
    void *x, *dy, *y, *dx, *bias[GROUPS], *main_grad[GROUPS], *before[GROUPS];
    const void *biases[GROUPS];
    float *scale[GROUPS];
    void *weight[GROUPS];
    void *all_weights, *all_grads; /* [GROUPS,N,K], of which weight and main_grad are parts */
    float *all_scales;
    struct moe_param param[GROUPS], *params[GROUPS];
};

static inline void *random_array(struct trial *t, enum moe_dtype type, int64_t n, double size, uint64_t *state)
{
    void *array = support_array(t->device, n, moe_dtype_bytes(type));
    for (int64_t i = 0; i < n; i++) {
        typed_put(type, array, i, size * support_random(state));
    }
    return array;
}

static inline double weight_at(const struct trial *t, int g, int64_t n, int64_t k)
{
    double scale = t->scale[g] != NULL ? (double)t->scale[g][0] : 1.0; /* one block: N and K are below 128 */
    return typed_get(t->config.weight, t->weight[g], n * K + k) * scale;
}

static inline void set_up(struct trial *t)
{
    uint64_t state = 99;
    struct moe_linear_config *c = &t->config;
    c->groups = GROUPS;
    c->out_features = N;
    c->in_features = K;
    c->max_rows = ROWS;
    c->bias = c->activation;
    assert_int_equal(moe_device_new_host(&t->device), 0);
    assert_int_equal(moe_linear_new(t->device, c, &t->linear), 0);
    t->m = support_array(t->device, GROUPS, sizeof(*t->m));
    t->x = random_array(t, c->activation, ROWS * K, 1, &state);
    t->dy = random_array(t, c->activation, ROWS * N, 1, &state);
    t->y = support_array(t->device, ROWS * N, 4);
    t->dx = support_array(t->device, ROWS * K, 4);
    memset(t->y, 0x77, ROWS * N * 4);
    memset(t->dx, 0x77, ROWS * K * 4);
    /* The groups' weights lie one after the other in any case; only who is told of them differs. */
    size_t weight = N * K * moe_dtype_bytes(c->weight), grad = N * K * moe_dtype_bytes(t->main_type);
    t->all_weights = random_array(t, c->weight, GROUPS * N * K, 1, &state);
    t->all_grads = random_array(t, t->main_type, GROUPS * N * K, 1, &state);
    t->all_scales = support_floats(t->device, GROUPS);
    t->weights = c->packed ? 1 : GROUPS;
    for (int g = 0; g < GROUPS; g++) {
        t->m[g] = t->pattern[g];
        t->rows += t->pattern[g];
        t->weight[g] = (char *)t->all_weights + (size_t)g * weight;
        if (c->weight >= MOE_E4M3) {
            t->scale[g] = t->all_scales + g;
            t->scale[g][0] = 0.5f + (float)g;
        }
        t->bias[g] = random_array(t, c->bias, N, 1, &state);
        t->biases[g] = t->bias[g];
        t->main_grad[g] = (char *)t->all_grads + (size_t)g * grad;
        t->before[g] = support_array(t->device, N * K, moe_dtype_bytes(t->main_type));
        memcpy(t->before[g], t->main_grad[g], grad);
        t->param[g] = (struct moe_param){.data = t->weight[g],
                                         .scale = t->scale[g],
                                         .main_grad = c->fuse_wgrad_accumulation ? t->main_grad[g] : NULL,
                                         .main_grad_type = t->main_type,
                                         .has_added_flag = true,
                                         .zero_out_wgrad = g % 2 == 0};
        t->params[g] = g < t->weights ? &t->param[g] : NULL;
    }
}

static inline void tear_down(struct trial *t)
{
    void *arrays[] = {&t->m, &t->x, &t->dy, &t->y, &t->dx, &t->all_weights, &t->all_grads, &t->all_scales};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        moe_device_free(t->device, arrays[i]);
    }
    for (int g = 0; g < GROUPS; g++) {
        void *each[] = {&t->bias[g], &t->before[g]};
        for (size_t i = 0; i < sizeof(each) / sizeof(each[0]); i++) {
            moe_device_free(t->device, each[i]);
        }
    }
    moe_linear_destroy(&t->linear);
    moe_device_destroy(&t->device);
}

static inline int forward(struct trial *t)
{
    const void *const *biases = t->config.has_bias ? t->biases : NULL;
    int64_t host[GROUPS];
    memcpy(host, t->pattern, sizeof(host));
    return t->host_counts ? moe_linear_forward_host(t->linear, t->params, biases, t->x, host, t->rows, t->y)
                          : moe_linear_forward(t->linear, t->params, biases, t->x, t->m, t->rows + SLACK, t->y);
}

static inline void check(const char *what, double got, double exact, double size, int64_t terms, enum moe_dtype type)
{
    if (!(fabs(got - exact) <= bound(type, exact, size, terms))) {
        fail_msg("%s (%s): got %.9g, want %.9g within %.3g", what, moe_dtype_name(type), got, exact,
                 bound(type, exact, size, terms));
    }
}

/* A sum and what its terms' absolute values add up to. */
struct sum {
    double exact, size;
};

static inline void add(struct sum *s, double term)
{
    s->exact += term;
    s->size += fabs(term);
}

static inline void check_rows(const struct trial *t)
{
    const struct moe_linear_config *c = &t->config;
    int64_t row = 0;
    for (int g = 0; g < GROUPS; g++) {
        for (int64_t r = row; r < row + t->pattern[g]; r++) {
            for (int64_t n = 0; n < N; n++) {
                struct sum sum = {0};
                add(&sum, c->has_bias ? typed_get(c->bias, t->bias[g], n) : 0);
                for (int64_t k = 0; k < K; k++) {
                    add(&sum, typed_get(c->activation, t->x, r * K + k) * weight_at(t, g, n, k));
                }
                check("y", typed_get(c->activation, t->y, r * N + n), sum.exact, sum.size, K + 1, c->activation);
            }
            for (int64_t k = 0; k < K; k++) {
                struct sum sum = {0};
                for (int64_t n = 0; n < N; n++) {
                    add(&sum, typed_get(c->activation, t->dy, r * N + n) * weight_at(t, g, n, k));
                }
                check("dx", typed_get(c->activation, t->dx, r * K + k), sum.exact, sum.size, N, c->activation);
            }
        }
        row += t->pattern[g];
    }
    /* Slack is never written: the bytes behind the last row are those of before. */
    const unsigned char *y = t->y, *dx = t->dx;
    size_t bytes = moe_dtype_bytes(c->activation);
    for (size_t i = (size_t)(row * N) * bytes; i < ROWS * N * bytes; i++) {
        assert_int_equal(y[i], 0x77);
    }
    for (size_t i = (size_t)(row * K) * bytes; i < ROWS * K * bytes; i++) {
        assert_int_equal(dx[i], 0x77);
    }
}

/* Checks what autograd is told, and that it is told of every parameter; the gradient of a group's weight. */
static const void *check_told(const struct trial *t, int g)
{
    const struct moe_linear_config *c = &t->config;
    struct moe_grad weight, bias;
    int64_t rows = c->packed ? GROUPS * N : N;
    const struct moe_param *param = &t->param[c->packed ? 0 : g];
    assert_int_equal(moe_linear_weight_grad(t->linear, c->packed ? 0 : g, &weight), 0);
    if (c->packed && g > 0) { /* one parameter has one gradient */
        struct moe_grad other = weight;
        assert_int_equal(moe_linear_weight_grad(t->linear, g, &other), MOE_E_ARG);
        assert_null(other.data);
    }
    assert_int_equal(moe_linear_bias_grad(t->linear, g, &bias), 0);
    assert_non_null(weight.data);
    assert_int_equal(weight.rows, rows);
    assert_int_equal(weight.columns, K);
    if (c->has_bias) {
        assert_non_null(bias.data);
        assert_int_equal(bias.columns, N);
        assert_true(bias.type == (c->fuse_wgrad_accumulation ? t->main_type : c->activation));
    } else {
        assert_null(bias.data);
    }
    if (!c->fuse_wgrad_accumulation) {
        assert_true(weight.type == c->activation && !weight.placeholder);
        return (const char *)weight.data + (c->packed ? (size_t)(g * N * K) * moe_dtype_bytes(weight.type) : 0);
    }
    assert_true(weight.placeholder && weight.type < MOE_E4M3); /* no gradient is FP8, and no placeholder either */
    assert_true(weight.type == (c->weight < MOE_E4M3 ? c->weight : c->activation));
    assert_true(param->grad_added_to_main_grad);
    for (size_t i = 0; param->zero_out_wgrad && i < (size_t)(rows * K) * moe_dtype_bytes(weight.type); i++) {
        assert_int_equal(((const unsigned char *)weight.data)[i], 0);
    }
    return t->main_grad[g];
}

static inline void check_gradients(const struct trial *t)
{
    const struct moe_linear_config *c = &t->config;
    enum moe_dtype type = c->fuse_wgrad_accumulation ? t->main_type : c->activation;
    int64_t row = 0;
    for (int g = 0; g < GROUPS; g++) {
        const void *got = check_told(t, g);
        bool adds = c->fuse_wgrad_accumulation && t->accumulate;
        if (adds && t->pattern[g] == 0) {
            assert_memory_equal(got, t->before[g], (size_t)(N * K) * moe_dtype_bytes(type));
        }
        for (int64_t i = 0; i < N * K; i++) {
            struct sum sum = {0};
            add(&sum, adds ? typed_get(type, t->before[g], i) : 0);
            for (int64_t r = row; r < row + t->pattern[g]; r++) {
                add(&sum,
                    typed_get(c->activation, t->dy, r * N + i / K) * typed_get(c->activation, t->x, r * K + i % K));
            }
            if (!adds && t->pattern[g] == 0) {
                assert_true(typed_get(type, got, i) == 0.0); /* exactly */
            }
            check("dw", typed_get(type, got, i), sum.exact, sum.size, t->pattern[g] + 1, type);
        }
        struct moe_grad bias;
        assert_int_equal(moe_linear_bias_grad(t->linear, g, &bias), 0);
        for (int64_t n = 0; c->has_bias && n < N; n++) {
            struct sum sum = {0};
            for (int64_t r = row; r < row + t->pattern[g]; r++) {
                add(&sum, typed_get(c->activation, t->dy, r * N + n));
            }
            check("db", typed_get(bias.type, bias.data, n), sum.exact, sum.size, t->pattern[g], bias.type);
        }
        row += t->pattern[g];
    }
}

/* Everything as it was before a pass, but for the object itself, and poison where results go. */
static inline void again(struct trial *t)
{
    struct moe_grad bias;
    memset(t->y, 0x77, ROWS * N * 4);
    memset(t->dx, 0x77, ROWS * K * 4);
    for (int g = 0; g < GROUPS; g++) {
        memcpy(t->main_grad[g], t->before[g], (size_t)(N * K) * moe_dtype_bytes(t->main_type));
        t->param[g].grad_added_to_main_grad = false;
        assert_int_equal(moe_linear_bias_grad(t->linear, g, &bias), 0);
        if (bias.data != NULL) {
            memset(bias.data, 0xff, N * moe_dtype_bytes(bias.type));
        }
    }
}

static inline void pass(struct trial *t)
{
    enum moe_microbatch microbatch = t->accumulate ? MOE_MICROBATCH_LATER : MOE_MICROBATCH_FIRST;
    assert_int_equal(moe_linear_backward(t->linear, t->dy, t->dx, microbatch), MOE_E_STATE);
    assert_int_equal(forward(t), 0);
    assert_int_equal(moe_linear_backward(t->linear, t->dy, t->dx, microbatch), 0);
    if (t->config.delay_wgrad) {
        struct moe_grad none;
        assert_int_equal(moe_linear_weight_grad(t->linear, 0, &none), MOE_E_STATE);
        assert_int_equal(moe_device_sync(t->device), 0);
        assert_memory_equal(t->main_grad[0], t->before[0], (size_t)(N * K) * moe_dtype_bytes(t->main_type));
        assert_int_equal(moe_linear_backward_dw(t->linear), 0);
    }
    assert_int_equal(moe_linear_backward_dw(t->linear), MOE_E_STATE);
    assert_int_equal(moe_device_sync(t->device), 0);
    check_rows(t);
    check_gradients(t);
}

static inline void run(struct trial *t)
{
    set_up(t);
    pass(t);
    again(t);
    pass(t);
    tear_down(t);
}

#endif
