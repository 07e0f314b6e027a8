/* host_fp8.h: rows rounded to FP8 on the host (moe/fp8.h). */
#ifndef MOE_CORE_HOST_HOST_FP8_H
#define MOE_CORE_HOST_HOST_FP8_H

#include "moe_core/include/moe/fp8.h"

#include <stdint.h>

#pragma GCC visibility push(hidden)

/* How the rows of a group are rounded. */
struct moe_fp8_rounding {
    enum moe_fp8_rows how; /* TENSOR or BLOCKS */
    enum moe_dtype type;   /* e4m3 or e5m2 */
    bool down;             /* a block is 128 rows of a column, from the first row given on; else 128 of a row */
    uint32_t most;         /* TENSOR: moe_host_fp8_most of all rows of the group */
};

/* The largest of n numbers, as the bits of its absolute value (common/fp8.h). Any thread. */
uint32_t moe_host_fp8_most(enum moe_dtype type, const void *from, int64_t n);

/*
 * Replaces data [rows,width], the rows of one group, by the numbers that the products of FP8 by FP8 see: rounded, times
 * the scale again, which float32 holds exactly. With `down` any of the group's columns may be given alone. Any thread.
 */
void moe_host_fp8_round(const struct moe_fp8_rounding *by, int64_t rows, int64_t width, float *data);

#pragma GCC visibility pop

#endif
