/*
 * host_small_avx2.c: products of few rows for processors with AVX2, FMA and F16C; compiled with them allowed. AVX-512
 * was left out: these loops wait for the weights to come from memory.
 */
#if defined(__x86_64__)
#define SMALL_WIDTH 8
#define SMALL_NAME  "avx2"
#define SMALL_TABLE moe_host_small_avx2
#include "moe_core/host/host_small_body.h"
#else
typedef int moe_host_small_avx2_not_here;
#endif
