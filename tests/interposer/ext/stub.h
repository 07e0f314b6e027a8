/* stub.h: the functions of stub.c, and the arguments that job.c passes: pointers that only say which argument they are.
 */
#ifndef ROLL_TESTS_INTERPOSER_EXT_STUB_H
#define ROLL_TESTS_INTERPOSER_EXT_STUB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define P(n) ((void *)(uintptr_t)(0x1000 + (n)))

struct stub_tensor {
    size_t dims, size[2];
    int type;
};
struct stub_window {
    void *window;
    uint64_t offset;
    void *scale;
};

extern int stub_calls;
size_t nvte_tensor_ndims(const void *t);
size_t nvte_tensor_size(const void *t, size_t dim);
size_t nvte_tensor_numel(const void *t);
int nvte_tensor_type(const void *t);
size_t nvte_grouped_tensor_num_tensors(const void *t);
void nvte_multi_tensor_gemm(void *const *A, void *const *B, void **D, void *const *bias, void **pre_gelu, int num,
                            bool transa, bool transb, bool grad, void **workspace, bool accumulate, bool split, int sms,
                            void *stream);
void _Z29nvte_multi_stream_cublas_gemmPKPvS1_PS_S1_S2_ibbbS2_bbiP11CUstream_st(
    void *const *A, void *const *B, void **D, void *const *bias, void **pre_gelu, int num, bool transa, bool transb,
    bool grad, void **workspace, bool accumulate, bool split, int sms, void *stream);
void nvte_grouped_gemm(void *A, int transa, void *B, int transb, void *C, void *D, void *alpha, void *beta, void *setup,
                       void *workspace, void *config, void *stream);
void _Z12nvte_permutePvS_S_S_S_S_S_iiiiP11CUstream_st(void *in, void *out, void *sorted, void *map, void *prob,
                                                      void *prob_grad, void *fwd, int rows, int topk, int cols,
                                                      int tokens_out, void *stream);
void nvte_fused_topk_with_score_function_forward(void *logits, int tokens, int experts, int topk, int pre, int groups,
                                                 int group_topk, float scale, int score, void *bias, void *probs,
                                                 void *map, void *mid, void *stream);
void nvte_ep_dispatch(void *handle, void *index, void *tokens, struct stub_window window, double last);
void nvte_cublas_gemm(void *A, void *B, void *D, void *bias, void *pre_gelu, bool transa, bool transb, bool grad,
                      void *workspace, bool accumulate, bool split, int sms, void *stream);
int cublasSgemmGroupedBatched(void *handle, const int transa[], const int transb[], const int m[], const int n[],
                              const int k[], const float alpha[], const float *const A[], const int lda[],
                              const float *const B[], const int ldb[], const float beta[], float *const C[],
                              const int ldc[], int groups, const int size[]);
int cublasGemmEx(void *handle, int transa, int transb, int m, int n, int k, const void *alpha, const void *A, int Atype,
                 int lda, const void *B, int Btype, int ldb, const void *beta, void *C, int Ctype, int ldc, int compute,
                 int algo);

#endif
