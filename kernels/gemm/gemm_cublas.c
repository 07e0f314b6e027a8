/*
 * gemm_cublas.c: products by cuBLAS: plain float32 ones, and grouped ones whose counts the host knows.
 *
 * cublasGemmGroupedBatchedEx takes its shapes from host memory, so it cannot serve counts on the device. It serves
 * m_splits of the host, and the project's own kernels are timed against it. cuBLASLt's grouped matmul takes shapes on
 * the device, but no library of CUDA 13.0 has it. cuBLAS counts column by column: a row-major matrix is its transpose
 * there, so every product is asked for as out^T. Groups without rows never reach cuBLAS: the sum over nothing is
 * written as zeros by this file.
 */
#include "kernels/gemm/gemm_front.h"
#include "moe_core/include/moe/error.h"

#include <cublas_v2.h>
#include <stdlib.h>
#include <string.h>

enum { WORKSPACE = 32 << 20 }; /* what cuBLAS asks for on Hopper */

struct moe_cublas {
    cublasHandle_t handle;
    void *workspace;
};

void moe_cublas_destroy(struct moe_cublas **cublas)
{
    struct moe_cublas *c = *cublas;
    if (c != NULL) {
        if (c->handle != NULL) {
            cublasDestroy(c->handle);
        }
        cudaFree(c->workspace);
        free(c);
        *cublas = NULL;
    }
}

int moe_cublas_new(struct moe_cublas **out)
{
    struct moe_cublas *c = calloc(1, sizeof(*c));
    int rc = c == NULL ? MOE_E_NOMEM : 0;
    *out = NULL;
    if (rc == 0 && cublasCreate(&c->handle) != CUBLAS_STATUS_SUCCESS) {
        rc = MOE_E_DEVICE;
    }
    if (rc == 0 && cudaMalloc(&c->workspace, WORKSPACE) != cudaSuccess) {
        rc = MOE_E_NOMEM;
    }
    if (rc != 0) {
        moe_cublas_destroy(&c);
    }
    *out = c;
    return rc;
}

/* Sets the stream first: choosing a stream takes the workspace away. */
static int use_stream(struct moe_cublas *c, cudaStream_t stream)
{
    return cublasSetStream(c->handle, stream) == CUBLAS_STATUS_SUCCESS &&
                   cublasSetWorkspace(c->handle, c->workspace, WORKSPACE) == CUBLAS_STATUS_SUCCESS
               ? 0
               : MOE_E_DEVICE;
}

int moe_cublas_product(struct moe_cublas *c, const struct moe_gemm *g, cudaStream_t stream)
{
    if (g->m < 0 || g->n < 0 || g->k < 0) {
        return MOE_E_SHAPE;
    }
    int rc = use_stream(c, stream);
    if (rc != 0 || g->m == 0 || g->n == 0) {
        return rc;
    }
    if (g->k == 0) { /* c *= beta, which for 0 must not read c */
        if (g->beta == 0.0f) {
            size_t bytes = (size_t)(g->m * g->n) * sizeof(float);
            return cudaMemsetAsync(g->c, 0, bytes, stream) == cudaSuccess ? 0 : MOE_E_DEVICE;
        }
        return cublasSscal_64(c->handle, g->m * g->n, &g->beta, g->c, 1) == CUBLAS_STATUS_SUCCESS ? 0 : MOE_E_DEVICE;
    }
    cublasStatus_t status =
        cublasSgemm_64(c->handle, g->tb ? CUBLAS_OP_T : CUBLAS_OP_N, g->ta ? CUBLAS_OP_T : CUBLAS_OP_N, g->n, g->m,
                       g->k, &g->alpha, g->b, g->tb ? g->k : g->n, g->a, g->ta ? g->m : g->k, &g->beta, g->c, g->n);
    return status == CUBLAS_STATUS_SUCCESS ? 0 : MOE_E_DEVICE;
}

/* grouped, counts of the host */

/* The lists that cuBLAS reads on the host, with one entry for each group with rows, in one allocation. */
struct lists {
    int64_t count;
    int64_t *m, *n, *k, *lda, *ldb, *ldc, *size;
    cublasOperation_t *ta, *tb;
    float *alpha, *beta;
    const void **pointers; /* a, b, c: `count` each */
};

static int lists_new(struct lists *l, int64_t groups)
{
    size_t n = (size_t)groups;
    char *memory =
        calloc(n, 7 * sizeof(int64_t) + 3 * sizeof(void *) + 2 * sizeof(cublasOperation_t) + 2 * sizeof(float));
    memset(l, 0, sizeof(*l));
    if (memory == NULL) {
        return MOE_E_NOMEM;
    }
    int64_t **numbers[] = {&l->m, &l->n, &l->k, &l->lda, &l->ldb, &l->ldc, &l->size};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        *numbers[i] = (int64_t *)(void *)memory + i * n;
    }
    l->pointers = (const void **)(void *)(l->size + n);
    l->ta = (cublasOperation_t *)(void *)(l->pointers + 3 * n);
    l->tb = l->ta + n;
    l->alpha = (float *)(void *)(l->tb + n);
    l->beta = l->alpha + n;
    return 0;
}

