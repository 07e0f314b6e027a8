/*
 * stub.c: the C functions of Transformer Engine and cuBLAS that rollcall looks at, without their work: each checks that
 * it got every argument as tests/interposer/ext/job.c passes it, and counts. STUB_TE, STUB_BLAS or STUB_BLASLT picks
 * the library.
 */
#include "tests/interposer/ext/stub.h"

#include <stdio.h>
#include <stdlib.h>

#define GOT(condition)                                                                                                 \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "stub: %s: not as passed: %s\n", __func__, #condition);                                    \
            abort();                                                                                                   \
        }                                                                                                              \
        CALLS++;                                                                                                       \
    } while (0)

#ifdef STUB_TE
#define CALLS stub_calls
int stub_calls;

size_t nvte_tensor_ndims(const void *t)
{
    return ((const struct stub_tensor *)t)->dims;
}

size_t nvte_tensor_size(const void *t, size_t dim)
{
    if (dim >= ((const struct stub_tensor *)t)->dims) {
        abort(); /* the real one throws */
    }
    return ((const struct stub_tensor *)t)->size[dim];
}

size_t nvte_tensor_numel(const void *t)
{
    const struct stub_tensor *tensor = t;
    return tensor->dims == 0 ? 1 : tensor->size[0] * (tensor->dims > 1 ? tensor->size[1] : 1);
}

int nvte_tensor_type(const void *t)
{
    return ((const struct stub_tensor *)t)->type;
}

size_t nvte_grouped_tensor_num_tensors(const void *t)
{
    return ((const struct stub_tensor *)t)->size[0];
}

void nvte_multi_tensor_gemm(void *const *A, void *const *B, void **D, void *const *bias, void **pre_gelu, int num,
                            bool transa, bool transb, bool grad, void **workspace, bool accumulate, bool split, int sms,
                            void *stream)
{
    GOT(A == P(1) && B != NULL && D == P(3) && bias == P(4) && pre_gelu == P(5) && num > 0 && transa && !transb &&
        grad && workspace == P(6) && !accumulate && split && sms == 7 && stream == NULL);
}

void _Z29nvte_multi_stream_cublas_gemmPKPvS1_PS_S1_S2_ibbbS2_bbiP11CUstream_st(
    void *const *A, void *const *B, void **D, void *const *bias, void **pre_gelu, int num, bool transa, bool transb,
    bool grad, void **workspace, bool accumulate, bool split, int sms, void *stream)
{
    nvte_multi_tensor_gemm(A, B, D, bias, pre_gelu, num, transa, transb, grad, workspace, accumulate, split, sms,
                           stream);
}

void nvte_grouped_gemm(void *A, int transa, void *B, int transb, void *C, void *D, void *alpha, void *beta, void *setup,
                       void *workspace, void *config, void *stream)
{
    GOT(A == P(1) && transa == 2 && B != NULL && transb == 4 && C == P(5) && D == P(6) && alpha == P(7) &&
        beta == P(8) && setup == P(9) && workspace == P(10) && config == P(11) && stream == NULL);
}

void _Z12nvte_permutePvS_S_S_S_S_S_iiiiP11CUstream_st(void *in, void *out, void *sorted, void *map, void *prob,
                                                      void *prob_grad, void *fwd, int rows, int topk, int cols,
                                                      int tokens_out, void *stream)
{
    GOT(in == NULL && out == P(2) && sorted == P(3) && map == P(4) && prob == P(5) && prob_grad == P(6) &&
        fwd == P(7) && rows == 8 && topk == 9 && cols == 10 && tokens_out == 11 && stream == NULL);
}

void nvte_fused_topk_with_score_function_forward(void *logits, int tokens, int experts, int topk, int pre, int groups,
                                                 int group_topk, float scale, int score, void *bias, void *probs,
                                                 void *map, void *mid, void *stream)
{
    GOT(logits == P(1) && tokens == 2 && experts == 3 && topk == 4 && pre == 5 && groups == 6 && group_topk == 7 &&
        scale == 8.5f && score == 9 && bias == P(10) && probs == P(11) && map == P(12) && mid == P(13) &&
        stream == P(14));
}

/* A struct by value, as in the newest release: nothing that knows the prototype stands between. */
void nvte_ep_dispatch(void *handle, void *index, void *tokens, struct stub_window window, double last)
{
    GOT(handle == P(1) && index == P(2) && tokens == P(3) && window.window == P(4) && window.offset == 5 &&
        window.scale == P(6) && last == 7.25);
}

void nvte_cublas_gemm(void *A, void *B, void *D, void *bias, void *pre_gelu, bool transa, bool transb, bool grad,
                      void *workspace, bool accumulate, bool split, int sms, void *stream)
{
    GOT(A == P(1) && B != NULL && D == P(3) && bias == P(4) && pre_gelu == P(5) && transa && !transb && grad &&
        workspace == P(6) && accumulate && !split && sms == 7 && stream == NULL);
}
#endif

#ifdef STUB_BLAS
#define CALLS blas_calls
static int blas_calls;

int cublasSgemmGroupedBatched(void *handle, const int transa[], const int transb[], const int m[], const int n[],
                              const int k[], const float alpha[], const float *const A[], const int lda[],
                              const float *const B[], const int ldb[], const float beta[], float *const C[],
                              const int ldc[], int groups, const int size[])
{
    GOT(handle == P(1) && transa == P(2) && transb == P(3) && m && n && k && alpha == P(7) && A == P(8) &&
        lda == P(9) && B == P(10) && ldb == P(11) && beta == P(12) && C == P(13) && ldc == P(14) && groups == 3 &&
        size != NULL);
    return 13;
}

int cublasGemmEx(void *handle, int transa, int transb, int m, int n, int k, const void *alpha, const void *A, int Atype,
                 int lda, const void *B, int Btype, int ldb, const void *beta, void *C, int Ctype, int ldc, int compute,
                 int algo)
{
    GOT(handle == P(1) && transa == 2 && transb == 3 && m == 4 && n == 5 && k == 6 && alpha == P(7) && A == P(8) &&
        Atype == 14 && lda == 10 && B == P(11) && Btype == 12 && ldb == 13 && beta == P(14) && C == P(15) &&
        Ctype == 16 && ldc == 17 && compute == 18 && algo == 19);
    return 0;
}
#endif
