/*
 * random.h: random numbers that depend on a key alone, so that they are the same on every rank, in any order, in the
 * job and in the reference.
 */
#ifndef MOE_CORE_TRAIN_RANDOM_H
#define MOE_CORE_TRAIN_RANDOM_H

#include <math.h>
#include <stdint.h>

/* SplitMix64's finalizer: a bijection whose output bits all depend on all input bits. */
static inline uint64_t random_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static inline uint64_t random_key(uint64_t seed, uint64_t a, uint64_t b)
{
    return random_mix(random_mix(random_mix(seed) ^ a) ^ b);
}

/* Normal with mean 0 and variance 1, from the key (Box-Muller). */
static inline double random_normal(uint64_t key)
{
    double u = ((double)(random_mix(key) >> 11) + 1.0) * 0x1p-53;
    double v = (double)(random_mix(key ^ 0x5851f42d4c957f2dull) >> 11) * 0x1p-53;
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

#endif
