/*
 * host_linear.c: the host back end's grouped linear for every type.
 *
 * A pass is a list of parts of its groups' products (host_gemm.h), which threads take from. A part is computed block by
 * block: numbers that are not float32 are widened into the thread's scratch memory, multiplied in float32 and narrowed
 * once, as tensor cores do with a float32 accumulator. Products of FP8 by FP8
 * are the same over rows that were rounded first (host_fp8.c). A block is small enough that the widened numbers are
 * still in a near cache when they are multiplied. Widening whole tensors was rejected, because a pass uses an expert's
 * weights once. For groups with few rows the weights are not widened at all: the loops of host_small_body.h read them
 * as they are. Groups without rows never reach the BLAS, because its rules for beta with k = 0 are not reliable.
 */
#include "moe_core/base/fail.h"
#include "moe_core/host/device_host.h"
#include "moe_core/host/dtype_host.h"
#include "moe_core/host/host_fp8.h"
#include "moe_core/host/host_gemm.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK = 256 }; /* columns of the output (rows of dw) that are widened or narrowed at a time */

/* One thread's own memory. */
struct scratch {
    float *rows;  /* [largest m, wider of N and K]: x or dy */
    float *block; /* [BLOCK, wider of N and K]: weights, or a block of dw */
    float *thin;  /* [largest m, BLOCK]: a block of y or dx, or of dy */
};

/* A part of one group's product. */
struct product_part {
    int64_t group, row, i, parts;
};

/* One pass, as the threads see it. */
struct job {
    const struct moe_linear_pass *a;
    struct product_part *part;
    int64_t parts;
    struct scratch *scratch; /* of each thread */
};

/* Checks the counts of the groups. Errors: COUNT, SPLIT. */
static int check_counts(const int64_t *m, int64_t groups, int64_t rows)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < groups; i++) {
        if (m[i] < 0) {
            return MOE_E_COUNT;
        }
        if (m[i] > rows - sum) {
            return MOE_E_SPLIT;
        }
        sum += m[i];
    }
    return 0;
}

static void *element(const void *base, int64_t index, enum moe_dtype type)
{
    return (char *)(uintptr_t)base + index * (int64_t)moe_dtype_bytes(type);
}

/* Gives a matrix as float32: in place, or widened into scratch; stride becomes that of the result. */
static const float *widened(enum moe_dtype type, const void *from, int64_t rows, int64_t width, int64_t *stride,
                            float *scratch)
{
    if (type == MOE_F32) {
        return from;
    }
    for (int64_t r = 0; r < rows; r++) {
        moe_widen(type, element(from, r * *stride, type), width, scratch + r * width);
    }
    *stride = width;
    return scratch;
}

/* products */

/* The whole product of one group: its shapes, and where its output lies. in and x come from widened(). */
static struct moe_product product_of(const struct moe_linear_pass *a, int64_t m)
{
    return (struct moe_product){.kind = (enum moe_grouped_kind)a->kind,
                                .m = m,
                                .n = a->n,
                                .k = a->k,
                                .in_stride = a->kind == MOE_LINEAR_FORWARD ? a->k : a->n,
                                .w_stride = a->k,
                                .w_type = a->kind == MOE_LINEAR_WGRAD ? MOE_F32 : a->weight,
                                .x_stride = a->k,
                                .out_stride = a->kind == MOE_LINEAR_FORWARD ? a->n : a->k,
                                .beta = a->beta};
}

/* The weights of a block [rows from, columns from], widened and scaled. */
static const float *weights(const struct moe_linear_pass *a, const struct moe_linear_group *g, int64_t row,
                            int64_t rows, int64_t column, int64_t columns, float *scratch)
{
    int64_t across = (a->k + 127) / 128, stride = a->k;
    widened(a->weight, element(g->weight, row * a->k + column, a->weight), rows, columns, &stride, scratch);
    for (int64_t r = 0; g->scale != NULL && r < rows; r++) {
        for (int64_t c = 0; c < columns; c++) {
            int64_t at = a->block_scales ? (row + r) / 128 * across + (column + c) / 128 : 0;
            scratch[r * columns + c] *= g->scale[at];
        }
    }
    return scratch;
}

/* The factor of row r's bias. */
static float bias_factor(const struct moe_linear_pass *a, int64_t r)
{
    float scale = a->bias_scale == 0.0f ? 1.0f : a->bias_scale;
    return a->bias_probs == NULL ? scale : scale * a->bias_probs[r];
}

