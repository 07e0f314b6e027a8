/*
 * ref_model.c: the reference of the whole model.
 *
 * Shares the layout of the flat buffers with the model and nothing else: its own embedding, norm, head and loss, and
 * the MoE layers of moe_core/ref.c.
 */
#include "moe_core/train/ref_model.h"

#include "moe_core/ref.h"

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
    memset(d_row, 0, (size_t)s->hidden * sizeof *d_row);
    for (int v = 0; v < VOCAB; v++) {
        double d = (p[v] / sum - (v == target ? 1 : 0)) * weight;
        for (int64_t i = 0; i < s->hidden; i++) {
            d_head[v * s->hidden + i] += d * row[i];
            d_row[i] += d * head[v * s->hidden + i];
        }
    }
    return log(sum) + top - chosen;
}

static struct moe_ref layer_ref(const struct shape *s, const struct ref_params *params, int64_t l)
{
    return (struct moe_ref){.hidden = s->hidden,
                            .ffn = s->ffn,
                            .experts = s->experts,
                            .topk = s->topk,
                            .renormalise = s->topk > 1,
                            .gate = params->dense + shape_gate(s, l),
                            .w1 = params->experts + shape_w1(s, l, s->experts),
                            .w2 = params->experts + shape_w2(s, l, s->experts)};
}

int ref_model(const struct shape *s, const struct ref_params *params, const uint8_t *batch, int64_t tokens,
              double weight, double *loss, const struct ref_params *grads)
{
    int64_t h = s->hidden, rows = tokens * h;
    /* x of each block and of the head, their normed rows, and three rows of scratch. */
    double *memory = calloc((size_t)(rows * (2 * (s->layers + 1) + 3)), sizeof *memory);
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
        struct moe_ref layer = layer_ref(s, params, l);
        normalise(x + l * rows, params->dense + shape_norm(s, l), tokens, h, normed + l * rows);
        rc = moe_ref_forward(&layer, tokens, normed + l * rows, y);
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
        struct moe_ref layer = layer_ref(s, params, l);
        struct moe_ref_grads layer_grads = {grads->dense + shape_gate(s, l),
                                            grads->experts + shape_w1(s, l, s->experts),
                                            grads->experts + shape_w2(s, l, s->experts)};
        rc = moe_ref_backward(&layer, tokens, normed + l * rows, dx, d, &layer_grads);
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
