/*
 * test_memory.c: the memory of a device: the pool and what it hands out, the caller's allocator, layers over them, and
 * one rank whose every request fails.
 */
#include "tests/moe_core/memory_trial.h"

#include "moe_core/base/device.h"
#include "moe_core/include/moe/linear.h"
#include "moe_core/include/moe/ops.h"

/* the pool */

static void test_the_pool_grows_with_the_rows_and_keeps_what_it_has(void **state)
{
    (void)state;
    struct counting c = {0};
    moe_device_t *device = device_of(&c);
    struct model m = {0};
    moe_layer_t *layer = NULL;
    struct moe_layer_config config = config_of(NULL, 0, MOE_DISPATCH_ALLTOALL);
    make_model(device, &m, 0, E);
    assert_int_equal(moe_layer_new(device, &config, &layer), 0);
    assert_int_equal(figures_of(device).reserved, 0); /* nothing has come yet */
    assert_int_equal(run_step(device, layer, &m, 2), 0);
    struct moe_memory_figures few = figures_of(device);
    assert_true(few.most_in_use > 0);
    assert_int_equal(few.in_use, 0);
    assert_int_equal(few.reserved, few.most_reserved);
    assert_int_equal(run_step(device, layer, &m, T), 0);
    struct moe_memory_figures many = figures_of(device);
    /* All buffers of rows are twelve times as large; headers of maps are not. */
    assert_true(many.most_in_use > 4 * few.most_in_use);
    assert_true(many.most_in_use < 12 * few.most_in_use);
    for (int i = 0; i < 4; i++) { /* the second time it is made one piece, afterwards nothing is asked for any more */
        assert_int_equal(run_step(device, layer, &m, T), 0);
        many = i == 1 ? figures_of(device) : many;
    }
    assert_int_equal(figures_of(device).allocations, many.allocations);
    assert_int_equal(figures_of(device).in_use, 0);
    assert_int_equal(c.bytes, figures_of(device).fixed + figures_of(device).reserved);
    assert_int_equal(figures_of(device).most, figures_of(device).fixed + figures_of(device).most_reserved);
    moe_layer_destroy(&layer);
    free_model(device, &m);
    moe_device_destroy(&device);
    assert_int_equal(c.bytes, 0);
    assert_false(c.wrong);
}

static void test_layers_share_it_and_hold_only_what_backward_needs(void **state)
{
    (void)state;
    enum { LAYERS = 4 };
    struct counting c = {0};
    moe_device_t *device = device_of(&c);
    struct model m = {0};
    moe_layer_t *layer[LAYERS] = {NULL};
    struct moe_layer_config config = config_of(NULL, 0, MOE_DISPATCH_ALLTOALL);
    const struct moe_step step = {.step = 0};
    make_model(device, &m, 0, E);
    for (int i = 0; i < LAYERS; i++) {
        assert_int_equal(moe_layer_new(device, &config, &layer[i]), 0);
    }
    const struct moe_layer_weights train = weights_of(&m, true), inference = weights_of(&m, false);
    for (int i = 0; i < LAYERS; i++) { /* one after the other: as much as one alone */
        assert_int_equal(run_step(device, layer[i], &m, T), 0);
    }
    size_t alone = figures_of(device).most_in_use;
    /* The worst moment is the activation's backward: x, h, the gradients of h and a, and of y and x (taken early). */
    size_t moment = (size_t)T * K * (3 * H + 5 * F) * sizeof(float);
    assert_in_range(alone, moment, moment + (size_t)T * (3 * E + 1) * sizeof(int32_t) + 16 * 512);
    for (int i = 0; i < LAYERS; i++) {
        assert_int_equal(run_step(device, layer[i], &m, T), 0);
        assert_int_equal(figures_of(device).most_in_use, alone);
        assert_int_equal(moe_layer_forward(layer[i], &inference, &step, m.x, T, m.y), 0);
        assert_int_equal(figures_of(device).in_use, 0); /* no backward follows */
    }
    size_t kept[LAYERS + 1] = {0};
    for (int i = 0; i < LAYERS; i++) {
        assert_int_equal(moe_layer_forward(layer[i], &train, &step, m.x, T, m.y), 0);
        kept[i + 1] = figures_of(device).in_use;
        assert_int_equal(kept[i + 1] - kept[i], kept[1]);
    }
    /* The rows, h, a, and the rows' outputs for the gradient of the probabilities: and what the maps need. */
    size_t rows = (size_t)T * K * (2 * H + 3 * F) * sizeof(float);
    assert_in_range(kept[1], rows, rows + (size_t)T * (2 * E + 1) * sizeof(int32_t) + 16 * 512);
    for (int i = LAYERS; i-- > 0;) {
        assert_int_equal(moe_layer_backward(layer[i], m.dy, m.dx), 0);
        assert_int_equal(figures_of(device).in_use, kept[i]);
    }
    assert_int_equal(moe_device_sync(device), 0);
    for (int i = 0; i < LAYERS; i++) {
        moe_layer_destroy(&layer[i]);
    }
    free_model(device, &m);
    moe_device_destroy(&device);
    assert_int_equal(c.bytes, 0);
}