/* Adds the bias of columns [from, from + width) to rows of y. */
static void add_bias(const struct moe_linear_pass *a, const struct moe_linear_group *g, int64_t row, int64_t m,
                     int64_t from, int64_t width, float *y, int64_t stride)
{
    float wide[BLOCK];
    for (int64_t c = 0; c < width; c += BLOCK) {
        int64_t n = width - c < BLOCK ? width - c : BLOCK;
        moe_widen(a->bias, element(g->bias, from + c, a->bias), n, wide);
        for (int64_t r = 0; r < m; r++) {
            float factor = bias_factor(a, row + r);
            for (int64_t j = 0; j < n; j++) {
                y[r * stride + c + j] += factor * wide[j];
            }
        }
    }
}

/*
 * Computes columns [from, from + width) of y or dx for one group's rows. whole: the group's product, with its rows
 * widened.
 */
static int rows_block(const struct moe_linear_pass *a, const struct moe_linear_group *g, int64_t row,
                      const struct moe_product *whole, int64_t from, int64_t width, const struct scratch *s)
{
    bool forward = a->kind == MOE_LINEAR_FORWARD, direct = a->activation == MOE_F32;
    void *to = element(a->out, row * whole->out_stride + from, a->activation);
    struct moe_product p = *whole;
    *(forward ? &p.n : &p.k) = width;
    if (a->weight == MOE_F32 || p.m <= moe_host_small_most(p.kind, p.w_type)) {
        p.w = element(g->weight, forward ? from * a->k : from, a->weight);
    } else {
        p.w = forward ? weights(a, g, from, width, 0, a->k, s->block) : weights(a, g, 0, a->n, from, width, s->block);
        p.w_stride = forward ? a->k : width;
        p.w_type = MOE_F32;
    }
    p.out = direct ? to : s->thin;
    p.out_stride = direct ? whole->out_stride : width;
    int rc = moe_host_group_product(&p);
    if (rc == 0 && forward && g->bias != NULL) {
        add_bias(a, g, row, p.m, from, width, p.out, p.out_stride);
    }
    for (int64_t r = 0; rc == 0 && !direct && r < p.m; r++) {
        moe_narrow(a->activation, s->thin + r * width, width, element(to, r * whole->out_stride, a->activation));
    }
    return rc;
}

/* Computes rows [from, from + height) of dw. dy: how its rows are rounded, where they are. */
static int weight_block(const struct moe_linear_pass *a, const struct moe_linear_group *g, int64_t row,
                        const struct moe_product *whole, int64_t from, int64_t height,
                        const struct moe_fp8_rounding *dy, const struct scratch *s)
{
    bool direct = a->grad == MOE_F32;
    void *to = element(g->d_weight, from * a->k, a->grad);
    struct moe_product p = *whole;
    p.n = height;
    p.in = widened(a->activation, element(a->dy, row * a->n + from, a->activation), p.m, height, &p.in_stride, s->thin);
    if (a->fp8 != MOE_FP8_STORAGE) {
        moe_host_fp8_round(dy, p.m, height, s->thin);
    }
    p.out = direct ? to : s->block;
    if (!direct && a->beta != 0.0f) {
        moe_widen(a->grad, to, height * a->k, s->block);
    }
    int rc = moe_host_group_product(&p);
    if (rc == 0 && !direct) {
        moe_narrow(a->grad, s->block, height * a->k, to);
    }
    return rc;
}

/* How the group's x (else dy) is rounded for this pass: m rows from `row` on. */
static struct moe_fp8_rounding rounding_of(const struct moe_linear_pass *a, bool x, int64_t row, int64_t m)
{
    int64_t width = x ? a->k : a->n;
    struct moe_fp8_rounding by = {a->fp8, x ? MOE_E4M3 : a->fp8_grad, a->kind == MOE_LINEAR_WGRAD, 0};
    if (a->fp8 == MOE_FP8_TENSOR) {
        by.most = moe_host_fp8_most(a->activation, element(x ? a->x : a->dy, row * width, a->activation), m * width);
    }
    return by;
}

