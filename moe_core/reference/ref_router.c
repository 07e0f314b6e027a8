/*
 * ref_router.c: the reference of the router.
 *
 * This file holds no derivative: gradients are central differences of the objective, with the choice of experts held
 * fixed (the choice is a step function, so its derivative is zero). So the same error in a derivative cannot be made
 * both in the library and in the reference. ref_router_backward.c holds the formulas, which these differences and
 * PyTorch's autograd check.
 */
#include "moe_core/reference/ref_router.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double logit_of(const struct moe_ref_router *ref, const double *x, int64_t e)
{
    double sum = ref->gate_bias != NULL ? ref->gate_bias[e] : 0;
    for (int64_t h = 0; h < ref->config.hidden; h++) {
        sum += x[h] * ref->gate[e * ref->config.hidden + h];
    }
    return sum;
}

static void scores_of(const struct moe_ref_router *ref, const double *x, double *logit, double *score)
{
    int64_t experts = ref->config.experts;
    double total = 0;
    for (int64_t e = 0; e < experts; e++) {
        logit[e] = logit_of(ref, x, e);
        total += exp(logit[e]);
    }
    for (int64_t e = 0; e < experts; e++) {
        switch (ref->config.options.score) {
        case MOE_SCORE_SOFTMAX:
            score[e] = exp(logit[e]) / total;
            break;
        case MOE_SCORE_SIGMOID:
            score[e] = 1 / (1 + exp(-logit[e]));
            break;
        case MOE_SCORE_SQRTSOFTPLUS:
            score[e] = sqrt(log(1 + exp(logit[e])));
            break;
        }
    }
}

/*
 * How many of the allowed experts come before e: those with a larger value, and those with an equal value and a lower
 * index.
 */
static int64_t place_of(const double *value, const bool *allowed, int64_t n, int64_t e)
{
    int64_t place = 0;
    for (int64_t i = 0; i < n; i++) {
        place += allowed[i] && (value[i] > value[e] || (value[i] == value[e] && i < e));
    }
    return place;
}

/* Group-limited choice: allowed[e] stays true for the experts of the best groups. */
static void allow(const struct moe_ref_router *ref, const double *value, bool *allowed)
{
    const struct moe_router_options *o = &ref->config.options;
    int64_t experts = ref->config.experts, groups = o->groups > 1 ? o->groups : 1, each = experts / groups;
    double sum[64] = {0};
    for (int64_t e = 0; e < experts; e++) {
        allowed[e] = true;
    }
    for (int64_t g = 0; groups > 1 && g < groups; g++) {
        for (int64_t i = 0; i < each; i++) {
            int64_t place = place_of(value + g * each, allowed, each, i);
            sum[g] += place < ref->config.topk / o->group_topk ? value[g * each + i] : 0;
        }
    }
    for (int64_t g = 0; groups > 1 && g < groups; g++) {
        int64_t better = 0;
        for (int64_t i = 0; i < groups; i++) {
            better += sum[i] > sum[g] || (sum[i] == sum[g] && i < g);
        }
        for (int64_t i = 0; better >= o->group_topk && i < each; i++) {
            allowed[g * each + i] = false;
        }
    }
}

/* The chosen experts of one token, best first. */
static void choose(const struct moe_ref_router *ref, const double *logit, const double *score, double *value,
                   bool *allowed, int32_t *index)
{
    int64_t experts = ref->config.experts;
    for (int64_t e = 0; e < experts; e++) {
        value[e] =
            (ref->config.options.after ? logit : score)[e] + (ref->expert_bias != NULL ? ref->expert_bias[e] : 0);
    }
    allow(ref, value, allowed);
    for (int64_t e = 0; e < experts; e++) {
        int64_t place = allowed[e] ? place_of(value, allowed, experts, e) : ref->config.topk;
        if (place < ref->config.topk) {
            index[place] = (int32_t)e;
        }
    }
}

/* Computes the weights of the k chosen, as the table of router.h says. */
static void weigh(const struct moe_ref_router *ref, const double *logit, const double *score, const int32_t *index,
                  double *weight)
{
    const struct moe_router_config *c = &ref->config;
    double sum = 0;
    for (int32_t j = 0; j < c->topk; j++) {
        weight[j] = index[j] < 0 ? 0 : c->options.after ? exp(logit[index[j]]) : score[index[j]];
        sum += weight[j];
    }
    bool divide = c->options.after || (c->renormalise && (c->options.score == MOE_SCORE_SOFTMAX || c->topk > 1));
    for (int32_t j = 0; j < c->topk; j++) {
        weight[j] /= divide && sum > 0 ? sum : 1;
        weight[j] *= c->options.scale != 0.0f ? (double)c->options.scale : 1;
    }
}

static int64_t capacity_of(const struct moe_router_config *c, int64_t tokens)
{
    double choices = (double)(tokens * c->topk);
    char written[32];
    snprintf(written, sizeof(written), "%.7g", (double)c->options.capacity_factor);
    double factor = strtod(written, NULL);
    return (int64_t)(factor > 0 ? fmin(ceil(choices / (double)c->experts * factor), choices) : choices);
}

