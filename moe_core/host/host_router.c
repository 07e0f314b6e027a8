/*
 * host_router.c: the host back end's choice of experts, forward and backward.
 *
 * All loops run in a fixed order, tokens before experts, so that results are bitwise reproducible. The top-k is k
 * passes over the scores: with k of 1 to 8 a heap or a sort costs more than it saves, and the tie order (lowest index
 * first) is plain to see.
 */
#include "moe_core/base/fail.h"
#include "moe_core/host/device_host.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void softmax_row(const float *logits, int64_t n, float *out)
{
    float top = logits[0], sum = 0.0f;
    for (int64_t i = 1; i < n; i++) {
        top = logits[i] > top ? logits[i] : top;
    }
    for (int64_t i = 0; i < n; i++) {
        out[i] = expf(logits[i] - top);
        sum += out[i];
    }
    for (int64_t i = 0; i < n; i++) {
        out[i] /= sum;
    }
}

static float softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static void score_row(enum moe_score score, const float *logits, int64_t n, float *out)
{
    if (score == MOE_SCORE_SOFTMAX) {
        softmax_row(logits, n, out);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        out[i] = score == MOE_SCORE_SIGMOID ? sigmoid(logits[i]) : sqrtf(softplus(logits[i]));
    }
}

/*
 * The best of n that is not among the first `taken` of chosen. NaN loses against every number; a row of NaNs still
 * gives distinct choices.
 */
static int32_t best_of(const float *value, int64_t n, const int32_t *chosen, int32_t taken)
{
    int32_t best = -1;
    for (int32_t e = 0; e < (int32_t)n; e++) {
        bool used = false;
        for (int32_t j = 0; j < taken; j++) {
            used = used || chosen[j] == e;
        }
        if (!used && (best < 0 || value[e] > value[best] || (isnan(value[best]) && !isnan(value[e])))) {
            best = e;
        }
    }
    return best;
}

/* Scratch memory of one call: the values by which experts are chosen, and the groups. */
struct scratch {
    float *value;       /* [E] */
    float *group_value; /* [groups] */
    int32_t *picked;    /* [max(groups, experts of a group)] */
};

/* Leaves only the experts of the groups that stay; the other experts can no longer be chosen. */
static void limit_groups(const struct moe_topk *a, const struct scratch *s)
{
    int64_t each = a->experts / a->how.groups;
    int32_t best = a->k / a->how.group_topk;
    for (int32_t g = 0; g < a->how.groups; g++) {
        const float *value = s->value + g * each;
        s->group_value[g] = 0.0f;
        for (int32_t j = 0; j < best; j++) {
            s->picked[j] = best_of(value, each, s->picked, j);
            s->group_value[g] += value[s->picked[j]];
        }
    }
    for (int32_t j = 0; j < a->how.group_topk; j++) {
        s->picked[j] = best_of(s->group_value, a->how.groups, s->picked, j);
    }
    for (int32_t g = 0; g < a->how.groups; g++) {
        bool stays = false;
        for (int32_t j = 0; j < a->how.group_topk; j++) {
            stays = stays || s->picked[j] == g;
        }
        for (int64_t i = 0; !stays && i < each; i++) {
            s->value[g * each + i] = -INFINITY;
        }
    }
}

/*
 * Computes the values by which experts are chosen: scores, or logits where the softmax comes after; plus the bias.
 * False: a value is NaN or a score is infinite, so no weights can be computed.
 */
static bool choice_values(const struct moe_topk *a, const float *logits, const float *scores, float *value)
{
    bool numbers = true;
    for (int64_t e = 0; e < a->experts; e++) {
        value[e] = (a->how.after ? logits : scores)[e] + (a->expert_bias != NULL ? a->expert_bias[e] : 0.0f);
        numbers = numbers && isfinite(scores[e]) && !isnan(value[e]);
    }
    return numbers;
}

static bool divides_by_sum(const struct moe_scoring *how, int32_t k)
{
    return how->after || (how->renormalise && (how->score == MOE_SCORE_SOFTMAX || k > 1));
}

/* The weights of the chosen, before the scale. */
static void weigh(const struct moe_topk *a, const float *logits, const float *scores, const int32_t *index,
                  float *probs)
{
    float top = logits[index[0]], sum = 0.0f;
    for (int32_t j = 0; j < a->k; j++) {
        top = logits[index[j]] > top ? logits[index[j]] : top;
    }
    for (int32_t j = 0; j < a->k; j++) {
        probs[index[j]] = a->how.after ? expf(logits[index[j]] - top) : scores[index[j]];
        sum += probs[index[j]];
    }
    if (divides_by_sum(&a->how, a->k)) {
        float floor = a->how.score == MOE_SCORE_SOFTMAX ? 0.0f : 1e-20f;
        for (int32_t j = 0; j < a->k; j++) {
            probs[index[j]] /= sum + floor;
        }
    }
    for (int32_t j = 0; a->how.scale != 1.0f && j < a->k; j++) {
        probs[index[j]] *= a->how.scale;
    }
}

