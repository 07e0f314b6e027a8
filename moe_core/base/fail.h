/*
 * fail.h: how moe_core's own files report a failure (error.h is what users see).
 */
#ifndef MOE_FAIL_H
#define MOE_FAIL_H

#include "moe_core/include/moe/error.h"

#include <stdint.h>

#define MOE_NO_LAYER UINT32_MAX
#define MOE_NO_RANK  (-1)

#pragma GCC visibility push(hidden)

/* Keeps the message "rank R, layer L, <text of code>: <detail>" for moe_last_error and returns code. */
int moe_fail(int code, int32_t rank, uint32_t layer, const char *format, ...) __attribute__((format(printf, 4, 5)));

/* For a layer that hands on a failure of a part that does not know where it is: puts rank and layer before the message,
 * unless it names them. Returns code. */
int moe_fail_at(int code, int32_t rank, uint32_t layer);

#pragma GCC visibility pop

#endif
