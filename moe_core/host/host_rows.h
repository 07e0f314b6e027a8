/*
 * host_rows.h: whole rows on the host at the speed of memory: copied, zeroed, summed, scaled.
 *
 * There is a table of functions for each instruction set, because of the number formats; a process uses one table
 * throughout. All tables give the same bits: products and sums are rounded one by one (no fused multiply-add), in an
 * order that does not depend on the set. `stream` says that the destination is large and not read soon. Stores then
 * bypass the caches, so that lines which are about to be overwritten need not be read from memory: a third of the
 * traffic. moe_host_rows_done orders such stores before what follows.
 */
#ifndef MOE_CORE_HOST_HOST_ROWS_H
#define MOE_CORE_HOST_HOST_ROWS_H

#include "moe_core/include/moe/dtype.h"

#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

/*
 * to [width] = the sum over i of p[i] * from[i], starting at +0, in float32, cast once. n = 0 gives zeros; p = NULL
 * gives plain sums. next: NULL, or n rows that the next call will sum, fetched meanwhile.
 */
typedef void moe_host_sum_fn(const void *const *from, const float *p, int64_t n, const void *const *next, int64_t width,
                             void *to, bool stream);
/*
 * to [width] = p * dy, cast once; returns the dot product of dy and row. next: NULL, or the `row` of the next call,
 * fetched meanwhile.
 */
typedef float moe_host_scale_fn(const void *dy, const void *row, const void *next, float p, int64_t width, void *to,
                                bool stream);

struct moe_host_rows {
    const char *name;
    moe_host_sum_fn *sum[MOE_F16 + 1];
    moe_host_scale_fn *scale[MOE_F16 + 1];
};

/* The table for this processor. Static storage; any thread. */
const struct moe_host_rows *moe_host_rows_table(void);
/* The tables for this processor, the best last, and their number. A test compares them. */
int moe_host_rows_all(const struct moe_host_rows **out, int most);

/* Copies `bytes` bytes at `from` to each of the n rows in `to`. Rows do not overlap. */
void moe_host_rows_copy(void *const *to, int64_t n, const void *from, size_t bytes, bool stream);
void moe_host_row_zero(void *to, size_t bytes, bool stream);
/* Whether stores to a destination of `bytes` bytes should bypass the caches. */
bool moe_host_rows_stream(size_t bytes);
void moe_host_rows_done(void);

extern const struct moe_host_rows moe_host_rows_plain;
#if defined(__x86_64__)
extern const struct moe_host_rows moe_host_rows_avx2;
#endif

#pragma GCC visibility pop

#endif
