/*
 * test_numbers.c: conversions of the narrow types, exhaustively, against values computed from the formats' definitions;
 * and what the arithmetic does at the ends of the types.
 */
#include "tests/hostnccl/nccl/harness.h"
#include "tests/hostnccl/nccl/number.h"

#include "common/smallfloat.h"
#include "hostnccl/nccl/reduce.h"

struct format {
    const char *name;
    int e, m;
    bool inf, saturate;
    float (*get)(uint32_t);
    uint32_t (*put)(float);
};

#define WRAP(name, type)                                                                                               \
    static float name##_get(uint32_t u)                                                                                \
    {                                                                                                                  \
        return hn_##name##_get((type)u);                                                                               \
    }                                                                                                                  \
    static uint32_t name##_put(float f)                                                                                \
    {                                                                                                                  \
        return hn_##name##_put(f);                                                                                     \
    }

WRAP(f16, uint16_t)
WRAP(bf16, uint16_t)
WRAP(e4m3, uint8_t)
WRAP(e5m2, uint8_t)

static const struct format FORMATS[] = {
    {"half", 5, 10, true, false, f16_get, f16_put},
    {"bfloat16", 8, 7, true, false, bf16_get, bf16_put},
    {"e4m3", 4, 3, false, true, e4m3_get, e4m3_put},
    {"e5m2", 5, 2, true, true, e5m2_get, e5m2_put},
};
enum { FORMAT_COUNT = sizeof(FORMATS) / sizeof(FORMATS[0]) };

static uint32_t patterns(const struct format *f)
{
    return 1u << (1 + f->e + f->m);
}

static void every_pattern_means_its_value_and_comes_back(void **state)
{
    (void)state;
    for (int k = 0; k < FORMAT_COUNT; k++) {
        const struct format *f = &FORMATS[k];
        for (uint32_t b = 0; b < patterns(f); b++) {
            double want = narrow_value(b, f->e, f->m, f->inf);
            float got = f->get(b);
            if (isnan(want)) {
                assert_true(isnan(got) && isnan(f->get(f->put(got))));
                continue;
            }
            assert_true((double)got == want && (signbit(got) != 0) == (b >= patterns(f) / 2));
            if (!isinf(want) || !f->saturate) {
                assert_int_equal(f->put(got), b);
            }
        }
    }
}

/* Between two neighbours: below the middle down, above it up, in the middle to the even pattern. */
static void rounding_is_to_nearest_ties_to_even(void **state)
{
    (void)state;
    for (int k = 0; k < FORMAT_COUNT; k++) {
        const struct format *f = &FORMATS[k];
        for (uint32_t b = 0; b + 1 < patterns(f) / 2; b++) {
            double low = narrow_value(b, f->e, f->m, f->inf), high = narrow_value(b + 1, f->e, f->m, f->inf);
            if (isnan(high) || isinf(high)) {
                break;
            }
            float middle = (float)((low + high) / 2);
            uint32_t even = b & 1 ? b + 1 : b, sign = patterns(f) / 2;
            assert_int_equal(f->put(middle), even);
            assert_int_equal(f->put(-middle), sign | even);
            assert_int_equal(f->put(nextafterf(middle, 0)), b);
            assert_int_equal(f->put(nextafterf(middle, INFINITY)), b + 1);
        }
    }
}

static void too_large_saturates_in_fp8_and_is_infinite_elsewhere(void **state)
{
    (void)state;
    assert_true(isinf(f16_get(f16_put(65520.0f))));
    assert_int_equal((int)f16_get(f16_put(65519.0f)), 65504);
    assert_true(isinf(f16_get(f16_put(INFINITY))) && isinf(bf16_get(bf16_put(3.39e38f))) == 0);
    assert_true(isinf(bf16_get(bf16_put(INFINITY))));
    assert_int_equal((int)e4m3_get(e4m3_put(1e6f)), 448);
    assert_int_equal((int)e4m3_get(e4m3_put(-INFINITY)), -448);
    assert_int_equal((int)e5m2_get(e5m2_put(1e6f)), 57344);
    assert_int_equal((int)e5m2_get(e5m2_put(INFINITY)), 57344);
    assert_true(isnan(e4m3_get(e4m3_put(NAN))) && isnan(e5m2_get(e5m2_put(NAN))) && isnan(f16_get(f16_put(NAN))) &&
                isnan(bf16_get(bf16_put(NAN))));
}

/* The number of ranks need not be a value of the type. */
static void an_average_of_integers_truncates_for_any_number_of_ranks(void **state)
{
    static const int ranks[] = {2, 3, 127, 128, 129, 255, 256, 257, 4096};

    (void)state;
    for (size_t k = 0; k < sizeof(ranks) / sizeof(ranks[0]); k++) {
        const struct hn_redop op = {.kind = HN_SUM, .divisor = ranks[k]};
        for (int v = -128; v < 128; v++) {
            int8_t s = (int8_t)v;
            uint8_t u = (uint8_t)(v + 128);
            hn_reduce_last(&s, 1, ncclInt8, &op);
            hn_reduce_last(&u, 1, ncclUint8, &op);
            assert_int_equal(s, v / ranks[k]);
            assert_int_equal(u, (v + 128) / ranks[k]);
        }
        int32_t s32 = INT32_MIN;
        uint32_t u32 = UINT32_MAX;
        int64_t s64 = INT64_MIN;
        uint64_t u64 = UINT64_MAX;
        hn_reduce_last(&s32, 1, ncclInt32, &op);
        hn_reduce_last(&u32, 1, ncclUint32, &op);
        hn_reduce_last(&s64, 1, ncclInt64, &op);
        hn_reduce_last(&u64, 1, ncclUint64, &op);
        assert_true(s32 == INT32_MIN / ranks[k] && u32 == UINT32_MAX / (uint32_t)ranks[k]);
        assert_true(s64 == INT64_MIN / ranks[k] && u64 == UINT64_MAX / (uint64_t)ranks[k]);
    }
}

/* Maximum and minimum take the number, whichever side the NaN is on; sums and products keep the NaN. */
static void a_number_wins_against_a_nan_in_maximum_and_minimum(void **state)
{
    static const ncclDataType_t types[] = {ncclFloat16,    ncclBfloat16, ncclFloat8e4m3,
                                           ncclFloat8e5m2, ncclFloat32,  ncclFloat64};

    (void)state;
    for (size_t k = 0; k < sizeof(types) / sizeof(types[0]); k++) {
        for (int kind = HN_SUM; kind <= HN_MIN; kind++) {
            for (int side = 0; side < 2; side++) {
                const struct hn_redop op = {.kind = (enum hn_reduce)kind};
                unsigned char a[8], b[8];
                hn_scalar_from_double(side ? a : b, (double)NAN, types[k]);
                hn_scalar_from_double(side ? b : a, -2.0, types[k]);
                hn_reduce_next(a, b, 1, types[k], &op);
                double got = number_get(a, 0, types[k]);
                assert_true(kind >= HN_MAX ? got == -2.0 : isnan(got));
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pattern_means_its_value_and_comes_back),
        cmocka_unit_test(rounding_is_to_nearest_ties_to_even),
        cmocka_unit_test(too_large_saturates_in_fp8_and_is_infinite_elsewhere),
        cmocka_unit_test(an_average_of_integers_truncates_for_any_number_of_ranks),
        cmocka_unit_test(a_number_wins_against_a_nan_in_maximum_and_minimum),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
