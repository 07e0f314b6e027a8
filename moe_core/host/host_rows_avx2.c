/*
 * host_rows_avx2.c: the arithmetic of rows for processors with AVX2 and F16C; compiled with them allowed, without fused
 * multiply-add. AVX-512 was left out: these loops wait for memory, so wider registers do not help.
 */
#if defined(__x86_64__)
#define ROWS_NAME  "avx2"
#define ROWS_TABLE moe_host_rows_avx2
#include "moe_core/host/host_rows_body.h"
#else
typedef int moe_host_rows_avx2_not_here;
#endif
