/*
 * host_small_body.h: products of few rows, once per instruction set (SMALL_TABLE, SMALL_NAME, SMALL_WIDTH floats in a
 * vector, compiled with that set allowed).
 *
 * With one to a dozen rows a product is a walk over the weights: every weight is read once and used m times. The BLAS
 * packs both operands first and pads the rows to its tile, which costs more than the product. Here weights go from
 * memory into registers (narrow types are widened there), rows stay in the first cache, and sums in registers. Written
 * with the compiler's vectors, so that one text serves every machine. Rows are taken four at a time: more sums do not
 * fit the registers.
 */
#include "moe_core/host/host_gemm.h"

#include "common/smallfloat.h"

#include <string.h>
#if defined(__F16C__) && SMALL_WIDTH == 8
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

enum { WIDTH = SMALL_WIDTH, ROWS = 4 }; /* floats of a vector; rows at a time */

typedef float vec __attribute__((vector_size(4 * WIDTH)));
typedef uint16_t half_vec __attribute__((vector_size(2 * WIDTH)));
typedef uint32_t word_vec __attribute__((vector_size(4 * WIDTH)));

INLINE vec load(const float *from)
{
    vec v;
    memcpy(&v, from, sizeof(v));
    return v;
}

INLINE void store(float *to, vec v)
{
    memcpy(to, &v, sizeof(v));
}

INLINE float total(vec v)
{
    float sum = v[0];
    for (int i = 1; i < WIDTH; i++) {
        sum += v[i];
    }
    return sum;
}

INLINE float weight_one(enum moe_dtype type, const void *w, int64_t i)
{
    return type == MOE_BF16  ? hn_bf16_get(((const uint16_t *)w)[i])
           : type == MOE_F16 ? hn_f16_get(((const uint16_t *)w)[i])
                             : ((const float *)w)[i];
}

INLINE vec weight_vec(enum moe_dtype type, const void *w, int64_t i)
{
    if (type == MOE_F32) {
        return load((const float *)w + i);
    }
    half_vec half;
    memcpy(&half, (const uint16_t *)w + i, sizeof(half));
    if (type == MOE_BF16) {
        return (vec)(__builtin_convertvector(half, word_vec) << 16);
    }
#if defined(__F16C__) && SMALL_WIDTH == 8
    return (vec)_mm256_cvtph_ps((__m128i)half);
#else
    vec v;
    for (int j = 0; j < WIDTH; j++) {
        v[j] = hn_f16_get(half[j]);
    }
    return v;
#endif
}

INLINE const void *weight_row(enum moe_dtype type, const void *w, int64_t row, int64_t stride)
{
    return (const char *)w + row * stride * (type == MOE_F32 ? 4 : 2);
}

/* forward: dot products of `m` rows with `j` rows of weights */

INLINE void dots(const int m, const int j, enum moe_dtype type, const struct moe_product *p, int64_t row, int64_t col)
{
    vec sum[ROWS][4] = {{{0}}};
    const float *x[ROWS];
    const void *w[4];
    for (int a = 0; a < m; a++) {
        x[a] = p->in + (row + a) * p->in_stride;
    }
    for (int b = 0; b < j; b++) {
        w[b] = weight_row(type, p->w, col + b, p->w_stride);
    }
    int64_t i = 0;
    for (; i + WIDTH <= p->k; i += WIDTH) {
        vec wv[4];
#pragma GCC unroll 4
        for (int b = 0; b < j; b++) {
            wv[b] = weight_vec(type, w[b], i);
        }
#pragma GCC unroll 4
        for (int a = 0; a < m; a++) {
            vec xv = load(x[a] + i);
#pragma GCC unroll 4
            for (int b = 0; b < j; b++) {
                sum[a][b] += xv * wv[b];
            }
        }
    }
    for (int a = 0; a < m; a++) {
        for (int b = 0; b < j; b++) {
            float s = total(sum[a][b]);
            for (int64_t t = i; t < p->k; t++) {
                s += x[a][t] * weight_one(type, w[b], t);
            }
            p->out[(row + a) * p->out_stride + col + b] = s;
        }
    }
}