/* Drops an expert's choices beyond its capacity: those of least weight, or the last ones. */
static void drop(const struct moe_ref_router *ref, int64_t tokens, const double *probs, const int32_t *all,
                 int32_t *index)
{
    const struct moe_router_config *c = &ref->config;
    int64_t capacity = capacity_of(c, tokens), choices = tokens * c->topk;
    for (int64_t i = 0; i < choices; i++) {
        int64_t ahead = 0;
        for (int64_t o = 0; o < choices; o++) {
            if (all[i] >= 0 && all[o] == all[i]) {
                double mine = probs[i / c->topk * c->experts + all[i]], his = probs[o / c->topk * c->experts + all[o]];
                ahead += (!c->options.by_position && his > mine) || ((c->options.by_position || his == mine) && o < i);
            }
        }
        index[i] = ahead < capacity ? all[i] : -1; /* -1 stays -1 */
    }
}

/* coeff E / (k N^2) sum_i P[i] c[i] */
static double balance_loss(const struct moe_ref_router *ref, double coeff, const double *p_sum, const double *counts)
{
    int64_t experts = ref->config.experts;
    double choices = 0, product = 0;
    for (int64_t e = 0; e < experts; e++) {
        choices += counts[e];
        product += p_sum[e] * counts[e];
    }
    double n = fmax(choices / ref->config.topk, 1);
    return coeff * (double)experts / (ref->config.topk * n * n) * product;
}

/* The values of one call, with room for its tables. */
struct run {
    double *logit, *score, *value, *probs, *p, *weight, *counts;
    bool *allowed;
    int32_t *index, *all, *best;
};

static void losses_of(const struct moe_ref_router *ref, int64_t tokens, const struct run *r, double losses[MOE_LOSSES])
{
    const struct moe_router_config *c = &ref->config;
    int64_t experts = c->experts, sequences = c->options.sequences > 0 ? c->options.sequences : 1;
    for (int kind = 0; kind < MOE_LOSS_Z; kind++) {
        int64_t parts = kind == MOE_LOSS_SEQUENCE ? sequences : 1;
        const int64_t *given = kind == MOE_LOSS_SWITCH     ? ref->balance_counts
                               : kind == MOE_LOSS_SEQUENCE ? ref->sequence_counts
                                                           : ref->global_counts;
        losses[kind] = 0;
        for (int64_t b = 0; b < parts; b++) {
            memset(r->weight, 0, (size_t)experts * sizeof(double));
            memset(r->counts, 0, (size_t)experts * sizeof(double));
            for (int64_t t = 0; t < tokens; t++) {
                for (int64_t e = 0; t % parts == b && e < experts; e++) {
                    r->weight[e] += r->p[t * experts + e];
                }
                for (int32_t j = 0; t % parts == b && j < c->topk; j++) {
                    if (r->all[t * c->topk + j] >= 0) {
                        r->counts[r->all[t * c->topk + j]] += 1;
                    }
                }
            }
            double over = kind == MOE_LOSS_GLOBAL && given != NULL ? (double)ref->microbatches : 1;
            for (int64_t e = 0; given != NULL && e < experts; e++) {
                r->counts[e] = (double)given[b * experts + e] / over;
            }
            losses[kind] += balance_loss(ref, (double)c->options.coeff[kind] / (double)parts, r->weight, r->counts);
        }
    }
    losses[MOE_LOSS_Z] = 0;
    for (int64_t t = 0; t < tokens; t++) {
        double sum = 0;
        for (int64_t e = 0; e < experts; e++) {
            sum += exp(r->logit[t * experts + e]);
        }
        losses[MOE_LOSS_Z] += (double)c->options.coeff[MOE_LOSS_Z] / (double)(ref->ranks > 0 ? ref->ranks : 1) *
                              log(sum) * log(sum) / (double)tokens;
    }
}

static bool run_new(const struct moe_router_config *c, int64_t tokens, struct run *r)
{
    size_t cells = (size_t)(tokens * c->experts + 1), experts = (size_t)c->experts,
           choices = (size_t)(tokens * c->topk + 1);
    *r = (struct run){.logit = calloc(cells, sizeof(double)),
                      .score = calloc(cells, sizeof(double)),
                      .value = calloc(experts, sizeof(double)),
                      .probs = calloc(cells, sizeof(double)),
                      .p = calloc(cells, sizeof(double)),
                      .weight = calloc(experts, sizeof(double)),
                      .counts = calloc(experts, sizeof(double)),
                      .allowed = calloc(experts, sizeof(bool)),
                      .index = calloc(choices, sizeof(int32_t)),
                      .all = calloc(choices, sizeof(int32_t)),
                      .best = calloc((size_t)c->topk, sizeof(int32_t))};
    return r->logit && r->score && r->value && r->probs && r->p && r->weight && r->counts && r->allowed && r->index &&
           r->all && r->best;
}

