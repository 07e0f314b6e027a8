/*
 * test_kernels_ref.c: the kernels' twins against moe_core's host back end: both must mean the same operation.
 */
#include "tests/moe/support.h"

#include "kernels/ref.h"
#include "moe_core/include/moe/ops.h"

enum { T = 5, E = 4, K = 2, W = 8, ROWS = T * K + 1 };

static void test_map_gather_twin_equals_the_host_back_end(void **state)
{
    (void)state;
    moe_device_t *device = NULL;
    uint64_t random = 2;
    assert_int_equal(moe_device_new_host(&device), 0);
    float *from = support_floats(device, T * W), *to = support_floats(device, ROWS * W), twin[ROWS * W];
    int32_t *index = support_array(device, T * K, sizeof *index);
    struct moe_map_header *map = support_array(device, (int64_t)moe_map_bytes(MOE_MAP_MASK, T, E, 0, ROWS), 1);
    int64_t *counts = support_array(device, E, sizeof *counts);
    support_fill(from, NULL, T * W, 1, &random);
    for (int32_t t = 0; t < T; t++) {
        for (int32_t j = 0; j < K; j++) {
            index[t * K + j] = (t + 2 * j + 1) % E;
            counts[index[t * K + j]]++;
        }
    }
    counts[1]++; /* one row of padding */
    struct moe_row_map_build build = {
        .tokens = T, .experts = E, .k = K, .rows = ROWS, .index = index, .counts = counts, .map = map};
    struct moe_map_gather gather = {
        .view = {.tokens = T, .experts = E, .rows = ROWS, .map = map}, .width = W, .from = from, .to = to};
    assert_int_equal(moe_device_ops(device)->row_map_build(device, &build), 0);
    assert_int_equal(moe_device_ops(device)->map_gather(device, &gather), 0);
    assert_int_equal(moe_device_sync(device), 0);
    support_poison(twin, ROWS * W);
    moe_kernel_ref_map_gather(from, (const int32_t *)(map + 1), T, E, ROWS, W, 1, twin);
    assert_memory_equal(twin, to, sizeof twin);
    void *arrays[] = {&from, &to, &index, &map, &counts};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        moe_device_free(device, arrays[i]);
    }
    moe_device_destroy(&device);
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
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
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
            assert_memory_equal(out + g * W, zeros, sizeof zeros);
        } else {
            assert_true(support_is_poison(out + g * W, W));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_map_gather_twin_equals_the_host_back_end),
        cmocka_unit_test(test_swiglu_twins_equal_the_host_back_end),
        cmocka_unit_test(test_zero_empty_twin_clears_empty_groups_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
