/*
 * exact.c: the arithmetic of the functions that round, in double (exact.h).
 *
 * The gradients of a softmax and of a quotient are computed by their definition, as sums over all pairs, and not by the
 * short forms that the back ends use: that is slower, but cannot be wrong in the same way.
 */
#include "tests/gpu/exact.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double sigmoid(double x)
{
    return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
}

static struct exact_pair clamped(struct moe_clamp clamp, double gate, double linear)
{
    double limit = (double)clamp.limit, alpha = (double)clamp.alpha;
    double g = fmin(gate, limit), l = fmax(fmin(linear, limit), -limit) + (double)clamp.offset, s = sigmoid(alpha * g);
    return (struct exact_pair){g * s * l, gate <= limit ? l * (s + alpha * g * s * (1 - s)) : 0,
                               fabs(linear) <= limit ? g * s : 0};
}

struct exact_pair exact_gated(enum moe_activation kind, struct moe_clamp clamp, double gate, double linear)
{
    double half, slope;
    switch (kind) {
    case MOE_SWIGLU_CLAMPED:
        return clamped(clamp, gate, linear);
    case MOE_GEGLU:
        half = 0.5 * erfc(-gate / sqrt(2));
        slope = half + gate * exp(-gate * gate / 2) / sqrt(2 * M_PI);
        break;
    case MOE_GEGLU_TANH: {
        double inner = sqrt(2 / M_PI) * (gate + 0.044715 * pow(gate, 3)), t = tanh(inner);
        half = sigmoid(2 * inner);
        slope = half + gate / 2 * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * gate * gate);
        break;
    }
    default:
        half = sigmoid(gate);
        slope = half + gate * half * (1 - half);
    }
    return (struct exact_pair){gate * half * linear, slope * linear, gate * half};
}

void exact_act(enum moe_activation kind, struct moe_clamp clamp, const struct exact_act *a)
{
    for (int64_t r = 0; r < a->rows; r++) {
        double prob = a->probs != NULL ? a->probs[r] : 1, dot = 0;
        for (int64_t i = 0; i < a->width; i++) {
            int64_t gate = r * 2 * a->width + i, linear = gate + a->width, at = r * a->width + i;
            bool slack = r >= a->live;
            struct exact_pair p = exact_gated(kind, clamp, a->h[gate], a->h[linear]);
            a->out[at] = slack ? NAN : prob * p.value;
            a->d_h[gate] = slack ? NAN : prob * a->d_act[at] * p.by_gate;
            a->d_h[linear] = slack ? NAN : prob * a->d_act[at] * p.by_linear;
            dot += slack ? 0 : a->d_act[at] * p.value;
        }
        a->d_probs[r] += dot;
    }
}

void exact_token_gate(const struct exact_tokens *g, bool backward)
{
    for (int64_t i = 0; backward && i < g->width; i++) {
        g->d_gate[i] *= g->beta;
    }
    for (int64_t t = 0; t < g->tokens; t++) {
        double logit = 0, dl = g->d_score[t] * g->score[t] * (1 - g->score[t]);
        for (int64_t i = 0; i < g->width; i++) {
            logit += g->x[t * g->width + i] * g->gate[i];
            g->dx[t * g->width + i] += backward ? dl * g->gate[i] : 0;
            g->d_gate[i] += backward ? dl * g->x[t * g->width + i] : 0;
        }
        g->score[t] = backward ? g->score[t] : 1 / (1 + exp(-logit));
    }
}

/* movements */

double *exact_scatter(const struct exact_movement *s)
{
    double *to = calloc((size_t)(s->tokens * s->width + 1), sizeof(*to));
    for (int64_t i = 0; to != NULL && i < s->tokens * s->columns; i++) {
        int64_t t = i / s->columns;
        for (int64_t h = 0; h < s->width; h++) {
            double factor = s->zero_by_prob ? s->probs[i] != 0 : s->probs[i];
            to[t * s->width + h] += i % s->columns == 0 && s->add ? s->x[t * s->width + h] : 0;
            to[t * s->width + h] += s->row[i] >= 0 ? factor * s->rows[s->row[i] * s->width + h] : 0;
        }
    }
    return to;
}

double *exact_dots(const struct exact_movement *s)
{
    double *to = calloc((size_t)(s->tokens * s->columns + 1), sizeof(*to));
    for (int64_t i = 0; to != NULL && i < s->tokens * s->columns; i++) {
        for (int64_t h = 0; s->row[i] >= 0 && h < s->width; h++) {
            to[i] += s->x[i / s->columns * s->width + h] * s->rows[s->row[i] * s->width + h];
        }
    }
    return to;
}

