/*
 * host_fp8.c: rows rounded to FP8: in place, for the host's own products, and as bytes and scales (moe_quantize).
 *
 * The host multiplies in float32, so a rounded number is put back as number times scale: both are exact in float32, and
 * the products of host_linear.c need know nothing of scales of rows. Rows are walked in chunks of at most 128 columns,
 * row after row, whichever way blocks lie: a chunk is one block, or one block for each column. A loop down each column
 * was rejected, because it touches a line of the cache for each number.
 */
#include "moe_core/host/host_fp8.h"

#include "common/fp8.h"
#include "common/smallfloat.h"
#include "moe_core/host/device_host.h"
#include "moe_core/host/dtype_host.h"
#include "moe_core/include/moe/error.h"

#include <stdlib.h>

enum { BLOCK = MOE_FP8_BLOCK, NOT_A_NUMBER = 0x7f };

/* A chunk of rows: `rows` lines of `cols` numbers. */
struct chunk {
    float *data;
    int64_t rows, cols, stride;
};

/* What each column of a chunk is multiplied with before it is rounded, and afterwards. */
struct scales {
    float down[BLOCK], up[BLOCK];
};

static int32_t top_of(enum moe_dtype type)
{
    return type == MOE_E4M3 ? MOE_FP8_TOP_E4M3 : MOE_FP8_TOP_E5M2;
}

static void note(uint32_t *most, float x)
{
    uint32_t size = moe_fp8_size(hn_float_bits(x));
    *most = size > *most ? size : *most;
}

uint32_t moe_host_fp8_most(enum moe_dtype type, const void *from, int64_t n)
{
    float wide[2 * BLOCK];
    uint32_t most = 0;
    for (int64_t i = 0; i < n; i += 2 * BLOCK) {
        int64_t some = n - i < 2 * BLOCK ? n - i : 2 * BLOCK;
        moe_widen(type, (const char *)from + i * (int64_t)moe_dtype_bytes(type), some, wide);
        for (int64_t j = 0; j < some; j++) {
            note(&most, wide[j]);
        }
    }
    return most;
}

static void find_scales(const struct moe_fp8_rounding *by, const struct chunk *c, struct scales *s)
{
    uint32_t most[BLOCK] = {0};
    bool each = by->how == MOE_FP8_BLOCKS && by->down; /* each column is a block */
    if (by->how == MOE_FP8_TENSOR) {
        most[0] = by->most;
    }
    for (int64_t r = 0; by->how == MOE_FP8_BLOCKS && r < c->rows; r++) {
        for (int64_t j = 0; j < c->cols; j++) {
            note(&most[each ? j : 0], c->data[r * c->stride + j]);
        }
    }
    for (int64_t j = 0; j < c->cols; j++) {
        int32_t e = moe_fp8_exponent(most[each ? j : 0], top_of(by->type));
        s->down[j] = hn_bits_float(moe_fp8_power(-e));
        s->up[j] = hn_bits_float(moe_fp8_power(e));
    }
}

static uint8_t round_one(enum moe_dtype type, float x, float down)
{
    if ((hn_float_bits(x) & 0x7fffffffu) >= MOE_FP8_INFINITY) {
        return NOT_A_NUMBER;
    }
    return type == MOE_E4M3 ? hn_e4m3_put(x * down) : hn_e5m2_put(x * down);
}

static float wide_one(enum moe_dtype type, uint8_t x)
{
    return type == MOE_E4M3 ? hn_e4m3_get(x) : hn_e5m2_get(x);
}

/* Rows of a chunk: the blocks of BLOCKS end with them. */
static int64_t band_of(const struct moe_fp8_rounding *by, int64_t rows)
{
    return by->how == MOE_FP8_TENSOR ? rows : by->down ? BLOCK : 1;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

void moe_host_fp8_round(const struct moe_fp8_rounding *by, int64_t rows, int64_t width, float *data)
{
    struct scales s;
    int64_t band = band_of(by, rows);
    for (int64_t row = 0; row < rows; row += band) {
        for (int64_t col = 0; col < width; col += BLOCK) {
            struct chunk c = {data + row * width + col, least(band, rows - row), least(BLOCK, width - col), width};
            find_scales(by, &c, &s);
            for (int64_t i = 0; i < c.rows * c.cols; i++) {
                int64_t j = i % c.cols;
                float *x = c.data + i / c.cols * width + j;
                *x = wide_one(by->type, round_one(by->type, *x, s.down[j])) * s.up[j];
            }
        }
    }
}

/* Bytes and scales of the chunk whose first number is (row, col) of its group, which begins at `first`. */
static void store(const struct moe_quantize *q, const struct chunk *c, const struct scales *s, int64_t group,
                  int64_t first, int64_t row, int64_t col)
{
    int64_t across = (q->width + BLOCK - 1) / BLOCK, pitch = moe_fp8_pitch(q->rows, q->groups),
            column = moe_fp8_column(first, group) + row;
    uint8_t *to = q->to;
    for (int64_t r = 0; r < c->rows; r++) {
        for (int64_t j = 0; j < c->cols; j++) {
            int64_t at = q->down ? (col + j) * pitch + column + r : (first + row + r) * q->width + col + j;
            to[at] = round_one(q->to_type, c->data[r * c->stride + j], s->down[j]);
        }
        if (!q->down) {
            q->scales[(first + row + r) * across + col / BLOCK] = s->up[0];
        }
    }
    for (int64_t j = 0; q->down && j < c->cols; j++) {
        for (int64_t r = 0; r < c->rows; r += BLOCK) {
            q->scales[(column + r) / BLOCK * q->width + col + j] = s->up[j];
        }
    }
}

static const void *row_at(const struct moe_quantize *q, int64_t row)
{
    return (const char *)q->from + row * q->width * (int64_t)moe_dtype_bytes(q->type);
}

/* One group. wide: room for 128 rows. */
static void quantize_group(const struct moe_quantize *q, int64_t group, int64_t first, int64_t m, float *wide)
{
    struct scales s;
    struct moe_fp8_rounding by = {q->how, q->to_type, q->down, 0};
    if (q->how == MOE_FP8_TENSOR) {
        by.most = moe_host_fp8_most(q->type, row_at(q, first), m * q->width);
    }
    for (int64_t row = 0; row < m; row += BLOCK) {
        int64_t rows = least(BLOCK, m - row), band = q->down ? rows : 1;
        moe_widen(q->type, row_at(q, first + row), rows * q->width, wide);
        for (int64_t r = 0; r < rows; r += band) {
            for (int64_t col = 0; col < q->width; col += BLOCK) {
                struct chunk c = {wide + r * q->width + col, band, least(BLOCK, q->width - col), q->width};
                find_scales(&by, &c, &s);
                store(q, &c, &s, group, first, row + r, col);
            }
        }
    }
}

int moe_host_quantize(const void *args)
{
    const struct moe_quantize *q = args;
    int64_t first = 0;
    for (int64_t g = 0; g < q->groups; first += q->m[g++]) {
        if (q->m[g] < 0 || q->m[g] > q->rows - first) {
            return q->m[g] < 0 ? MOE_E_COUNT : MOE_E_SPLIT;
        }
    }
    float *wide = malloc((size_t)(BLOCK * q->width + 1) * sizeof(*wide));
    if (wide == NULL) {
        return MOE_E_NOMEM;
    }
    first = 0;
    for (int64_t g = 0; g < q->groups; first += q->m[g++]) {
        quantize_group(q, g, first, q->m[g], wide);
    }
    free(wide);
    return 0;
}
