/*
 * test_linear_3019.c: the grouped linear as TransformerEngine #3019 asks for it: an empty group at every place, for
 * every type, accumulating or not, with counts of the host or of the device, with biases and without: shapes, a
 * gradient for every parameter, main_grad left alone to the bit, and no decision on the host.
 */
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

/* Half a unit in the last place of a sum of products of this type. */
static double tolerance(enum moe_dtype type)
{
    return type == MOE_F32 ? 1e-6 : type == MOE_BF16 ? 1.0 / 256 : 1.0 / 2048;
}

/* One combination, its arrays and the reference's answers. */
struct trial {
    struct moe_linear_config config;
    enum moe_dtype main_type;
    bool accumulate, host_counts;
    const int64_t *pattern;
    moe_device_t *device;
    moe_linear_t *linear;
    int64_t rows, *m;
    void *x, *dy, *y, *dx, *bias[GROUPS], *main_grad[GROUPS], *before[GROUPS];
    const void *biases[GROUPS];
    float *scale[GROUPS];
    void *weight[GROUPS];
    struct moe_param param[GROUPS], *params[GROUPS];
};

static void *random_array(struct trial *t, enum moe_dtype type, int64_t n, double size, uint64_t *state)
{
    void *array = support_array(t->device, n, moe_dtype_bytes(type));
    for (int64_t i = 0; i < n; i++) {
        typed_put(type, array, i, size * support_random(state));
    }
    return array;
}

static double weight_at(const struct trial *t, int g, int64_t n, int64_t k)
{
    double scale = t->scale[g] != NULL ? (double)t->scale[g][0] : 1.0; /* one block: N and K are below 128 */
    return typed_get(t->config.weight, t->weight[g], n * K + k) * scale;
}

static void set_up(struct trial *t)
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
    for (int g = 0; g < GROUPS; g++) {
        t->m[g] = t->pattern[g];
        t->rows += t->pattern[g];
        t->weight[g] = random_array(t, c->weight, N * K, 1, &state);
        if (c->weight >= MOE_E4M3) {
            t->scale[g] = support_floats(t->device, 1);
            t->scale[g][0] = 0.5f + (float)g;
        }
        t->bias[g] = random_array(t, c->bias, N, 1, &state);
        t->biases[g] = t->bias[g];
        t->main_grad[g] = random_array(t, t->main_type, N * K, 1, &state);
        t->before[g] = support_array(t->device, N * K, moe_dtype_bytes(t->main_type));
        memcpy(t->before[g], t->main_grad[g], (size_t)(N * K) * moe_dtype_bytes(t->main_type));
        t->param[g] = (struct moe_param){.data = t->weight[g],
                                         .scale = t->scale[g],
                                         .main_grad = c->fuse_wgrad_accumulation ? t->main_grad[g] : NULL,
                                         .main_grad_type = t->main_type,
                                         .has_added_flag = true,
                                         .zero_out_wgrad = g % 2 == 0};
        t->params[g] = &t->param[g];
    }
}

static void tear_down(struct trial *t)
{
    void *arrays[] = {&t->m, &t->x, &t->dy, &t->y, &t->dx};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        moe_device_free(t->device, arrays[i]);
    }
    for (int g = 0; g < GROUPS; g++) {
        void *each[] = {&t->weight[g], &t->scale[g], &t->bias[g], &t->main_grad[g], &t->before[g]};
        for (size_t i = 0; i < sizeof(each) / sizeof(each[0]); i++) {
            moe_device_free(t->device, each[i]);
        }
    }
    moe_linear_destroy(&t->linear);
    moe_device_destroy(&t->device);
}

static int forward(struct trial *t)
{
    const void *const *biases = t->config.has_bias ? t->biases : NULL;
    int64_t host[GROUPS];
    memcpy(host, t->pattern, sizeof(host));
    return t->host_counts ? moe_linear_forward_host(t->linear, t->params, biases, t->x, host, t->rows, t->y)
                          : moe_linear_forward(t->linear, t->params, biases, t->x, t->m, t->rows + SLACK, t->y);
}

static void check(const char *what, double got, double want, double size, enum moe_dtype type)
{
    if (!(fabs(got - want) <= tolerance(type) * size)) {
        fail_msg("%s: got %.9g, want %.9g", what, got, want);
    }
}

