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
typedef uint16_t v8h __attribute__((vector_size(16)));

enum { LANES = 8, BLOCK = 4 * LANES };

/* Written out and not looped: a compiler that does not unroll would keep the sums in memory. */
#define EACH(X) X(0) X(1) X(2) X(3)

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

static inline void get_f32(const void *from, int64_t at, v8f *out)
{
    memcpy(out, (const float *)from + at, sizeof *out);
}

/* The put_ functions store two vectors: 16 elements. */
static inline void put_f32(const v8f *a, const v8f *b, void *to, int64_t at, bool stream)
{
    store32((float *)to + at, a, stream);
    store32((float *)to + at + LANES, b, stream);
}

static inline float get_one_f32(const void *from, int64_t at)
{
    return ((const float *)from)[at];
}

static inline void put_one_f32(float x, void *to, int64_t at)
{
    ((float *)to)[at] = x;
}

static inline void get_bf16(const void *from, int64_t at, v8f *out)
{
    const uint16_t *h = (const uint16_t *)from + at;
#if defined(__AVX2__)
    __m256i w = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)h)), 16);
#else
    v8h narrow;
    memcpy(&narrow, h, sizeof narrow);
    v8u w = __builtin_convertvector(narrow, v8u) << 16;
#endif
    memcpy(out, &w, sizeof *out);
}

/* The bits of 8 rounded numbers, each in the low half of its lane. */
static inline void round_bf16(const v8f *x, v8u *out)
{
    v8u u;
    memcpy(&u, x, sizeof u);
    v8u nan = (v8u)(*x != *x);
    *out = (nan & (u >> 16 | 0x40u)) | (~nan & ((u + 0x7fffu + (u >> 16 & 1u)) >> 16));
}

static inline void put_bf16(const v8f *a, const v8f *b, void *to, int64_t at, bool stream)
{
    v8u low, high;
    round_bf16(a, &low);
    round_bf16(b, &high);
#if defined(__AVX2__)
    __m256i l, h;
    memcpy(&l, &low, sizeof l);
    memcpy(&h, &high, sizeof h);
    h = _mm256_permute4x64_epi64(_mm256_packus_epi32(l, h), 0xd8); /* packing works within halves */
#else
    v8h h[2] = {__builtin_convertvector(low, v8h), __builtin_convertvector(high, v8h)};
#endif
    store32((uint16_t *)to + at, &h, stream);
}

static inline float get_one_bf16(const void *from, int64_t at)
{
    return hn_bf16_get(((const uint16_t *)from)[at]);
}

static inline void put_one_bf16(float x, void *to, int64_t at)
{
    ((uint16_t *)to)[at] = hn_bf16_put(x);
}

static inline void get_f16(const void *from, int64_t at, v8f *out)
{
    const uint16_t *h = (const uint16_t *)from + at;
#if defined(__F16C__)
    __m256 x = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)h));
    memcpy(out, &x, sizeof x);
#else
    for (int i = 0; i < LANES; i++) {
        (*out)[i] = hn_f16_get(h[i]);
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

static inline void put_f16(const v8f *a, const v8f *b, void *to, int64_t at, bool stream)
{
    uint16_t h[2 * LANES];
    narrow_f16(a, h);
    narrow_f16(b, h + LANES);
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

/* The two functions for one type, and their steps for one vector of a block. */
#define ZERO(v)      v8f s##v = {0};
#define ADD_F32(v)   ADD(f32, v)
#define ADD_BF16(v)  ADD(bf16, v)
#define ADD_F16(v)   ADD(f16, v)
#define ADD(type, v) (get_##type(from[i], h + v * LANES, &x), s##v += p[i] * x);
#define DOT_F32(v)   DOT(f32, v)
#define DOT_BF16(v)  DOT(bf16, v)
#define DOT_F16(v)   DOT(f16, v)
#define DOT(type, v)                                                                                                   \
    v8f d##v;                                                                                                          \
    get_##type(dy, h + v * LANES, &d##v);                                                                              \
    get_##type(row, h + v * LANES, &x);                                                                                \
    s##v += d##v * x;                                                                                                  \
    d##v *= p;
#define ROWS_OF(type, ADD_TYPE, DOT_TYPE)                                                                              \
    static void sum_##type(const void *const *from, const float *p, int64_t n, int64_t width, void *to, bool stream)   \
    {                                                                                                                  \
        int64_t h = 0;                                                                                                 \
        stream = stream && (uintptr_t)to % 16 == 0;                                                                    \
        for (; h + BLOCK <= width; h += BLOCK) {                                                                       \
            v8f x;                                                                                                     \
            EACH(ZERO)                                                                                                 \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                EACH(ADD_TYPE)                                                                                         \
            }                                                                                                          \
            put_##type(&s0, &s1, to, h, stream);                                                                       \
            put_##type(&s2, &s3, to, h + 2 * LANES, stream);                                                           \
        }                                                                                                              \
        for (; h < width; h++) {                                                                                       \
            float sum = 0.0f;                                                                                          \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                sum += p[i] * get_one_##type(from[i], h);                                                              \
            }                                                                                                          \
            put_one_##type(sum, to, h);                                                                                \
        }                                                                                                              \
    }                                                                                                                  \
    static float scale_##type(const void *dy, const void *row, float p, int64_t width, void *to, bool stream)          \
    {                                                                                                                  \
        int64_t h = 0;                                                                                                 \
        EACH(ZERO)                                                                                                     \
        stream = stream && (uintptr_t)to % 16 == 0;                                                                    \
        for (; h + BLOCK <= width; h += BLOCK) {                                                                       \
            v8f x;                                                                                                     \
            EACH(DOT_TYPE)                                                                                             \
            put_##type(&d0, &d1, to, h, stream);                                                                       \
            put_##type(&d2, &d3, to, h + 2 * LANES, stream);                                                           \
        }                                                                                                              \
        v8f total = (s0 + s1) + (s2 + s3);                                                                             \
        float dot = 0.0f;                                                                                              \
        for (int i = 0; i < LANES; i++) {                                                                              \
            dot += total[i];                                                                                           \
        }                                                                                                              \
        for (; h < width; h++) {                                                                                       \
            float d = get_one_##type(dy, h);                                                                           \
            dot += d * get_one_##type(row, h);                                                                         \
            put_one_##type(p *d, to, h);                                                                               \
        }                                                                                                              \
        return dot;                                                                                                    \
    }

ROWS_OF(f32, ADD_F32, DOT_F32)
ROWS_OF(bf16, ADD_BF16, DOT_BF16)
ROWS_OF(f16, ADD_F16, DOT_F16)

const struct moe_host_rows ROWS_TABLE = {
    .name = ROWS_NAME,
    .sum = {[MOE_F32] = sum_f32, [MOE_BF16] = sum_bf16, [MOE_F16] = sum_f16},
    .scale = {[MOE_F32] = scale_f32, [MOE_BF16] = scale_bf16, [MOE_F16] = scale_f16},
};
