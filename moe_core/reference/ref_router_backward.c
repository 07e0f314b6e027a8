/*
 * ref_router_backward.c: the gradients of the reference's router, by formula.
 *
 * From the back to the front, a token at a time: weights of the chosen -> scores (or logits, with `after`); auxiliary
 * losses -> scores and logits; scores -> logits; logits -> gate, bias, x. The formulas are checked by central
 * differences of moe_ref_router_objective (unit.moe_reference) and by PyTorch's autograd (unit.moe_oracle).
 */
#include "moe_core/reference/ref_router.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Numbers of one token: [E] each. */
struct token_scores {
    double *logit, *score, *d_score, *d_logit, lse;
};

static double sigmoid(double v)
{
    return 1 / (1 + exp(-v));
}

static void compute(const struct moe_ref_router *ref, const double *x, struct token_scores *s)
{
    const struct moe_router_config *c = &ref->config;
    double total = 0;
    for (int64_t e = 0; e < c->experts; e++) {
        s->logit[e] = ref->gate_bias != NULL ? ref->gate_bias[e] : 0;
        for (int64_t h = 0; h < c->hidden; h++) {
            s->logit[e] += x[h] * ref->gate[e * c->hidden + h];
        }
        total += exp(s->logit[e]);
    }
    s->lse = log(total);
    for (int64_t e = 0; e < c->experts; e++) {
        enum moe_score kind = c->options.score;
        s->score[e] = kind == MOE_SCORE_SOFTMAX   ? exp(s->logit[e] - s->lse)
                      : kind == MOE_SCORE_SIGMOID ? sigmoid(s->logit[e])
                                                  : sqrt(log1p(exp(s->logit[e])));
        s->d_score[e] = 0;
        s->d_logit[e] = 0;
    }
}

/*
 * Backward of the weights w_j = scale v_j (/ sum of v over the chosen), v = s, or exp(logit) with `after`. A dropped
 * choice is in the sum but has no pull.
 */
static void weights_backward(const struct moe_ref_router *ref, const int32_t *all, const int32_t *index,
                             const double *d_probs, struct token_scores *s)
{
    const struct moe_router_config *c = &ref->config;
    double scale = c->options.scale != 0.0f ? (double)c->options.scale : 1;
    bool divide = c->options.after || (c->renormalise && (c->options.score == MOE_SCORE_SOFTMAX || c->topk > 1));
    double sum = 0, pulled = 0; /* of v; of d_j v_j / sum */
    for (int32_t j = 0; j < c->topk; j++) {
        sum += all[j] < 0 ? 0 : c->options.after ? exp(s->logit[all[j]]) : s->score[all[j]];
    }
    for (int32_t j = 0; j < c->topk; j++) {
        double v = index[j] < 0 ? 0 : c->options.after ? exp(s->logit[index[j]]) : s->score[index[j]];
        pulled += index[j] < 0 ? 0 : d_probs[index[j]] * v / sum;
    }
    for (int32_t j = 0; j < c->topk; j++) {
        double d = index[j] < 0 ? 0 : d_probs[index[j]];
        if (all[j] >= 0 && c->options.after) {
            s->d_logit[all[j]] += scale * exp(s->logit[all[j]]) / sum * (d - pulled);
        } else if (all[j] >= 0) {
            s->d_score[all[j]] += divide ? scale * (d - pulled) / sum : scale * d;
        }
    }
}

/*
 * The counts that the loss of one sequence sees: those given, else those of these tokens; for the global loss their
 * mean over the microbatches.
 */
static void counts_of(const struct moe_ref_router *ref, int kind, int64_t tokens, const int32_t *all, int64_t part,
                      int64_t parts, double *counts)
{
    const struct moe_router_config *c = &ref->config;
    const int64_t *given = kind == MOE_LOSS_SWITCH     ? ref->balance_counts
                           : kind == MOE_LOSS_SEQUENCE ? ref->sequence_counts
                                                       : ref->global_counts;
    for (int64_t e = 0; e < c->experts; e++) {
        counts[e] = 0;
        if (given != NULL) {
            counts[e] =
                (double)given[part * c->experts + e] / (kind == MOE_LOSS_GLOBAL ? (double)ref->microbatches : 1);
        }
    }
    for (int64_t i = 0; given == NULL && i < tokens * c->topk; i++) {
        if (i / c->topk % parts == part && all[i] >= 0) {
            counts[all[i]] += 1;
        }
    }
}