static void check_rows(const struct trial *t)
{
    const struct moe_linear_config *c = &t->config;
    int64_t row = 0;
    for (int g = 0; g < GROUPS; g++) {
        for (int64_t r = row; r < row + t->pattern[g]; r++) {
            for (int64_t n = 0; n < N; n++) {
                double sum = c->has_bias ? typed_get(c->bias, t->bias[g], n) : 0;
                for (int64_t k = 0; k < K; k++) {
                    sum += typed_get(c->activation, t->x, r * K + k) * weight_at(t, g, n, k);
                }
                check("y", typed_get(c->activation, t->y, r * N + n), sum, 4 * K, c->activation);
            }
            for (int64_t k = 0; k < K; k++) {
                double sum = 0;
                for (int64_t n = 0; n < N; n++) {
                    sum += typed_get(c->activation, t->dy, r * N + n) * weight_at(t, g, n, k);
                }
                check("dx", typed_get(c->activation, t->dx, r * K + k), sum, 4 * N, c->activation);
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

/* Checks what autograd is told, and that it is told of every parameter. */
static const void *check_told(const struct trial *t, int g)
{
    const struct moe_linear_config *c = &t->config;
    struct moe_grad weight, bias;
    assert_int_equal(moe_linear_weight_grad(t->linear, g, &weight), 0);
    assert_int_equal(moe_linear_bias_grad(t->linear, g, &bias), 0);
    assert_non_null(weight.data);
    assert_int_equal(weight.rows, N);
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
        return weight.data;
    }
    assert_true(weight.placeholder && weight.type < MOE_E4M3); /* no gradient is FP8, and no placeholder either */
    assert_true(weight.type == (c->weight < MOE_E4M3 ? c->weight : c->activation));
    assert_true(t->param[g].grad_added_to_main_grad);
    for (size_t i = 0; t->param[g].zero_out_wgrad && i < (size_t)(N * K) * moe_dtype_bytes(weight.type); i++) {
        assert_int_equal(((const unsigned char *)weight.data)[i], 0);
    }
    return t->main_grad[g];
}

static void check_gradients(const struct trial *t)
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
            double sum = adds ? typed_get(type, t->before[g], i) : 0;
            for (int64_t r = row; r < row + t->pattern[g]; r++) {
                sum += typed_get(c->activation, t->dy, r * N + i / K) * typed_get(c->activation, t->x, r * K + i % K);
            }
            if (!adds && t->pattern[g] == 0) {
                assert_true(typed_get(type, got, i) == 0.0); /* exactly */
            }
            check("dw", typed_get(type, got, i), sum, 4, type);
        }
        struct moe_grad bias;
        assert_int_equal(moe_linear_bias_grad(t->linear, g, &bias), 0);
        for (int64_t n = 0; c->has_bias && n < N; n++) {
            double sum = 0;
            for (int64_t r = row; r < row + t->pattern[g]; r++) {
                sum += typed_get(c->activation, t->dy, r * N + n);
            }
            check("db", typed_get(bias.type, bias.data, n), sum, 4, bias.type);
        }
        row += t->pattern[g];
    }
}

static void run(struct trial *t)
{
    set_up(t);
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
    tear_down(t);
}

/* The matrix of the pull request: place of the empty group x type x recipe x accumulate x counts x bias. */
static void test_every_place_type_recipe_and_way(void **state)
{
    (void)state;
    static const struct {
        enum moe_dtype activation, weight, main_grad;
    } recipes[] = {
        {MOE_F32, MOE_F32, MOE_F32},    {MOE_BF16, MOE_BF16, MOE_F32}, {MOE_F16, MOE_F16, MOE_F32},
        {MOE_BF16, MOE_BF16, MOE_BF16}, {MOE_BF16, MOE_E4M3, MOE_F32}, {MOE_BF16, MOE_E5M2, MOE_F32},
        {MOE_F32, MOE_E4M3, MOE_BF16},  {MOE_F16, MOE_E4M3, MOE_F16},
    };
    int trials = 0;
    for (size_t r = 0; r < sizeof(recipes) / sizeof(recipes[0]); r++) {
        for (int e = 0; e < EMPTIES; e++) {
            for (unsigned way = 0; way < 32; way++) {
                struct trial t = {.config = {.activation = recipes[r].activation,
                                             .weight = recipes[r].weight,
                                             .has_bias = (way & 1) != 0,
                                             .fuse_wgrad_accumulation = (way & 2) != 0,
                                             .delay_wgrad = (way & 16) != 0},
                                  .main_type = recipes[r].main_grad,
                                  .accumulate = (way & 4) != 0,
                                  .host_counts = (way & 8) != 0,
                                  .pattern = empties[e]};
                run(&t);
                trials++;
            }
        }
    }
    assert_int_equal(trials, 8 * EMPTIES * 32);
}

