/*
 * test_linear_3019.c: the grouped linear as TransformerEngine #3019 asks for it: an empty group at every place, for
 * every type, accumulating or not, with counts of the host or of the device, with biases and without, with a parameter
 * for each group or one packed for all: shapes, a gradient for every parameter, main_grad left alone to the bit, and no
 * decision on the host. Each combination runs twice in one object, over what the first pass left.
 *
 * A result may be as far from the exact number as its own rounding and the float32 sums before it allow, element by
 * element: bound(). A tolerance for all, as a part of the largest, was rejected: it would pass a gradient that is off
 * by a tenth.
 */
#include "tests/moe_core/linear_trial.h"

/* The matrix of the pull request: place of the empty group x type x recipe x accumulate x counts x bias x packed. */
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
            for (unsigned way = 0; way < 64; way++) {
                struct trial t = {.config = {.activation = recipes[r].activation,
                                             .weight = recipes[r].weight,
                                             .has_bias = (way & 1) != 0,
                                             .fuse_wgrad_accumulation = (way & 2) != 0,
                                             .delay_wgrad = (way & 16) != 0,
                                             .packed = (way & 32) != 0},
                                  .main_type = recipes[r].main_grad,
                                  .accumulate = (way & 4) != 0,
                                  .host_counts = (way & 8) != 0,
                                  .pattern = empties[e]};
                run(&t);
                trials++;
            }
        }
    }
    assert_int_equal(trials, 8 * EMPTIES * 64);
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

/* Weights without main_grads, as frozen ones have: forward is whole, and no backward follows. A single one that has
 * none beside others that have is a mistake. */
