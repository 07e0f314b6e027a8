/*
 * test_kernels_ref.c: the kernels' twins against moe_core's host back end, and their index arithmetic against plain
 * loops.
 */
#include "tests/moe_core/support.h"

#include "kernels/index.h"
#include "kernels/ref.h"
#include "moe_core/include/moe/ops.h"

enum { T = 5, E = 4, K = 2, W = 8, ROWS = T * K + 1 };

/* the kernels' index arithmetic */

static void test_order_keys_order_as_the_choice_does(void **state)
{
    (void)state;
    const float value[] = {-NAN, NAN, -INFINITY, -3.0f, -1e-40f, -0.0f, 0.0f, 1e-40f, 0.5f, INFINITY};
    enum { N = sizeof(value) / sizeof(value[0]) };
    for (int i = 0; i < N; i++) {
        assert_true(moe_order_key(value[i]) > MOE_KEY_TAKEN);
        for (int j = 0; j < N; j++) {
            bool better = value[i] > value[j] || (!isnan(value[i]) && isnan(value[j]));
            assert_int_equal(moe_order_key(value[i]) > moe_order_key(value[j]), better);
        }
    }
    uint64_t random = 3;
    for (int i = 0; i < 10000; i++) {
        float a = (float)support_random(&random), b = (float)support_random(&random);
        assert_int_equal(moe_order_key(a) > moe_order_key(b), a > b);
    }
}

static void test_ones_before_counts_bits(void **state)
{
    (void)state;
    enum { WORDS = 5 };
    uint32_t words[WORDS];
    uint64_t random = 7;
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < WORDS; i++) {
            words[i] = round == 0 ? UINT32_MAX : (uint32_t)(int32_t)(support_random(&random) * 2147483647.0);
        }
        int32_t ones = 0;
        for (int32_t bit = 0; bit <= WORDS * 32; bit++) {
            if (bit < WORDS * 32) {
                assert_int_equal(moe_ones_before(words, bit), ones);
                ones += (int32_t)(words[bit / 32] >> (uint32_t)bit % 32 & 1u);
            }
        }
        assert_int_equal(ones, moe_ones_before(words, WORDS * 32 - 1) + (int32_t)(words[WORDS - 1] >> 31));
    }
}

static void test_piece_of_finds_the_piece_past_empty_ones(void **state)
{
    (void)state;
    const int64_t size[] = {0, 3, 0, 0, 1, 5, 0, 2, 0};
    enum { N = sizeof(size) / sizeof(size[0]) };
    int64_t start[N], sum = 0;
    for (int i = 0; i < N; i++) {
        start[i] = sum;
        sum += size[i];
    }
    int64_t at = 0;
    for (int i = 0; i < N; i++) {
        for (int64_t r = 0; r < size[i]; r++) {
            int64_t piece = moe_piece_of(start, N, at++);
            assert_int_equal(piece, i);
        }
    }
    assert_int_equal(moe_piece_of(start, 1, 100), 0);
}

static void test_rounding_up_gives_the_next_multiple(void **state)
{
    (void)state;
    for (int64_t align = 0; align < 20; align++) {
        for (int64_t count = 0; count < 100; count++) {
            int64_t up = moe_round_up(count, align);
            assert_true(up >= count && up - count < (align > 1 ? align : 1) && (align < 2 || up % align == 0));
        }
    }
}

static void test_swiglu_twins_equal_the_host_back_end(void **state)
{
    (void)state;
    moe_device_t *device = NULL;
    uint64_t random = 4;
    assert_int_equal(moe_device_new_host(&device), 0);
    float *h = support_floats(device, T * 2 * W), *d_act = support_floats(device, T * W),
          *act = support_floats(device, T * W);
    float *d_h = support_floats(device, T * 2 * W), twin[T * 2 * W];
    double want[T * 2 * W];
    support_fill(h, NULL, T * 2 * W, 4, &random);
    support_fill(d_act, NULL, T * W, 1, &random);
    struct moe_swiglu forward = {.rows = T, .width = W, .h = h, .out = act};
    struct moe_swiglu backward = {.rows = T, .width = W, .h = h, .d_act = d_act, .out = d_h};
    assert_int_equal(moe_device_ops(device)->swiglu(device, &forward), 0);
    assert_int_equal(moe_device_ops(device)->swiglu_backward(device, &backward), 0);
    assert_int_equal(moe_device_sync(device), 0);
    moe_kernel_ref_swiglu(h, T, W, twin);
    for (int i = 0; i < T * W; i++) {
        want[i] = (double)twin[i];
    }
    support_close("act", act, want, T * W, 1e-6);
    moe_kernel_ref_swiglu_backward(h, d_act, T, W, twin);
    for (int i = 0; i < T * 2 * W; i++) {
        want[i] = (double)twin[i];
    }
    support_close("d_h", d_h, want, T * 2 * W, 1e-6);
    void *arrays[] = {&h, &d_act, &act, &d_h};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        moe_device_free(device, arrays[i]);
    }
    moe_device_destroy(&device);
}

static void test_zero_empty_twin_clears_empty_groups_only(void **state)
{
    (void)state;
    const int64_t m[E] = {0, 3, 0, 1};
    float out[E * W];
    static const float zeros[W];
    support_poison(out, E * W);
    moe_kernel_ref_zero_empty(out, m, E, W);
    for (int g = 0; g < E; g++) {
        if (m[g] == 0) {
            assert_memory_equal(out + g * W, zeros, sizeof(zeros));
        } else {
            assert_true(support_is_poison(out + g * W, W));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_keys_order_as_the_choice_does),
        cmocka_unit_test(test_ones_before_counts_bits),
        cmocka_unit_test(test_piece_of_finds_the_piece_past_empty_ones),
        cmocka_unit_test(test_rounding_up_gives_the_next_multiple),
        cmocka_unit_test(test_swiglu_twins_equal_the_host_back_end),
        cmocka_unit_test(test_zero_empty_twin_clears_empty_groups_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
