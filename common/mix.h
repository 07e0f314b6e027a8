/*
 * mix.h: the hash in the checksum of a tensor (ops.h). Host and device compile the same text, because their checksums
 * must be equal in every bit.
 */
#ifndef ROLL_COMMON_MIX_H
#define ROLL_COMMON_MIX_H

#include <stdint.h>

#ifdef __CUDACC__
#define MOE_ON_BOTH __host__ __device__
#else
#define MOE_ON_BOTH
#endif

/* A bijection of 64-bit numbers in which every bit of the input moves about half of the output: two rounds of multiply
 * and shift. */
static inline MOE_ON_BOTH uint64_t moe_mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* The summand of the i-th word in the checksum. */
static inline MOE_ON_BOTH uint64_t moe_mix_word(uint64_t word, uint64_t i)
{
    return moe_mix(word + moe_mix(i + 1));
}

/* A fixed sign for the i-th element: 1 or -1 (moe_sum_abs). */
static inline MOE_ON_BOTH double moe_sign(uint64_t i)
{
    return (moe_mix(i + 1) & 1) != 0 ? 1.0 : -1.0;
}

#endif
