/* linear_fp8.h: the part of the grouped linear that knows of products of FP8 by FP8. */
#ifndef MOE_CORE_PARTS_LINEAR_FP8_H
#define MOE_CORE_PARTS_LINEAR_FP8_H

#include "moe_core/include/moe/linear.h"
#include "moe_core/include/moe/ops.h"

#pragma GCC visibility push(hidden)

/* How the rows of a pass of this kind are rounded. Any thread. */
enum moe_fp8_rows moe_linear_fp8_rows(const struct moe_fp8 *fp8, enum moe_linear_kind kind);
/* The type that dy is rounded to. Any thread. */
enum moe_dtype moe_linear_fp8_grad(const struct moe_fp8 *fp8);
/* Refuses what cannot be computed: combinations (ARG, SHAPE), and devices without the products (UNSUPPORTED). */
int moe_linear_fp8_check(moe_device_t *device, const struct moe_linear_config *config);

#pragma GCC visibility pop

#endif