/* `j` columns of the output for all rows: the weights' rows stay in the first cache from one four of rows to the next.
 */
INLINE void columns(const int m, const int j, enum moe_dtype type, const struct moe_product *p, int64_t row,
                    int64_t *col, int64_t end)
{
    for (; *col + j <= end; *col += j) {
        dots(m, j, type, p, row, *col);
    }
}

INLINE void forward_rows(const int m, enum moe_dtype type, const struct moe_product *p, int64_t row, int64_t first,
                         int64_t end)
{
    int64_t col = first;
    columns(m, m == 1 ? 4 : m == 4 ? 2 : 3, type, p, row, &col, end);
    columns(m, 1, type, p, row, &col, end);
}

INLINE void forward(enum moe_dtype type, const struct moe_product *p)
{
    /* So many rows of weights that they stay in the second cache while the rows of x go by. */
    int64_t step = p->m <= ROWS ? p->n : (32768 / (p->k + 1) + 1) * 12;
    for (int64_t first = 0; first < p->n; first += step) {
        int64_t end = first + step < p->n ? first + step : p->n, row = 0;
        for (; row + 4 <= p->m; row += 4) {
            forward_rows(4, type, p, row, first, end);
        }
        switch (p->m - row) {
        case 3:
            forward_rows(3, type, p, row, first, end);
            break;
        case 2:
            forward_rows(2, type, p, row, first, end);
            break;
        case 1:
            forward_rows(1, type, p, row, first, end);
            break;
        default:
            break;
        }
    }
}

/* dgrad: rows of dx as sums of rows of weights, `j` of them at a time */

INLINE void add_rows(const int m, const int j, enum moe_dtype type, const struct moe_product *p, int64_t row,
                     int64_t first, bool start)
{
    const void *w[4];
    float dy[ROWS][4];
    for (int b = 0; b < j; b++) {
        w[b] = weight_row(type, p->w, first + b, p->w_stride);
        for (int a = 0; a < m; a++) {
            dy[a][b] = p->in[(row + a) * p->in_stride + first + b];
        }
    }
    float *out = p->out + row * p->out_stride;
    int64_t c = 0;
    for (; c + 2 * WIDTH <= p->k; c += 2 * WIDTH) {
        vec sum[ROWS][2];
#pragma GCC unroll 4
        for (int a = 0; a < m; a++) {
            const float *at = out + a * p->out_stride + c;
            sum[a][0] = start ? (vec){0} : load(at);
            sum[a][1] = start ? (vec){0} : load(at + WIDTH);
        }
#pragma GCC unroll 4
        for (int b = 0; b < j; b++) {
            vec low = weight_vec(type, w[b], c), high = weight_vec(type, w[b], c + WIDTH);
#pragma GCC unroll 4
            for (int a = 0; a < m; a++) {
                sum[a][0] += low * dy[a][b];
                sum[a][1] += high * dy[a][b];
            }
        }
#pragma GCC unroll 4
        for (int a = 0; a < m; a++) {
            store(out + a * p->out_stride + c, sum[a][0]);
            store(out + a * p->out_stride + c + WIDTH, sum[a][1]);
        }
    }
    for (; c < p->k; c++) {
        for (int a = 0; a < m; a++) {
            float s = start ? 0.0f : out[a * p->out_stride + c];
            for (int b = 0; b < j; b++) {
                s += dy[a][b] * weight_one(type, w[b], c);
            }
            out[a * p->out_stride + c] = s;
        }
    }
}

INLINE void dgrad_rows(const int m, enum moe_dtype type, const struct moe_product *p, int64_t row, int64_t first,
                       int64_t end)
{
    int64_t n = first;
    for (; n + 4 <= end; n += 4) {
        add_rows(m, 4, type, p, row, n, n == 0);
    }
    for (; n < end; n++) {
        add_rows(m, 1, type, p, row, n, n == 0);
    }
}

