/*
 * plain_blas.c: matrix products in plain loops, where there is no BLAS: for the checks of a GPU machine
 * (ROLL_RANK_ONLY), and for who wants rollcall and not the library.
 *
 * On a GPU machine the GPU's results are compared with the host back end, which must be right and need not be fast.
 * Requiring a BLAS was rejected: such machines are borrowed, and have only the packages that PyTorch brings; and a
 * cluster that is to have the daemon may have none. Sums are taken in double, so that the other side of the comparison
 * is the exact one.
 */
#include "moe_core/host/plain/cblas.h"

#include <stdint.h>

void cblas_sgemm(enum CBLAS_ORDER order, enum CBLAS_TRANSPOSE ta, enum CBLAS_TRANSPOSE tb, int m, int n, int k,
                 float alpha, const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc)
{
    (void)order;
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t l = 0; l < k; l++) {
                float left = ta == CblasTrans ? a[l * lda + i] : a[i * lda + l];
                float right = tb == CblasTrans ? b[j * ldb + l] : b[l * ldb + j];
                sum += (double)left * (double)right;
            }
            float *to = c + i * ldc + j;
            *to = (float)((double)alpha * sum + (beta == 0.0f ? 0.0 : (double)(beta * *to)));
        }
    }
}

void openblas_set_num_threads(int threads)
{
    (void)threads;
}
