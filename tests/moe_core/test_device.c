/*
 * test_device.c: which back ends exist, the error where one does not, and the functions of whole tensors.
 */
#include "tests/moe_core/support.h"

#include "moe_core/include/moe/ops.h"

static void test_an_unknown_back_end_is_an_argument_error(void **state)
{
    (void)state;
    moe_device_t *device = (moe_device_t *)1;
    assert_int_equal(moe_device_new("tpu", &device), MOE_E_ARG);
    assert_null(device);
    assert_non_null(strstr(moe_last_error(), "\"tpu\""));
    assert_int_equal(moe_device_new(NULL, &device), MOE_E_ARG);
}

static void test_host_by_name(void **state)
{
    (void)state;
    moe_device_t *device = NULL;
    assert_int_equal(moe_device_new("host", &device), 0);
    assert_string_equal(moe_device_name(device), "host");
    moe_device_destroy(&device);
    assert_null(device);
}

/* Here the runtime is the stand-in, which runs no kernels: libmoe_kernels.so is absent, or has no code for the device.
 */
static void test_cuda_is_unsupported_here_and_says_why(void **state)
{
    (void)state;
    moe_device_t *device = (moe_device_t *)1;
    assert_int_equal(moe_device_new("cuda", &device), MOE_E_UNSUPPORTED);
    assert_null(device);
    bool is_absent = strstr(moe_last_error(), "not supported: no CUDA back end: libmoe_kernels.so: ") != NULL;
    bool is_empty = strstr(moe_last_error(), "not supported: a device of the cuda back end: no code for this GPU in "
                                             "libmoe_kernels.so: there is no device code") != NULL;
    assert_true(is_absent || is_empty);
}

static uint64_t checksum(moe_device_t *device, const void *data, size_t bytes, uint64_t *out)
{
    struct moe_checksum sum = {.data = data, .bytes = bytes, .out = out};
    *out = 1;
    assert_int_equal(moe_device_ops(device)->checksum(device, &sum), 0);
    assert_int_equal(moe_device_sync(device), 0);
    return *out;
}

/* The mix written down once more, from its published constants. */
static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static void test_a_checksum_tells_every_bit_place_and_length(void **state)
{
    (void)state;
    moe_device_t *device = NULL;
    assert_int_equal(moe_device_new_host(&device), 0);
    unsigned char *data = support_array(device, 64, 1);
    uint64_t *out = support_array(device, 1, sizeof(*out)), word[3] = {0};
    for (int i = 0; i < 64; i++) {
        data[i] = (unsigned char)(i * 37 + 11);
    }
    memcpy(word, data, 19);
    uint64_t want = mix(19) + mix(word[0] + mix(1)) + mix(word[1] + mix(2)) + mix(word[2] + mix(3));
    assert_int_equal(checksum(device, data, 19, out), want);
    assert_int_equal(checksum(device, data, 0, out), mix(0));
    /* Every single bit, every pair of words that change places, and every length makes another sum. */
    uint64_t sum = checksum(device, data, 64, out);
    for (int bit = 0; bit < 64 * 8; bit++) {
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_int_not_equal(checksum(device, data, 64, out), sum);
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    memcpy(word, data, 8);
    memmove(data, data + 8, 8);
    memcpy(data + 8, word, 8);
    assert_int_not_equal(checksum(device, data, 64, out), sum);
    memset(data, 0, 64);
    assert_int_not_equal(checksum(device, data, 63, out), checksum(device, data, 64, out));
    moe_device_free(device, &data);
    moe_device_free(device, &out);
    moe_device_destroy(&device);
}

static void test_casts_are_right_to_half_a_unit(void **state)
{
    (void)state;
    enum { N = 2500 }; /* several pieces */
    moe_device_t *device = NULL;
    uint64_t random = 5;
    assert_int_equal(moe_device_new_host(&device), 0);
    float *from = support_floats(device, N), *back = support_floats(device, N);
    uint16_t *half = support_array(device, N, sizeof(*half));
    support_fill(from, NULL, N, 3, &random);
    static const struct {
        enum moe_dtype type;
        double step; /* half of a unit in the last place, relative */
    } types[] = {{MOE_BF16, 1.0 / 256}, {MOE_F16, 1.0 / 2048}};
    for (size_t t = 0; t < 2; t++) {
        struct moe_cast there = {.count = N, .to_type = types[t].type, .from = from, .to = half};
        struct moe_cast here = {.count = N, .from_type = types[t].type, .from = half, .to = back};
        assert_int_equal(moe_device_ops(device)->cast(device, &there), 0);
        assert_int_equal(moe_device_ops(device)->cast(device, &here), 0);
        assert_int_equal(moe_device_sync(device), 0);
        double worst = 0;
        for (int i = 0; i < N; i++) {
            worst = fmax(worst, fabs((double)from[i] - (double)back[i]) / fmax(fabs((double)from[i]), 1e-4));
        }
        assert_true(worst <= types[t].step);
        assert_true(worst > types[t].step / 4); /* the number was rounded to that type */
    }
    moe_device_free(device, &from);
    moe_device_free(device, &back);
    moe_device_free(device, &half);
    moe_device_destroy(&device);
}

/* Beside libmoe_core.so lies stale_kernels.c: CMakeLists.txt. */
static void test_kernels_of_another_build_are_refused(void **state)
{
    (void)state;
    moe_device_t *device = (moe_device_t *)1;
    assert_int_equal(moe_device_new("cuda", &device), MOE_E_UNSUPPORTED);
    assert_null(device);
    assert_non_null(strstr(moe_last_error(), "is of another version"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest stale[] = {cmocka_unit_test(test_kernels_of_another_build_are_refused)};
    if (argc > 1 && strcmp(argv[1], "stale") == 0) {
        return cmocka_run_group_tests(stale, NULL, NULL);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_unknown_back_end_is_an_argument_error),
        cmocka_unit_test(test_host_by_name),
        cmocka_unit_test(test_cuda_is_unsupported_here_and_says_why),
        cmocka_unit_test(test_a_checksum_tells_every_bit_place_and_length),
        cmocka_unit_test(test_casts_are_right_to_half_a_unit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