INLINE void dgrad(enum moe_dtype type, const struct moe_product *p)
{
    /* Four rows of weights for all rows of dy: they are in the first cache for all but the first four. Eight were
       slower: so many rows whose distance is a power of two meet in the same places of the cache. */
    int64_t step = p->m <= ROWS ? p->n : 4;
    for (int64_t first = 0; first < p->n; first += step) {
        int64_t end = first + step < p->n ? first + step : p->n, row = 0;
        for (; row + 4 <= p->m; row += 4) {
            dgrad_rows(4, type, p, row, first, end);
        }
        switch (p->m - row) {
        case 3:
            dgrad_rows(3, type, p, row, first, end);
            break;
        case 2:
            dgrad_rows(2, type, p, row, first, end);
            break;
        case 1:
            dgrad_rows(1, type, p, row, first, end);
            break;
        default:
            break;
        }
    }
}

/* wgrad: two rows of dw as sums of up to four rows of x */

INLINE void outer(const int m, const int j, const struct moe_product *p, int64_t row, int64_t first, bool add)
{
    float dy[ROWS][2];
    for (int a = 0; a < m; a++) {
        for (int b = 0; b < j; b++) {
            dy[a][b] = p->in[(row + a) * p->in_stride + first + b];
        }
    }
    const float *x = p->x + row * p->x_stride;
    float *out = p->out + first * p->out_stride;
    int64_t c = 0;
    for (; c + WIDTH <= p->k; c += WIDTH) {
        vec sum[2];
#pragma GCC unroll 2
        for (int b = 0; b < j; b++) {
            sum[b] = add ? load(out + b * p->out_stride + c) : (vec){0};
        }
#pragma GCC unroll 4
        for (int a = 0; a < m; a++) {
            vec xv = load(x + a * p->x_stride + c);
#pragma GCC unroll 2
            for (int b = 0; b < j; b++) {
                sum[b] += xv * dy[a][b];
            }
        }
#pragma GCC unroll 2
        for (int b = 0; b < j; b++) {
            store(out + b * p->out_stride + c, sum[b]);
        }
    }
    for (; c < p->k; c++) {
        for (int b = 0; b < j; b++) {
            float s = add ? out[b * p->out_stride + c] : 0.0f;
            for (int a = 0; a < m; a++) {
                s += dy[a][b] * x[a * p->x_stride + c];
            }
            out[b * p->out_stride + c] = s;
        }
    }
}

INLINE void outer_rows(const int j, const struct moe_product *p, int64_t first)
{
    bool add = p->beta != 0.0f;
    int64_t row = 0;
    for (; row + 4 <= p->m; row += 4) {
        outer(4, j, p, row, first, add || row > 0);
    }
    switch (p->m - row) {
    case 3:
        outer(3, j, p, row, first, add || row > 0);
        break;
    case 2:
        outer(2, j, p, row, first, add || row > 0);
        break;
    case 1:
        outer(1, j, p, row, first, add || row > 0);
        break;
    default:
        break;
    }
}

static void wgrad_f32(const struct moe_product *p)
{
    int64_t n = 0;
    for (; n + 2 <= p->n; n += 2) {
        outer_rows(2, p, n);
    }
    for (; n < p->n; n++) {
        outer_rows(1, p, n);
    }
}

#define FOR_TYPE(name, type)                                                                                           \
    static void forward_##name(const struct moe_product *p)                                                            \
    {                                                                                                                  \
        forward(type, p);                                                                                              \
    }                                                                                                                  \
    static void dgrad_##name(const struct moe_product *p)                                                              \
    {                                                                                                                  \
        dgrad(type, p);                                                                                                \
    }
FOR_TYPE(f32, MOE_F32)
FOR_TYPE(bf16, MOE_BF16)
FOR_TYPE(f16, MOE_F16)

const struct moe_host_small SMALL_TABLE = {.name = SMALL_NAME,
                                           .forward = {forward_f32, forward_bf16, forward_f16},
                                           .dgrad = {dgrad_f32, dgrad_bf16, dgrad_f16},
                                           .wgrad = wgrad_f32};
