/*
 * cblas.h: the two functions of a BLAS that the host back end calls, for machines that have none (plain_blas.c). Not
 * installed.
 */
#ifndef MOE_PLAIN_CBLAS_H
#define MOE_PLAIN_CBLAS_H

enum CBLAS_ORDER { CblasRowMajor = 101 };
enum CBLAS_TRANSPOSE { CblasNoTrans = 111, CblasTrans = 112 };

void cblas_sgemm(enum CBLAS_ORDER order, enum CBLAS_TRANSPOSE ta, enum CBLAS_TRANSPOSE tb, int m, int n, int k,
                 float alpha, const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
void openblas_set_num_threads(int threads);

#endif
