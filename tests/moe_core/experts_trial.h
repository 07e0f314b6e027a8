/*
 * experts_trial.h: one set of experts with its data, of any type, and the same numbers as doubles.
 */
#ifndef ROLL_TESTS_MOE_CORE_EXPERTS_TRIAL_H
#define ROLL_TESTS_MOE_CORE_EXPERTS_TRIAL_H

#include "moe_core/include/moe/experts.h"
#include "tests/moe_core/typed.h"

enum { EXPERTS = 4, HIDDEN = 6, FFN = 5, SLACK = 2, MOST = 12 + SLACK };

static const int64_t patterns[][EXPERTS] = {
    {3, 1, 4, 2}, /* none empty */
    {0, 3, 1, 4}, /* first */
    {3, 0, 1, 4}, /* middle */
    {3, 1, 4, 0}, /* last */
    {0, 0, 5, 0}, /* all but one */
    {0, 0, 0, 0}, /* all */
};
enum { PATTERNS = sizeof(patterns) / sizeof(patterns[0]) };

static const struct types {
    enum moe_dtype row, weight, main_grad;
} types[] = {
    {MOE_F32, MOE_F32, MOE_F32},    {MOE_BF16, MOE_BF16, MOE_F32}, {MOE_F16, MOE_F16, MOE_F32},
    {MOE_BF16, MOE_BF16, MOE_BF16}, {MOE_F32, MOE_BF16, MOE_F16},  {MOE_BF16, MOE_E4M3, MOE_F32},
    {MOE_F16, MOE_E5M2, MOE_F32},
};
enum { TYPES = sizeof(types) / sizeof(types[0]) };

/* One set of experts with its data, and the same numbers as doubles. */
struct trial {
    struct moe_experts_config config;
    bool overwrite, sanitize;
    const int64_t *pattern;
    moe_device_t *device;
    moe_experts_t *experts;
    struct moe_experts_weights weights;
    int64_t live, rows, *m;
    void *x, *y, *dy, *dx;
    float *probs, *d_probs, *scale1, *scale2;
    double *xd, *dyd, *pd, *w1d, *b1d, *w2d, *b2d, *g1d, *gb1d, *g2d, *gb2d;
};

static inline bool is_fp8(enum moe_dtype type)
{
    return type == MOE_E4M3 || type == MOE_E5M2;
}

/* Scales per expert or per block, not powers of two, and the doubles that they make of the stored numbers. */
static inline float *scales(struct trial *t, int64_t n, int64_t k, double *twin)
{
    int64_t down = t->config.block_scales ? (n + 127) / 128 : 1, across = t->config.block_scales ? (k + 127) / 128 : 1;
    float *scale = support_floats(t->device, t->config.experts * down * across);
    for (int64_t i = 0; i < t->config.experts * n * k; i++) {
        int64_t e = i / (n * k), r = i / k % n, c = i % k;
        int64_t at = e * down * across + (t->config.block_scales ? r / 128 * across + c / 128 : 0);
        scale[at] = 0.3f + 0.07f * (float)(at % 7);
        twin[i] *= (double)scale[at];
    }
    return scale;
}

static inline void set_up(struct trial *t)
{
    uint64_t s = 20;
    struct moe_experts_config *c = &t->config;
    if (c->experts == 0) {
        c->experts = EXPERTS;
        c->hidden = HIDDEN;
        c->ffn = FFN;
        c->max_rows = c->max_rows > 0 ? c->max_rows : MOST;
    }
    int64_t l = c->experts, h = c->hidden, f = c->ffn;
    assert_int_equal(moe_device_new_host(&t->device), 0);
    assert_int_equal(moe_experts_new(t->device, c, &t->experts), 0);
    moe_experts_sanitize(t->experts, t->sanitize);
    t->m = support_array(t->device, l, sizeof(*t->m));
    t->live = 0;
    for (int64_t i = 0; i < l; i++) {
        t->m[i] = t->pattern[i];
        t->live += t->pattern[i];
    }
    t->rows = t->live + SLACK;
    /* Large enough that some numbers meet the clamps. */
    t->x = typed_random(t->device, c->type, t->rows * h, 2, &s, &t->xd);
    t->dy = typed_random(t->device, c->type, t->rows * h, 1, &s, &t->dyd);
    t->probs = typed_random(t->device, MOE_F32, t->rows, 1, &s, &t->pd);
    t->weights.w1 = typed_random(t->device, c->weight, l * 2 * f * h, 2, &s, &t->w1d);
    t->weights.w2 = typed_random(t->device, c->weight, l * h * f, 1, &s, &t->w2d);
    t->weights.b1 = typed_random(t->device, c->bias, l * 2 * f, 1, &s, &t->b1d);
    t->weights.b2 = typed_random(t->device, c->bias, l * h, 1, &s, &t->b2d);
    t->weights.d_w1 = typed_random(t->device, c->main_grad, l * 2 * f * h, 1, &s, &t->g1d);
    t->weights.d_w2 = typed_random(t->device, c->main_grad, l * h * f, 1, &s, &t->g2d);
    t->weights.d_b1 = typed_random(t->device, c->main_grad, l * 2 * f, 1, &s, &t->gb1d);
    t->weights.d_b2 = typed_random(t->device, c->main_grad, l * h, 1, &s, &t->gb2d);
    t->weights.overwrite = t->overwrite;
    if (is_fp8(c->weight)) {
        t->weights.scale1 = t->scale1 = scales(t, 2 * f, h, t->w1d);
        t->weights.scale2 = t->scale2 = scales(t, h, f, t->w2d);
    }
    t->y = support_array(t->device, t->rows * h, sizeof(float));
    t->dx = support_array(t->device, t->rows * h, sizeof(float));
    t->d_probs = support_floats(t->device, t->rows);
    memset(t->d_probs, 0xff, (size_t)t->rows * sizeof(float)); /* NaN: it is overwritten */
    memset(t->y, 0x77, (size_t)(t->rows * h) * sizeof(float));
    memset(t->dx, 0x77, (size_t)(t->rows * h) * sizeof(float));
}

static inline void tear_down(struct trial *t)
{
    void *arrays[] = {&t->m,
                      &t->x,
                      &t->y,
                      &t->dy,
                      &t->dx,
                      &t->probs,
                      &t->d_probs,
                      &t->scale1,
                      &t->scale2,
                      &t->weights.w1,
                      &t->weights.w2,
                      &t->weights.b1,
                      &t->weights.b2,
                      &t->weights.d_w1,
                      &t->weights.d_w2,
                      &t->weights.d_b1,
                      &t->weights.d_b2};
    double *doubles[] = {t->xd, t->dyd, t->pd, t->w1d, t->b1d, t->w2d, t->b2d, t->g1d, t->gb1d, t->g2d, t->gb2d};
    moe_experts_destroy(&t->experts);
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        moe_device_free(t->device, arrays[i]);
    }
    for (size_t i = 0; i < sizeof(doubles) / sizeof(doubles[0]); i++) {
        free(doubles[i]);
    }
    moe_device_destroy(&t->device);
}

static inline const float *row_probs(const struct trial *t)
{
    return t->config.place == MOE_PROB_SOURCE ? NULL : t->probs;
}

static inline float *d_row_probs(const struct trial *t)
{
    return t->config.place == MOE_PROB_SOURCE ? NULL : t->d_probs;
}

static inline void same(const char *what, const void *a, const void *b, size_t bytes)
{
    if (memcmp(a, b, bytes) != 0) {
        fail_msg("%s differs", what);
    }
}

#endif
