/*
 * number.h: values of every NCCL type as doubles, for oracles: written from the formats' definitions and independent of
 * the library.
 */
#ifndef ROLL_TESTS_HOSTNCCL_NCCL_NUMBER_H
#define ROLL_TESTS_HOSTNCCL_NCCL_NUMBER_H

#include <math.h>
#include <nccl.h>
#include <stdint.h>
#include <string.h>

/* sign, e exponent bits, m mantissa bits; inf: the top exponent is infinity and NaN, else only all ones is NaN. */
static inline double narrow_value(uint32_t bits, int e, int m, bool inf)
{
    double sign = bits >> (e + m) & 1 ? -1.0 : 1.0;
    int exponent = (int)(bits >> m & ((1u << e) - 1)), bias = (1 << (e - 1)) - 1;
    double fraction = (double)(bits & ((1u << m) - 1)) / (double)(1u << m);

    if (inf && exponent == (1 << e) - 1) {
        return fraction > 0 ? (double)NAN : sign * (double)INFINITY;
    }
    if (!inf && (bits & ((1u << (e + m)) - 1)) == (1u << (e + m)) - 1) {
        return (double)NAN;
    }
    return exponent ? sign * ldexp(1 + fraction, exponent - bias) : sign * ldexp(fraction, 1 - bias);
}

static inline size_t number_size(ncclDataType_t t)
{
    static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

    return sizes[t];
}

static inline double number_get(const void *array, size_t i, ncclDataType_t t)
{
    const char *p = (const char *)array + i * number_size(t);
    uint64_t u = 0;
    float f = 0;
    double d;

    memcpy(&u, p, number_size(t));
    memcpy(&f, p, sizeof(f) < number_size(t) ? sizeof(f) : number_size(t));
    switch ((int)t) {
    case ncclInt8:
        return (int8_t)u;
    case ncclInt32:
        return (int32_t)u;
    case ncclInt64:
        return (double)(int64_t)u;
    case ncclFloat16:
        return narrow_value((uint32_t)u, 5, 10, true);
    case ncclBfloat16:
        return narrow_value((uint32_t)u, 8, 7, true);
    case ncclFloat8e4m3:
        return narrow_value((uint32_t)u, 4, 3, false);
    case ncclFloat8e5m2:
        return narrow_value((uint32_t)u, 5, 2, true);
    case ncclFloat32:
        return (double)f;
    case ncclFloat64:
        memcpy(&d, p, sizeof(d));
        return d;
    default:
        return (double)u;
    }
}

/* The bits of a narrow format that mean `value` exactly; found by trying, so it leans on nothing but narrow_value. */
static inline uint32_t narrow_bits(double value, int e, int m, bool inf)
{
    for (uint32_t b = 0; b < 1u << (e + m + 1); b++) {
        if (narrow_value(b, e, m, inf) == value) {
            return b;
        }
    }
    return 0;
}

static inline uint32_t number_bits(double value, ncclDataType_t t)
{
    static uint32_t cache[12][64]; /* whole numbers 0..63, plus one */
    static const int e[12] = {[ncclFloat16] = 5, [ncclBfloat16] = 8, [ncclFloat8e4m3] = 4, [ncclFloat8e5m2] = 5};
    static const int m[12] = {[ncclFloat16] = 10, [ncclBfloat16] = 7, [ncclFloat8e4m3] = 3, [ncclFloat8e5m2] = 2};
    int whole = (int)value;

    if (value == whole && whole >= 0 && whole < 64) {
        uint32_t *c = &cache[t][whole];
        uint32_t known = __atomic_load_n(c, __ATOMIC_RELAXED);
        if (!known) {
            known = narrow_bits(value, e[t], m[t], t != ncclFloat8e4m3) + 1;
            __atomic_store_n(c, known, __ATOMIC_RELAXED);
        }
        return known - 1;
    }
    return narrow_bits(value, e[t], m[t], t != ncclFloat8e4m3);
}

/* `value` must be a value of the type. */
static inline void number_put(void *array, size_t i, ncclDataType_t t, double value)
{
    char *p = (char *)array + i * number_size(t);
    int64_t whole = (int64_t)value;
    float f = (float)value;
    uint32_t bits;

    switch ((int)t) {
    case ncclFloat32:
        memcpy(p, &f, sizeof(f));
        return;
    case ncclFloat64:
        memcpy(p, &value, sizeof(value));
        return;
    case ncclFloat16:
    case ncclBfloat16:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
        bits = number_bits(value, t);
        memcpy(p, &bits, number_size(t));
        return;
    default:
        memcpy(p, &whole, number_size(t));
    }
}

/* Relative rounding step of the type; 0 for integers. */
static inline double number_step(ncclDataType_t t)
{
    static const double steps[12] = {[ncclFloat16] = 0x1p-10, [ncclFloat32] = 0x1p-23,   [ncclFloat64] = 0x1p-52,
                                     [ncclBfloat16] = 0x1p-7, [ncclFloat8e4m3] = 0x1p-3, [ncclFloat8e5m2] = 0x1p-2};

    return steps[t];
}

#endif