static int run_part(const struct moe_linear_pass *a, const struct product_part *part, const struct scratch *s)
{
    const struct moe_linear_group *g = &a->group[part->group];
    struct moe_product whole = product_of(a, a->m[part->group]);
    int64_t m = whole.m, from, to;
    moe_host_part(&whole, part->i, part->parts, &from, &to);
    bool wgrad = a->kind == MOE_LINEAR_WGRAD, forward = a->kind == MOE_LINEAR_FORWARD;
    if (wgrad) {
        whole.x =
            widened(a->activation, element(a->x, part->row * a->k, a->activation), m, a->k, &whole.x_stride, s->rows);
    } else {
        const void *in = element(forward ? a->x : a->dy, part->row * whole.in_stride, a->activation);
        whole.in = widened(a->activation, in, m, whole.in_stride, &whole.in_stride, s->rows);
    }
    struct moe_fp8_rounding rows = {MOE_FP8_STORAGE, MOE_F32, false, 0}, dy = rows;
    if (a->fp8 != MOE_FP8_STORAGE) { /* of bfloat16 rows, so what is rounded is scratch */
        rows = rounding_of(a, forward || wgrad, part->row, m);
        moe_host_fp8_round(&rows, m, wgrad ? a->k : whole.in_stride, s->rows);
        dy = wgrad ? rounding_of(a, false, part->row, m) : rows;
    }
    bool all_f32 = a->activation == MOE_F32 && (wgrad ? a->grad : a->weight) == MOE_F32;
    int64_t step = all_f32 ? to - from : BLOCK;
    int rc = 0;
    for (; rc == 0 && from < to; from += step) {
        int64_t width = to - from < step ? to - from : step;
        rc = wgrad ? weight_block(a, g, part->row, &whole, from, width, &dy, s)
                   : rows_block(a, g, part->row, &whole, from, width, s);
    }
    return rc;
}

/* sums of rows */

static void bias_pass(const struct moe_linear_pass *a, const struct moe_linear_group *g, int64_t row, int64_t m)
{
    float sum[BLOCK], dy[BLOCK];
    for (int64_t c = 0; c < a->n && (m > 0 || a->beta == 0.0f); c += BLOCK) {
        int64_t n = a->n - c < BLOCK ? a->n - c : BLOCK;
        memset(sum, 0, sizeof(sum));
        if (a->beta != 0.0f) {
            moe_widen(a->grad, element(g->d_bias, c, a->grad), n, sum);
        }
        for (int64_t r = 0; r < m; r++) {
            float p = a->bias_probs == NULL ? 1.0f : a->bias_probs[row + r];
            moe_widen(a->activation, element(a->dy, (row + r) * a->n + c, a->activation), n, dy);
            for (int64_t j = 0; j < n; j++) {
                sum[j] += p * dy[j];
            }
        }
        moe_narrow(a->grad, sum, n, element(g->d_bias, c, a->grad));
    }
}

static void probs_pass(const struct moe_linear_pass *a, const struct moe_linear_group *g, int64_t row, int64_t m)
{
    float dy[BLOCK], bias[BLOCK], *out = a->out;
    for (int64_t r = row; r < row + m; r++) {
        float dot = 0.0f;
        for (int64_t c = 0; c < a->n; c += BLOCK) {
            int64_t n = a->n - c < BLOCK ? a->n - c : BLOCK;
            moe_widen(a->activation, element(a->dy, r * a->n + c, a->activation), n, dy);
            moe_widen(a->bias, element(g->bias, c, a->bias), n, bias);
            for (int64_t j = 0; j < n; j++) {
                dot += dy[j] * bias[j];
            }
        }
        out[r] += (a->bias_scale == 0.0f ? 1.0f : a->bias_scale) * dot;
    }
}

/* a pass */

/* Runs part `i` of the pass. Groups without rows are parts too: their gradients become zeros, or are left unchanged. */
static int run_task(void *arg, int64_t i, int worker)
{
    const struct job *job = arg;
    const struct moe_linear_pass *a = job->a;
    const struct product_part *part = &job->part[i];
    const struct moe_linear_group *g = &a->group[part->group];
    int64_t m = a->m[part->group];
    if (a->kind == MOE_LINEAR_BGRAD) {
        bias_pass(a, g, part->row, m);
        return 0;
    }
    if (a->kind == MOE_LINEAR_PGRAD) {
        probs_pass(a, g, part->row, m);
        return 0;
    }
    if (m > 0) {
        return run_part(a, part, &job->scratch[worker]);
    }
    if (a->kind == MOE_LINEAR_WGRAD && a->beta == 0.0f) {
        memset(g->d_weight, 0, (size_t)(a->n * a->k) * moe_dtype_bytes(a->grad));
    }
    return 0;
}

