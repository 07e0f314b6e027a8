/*
 * host_linear.c: the host back end's grouped linear for every type.
 *
 * Operands that are not float32 are widened a group at a time into scratch, multiplied in float32 by the BLAS, and narrowed once: that is what tensor cores do
 * with a float32 accumulator. Widening whole tensors was rejected: an expert's weights are used once per pass, and most experts of a rank may have few rows.
 * With k = 0 the BLAS's beta rules are not to be relied upon, so groups without rows never reach it.
 */
#include "moe_core/device_host.h"
#include "moe_core/dtype_host.h"
#include "moe_core/fail.h"

#include <stdlib.h>
#include <string.h>

struct scratch {
    float *x, *w, *out; /* [rows of the largest group, wider of N and K] twice, [N,K] */
};

static int64_t greatest(const int64_t *m, int64_t groups)
{
    int64_t most = 0;
    for (int64_t i = 0; i < groups; i++) {
        most = m[i] > most ? m[i] : most;
    }
    return most;
}

/* Counts as they should be, or the error. */
static int check_counts(const struct moe_linear_pass *a)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < a->groups; i++) {
        if (a->m[i] < 0) {
            return MOE_E_COUNT;
        }
        if (a->m[i] > a->rows - sum) {
            return MOE_E_SPLIT;
        }
        sum += a->m[i];
    }
    return 0;
}

static void *element(const void *base, int64_t index, enum moe_dtype type)
{
    return (char *)(uintptr_t)base + index * (int64_t)moe_dtype_bytes(type);
}

/* Rows as float32: where they lie, or widened into scratch. */
static const float *rows_of(enum moe_dtype type, const void *from, int64_t n, float *scratch)
{
    if (type == MOE_F32) {
        return from;
    }
    moe_widen(type, from, n, scratch);
    return scratch;
}

static const float *weight_of(const struct moe_linear_pass *a, const struct moe_linear_group *g, float *scratch)
{
    if (a->weight == MOE_F32) {
        return g->weight;
    }
    moe_widen(a->weight, g->weight, a->n * a->k, scratch);
    int64_t across = (a->k + 127) / 128;
    for (int64_t i = 0; g->scale != NULL && i < a->n; i++) {
        for (int64_t j = 0; j < a->k; j++) {
            scratch[i * a->k + j] *= a->block_scales ? g->scale[i / 128 * across + j / 128] : g->scale[0];
        }
    }
    return scratch;
}

/* What row r's bias is multiplied by. */
static float bias_factor(const struct moe_linear_pass *a, int64_t r)
{
    float scale = a->bias_scale == 0.0f ? 1.0f : a->bias_scale;
    return a->bias_probs == NULL ? scale : scale * a->bias_probs[r];
}

static void add_bias(const struct moe_linear_pass *a, const struct moe_linear_group *g, int64_t row, int64_t rows,
                     float *y, float *scratch)
{
    const float *bias = rows_of(a->bias, g->bias, a->n, scratch);
    for (int64_t r = 0; r < rows; r++) {
        float factor = bias_factor(a, row + r);
        for (int64_t j = 0; j < a->n; j++) {
            y[r * a->n + j] += factor * bias[j];
        }
    }
}

/* y or dx of one group that has rows. */
static int rows_pass(const struct moe_linear_pass *a, const struct moe_linear_group *g, int64_t row, int64_t m,
                     const struct scratch *s)
{
    bool forward = a->kind == MOE_LINEAR_FORWARD;
    int64_t in = forward ? a->k : a->n, out = forward ? a->n : a->k;
    void *to = element(a->out, row * out, a->activation);
    struct moe_gemm product = {
        .tb = forward,
        .m = m,
        .n = out,
        .k = in,
        .alpha = 1.0f,
        .a = rows_of(a->activation, element(forward ? a->x : a->dy, row * in, a->activation), m * in, s->x),
        .b = weight_of(a, g, s->w),
        .c = a->activation == MOE_F32 ? to : s->out};
    int rc = moe_host_product(&product);
    if (rc == 0 && forward && g->bias != NULL) {
        add_bias(a, g, row, m, product.c, s->w); /* the weight is used up */
    }
    if (rc == 0 && a->activation != MOE_F32) {
        moe_narrow(a->activation, s->out, m * out, to);
    }
    return rc;
}