int moe_host_topk(const void *args)
{
    const struct moe_topk *a = args;
    int32_t most = a->how.groups > a->k ? a->how.groups : a->k;
    struct scratch s = {.value = calloc((size_t)a->experts, sizeof(float)),
                        .group_value = calloc((size_t)(a->how.groups > 0 ? a->how.groups : 1), sizeof(float)),
                        .picked = calloc((size_t)most, sizeof(int32_t))};
    bool numbers = true, memory = s.value != NULL && s.group_value != NULL && s.picked != NULL;
    memset(a->counts, 0, (size_t)a->experts * sizeof(*a->counts));
    memset(a->probs, 0, (size_t)(a->tokens * a->experts) * sizeof(float));
    for (int64_t t = 0; memory && t < a->tokens; t++) {
        float *logits = a->logits + t * a->experts, *scores = a->scores + t * a->experts;
        int32_t *index = a->index + t * a->k;
        for (int64_t e = 0; a->gate_bias != NULL && e < a->experts; e++) {
            logits[e] += a->gate_bias[e];
        }
        score_row(a->how.score, logits, a->experts, scores);
        numbers = choice_values(a, logits, scores, s.value) && numbers;
        if (a->how.groups > 1) {
            limit_groups(a, &s);
        }
        for (int32_t j = 0; j < a->k; j++) {
            index[j] = best_of(s.value, a->experts, index, j);
            a->counts[index[j]]++;
        }
        weigh(a, logits, scores, index, a->probs + t * a->experts);
    }
    free(s.value);
    free(s.group_value);
    free(s.picked);
    return !memory ? MOE_E_NOMEM : numbers ? 0 : MOE_E_NAN;
}

/* d_logits of one token from d_scores, in place. */
static void score_backward(enum moe_score score, const float *logits, const float *scores, int64_t n, float *d)
{
    float dot = 0.0f;
    for (int64_t e = 0; score == MOE_SCORE_SOFTMAX && e < n; e++) {
        dot += scores[e] * d[e];
    }
    for (int64_t e = 0; e < n; e++) {
        switch (score) {
        case MOE_SCORE_SOFTMAX:
            d[e] = scores[e] * (d[e] - dot);
            break;
        case MOE_SCORE_SIGMOID:
            d[e] *= scores[e] * (1.0f - scores[e]);
            break;
        case MOE_SCORE_SQRTSOFTPLUS:
            d[e] = scores[e] > 0.0f ? d[e] * sigmoid(logits[e]) / (2.0f * scores[e]) : 0.0f;
            break;
        }
    }
}

/*
 * The gradient of w = n / sum(n), for weights that were divided by the sum of all chosen scores, including those
 * dropped later.
 */
static void normalised_backward(const struct moe_topk_backward *a, const float *scores, const float *logits,
                                const float *d_weight, const int32_t *index, const int32_t *all, float *d)
{
    float sum = 0.0f, shift = 0.0f, top = logits[all[0]];
    for (int32_t j = 0; j < a->k; j++) {
        top = logits[all[j]] > top ? logits[all[j]] : top;
    }
    for (int32_t j = 0; j < a->k; j++) {
        sum += a->how.after ? expf(logits[all[j]] - top) : scores[all[j]];
    }
    sum += a->how.score == MOE_SCORE_SOFTMAX ? 0.0f : 1e-20f;
    for (int32_t j = 0; j < a->k; j++) {
        float n = a->how.after ? expf(logits[all[j]] - top) : scores[all[j]];
        shift += index[j] < 0 ? 0.0f : n / sum * d_weight[all[j]];
    }
    for (int32_t j = 0; j < a->k; j++) {
        int32_t e = all[j];
        float own = index[j] < 0 ? 0.0f : d_weight[e];
        d[e] = a->how.after ? expf(logits[e] - top) / sum * (own - shift) : (own - shift) / sum;
    }
}

int moe_host_topk_backward(const void *args)
{
    const struct moe_topk_backward *a = args;
    for (int64_t t = 0; t < a->tokens; t++) {
        const float *scores = a->scores + t * a->experts, *logits = a->logits + t * a->experts;
        const float *d_weight = a->d_probs + t * a->experts;
        const int32_t *index = a->index + t * a->k, *all = a->all + t * a->k;
        float *d = a->d_logits + t * a->experts;
        memset(d, 0, (size_t)a->experts * sizeof(*d));
        if (divides_by_sum(&a->how, a->k)) {
            normalised_backward(a, scores, logits, d_weight, index, all, d);
        } else {
            for (int32_t j = 0; j < a->k; j++) {
                d[all[j]] = index[j] < 0 ? 0.0f : d_weight[all[j]];
            }
        }
        for (int32_t j = 0; a->how.scale != 1.0f && j < a->k; j++) {
            d[all[j]] *= a->how.scale;
        }
        if (!a->how.after) {
            score_backward(a->how.score, logits, scores, a->experts, d);
        }
    }
    return 0;
}

/* One choice of an expert, for the order in which choices are kept. */
struct candidate {
    float weight;
    int64_t token;
    int32_t slot;
};

static int by_weight(const void *left, const void *right)
{
    const struct candidate *a = left, *b = right;
    if (a->weight != b->weight) {
        return a->weight > b->weight ? -1 : 1;
    }
    return a->token < b->token ? -1 : 1;
}

int moe_host_drop(const void *args)
{
    const struct moe_drop *a = args;
    struct candidate *candidate = calloc((size_t)a->tokens + 1, sizeof(*candidate));
    if (candidate == NULL) {
        return MOE_E_NOMEM;
    }
    for (int32_t e = 0; e < (int32_t)a->experts; e++) {
        size_t candidates = 0;
        for (int64_t i = 0; a->counts[e] > a->capacity && i < a->tokens * a->k; i++) {
            if (a->index[i] == e) {
                candidate[candidates++] =
                    (struct candidate){a->probs[i / a->k * a->experts + e], i / a->k, (int32_t)(i % a->k)};
            }
        }
        if (!a->by_position) {
            qsort(candidate, candidates, sizeof(*candidate), by_weight);
        }
        for (size_t i = (size_t)a->capacity; i < candidates; i++) {
            a->index[candidate[i].token * a->k + candidate[i].slot] = -1;
            a->probs[candidate[i].token * a->experts + e] = 0.0f;
        }
        if (a->pad || a->counts[e] > a->capacity) {
            a->counts[e] = a->capacity;
        }
    }
    free(candidate);
    return 0;
}
