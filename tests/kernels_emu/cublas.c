/*
 * cublas.c: the part of cuBLAS that libmoe_kernels.so uses, by loops on the host, as work of the handle's stream. A
 * call in a capture becomes a node of its graph, as cuBLAS's kernels would.
 *
 * Grouped products are refused with CUBLAS_STATUS_NOT_SUPPORTED, as cuBLAS refuses types that it has no kernel for: the
 * library then takes kernels of its own. Sums are added in float32 in order, without the blocking of a GPU.
 */
#include <cuda_runtime.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include <cublas_v2.h>

#define EXPORT __attribute__((visibility("default")))

struct cublasContext {
    cudaStream_t stream;
};

/* cuBLAS allocates memory of the device here, which a capture may forbid to the thread. */
EXPORT cublasStatus_t cublasCreate_v2(cublasHandle_t *handle)
{
    void *memory = NULL;
    *handle = NULL;
    if (cudaMalloc(&memory, 256) != cudaSuccess) {
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    cudaFree(memory);
    *handle = calloc(1, sizeof(**handle));
    return *handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

EXPORT cublasStatus_t cublasDestroy_v2(cublasHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t bytes)
{
    (void)bytes;
    return handle && workspace ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

/* Work, kept as long as the process lives: a graph may hold it. */
struct product {
    bool a_is_transposed, b_is_transposed;
    int64_t m, n, k, lda, ldb, ldc;
    float alpha, beta;
    const float *a, *b;
    float *c;
};

static void multiply(void *data)
{
    const struct product *p = data;
    for (int64_t j = 0; j < p->n; j++) {
        for (int64_t i = 0; i < p->m; i++) {
            float sum = 0, *c = &p->c[i + j * p->ldc];
            for (int64_t l = 0; l < p->k; l++) {
                sum += (p->a_is_transposed ? p->a[l + i * p->lda] : p->a[i + l * p->lda]) *
                       (p->b_is_transposed ? p->b[j + l * p->ldb] : p->b[l + j * p->ldb]);
            }
            *c = p->alpha * sum + (p->beta == 0.0f ? 0.0f : p->beta * *c); /* what is there may be no number */
        }
    }
}

struct scaling {
    int64_t n, step;
    float by, *x;
};

static void scale(void *data)
{
    const struct scaling *s = data;
    for (int64_t i = 0; i < s->n; i++) {
        s->x[i * s->step] *= s->by;
    }
}

static cublasStatus_t enqueue(cublasHandle_t handle, cudaHostFn_t work, void *data)
{
    if (!data) {
        return CUBLAS_STATUS_ALLOC_FAILED;
    }
    return cudaLaunchHostFunc(handle->stream, work, data) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                                         : CUBLAS_STATUS_EXECUTION_FAILED;
}

EXPORT cublasStatus_t cublasSgemm_v2_64(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int64_t m,
                                        int64_t n, int64_t k, const float *alpha, const float *a, int64_t lda,
                                        const float *b, int64_t ldb, const float *beta, float *c, int64_t ldc)
{
    bool a_is_transposed = ta != CUBLAS_OP_N, b_is_transposed = tb != CUBLAS_OP_N;
    if (m < 0 || n < 0 || k < 0 || lda < (a_is_transposed ? k : m) || ldb < (b_is_transposed ? n : k) || ldc < m) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    struct product *p = malloc(sizeof(*p));
    if (p) {
        *p = (struct product){a_is_transposed, b_is_transposed, m, n, k, lda, ldb, ldc, *alpha, *beta, a, b, c};
    }
    return enqueue(handle, multiply, p);
}

EXPORT cublasStatus_t cublasSscal_v2_64(cublasHandle_t handle, int64_t n, const float *alpha, float *x, int64_t step)
{
    struct scaling *s = malloc(sizeof(*s));
    if (s) {
        *s = (struct scaling){n, step, *alpha, x};
    }
    return enqueue(handle, scale, s);
}

EXPORT cublasStatus_t cublasGemmGroupedBatchedEx_64(cublasHandle_t handle, const cublasOperation_t ta[],
                                                    const cublasOperation_t tb[], const int64_t m[], const int64_t n[],
                                                    const int64_t k[], const void *alpha, const void *const a[],
                                                    cudaDataType_t a_type, const int64_t lda[], const void *const b[],
                                                    cudaDataType_t b_type, const int64_t ldb[], const void *beta,
                                                    void *const c[], cudaDataType_t c_type, const int64_t ldc[],
                                                    int64_t groups, const int64_t sizes[], cublasComputeType_t type)
{
    (void)handle, (void)ta, (void)tb, (void)m, (void)n, (void)k, (void)alpha, (void)a, (void)a_type, (void)lda;
    (void)b, (void)b_type, (void)ldb, (void)beta, (void)c, (void)c_type, (void)ldc, (void)groups, (void)sizes;
    (void)type;
    return CUBLAS_STATUS_NOT_SUPPORTED;
}
