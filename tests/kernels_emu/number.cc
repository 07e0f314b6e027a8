/*
 * number.cc: half and eight-bit floating point. Widening goes by tables, because the matrix units widen every element;
 * narrowing searches or rounds by the format's step, which needs no case for subnormal numbers.
 */
#include "tests/kernels_emu/number.h"

#include <vector>

static float widen(uint32_t x, int exponent_bits, int mantissa_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1, e = (int)(x >> mantissa_bits) & ((1 << exponent_bits) - 1);
    int m = (int)x & ((1 << mantissa_bits) - 1);
    return e == 0 ? std::ldexp((float)m, 1 - bias - mantissa_bits)
                  : std::ldexp((float)(m + (1 << mantissa_bits)), e - bias - mantissa_bits);
}

static float half_by_rule(uint16_t h)
{
    float v = (h & 0x7c00) != 0x7c00 ? widen(h & 0x7fff, 5, 10) : h & 0x3ff ? NAN : INFINITY;
    return h >> 15 ? -v : v;
}

static float fp8_by_rule(uint8_t x, bool is_e4m3)
{
    float v = is_e4m3 ? widen(x & 127, 4, 3) : widen(x & 127, 5, 2);
    if (is_e4m3 && (x & 127) == 127) {
        v = NAN;
    } else if (!is_e4m3 && (x & 127) >= 0x7c) {
        v = x & 3 ? NAN : INFINITY;
    }
    return x >> 7 ? -v : v;
}

float emu_float_of_f16(uint16_t h)
{
    static const std::vector<float> table = [] {
        std::vector<float> t(1 << 16);
        for (uint32_t i = 0; i < t.size(); i++) {
            t[i] = half_by_rule((uint16_t)i);
        }
        return t;
    }();
    return table[h];
}

float emu_float_of_fp8(uint8_t x, bool is_e4m3)
{
    static const std::vector<float> table = [] {
        std::vector<float> t(512);
        for (uint32_t i = 0; i < t.size(); i++) {
            t[i] = fp8_by_rule((uint8_t)i, i < 256);
        }
        return t;
    }();
    return table[x + (is_e4m3 ? 0 : 256)];
}

uint16_t emu_half_of(float f)
{
    uint16_t sign = std::signbit(f) ? 0x8000 : 0;
    double a = std::fabs((double)f);
    if (f != f) {
        return 0x7fff;
    }
    if (a >= 65520) {
        return sign | 0x7c00;
    }
    int exponent = a < 0x1p-14 ? -14 : std::ilogb(a);
    double steps = std::rint(std::ldexp(a, 10 - exponent)); /* of the last place; to even */
    return (uint16_t)(sign | ((exponent + 14) * 1024 + (int)steps));
}

uint8_t emu_fp8_of(float f, bool is_e4m3)
{
    uint8_t sign = std::signbit(f) ? 0x80 : 0, largest = is_e4m3 ? 0x7e : 0x7b;
    int mantissa_bits = is_e4m3 ? 3 : 2, least = is_e4m3 ? -6 : -14;
    double a = std::fabs((double)f);
    if (f != f) {
        return 0x7f;
    }
    if (a >= emu_float_of_fp8(largest, is_e4m3)) {
        return sign | largest;
    }
    int exponent = a < std::ldexp(1.0, least) ? least : std::ilogb(a);
    double steps = std::rint(std::ldexp(a, mantissa_bits - exponent));
    return (uint8_t)(sign | ((exponent - least) * (1 << mantissa_bits) + (int)steps));
}
