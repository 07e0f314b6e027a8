/*
 * number.h: numbers as a GPU computes with them, where C++ has no operator for it: shifts that may be too wide, the
 * directed roundings, and the types of 16 and 8 bits.
 *
 * Inline, because translated code consists of them. The approximate instructions (ex2.approx, rcp.approx) are computed
 * exactly: how far a GPU's are off is not documented bit by bit, and the tests' tolerances must allow for it anyway.
 */
#ifndef ROLL_TESTS_KERNELS_EMU_NUMBER_H
#define ROLL_TESTS_KERNELS_EMU_NUMBER_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

template <class To, class From> static inline To emu_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "the same bits in another type");
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
}

/* integers */

template <class T> static inline T emu_shl(T a, uint32_t n)
{
    return n >= sizeof(T) * 8 ? T(0) : T(a << n);
}
template <class T> static inline T emu_shr(T a, uint32_t n)
{
    return n >= sizeof(T) * 8 ? (a < 0 ? T(-1) : T(0)) : T(a >> n);
}
template <class T> static inline T emu_bfi(T a, T b, uint32_t at, uint32_t bits)
{
    at &= 255, bits &= 255;
    T mask = bits >= sizeof(T) * 8 ? T(~T(0)) : T((T(1) << bits) - 1);
    return T((b & ~emu_shl(mask, at)) | emu_shl(T(a & mask), at));
}
/* Unsigned types only, as the kernels use it. */
template <class T> static inline T emu_bfe(T a, uint32_t at, uint32_t bits)
{
    static_assert(std::is_unsigned<T>::value, "signed fields are not modelled");
    at &= 255, bits &= 255;
    return bits >= sizeof(T) * 8 ? emu_shr(a, at) : T(emu_shr(a, at) & ((T(1) << bits) - 1));
}
static inline uint64_t emu_mul_hi(uint64_t a, uint64_t b)
{
    return (uint64_t)((unsigned __int128)a * b >> 64);
}
static inline int64_t emu_mul_hi(int64_t a, int64_t b)
{
    return (int64_t)((__int128)a * b >> 64);
}
static inline uint32_t emu_mul_hi(uint32_t a, uint32_t b)
{
    return (uint32_t)((uint64_t)a * b >> 32);
}
static inline int32_t emu_mul_hi(int32_t a, int32_t b)
{
    return (int32_t)((int64_t)a * b >> 32);
}
/* Four of the eight bytes of b and a, a's lowest first: a nibble of `which` each, whose top bit asks for the byte's
 * sign instead. */
static inline uint32_t emu_prmt(uint32_t a, uint32_t b, uint32_t which)
{
    uint64_t both = (uint64_t)b << 32 | a;
    uint32_t d = 0;
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t nibble = which >> 4 * i & 15, byte = (uint32_t)(both >> 8 * (nibble & 7)) & 0xff;
        d |= (nibble & 8 ? (byte & 0x80 ? 0xffu : 0u) : byte) << 8 * i;
    }
    return d;
}
/* Division by zero is not defined in PTX; these are what GPUs give. */
template <class T> static inline T emu_div(T a, T b)
{
    if constexpr (std::is_floating_point<T>::value) {
        return a / b;
    } else {
        return b == 0                                   ? T(~T(0))
               : std::is_signed<T>::value && b == T(-1) ? T(0 - std::make_unsigned_t<T>(a))
                                                        : T(a / b);
    }
}
template <class T> static inline T emu_rem(T a, T b)
{
    return b == 0 ? a : std::is_signed<T>::value && b == T(-1) ? T(0) : T(a % b);
}

/* floating point and both */

template <class T> static inline T emu_min(T a, T b)
{
    if constexpr (std::is_floating_point<T>::value) {
        return std::fmin(a, b);
    } else {
        return a < b ? a : b;
    }
}
template <class T> static inline T emu_max(T a, T b)
{
    if constexpr (std::is_floating_point<T>::value) {
        return std::fmax(a, b);
    } else {
        return a > b ? a : b;
    }
}
template <class T> static inline T emu_abs(T a)
{
    if constexpr (std::is_floating_point<T>::value) {
        return std::fabs(a);
    } else {
        return a < 0 ? T(-a) : a;
    }
}
template <class T> static inline bool emu_unordered(T a, T b)
{
    return a != a || b != b;
}
static inline float emu_fma(float a, float b, float c)
{
    return std::fma(a, b, c);
}
static inline double emu_fma(double a, double b, double c)
{
    return std::fma(a, b, c);
}
/* Towards minus infinity. The sum in double may itself be rounded where c is very much larger than a b: one unit. */
static inline float emu_fma_rm(float a, float b, float c)
{
    double exact = (double)a * b + c;
    float f = (float)exact;
    return (double)f > exact ? std::nextafter(f, -INFINITY) : f;
}
static inline float emu_add_rz(float a, float b)
{
    double exact = (double)a + b;
    float f = (float)exact;
    return std::fabs((double)f) > std::fabs(exact) ? std::nextafter(f, 0.0f) : f;
}
static inline float emu_saturated(float a)
{
    return !(a > 0) ? 0.0f : a > 1 ? 1.0f : a;
}
template <class T> static inline T emu_ex2(T a)
{
    T r = std::exp2(a);
    return std::fabs(r) < std::numeric_limits<T>::min() ? T(0) : r; /* .ftz */
}
template <class T> static inline T emu_lg2(T a)
{
    return std::log2(a);
}
template <class T> static inline T emu_sqrt(T a)
{
    return std::sqrt(a);
}
template <class T> static inline T emu_rcp(T a)
{
    return 1 / a;
}
static inline float emu_rcp_approx(float a)
{
    return 1 / a;
}
/* Twenty bits or so, as documented: the compiler's code refines it. */
static inline double emu_rcp_approx(double a)
{
    return emu_bits<double>(emu_bits<uint64_t>(1 / a) & ~UINT64_C(0xffffffff));
}
template <class I, class F> static inline I emu_whole(F f, bool towards_zero)
{
    if (f != f) {
        return 0;
    }
    F t = towards_zero ? std::trunc(f) : std::rint(f);
    return t <= (F)std::numeric_limits<I>::min()   ? std::numeric_limits<I>::min()
           : t >= (F)std::numeric_limits<I>::max() ? std::numeric_limits<I>::max()
                                                   : (I)t;
}

/* narrow types */

static inline float emu_float_of_bf16(uint16_t h)
{
    return emu_bits<float>((uint32_t)h << 16);
}
static inline uint16_t emu_bf16_of(float f)
{
    uint32_t u = emu_bits<uint32_t>(f);
    return f != f ? 0x7fff : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
float emu_float_of_f16(uint16_t h);
uint16_t emu_half_of(float f);
/* Eight bits: e4m3 (without infinities) or e5m2. To the nearest, ties to even, and to the largest number beyond it. */
float emu_float_of_fp8(uint8_t x, bool is_e4m3);
uint8_t emu_fp8_of(float f, bool is_e4m3);
static inline uint16_t emu_fp8_of(float high, float low, bool is_e4m3)
{
    return (uint16_t)(emu_fp8_of(high, is_e4m3) << 8 | emu_fp8_of(low, is_e4m3));
}
static inline uint32_t emu_half2_of_fp8(uint16_t pair, bool is_e4m3)
{
    uint32_t low = emu_half_of(emu_float_of_fp8(pair & 0xff, is_e4m3));
    return low | (uint32_t)emu_half_of(emu_float_of_fp8((uint8_t)(pair >> 8), is_e4m3)) << 16;
}

#endif
