/*
 * ffn_ref.h: a gated feed-forward of one row in double precision, with its derivatives by hand.
 *
 * Written from the formulas of moe/activation.h and moe/experts.h, a row at a time, without any code of the library.
 * `round` says where numbers of a type are stored: the reference rounds there too, so that a comparison with narrow
 * types can be a narrow one. Finite differences hold it (test_experts.c).
 */
#ifndef ROLL_TESTS_MOE_CORE_FFN_REF_H
#define ROLL_TESTS_MOE_CORE_FFN_REF_H

#include "moe_core/include/moe/experts.h"
#include "tests/moe_core/typed.h"

enum { FFN_REF_MOST = 160 }; /* of hidden and ffn */

struct ffn_ref {
    int64_t hidden, ffn;
    enum moe_activation activation;
    struct moe_clamp clamp;
    enum moe_prob_place place;
    const double *w1, *b1, *w2, *b2; /* biases: NULL without */
    double b2_scale;
    enum moe_dtype round; /* MOE_F32 with exact set: not at all */
    bool exact;
};

struct ffn_grads {
    double *w1, *b1, *w2, *b2; /* added to; biases may be NULL */
};

static inline double ffn_sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

/* The activation of a pair, and its derivatives by gate and by linear. */
static inline double ffn_activate(const struct ffn_ref *f, double gate, double linear, double *d_gate, double *d_linear)
{
    double value = 0, slope = 0, up = linear;
    *d_linear = 1;
    switch (f->activation) {
    case MOE_SWIGLU:
        value = gate * ffn_sigmoid(gate);
        slope = ffn_sigmoid(gate) + gate * ffn_sigmoid(gate) * ffn_sigmoid(-gate);
        break;
    case MOE_GEGLU:
        value = gate * 0.5 * (1 + erf(gate / sqrt(2.0)));
        slope = 0.5 * (1 + erf(gate / sqrt(2.0))) + gate * exp(-gate * gate / 2) / sqrt(2 * M_PI);
        break;
    case MOE_GEGLU_TANH: {
        double t = tanh(sqrt(2 / M_PI) * (gate + 0.044715 * pow(gate, 3)));
        value = 0.5 * gate * (1 + t);
        slope = 0.5 * (1 + t) + 0.5 * gate * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * gate * gate);
        break;
    }
    default: {
        double alpha = (double)f->clamp.alpha, limit = (double)f->clamp.limit;
        double g = fmin(gate, limit), s = ffn_sigmoid(alpha * g);
        value = g * s;
        slope = gate <= limit ? s + alpha * g * s * (1 - s) : 0;
        up = fmax(-limit, fmin(linear, limit)) + (double)f->clamp.offset;
        *d_linear = fabs(linear) <= limit;
        break;
    }
    }
    *d_gate = slope * up;
    *d_linear *= value;
    return value * up;
}

static inline double ffn_store(const struct ffn_ref *f, double value)
{
    return f->exact ? value : typed_round(f->round, value);
}

/* xs [H], h [2F] and a [F] (owned by the caller) of one row. */
static inline void ffn_hidden(const struct ffn_ref *f, const double *x, double p, double *xs, double *h, double *a)
{
    double d_gate, d_linear;
    assert_true(f->hidden <= FFN_REF_MOST && f->ffn <= FFN_REF_MOST);
    for (int64_t i = 0; i < f->hidden; i++) {
        xs[i] = f->place == MOE_PROB_INPUT ? ffn_store(f, p * x[i]) : x[i];
    }
    for (int64_t o = 0; o < 2 * f->ffn; o++) {
        double sum = f->b1 != NULL ? f->b1[o] : 0;
        for (int64_t i = 0; i < f->hidden; i++) {
            sum += f->w1[o * f->hidden + i] * xs[i];
        }
        h[o] = ffn_store(f, sum);
    }
    for (int64_t j = 0; j < f->ffn; j++) {
        double act = ffn_activate(f, h[j], h[f->ffn + j], &d_gate, &d_linear);
        a[j] = ffn_store(f, f->place == MOE_PROB_ACTIVATION ? act * p : act);
    }
}

/* y [H] of one row x [H] with probability p. */
static inline void ffn_forward(const struct ffn_ref *f, const double *x, double p, double *y)
{
    double xs[FFN_REF_MOST], h[2 * FFN_REF_MOST], a[FFN_REF_MOST];
    ffn_hidden(f, x, p, xs, h, a);
    double q = f->place == MOE_PROB_ACTIVATION ? p : 1;
    for (int64_t o = 0; o < f->hidden; o++) {
        double sum = f->b2 != NULL ? f->b2_scale * q * f->b2[o] : 0;
        for (int64_t j = 0; j < f->ffn; j++) {
            sum += f->w2[o * f->ffn + j] * a[j];
        }
        y[o] = ffn_store(f, sum);
    }
}

/* dx [H] and *dp overwritten, gradients added to. */
static inline void ffn_backward(const struct ffn_ref *f, const double *x, double p, const double *dy, double *dx,
                                double *dp, const struct ffn_grads *grads)
{
    double xs[FFN_REF_MOST], h[2 * FFN_REF_MOST], a[FFN_REF_MOST], dh[2 * FFN_REF_MOST];
    ffn_hidden(f, x, p, xs, h, a);
    bool inside = f->place == MOE_PROB_ACTIVATION;
    double q = inside ? p : 1;
    *dp = 0;
    for (int64_t j = 0; j < f->ffn; j++) {
        double da = 0, d_gate, d_linear;
        for (int64_t o = 0; o < f->hidden; o++) {
            da += f->w2[o * f->ffn + j] * dy[o];
            grads->w2[o * f->ffn + j] += dy[o] * a[j];
        }
        da = ffn_store(f, da);
        double act = ffn_activate(f, h[j], h[f->ffn + j], &d_gate, &d_linear);
        *dp += inside ? da * act : 0;
        dh[j] = ffn_store(f, da * q * d_gate);
        dh[f->ffn + j] = ffn_store(f, da * q * d_linear);
    }
    for (int64_t o = 0; f->b2 != NULL && o < f->hidden; o++) {
        grads->b2[o] += q * dy[o];
        *dp += inside ? f->b2_scale * dy[o] * f->b2[o] : 0;
    }
    for (int64_t i = 0; i < f->hidden; i++) {
        double sum = 0;
        for (int64_t o = 0; o < 2 * f->ffn; o++) {
            sum += f->w1[o * f->hidden + i] * dh[o];
            grads->w1[o * f->hidden + i] += dh[o] * xs[i];
        }
        sum = ffn_store(f, sum);
        *dp += f->place == MOE_PROB_INPUT ? sum * x[i] : 0;
        dx[i] = f->place == MOE_PROB_INPUT ? ffn_store(f, sum * p) : sum;
    }
    for (int64_t o = 0; f->b1 != NULL && o < 2 * f->ffn; o++) {
        grads->b1[o] += dh[o];
    }
}

#endif
