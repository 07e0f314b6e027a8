/* host_gemm.h: the host's products of one group: by the BLAS, or by loops of our own where a group has few rows. */
#ifndef MOE_CORE_HOST_HOST_GEMM_H
#define MOE_CORE_HOST_HOST_GEMM_H

#include "moe_core/include/moe/ops.h"

#pragma GCC visibility push(hidden)

/*
 * One product of one group, or a part of it; strides in elements.
 *
 * FORWARD  out[m,n] = in[m,k] w[n,k]^T
 * DGRAD    out[m,k] = in[m,n] w[n,k]
 * WGRAD    out[n,k] = beta out + in[m,n]^T x[m,k]
 */
struct moe_product {
    enum moe_grouped_kind kind;
    int64_t m, n, k;
    const float *in;
    int64_t in_stride;
    const void *w; /* FORWARD, DGRAD */
    int64_t w_stride;
    enum moe_dtype w_type; /* float32 where m is above moe_host_small_most */
    const float *x;        /* WGRAD */
    int64_t x_stride;
    float *out;
    int64_t out_stride;
    float beta; /* WGRAD, 0 or 1 */
};

/* The most rows with which a product of this kind is computed by the loops of our own. */
int64_t moe_host_small_most(enum moe_grouped_kind kind, enum moe_dtype w_type);

/* Computes one product. Any thread. Errors: SHAPE (more than the BLAS can count). */
int moe_host_group_product(const struct moe_product *p);

/* A loop for few rows; m is at least 1. There is one table of loops for each instruction set. */
typedef void moe_host_small_fn(const struct moe_product *p);
struct moe_host_small {
    const char *name;
    moe_host_small_fn *forward[MOE_F16 + 1], *dgrad[MOE_F16 + 1]; /* by the type of w */
    moe_host_small_fn *wgrad;
};
extern const struct moe_host_small moe_host_small_plain;
#if defined(__x86_64__)
extern const struct moe_host_small moe_host_small_avx2;
#endif
/* The table for this processor. Static storage; any thread. */
const struct moe_host_small *moe_host_small_table(void);

/*
 * The number of parts of a product: FORWARD and WGRAD are cut by n, DGRAD by k. It depends on the product alone, not on
 * the threads or the other groups, so no result depends on those either. moe_host_part gives the range [*from, *to) of
 * part i; all parts together cover everything once.
 */
int64_t moe_host_parts(const struct moe_product *p);
void moe_host_part(const struct moe_product *p, int64_t i, int64_t parts, int64_t *from, int64_t *to);

/*
 * Runs task(arg, i, worker) for every i below n, on the calling thread (worker 0) and on the threads of the process's
 * pool (1 to moe_host_threads() - 1), and waits for all. While another device uses the pool, the calling thread runs
 * all tasks. Returns the first error of a task; the other tasks still run.
 */
int moe_host_parallel(int64_t n, int (*task)(void *arg, int64_t i, int worker), void *arg);
/* The environment's MOE_HOST_THREADS, at most 64; 1 without the variable. */
int moe_host_threads(void);

#pragma GCC visibility pop

#endif
