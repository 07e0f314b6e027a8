/*
 * fp8_rows.h: rows rounded to FP8 from the definition (moe/fp8.h), in double precision: for the tests of the products
 * and of the rounding itself. It shares nothing with the library but the rounding of one number.
 */
#ifndef ROLL_TESTS_MOE_CORE_FP8_ROWS_H
#define ROLL_TESTS_MOE_CORE_FP8_ROWS_H

#include "tests/moe_core/typed.h"

#include "moe_core/include/moe/fp8.h"

static inline double fp8_largest(enum moe_dtype type)
{
    return type == MOE_E4M3 ? 448 : 57344;
}

/* What a number x of a block with this scale may lose: half a unit of its last place, or half the smallest number. */
static inline double fp8_loss(enum moe_dtype type, double x, double scale)
{
    return type == MOE_E4M3 ? fmax(0x1p-4 * fabs(x), 0x1p-10 * scale) : fmax(0x1p-3 * fabs(x), 0x1p-17 * scale);
}

/* The least power of two from 2^-126 on with which `most` is not beyond the largest number; 1 for zeros. */
static inline double fp8_scale(enum moe_dtype type, double most)
{
    double scale = 0x1p-126;
    while (most > scale * fp8_largest(type)) {
        scale *= 2;
    }
    return most == 0 ? 1 : scale;
}

/* The place of number (r, c) of a group's rows in the list of its blocks: numbers of one block have the same place. */
static inline int64_t fp8_block(enum moe_fp8_rows how, bool down, int64_t width, int64_t r, int64_t c)
{
    int64_t across = (width + MOE_FP8_BLOCK - 1) / MOE_FP8_BLOCK;
    return how == MOE_FP8_TENSOR ? 0 : down ? r / MOE_FP8_BLOCK * width + c : r * across + c / MOE_FP8_BLOCK;
}

/* The scale of every number of a group's rows x [m,width]; to be freed. */
static inline double *fp8_scales(enum moe_fp8_rows how, bool down, enum moe_dtype type, int64_t m, int64_t width,
                                 const double *x)
{
    double *most = support_doubles(m * width), *scale = support_doubles(m * width);
    for (int64_t i = 0; i < m * width; i++) {
        double *at = &most[fp8_block(how, down, width, i / width, i % width)];
        *at = isfinite(x[i]) ? fmax(*at, fabs(x[i])) : *at;
    }
    for (int64_t i = 0; i < m * width; i++) {
        scale[i] = fp8_scale(type, most[fp8_block(how, down, width, i / width, i % width)]);
    }
    free(most);
    return scale;
}

#endif
