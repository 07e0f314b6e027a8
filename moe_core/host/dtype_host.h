/*
 * dtype_host.h: conversions of rows on the host.
 */
#ifndef MOE_CORE_HOST_DTYPE_HOST_H
#define MOE_CORE_HOST_DTYPE_HOST_H

#include "moe_core/include/moe/dtype.h"

#include <stdint.h>

#pragma GCC visibility push(hidden)

/* n elements of any type to float32, and back. from and to do not overlap. Any thread. */
void moe_widen(enum moe_dtype type, const void *from, int64_t n, float *to);
void moe_narrow(enum moe_dtype type, const float *from, int64_t n, void *to);

#pragma GCC visibility pop

#endif
