/*
 * host_rows_body.h: the arithmetic of host_rows.h, compiled once per instruction set.
 *
 * The including file defines ROWS_NAME, its table. Vectors are the compiler's own (8 floats), so that the same text
 * gives SSE2, NEON and AVX2; only half precision has an instruction of its own. A row is walked in blocks of 32
 * elements that stay in registers while all rows are added, so that the output is written once and never read: adding
 * row after row was measured and is slower by a third.
 */
#include "hostnccl/nccl/smallfloat.h"
#include "moe_core/host_rows.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

typedef float v8f __attribute__((vector_size(32)));
typedef uint32_t v8u __attribute__((vector_size(32)));

enum { LANES = 8, PAIR = 2 * LANES, BLOCK = 2 * PAIR };

/* 16 elements of a row. Where they lie in the pair is the type's affair: BF16 has the even ones in a and the odd ones
 * in b, which takes no shuffle either way. */
struct pair {
    v8f a, b;
};

/* Stores 32 bytes; streaming needs `to` at a multiple of 16. */
static inline void store32(void *to, const void *from, bool stream)
{
#if defined(__SSE2__)
    if (stream) {
        __m128i low = _mm_loadu_si128(from), high = _mm_loadu_si128((const __m128i *)from + 1);
        _mm_stream_si128(to, low);
        _mm_stream_si128((__m128i *)to + 1, high);
        return;
    }
#else
    (void)stream;
#endif
    memcpy(to, from, 32);
}

static inline void get_f32(const void *from, int64_t at, struct pair *out)
{
    memcpy(&out->a, (const float *)from + at, sizeof out->a);
    memcpy(&out->b, (const float *)from + at + LANES, sizeof out->b);
}

static inline void put_f32(const struct pair *x, void *to, int64_t at, bool stream)
{
    store32((float *)to + at, &x->a, stream);
    store32((float *)to + at + LANES, &x->b, stream);
}

static inline float get_one_f32(const void *from, int64_t at)
{
    return ((const float *)from)[at];
}

static inline void put_one_f32(float x, void *to, int64_t at)
{
    ((float *)to)[at] = x;
}

static inline void get_bf16(const void *from, int64_t at, struct pair *out)
{
    v8u both, even, odd;
    memcpy(&both, (const uint16_t *)from + at, sizeof both);
    even = both << 16;
    odd = both & 0xffff0000u;
    memcpy(&out->a, &even, sizeof even);
    memcpy(&out->b, &odd, sizeof odd);
}

/* Whether a NaN may be among them. */
static inline bool may_be_nan(const struct pair *x)
{
#if defined(__AVX2__)
    __m256 a, b;
    memcpy(&a, &x->a, sizeof a);
    memcpy(&b, &x->b, sizeof b);
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)) != 0;
#else
    (void)x;
    return true;
#endif
}

/* *u rounded to its upper halves, by the bits; where x is not a number it stays one. */
static inline void round_bf16(const v8f *x, bool nans, v8u *out)
{
    v8u u;
    memcpy(&u, x, sizeof u);
    *out = u + 0x7fffu + (u >> 16 & 1u);
    if (nans) {
        v8u nan = (v8u)(*x != *x);
        *out = (nan & (u | 0x400000u)) | (~nan & *out);
    }
}

static inline void put_bf16(const struct pair *x, void *to, int64_t at, bool stream)
{
    v8u even, odd;
    bool nans = may_be_nan(x);
    round_bf16(&x->a, nans, &even);
    round_bf16(&x->b, nans, &odd);
    even = even >> 16 | (odd & 0xffff0000u);
    store32((uint16_t *)to + at, &even, stream);
}

static inline float get_one_bf16(const void *from, int64_t at)
{
    return hn_bf16_get(((const uint16_t *)from)[at]);
}

static inline void put_one_bf16(float x, void *to, int64_t at)
{
    ((uint16_t *)to)[at] = hn_bf16_put(x);
}

static inline void get_f16(const void *from, int64_t at, struct pair *out)
{
    const uint16_t *h = (const uint16_t *)from + at;
#if defined(__F16C__)
    __m256 a = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)h));
    __m256 b = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)h + 1));
    memcpy(&out->a, &a, sizeof a);
    memcpy(&out->b, &b, sizeof b);
#else
    for (int i = 0; i < LANES; i++) {
        out->a[i] = hn_f16_get(h[i]);
        out->b[i] = hn_f16_get(h[i + LANES]);
    }
#endif
}

