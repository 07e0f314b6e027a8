/*
 * host_act.c: the host back end's gated activations, row scaling, token gate and dummy rows.
 *
 * One loop serves every activation and type: numbers are widened a block at a time into the stack, computed in float32
 * and narrowed once. A loop for each pair of type and activation was rejected: twelve loops to keep equal, for a pass
 * that is a hundredth of the products around it. An activation is a function of two numbers that gives its value and
 * both derivatives; the compiler is given each in a loop of its own, so that nothing is called per element.
 */
#include "moe_core/base/fail.h"
#include "moe_core/host/device_host.h"
#include "moe_core/host/dtype_host.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 256 };

/* The number of rows that are not slack: the sum of m, or all rows. */
static int live_rows(const int64_t *m, int64_t groups, int64_t rows, int64_t *live)
{
    *live = m == NULL ? rows : 0;
    for (int64_t i = 0; m != NULL && i < groups; i++) {
        if (m[i] < 0) {
            return MOE_E_COUNT;
        }
        if (m[i] > rows - *live) {
            return MOE_E_SPLIT;
        }
        *live += m[i];
    }
    return 0;
}

static const void *at(const void *base, int64_t index, enum moe_dtype type)
{
    return (const char *)base + index * (int64_t)moe_dtype_bytes(type);
}

static void *at_mut(void *base, int64_t index, enum moe_dtype type)
{
    return (char *)base + index * (int64_t)moe_dtype_bytes(type);
}

/* activations */

/* Value and derivatives of one gated pair. */
struct pair {
    float value, d_gate, d_linear;
};

static inline struct pair swiglu(float gate, float linear)
{
    float sig = 1.0f / (1.0f + expf(-gate));
    /* The quotient and not gate * sig: forward has always computed the quotient. */
    return (struct pair){gate / (1.0f + expf(-gate)) * linear, sig * (1.0f + gate * (1.0f - sig)), gate * sig};
}

static inline struct pair geglu(float gate, float linear)
{
    float phi =
        0.5f * erfcf(-gate * 0.70710678f); /* erfc, because 1 + erf loses every digit for large negative numbers */
    float density = 0.39894228f * expf(-0.5f * gate * gate);
    return (struct pair){gate * phi * linear, phi + gate * density, gate * phi};
}

static inline struct pair geglu_tanh(float gate, float linear)
{
    float inner = 0.79788456f * (gate + 0.044715f * gate * gate * gate);
    /* 1 + tanh(u) as 2 / (1 + exp(-2u)): no digits are lost where tanh nears -1. */
    float half = 1.0f / (1.0f + expf(-2.0f * inner));
    float slope = 0.79788456f * (1.0f + 3.0f * 0.044715f * gate * gate);
    return (struct pair){gate * half * linear, half + gate * 2.0f * half * (1.0f - half) * slope, gate * half};
}

static inline struct pair swiglu_clamped(float gate, float linear, struct moe_clamp c)
{
    bool gate_free = !(gate > c.limit), linear_free = !(linear > c.limit || linear < -c.limit);
    float g = gate_free ? gate : c.limit;
    float l = (linear_free ? linear : linear > 0 ? c.limit : -c.limit) + c.offset;
    float sig = 1.0f / (1.0f + expf(-c.alpha * g));
    return (struct pair){g * sig * l, gate_free ? sig * (1.0f + c.alpha * g * (1.0f - sig)) : 0.0f,
                         linear_free ? g * sig : 0.0f};
}

/* The factor that the derivative by the gate lacks in the formulas above: (clamped linear + offset). */
static inline float other_half(enum moe_activation kind, float linear, struct moe_clamp c)
{
    if (kind != MOE_SWIGLU_CLAMPED) {
        return linear;
    }
    float l = linear > c.limit ? c.limit : linear < -c.limit ? -c.limit : linear;
    return l + c.offset;
}

/* One block of a row: gate and linear in, values (or derivatives) out. */
struct block {
    int64_t n;
    float gate[BLOCK], linear[BLOCK], value[BLOCK], d_gate[BLOCK], d_linear[BLOCK];
};

#define FORWARD_LOOP(expression)                                                                                       \
    for (int64_t i = 0; i < b->n; i++) {                                                                               \
        b->value[i] = (expression).value;                                                                              \
    }

static void block_forward(const struct moe_act *a, struct block *b)
{
    switch (a->kind) {
    case MOE_GEGLU:
        FORWARD_LOOP(geglu(b->gate[i], b->linear[i]))
        break;
    case MOE_GEGLU_TANH:
        FORWARD_LOOP(geglu_tanh(b->gate[i], b->linear[i]))
        break;
    case MOE_SWIGLU_CLAMPED:
        FORWARD_LOOP(swiglu_clamped(b->gate[i], b->linear[i], a->clamp))
        break;
    default:
        FORWARD_LOOP(swiglu(b->gate[i], b->linear[i]))
    }
}

