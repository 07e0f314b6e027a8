/*
 * host_rows_body.h: the arithmetic of host_rows.h, compiled once per instruction set.
 *
 * The including file defines ROWS_NAME, its table. Vectors are the compiler's own (8 floats), so that the same text
 * gives SSE2, NEON and AVX2; only half precision has an instruction of its own. A row is walked in blocks of 64
 * elements that stay in registers while all rows are added, so that the output is written once and never read: adding
 * row after row was measured and is slower by a third. These loops are bound by memory only as long as the arithmetic
 * fits into the time of waiting. A line of BF16 costs as many instructions as two lines of float, so everything is
 * inlined, loops are separate for sums with and without weights and for both ways to store, and NaNs are looked for
 * only where a weight is one.
 */
#include "common/smallfloat.h"
#include "moe_core/host/host_rows.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

typedef float v8f __attribute__((vector_size(32)));
typedef uint32_t v8u __attribute__((vector_size(32)));

enum { LANES = 8, PAIR = 2 * LANES, TWO = 2 * PAIR, BLOCK = 2 * TWO };
#if defined(__AVX2__)
enum { STREAM_ALIGN = 32 };
#else
enum { STREAM_ALIGN = 16 };
#endif

/* A function call would send the block's registers through memory, at half the speed. */
#define INLINE static inline __attribute__((always_inline))

/* 16 elements of a row. Where they lie in the pair is the type's affair: BF16 has the even ones in a and the odd ones
 * in b, which takes no shuffle either way. */
struct pair {
    v8f a, b;
};

/* Stores 32 bytes; streaming needs `to` at a multiple of STREAM_ALIGN. */
INLINE void store32(void *to, const void *from, bool stream)
{
#if defined(__SSE2__)
    if (stream) {
#if defined(__AVX2__)
        _mm256_stream_si256(to, _mm256_loadu_si256(from));
#else
        __m128i low = _mm_loadu_si128(from), high = _mm_loadu_si128((const __m128i *)from + 1);
        _mm_stream_si128(to, low);
        _mm_stream_si128((__m128i *)to + 1, high);
#endif
        return;
    }
#else
    (void)stream;
#endif
    memcpy(to, from, 32);
}

INLINE void get_f32(const void *from, int64_t at, struct pair *out)
{
    memcpy(&out->a, (const float *)from + at, sizeof(out->a));
    memcpy(&out->b, (const float *)from + at + LANES, sizeof(out->b));
}

INLINE void put_f32(const struct pair *x, const struct pair *y, void *to, int64_t at, bool stream, bool nan)
{
    (void)nan;
    store32((float *)to + at, &x->a, stream);
    store32((float *)to + at + LANES, &x->b, stream);
    store32((float *)to + at + PAIR, &y->a, stream);
    store32((float *)to + at + PAIR + LANES, &y->b, stream);
}

INLINE float get_one_f32(const void *from, int64_t at)
{
    return ((const float *)from)[at];
}

INLINE void put_one_f32(float x, void *to, int64_t at)
{
    ((float *)to)[at] = x;
}

INLINE void get_bf16(const void *from, int64_t at, struct pair *out)
{
    v8u both, even, odd;
    memcpy(&both, (const uint16_t *)from + at, sizeof(both));
    even = both << 16;
    odd = both & 0xffff0000u;
    memcpy(&out->a, &even, sizeof(even));
    memcpy(&out->b, &odd, sizeof(odd));
}

/* Whether there may be a NaN among the numbers. */
INLINE bool may_be_nan(const struct pair *x, const struct pair *y)
{
#if defined(__AVX2__)
    __m256 a, b, c, d;
    memcpy(&a, &x->a, sizeof(a));
    memcpy(&b, &x->b, sizeof(b));
    memcpy(&c, &y->a, sizeof(c));
    memcpy(&d, &y->b, sizeof(d));
    return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q), _mm256_cmp_ps(c, d, _CMP_UNORD_Q))) != 0;
#else
    (void)x;
    (void)y;
    return true;
#endif
}

