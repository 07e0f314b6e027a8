/*
 * ref_model.c: the reference of the whole model.
 *
 * The reference shares only the layout of the flat buffers with the model. It has its own embedding, norm, head and
 * loss, and the MoE layers of moe_core/reference/ref_layer.c.
 */
#include "moe_core/train/ref_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double inverse_rms(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += x[i] * x[i];
    }
    return 1 / sqrt(sum / (double)n + 1e-5);
}

static void normalise(const double *x, const double *gain, int64_t tokens, int64_t h, double *out)
{
    for (int64_t t = 0; t < tokens; t++) {
        double inverse = inverse_rms(x + t * h, h);
        for (int64_t i = 0; i < h; i++) {
            out[t * h + i] = x[t * h + i] * inverse * gain[i];
        }
    }
}

/* Adds to dx and d_gain. d out_i / d x_j = gain_i (delta_ij r - x_i x_j r^3 / h), r = 1 / rms. */
static void normalise_backward(const double *x, const double *gain, const double *d_out, int64_t tokens, int64_t h,
                               double *dx, double *d_gain)
{
    for (int64_t t = 0; t < tokens; t++) {
        const double *row = x + t * h, *d = d_out + t * h;
        double r = inverse_rms(row, h), dot = 0;
        for (int64_t i = 0; i < h; i++) {
            dot += d[i] * gain[i] * row[i];
            d_gain[i] += d[i] * row[i] * r;
        }
        for (int64_t j = 0; j < h; j++) {
            dx[t * h + j] += d[j] * gain[j] * r - row[j] * r * r * r / (double)h * dot;
        }
    }
}

/* Loss of one token from its normed row; adds to the head's gradient and sets d_row. */
static double head_token(const struct shape *s, const double *head, const double *row, uint8_t target, double weight,
                         double *d_head, double *d_row)
{
    double p[VOCAB], top = -INFINITY, sum = 0;
    for (int v = 0; v < VOCAB; v++) {
        p[v] = 0;
        for (int64_t i = 0; i < s->hidden; i++) {
            p[v] += head[v * s->hidden + i] * row[i];
        }
        top = fmax(top, p[v]);
    }
    double chosen = p[target];
    for (int v = 0; v < VOCAB; v++) {
        p[v] = exp(p[v] - top);
        sum += p[v];
    }
    memset(d_row, 0, (size_t)s->hidden * sizeof(*d_row));
    for (int v = 0; v < VOCAB; v++) {
        double d = (p[v] / sum - (v == target ? 1 : 0)) * weight;
        for (int64_t i = 0; i < s->hidden; i++) {
            d_head[v * s->hidden + i] += d * row[i];
            d_row[i] += d * head[v * s->hidden + i];
        }
    }
    return log(sum) + top - chosen;
}

/*
 * Rounds each number to the nearest one of `digits` significant bits, ties to even, as a cast to a narrower type does.
 */
static void round_to(double *x, int64_t count, int digits)
{
    for (int64_t i = 0; i < count && digits > 0; i++) {
        int exponent;
        double part = frexp(x[i], &exponent);
        x[i] = ldexp(nearbyint(ldexp(part, digits)), exponent - digits);
    }
}

static struct moe_ref_layer layer_ref(const struct shape *s, const struct ref_how *how, const struct ref_params *p,
                                      int64_t l)
{
    struct share all = share_all(s);
    struct moe_ref_layer layer = {.router = how->router,
                                  .ffn = s->ffn,
                                  .shared_ffn = s->shared,
                                  .activation = how->activation,
                                  .place = how->place,
                                  .loss_scale = how->loss_scale,
                                  .global_earlier = how->earlier + l * s->experts,
                                  .microbatches = how->microbatch + 1,
                                  .weights = {.gate = p->dense + shape_gate(s, l),
                                              .w1 = p->experts + shape_w1(s, all, l),
                                              .w2 = p->experts + shape_w2(s, all, l)}};
    struct moe_ref_weights *w = &layer.weights;
    w->gate_bias = s->gate_bias ? p->dense + shape_gate_bias(s, l) : NULL;
    w->expert_bias = p->expert_bias != NULL ? p->expert_bias + l * s->experts : NULL;
    w->b1 = s->bias ? p->experts + shape_b1(s, all, l) : NULL;
    w->b2 = s->bias ? p->experts + shape_b2(s, all, l) : NULL;
    if (s->shared > 0) {
        w->shared_w1 = p->shared + shape_shared_w1(s, s->shared, l);
        w->shared_w2 = p->shared + shape_shared_w2(s, s->shared, l);
        w->shared_b1 = s->bias ? p->shared + shape_shared_b1(s, s->shared, l) : NULL;
        w->shared_b2 = s->bias ? p->shared + shape_shared_b2(s, s->shared, l) : NULL;
        w->shared_gate = s->shared_gate ? p->dense + shape_shared_gate(s, l) : NULL;
    }
    return layer;
}

static struct moe_ref_layer_grads layer_grads(const struct shape *s, const struct ref_params *g, int64_t l)
{
    struct share all = share_all(s);
    bool shared = s->shared > 0;
    return (struct moe_ref_layer_grads){
        .gate = g->dense + shape_gate(s, l),
        .gate_bias = s->gate_bias ? g->dense + shape_gate_bias(s, l) : NULL,
        .w1 = g->experts + shape_w1(s, all, l),
        .w2 = g->experts + shape_w2(s, all, l),
        .b1 = s->bias ? g->experts + shape_b1(s, all, l) : NULL,
        .b2 = s->bias ? g->experts + shape_b2(s, all, l) : NULL,
        .shared_w1 = shared ? g->shared + shape_shared_w1(s, s->shared, l) : NULL,
        .shared_w2 = shared ? g->shared + shape_shared_w2(s, s->shared, l) : NULL,
        .shared_b1 = shared && s->bias ? g->shared + shape_shared_b1(s, s->shared, l) : NULL,
        .shared_b2 = shared && s->bias ? g->shared + shape_shared_b2(s, s->shared, l) : NULL,
        .shared_gate = shared && s->shared_gate ? g->dense + shape_shared_gate(s, l) : NULL,
    };
}