/* The flags of a parameter that decide which code adds which gradient. */
static void test_the_contract_of_main_grad(void **state)
{
    (void)state;
    struct trial t = {
        .config = {.activation = MOE_F32, .fuse_wgrad_accumulation = true}, .accumulate = true, .pattern = empties[1]};
    struct moe_grad grad, other;
    set_up(&t);
    for (int g = 0; g < GROUPS; g++) {
        t.param[g].has_added_flag = g != 2;
    }
    assert_int_equal(forward(&t), 0);
    assert_int_equal(moe_linear_backward(t.linear, t.dy, t.dx, MOE_MICROBATCH_UNKNOWN), 0); /* unknown accumulates */
    assert_int_equal(moe_device_sync(t.device), 0);
    assert_memory_equal(t.main_grad[0], t.before[0], N * K * sizeof(float)); /* group 0 is empty */
    assert_memory_not_equal(t.main_grad[1], t.before[1], N * K * sizeof(float));
    assert_int_equal(moe_linear_weight_grad(t.linear, 2, &grad), 0);
    assert_null(grad.data);
    assert_false(t.param[2].grad_added_to_main_grad);
    assert_int_equal(moe_linear_weight_grad(t.linear, 0, &grad), 0);
    assert_int_equal(moe_linear_weight_grad(t.linear, 1, &other), 0);
    assert_ptr_equal(grad.data, other.data); /* one placeholder per shape and type */
    assert_int_equal(moe_linear_weight_grad(t.linear, GROUPS, &grad), MOE_E_ARG);
    for (int zero = 0; zero < 2; zero++) { /* left as it is, unless the hook is going to add it */
        support_poison(other.data, N * K);
        for (int g = 0; g < GROUPS; g++) {
            t.param[g].zero_out_wgrad = zero && g == 3;
        }
        assert_int_equal(forward(&t), 0);
        assert_int_equal(moe_linear_backward(t.linear, t.dy, t.dx, MOE_MICROBATCH_LATER), 0);
        assert_int_equal(moe_device_sync(t.device), 0);
        assert_int_equal(support_is_poison(other.data, N * K), !zero);
        assert_true(!zero || ((float *)other.data)[N * K - 1] == 0.0f);
    }
    t.param[0].overwrite_main_grad = true;
    assert_int_equal(forward(&t), 0);
    assert_int_equal(moe_linear_backward(t.linear, t.dy, NULL, MOE_MICROBATCH_LATER), 0);
    assert_int_equal(moe_device_sync(t.device), 0);
    for (int i = 0; i < N * K; i++) {
        assert_true(((float *)t.main_grad[0])[i] == 0.0f); /* overwritten, by the zeros of a group without rows */
    }
    tear_down(&t);
}

/* Captured once, replayed with other counts: what happens is decided by the counts that the device holds then. */
static void test_no_decision_on_the_host(void **state)
{
    (void)state;
    struct trial t = {
        .config = {.activation = MOE_BF16, .weight = MOE_BF16, .fuse_wgrad_accumulation = true, .has_bias = true},
        .pattern = empties[0]};
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    set_up(&t);
    cudaStream_t stream = moe_device_stream(t.device);
    assert_int_equal(forward(&t), 0); /* once outside, so that placeholders and the like are there */
    assert_int_equal(moe_linear_backward(t.linear, t.dy, t.dx, MOE_MICROBATCH_FIRST), 0);
    assert_int_equal(moe_device_sync(t.device), 0);
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    assert_int_equal(forward(&t), 0);
    assert_int_equal(moe_linear_backward(t.linear, t.dy, t.dx, MOE_MICROBATCH_FIRST), 0);
    assert_int_equal(cudaStreamEndCapture(stream, &graph),
                     cudaSuccess); /* a wait or a copy to the host would have broken it */
    assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int e = 0; e < 2 * EMPTIES; e++) {
        t.pattern = empties[e % EMPTIES];
        memcpy(t.m, t.pattern, sizeof(empties[0]));
        memset(t.y, 0x77, ROWS * N * 4);
        memset(t.dx, 0x77, ROWS * K * 4);
        assert_int_equal(cudaGraphLaunch(exec, stream), cudaSuccess);
        assert_int_equal(moe_device_sync(t.device), 0);
        check_rows(&t);
        check_gradients(&t);
    }
    assert_int_equal(cudaGraphExecDestroy(exec), cudaSuccess);
    assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
    tear_down(&t);
}

