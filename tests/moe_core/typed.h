/*
 * typed.h: numbers of any element type in tests: read, written, rounded.
 */
#ifndef ROLL_TESTS_MOE_CORE_TYPED_H
#define ROLL_TESTS_MOE_CORE_TYPED_H

#include "common/smallfloat.h"
#include "moe_core/include/moe/dtype.h"
#include "tests/moe_core/support.h"

static inline double typed_get(enum moe_dtype type, const void *from, int64_t i)
{
    switch (type) {
    case MOE_BF16:
        return (double)hn_bf16_get(((const uint16_t *)from)[i]);
    case MOE_F16:
        return (double)hn_f16_get(((const uint16_t *)from)[i]);
    case MOE_E4M3:
        return (double)hn_e4m3_get(((const uint8_t *)from)[i]);
    case MOE_E5M2:
        return (double)hn_e5m2_get(((const uint8_t *)from)[i]);
    default:
        return (double)((const float *)from)[i];
    }
}

static inline void typed_put(enum moe_dtype type, void *to, int64_t i, double value)
{
    float f = (float)value;
    switch (type) {
    case MOE_BF16:
        ((uint16_t *)to)[i] = hn_bf16_put(f);
        break;
    case MOE_F16:
        ((uint16_t *)to)[i] = hn_f16_put(f);
        break;
    case MOE_E4M3:
        ((uint8_t *)to)[i] = hn_e4m3_put(f);
        break;
    case MOE_E5M2:
        ((uint8_t *)to)[i] = hn_e5m2_put(f);
        break;
    default:
        ((float *)to)[i] = f;
    }
}

/* The nearest number of the type. */
static inline double typed_round(enum moe_dtype type, double value)
{
    float one[1];
    typed_put(type, one, 0, value);
    return typed_get(type, one, 0);
}

/* Random numbers of a type on the device, in [-size, size), and the same as doubles in *twin (owned) where wanted. */
static inline void *typed_random(moe_device_t *device, enum moe_dtype type, int64_t n, double size, uint64_t *state,
                                 double **twin)
{
    void *array = support_array(device, n, moe_dtype_bytes(type));
    double *twins = support_doubles(n);
    for (int64_t i = 0; i < n; i++) {
        typed_put(type, array, i, size * support_random(state));
        twins[i] = typed_get(type, array, i);
    }
    if (twin != NULL) {
        *twin = twins;
    } else {
        free(twins);
    }
    return array;
}

/* How far a number of this type may be from the reference, as a part of the largest: a last place, where the reference
 * rounds where the library does. */
static inline double typed_tolerance(enum moe_dtype type)
{
    return type == MOE_F32 ? 3e-6 : type == MOE_BF16 ? 1.0 / 100 : 1.0 / 800;
}

/* Fails when an element differs by more than `tolerance` of the largest wanted one. */
static inline void typed_close(const char *what, enum moe_dtype type, const void *got, const double *want, int64_t n,
                               double tolerance)
{
    double size = 1e-30;
    for (int64_t i = 0; i < n; i++) {
        size = fmax(size, fabs(want[i]));
    }
    for (int64_t i = 0; i < n; i++) {
        double g = typed_get(type, got, i);
        if (!(fabs(g - want[i]) <= tolerance * size)) {
            fail_msg("%s[%lld]: got %.9g, want %.9g (%s)", what, (long long)i, g, want[i], moe_dtype_name(type));
        }
    }
}

#endif