/*
 * Runs layer number l over a batch, in its slices; dy = NULL: forward only. Adds the tokens that chose each expert to
 * counts [E], unless NULL.
 */
static int run_layer(const struct shape *s, const struct ref_how *how, const struct moe_ref_layer *layer, int64_t l,
                     int64_t tokens, const double *x, const double *dy, double *y, double *dx,
                     const struct moe_ref_layer_grads *grads, int64_t *counts)
{
    int32_t n = how->slices > 1 ? how->slices : 1;
    int64_t part = tokens / n;
    struct moe_ref_set *set = calloc((size_t)n, sizeof(*set));
    int64_t *chosen = calloc((size_t)(n * s->experts), sizeof(*chosen));
    double *regret = calloc((size_t)n, sizeof(*regret));
    bool room = set != NULL && chosen != NULL && regret != NULL;
    for (int32_t i = 0; i < n && room; i++) {
        int64_t at = i * part * s->hidden;
        set[i] = (struct moe_ref_set){.tokens = part,
                                      .x = x + at,
                                      .y = y + at,
                                      .balance = n > 1,
                                      .global = n > 1,
                                      .chosen = chosen + i * s->experts,
                                      .regret = regret + i};
        if (how->choice != NULL) {
            int64_t place = (l * how->room + i * (how->room / n)) * s->topk;
            set[i].choice = how->choice + place;
            set[i].kept = how->kept + place;
        }
        if (dy != NULL) {
            set[i].dy = dy + at;
            set[i].dx = dx + at;
            set[i].grads = *grads;
        }
    }
    int rc = room ? moe_ref_layer_run(layer, set, n) : -1;
    for (int64_t i = 0; i < n * s->experts && counts != NULL && rc == 0; i++) {
        counts[i % s->experts] += chosen[i];
    }
    for (int32_t i = 0; i < n && how->choice != NULL && rc == 0; i++) {
        *how->regret = fmax(*how->regret, regret[i]);
    }
    free(regret);
    free(chosen);
    free(set);
    return rc;
}

int ref_model(const struct shape *s, const struct ref_how *how, const struct ref_params *params, const uint8_t *batch,
              int64_t tokens, double weight, double *loss, const struct ref_params *grads)
{
    int64_t h = s->hidden, rows = tokens * h;
    /* x of each block and of the head, their normed rows, and three rows of scratch. */
    double *memory = calloc((size_t)(rows * (2 * (s->layers + 1) + 3) + 1), sizeof(*memory));
    int rc = memory == NULL ? -1 : 0;
    if (rc != 0) {
        return rc;
    }
    double *x = memory, *normed = x + rows * (s->layers + 1), *y = normed + rows * (s->layers + 1), *dx = y + rows,
           *d = dx + rows;
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t c = 0; c < s->context; c++) {
            const double *row = params->dense + (c * VOCAB + batch[t * (s->context + 1) + c]) * h;
            for (int64_t i = 0; i < h; i++) {
                x[t * h + i] += row[i];
            }
        }
    }
    for (int64_t l = 0; l < s->layers && rc == 0; l++) {
        struct moe_ref_layer layer = layer_ref(s, how, params, l);
        normalise(x + l * rows, params->dense + shape_norm(s, l), tokens, h, normed + l * rows);
        round_to(normed + l * rows, rows, how->digits);
        rc = run_layer(s, how, &layer, l, tokens, normed + l * rows, NULL, y, NULL, NULL, NULL);
        for (int64_t i = 0; i < rows; i++) {
            x[(l + 1) * rows + i] = x[l * rows + i] + y[i];
        }
    }
    const double *gain = params->dense + shape_final_norm(s), *head = params->dense + shape_head(s);
    normalise(x + s->layers * rows, gain, tokens, h, normed + s->layers * rows);
    for (int64_t t = 0; t < tokens; t++) {
        *loss +=
            weight * head_token(s, head, normed + s->layers * rows + t * h, batch[t * (s->context + 1) + s->context],
                                weight, grads->dense + shape_head(s), d + t * h);
    }
    normalise_backward(x + s->layers * rows, gain, d, tokens, h, dx, grads->dense + shape_final_norm(s));
    for (int64_t l = s->layers; l-- > 0 && rc == 0;) {
        struct moe_ref_layer layer = layer_ref(s, how, params, l);
        struct moe_ref_layer_grads layer_grad = layer_grads(s, grads, l);
        rc = run_layer(s, how, &layer, l, tokens, normed + l * rows, dx, y, d, &layer_grad,
                       how->earlier + l * s->experts);
        normalise_backward(x + l * rows, params->dense + shape_norm(s, l), d, tokens, h, dx,
                           grads->dense + shape_norm(s, l));
    }
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t c = 0; c < s->context; c++) {
            double *row = grads->dense + (c * VOCAB + batch[t * (s->context + 1) + c]) * h;
            for (int64_t i = 0; i < h; i++) {
                row[i] += dx[t * h + i];
            }
        }
    }
    free(memory);
    return rc;
}
