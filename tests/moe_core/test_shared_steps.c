/*
 * test_shared_steps.c: the steps of the shared expert one by one: that they overlap with the main stream, that each
 * stream waits for what the other gives it, their order, and bad input.
 */
#include "tests/moe_core/shared_ranks.h"

#include "moe_core/include/moe/ops.h"

#include <stdatomic.h>
#include <time.h>

static _Atomic int passed;

static int pass(const void *args)
{
    (void)args;
    atomic_store(&passed, 1);
    return 0;
}

/* The main stream's own work: ends only when the side stream has got as far as pass. */
static int wait_for_pass(const void *args)
{
    (void)args;
    for (int i = 0; i < 200000 && atomic_load(&passed) == 0; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return atomic_load(&passed) != 0 ? 0 : MOE_E_STATE;
}

static void test_steps_run_while_the_main_stream_is_busy(void **state)
{
    (void)state;
    struct shared_case s = {.bias = true, .gate = true, .tokens = SHARED_TOKENS};
    struct shared_arrays a = {.x = NULL};
    moe_device_t *device = NULL, *side = NULL;
    moe_shared_t *shared = NULL;
    struct moe_shared_config config = {
        .max_tokens = SHARED_TOKENS, .hidden = SHARED_HIDDEN, .ffn = SHARED_FFN, .has_bias = true, .has_gate = true};
    char none = 0;
    assert_int_equal(moe_device_new_host(&device), 0);
    assert_int_equal(moe_device_new_host(&side), 0);
    shared_make_arrays(device, &s, 1, 0, &a);
    assert_int_equal(moe_shared_new(device, side, &config, &shared), 0);
    assert_ptr_equal(moe_shared_stream(shared), moe_device_stream(side));
    assert_int_equal(moe_shared_pre_forward_comm(shared, &a.w, a.x, SHARED_TOKENS), 0);
    assert_int_equal(moe_device_call(device, wait_for_pass, &none, 1), 0);
    assert_int_equal(moe_shared_fc1(shared), 0);
    assert_int_equal(moe_shared_fc2(shared), 0);
    assert_int_equal(moe_shared_post_forward_comm(shared), 0);
    assert_int_equal(moe_device_call(side, pass, &none, 1), 0);
    assert_int_equal(moe_shared_get_output(shared, a.y, false), 0);
    assert_int_equal(moe_device_sync(device), 0);
    moe_shared_destroy(&shared);
    shared_free_arrays(device, &a);
    moe_device_destroy(&side);
    moe_device_destroy(&device);
}

/* Work that ends late, and only then gives (or takes) its numbers. */
struct late {
    float *to;
    const float *from;
    int64_t n;
};

static int copy_late(const void *args)
{
    const struct late *l = args;
    nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
    memcpy(l->to, l->from, (size_t)l->n * sizeof(float));
    return 0;
}

static void test_each_stream_waits_for_what_the_other_gives_it(void **state)
{
    (void)state;
    struct shared_case s = {.tokens = SHARED_TOKENS};
    struct shared_arrays a = {.x = NULL};
    moe_device_t *device = NULL, *side = NULL;
    moe_shared_t *shared = NULL;
    struct moe_shared_config config = {
        .max_tokens = SHARED_TOKENS, .hidden = SHARED_HIDDEN, .ffn = SHARED_FFN, .clamp = {1.702f, 1.5f, 1.0f}};
    enum { N = SHARED_TOKENS * SHARED_HIDDEN };
    float x[N], dy[N], y[N], dx[N], w1[2 * SHARED_FFN * SHARED_HIDDEN];
    assert_int_equal(moe_device_new_host(&device), 0);
    assert_int_equal(moe_device_new_host(&side), 0);
    shared_make_arrays(device, &s, 1, 0, &a);
    assert_int_equal(moe_shared_new(device, NULL, &config, &shared), 0);
    assert_int_equal(moe_shared_forward(shared, &a.w, a.x, SHARED_TOKENS, a.y, false), 0);
    assert_int_equal(moe_shared_backward(shared, a.dy, a.dx, false), 0);
    assert_int_equal(moe_device_sync(device), 0);
    memcpy(y, a.y, sizeof(y));
    memcpy(dx, a.dx, sizeof(dx));
    memcpy(x, a.x, sizeof(x));
    memcpy(dy, a.dy, sizeof(dy));
    memcpy(w1, a.w.w1, sizeof(w1));
    moe_shared_destroy(&shared);
    memset(a.x, 0, sizeof(x));
    memset(a.dy, 0, sizeof(dy));
    memset((void *)(uintptr_t)a.w.w1, 0, sizeof(w1));
    const struct late late_x = {a.x, x, N}, late_dy = {a.dy, dy, N};
    const struct late late_w1 = {(float *)(uintptr_t)a.w.w1, w1, 2 * SHARED_FFN * SHARED_HIDDEN};
    assert_int_equal(moe_shared_new(device, side, &config, &shared), 0);
    assert_int_equal(moe_device_call(device, copy_late, &late_x, sizeof(late_x)), 0); /* main gives x late */
    assert_int_equal(moe_device_call(side, copy_late, &late_w1, sizeof(late_w1)), 0); /* side has y late */
    assert_int_equal(moe_shared_forward(shared, &a.w, a.x, SHARED_TOKENS, a.y, false), 0);
    assert_int_equal(moe_device_call(device, copy_late, &late_dy, sizeof(late_dy)), 0);
    assert_int_equal(moe_shared_backward(shared, a.dy, a.dx, false), 0);
    assert_int_equal(moe_device_sync(device), 0);
    assert_memory_equal(y, a.y, sizeof(y));
    assert_memory_equal(dx, a.dx, sizeof(dx));
    moe_shared_destroy(&shared);
    shared_free_arrays(device, &a);
    moe_device_destroy(&side);
    moe_device_destroy(&device);
}

static struct shared_arrays order_arrays;

static int step(moe_shared_t *s, int which)
{
    switch (which) {
    case 0:
        return moe_shared_pre_forward_comm(s, &order_arrays.w, order_arrays.x, SHARED_TOKENS);
    case 1:
        return moe_shared_fc1(s);
    case 2:
        return moe_shared_fc2(s);
    case 3:
        return moe_shared_post_forward_comm(s);
    case 4:
        return moe_shared_get_output(s, order_arrays.y, false);
    case 5:
        return moe_shared_pre_backward_comm(s, order_arrays.dy);
    case 6:
        return moe_shared_fc2_backward(s);
    case 7:
        return moe_shared_fc1_backward(s);
    case 8:
        return moe_shared_post_backward_comm(s);
    default:
        return moe_shared_get_grad(s, order_arrays.dx, false);
    }
}

static void test_a_step_out_of_order_is_an_error_and_changes_nothing(void **state)
{
    (void)state;
    enum { STEPS = 10 };
    struct shared_case s = {.tokens = SHARED_TOKENS};
    moe_device_t *device = NULL;
    moe_shared_t *shared = NULL;
    struct moe_shared_config config = {.max_tokens = SHARED_TOKENS, .hidden = SHARED_HIDDEN, .ffn = SHARED_FFN};
    assert_int_equal(moe_device_new_host(&device), 0);
    shared_make_arrays(device, &s, 1, 0, &order_arrays);
    assert_int_equal(moe_shared_new(device, NULL, &config, &shared), 0);
    for (int done = 0; done <= STEPS; done++) {
        for (int wrong = 0; wrong < STEPS; wrong++) {
            bool right = wrong == done % STEPS || (done == 5 && wrong == 0); /* a forward may follow a forward */
            if (!right) {
                assert_int_equal(step(shared, wrong), MOE_E_STATE);
            }
        }
        if (done < STEPS) {
            assert_int_equal(step(shared, done), 0);
        }
    }
    assert_int_equal(moe_device_sync(device), 0);
    moe_shared_destroy(&shared);
    shared_free_arrays(device, &order_arrays);
    moe_device_destroy(&device);
}

static void test_bad_input_is_an_error(void **state)
{
    (void)state;
    struct shared_case s = {.tokens = SHARED_TOKENS, .bias = true, .gate = true};
    struct shared_arrays a = {.x = NULL};
    moe_device_t *device = NULL;
    moe_shared_t *shared = NULL;
    const struct moe_shared_config good = {.max_tokens = SHARED_TOKENS,
                                           .hidden = SHARED_HIDDEN,
                                           .ffn = SHARED_FFN,
                                           .has_bias = true,
                                           .has_gate = true,
                                           .world_rank = 3,
                                           .layer = 5};
    assert_int_equal(moe_device_new_host(&device), 0);
    shared_make_arrays(device, &s, 1, 0, &a);
    struct moe_shared_config bad = good;
    bad.ffn = 0;
    assert_int_equal(moe_shared_new(device, NULL, &bad, &shared), MOE_E_SHAPE);
    bad = good;
    bad.type = MOE_E4M3;
    assert_int_equal(moe_shared_new(device, NULL, &bad, &shared), MOE_E_ARG);
    bad = good;
    bad.mode = (enum moe_shared_mode)4;
    assert_int_equal(moe_shared_new(device, NULL, &bad, &shared), MOE_E_ARG);
    assert_null(shared);
    assert_non_null(strstr(moe_last_error(), "rank 3, layer 5"));
    assert_int_equal(moe_shared_new(device, NULL, &good, &shared), 0);
    assert_int_equal(moe_shared_pre_forward_comm(shared, &a.w, a.x, SHARED_TOKENS + 1), MOE_E_CAPACITY);
    assert_int_equal(moe_shared_pre_forward_comm(shared, &a.w, a.x, -1), MOE_E_CAPACITY);
    struct moe_shared_weights lacking = a.w;
    lacking.gate = NULL;
    assert_int_equal(moe_shared_pre_forward_comm(shared, &lacking, a.x, SHARED_TOKENS), MOE_E_ARG);
    assert_int_equal(moe_shared_pre_forward_comm(shared, &a.w, a.x, SHARED_TOKENS), 0);
    moe_shared_destroy(&shared);
    shared_free_arrays(device, &a);
    moe_device_destroy(&device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_run_while_the_main_stream_is_busy),
        cmocka_unit_test(test_each_stream_waits_for_what_the_other_gives_it),
        cmocka_unit_test(test_a_step_out_of_order_is_an_error_and_changes_nothing),
        cmocka_unit_test(test_bad_input_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