#define BACKWARD_LOOP(expression)                                                                                      \
    for (int64_t i = 0; i < b->n; i++) {                                                                               \
        struct pair p = expression;                                                                                    \
        float d = scale * d_act[i];                                                                                    \
        b->value[i] = p.value;                                                                                         \
        b->d_linear[i] = d * p.d_linear;                                                                               \
        b->d_gate[i] = d * other_half(a->kind, b->linear[i], a->clamp) * p.d_gate;                                     \
    }

static void block_backward(const struct moe_act *a, const float *d_act, float scale, struct block *b)
{
    switch (a->kind) {
    case MOE_GEGLU:
        BACKWARD_LOOP(geglu(b->gate[i], b->linear[i]))
        break;
    case MOE_GEGLU_TANH:
        BACKWARD_LOOP(geglu_tanh(b->gate[i], b->linear[i]))
        break;
    case MOE_SWIGLU_CLAMPED:
        BACKWARD_LOOP(swiglu_clamped(b->gate[i], b->linear[i], a->clamp))
        break;
    default:
        BACKWARD_LOOP(swiglu(b->gate[i], b->linear[i]))
    }
}

/* Gate and linear numbers of row r from column c on. */
static void load(const struct moe_act *a, int64_t r, int64_t c, struct block *b)
{
    b->n = a->width - c < BLOCK ? a->width - c : BLOCK;
    moe_widen(a->type, at(a->h, r * 2 * a->width + c, a->type), b->n, b->gate);
    moe_widen(a->type, at(a->h, r * 2 * a->width + a->width + c, a->type), b->n, b->linear);
}

int moe_host_act(const void *args)
{
    const struct moe_act *a = args;
    int64_t live = 0;
    int rc = live_rows(a->m, a->groups, a->rows, &live);
    struct block b;
    for (int64_t r = 0; rc == 0 && r < live; r++) {
        for (int64_t c = 0; c < a->width; c += BLOCK) {
            load(a, r, c, &b);
            block_forward(a, &b);
            for (int64_t i = 0; a->probs != NULL && i < b.n; i++) {
                b.value[i] *= a->probs[r];
            }
            moe_narrow(a->type, b.value, b.n, at_mut(a->act, r * a->width + c, a->type));
        }
    }
    return rc;
}

int moe_host_act_backward(const void *args)
{
    const struct moe_act *a = args;
    int64_t live = 0;
    int rc = live_rows(a->m, a->groups, a->rows, &live);
    struct block b;
    float d_act[BLOCK];
    for (int64_t r = 0; rc == 0 && r < live; r++) {
        float scale = a->probs != NULL ? a->probs[r] : 1.0f, d_prob = 0.0f;
        for (int64_t c = 0; c < a->width; c += BLOCK) {
            load(a, r, c, &b);
            moe_widen(a->type, at(a->d_act, r * a->width + c, a->type), b.n, d_act);
            block_backward(a, d_act, scale, &b);
            for (int64_t i = 0; a->d_probs != NULL && i < b.n; i++) {
                d_prob += d_act[i] * b.value[i];
            }
            int64_t to = r * 2 * a->width + c;
            moe_narrow(a->type, b.d_gate, b.n, at_mut(a->d_h, to, a->type));
            moe_narrow(a->type, b.d_linear, b.n, at_mut(a->d_h, to + a->width, a->type));
        }
        if (a->d_probs != NULL) {
            a->d_probs[r] += d_prob;
        }
    }
    return rc;
}

/* rows times a number */

static int scale_rows(const struct moe_row_scale *s, bool backward)
{
    int64_t live = 0;
    int rc = live_rows(s->m, s->groups, s->rows, &live);
    float in[BLOCK], other[BLOCK];
    for (int64_t r = 0; rc == 0 && r < live; r++) {
        float p = s->probs != NULL ? s->probs[r] : 1.0f, dot = 0.0f;
        for (int64_t c = 0; c < s->width; c += BLOCK) {
            int64_t n = s->width - c < BLOCK ? s->width - c : BLOCK, from = r * s->width + c;
            moe_widen(s->type, at(s->in, from, s->type), n, in);
            if (backward && s->d_probs != NULL) {
                moe_widen(s->type, at(s->x, from, s->type), n, other);
                for (int64_t i = 0; i < n; i++) {
                    dot += in[i] * other[i];
                }
            }
            for (int64_t i = 0; i < n; i++) {
                in[i] *= p;
            }
            if (s->beta != 0.0f) {
                moe_widen(s->type, at(s->out, from, s->type), n, other);
                for (int64_t i = 0; i < n; i++) {
                    in[i] += other[i];
                }
            }
            moe_narrow(s->type, in, n, at_mut(s->out, from, s->type));
        }
        if (backward && s->d_probs != NULL) {
            s->d_probs[r] += dot;
        }
    }
    return rc;
}