/* *x rounded to its upper halves, by the bits, unless it is a NaN. */
INLINE void round_bf16(const v8f *x, v8u *out)
{
    v8u u;
    memcpy(&u, x, sizeof(u));
    *out = u + 0x7fffu + (u >> 16 & 1u);
}

/* Where x is NaN, makes the rounded number NaN too. */
INLINE void keep_nan(const v8f *x, v8u *rounded)
{
    v8u u, nan = (v8u)(*x != *x);
    memcpy(&u, x, sizeof(u));
    *rounded = (nan & (u | 0x400000u)) | (~nan & *rounded);
}

/* Stores the upper halves of both. */
INLINE void weave(const v8u *even, const v8u *odd, void *to, bool stream)
{
#if defined(__AVX2__)
    v8u both = (v8u)_mm256_blend_epi16((__m256i)(*even >> 16), (__m256i)*odd, 0xaa);
#else
    v8u both = *even >> 16 | (*odd & 0xffff0000u);
#endif
    store32(to, &both, stream);
}

/*
 * nan: there may be NaNs with bits in their lower half, which rounding would carry into the exponent. Only a factor can
 * bring them: numbers of this type have no lower half, and the processor's own NaNs have none either.
 */
INLINE void put_bf16(const struct pair *x, const struct pair *y, void *to, int64_t at, bool stream, bool nan)
{
    v8u a, b, c, d;
    round_bf16(&x->a, &a);
    round_bf16(&x->b, &b);
    round_bf16(&y->a, &c);
    round_bf16(&y->b, &d);
    if (nan && may_be_nan(x, y)) {
        keep_nan(&x->a, &a);
        keep_nan(&x->b, &b);
        keep_nan(&y->a, &c);
        keep_nan(&y->b, &d);
    }
    weave(&a, &b, (uint16_t *)to + at, stream);
    weave(&c, &d, (uint16_t *)to + at + PAIR, stream);
}

INLINE float get_one_bf16(const void *from, int64_t at)
{
    return hn_bf16_get(((const uint16_t *)from)[at]);
}

INLINE void put_one_bf16(float x, void *to, int64_t at)
{
    ((uint16_t *)to)[at] = hn_bf16_put(x);
}

INLINE void get_f16(const void *from, int64_t at, struct pair *out)
{
    const uint16_t *h = (const uint16_t *)from + at;
#if defined(__F16C__)
    __m256 a = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)h));
    __m256 b = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)h + 1));
    memcpy(&out->a, &a, sizeof(a));
    memcpy(&out->b, &b, sizeof(b));
#else
    for (int i = 0; i < LANES; i++) {
        out->a[i] = hn_f16_get(h[i]);
        out->b[i] = hn_f16_get(h[i + LANES]);
    }
#endif
}

