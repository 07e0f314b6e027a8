/*
 * kernels_gemm_double.c: the passes of the grouped linear in double precision, from the definition (moe/linear.h) and
 * the numbers as they are stored: loops that are easy to check, which share nothing with the host's back end but the
 * widening of one stored number, which is exact.
 */
#include "tests/gpu/kernels_gemm.h"

#include <math.h>

static void *room(size_t count, size_t size)
{
    void *memory = calloc(count + 1, size);
    if (memory == NULL) {
        perror("gpu check");
        exit(9);
    }
    return memory;
}

/* The host's side of an array, widened. */
static float *wide(struct check *c, const struct twin *t, enum moe_dtype type)
{
    float *to = room((size_t)t->count, sizeof(*to));
    struct moe_cast cast = {.count = t->count, .from_type = type, .from = twin_at(t, HOST), .to = to};
    launched(c, moe_device_ops(c->device[HOST])->cast(c->device[HOST], &cast), "cast");
    launched(c, moe_device_sync(c->device[HOST]), "cast");
    return to;
}

/* Everything that a pass reads. */
struct numbers {
    const struct problem *p;
    float *x, *dy, *weight, *bias, *old; /* old: what is in the output */
    const float *scale, *probs;
    double *want;
    int64_t step;
};

static double weight_at(const struct numbers *v, int64_t g, int64_t n, int64_t k)
{
    const struct problem *p = v->p;
    int64_t high = (p->n + 127) / 128, across = (p->k + 127) / 128;
    bool fp8 = p->t.weight == MOE_E4M3 || p->t.weight == MOE_E5M2;
    int64_t at = p->t.block_scales ? g * high * across + n / 128 * across + k / 128 : g;
    return (double)v->weight[(g * p->n + n) * p->k + k] * (fp8 ? (double)v->scale[at] : 1.0);
}

static double bias_factor(const struct numbers *v, int64_t row, bool scaled)
{
    double scale = !scaled || v->p->bias_scale == 0.0f ? 1.0 : (double)v->p->bias_scale;
    return v->p->has_probs ? scale * (double)v->probs[row] : scale;
}

/* One row of y or dx, from the group's weights: w [n,k], widened once. */
static void row_of(const struct numbers *v, enum moe_linear_kind kind, int64_t g, int64_t row, const double *w)
{
    const struct problem *p = v->p;
    if (kind == MOE_LINEAR_FORWARD) {
        for (int64_t n = 0; n < p->n; n++) {
            double sum = p->has_bias ? bias_factor(v, row, true) * (double)v->bias[g * p->n + n] : 0.0;
            for (int64_t k = 0; k < p->k; k++) {
                sum += (double)v->x[row * p->k + k] * w[n * p->k + k];
            }
            v->want[row * p->n + n] = sum;
        }
        return;
    }
    double *to = v->want + row * p->k;
    memset(to, 0, (size_t)p->k * sizeof(*to));
    for (int64_t n = 0; n < p->n; n++) {
        double dy = (double)v->dy[row * p->n + n];
        for (int64_t k = 0; k < p->k; k++) {
            to[k] += dy * w[n * p->k + k];
        }
    }
}

static void rows_of(const struct numbers *v, enum moe_linear_kind kind, int64_t g, int64_t first, int64_t m)
{
    const struct problem *p = v->p;
    double *w = room((size_t)(p->n * p->k), sizeof(*w));
    for (int64_t i = 0; m > 0 && i < p->n * p->k; i++) {
        w[i] = weight_at(v, g, i / p->k, i % p->k);
    }
    for (int64_t row = first; row < first + m; row++) {
        if ((row - first) % v->step == 0 || row == first + m - 1) {
            row_of(v, kind, g, row, w);
        }
    }
    free(w);
}

static void weight_grad(const struct numbers *v, int64_t g, int64_t first, int64_t m)
{
    const struct problem *p = v->p;
    for (int64_t n = 0; n < p->n; n++) {
        double *to = v->want + (g * p->n + n) * p->k;
        if ((n % v->step != 0 && n != p->n - 1) || (m == 0 && p->beta != 0.0f)) {
            continue;
        }
        for (int64_t k = 0; k < p->k; k++) {
            to[k] = p->beta != 0.0f ? (double)v->old[(g * p->n + n) * p->k + k] : 0.0;
        }
        for (int64_t row = first; row < first + m; row++) {
            double dy = (double)v->dy[row * p->n + n];
            for (int64_t k = 0; k < p->k; k++) {
                to[k] += dy * (double)v->x[row * p->k + k];
            }
        }
    }
}

static void bias_grad(const struct numbers *v, int64_t g, int64_t first, int64_t m)
{
    const struct problem *p = v->p;
    for (int64_t n = 0; n < p->n && (m > 0 || p->beta == 0.0f); n++) {
        double sum = p->beta != 0.0f ? (double)v->old[g * p->n + n] : 0.0;
        for (int64_t row = first; row < first + m; row++) {
            sum += bias_factor(v, row, false) * (double)v->dy[row * p->n + n];
        }
        v->want[g * p->n + n] = sum;
    }
}

static void probs_grad(const struct numbers *v, int64_t g, int64_t first, int64_t m)
{
    const struct problem *p = v->p;
    double scale = p->bias_scale == 0.0f ? 1.0 : (double)p->bias_scale;
    for (int64_t row = first; row < first + m; row++) {
        double sum = 0;
        for (int64_t n = 0; n < p->n; n++) {
            sum += (double)v->dy[row * p->n + n] * (double)v->bias[g * p->n + n];
        }
        v->want[row] = (double)v->old[row] + scale * sum;
    }
}

double *gemm_expected(struct check *c, const struct problem *p, enum moe_linear_kind kind, int64_t step)
{
    enum moe_dtype type;
    const struct twin *out = output_of(p, kind, &type);
    const int64_t *m = twin_at(&p->m, HOST);
    struct numbers v = {.p = p,
                        .x = wide(c, &p->x, p->t.activation),
                        .dy = wide(c, &p->dy, p->t.activation),
                        .weight = wide(c, &p->weight, p->t.weight),
                        .bias = wide(c, &p->bias, p->t.bias),
                        .old = wide(c, out, type),
                        .scale = twin_at(&p->scale, HOST),
                        .probs = twin_at(&p->probs, HOST),
                        .want = room((size_t)out->count, sizeof(*v.want)),
                        .step = step};
    for (int64_t i = 0; i < out->count; i++) {
        v.want[i] = (double)NAN;
    }
    for (int64_t g = 0, first = 0; g < GROUPS; first += m[g++]) {
        switch (kind) {
        case MOE_LINEAR_WGRAD:
            weight_grad(&v, g, first, m[g]);
            break;
        case MOE_LINEAR_BGRAD:
            bias_grad(&v, g, first, m[g]);
            break;
        case MOE_LINEAR_PGRAD:
            probs_grad(&v, g, first, m[g]);
            break;
        default:
            rows_of(&v, kind, g, first, m[g]);
        }
    }
    free(v.x);
    free(v.dy);
    free(v.weight);
    free(v.bias);
    free(v.old);
    return v.want;
}