/* the router */

static double log_sum_exp(const float *logits, int64_t n)
{
    double top = -INFINITY, sum = 0;
    for (int64_t e = 0; e < n; e++) {
        top = fmax(top, (double)logits[e]);
    }
    for (int64_t e = 0; e < n; e++) {
        sum += exp((double)logits[e] - top);
    }
    return top + log(sum);
}

static void scores_of(enum moe_score score, const float *logits, int64_t n, double *scores)
{
    double all = log_sum_exp(logits, n);
    for (int64_t e = 0; e < n; e++) {
        double x = (double)logits[e];
        scores[e] = score == MOE_SCORE_SOFTMAX   ? exp(x - all)
                    : score == MOE_SCORE_SIGMOID ? sigmoid(x)
                                                 : sqrt(fmax(x, 0) + log1p(exp(-fabs(x))));
    }
}

/* d_logits of one token += the score function's derivative, transposed, times d_scores; scores are exact. */
static void through_scores(enum moe_score score, const float *logits, const double *scores, const double *d_scores,
                           int64_t n, double *d_logits)
{
    for (int64_t e = 0; e < n; e++) {
        double s = scores[e];
        if (score == MOE_SCORE_SOFTMAX) {
            for (int64_t i = 0; i < n; i++) {
                d_logits[e] += d_scores[i] * (i == e ? s - s * s : -scores[i] * s);
            }
        } else {
            d_logits[e] +=
                d_scores[e] * (score == MOE_SCORE_SIGMOID ? s * (1 - s) : sigmoid((double)logits[e]) / (2 * s));
        }
    }
}

static bool divided(const struct moe_scoring *how, int32_t k)
{
    return how->after || (how->renormalise && (how->score == MOE_SCORE_SOFTMAX || k > 1));
}

/* The number to which a chosen expert's weight is proportional. */
static double share_at(const struct moe_scoring *how, const float *logits, const double *scores, int32_t e)
{
    return how->after ? exp((double)logits[e]) : scores[e];
}

static double sum_of_shares(const struct moe_scoring *how, const float *logits, const double *scores,
                            const int32_t *chosen, int32_t k)
{
    double sum = how->score == MOE_SCORE_SOFTMAX ? 0 : 1e-20;
    for (int32_t j = 0; j < k; j++) {
        sum += share_at(how, logits, scores, chosen[j]);
    }
    return sum;
}

void exact_topk(const struct moe_topk *a, double *scores, double *probs)
{
    memset(probs, 0, (size_t)(a->tokens * a->experts) * sizeof(*probs));
    for (int64_t t = 0; t < a->tokens; t++) {
        const float *logits = a->logits + t * a->experts;
        const int32_t *chosen = a->index + t * a->k;
        double *s = scores + t * a->experts;
        scores_of(a->how.score, logits, a->experts, s);
        double sum = divided(&a->how, a->k) ? sum_of_shares(&a->how, logits, s, chosen, a->k) : 1;
        for (int32_t j = 0; j < a->k; j++) {
            probs[t * a->experts + chosen[j]] = share_at(&a->how, logits, s, chosen[j]) / sum * (double)a->how.scale;
        }
    }
}

/* d_shares [E] of one token: of sum over kept (d_weight * share / sum of shares). */
static void shares_backward(const struct moe_topk_backward *a, int64_t t, const double *scores, double *d_shares)
{
    const float *logits = a->logits + t * a->experts, *d_weight = a->d_probs + t * a->experts;
    const int32_t *all = a->all + t * a->k, *kept = a->index + t * a->k;
    bool quotient = divided(&a->how, a->k);
    double sum = quotient ? sum_of_shares(&a->how, logits, scores, all, a->k) : 1;
    for (int32_t j = 0; j < a->k; j++) {
        if (kept[j] < 0) {
            continue;
        }
        double d = (double)d_weight[all[j]] * (double)a->how.scale, own = share_at(&a->how, logits, scores, all[j]);
        d_shares[all[j]] += d / sum;
        for (int32_t i = 0; quotient && i < a->k; i++) {
            d_shares[all[i]] -= d * own / (sum * sum);
        }
    }
}

