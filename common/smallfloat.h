/*
 * smallfloat.h: conversions between float and the narrow formats: IEEE half, bfloat16, fp8 e4m3 and e5m2.
 *
 * Narrowing rounds to nearest, ties to even, once. Half and bfloat16 overflow to infinity; both fp8 formats saturate to
 * their largest finite value, as the conversions of CUDA's fp8 types do; NaN stays NaN.
 */
#ifndef ROLL_COMMON_SMALLFLOAT_H
#define ROLL_COMMON_SMALLFLOAT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t hn_float_bits(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return u;
}

static inline float hn_bits_float(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

/* A narrow format: sign, `exp` exponent bits, `man` mantissa bits. */
struct hn_format {
    int exp;
    int man;
    bool has_inf; /* true: the largest exponent means infinity and NaN; false: only the number of all ones is NaN (e4m3)
                   */
    bool saturate;
};

static inline uint32_t hn_format_max(struct hn_format f)
{
    uint32_t all = (1u << (f.exp + f.man)) - 1;

    return f.has_inf ? ((((1u << f.exp) - 1) << f.man) - 1) : all - 1;
}

static inline uint32_t hn_format_nan(struct hn_format f)
{
    return (1u << (f.exp + f.man)) - 1;
}

/* Encodes without the sign bit; `u` holds the bits of a non-negative float. */
static inline uint32_t hn_encode_magnitude(uint32_t u, struct hn_format f)
{
    const int bias = (1 << (f.exp - 1)) - 1;
    const uint32_t limit = hn_format_max(f);
    uint32_t out;

    if (u > 0x7f800000u) {
        return hn_format_nan(f);
    }
    if (u == 0x7f800000u) {
        return f.saturate ? limit : ((1u << f.exp) - 1) << f.man;
    }
    int exponent = (int)(u >> 23) - 127 + bias;
    uint32_t mantissa = u & 0x7fffffu;
    int drop = 23 - f.man;
    if (exponent <= 0) { /* subnormal in the narrow format: the hidden bit becomes explicit, more bits drop */
        if (exponent < -f.man - 1 || !(u >> 23)) {
            return 0;
        }
        mantissa |= 0x800000u;
        drop += 1 - exponent;
        exponent = 0;
    }
    out = ((uint32_t)exponent << f.man) + (mantissa >> drop);
    uint32_t rest = mantissa & ((1u << drop) - 1), half = 1u << (drop - 1);
    if (rest > half || (rest == half && (out & 1))) {
        out++; /* a carry runs into the exponent, which is the right number */
    }
    if (out > limit) {
        return f.saturate ? limit : limit + 1; /* limit + 1 is infinity where there is one */
    }
    return out;
}

static inline uint32_t hn_encode(float value, struct hn_format f)
{
    uint32_t u = hn_float_bits(value);

    return (u >> 31 << (f.exp + f.man)) | hn_encode_magnitude(u & 0x7fffffffu, f);
}

static inline float hn_decode(uint32_t bits, struct hn_format f)
{
    const int bias = (1 << (f.exp - 1)) - 1;
    uint32_t magnitude = bits & ((1u << (f.exp + f.man)) - 1), sign = (bits >> (f.exp + f.man)) << 31;
    uint32_t exponent = magnitude >> f.man, mantissa = magnitude & ((1u << f.man) - 1);

    if (f.has_inf ? exponent == (1u << f.exp) - 1 : magnitude == hn_format_nan(f)) {
        return hn_bits_float(sign | 0x7f800000u | (f.has_inf ? mantissa << (23 - f.man) : 0x400000u));
    }
    if (exponent == 0) {
        float tiny = (float)mantissa * hn_bits_float((uint32_t)(128 - bias - f.man) << 23);
        return sign ? -tiny : tiny;
    }
    return hn_bits_float(sign | ((exponent + (uint32_t)(127 - bias)) << 23) | (mantissa << (23 - f.man)));
}

static const struct hn_format HN_F16 = {5, 10, true, false}, HN_E4M3 = {4, 3, false, true},
                              HN_E5M2 = {5, 2, true, true};

static inline float hn_f16_get(uint16_t x)
{
    return hn_decode(x, HN_F16);
}

static inline uint16_t hn_f16_put(float f)
{
    return (uint16_t)hn_encode(f, HN_F16);
}

static inline float hn_bf16_get(uint16_t x)
{
    return hn_bits_float((uint32_t)x << 16);
}

static inline uint16_t hn_bf16_put(float f)
{
    uint32_t u = hn_float_bits(f);

    if ((u & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(u >> 16 | 0x40u);
    }
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

static inline float hn_e4m3_get(uint8_t x)
{
    return hn_decode(x, HN_E4M3);
}

static inline uint8_t hn_e4m3_put(float f)
{
    return (uint8_t)hn_encode(f, HN_E4M3);
}

static inline float hn_e5m2_get(uint8_t x)
{
    return hn_decode(x, HN_E5M2);
}

static inline uint8_t hn_e5m2_put(float f)
{
    return (uint8_t)hn_encode(f, HN_E5M2);
}

#endif