static void *at(const void *base, int64_t element)
{
    return (char *)(uintptr_t)base + element * 2; /* 16-bit types only */
}

/* Adds one group with rows: out^T, column-major. */
static void add_group(struct lists *l, const struct moe_linear_pass *p, const struct moe_linear_group *g, int64_t row,
                      int64_t m, const void **a, const void **b, void **c)
{
    int64_t i = l->count++;
    bool forward = p->kind == MOE_LINEAR_FORWARD, wgrad = p->kind == MOE_LINEAR_WGRAD;
    l->m[i] = l->ldc[i] = forward ? p->n : p->k;
    l->n[i] = wgrad ? p->n : m;
    l->k[i] = forward ? p->k : wgrad ? m : p->n;
    l->lda[i] = p->k;
    l->ldb[i] = forward ? p->k : p->n;
    l->ta[i] = forward ? CUBLAS_OP_T : CUBLAS_OP_N;
    l->tb[i] = wgrad ? CUBLAS_OP_T : CUBLAS_OP_N;
    l->alpha[i] = 1.0f;
    l->beta[i] = wgrad ? p->beta : 0.0f;
    l->size[i] = 1;
    *a = wgrad ? at(p->x, row * p->k) : g->weight;
    *b = forward ? at(p->x, row * p->k) : at(p->dy, row * p->n);
    *c = wgrad ? g->d_weight : at(p->out, row * (forward ? p->n : p->k));
}

static int fill(struct lists *l, const struct moe_linear_pass *p, const int64_t *m,
                const struct moe_linear_group *group, cudaStream_t stream)
{
    size_t bytes = (size_t)(p->n * p->k) * 2;
    const void **a = l->pointers, **b = a + p->groups;
    void **c = (void **)(uintptr_t)(b + p->groups);
    for (int64_t i = 0, row = 0; i < p->groups; row += m[i++]) {
        if (m[i] > 0) {
            add_group(l, p, &group[i], row, m[i], &a[l->count], &b[l->count], &c[l->count]);
        } else if (p->kind == MOE_LINEAR_WGRAD && p->beta == 0.0f &&
                   cudaMemsetAsync(group[i].d_weight, 0, bytes, stream) != cudaSuccess) {
            return MOE_E_DEVICE;
        }
    }
    return 0;
}

static int check(const struct moe_linear_pass *p, const int64_t *m, const struct moe_linear_group *group)
{
    bool half = p->activation == MOE_BF16 || p->activation == MOE_F16;
    enum moe_dtype other = p->kind == MOE_LINEAR_WGRAD ? p->grad : p->weight;
    if (p->groups < 1 || p->n < 1 || p->k < 1 || p->rows < 0) {
        return MOE_E_SHAPE;
    }
    if (m == NULL || group == NULL) {
        return MOE_E_ARG;
    }
    if (!half || p->kind > MOE_LINEAR_WGRAD || other != p->activation) {
        return MOE_E_UNSUPPORTED;
    }
    int64_t sum = 0;
    for (int64_t i = 0; i < p->groups; i++) {
        if (m[i] < 0) {
            return MOE_E_COUNT;
        }
        if (m[i] > p->rows - sum) {
            return MOE_E_SPLIT;
        }
        if (p->kind == MOE_LINEAR_FORWARD && group[i].bias != NULL) {
            return MOE_E_UNSUPPORTED;
        }
        sum += m[i];
    }
    return 0;
}

int moe_cublas_grouped(struct moe_cublas *cublas, const struct moe_linear_pass *p, const int64_t *m,
                       const struct moe_linear_group *group, cudaStream_t stream)
{
    struct lists l = {.count = 0};
    const void **device = NULL;
    int rc = check(p, m, group);
    if (rc == 0) {
        rc = use_stream(cublas, stream);
    }
    if (rc != 0) {
        return rc;
    }
    rc = lists_new(&l, p->groups);
    if (rc == 0) {
        rc = fill(&l, p, m, group, stream);
    }
    if (rc != 0 || l.count == 0) {
        goto out;
    }
    size_t bytes = 3 * (size_t)p->groups * sizeof(void *);
    if (cudaMallocAsync((void **)&device, bytes, stream) != cudaSuccess) {
        rc = MOE_E_NOMEM;
        goto out;
    }
    cudaDataType_t type = p->activation == MOE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
    if (cudaMemcpyAsync(device, l.pointers, bytes, cudaMemcpyHostToDevice, stream) != cudaSuccess ||
        cublasGemmGroupedBatchedEx_64(cublas->handle, l.ta, l.tb, l.m, l.n, l.k, l.alpha, device, type, l.lda,
                                      device + p->groups, type, l.ldb, l.beta,
                                      (void *const *)(uintptr_t)(device + 2 * p->groups), type, l.ldc, l.count, l.size,
                                      CUBLAS_COMPUTE_32F) != CUBLAS_STATUS_SUCCESS) {
        rc = MOE_E_DEVICE;
    }
out:
    if (device != NULL) {
        cudaFreeAsync((void *)(uintptr_t)device, stream);
    }
    free(l.m);
    return rc;
}