static int weight_pass(const struct moe_linear_pass *a, const struct moe_linear_group *g, int64_t row, int64_t m,
                       const struct scratch *s)
{
    bool direct = a->grad == MOE_F32;
    int64_t cells = a->n * a->k;
    if (m == 0) {
        if (a->beta == 0.0f) {
            memset(g->d_weight, 0, (size_t)cells * moe_dtype_bytes(a->grad));
        }
        return 0;
    }
    if (!direct && a->beta != 0.0f) {
        moe_widen(a->grad, g->d_weight, cells, s->w);
    }
    struct moe_gemm product = {.ta = true,
                               .m = a->n,
                               .n = a->k,
                               .k = m,
                               .alpha = 1.0f,
                               .beta = a->beta,
                               .a = rows_of(a->activation, element(a->dy, row * a->n, a->activation), m * a->n, s->x),
                               .b = rows_of(a->activation, element(a->x, row * a->k, a->activation), m * a->k, s->out),
                               .c = direct ? g->d_weight : s->w};
    int rc = moe_host_product(&product);
    if (rc == 0 && !direct) {
        moe_narrow(a->grad, s->w, cells, g->d_weight);
    }
    return rc;
}

static void bias_pass(const struct moe_linear_pass *a, const struct moe_linear_group *g, int64_t row, int64_t m,
                      const struct scratch *s)
{
    const float *dy = rows_of(a->activation, element(a->dy, row * a->n, a->activation), m * a->n, s->x);
    if (a->beta == 0.0f) {
        memset(s->w, 0, (size_t)a->n * sizeof(float));
    } else if (m == 0) {
        return;
    } else {
        moe_widen(a->grad, g->d_bias, a->n, s->w);
    }
    for (int64_t r = 0; r < m; r++) {
        float p = a->bias_probs == NULL ? 1.0f : a->bias_probs[row + r];
        for (int64_t j = 0; j < a->n; j++) {
            s->w[j] += p * dy[r * a->n + j];
        }
    }
    moe_narrow(a->grad, s->w, a->n, g->d_bias);
}

static void probs_pass(const struct moe_linear_pass *a, const struct moe_linear_group *g, int64_t row, int64_t m,
                       const struct scratch *s)
{
    const float *dy = rows_of(a->activation, element(a->dy, row * a->n, a->activation), m * a->n, s->x);
    const float *bias = rows_of(a->bias, g->bias, a->n, s->w);
    float *out = a->out;
    for (int64_t r = 0; r < m; r++) {
        float dot = 0.0f;
        for (int64_t j = 0; j < a->n; j++) {
            dot += dy[r * a->n + j] * bias[j];
        }
        out[row + r] += (a->bias_scale == 0.0f ? 1.0f : a->bias_scale) * dot;
    }
}

static int group_pass(const struct moe_linear_pass *a, const struct moe_linear_group *g, int64_t row, int64_t m,
                      const struct scratch *s)
{
    switch (a->kind) {
    case MOE_LINEAR_FORWARD:
    case MOE_LINEAR_DGRAD:
        return m == 0 ? 0 : rows_pass(a, g, row, m, s);
    case MOE_LINEAR_WGRAD:
        return weight_pass(a, g, row, m, s);
    case MOE_LINEAR_PGRAD:
        probs_pass(a, g, row, m, s);
        return 0;
    default:
        bias_pass(a, g, row, m, s);
        return 0;
    }
}

int moe_host_linear(const void *args)
{
    const struct moe_linear_pass *a = args;
    int rc = check_counts(a);
    if (rc != 0) {
        return rc;
    }
    int64_t wide = a->n > a->k ? a->n : a->k;
    size_t rows = (size_t)(greatest(a->m, a->groups) * wide) + 1, cells = (size_t)(a->n * a->k) + (size_t)wide;
    struct scratch s = {
        .x = malloc(rows * sizeof(float)), .w = malloc(cells * sizeof(float)), .out = malloc(rows * sizeof(float))};
    if (s.x == NULL || s.w == NULL || s.out == NULL) {
        rc = MOE_E_NOMEM;
    }
    for (int64_t i = 0, row = 0; rc == 0 && i < a->groups; row += a->m[i++]) {
        rc = group_pass(a, &a->group[i], row, a->m[i], &s);
    }
    free(s.x);
    free(s.w);
    free(s.out);
    return rc;
}
