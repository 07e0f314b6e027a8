/* Conversions of the narrow types, exhaustively, against values computed from the formats' definitions. */
#include "tests/hostnccl/harness.h"
#include "tests/hostnccl/number.h"

#include "hostnccl/nccl/smallfloat.h"

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
enum { FORMAT_COUNT = sizeof FORMATS / sizeof FORMATS[0] };

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pattern_means_its_value_and_comes_back),
        cmocka_unit_test(rounding_is_to_nearest_ties_to_even),
        cmocka_unit_test(too_large_saturates_in_fp8_and_is_infinite_elsewhere),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
