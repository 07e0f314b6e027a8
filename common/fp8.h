/*
 * fp8.h: the scale of a block of numbers that are rounded to FP8, and where rounded columns lie (moe/fp8.h). Host and
 * device compile the same text, because their rounded rows must be equal in every bit.
 *
 * A block's largest number is known by its bits without the sign: of finite floats those are in the numbers' own order,
 * so that a maximum of integers finds it, in any order of the threads.
 */
#ifndef ROLL_COMMON_FP8_H
#define ROLL_COMMON_FP8_H

#include <stdint.h>

#ifdef __CUDACC__
#define MOE_FP8_ON_BOTH static __host__ __device__ __forceinline__
#else
#define MOE_FP8_ON_BOTH static inline
#endif

enum { MOE_FP8_INFINITY = 0x7f800000, MOE_FP8_TOP_E4M3 = 8, MOE_FP8_TOP_E5M2 = 15 };

/* What a float with these bits counts in its block's largest: nothing where it is not finite. */
MOE_FP8_ON_BOTH uint32_t moe_fp8_size(uint32_t bits)
{
    uint32_t size = bits & 0x7fffffffu;
    return size < MOE_FP8_INFINITY ? size : 0;
}

/*
 * The exponent of the scale of a block whose largest number is `most`: the smallest e of at least -126 with most <=
 * 1.75 x 2^(top + e). Both types' largest number is 1.75 x 2^top.
 */
MOE_FP8_ON_BOTH int32_t moe_fp8_exponent(uint32_t most, int32_t top)
{
    int32_t e = (int32_t)(most >> 23) - 127 - top + ((most & 0x7fffffu) > 0x600000u ? 1 : 0);
    return most == 0 ? 0 : e < -126 ? -126 : e;
}

/* The bits of 2^e, for e from -126 to 127. */
MOE_FP8_ON_BOTH uint32_t moe_fp8_power(int32_t e)
{
    return (uint32_t)(e + 127) << 23;
}

/*
 * Rounded columns: a matrix [width, pitch] with a column for each row of all groups. Group `group`, whose first row is
 * `row`, has its first column at a multiple of 128, so that its blocks are whole ones and the next group's others; the
 * columns between hold nothing. No sum over the groups before is needed: the next group's first column is at least the
 * group's rows, rounded up, behind this one.
 */
MOE_FP8_ON_BOTH int64_t moe_fp8_column(int64_t row, int64_t group)
{
    return (row + 127) / 128 * 128 + group * 128;
}

/* Columns of the matrix, for `rows` rows of `groups` groups. */
MOE_FP8_ON_BOTH int64_t moe_fp8_pitch(int64_t rows, int64_t groups)
{
    return moe_fp8_column(rows, groups);
}

#endif
