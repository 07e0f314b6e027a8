/*
 * fp8.h: products of FP8 by FP8: how rows are rounded for them, and what a linear asks for.
 *
 * An FP8 weight alone (MOE_FP8_STORAGE) is a way to store it: rows stay 16 or 32 bit, and a product is of the rows as
 * they are. With TENSOR or BLOCKS the rows are rounded to FP8 as well, in each of the three products, from the rows
 * that the caller gives; nothing of it is kept from one product to the next, so that a microbatch may be resumed, moved
 * or computed again like any other.
 *
 *              forward y = x w^T       dgrad dx = dy w          wgrad dw = dy^T x
 *   rounded    x (e4m3)                dy (`grad`)              dy (`grad`) and x (e4m3)
 *   TENSOR     one scale for the rows of a group
 *   BLOCKS     a scale for 128 of a    a scale for 128 of a     a scale for 128 rows of a group in one column,
 *              row, along K            row, along N             counted from the group's first row
 *   weight     as it is stored, with its scale or scales; dgrad reads the same numbers and scales, never others
 *
 * A scale is the smallest power of two, at least 2^-126, with which no number of its block is beyond the type's largest
 * (448, 57344). FP8 is a floating type: a scale that is not a power of two would make no number more precise, only the
 * smallest ones of a block, by less than one binade; and with powers of two scaling is exact, so that the rounding to
 * FP8 is the only error. So a number is off by at most 2^-4 of itself (e4m3; e5m2 2^-3), or by half the smallest number
 * times the scale (2^-10; 2^-17) where that is more. A block of zeros has scale 1. Numbers that are not finite become
 * NaN and do not count in the scale: what overflowed stays visible, in its own row (wgrad: column), and saturates
 * nowhere. Sums are float32 and rounded once. Gradients of biases and of their probabilities are sums of the rows as
 * they are.
 *
 * Sources: DeepSeek-V3's report, section 3.3 (e4m3 everywhere; 1 x 128 of activations and gradients, 128 x 128 of
 * weights; 128 x 1 for the weight gradient); TransformerEngine's recipes Float8BlockScaling (e4m3, powers of two, each
 * direction rounded from the rows themselves) and Float8CurrentScaling (one scale, e4m3 forward and e5m2 backward), and
 * its override_linear_precision, whose only allowed form leaves wgrad wide; torchao's rowwise_with_gw_hp, the same.
 */
#ifndef MOE_FP8_H
#define MOE_FP8_H

#include "dtype.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MOE_FP8_BLOCK 128 /* numbers in a block of a row or column; edge of a block of weights with its own scale */

enum moe_fp8_rows { MOE_FP8_STORAGE = 0, MOE_FP8_TENSOR = 1, MOE_FP8_BLOCKS = 2 };

/* What a linear computes with. All zero: rows as they are. */
struct moe_fp8 {
    enum moe_fp8_rows rows;
    enum moe_dtype grad; /* what dy is rounded to: e4m3 or e5m2; 0: e5m2 with TENSOR, e4m3 with BLOCKS */
    bool wide_wgrad;     /* the weight gradient is of the rows as they are */
};

#ifdef __cplusplus
}
#endif
#endif
