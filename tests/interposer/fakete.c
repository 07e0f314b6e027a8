/*
 * fakete.c: functions of Transformer Engine and cuBLAS that do nothing, for roll_bench: each under its own name, which
 * the preload stands before, and under bare_NAME, which it does not.
 */
#include <stdbool.h>
#include <stddef.h>

#define BOTH(ret, name, params, ...)                                                                                   \
    ret name params;                                                                                                   \
    ret bare_##name params;                                                                                            \
    ret name params __VA_ARGS__ ret bare_##name params __VA_ARGS__

size_t nvte_tensor_ndims(const void *t);
size_t nvte_tensor_size(const void *t, size_t dim);
size_t nvte_tensor_numel(const void *t);
int nvte_tensor_type(const void *t);

size_t nvte_tensor_ndims(const void *t)
{
    (void)t;
    return 2;
}

size_t nvte_tensor_size(const void *t, size_t dim)
{
    (void)t;
    return dim == 0 ? 512 : 4096;
}

size_t nvte_tensor_numel(const void *t)
{
    (void)t;
    return (size_t)512 * 4096;
}

int nvte_tensor_type(const void *t)
{
    (void)t;
    return 6;
}

BOTH(void, nvte_multi_tensor_gemm,
     (void *const *A, void *const *B, void **D, void *const *bias, void **pre_gelu, int num, bool transa, bool transb,
      bool grad, void **workspace, bool accumulate, bool split, int sms, void *stream),
     {
         (void)A, (void)B, (void)D, (void)bias, (void)pre_gelu, (void)num, (void)transa, (void)transb, (void)grad;
         (void)workspace, (void)accumulate, (void)split, (void)sms, (void)stream;
     })

BOTH(void, nvte_cublas_gemm,
     (void *A, void *B, void *D, void *bias, void *pre_gelu, bool transa, bool transb, bool grad, void *workspace,
      bool accumulate, bool split, int sms, void *stream),
     {
         (void)A, (void)B, (void)D, (void)bias, (void)pre_gelu, (void)transa, (void)transb, (void)grad;
         (void)workspace, (void)accumulate, (void)split, (void)sms, (void)stream;
     })

BOTH(void, nvte_ep_prepare, (void *memory, void *index, void *per_expert, void *total, const void *layer, void *stream),
     { (void)memory, (void)index, (void)per_expert, (void)total, (void)layer, (void)stream; })

BOTH(int, cublasSgemmGroupedBatched,
     (void *handle, const int *transa, const int *transb, const int *m, const int *n, const int *k, const float *alpha,
      const float *const *A, const int *lda, const float *const *B, const int *ldb, const float *beta, float *const *C,
      const int *ldc, int groups, const int *size),
     {
         (void)handle, (void)transa, (void)transb, (void)m, (void)n, (void)k, (void)alpha, (void)A, (void)lda, (void)B;
         (void)ldb, (void)beta, (void)C, (void)ldc, (void)groups, (void)size;
         return 0;
     })
