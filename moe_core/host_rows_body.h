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

enum { LANES = 8, VECTORS = 4, BLOCK = LANES * VECTORS };

/* Stores 16 bytes times `n`; streaming needs `to` at a multiple of 16. */
static inline void store16(void *to, const void *from, int n, bool stream)
{
#if defined(__SSE2__)
    for (int i = 0; stream && i < n; i++) {
        _mm_stream_si128((__m128i *)to + i, _mm_loadu_si128((const __m128i *)from + i));
    }
    if (stream) {
        return;
    }
#else
    (void)stream;
#endif
    memcpy(to, from, (size_t)n * 16);
}

static inline void get_f32(const void *from, int64_t at, v8f *out)
{
    memcpy(out, (const float *)from + at, sizeof *out);
}

static inline void put_f32(const v8f *x, void *to, int64_t at, bool stream)
{
    store16((float *)to + at, x, 2, stream);
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
    v8h h;
    memcpy(&h, (const uint16_t *)from + at, sizeof h);
    v8u w = __builtin_convertvector(h, v8u) << 16;
    memcpy(out, &w, sizeof w);
}

static inline void put_bf16(const v8f *x, void *to, int64_t at, bool stream)
{
    v8u u, nan;
    memcpy(&u, x, sizeof u);
    nan = (v8u)((u & 0x7fffffffu) > 0x7f800000u);
    u = (nan & (u >> 16 | 0x40u)) | (~nan & ((u + 0x7fffu + (u >> 16 & 1u)) >> 16));
    v8h h = __builtin_convertvector(u, v8h);
    store16((uint16_t *)to + at, &h, 1, stream);
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

static inline void put_f16(const v8f *x, void *to, int64_t at, bool stream)
{
    uint16_t h[LANES];
#if defined(__F16C__)
    __m256 wide;
    memcpy(&wide, x, sizeof wide);
    if (_mm256_movemask_ps(_mm256_cmp_ps(wide, wide, _CMP_UNORD_Q)) == 0) {
        __m128i narrow = _mm256_cvtps_ph(wide, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        store16((uint16_t *)to + at, &narrow, 1, stream);
        return;
    }
#endif
    for (int i = 0; i < LANES; i++) {
        h[i] = hn_f16_put((*x)[i]); /* without the instruction, and for the bits of a NaN */
    }
    store16((uint16_t *)to + at, h, 1, stream);
}

static inline float get_one_f16(const void *from, int64_t at)
{
    return hn_f16_get(((const uint16_t *)from)[at]);
}

static inline void put_one_f16(float x, void *to, int64_t at)
{
    ((uint16_t *)to)[at] = hn_f16_put(x);
}

/* The two functions for one type. */
#define ROWS_OF(type)                                                                                                  \
    static void sum_##type(const void *const *from, const float *p, int64_t n, int64_t width, void *to, bool stream)   \
    {                                                                                                                  \
        int64_t h = 0;                                                                                                 \
        stream = stream && (uintptr_t)to % 16 == 0;                                                                    \
        for (; h + BLOCK <= width; h += BLOCK) {                                                                       \
            v8f sum[VECTORS] = {{0}};                                                                                  \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                for (int v = 0; v < VECTORS; v++) {                                                                    \
                    v8f x;                                                                                             \
                    get_##type(from[i], h + v * LANES, &x);                                                            \
                    sum[v] += p[i] * x;                                                                                \
                }                                                                                                      \
            }                                                                                                          \
            for (int v = 0; v < VECTORS; v++) {                                                                        \
                put_##type(&sum[v], to, h + v * LANES, stream);                                                        \
            }                                                                                                          \
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
        v8f sum[VECTORS] = {{0}};                                                                                      \
        int64_t h = 0;                                                                                                 \
        stream = stream && (uintptr_t)to % 16 == 0;                                                                    \
        for (; h + BLOCK <= width; h += BLOCK) {                                                                       \
            for (int v = 0; v < VECTORS; v++) {                                                                        \
                v8f d, x;                                                                                              \
                get_##type(dy, h + v * LANES, &d);                                                                     \
                get_##type(row, h + v * LANES, &x);                                                                    \
                sum[v] += d * x;                                                                                       \
                d = p * d;                                                                                             \
                put_##type(&d, to, h + v * LANES, stream);                                                             \
            }                                                                                                          \
        }                                                                                                              \
        v8f total = (sum[0] + sum[1]) + (sum[2] + sum[3]);                                                             \
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

ROWS_OF(f32)
ROWS_OF(bf16)
ROWS_OF(f16)

const struct moe_host_rows ROWS_TABLE = {
    .name = ROWS_NAME,
    .sum = {[MOE_F32] = sum_f32, [MOE_BF16] = sum_bf16, [MOE_F16] = sum_f16},
    .scale = {[MOE_F32] = scale_f32, [MOE_BF16] = scale_bf16, [MOE_F16] = scale_f16},
};
