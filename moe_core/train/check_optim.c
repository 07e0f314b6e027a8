/*
 * check_optim.c: each rank holds its own share of parameters against AdamW in double precision, with the gradients that
 * the job reduced and moments of its own.
 *
 * The job's gradients are taken, not the reference's: where a gradient is nearly zero AdamW divides it by its own size,
 * so a rounding of the gradient would be a whole step of the parameter. The gradients themselves are held against the
 * reference before. The schedule and the constants are written again here, so that a mistake in optim.c is none here.
 */
#include "moe_core/train/check_optim.h"

#include "moe_core/include/moe/error.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * What float32 may differ by: half a dozen roundings of the parameter, and of the update, whose first moment is a
 * difference of gradients that may be far larger than it.
 */
static const double of_value = 0x1p-21, of_rate = 1e-5;

static const struct params *params_of(const struct model *m, int buffer)
{
    return buffer == TENSOR_EXPERTS ? &m->experts : buffer == TENSOR_SHARED ? &m->shared : &m->dense;
}

static double *widen(double *to, const float *from, int64_t count)
{
    to = to != NULL ? to : malloc((size_t)count * sizeof(*to) + 1);
    for (int64_t i = 0; to != NULL && i < count; i++) {
        to[i] = (double)from[i];
    }
    return to;
}

int optim_check_before(struct optim_check *c, const struct model *m)
{
    for (int b = 0; b < TENSOR_BUFFERS; b++) {
        const struct params *p = params_of(m, b);
        c->before[b] = widen(c->before[b], p->value, p->count);
        c->mean[b] = c->mean[b] != NULL ? c->mean[b] : widen(NULL, p->mean, p->count);
        c->variance[b] = c->variance[b] != NULL ? c->variance[b] : widen(NULL, p->variance, p->count);
        if (c->before[b] == NULL || c->mean[b] == NULL || c->variance[b] == NULL) {
            return MOE_E_NOMEM;
        }
    }
    if (m->expert_bias != NULL) {
        size_t bytes = (size_t)(m->shape.layers * m->shape.experts) * sizeof(*c->bias);
        c->bias = c->bias != NULL ? c->bias : malloc(bytes);
        if (c->bias == NULL) {
            return MOE_E_NOMEM;
        }
        memcpy(c->bias, m->expert_bias, bytes);
    }
    return 0;
}

void optim_check_destroy(struct optim_check *c)
{
    for (int b = 0; b < TENSOR_BUFFERS; b++) {
        free(c->before[b]);
        free(c->mean[b]);
        free(c->variance[b]);
    }
    free(c->bias);
    *c = (struct optim_check){.bias = NULL};
}

/* The learning rate of a step: linear over the first tenth (at most ten steps), then constant. */
static double rate_of(const struct train_options *o, uint32_t step)
{
    double warm = fmin(floor(o->steps / 10.0) + 1, 10);
    return o->lr * fmin((step + 1) / warm, 1);
}

/* AdamW of a buffer: turns `before` into the parameters as they must be now. */
static void step_buffer(struct optim_check *c, const struct params *p, int b, double rate, uint32_t step)
{
    double left_mean = 1 - pow(0.9, step + 1.0), left_variance = 1 - pow(0.95, step + 1.0);
    for (int64_t i = 0; i < p->count; i++) {
        double g = (double)p->grad[i], *mean = &c->mean[b][i], *variance = &c->variance[b][i];
        *mean += 0.1 * (g - *mean);
        *variance += 0.05 * (g * g - *variance);
        c->before[b][i] -= rate * 0.01 * c->before[b][i];
        c->before[b][i] -= rate * (*mean / left_mean) / (sqrt(*variance / left_variance) + 1e-8);
    }
}

/* Whether a tensor of this rank's share is as it must be; if not, and it is the first one, says so. */
static bool same(struct optim_check *c, const struct model *m, const struct tensor *t, uint32_t step, double rate,
                 bool first)
{
    const float *got = params_of(m, t->buffer)->value + t->local_at;
    const double *want = c->before[t->buffer] + t->local_at;
    for (int64_t i = 0; i < tensor_local_count(t); i++) {
        if (isnan(got[i]) && isnan(want[i])) {
            continue; /* a gradient that is no number, of which the comparison of gradients has told */
        }
        double off = fabs((double)got[i] - want[i]), beyond = (off - of_value * fabs(want[i])) / rate;
        c->worst = fmax(c->worst, isnan(off) ? INFINITY : beyond);
        if (!(beyond <= of_rate)) {
            if (first) {
                fprintf(stderr,
                        "moe_train: rank %d: step %u: after the optimizer %s, element %lld of this rank's share, is "
                        "%.9g, the reference has %.9g\n",
                        m->job->rank, step, t->name, (long long)i, (double)got[i], want[i]);
            }
            return false;
        }
    }
    return true;
}

/* Expert biases: a fixed step towards the mean, by the signs of whole numbers. */
static bool same_bias(const struct optim_check *c, const struct model *m, uint32_t step, const int64_t *chosen)
{
    int64_t experts = m->shape.experts;
    for (int64_t l = 0; l < m->shape.layers; l++) {
        int64_t sum = 0;
        for (int64_t e = 0; e < experts; e++) {
            sum += chosen[l * experts + e];
        }
        for (int64_t e = 0; e < experts; e++) {
            int64_t below = sum - experts * chosen[l * experts + e], at = l * experts + e;
            double want = (double)c->bias[at] + 0.001 * (below > 0 ? 1 : below < 0 ? -1 : 0);
            if (!(fabs((double)m->expert_bias[at] - want) <= 1e-6)) {
                fprintf(stderr,
                        "moe_train: rank %d: step %u: after the optimizer the bias of expert %lld, layer %lld, is "
                        "%.9g, the reference has %.9g\n",
                        m->job->rank, step, (long long)e, (long long)l, (double)m->expert_bias[at], want);
                return false;
            }
        }
    }
    return true;
}

bool optim_check_after(struct optim_check *c, const struct model *m, const struct tensor *tensors, int32_t count,
                       uint32_t step, const int64_t *chosen)
{
    double rate = rate_of(m->options, step);
    int32_t wrong = 0;
    for (int b = 0; b < TENSOR_BUFFERS; b++) {
        step_buffer(c, params_of(m, b), b, rate, step);
    }
    for (int32_t i = 0; i < count; i++) {
        wrong += !same(c, m, &tensors[i], step, rate, wrong == 0);
    }
    if (wrong > 1) {
        fprintf(stderr, "moe_train: rank %d: step %u: %d tensors differ after the optimizer\n", m->job->rank, step,
                wrong);
    }
    return (m->expert_bias == NULL || chosen == NULL || same_bias(c, m, step, chosen)) && wrong == 0;
}