static void test_trim_gives_back_what_nothing_uses(void **state)
{
    (void)state;
    struct counting c = {0};
    moe_device_t *device = device_of(&c);
    struct model m = {0};
    moe_layer_t *layer = NULL;
    struct moe_layer_config config = config_of(NULL, 0, MOE_DISPATCH_ALLTOALL);
    const struct moe_step step = {.step = 0};
    size_t bytes = 1;
    make_model(device, &m, 0, E);
    assert_int_equal(moe_layer_new(device, &config, &layer), 0);
    const struct moe_layer_weights train = weights_of(&m, true);
    assert_int_equal(moe_device_trim(device, &bytes), 0);
    assert_int_equal(bytes, 0);
    assert_int_equal(run_step(device, layer, &m, T), 0);
    size_t reserved = figures_of(device).reserved;
    float *y = malloc(T * H * sizeof(*y)), *dx = malloc(T * H * sizeof(*dx));
    memcpy(y, m.y, T * H * sizeof(*y));
    memcpy(dx, m.dx, T * H * sizeof(*dx));
    assert_int_equal(moe_device_trim(device, &bytes), 0);
    assert_int_equal(bytes, reserved);
    assert_int_equal(figures_of(device).reserved, 0);
    assert_int_equal(c.bytes, figures_of(device).fixed);
    /* Between forward and backward the rows stay, and backward is right. */
    assert_int_equal(moe_layer_forward(layer, &train, &step, m.x, T, m.y), 0);
    assert_int_equal(moe_device_trim(device, &bytes), 0);
    assert_true(figures_of(device).reserved >= figures_of(device).in_use && figures_of(device).in_use > 0);
    assert_int_equal(moe_layer_backward(layer, m.dy, m.dx), 0);
    assert_int_equal(moe_device_sync(device), 0);
    assert_memory_equal(y, m.y, T * H * sizeof(*y));
    assert_memory_equal(dx, m.dx, T * H * sizeof(*dx));
    moe_device_memory_restart(device);
    assert_int_equal(figures_of(device).most_in_use, 0);
    assert_int_equal(figures_of(device).most_reserved, figures_of(device).reserved);
    moe_layer_destroy(&layer);
    free_model(device, &m);
    moe_device_destroy(&device);
    free(y);
    free(dx);
    assert_int_equal(c.bytes, 0);
}

static void test_an_allocator_is_set_before_anything_is_made(void **state)
{
    (void)state;
    struct counting c = {.refuse = -1};
    moe_device_t *device = NULL;
    const struct moe_allocator half = {counting_alloc, NULL, &c}, whole = {counting_alloc, counting_release, &c};
    assert_int_equal(moe_device_new_host(&device), 0);
    assert_int_equal(moe_device_set_allocator(device, &half), MOE_E_ARG);
    float *array = support_floats(device, 100);
    assert_int_equal(moe_device_set_allocator(device, &whole), MOE_E_STATE);
    moe_device_free(device, &array);
    assert_int_equal(moe_device_set_allocator(device, &whole), 0);
    array = support_floats(device, 100);
    assert_int_equal(c.bytes, 400);
    for (int i = 0; i < 100; i++) {
        assert_true(array[i] == 0.0f); /* the allocator gave NaN */
    }
    assert_int_equal(moe_device_set_allocator(device, NULL), MOE_E_STATE);
    moe_device_free(device, &array);
    assert_int_equal(c.bytes, 0);
    assert_int_equal(moe_device_set_allocator(device, NULL), 0);
    moe_device_destroy(&device);
    assert_int_equal(c.given, 1);
}

/* The shared expert's own stream has the caller's allocator, too: what a layer holds is what the allocator gave. */
static void test_a_shared_expert_beside_takes_the_callers_memory(void **state)
{
    (void)state;
    enum { S = 48 };
    size_t held[2];
    for (int overlaps = 0; overlaps < 2; overlaps++) {
        struct counting c = {0};
        moe_device_t *device = device_of(&c);
        moe_layer_t *layer = NULL;
        struct moe_layer_config config = config_of(NULL, 0, MOE_DISPATCH_ALLTOALL);
        config.shared_ffn = S;
        config.shared_overlap = overlaps == 1;
        assert_int_equal(moe_layer_new(device, &config, &layer), 0);
        held[overlaps] = c.bytes;
        assert_int_equal(c.other_streams > 0, overlaps == 1);
        moe_layer_destroy(&layer);
        assert_int_equal(c.bytes, 0);
        assert_false(c.wrong);
        moe_device_destroy(&device);
    }
    assert_int_equal(held[0], held[1]);
    assert_true(held[0] > (size_t)T * 6 * S * sizeof(float)); /* h, its gradient, the activation and its gradient */
}