/* Scales of blocks of 128: a weight of 130 x 129 has four. */
static void test_a_block_scale_is_that_of_its_128_rows_and_columns(void **state)
{
    (void)state;
    enum { WIDE = 129, TALL = 130 };
    moe_device_t *device = NULL;
    moe_linear_t *linear = NULL;
    assert_int_equal(moe_device_new_host(&device), 0);
    struct moe_linear_config config = {.groups = 1,
                                       .out_features = TALL,
                                       .in_features = WIDE,
                                       .max_rows = 1,
                                       .activation = MOE_F32,
                                       .weight = MOE_E4M3,
                                       .block_scales = true};
    assert_int_equal(moe_linear_new(device, &config, &linear), 0);
    uint8_t *weight = support_array(device, TALL * WIDE, 1);
    float *scale = support_floats(device, 4), *x = support_floats(device, WIDE), *y = support_floats(device, TALL);
    int64_t *m = support_array(device, 1, sizeof(*m));
    m[0] = 1;
    for (int i = 0; i < TALL * WIDE; i++) {
        weight[i] = hn_e4m3_put(1.0f);
    }
    for (int i = 0; i < 4; i++) {
        scale[i] = (float)(i + 1);
    }
    for (int k = 0; k < WIDE; k++) {
        x[k] = 1.0f;
    }
    struct moe_param param = {.data = weight, .scale = scale}, *params[1] = {&param};
    assert_int_equal(moe_linear_forward(linear, params, NULL, x, m, 1, y), 0);
    assert_int_equal(moe_device_sync(device), 0);
    assert_true(y[0] == 128.0f * 1 + 1.0f * 2); /* blocks (0,0) and (0,1) */
    assert_true(y[127] == 128.0f * 1 + 1.0f * 2);
    assert_true(y[128] == 128.0f * 3 + 1.0f * 4); /* blocks (1,0) and (1,1) */
    void *arrays[] = {&weight, &scale, &x, &y, &m};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        moe_device_free(device, arrays[i]);
    }
    moe_linear_destroy(&linear);
    moe_device_destroy(&device);
}

static void test_what_does_not_fit_is_refused(void **state)
{
    (void)state;
    struct trial t = {
        .config = {.activation = MOE_BF16, .weight = MOE_E4M3, .fuse_wgrad_accumulation = true, .has_bias = true},
        .pattern = empties[0]};
    moe_linear_t *linear = NULL;
    set_up(&t);
    struct moe_linear_config bad = t.config;
    bad.activation = MOE_E4M3;
    assert_int_equal(moe_linear_new(t.device, &bad, &linear), MOE_E_ARG);
    bad = t.config;
    bad.groups = 0;
    assert_int_equal(moe_linear_new(t.device, &bad, &linear), MOE_E_SHAPE);
    assert_null(linear);
    assert_int_equal(moe_linear_forward(t.linear, t.params, t.biases, t.x, t.m, ROWS + 1, t.y), MOE_E_CAPACITY);
    assert_int_equal(moe_linear_forward(t.linear, t.params, NULL, t.x, t.m, ROWS, t.y), MOE_E_ARG);
    t.param[1].scale = NULL;
    assert_int_equal(forward(&t), MOE_E_ARG);
    assert_non_null(strstr(moe_last_error(), "group 1"));
    t.param[1].scale = t.scale[1];
    t.param[2].main_grad = NULL;
    assert_int_equal(forward(&t), MOE_E_ARG);
    t.param[2].main_grad = t.main_grad[2];
    t.m[2] = -1;
    assert_int_equal(forward(&t), 0);
    assert_int_equal(moe_device_sync(t.device), MOE_E_COUNT);
    t.m[2] = 1000;
    assert_int_equal(forward(&t), 0);
    assert_int_equal(moe_device_sync(t.device), MOE_E_SPLIT);
    assert_int_equal(moe_linear_forward(t.linear, t.params, t.biases, NULL, t.m, t.rows, t.y), MOE_E_ARG);
    assert_int_equal(moe_linear_forward(t.linear, NULL, t.biases, t.x, t.m, t.rows, t.y), MOE_E_ARG);
    assert_int_equal(moe_linear_backward(t.linear, NULL, t.dx, MOE_MICROBATCH_FIRST), MOE_E_ARG);
    bad = t.config;
    bad.in_features = (int64_t)1 << 40;
    bad.out_features = (int64_t)1 << 30;
    assert_int_equal(moe_linear_new(t.device, &bad, &linear), MOE_E_SHAPE);
    tear_down(&t);
}