int moe_host_row_scale(const void *args)
{
    return scale_rows(args, false);
}

int moe_host_row_scale_backward(const void *args)
{
    return scale_rows(args, true);
}

/* the shared expert's gate */

int moe_host_token_gate(const void *args)
{
    const struct moe_token_gate *g = args;
    float x[BLOCK], gate[BLOCK];
    for (int64_t t = 0; t < g->tokens; t++) {
        float logit = 0.0f;
        for (int64_t c = 0; c < g->width; c += BLOCK) {
            int64_t n = g->width - c < BLOCK ? g->width - c : BLOCK;
            moe_widen(g->type, at(g->x, t * g->width + c, g->type), n, x);
            moe_widen(g->gate_type, at(g->gate, c, g->gate_type), n, gate);
            for (int64_t i = 0; i < n; i++) {
                logit += x[i] * gate[i];
            }
        }
        g->score[t] = 1.0f / (1.0f + expf(-logit));
    }
    return 0;
}

/* Column blocks outside, tokens inside: the sum over tokens stays in float32 until it is whole. */
int moe_host_token_gate_backward(const void *args)
{
    const struct moe_token_gate *g = args;
    float x[BLOCK], dx[BLOCK], gate[BLOCK], sum[BLOCK];
    for (int64_t c = 0; c < g->width; c += BLOCK) {
        int64_t n = g->width - c < BLOCK ? g->width - c : BLOCK;
        moe_widen(g->gate_type, at(g->gate, c, g->gate_type), n, gate);
        memset(sum, 0, sizeof(sum));
        if (g->d_gate != NULL && g->beta != 0.0f) {
            moe_widen(g->grad, at(g->d_gate, c, g->grad), n, sum);
        }
        for (int64_t t = 0; t < g->tokens; t++) {
            int64_t from = t * g->width + c;
            float dl = g->d_score[t] * g->score[t] * (1.0f - g->score[t]);
            moe_widen(g->type, at(g->dx, from, g->type), n, dx);
            for (int64_t i = 0; i < n; i++) {
                dx[i] += dl * gate[i];
            }
            moe_narrow(g->type, dx, n, at_mut(g->dx, from, g->type));
            if (g->d_gate == NULL) {
                continue;
            }
            moe_widen(g->type, at(g->x, from, g->type), n, x);
            for (int64_t i = 0; i < n; i++) {
                sum[i] += dl * x[i];
            }
        }
        if (g->d_gate != NULL) {
            moe_narrow(g->grad, sum, n, at_mut(g->d_gate, c, g->grad));
        }
    }
    return 0;
}

/* counts and rows */

int moe_host_fill_counts(const void *args)
{
    const struct moe_fill_counts *f = args;
    for (int64_t i = 0; i < f->count; i++) {
        f->to[i] = f->value;
    }
    return 0;
}

int moe_host_zero_slack(const void *args)
{
    const struct moe_zero_slack *z = args;
    int64_t live = 0;
    int rc = live_rows(z->m, z->groups, z->rows, &live);
    if (rc == 0) {
        memset((char *)z->data + live * z->row_bytes, 0, (size_t)((z->rows - live) * z->row_bytes));
    }
    return rc;
}

int moe_host_dummy_rows(const void *args)
{
    const struct moe_dummy_rows *d = args;
    int64_t live = 0, from = 0, to = 0;
    int rc = live_rows(d->m, d->groups, d->rows, &live);
    for (int64_t i = 0; rc == 0 && i < d->groups; i++) {
        for (int64_t r = 0; r < d->m[i]; r++) {
            d->map[to++] = from++;
        }
        if (d->m[i] == 0) {
            d->map[to++] = -1;
        }
        d->padded[i] = d->m[i] > 0 ? d->m[i] : 1;
    }
    while (rc == 0 && to < d->rows + d->groups) {
        d->map[to++] = -2;
    }
    return rc;
}

int moe_host_pick_rows(const void *args)
{
    const struct moe_pick_rows *p = args;
    size_t bytes = (size_t)p->row_bytes;
    for (int64_t r = 0; r < p->rows; r++) {
        int64_t other = p->map[r];
        char *to = (char *)p->to;
        const char *from = p->from;
        if (other >= 0 && p->inverse) {
            memcpy(to + other * p->row_bytes, from + r * p->row_bytes, bytes);
        } else if (other >= 0) {
            memcpy(to + r * p->row_bytes, from + other * p->row_bytes, bytes);
        } else if (other == -1 && !p->inverse) {
            memset(to + r * p->row_bytes, 0, bytes);
        }
    }
    return 0;
}