INLINE void put_f16(const struct pair *x, const struct pair *y, void *to, int64_t at, bool stream, bool nan)
{
    (void)nan;
    uint16_t h[2 * PAIR];
#if defined(__F16C__) && defined(__AVX2__)
    if (!may_be_nan(x, y)) {
        const v8f *from[] = {&x->a, &x->b, &y->a, &y->b};
        for (int i = 0; i < 4; i++) {
            _mm_storeu_si128((__m128i *)(h + i * LANES),
                             _mm256_cvtps_ph((__m256)*from[i], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
        }
    } else
#endif
    {
        for (int i = 0; i < LANES; i++) { /* without the instruction, and for the bits of a NaN */
            h[i] = hn_f16_put(x->a[i]);
            h[i + LANES] = hn_f16_put(x->b[i]);
            h[i + PAIR] = hn_f16_put(y->a[i]);
            h[i + PAIR + LANES] = hn_f16_put(y->b[i]);
        }
    }
    store32((uint16_t *)to + at, h, stream);
    store32((uint16_t *)to + at + PAIR, h + PAIR, stream);
}

INLINE float get_one_f16(const void *from, int64_t at)
{
    return hn_f16_get(((const uint16_t *)from)[at]);
}

INLINE void put_one_f16(float x, void *to, int64_t at)
{
    ((uint16_t *)to)[at] = hn_f16_put(x);
}

enum { moe_size_f32 = 4, moe_size_bf16 = 2, moe_size_f16 = 2, IN_FLIGHT = 2048, LINE_BYTES = 64 };

/*
 * How many elements ahead of the sum each of n rows is fetched. The processor fetches ahead by itself once it has seen
 * a few lines of a row, and never beyond a page; rows are short and begin anywhere, so these loops ask for the lines.
 * All lines fetched ahead together stay well inside the first cache, where rows of 2^i bytes all compete for the same
 * few places: 2 KiB was measured as no worse than 4 to 16 KiB, into the first cache or the second. Every line must be
 * asked for: with every second one, and the processor's help for its neighbour, short rows took half as long again.
 */
INLINE int64_t distance(int64_t n, int64_t size, int64_t width)
{
    int64_t ahead = n > 0 ? (IN_FLIGHT / (n * size) + BLOCK) / BLOCK * BLOCK : BLOCK;
    return ahead < width ? ahead : width;
}

/* Fetches `bytes` bytes of a row ahead, from byte `at` on. */
INLINE void fetch(const void *row, int64_t at, int64_t bytes)
{
    for (int64_t line = 0; line < bytes; line += LINE_BYTES) {
        __builtin_prefetch((const char *)row + at + line);
    }
}

struct block {
    struct pair q[4];
};

INLINE void multiply(struct pair *x, float p)
{
    x->a *= p;
    x->b *= p;
}

INLINE void add(const struct pair *x, struct pair *to)
{
    to->a += x->a;
    to->b += x->b;
}

INLINE void add_product(const struct pair *x, const struct pair *y, struct pair *to)
{
    to->a += x->a * y->a;
    to->b += x->b * y->b;
}

INLINE bool any_nan(const float *p, int64_t n)
{
    bool nan = false;
    for (int64_t i = 0; i < n; i++) {
        nan = nan || p[i] != p[i];
    }
    return nan;
}

/* The functions for one type. Pairs are written out and not looped: a compiler that does not unroll would keep them in
 * memory. */
#define ROWS_OF(type)                                                                                                  \
    /* One block of the sum, at element h; asks for a block of each of `soon`, at byte `at`. */                        \
    INLINE void block_##type(const void *const *from, const float *p, int64_t n, const void *const *soon, int64_t at,  \
                             int64_t h, struct block *out)                                                             \
    {                                                                                                                  \
        struct block s = {{{{0}, {0}}, {{0}, {0}}, {{0}, {0}}, {{0}, {0}}}}, x;                                        \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            fetch(soon[i], at, (int64_t)BLOCK *moe_size_##type);                                                       \
            get_##type(from[i], h, &x.q[0]);                                                                           \
            get_##type(from[i], h + PAIR, &x.q[1]);                                                                    \
            get_##type(from[i], h + TWO, &x.q[2]);                                                                     \
            get_##type(from[i], h + TWO + PAIR, &x.q[3]);                                                              \
            if (p != NULL) {                                                                                           \
                multiply(&x.q[0], p[i]);                                                                               \
                multiply(&x.q[1], p[i]);                                                                               \
                multiply(&x.q[2], p[i]);                                                                               \
                multiply(&x.q[3], p[i]);                                                                               \
            }                                                                                                          \
            add(&x.q[0], &s.q[0]);                                                                                     \
            add(&x.q[1], &s.q[1]);                                                                                     \
            add(&x.q[2], &s.q[2]);                                                                                     \
            add(&x.q[3], &s.q[3]);                                                                                     \
        }                                                                                                              \
        *out = s;                                                                                                      \
    }                                                                                                                  \
    INLINE void sum_row_##type(const void *const *from, const float *p, int64_t n, const void *const *next,            \
                               int64_t width, void *to, bool stream, bool nan)                                         \
    {                                                                                                                  \
        const int64_t size = (int64_t)moe_size_##type, ahead = distance(n, size, width);                               \
        int64_t h = 0;                                                                                                 \
        struct block s;                                                                                                \
        for (; h + BLOCK <= width; h += BLOCK) {                                                                       \
            const bool here = next == NULL || h + ahead < width;                                                       \
            const int64_t at = (h + ahead < width ? h + ahead : here ? h : h + ahead - width) * size;                  \
            block_##type(from, p, n, here ? from : next, at, h, &s);                                                   \
            put_##type(&s.q[0], &s.q[1], to, h, stream, nan);                                                          \
            put_##type(&s.q[2], &s.q[3], to, h + TWO, stream, nan);                                                    \
        }                                                                                                              \
        for (; h < width; h++) {                                                                                       \
            float sum = 0.0f;                                                                                          \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                sum += (p != NULL ? p[i] : 1.0f) * get_one_##type(from[i], h);                                         \
            }                                                                                                          \
            put_one_##type(sum, to, h);                                                                                \
        }                                                                                                              \
    }                                                                                                                  \
    static void sum_##type(const void *const *from, const float *p, int64_t n, const void *const *next, int64_t width, \
                           void *to, bool stream)                                                                      \
    {                                                                                                                  \
        const bool past = stream && (uintptr_t)to % STREAM_ALIGN == 0;                                                 \
        if (p == NULL) {                                                                                               \
            if (past) {                                                                                                \
                sum_row_##type(from, NULL, n, next, width, to, true, false);                                           \
            } else {                                                                                                   \
                sum_row_##type(from, NULL, n, next, width, to, false, false);                                          \
            }                                                                                                          \
        } else if (any_nan(p, n)) {                                                                                    \
            sum_row_##type(from, p, n, next, width, to, false, true);                                                  \
        } else if (past) {                                                                                             \
            sum_row_##type(from, p, n, next, width, to, true, false);                                                  \
        } else {                                                                                                       \
            sum_row_##type(from, p, n, next, width, to, false, false);                                                 \
        }                                                                                                              \
    }                                                                                                                  \
    INLINE float scale_row_##type(const void *dy, const void *row, const void *next, float p, int64_t width, void *to, \
                                  bool stream, bool nan)                                                               \
    {                                                                                                                  \
        const int64_t size = (int64_t)moe_size_##type, ahead = distance(1, size, width);                               \
        struct pair s0 = {{0}, {0}}, s1 = s0, x, y, d, e;                                                              \
        int64_t h = 0;                                                                                                 \
        for (; h + TWO <= width; h += TWO) {                                                                           \
            const bool here = next == NULL || h + ahead < width;                                                       \
            const int64_t at = (h + ahead < width ? h + ahead : here ? h : h + ahead - width) * size;                  \
            fetch(here ? row : next, at, TWO *size);                                                                   \
            get_##type(dy, h, &d);                                                                                     \
            get_##type(dy, h + PAIR, &e);                                                                              \
            get_##type(row, h, &x);                                                                                    \
            get_##type(row, h + PAIR, &y);                                                                             \
            add_product(&d, &x, &s0);                                                                                  \
            add_product(&e, &y, &s1);                                                                                  \
            multiply(&d, p);                                                                                           \
            multiply(&e, p);                                                                                           \
            put_##type(&d, &e, to, h, stream, nan);                                                                    \
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
    }                                                                                                                  \
    static float scale_##type(const void *dy, const void *row, const void *next, float p, int64_t width, void *to,     \
                              bool stream)                                                                             \
    {                                                                                                                  \
        stream = stream && (uintptr_t)to % STREAM_ALIGN == 0;                                                          \
        return any_nan(&p, 1) ? scale_row_##type(dy, row, next, p, width, to, stream, true)                            \
                              : scale_row_##type(dy, row, next, p, width, to, stream, false);                          \
    }

ROWS_OF(f32)
ROWS_OF(bf16)
ROWS_OF(f16)

const struct moe_host_rows ROWS_TABLE = {
    .name = ROWS_NAME,
    .sum = {[MOE_F32] = sum_f32, [MOE_BF16] = sum_bf16, [MOE_F16] = sum_f16},
    .scale = {[MOE_F32] = scale_f32, [MOE_BF16] = scale_bf16, [MOE_F16] = scale_f16},
};
