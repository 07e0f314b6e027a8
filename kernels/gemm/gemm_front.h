/*
 * gemm_front.h: the functions of gemm_cublas.c that gemm.cu calls.
 */
#ifndef ROLL_KERNELS_GEMM_GEMM_FRONT_H
#define ROLL_KERNELS_GEMM_GEMM_FRONT_H

#include "moe_core/include/moe/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

struct moe_cublas;

/* A handle on the current device, with a workspace of its own; the library is loaded at the first call. *out is owned.
 * Errors: UNSUPPORTED (no library), NOMEM, DEVICE. */
int moe_cublas_new(struct moe_cublas **out);
void moe_cublas_destroy(struct moe_cublas **cublas);

/* kernels.h: moe_kernel_product, moe_kernel_linear_host. */
int moe_cublas_product(struct moe_cublas *cublas, const struct moe_gemm *args, cudaStream_t stream);
int moe_cublas_grouped(struct moe_cublas *cublas, const struct moe_linear_pass *pass, const int64_t *m,
                       const struct moe_linear_group *group, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
