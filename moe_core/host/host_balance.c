/*
 * host_balance.c: the host back end's auxiliary losses, their gradients, and the expert bias.
 *
 * For fixed counts every loss that counts tokens is linear in p: the loss is the sum of p times a number per (token,
 * expert), here called the pull, and the pull is itself the gradient. So forward and backward share one function and
 * cannot drift apart. Sums are taken in double, because people read losses.
 */
#include "moe_core/base/fail.h"
#include "moe_core/host/device_host.h"

#include <math.h>
#include <string.h>

/* coeff E / (k N^2), for counts that were summed over `over` microbatches; N: the tokens in one of them, at least 1. */
static double factor(const struct moe_balance *a, double coeff, const int64_t *counts, int64_t over)
{
    double choices = 0;
    for (int64_t e = 0; e < a->experts; e++) {
        choices += (double)counts[e];
    }
    double tokens = fmax(choices / ((double)a->k * (double)over), 1.0);
    return coeff * (double)a->experts / ((double)a->k * tokens * tokens) / (double)over;
}

/* The factors of the losses for the sequence of one token: they do not change over its experts. */
struct pull {
    double switch_factor, sequence_factor, global_factor;
    const int64_t *sequence_counts;
};

static struct pull pull_of(const struct moe_balance *a, int64_t token)
{
    struct pull p = {.sequence_counts = NULL};
    if (a->coeff[MOE_LOSS_SWITCH] != 0.0f) {
        p.switch_factor = factor(a, (double)a->coeff[MOE_LOSS_SWITCH], a->counts, 1);
    }
    if (a->coeff[MOE_LOSS_SEQUENCE] != 0.0f) {
        p.sequence_counts = a->sequence_counts + token % a->sequences * a->experts;
        p.sequence_factor = factor(a, (double)a->coeff[MOE_LOSS_SEQUENCE] / (double)a->sequences, p.sequence_counts, 1);
    }
    if (a->coeff[MOE_LOSS_GLOBAL] != 0.0f) {
        p.global_factor = factor(a, (double)a->coeff[MOE_LOSS_GLOBAL], a->global_counts, a->microbatches);
    }
    return p;
}

static void pulls(const struct moe_balance *a, const struct pull *p, int64_t e, double out[3])
{
    out[MOE_LOSS_SWITCH] = p->switch_factor != 0 ? p->switch_factor * (double)a->counts[e] : 0;
    out[MOE_LOSS_SEQUENCE] = p->sequence_factor != 0 ? p->sequence_factor * (double)p->sequence_counts[e] : 0;
    out[MOE_LOSS_GLOBAL] = p->global_factor != 0 ? p->global_factor * (double)a->global_counts[e] : 0;
}

/* p = s for softmax, s / sum of s for the others. */
static double score_sum(const struct moe_balance *a, const float *scores)
{
    double sum = 0;
    for (int64_t e = 0; a->score != MOE_SCORE_SOFTMAX && e < a->experts; e++) {
        sum += (double)scores[e];
    }
    return a->score == MOE_SCORE_SOFTMAX ? 1.0 : sum + 1e-20;
}

static double log_sum_exp(const float *logits, int64_t n)
{
    double top = (double)logits[0], sum = 0;
    for (int64_t e = 1; e < n; e++) {
        top = fmax(top, (double)logits[e]);
    }
    for (int64_t e = 0; e < n; e++) {
        sum += exp((double)logits[e] - top);
    }
    return top + log(sum);
}

static double z_factor(const struct moe_balance *a)
{
    return a->tokens == 0 ? 0 : (double)a->coeff[MOE_LOSS_Z] / (double)a->ranks / (double)a->tokens;
}