/* Counts that the host knows are refused by the host, and leave the forward before them as it was. */
static void test_splits_of_the_host_that_do_not_fit(void **state)
{
    (void)state;
    static const struct {
        int64_t m[GROUPS];
        int error;
    } bad[] = {{{3, 1, 4, 3}, MOE_E_SPLIT},
               {{3, 1, 4, 1}, MOE_E_SPLIT},
               {{0, 0, 0, 0}, MOE_E_SPLIT},
               {{3, -1, 6, 2}, MOE_E_COUNT},
               {{INT64_MAX, INT64_MAX, 12, 0}, MOE_E_COUNT}};
    struct trial t = {.config = {.activation = MOE_F32, .fuse_wgrad_accumulation = true},
                      .accumulate = true,
                      .host_counts = true,
                      .pattern = empties[0]};
    set_up(&t);
    assert_int_equal(forward(&t), 0);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(moe_linear_forward_host(t.linear, t.params, NULL, t.x, bad[i].m, t.rows, t.y), bad[i].error);
    }
    assert_int_equal(moe_linear_backward(t.linear, t.dy, t.dx, MOE_MICROBATCH_LATER), 0);
    assert_int_equal(moe_device_sync(t.device), 0);
    check_rows(&t);
    check_gradients(&t);
    tear_down(&t);
}

/* A placeholder is memory, and memory cannot be made in a capture: said, instead of a capture that breaks on a GPU. */
static void test_a_placeholder_is_not_made_in_a_capture(void **state)
{
    (void)state;
    struct moe_linear_config config = {.groups = 1,
                                       .out_features = 11,
                                       .in_features = 13, /* no other test's shape */
                                       .max_rows = 1,
                                       .fuse_wgrad_accumulation = true};
    moe_device_t *device = NULL;
    moe_linear_t *linear = NULL;
    cudaGraph_t graph = NULL;
    assert_int_equal(moe_device_new_host(&device), 0);
    assert_int_equal(moe_linear_new(device, &config, &linear), 0);
    float *x = support_floats(device, 13), *y = support_floats(device, 13), *w = support_floats(device, 2 * 11 * 13);
    int64_t *m = support_array(device, 1, sizeof(*m));
    struct moe_param param = {.data = w, .main_grad = w + 11 * 13, .has_added_flag = true}, *params[] = {&param};
    cudaStream_t stream = moe_device_stream(device);
    for (int before = 0; before < 2; before++) {
        assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
        assert_int_equal(moe_linear_forward(linear, params, NULL, x, m, 1, y), 0);
        assert_int_equal(moe_linear_backward(linear, y, x, MOE_MICROBATCH_LATER), before ? 0 : MOE_E_STATE);
        assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
        assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
        assert_int_equal(moe_linear_forward(linear, params, NULL, x, m, 1, y), 0);
        assert_int_equal(moe_linear_backward(linear, y, x, MOE_MICROBATCH_LATER), 0);
        assert_int_equal(moe_device_sync(device), 0);
    }
    void *arrays[] = {&x, &y, &w, &m};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        moe_device_free(device, arrays[i]);
    }
    moe_linear_destroy(&linear);
    moe_device_destroy(&device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_place_type_recipe_and_way),
        cmocka_unit_test(test_the_contract_of_main_grad),
        cmocka_unit_test(test_no_decision_on_the_host),
        cmocka_unit_test(test_a_block_scale_is_that_of_its_128_rows_and_columns),
        cmocka_unit_test(test_what_does_not_fit_is_refused),
        cmocka_unit_test(test_splits_of_the_host_that_do_not_fit),
        cmocka_unit_test(test_a_placeholder_is_not_made_in_a_capture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
