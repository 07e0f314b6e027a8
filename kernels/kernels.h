/*
 * kernels.h: the kernels of the CUDA back end that are not in its table of functions (backend.h), behind a C interface.
 *
 * Each function checks its arguments, enqueues on `stream` and returns; nothing waits for the device and nothing is
 * read back. All pointers are device memory, float32, row-major, 16-byte aligned (cudaMalloc gives more). Row and
 * element numbers are 64 bit. Return: 0, -2 (argument), -3 (shape), -10 (launch refused by the runtime): the codes of
 * moe/err.def. Any thread; the current device must be the stream's.
 */
#ifndef ROLL_KERNELS_KERNELS_H
#define ROLL_KERNELS_KERNELS_H

#include "moe_core/include/moe/ops.h"

#include <cuda_runtime.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Stores zeros into slice i of out [groups, elements] for every group with m[i] = 0; the others are not touched. The
 * decision is a predicate on the device's own counts: graph-capturable (remedy R1; TransformerEngine #3019).
 */
__attribute__((visibility("default"))) /* for the checks */
int moe_kernel_zero_empty(float *out, const int64_t *m, int64_t groups, int64_t elements, cudaStream_t stream);

/* Whether the library holds code for the current GPU: cudaSuccess, or the runtime's error. */
cudaError_t moe_kernels_loadable(void);

/* grouped products (docs/MOE.md, "The grouped GEMM on the device") */

#pragma GCC visibility push(default) /* for the checks: libmoe_core.so uses them by way of the table */

/*
 * Which implementation computes a grouped product whose counts are on the device. AUTO: the best of the kernels of this
 * tree for the device and the types. CUBLASLT_GROUPED: UNSUPPORTED unless the library has it (none of CUDA 13.0's has).
 * cuBLAS's grouped batched product needs the counts on the host: moe_kernel_linear_host.
 */
enum moe_kernel_backend {
    MOE_KERNEL_AUTO,
    MOE_KERNEL_OWN_WGMMA, /* sm_90a; UNSUPPORTED where device, types or alignment forbid it */
    MOE_KERNEL_OWN_MMA,   /* sm_80 and later, 16-bit activations */
    MOE_KERNEL_OWN_SIMT,  /* any type: float32 products and sums */
    MOE_KERNEL_CUBLASLT_GROUPED,
    /* As OWN_WGMMA, with clusters of two or four blocks that share what they copy: less from the L2. UNSUPPORTED, too,
     * where the device runs no such cluster. No GPU has judged them yet, so AUTO does not choose them. */
    MOE_KERNEL_OWN_WGMMA_PAIRS,
    MOE_KERNEL_OWN_WGMMA_FOURS,
};

/* Device memory for plans, and the properties of the device. */
typedef struct moe_kernel_gemm moe_kernel_gemm_t;

/*
 * Makes a handle for calls of at most `groups` (to 2^20) groups on the current device. *out is owned by the caller. One
 * stream at a time: calls share the plan's memory and are ordered by their stream. Errors: ARG, NOMEM, DEVICE.
 */
int moe_kernel_gemm_new(int64_t groups, moe_kernel_gemm_t **out);
void moe_kernel_gemm_destroy(moe_kernel_gemm_t **gemm);

/*
 * Runs one pass of the grouped linear (moe/linear.h, all kinds and types; rows as they are: those of FP8 by FP8 are
 * moe_kernel_gemm_fp8's). The call allocates nothing and reads no
 * count on the host, so it can be captured. *error (device memory, may be NULL) takes COUNT, SPLIT or ARG (a group's
 * pointer that is not 16-byte aligned) in the stream, unless it holds an error already; nothing is touched then.
 * Errors: ARG, SHAPE, CAPACITY (groups), UNSUPPORTED, DEVICE.
 */
int moe_kernel_linear(moe_kernel_gemm_t *gemm, enum moe_kernel_backend backend, const struct moe_linear_pass *pass,
                      int *error, cudaStream_t stream);

/* Does what moe_kernel_linear does in float32, with weights and weight gradients in one array each. */
int moe_kernel_grouped(moe_kernel_gemm_t *gemm, const struct moe_grouped *args, int *error, cudaStream_t stream);

/*
 * Computes c = alpha op(a) op(b) + beta c in float32 without TF32, by cuBLAS. The first call makes cuBLAS's handle and
 * its workspace, in relaxed capture mode, so it may be captured, too. Errors: SHAPE, NOMEM, DEVICE.
 */
int moe_kernel_product(moe_kernel_gemm_t *gemm, const struct moe_gemm *args, cudaStream_t stream);

/*
 * Computes forward, dgrad or wgrad by cublasGemmGroupedBatchedEx, for counts that the host knows (m_splits): `m` and
 * `group` [groups] are host memory, the pointers in `group` device memory; 16-bit types, no bias, no FP8; pass->m and
 * pass->group are not read. Groups without rows never reach cuBLAS; their weight gradients are cleared as the pass
 * says. The call copies the pointers, so it cannot be captured. Errors: as above, COUNT, SPLIT.
 */
int moe_kernel_linear_host(moe_kernel_gemm_t *gemm, const struct moe_linear_pass *pass, const int64_t *m,
                           const struct moe_linear_group *group, cudaStream_t stream);

/*
 * Products of FP8 by FP8, sums in float32, of rows as moe_quantize gives them (ops.h). sm_90a only. The other operand's
 * type is e4m3; the weights' scales are group[].scale, one for each 128 x 128 block or one for all.
 *
 *              in                      other                               out
 *   FORWARD    x [rows,k]              group[].weight [n,k]                y [rows,n], with group[].bias where it is
 * set DGRAD      dy [rows,n]             the same weights as [groups,k,n]    dx [rows,k] WGRAD      dy [n,pitch],
 * `down`    x [k,pitch], `down`                 group[].d_weight [n,k]
 *
 * y and dx are bfloat16. FORWARD: k a multiple of 16, n of 8; DGRAD: n of 16, k of 8; WGRAD: n and k of 8.
 */
struct moe_kernel_fp8 {
    enum moe_linear_kind kind; /* one of the three */
    int64_t groups, n, k, rows;
    const int64_t *m;                     /* [groups], device */
    const struct moe_linear_group *group; /* [groups], device */
    enum moe_dtype in_type;               /* e4m3 or e5m2 */
    const void *in, *other;
    const float *in_scales, *other_scales; /* other_scales: WGRAD */
    void *out;                             /* FORWARD, DGRAD */
    bool block_scales;                     /* of the weights */
    enum moe_dtype bias, grad;             /* of group[].bias; of group[].d_weight */
    const float *bias_probs;               /* FORWARD: as in struct moe_linear_pass */
    float bias_scale, beta;                /* FORWARD; WGRAD */
    enum moe_kernel_backend backend;       /* AUTO, or one of the three OWN_WGMMA; teams not for WGRAD (UNSUPPORTED) */
};
int moe_kernel_gemm_fp8(moe_kernel_gemm_t *gemm, const struct moe_kernel_fp8 *args, int *error, cudaStream_t stream);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