/* Makes the list of parts in two rounds, the first of which counts them. */
static int list_parts(struct job *job)
{
    const struct moe_linear_pass *a = job->a;
    bool sums = a->kind == MOE_LINEAR_BGRAD || a->kind == MOE_LINEAR_PGRAD;
    for (int fill = 0; fill < 2; fill++) {
        int64_t n = 0, row = 0;
        for (int64_t g = 0; g < a->groups; row += a->m[g++]) {
            struct moe_product p = product_of(a, a->m[g]);
            int64_t parts = sums || a->m[g] == 0 ? 1 : moe_host_parts(&p);
            for (int64_t i = 0; fill && i < parts; i++) {
                job->part[n + i] = (struct product_part){g, row, i, parts};
            }
            n += parts;
        }
        job->parts = n;
        job->part = fill ? job->part : calloc((size_t)n + 1, sizeof(*job->part));
        if (job->part == NULL) {
            return MOE_E_NOMEM;
        }
    }
    return 0;
}

/* Allocates each thread's scratch memory; nothing is widened where everything is float32. */
static int get_scratch(struct job *job, int threads)
{
    const struct moe_linear_pass *a = job->a;
    int64_t wide = a->n > a->k ? a->n : a->k, most = 0;
    for (int64_t g = 0; g < a->groups; g++) {
        most = a->m[g] > most ? a->m[g] : most;
    }
    bool rows = a->activation != MOE_F32,
         block = a->kind == MOE_LINEAR_WGRAD ? a->grad != MOE_F32 : a->weight != MOE_F32;
    job->scratch = calloc((size_t)threads, sizeof(*job->scratch));
    for (int t = 0; t < threads && job->scratch != NULL; t++) {
        struct scratch *s = &job->scratch[t];
        s->rows = malloc(rows ? (size_t)(most * wide + 1) * sizeof(float) : 1);
        s->thin = malloc(rows ? (size_t)(most * BLOCK + 1) * sizeof(float) : 1);
        s->block = malloc(block ? (size_t)(wide * BLOCK) * sizeof(float) : 1);
        if (s->rows == NULL || s->thin == NULL || s->block == NULL) {
            return MOE_E_NOMEM;
        }
    }
    return job->scratch != NULL ? 0 : MOE_E_NOMEM;
}

int moe_host_linear(const void *args)
{
    const struct moe_linear_pass *a = args;
    struct job job = {.a = a};
    int threads = moe_host_threads();
    bool fits = a->fp8 == MOE_FP8_STORAGE || (a->activation == MOE_BF16 && a->weight == MOE_E4M3);
    int rc = fits ? check_counts(a->m, a->groups, a->rows) : MOE_E_ARG;
    rc = rc ? rc : list_parts(&job);
    rc = rc ? rc : get_scratch(&job, threads);
    rc = rc ? rc : moe_host_parallel(job.parts, run_task, &job);
    for (int t = 0; job.scratch != NULL && t < threads; t++) {
        free(job.scratch[t].rows);
        free(job.scratch[t].thin);
        free(job.scratch[t].block);
    }
    free(job.scratch);
    free(job.part);
    return rc;
}

/* The grouped products of grouped.h are a float32 linear whose weights lie one after the other. */
int moe_host_grouped(const void *args)
{
    const struct moe_grouped *g = args;
    struct moe_linear_group *table = calloc((size_t)g->groups, sizeof(*table));
    if (table == NULL) {
        return MOE_E_NOMEM;
    }
    for (int64_t i = 0; i < g->groups; i++) {
        table[i].weight = g->kind == MOE_GROUPED_WGRAD ? NULL : g->w + i * g->n * g->k;
        table[i].d_weight = g->kind == MOE_GROUPED_WGRAD ? g->out + i * g->n * g->k : NULL;
    }
    struct moe_linear_pass pass = {.kind = (enum moe_linear_kind)g->kind,
                                   .groups = g->groups,
                                   .n = g->n,
                                   .k = g->k,
                                   .rows = g->rows,
                                   .m = g->m,
                                   .group = table,
                                   .x = g->kind == MOE_GROUPED_WGRAD ? g->x : g->in,
                                   .dy = g->in,
                                   .out = g->out,
                                   .beta = g->beta};
    int rc = moe_host_linear(&pass);
    free(table);
    return rc;
}

_Static_assert((int)MOE_GROUPED_FORWARD == (int)MOE_LINEAR_FORWARD && (int)MOE_GROUPED_DGRAD == (int)MOE_LINEAR_DGRAD &&
                   (int)MOE_GROUPED_WGRAD == (int)MOE_LINEAR_WGRAD,
               "the kinds of both are the same numbers");