/* A back end whose n-th weight gradient cannot be enqueued. */
static struct {
    const struct moe_backend *behind;
    int weight_gradients, refuse;
} narrow;

static int narrow_linear(moe_device_t *device, const struct moe_linear_pass *pass)
{
    if (pass->kind == MOE_LINEAR_WGRAD && narrow.weight_gradients++ == narrow.refuse) {
        return MOE_E_NOMEM;
    }
    return narrow.behind->ops()->linear(device, pass);
}

static const struct moe_ops *narrow_ops(void)
{
    static struct moe_ops ops;
    ops = *narrow.behind->ops();
    ops.linear = narrow_linear;
    return &ops;
}

/* What delay_wgrad left goes back behind a failure as well; what waits for its backward stays. */
static void test_a_failed_backward_dw_gives_its_memory_back(void **state)
{
    (void)state;
    moe_device_t *device = NULL;
    assert_int_equal(moe_device_new_host(&device), 0);
    struct moe_backend backend = *device->backend;
    struct model m = {0};
    moe_layer_t *layer = NULL;
    struct moe_layer_config config = config_of(NULL, 0, MOE_DISPATCH_ALLTOALL);
    const struct moe_step step = {.step = 0};
    narrow.behind = device->backend;
    backend.ops = narrow_ops;
    device->backend = &backend;
    config.delay_wgrad = true;
    make_model(device, &m, 0, E);
    assert_int_equal(moe_layer_new(device, &config, &layer), 0);
    const struct moe_layer_weights train = weights_of(&m, true);
    for (narrow.refuse = 0; narrow.refuse < 3; narrow.refuse++) { /* w2's, w1's, none */
        narrow.weight_gradients = 0;
        assert_int_equal(run_step(device, layer, &m, T), 0);
        assert_true(figures_of(device).in_use > 0);
        assert_int_equal(moe_layer_backward_dw(layer), narrow.refuse < 2 ? MOE_E_NOMEM : 0);
        assert_int_equal(figures_of(device).in_use, 0);
        assert_int_equal(moe_layer_backward_dw(layer), MOE_E_STATE);
    }
    narrow.refuse = -1;
    assert_int_equal(moe_layer_forward(layer, &train, &step, m.x, T, m.y), 0);
    size_t waits = figures_of(device).in_use;
    assert_true(waits > 0);
    assert_int_equal(moe_layer_backward_dw(layer), MOE_E_STATE); /* called too early */
    assert_int_equal(figures_of(device).in_use, waits);
    assert_int_equal(moe_layer_backward(layer, m.dy, m.dx), 0);
    assert_int_equal(moe_layer_backward_dw(layer), 0);
    /* A forward that is dropped holds nothing, and has no backward. */
    assert_int_equal(moe_layer_forward(layer, &train, &step, m.x, T, m.y), 0);
    moe_layer_drop(layer, &(struct moe_step){.step = 1});
    assert_int_equal(figures_of(device).in_use, waits);
    moe_layer_drop(layer, &step);
    assert_int_equal(figures_of(device).in_use, 0);
    assert_int_equal(moe_layer_backward_of(layer, &step, m.dy, m.dx), MOE_E_STATE);
    assert_int_equal(moe_device_sync(device), 0);
    moe_layer_destroy(&layer);
    free_model(device, &m);
    device->backend = narrow.behind;
    moe_device_destroy(&device);
}

