/*
 * experts.c: fc1, SwiGLU, fc2 over expert-major rows.
 *
 * Buffers are made once for the most rows that a rank can ever receive: allocating per forward was rejected, because
 * freeing memory that enqueued work still uses would need a wait. Any number of rows, zero included, walks the same
 * path.
 */
#include "moe_core/include/moe/experts.h"

#include "moe_core/fail.h"
#include "moe_core/include/moe/grouped.h"
#include "moe_core/include/moe/ops.h"

#include <stdlib.h>

struct moe_experts {
    moe_device_t *device;
    struct moe_experts_config config;
    int64_t rows; /* of the last forward, -1 before any */
    const float *x;
    const int64_t *m;
    float *h, *act, *d_h, *d_act;
};

int moe_experts_new(moe_device_t *device, const struct moe_experts_config *config, moe_experts_t **out)
{
    *out = NULL;
    if (config->max_rows < 0 || config->hidden < 1 || config->ffn < 1 || config->experts < 1) {
        return moe_fail(MOE_E_SHAPE, MOE_NO_RANK, MOE_NO_LAYER, "%lld experts, hidden %lld, ffn %lld",
                        (long long)config->experts, (long long)config->hidden, (long long)config->ffn);
    }
    moe_experts_t *e = calloc(1, sizeof *e);
    if (e == NULL) {
        return moe_fail(MOE_E_NOMEM, MOE_NO_RANK, MOE_NO_LAYER, "experts");
    }
    if (config->type != MOE_F32 || config->weight != MOE_F32 || config->main_grad != MOE_F32 || config->has_bias ||
        config->activation != MOE_SWIGLU || config->place != MOE_PROB_SOURCE || config->recompute ||
        config->delay_wgrad) {
        free(e);
        return moe_fail(MOE_E_UNSUPPORTED, MOE_NO_RANK, MOE_NO_LAYER, "experts other than float32 SwiGLU");
    }
    e->device = device;
    e->config = *config;
    e->rows = -1;
    size_t act = (size_t)config->max_rows * (size_t)config->ffn * sizeof(float);
    int rc = moe_device_alloc(device, 2 * act, (void **)&e->h);
    rc = rc ? rc : moe_device_alloc(device, 2 * act, (void **)&e->d_h);
    rc = rc ? rc : moe_device_alloc(device, act, (void **)&e->act);
    rc = rc ? rc : moe_device_alloc(device, act, (void **)&e->d_act);
    if (rc != 0) {
        moe_experts_destroy(&e);
        return rc;
    }
    *out = e;
    return 0;
}

void moe_experts_destroy(moe_experts_t **experts)
{
    moe_experts_t *e = *experts;
    if (e == NULL) {
        return;
    }
    float **buffers[] = {&e->h, &e->act, &e->d_h, &e->d_act};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) {
        moe_device_free(e->device, buffers[i]);
    }
    free(e);
    *experts = NULL;
}

/* fc1 is [2F,H], fc2 is [H,F]. */
static struct moe_grouped_shape shape(const moe_experts_t *e, int64_t out, int64_t in)
{
    return (struct moe_grouped_shape){
        .groups = e->config.experts, .out_features = out, .in_features = in, .rows = e->rows, .m = e->m};
}

int moe_experts_forward(moe_experts_t *e, const struct moe_experts_weights *weights, const void *x,
                        const float *row_probs, const int64_t *m, int64_t rows, void *y)
{
    (void)row_probs;
    if (rows < 0 || rows > e->config.max_rows) {
        return moe_fail(MOE_E_CAPACITY, MOE_NO_RANK, MOE_NO_LAYER, "%lld rows for experts made for %lld",
                        (long long)rows, (long long)e->config.max_rows);
    }
    e->rows = rows;
    e->x = x;
    e->m = m;
    int64_t hidden = e->config.hidden, ffn = e->config.ffn;
    struct moe_grouped_shape fc1 = shape(e, 2 * ffn, hidden), fc2 = shape(e, hidden, ffn);
    struct moe_swiglu act = {.rows = rows, .width = ffn, .h = e->h, .out = e->act};
    int rc = moe_grouped_forward(e->device, &fc1, x, weights->w1, e->h);
    rc = rc ? rc : moe_device_ops(e->device)->swiglu(e->device, &act);
    return rc ? rc : moe_grouped_forward(e->device, &fc2, e->act, weights->w2, y);
}

int moe_experts_backward(moe_experts_t *e, const struct moe_experts_weights *weights, const void *dy, void *dx,
                         float *d_row_probs)
{
    (void)d_row_probs;
    if (e->rows < 0) {
        return moe_fail(MOE_E_STATE, MOE_NO_RANK, MOE_NO_LAYER, "experts backward before forward");
    }
    int64_t hidden = e->config.hidden, ffn = e->config.ffn;
    struct moe_grouped_shape fc1 = shape(e, 2 * ffn, hidden), fc2 = shape(e, hidden, ffn);
    struct moe_swiglu act = {.rows = e->rows, .width = ffn, .h = e->h, .d_act = e->d_act, .out = e->d_h};
    int rc = moe_grouped_dgrad(e->device, &fc2, dy, weights->w2, e->d_act);
    rc = rc ? rc : moe_grouped_wgrad(e->device, &fc2, dy, e->act, true, weights->d_w2);
    rc = rc ? rc : moe_device_ops(e->device)->swiglu_backward(e->device, &act);
    rc = rc ? rc : moe_grouped_dgrad(e->device, &fc1, e->d_h, weights->w1, dx);
    return rc ? rc : moe_grouped_wgrad(e->device, &fc1, e->d_h, e->x, true, weights->d_w1);
}