/* d loss / d p[t,e] = coeff E / (k N^2) c[e]: one row [E] for each of the parts, added to `to`. */
static void balance_slope(const struct moe_ref_router *ref, double coeff, const double *counts, double *to)
{
    double choices = 0;
    for (int64_t e = 0; e < ref->config.experts; e++) {
        choices += counts[e];
    }
    double n = fmax(choices / ref->config.topk, 1);
    for (int64_t e = 0; e < ref->config.experts; e++) {
        to[e] += coeff * (double)ref->config.experts / (ref->config.topk * n * n) * counts[e];
    }
}

/* Backward of the losses, with p = s, or s / sum of s where s does not sum to 1. */
static void losses_backward(const struct moe_ref_router *ref, const double *slope, double z, struct token_scores *s)
{
    double sum = 0, pulled = 0;
    for (int64_t e = 0; e < ref->config.experts; e++) {
        sum += ref->config.options.score == MOE_SCORE_SOFTMAX ? 0 : s->score[e];
    }
    for (int64_t e = 0; sum > 0 && e < ref->config.experts; e++) {
        pulled += slope[e] * s->score[e] / sum;
    }
    for (int64_t e = 0; e < ref->config.experts; e++) {
        s->d_score[e] += sum > 0 ? (slope[e] - pulled) / sum : slope[e];
        s->d_logit[e] += z * 2 * s->lse * exp(s->logit[e] - s->lse);
    }
}

static void scores_backward(const struct moe_ref_router *ref, struct token_scores *s)
{
    double pulled = 0;
    for (int64_t e = 0; e < ref->config.experts; e++) {
        pulled += s->d_score[e] * s->score[e];
    }
    for (int64_t e = 0; e < ref->config.experts; e++) {
        enum moe_score kind = ref->config.options.score;
        s->d_logit[e] += kind == MOE_SCORE_SOFTMAX   ? s->score[e] * (s->d_score[e] - pulled)
                         : kind == MOE_SCORE_SIGMOID ? s->d_score[e] * s->score[e] * (1 - s->score[e])
                                                     : s->d_score[e] * sigmoid(s->logit[e]) / (2 * s->score[e]);
    }
}

static void logits_backward(const struct moe_ref_router *ref, const double *x, int64_t t, const struct token_scores *s,
                            const struct moe_ref_router_grads *grads)
{
    int64_t hidden = ref->config.hidden;
    for (int64_t e = 0; e < ref->config.experts; e++) {
        for (int64_t h = 0; h < hidden; h++) {
            if (grads->gate != NULL) {
                grads->gate[e * hidden + h] += s->d_logit[e] * x[h];
            }
            if (grads->dx != NULL) {
                grads->dx[t * hidden + h] += s->d_logit[e] * ref->gate[e * hidden + h];
            }
        }
        if (grads->gate_bias != NULL) {
            grads->gate_bias[e] += s->d_logit[e];
        }
    }
}

int moe_ref_router_backward(const struct moe_ref_router *ref, int64_t tokens, const double *x,
                            const struct moe_ref_routing *routing, const double *d_probs, double loss_scale,
                            const struct moe_ref_router_grads *grads)
{
    const struct moe_router_config *c = &ref->config;
    int64_t sequences = c->options.sequences > 0 ? c->options.sequences : 1, experts = c->experts;
    double *room = calloc((size_t)(experts * (5 + sequences)), sizeof(*room));
    if (room == NULL) {
        return -1;
    }
    struct token_scores s = {room, room + experts, room + 2 * experts, room + 3 * experts, 0};
    double *counts = room + 4 * experts, *slope = room + 5 * experts; /* slope [sequences, E] */
    for (int64_t b = 0; b < sequences; b++) {
        for (int kind = 0; kind < MOE_LOSS_Z; kind++) {
            int64_t parts = kind == MOE_LOSS_SEQUENCE ? sequences : 1;
            counts_of(ref, kind, tokens, routing->all, b % parts, parts, counts);
            balance_slope(ref, loss_scale * (double)c->options.coeff[kind] / (double)parts, counts,
                          slope + b * experts);
        }
    }
    double z = tokens > 0 ? loss_scale * (double)c->options.coeff[MOE_LOSS_Z] /
                                (double)(ref->ranks > 0 ? ref->ranks : 1) / (double)tokens
                          : 0;
    for (int64_t t = 0; t < tokens; t++) {
        const double *row = x + t * c->hidden;
        compute(ref, row, &s);
        weights_backward(ref, routing->all + t * c->topk, routing->index + t * c->topk, d_probs + t * experts, &s);
        losses_backward(ref, slope + t % sequences * experts, z, &s);
        scores_backward(ref, &s);
        logits_backward(ref, row, t, &s, grads);
    }
    free(room);
    return 0;
}