void exact_topk_backward(const struct moe_topk_backward *a, double *d_logits)
{
    double scores[MOE_EXACT_EXPERTS], d_shares[MOE_EXACT_EXPERTS];
    memset(d_logits, 0, (size_t)(a->tokens * a->experts) * sizeof(*d_logits));
    for (int64_t t = 0; t < a->tokens; t++) {
        const float *logits = a->logits + t * a->experts;
        memset(d_shares, 0, sizeof(d_shares));
        scores_of(a->how.score, logits, a->experts, scores);
        shares_backward(a, t, scores, d_shares);
        if (!a->how.after) {
            through_scores(a->how.score, logits, scores, d_shares, a->experts, d_logits + t * a->experts);
            continue;
        }
        for (int64_t e = 0; e < a->experts; e++) { /* shares are exponentials */
            d_logits[t * a->experts + e] = d_shares[e] * exp((double)logits[e]);
        }
    }
}

/* the losses */

/* The derivative of the loss i by p[t, e] is factor[i] counts[i][e]. */
struct pulls {
    double factor[3];
    const int64_t *counts[3];
};

static struct pulls pulls_of(const struct moe_balance *a, int64_t t)
{
    struct pulls p = {.counts = {
                          [MOE_LOSS_SWITCH] = a->counts,
                          [MOE_LOSS_SEQUENCE] = a->sequence_counts + t % a->sequences * a->experts,
                          [MOE_LOSS_GLOBAL] = a->global_counts,
                      }};
    for (int i = 0; i < 3; i++) {
        double over = i == MOE_LOSS_GLOBAL ? (double)a->microbatches : 1, chosen = 0;
        double coeff = (double)a->coeff[i] / (i == MOE_LOSS_SEQUENCE ? (double)a->sequences : 1);
        for (int64_t e = 0; e < a->experts; e++) {
            chosen += (double)p.counts[i][e] / over;
        }
        double tokens = fmax(chosen / a->k, 1);
        p.factor[i] = coeff * (double)a->experts / (a->k * tokens * tokens) / over;
    }
    return p;
}

/* The divisor that makes p of the scores of token t. */
static double score_sum(const struct moe_balance *a, int64_t t)
{
    double sum = a->score == MOE_SCORE_SOFTMAX ? 1 : 1e-20;
    for (int64_t e = 0; a->score != MOE_SCORE_SOFTMAX && e < a->experts; e++) {
        sum += (double)a->scores[t * a->experts + e];
    }
    return sum;
}

static double z_coeff(const struct moe_balance *a)
{
    return (double)a->coeff[MOE_LOSS_Z] / (double)(a->ranks * a->tokens);
}

void exact_balance(const struct moe_balance *a, double *losses)
{
    memset(losses, 0, MOE_LOSSES * sizeof(*losses));
    for (int64_t t = 0; t < a->tokens; t++) {
        struct pulls pulls = pulls_of(a, t);
        double sum = score_sum(a, t);
        for (int64_t e = 0; e < a->experts; e++) {
            for (int i = 0; i < 3; i++) {
                losses[i] += pulls.factor[i] * (double)pulls.counts[i][e] * (double)a->scores[t * a->experts + e] / sum;
            }
        }
        losses[MOE_LOSS_Z] += z_coeff(a) * pow(log_sum_exp(a->logits + t * a->experts, a->experts), 2);
    }
}

void exact_balance_backward(const struct moe_balance *a, double *d_logits)
{
    double scores[MOE_EXACT_EXPERTS], d_scores[MOE_EXACT_EXPERTS], d[MOE_EXACT_EXPERTS];
    for (int64_t t = 0; t < a->tokens; t++) {
        const float *logits = a->logits + t * a->experts;
        struct pulls pulls = pulls_of(a, t);
        double sum = score_sum(a, t), lse = log_sum_exp(logits, a->experts), mean = 0;
        for (int64_t e = 0; e < a->experts; e++) {
            scores[e] = (double)a->scores[t * a->experts + e];
            d_scores[e] = 0;
            for (int i = 0; i < 3; i++) {
                d_scores[e] += pulls.factor[i] * (double)pulls.counts[i][e];
            }
            mean += d_scores[e] * scores[e] / sum;
            d[e] = 2 * z_coeff(a) * lse * exp((double)logits[e] - lse);
        }
        for (int64_t e = 0; a->score != MOE_SCORE_SOFTMAX && e < a->experts; e++) {
            d_scores[e] = (d_scores[e] - mean) / sum;
        }
        through_scores(a->score, logits, scores, d_scores, a->experts, d);
        for (int64_t e = 0; e < a->experts; e++) {
            d_logits[t * a->experts + e] += (double)a->loss_scale * d[e];
        }
    }
}
