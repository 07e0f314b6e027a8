/*
 * ref.c: the reference of one MoE layer.
 *
 * Every value is recomputed where it is needed, and nothing is kept between forward and backward, so that each function
 * can be compared with its formula alone. Speed was given up on purpose.
 */
#include "moe_core/reference/ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

/* to += factor * from */
static void add(double *to, double factor, const double *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        to[i] += factor * from[i];
    }
}

/* p[e] = softmax over all experts of <gate_e, x>. */
static void scores(const struct moe_ref *ref, const double *x, double *p)
{
    double sum = 0, top = -INFINITY;
    for (int64_t e = 0; e < ref->experts; e++) {
        p[e] = dot(ref->gate + e * ref->hidden, x, ref->hidden);
        top = fmax(top, p[e]);
    }
    for (int64_t e = 0; e < ref->experts; e++) {
        p[e] = exp(p[e] - top);
        sum += p[e];
    }
    for (int64_t e = 0; e < ref->experts; e++) {
        p[e] /= sum;
    }
}

/* Chooses the k largest scores, and returns their sum. */
static double choose(const struct moe_ref *ref, const double *p, int32_t *index)
{
    double sum = 0;
    for (int32_t j = 0; j < ref->topk; j++) {
        int32_t best = -1;
        for (int32_t e = 0; e < ref->experts; e++) {
            bool taken = false;
            for (int32_t i = 0; i < j; i++) {
                taken |= index[i] == e;
            }
            if (!taken && (best < 0 || p[e] > p[best])) {
                best = e;
            }
        }
        index[j] = best;
        sum += p[best];
    }
    return sum;
}

/* Applies one expert to one token: h [2F] = w1 x; a [F] = silu(h gate) * h up; out [H] = w2 a. */
static void expert(const struct moe_ref *ref, int32_t e, const double *x, double *h, double *a, double *out)
{
    int64_t hidden = ref->hidden, ffn = ref->ffn;
    const double *w1 = ref->w1 + e * 2 * ffn * hidden, *w2 = ref->w2 + e * hidden * ffn;
    for (int64_t i = 0; i < 2 * ffn; i++) {
        h[i] = dot(w1 + i * hidden, x, hidden);
    }
    for (int64_t i = 0; i < ffn; i++) {
        a[i] = h[i] / (1 + exp(-h[i])) * h[ffn + i];
    }
    for (int64_t i = 0; i < hidden; i++) {
        out[i] = dot(w2 + i * ffn, a, ffn);
    }
}

/* The gradient of one expert on one token, for a given d_out [H]; adds to dx and to the expert's weights. */
static void expert_backward(const struct moe_ref *ref, int32_t e, const double *x, const double *h, const double *a,
                            const double *d_out, double *dx, const struct moe_ref_grads *grads)
{
    int64_t hidden = ref->hidden, ffn = ref->ffn;
    const double *w1 = ref->w1 + e * 2 * ffn * hidden, *w2 = ref->w2 + e * hidden * ffn;
    double *d_w1 = grads->w1 + e * 2 * ffn * hidden, *d_w2 = grads->w2 + e * hidden * ffn;
    for (int64_t i = 0; i < hidden; i++) {
        add(d_w2 + i * ffn, d_out[i], a, ffn);
    }
    for (int64_t i = 0; i < ffn; i++) {
        double d_a = 0;
        for (int64_t r = 0; r < hidden; r++) {
            d_a += d_out[r] * w2[r * ffn + i];
        }
        double sig = 1 / (1 + exp(-h[i]));
        double d_up = d_a * h[i] * sig;
        double d_gate = d_a * h[ffn + i] * (sig + h[i] * sig * (1 - sig));
        add(d_w1 + i * hidden, d_gate, x, hidden);
        add(d_w1 + (ffn + i) * hidden, d_up, x, hidden);
        add(dx, d_gate, w1 + i * hidden, hidden);
        add(dx, d_up, w1 + (ffn + i) * hidden, hidden);
    }
}

void moe_ref_route(const struct moe_ref *ref, const double *x, int32_t *index, double *weight)
{
    double *p = calloc((size_t)ref->experts, sizeof(*p));
    if (p != NULL) {
        scores(ref, x, p);
        double sum = choose(ref, p, index);
        for (int32_t j = 0; j < ref->topk; j++) {
            weight[j] = ref->renormalise ? p[index[j]] / sum : p[index[j]];
        }
    }
    free(p);
}

