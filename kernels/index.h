/*
 * index.h: the index arithmetic of the kernels as pure functions, compiled for device and host, so that a test without
 * a GPU compares them with plain loops.
 */
#ifndef ROLL_KERNELS_INDEX_H
#define ROLL_KERNELS_INDEX_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define MOE_PURE static __host__ __device__ __forceinline__
#else
#define MOE_PURE static inline
#endif

/*
 * Keys: unsigned numbers in the order in which experts are chosen. A larger value has a larger key, both zeros have the
 * same key, and every NaN has the same key below every number. MOE_KEY_TAKEN is below all.
 */
enum { MOE_KEY_TAKEN = 0, MOE_KEY_NAN = 1 };
MOE_PURE uint32_t moe_order_key(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return MOE_KEY_NAN;
    }
    if ((bits & 0x7fffffffu) == 0) {
        return 0x80000000u;
    }
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

MOE_PURE int moe_ones(uint32_t word)
{
#ifdef __CUDA_ARCH__
    return __popc(word);
#else
    return __builtin_popcount(word);
#endif
}

/* How many of the first `bit` bits of a set of 32-bit words are one. */
MOE_PURE int32_t moe_ones_before(const uint32_t *words, int32_t bit)
{
    int32_t ones = 0;
    for (int32_t i = 0; i < bit / 32; i++) {
        ones += moe_ones(words[i]);
    }
    uint32_t below = ((uint32_t)1 << bit % 32) - 1;
    return bit % 32 != 0 ? ones + moe_ones(words[bit / 32] & below) : ones;
}

/* The last i with start[i] <= at, for ascending starts with start[0] <= at; where several are equal (empty pieces), the
 * last of them. */
MOE_PURE int64_t moe_piece_of(const int64_t *start, int64_t n, int64_t at)
{
    int64_t low = 0, high = n; /* start[low] <= at < start[high], the end counting as infinite */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (start[middle] <= at) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* `count` rounded up to a multiple of align; align 0 and 1 leave it unchanged. */
MOE_PURE int64_t moe_round_up(int64_t count, int64_t align)
{
    return align > 1 ? (count + align - 1) / align * align : count;
}

#endif