int moe_host_balance(const void *args)
{
    const struct moe_balance *a = args;
    double loss[MOE_LOSSES] = {0};
    for (int64_t t = 0; t < a->tokens; t++) {
        const float *scores = a->scores + t * a->experts, *logits = a->logits + t * a->experts;
        struct pull p = pull_of(a, t);
        double sum = score_sum(a, scores);
        for (int64_t e = 0; e < a->experts; e++) {
            double each[3];
            pulls(a, &p, e, each);
            for (int i = 0; i < 3; i++) {
                loss[i] += each[i] * (double)scores[e] / sum;
            }
        }
        if (a->coeff[MOE_LOSS_Z] != 0.0f) {
            double lse = log_sum_exp(logits, a->experts);
            loss[MOE_LOSS_Z] += z_factor(a) * lse * lse;
        }
    }
    for (int i = 0; i < MOE_LOSSES; i++) {
        a->losses[i] = (float)loss[i];
    }
    return 0;
}

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

/*
 * The gradient of the losses by logit e: the derivative of p, through its normalisation and the score function, times
 * the pulls. `mean`: the sum over experts of p times pull.
 */
static double through_score(const struct moe_balance *a, double pull, double mean, double score, double logit,
                            double sum)
{
    double d_score = (pull - mean) / sum;
    switch (a->score) {
    case MOE_SCORE_SIGMOID:
        return d_score * score * (1.0 - score);
    case MOE_SCORE_SQRTSOFTPLUS:
        return score > 0 ? d_score * sigmoid(logit) / (2.0 * score) : 0;
    default:
        return score * (pull - mean);
    }
}

int moe_host_balance_backward(const void *args)
{
    const struct moe_balance *a = args;
    for (int64_t t = 0; t < a->tokens; t++) {
        const float *scores = a->scores + t * a->experts, *logits = a->logits + t * a->experts;
        float *d_logits = a->d_logits + t * a->experts;
        struct pull p = pull_of(a, t);
        double sum = score_sum(a, scores), mean = 0, each[3];
        bool z = a->coeff[MOE_LOSS_Z] != 0.0f;
        double lse = z ? log_sum_exp(logits, a->experts) : 0;
        for (int64_t e = 0; e < a->experts; e++) {
            pulls(a, &p, e, each);
            mean += (each[0] + each[1] + each[2]) * (double)scores[e] / sum;
        }
        for (int64_t e = 0; e < a->experts; e++) {
            pulls(a, &p, e, each);
            double d = through_score(a, each[0] + each[1] + each[2], mean, (double)scores[e], (double)logits[e], sum);
            d += z ? z_factor(a) * 2.0 * lse * exp((double)logits[e] - lse) : 0;
            d_logits[e] += (float)((double)a->loss_scale * d);
        }
    }
    return 0;
}

int moe_host_count_sequences(const void *args)
{
    const struct moe_count_sequences *a = args;
    memset(a->counts, 0, (size_t)(a->sequences * a->experts) * sizeof(*a->counts));
    for (int64_t i = 0; i < a->tokens * a->k; i++) {
        a->counts[i / a->k % a->sequences * a->experts + a->index[i]]++;
    }
    return 0;
}

int moe_host_add_counts(const void *args)
{
    const struct moe_add_counts *a = args;
    for (int64_t i = 0; i < a->count; i++) {
        a->to[i] += a->from[i];
    }
    return 0;
}

int moe_host_bias_update(const void *args)
{
    const struct moe_bias_update *a = args;
    int64_t sum = 0;
    for (int64_t e = 0; e < a->experts; e++) {
        sum += a->counts[e];
    }
    for (int64_t e = 0; e < a->experts; e++) {
        int64_t below = sum - a->experts * a->counts[e];
        a->bias[e] += below > 0 ? a->rate : below < 0 ? -a->rate : 0.0f;
        a->counts[e] = 0;
    }
    return 0;
}

int moe_host_column_sum(const void *args)
{
    const struct moe_column_sum *a = args;
    for (int64_t r = 0; r < a->rows; r++) {
        for (int64_t j = 0; j < a->width; j++) {
            a->out[j] += a->in[r * a->width + j];
        }
    }
    return 0;
}