/* A placeholder gradient belongs to the process: it must not go with the allocator of the device that asked first. */
static void test_a_placeholder_outlives_the_device_and_its_allocator(void **state)
{
    (void)state;
    void *first = NULL;
    for (int i = 0; i < 2; i++) {
        struct counting c = {0};
        moe_device_t *device = device_of(&c);
        moe_linear_t *linear = NULL;
        const struct moe_linear_config config = {
            .groups = 1, .out_features = 37, .in_features = 41, .max_rows = 1, .fuse_wgrad_accumulation = true};
        float *weight = support_floats(device, 37 * 41), *main_grad = support_floats(device, 37 * 41),
              *x = support_floats(device, 41), *y = support_floats(device, 37);
        int64_t *m = support_array(device, 1, sizeof(*m));
        struct moe_param param = {
            .data = weight, .main_grad = main_grad, .has_added_flag = true, .zero_out_wgrad = true};
        struct moe_param *params[1] = {&param};
        struct moe_grad grad;
        assert_int_equal(moe_linear_new(device, &config, &linear), 0);
        assert_int_equal(moe_linear_forward(linear, params, NULL, x, m, 1, y), 0);
        assert_int_equal(moe_linear_backward(linear, y, NULL, MOE_MICROBATCH_UNKNOWN), 0);
        assert_int_equal(moe_linear_weight_grad(linear, 0, &grad), 0);
        assert_int_equal(moe_device_sync(device), 0);
        assert_true(grad.placeholder && grad.data != NULL && (i == 0 || grad.data == first));
        assert_true(((const float *)grad.data)[37 * 41 - 1] == 0.0f);
        first = grad.data;
        moe_linear_destroy(&linear);
        void *arrays[] = {&weight, &main_grad, &x, &y, &m};
        for (size_t j = 0; j < 5; j++) {
            moe_device_free(device, arrays[j]);
        }
        moe_device_destroy(&device);
        assert_int_equal(c.bytes, 0); /* the placeholder is not among them */
    }
}

/* One rank whose every request fails once: always NOMEM, nothing leaks, and the next step is the one that it always
 * was. */
static void test_each_request_fails_once(void **state)
{
    (void)state;
    static const enum moe_dispatcher_kind kinds[] = {MOE_DISPATCH_ALLTOALL, MOE_DISPATCH_ALLGATHER, MOE_DISPATCH_DEEPEP,
                                                     MOE_DISPATCH_HYBRIDEP};
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        float y[T * H], dx[T * H];
        int64_t failures = 0;
        for (int64_t n = 0, more = 1; more; n++) {
            struct counting c = {0};
            moe_device_t *device = device_of(&c);
            struct model m = {0};
            moe_layer_t *layer = NULL;
            struct moe_layer_config config = config_of(NULL, 0, kinds[k]);
            size_t trimmed = 0;
            make_model(device, &m, 0, E);
            size_t before = c.bytes;
            c.asked = 0;
            c.refuse = n == 0 ? -1 : n - 1;
            int rc = moe_layer_new(device, &config, &layer);
            if (rc != 0) {
                assert_int_equal(rc, MOE_E_NOMEM);
                assert_null(layer);
                assert_int_equal(c.bytes, before);
                c.refuse = -1;
                assert_int_equal(moe_layer_new(device, &config, &layer), 0);
                failures++;
            }
            for (int i = 0; i < 2; i++) { /* the pool is asked twice: it grows, and then becomes one piece */
                rc = run_step(device, layer, &m, i == 0 ? 3 : T);
                if (rc != 0) {
                    assert_int_equal(rc, MOE_E_NOMEM);
                    assert_non_null(strstr(moe_last_error(), "layer 0"));
                    assert_int_equal(figures_of(device).in_use, 0);
                    failures++;
                }
            }
            more = n == 0 || c.refuse < c.asked; /* it was reached */
            c.refuse = -1;
            memset(m.d_gate, 0, E * H * sizeof(float));
            assert_int_equal(run_step(device, layer, &m, T), 0);
            if (n == 0) {
                memcpy(y, m.y, sizeof(y));
                memcpy(dx, m.dx, sizeof(dx));
            }
            assert_memory_equal(y, m.y, sizeof(y));
            assert_memory_equal(dx, m.dx, sizeof(dx));
            assert_int_equal(figures_of(device).in_use, 0);
            moe_layer_destroy(&layer);
            assert_int_equal(moe_device_trim(device, &trimmed), 0);
            assert_int_equal(c.bytes, before);
            free_model(device, &m);
            moe_device_destroy(&device);
            assert_int_equal(c.bytes, 0);
            assert_false(c.wrong);
        }
        assert_true(failures > 10);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_pool_grows_with_the_rows_and_keeps_what_it_has),
        cmocka_unit_test(test_layers_share_it_and_hold_only_what_backward_needs),
        cmocka_unit_test(test_trim_gives_back_what_nothing_uses),
        cmocka_unit_test(test_an_allocator_is_set_before_anything_is_made),
        cmocka_unit_test(test_a_shared_expert_beside_takes_the_callers_memory),
        cmocka_unit_test(test_a_failed_backward_dw_gives_its_memory_back),
        cmocka_unit_test(test_a_placeholder_outlives_the_device_and_its_allocator),
        cmocka_unit_test(test_each_request_fails_once),
    };
    setenv("HOSTCUDA_DEVICES", "16", 1); /* before the first call of the runtime */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