static void test_weights_without_main_grads_have_a_forward_and_no_backward(void **state)
{
    (void)state;
    for (int packed = 0; packed < 2; packed++) {
        struct trial t = {.config = {.activation = MOE_F32, .fuse_wgrad_accumulation = true, .packed = packed},
                          .accumulate = true,
                          .pattern = empties[2]};
        set_up(&t);
        for (int g = 0; g < t.weights; g++) {
            t.param[g].main_grad = NULL;
        }
        assert_int_equal(forward(&t), 0);
        assert_int_equal(moe_linear_backward(t.linear, t.dy, t.dx, MOE_MICROBATCH_LATER), MOE_E_ARG);
        assert_int_equal(moe_device_sync(t.device), 0);
        for (int64_t i = 0; i < t.rows * K; i++) {
            assert_int_equal(((const unsigned char *)t.dx)[i], 0x77); /* nothing was begun */
        }
        for (int g = 0; g < GROUPS; g++) {
            assert_memory_equal(t.main_grad[g], t.before[g], N * K * sizeof(float));
            assert_false(t.param[g].grad_added_to_main_grad);
        }
        for (int g = 0; g < t.weights; g++) { /* given back, the same forward has its backward */
            t.param[g].main_grad = t.main_grad[g];
        }
        assert_int_equal(forward(&t), 0);
        assert_int_equal(moe_linear_backward(t.linear, t.dy, t.dx, MOE_MICROBATCH_LATER), 0);
        assert_int_equal(moe_device_sync(t.device), 0);
        check_rows(&t);
        check_gradients(&t);
        tear_down(&t);
    }
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
    struct moe_linear_config config = {.groups = 2, /* in one parameter: the second group's scales lie behind */
                                       .out_features = TALL,
                                       .in_features = WIDE,
                                       .max_rows = 2,
                                       .activation = MOE_F32,
                                       .weight = MOE_E4M3,
                                       .block_scales = true,
                                       .packed = true};
    assert_int_equal(moe_linear_new(device, &config, &linear), 0);
    uint8_t *weight = support_array(device, 2 * TALL * WIDE, 1);
    float *scale = support_floats(device, 8), *x = support_floats(device, 2 * WIDE),
          *y = support_floats(device, 2 * TALL);
    int64_t *m = support_array(device, 2, sizeof(*m));
    m[0] = m[1] = 1;
    for (int i = 0; i < 2 * TALL * WIDE; i++) {
        weight[i] = hn_e4m3_put(1.0f);
    }
    for (int i = 0; i < 8; i++) {
        scale[i] = (float)(i + 1);
    }
    for (int k = 0; k < 2 * WIDE; k++) {
        x[k] = 1.0f;
    }
    struct moe_param param = {.data = weight, .scale = scale}, *params[2] = {&param};
    assert_int_equal(moe_linear_forward(linear, params, NULL, x, m, 2, y), 0);
    assert_int_equal(moe_device_sync(device), 0);
    for (int g = 0; g < 2; g++) {
        const float *of = y + g * TALL, first = (float)(4 * g);
        assert_true(of[0] == 128.0f * (first + 1) + 1.0f * (first + 2)); /* blocks (0,0) and (0,1) */
        assert_true(of[127] == 128.0f * (first + 1) + 1.0f * (first + 2));
        assert_true(of[128] == 128.0f * (first + 3) + 1.0f * (first + 4)); /* blocks (1,0) and (1,1) */
    }
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

/*
 * One object for two microbatches: the second forward comes before the first backward, the first's weights, rows and
 * counts are elsewhere by then, and its gradients get their place only now. In every bit what an object that served it
 * alone gives, with every empty group; then its weight gradients once more by themselves.
 */
static void test_a_forward_is_resumed_by_an_object_that_served_another(void **state)
{
    (void)state;
    for (int e = 0; e < 2 * EMPTIES; e++) {
        struct moe_linear_config config = {.activation = MOE_BF16,
                                           .weight = MOE_BF16,
                                           .has_bias = true,
                                           .fuse_wgrad_accumulation = true,
                                           .packed = e >= EMPTIES};
        struct trial t = {.config = config, .accumulate = true, .pattern = empties[e % EMPTIES]},
                     other = {.config = config, .accumulate = true, .pattern = empties[0]};
        set_up(&t);
        set_up(&other);
        for (int g = 0; g < t.weights; g++) {
            t.param[g].main_grad = NULL;
        }
        struct moe_linear_call call = {.weights = t.params, .biases = t.biases};
        assert_int_equal(moe_linear_forward_call(other.linear, &call, t.x, t.m, ROWS, t.y), 0);
        assert_int_equal(moe_linear_forward(other.linear, other.params, other.biases, other.x, other.m, ROWS, other.y),
                         0);
        assert_int_equal(moe_linear_resume(other.linear, &call, NULL, t.m, ROWS), MOE_E_ARG); /* and nothing is lost */
        assert_int_equal(moe_linear_backward(other.linear, other.dy, other.dx, MOE_MICROBATCH_LATER), 0);
        assert_int_equal(moe_linear_backward(other.linear, t.dy, t.dx, MOE_MICROBATCH_LATER), MOE_E_STATE);

        size_t bytes = ROWS * K * sizeof(uint16_t);
        void *moved = support_array(t.device, ROWS * K, sizeof(uint16_t));
        memcpy(moved, t.x, bytes);
        memset(t.x, 0xff, bytes);
        for (int g = 0; g < t.weights; g++) {
            t.param[g].main_grad = t.main_grad[g];
        }
        assert_int_equal(moe_linear_resume(other.linear, &call, NULL, t.m, ROWS), MOE_E_ARG);
        assert_int_equal(moe_linear_resume(other.linear, &call, moved, t.m, ROWS + 1), MOE_E_CAPACITY);
        assert_int_equal(moe_linear_resume(other.linear, &call, moved, t.m, ROWS), 0);
        assert_int_equal(moe_linear_backward(other.linear, t.dy, t.dx, MOE_MICROBATCH_LATER), 0);
        assert_int_equal(moe_device_sync(other.device), 0);
        memcpy(t.x, moved, bytes);
        moe_linear_t *own = t.linear;
        t.linear = other.linear;
        check_rows(&t);
        check_gradients(&t);

        again(&t);
        assert_int_equal(moe_linear_resume(other.linear, &call, moved, t.m, ROWS), 0);
        assert_int_equal(moe_linear_backward(other.linear, t.dy, NULL, MOE_MICROBATCH_LATER), 0);
        assert_int_equal(moe_device_sync(other.device), 0);
        check_gradients(&t);
        assert_int_equal(((const unsigned char *)t.dx)[0], 0x77);
        t.linear = own;
        moe_device_free(t.device, &moved);
        tear_down(&t);
        tear_down(&other);
    }
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
        cmocka_unit_test(test_weights_without_main_grads_have_a_forward_and_no_backward),
        cmocka_unit_test(test_no_decision_on_the_host),
        cmocka_unit_test(test_a_block_scale_is_that_of_its_128_rows_and_columns),
        cmocka_unit_test(test_what_does_not_fit_is_refused),
        cmocka_unit_test(test_splits_of_the_host_that_do_not_fit),
        cmocka_unit_test(test_a_forward_is_resumed_by_an_object_that_served_another),
        cmocka_unit_test(test_a_placeholder_is_not_made_in_a_capture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