static inline void narrow_f16(const v8f *x, uint16_t *h)
{
#if defined(__F16C__)
    __m256 wide;
    memcpy(&wide, x, sizeof wide);
    if (_mm256_movemask_ps(_mm256_cmp_ps(wide, wide, _CMP_UNORD_Q)) == 0) {
        _mm_storeu_si128((__m128i *)h, _mm256_cvtps_ph(wide, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
        return;
    }
#endif
    for (int i = 0; i < LANES; i++) {
        h[i] = hn_f16_put((*x)[i]); /* without the instruction, and for the bits of a NaN */
    }
}

static inline void put_f16(const struct pair *x, void *to, int64_t at, bool stream)
{
    uint16_t h[PAIR];
    narrow_f16(&x->a, h);
    narrow_f16(&x->b, h + LANES);
    store32((uint16_t *)to + at, h, stream);
}

static inline float get_one_f16(const void *from, int64_t at)
{
    return hn_f16_get(((const uint16_t *)from)[at]);
}

static inline void put_one_f16(float x, void *to, int64_t at)
{
    ((uint16_t *)to)[at] = hn_f16_put(x);
}

enum { moe_size_f32 = 4, moe_size_bf16 = 2, moe_size_f16 = 2, IN_FLIGHT = 4096, LINE_BYTES = 64 };

/* How many elements ahead of the sum each of n rows is fetched. The processor follows a row by itself once it has seen
 * a few lines of it, and no further than a page; rows are short and begin anywhere, so they are asked for: what is ahead
 * in all rows together stays well inside the first cache. */
static inline int64_t distance(int64_t n, int64_t size)
{
    return n > 0 ? (IN_FLIGHT / (n * size) + BLOCK) / BLOCK * BLOCK : BLOCK;
}

/* Asks for `bytes` of a row from byte `at` on. */
static inline void fetch(const void *row, int64_t at, int64_t bytes)
{
    for (int64_t line = 0; line < bytes; line += LINE_BYTES) {
        __builtin_prefetch((const char *)row + at + line);
    }
}

/* The two functions for one type. Pairs are written out and not looped: a compiler that does not unroll would keep them
 * in memory. */
#define ROWS_OF(type)                                                                                                  \
    static void sum_##type(const void *const *from, const float *p, int64_t n, const void *const *next, int64_t width, \
                           void *to, bool stream)                                                                      \
    {                                                                                                                  \
        const int64_t size = (int64_t)moe_size_##type, ahead = distance(n, size);                                      \
        int64_t h = 0;                                                                                                 \
        stream = stream && (uintptr_t)to % 16 == 0;                                                                    \
        for (; h + BLOCK <= width; h += BLOCK) {                                                                       \
            struct pair s0 = {{0}, {0}}, s1 = s0, x, y;                                                                \
            const bool here = next == NULL || h + ahead < width;                                                       \
            const void *const *soon = here ? from : next;                                                              \
            const int64_t at = (h + ahead < width ? h + ahead : here ? h : h + ahead - width) * size;                  \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                fetch(soon[i], at, BLOCK *size);                                                                       \
                get_##type(from[i], h, &x);                                                                            \
                get_##type(from[i], h + PAIR, &y);                                                                     \
                if (p != NULL) {                                                                                       \
                    x.a *= p[i];                                                                                       \
                    x.b *= p[i];                                                                                       \
                    y.a *= p[i];                                                                                       \
                    y.b *= p[i];                                                                                       \
                }                                                                                                      \
                s0.a += x.a;                                                                                           \
                s0.b += x.b;                                                                                           \
                s1.a += y.a;                                                                                           \
                s1.b += y.b;                                                                                           \
            }                                                                                                          \
            put_##type(&s0, to, h, stream);                                                                            \
            put_##type(&s1, to, h + PAIR, stream);                                                                     \
        }                                                                                                              \
        for (; h < width; h++) {                                                                                       \
            float sum = 0.0f;                                                                                          \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                sum += (p != NULL ? p[i] : 1.0f) * get_one_##type(from[i], h);                                         \
            }                                                                                                          \
            put_one_##type(sum, to, h);                                                                                \
        }                                                                                                              \
    }                                                                                                                  \
    static float scale_##type(const void *dy, const void *row, float p, int64_t width, void *to, bool stream)          \
    {                                                                                                                  \
        struct pair s0 = {{0}, {0}}, s1 = s0, x, d;                                                                    \
        int64_t h = 0;                                                                                                 \
        stream = stream && (uintptr_t)to % 16 == 0;                                                                    \
        for (; h + BLOCK <= width; h += BLOCK) {                                                                       \
            get_##type(dy, h, &d);                                                                                     \
            get_##type(row, h, &x);                                                                                    \
            s0.a += d.a * x.a;                                                                                         \
            s0.b += d.b * x.b;                                                                                         \
            d.a *= p;                                                                                                  \
            d.b *= p;                                                                                                  \
            put_##type(&d, to, h, stream);                                                                             \
            get_##type(dy, h + PAIR, &d);                                                                              \
            get_##type(row, h + PAIR, &x);                                                                             \
            s1.a += d.a * x.a;                                                                                         \
            s1.b += d.b * x.b;                                                                                         \
            d.a *= p;                                                                                                  \
            d.b *= p;                                                                                                  \
            put_##type(&d, to, h + PAIR, stream);                                                                      \
        }                                                                                                              \
        v8f total = (s0.a + s0.b) + (s1.a + s1.b);                                                                     \
        float dot = 0.0f;                                                                                              \
        for (int i = 0; i < LANES; i++) {                                                                              \
            dot += total[i];                                                                                           \
        }                                                                                                              \
        for (; h < width; h++) {                                                                                       \
            float one = get_one_##type(dy, h);                                                                         \
            dot += one * get_one_##type(row, h);                                                                       \
            put_one_##type(p *one, to, h);                                                                             \
        }                                                                                                              \
        return dot;                                                                                                    \
    }

ROWS_OF(f32)
ROWS_OF(bf16)
ROWS_OF(f16)

const struct moe_host_rows ROWS_TABLE = {
    .name = ROWS_NAME,
    .sum = {[MOE_F32] = sum_f32, [MOE_BF16] = sum_bf16, [MOE_F16] = sum_f16},
    .scale = {[MOE_F32] = scale_f32, [MOE_BF16] = scale_bf16, [MOE_F16] = scale_f16},
};