static void run_free(struct run *r)
{
    free(r->logit);
    free(r->score);
    free(r->value);
    free(r->probs);
    free(r->p);
    free(r->weight);
    free(r->counts);
    free(r->allowed);
    free(r->index);
    free(r->all);
    free(r->best);
}

/* Computes scores, choices and weights of all tokens; the choices are those of `fixed` where that is given. */
static void route(const struct moe_ref_router *ref, int64_t tokens, const double *x, const int32_t *fixed_all,
                  const int32_t *fixed_index, struct run *r)
{
    const struct moe_router_config *c = &ref->config;
    for (int64_t t = 0; t < tokens; t++) {
        double *logit = r->logit + t * c->experts, *score = r->score + t * c->experts, sum = 0;
        int32_t *all = r->all + t * c->topk;
        scores_of(ref, x + t * c->hidden, logit, score);
        if (fixed_all == NULL) {
            choose(ref, logit, score, r->value, r->allowed, all);
        } else {
            memcpy(all, fixed_all + t * c->topk, (size_t)c->topk * sizeof(*all));
        }
        weigh(ref, logit, score, all, r->weight);
        for (int32_t j = 0; j < c->topk; j++) {
            if (all[j] >= 0) {
                r->probs[t * c->experts + all[j]] = r->weight[j];
            }
        }
        for (int64_t e = 0; e < c->experts; e++) {
            sum += score[e];
        }
        for (int64_t e = 0; e < c->experts; e++) {
            r->p[t * c->experts + e] = score[e] / (c->options.score == MOE_SCORE_SOFTMAX ? 1 : sum);
        }
    }
    if (fixed_index != NULL) {
        memcpy(r->index, fixed_index, (size_t)(tokens * c->topk) * sizeof(int32_t));
    } else {
        drop(ref, tokens, r->probs, r->all, r->index);
    }
    for (int64_t i = 0; i < tokens * c->topk; i++) {
        if (r->index[i] < 0 && r->all[i] >= 0) {
            r->probs[i / c->topk * c->experts + r->all[i]] = 0;
        }
    }
}

/* regret of ref_router.h, for one token: the k best by the options against those given. */
static double regret_of(const struct moe_ref_router *ref, const struct run *r, int64_t token, int32_t *best)
{
    const struct moe_router_config *c = &ref->config;
    const int32_t *given = ref->choice + token * c->topk;
    double lost = 0, size = 0;
    choose(ref, r->logit + token * c->experts, r->score + token * c->experts, r->value, r->allowed, best);
    for (int32_t j = 0; j < c->topk; j++) {
        lost += given[j] >= 0 ? r->value[best[j]] - r->value[given[j]] : 0;
        size += fabs(r->value[best[j]]);
    }
    return lost <= 0 ? 0 : lost / size;
}

int moe_ref_router_forward(const struct moe_ref_router *ref, int64_t tokens, const double *x,
                           struct moe_ref_routing *out)
{
    const struct moe_router_config *c = &ref->config;
    struct run r;
    if (!run_new(c, tokens, &r)) {
        run_free(&r);
        return -1;
    }
    route(ref, tokens, x, ref->choice, ref->choice != NULL ? ref->kept : NULL, &r);
    losses_of(ref, tokens, &r, out->losses);
    out->regret = 0;
    for (int64_t t = 0; ref->choice != NULL && t < tokens; t++) {
        out->regret = fmax(out->regret, regret_of(ref, &r, t, r.best));
    }
    if (out->index != NULL) {
        memcpy(out->index, r.index, (size_t)(tokens * c->topk) * sizeof(int32_t));
    }
    if (out->all != NULL) {
        memcpy(out->all, r.all, (size_t)(tokens * c->topk) * sizeof(int32_t));
    }
    if (out->probs != NULL) {
        memcpy(out->probs, r.probs, (size_t)(tokens * c->experts) * sizeof(double));
    }
    for (int64_t e = 0; out->counts != NULL && e < c->experts; e++) {
        out->counts[e] = 0;
        for (int64_t i = 0; i < tokens * c->topk; i++) {
            out->counts[e] += r.index[i] == e;
        }
        if (c->options.pad_to_capacity && c->options.capacity_factor > 0.0f) {
            out->counts[e] = capacity_of(c, tokens);
        }
    }
    run_free(&r);
    return 0;
}

double moe_ref_router_objective(const struct moe_ref_router *ref, int64_t tokens, const double *x, const double *pull,
                                double loss_scale, const struct moe_ref_routing *fixed)
{
    const struct moe_router_config *c = &ref->config;
    struct run r;
    double sum = 0, losses[MOE_LOSSES];
    if (!run_new(c, tokens, &r)) {
        run_free(&r);
        return NAN;
    }
    route(ref, tokens, x, fixed != NULL ? fixed->all : ref->choice, fixed != NULL ? fixed->index : NULL, &r);
    losses_of(ref, tokens, &r, losses);
    for (int64_t i = 0; i < tokens * c->experts; i++) {
        sum += r.probs[i] * pull[i];
    }
    for (int i = 0; i < MOE_LOSSES; i++) {
        sum += loss_scale * losses[i];
    }
    run_free(&r);
    return sum;
}