/* Scratch for one token. */
struct scratch {
    double *p, *h, *a, *out, *d_weight, *d_out;
    int32_t *index;
};

static int scratch_new(const struct moe_ref *ref, struct scratch *s)
{
    size_t wide = (size_t)(ref->experts + 3 * ref->ffn + 2 * ref->hidden + ref->topk);
    s->p = calloc(wide, sizeof(double));
    s->index = calloc((size_t)ref->topk, sizeof(int32_t));
    if (s->p == NULL || s->index == NULL) {
        free(s->p);
        free(s->index);
        return -1;
    }
    s->h = s->p + ref->experts;
    s->a = s->h + 2 * ref->ffn;
    s->out = s->a + ref->ffn;
    s->d_out = s->out + ref->hidden;
    s->d_weight = s->d_out + ref->hidden;
    return 0;
}

int moe_ref_forward(const struct moe_ref *ref, int64_t tokens, const double *x, double *y)
{
    struct scratch s;
    if (scratch_new(ref, &s) != 0) {
        return -1;
    }
    memset(y, 0, (size_t)(tokens * ref->hidden) * sizeof(*y));
    for (int64_t t = 0; t < tokens; t++) {
        const double *row = x + t * ref->hidden;
        scores(ref, row, s.p);
        double sum = choose(ref, s.p, s.index);
        for (int32_t j = 0; j < ref->topk; j++) {
            int32_t e = s.index[j];
            expert(ref, e, row, s.h, s.a, s.out);
            add(y + t * ref->hidden, ref->renormalise ? s.p[e] / sum : s.p[e], s.out, ref->hidden);
        }
    }
    free(s.p);
    free(s.index);
    return 0;
}

/* Adds the gradients of the gate and of dx, from d_weight of the chosen experts. */
static void route_backward(const struct moe_ref *ref, const struct scratch *s, double sum, const double *x, double *dx,
                           double *d_gate)
{
    for (int64_t e = 0; e < ref->experts; e++) {
        double d_logit = 0; /* sum over chosen j of d_weight_j * d weight_j / d logit_e */
        for (int32_t j = 0; j < ref->topk; j++) {
            double pj = s->p[s->index[j]], chosen_e = 0;
            for (int32_t i = 0; i < ref->topk; i++) {
                chosen_e += s->index[i] == e ? 1 : 0;
            }
            double same = s->index[j] == e ? 1 : 0;
            /* plain: p_j (1{j=e} - p_e); renormalised: w_j (1{j=e} - w_e), where w_e is 0 for experts not chosen */
            double d = ref->renormalise ? pj / sum * (same - chosen_e * s->p[e] / sum) : pj * (same - s->p[e]);
            d_logit += s->d_weight[j] * d;
        }
        add(d_gate + e * ref->hidden, d_logit, x, ref->hidden);
        add(dx, d_logit, ref->gate + e * ref->hidden, ref->hidden);
    }
}

int moe_ref_backward(const struct moe_ref *ref, int64_t tokens, const double *x, const double *dy, double *dx,
                     const struct moe_ref_grads *grads)
{
    struct scratch s;
    if (scratch_new(ref, &s) != 0) {
        return -1;
    }
    memset(dx, 0, (size_t)(tokens * ref->hidden) * sizeof(*dx));
    for (int64_t t = 0; t < tokens; t++) {
        const double *row = x + t * ref->hidden, *d_row = dy + t * ref->hidden;
        scores(ref, row, s.p);
        double sum = choose(ref, s.p, s.index);
        for (int32_t j = 0; j < ref->topk; j++) {
            int32_t e = s.index[j];
            double weight = ref->renormalise ? s.p[e] / sum : s.p[e];
            expert(ref, e, row, s.h, s.a, s.out);
            s.d_weight[j] = dot(d_row, s.out, ref->hidden);
            for (int64_t i = 0; i < ref->hidden; i++) {
                s.d_out[i] = weight * d_row[i];
            }
            expert_backward(ref, e, row, s.h, s.a, s.d_out, dx + t * ref->hidden, grads);
        }
        route_backward(ref, &s, sum, row, dx + t * ref->hidden, grads->gate);
    }
    free(s.p);
    free(s.index);
    return 0;
}
