/*
 * layer_held.c: the legacy behaviour of weight gradients in uninitialised memory (hazard H14), and its cure.
 *
 * As in frameworks without fused accumulation, the gradients of one backward go to memory that was not cleared and are
 * then added to the main_grads. Experts without rows write nothing there, so the old contents of the memory are added:
 * zeros the first time, and afterwards the numbers of another tensor, here NaN. The remedy ZERO_WGRAD clears the slices
 * of those experts. Without the legacy behaviour, experts.c accumulates into the main_grads and no such memory exists.
 */
#include "moe_core/layer/layer_state.h"

#include <stdlib.h>
#include <string.h>

struct sizes {
    int64_t experts, w1, w2; /* elements per expert */
};

static struct sizes sizes_of(const moe_layer_t *l)
{
    int64_t area = l->config.hidden * l->ffn;
    return (struct sizes){moe_dispatcher_local(l->dispatcher), 2 * area, area};
}

static int64_t elements(const struct sizes *s)
{
    return s->experts * (s->w1 + s->w2);
}

/* Allocates twice the gradients: the memory itself, and what the next user of the memory leaves there. */
int layer_held_new(moe_layer_t *l)
{
    if (!l->config.options.legacy_wgrad_uninitialised) {
        return 0;
    }
    struct sizes s = sizes_of(l);
    size_t bytes = (size_t)elements(&s) * sizeof(float);
    int rc = moe_device_alloc(l->device, 2 * bytes, (void **)&l->held);
    unsigned char *nan = malloc(bytes);
    if (rc == 0 && nan == NULL) {
        rc = LAYER_FAIL(l, MOE_E_NOMEM, "gradients");
    }
    if (rc == 0) {
        memset(nan, 0xff, bytes);
        rc = moe_device_copy(l->device, (char *)l->held + bytes, nan, bytes);
        rc = rc ? rc : moe_device_sync(l->device);
    }
    free(nan);
    return rc;
}

/* Whether the experts' weight gradients go through the memory: those of frozen weights go nowhere. */
static bool goes_through(const moe_layer_t *l)
{
    return l->held != NULL && !(layer_frozen(l, MOE_LAYER_W1) && layer_frozen(l, MOE_LAYER_W2));
}

/* Clears the slices that this backward will write, and with the remedy the other slices. */
int layer_held_begin(moe_layer_t *l)
{
    if (!goes_through(l)) {
        return 0;
    }
    struct sizes s = sizes_of(l);
    const struct moe_ops *ops = moe_device_ops(l->device);
    int64_t *m = malloc((size_t)s.experts * sizeof(*m)), empty = 0;
    if (m == NULL) {
        return LAYER_FAIL(l, MOE_E_NOMEM, "row counts");
    }
    uint32_t told = moe_remedies(moe_dispatcher_comm(l->dispatcher), l->config.layer, MOE_REMEDY_ZERO_WGRAD);
    bool cured = (told & MOE_REMEDY_ZERO_WGRAD) != 0;
    int rc = moe_device_copy(l->device, m, moe_dispatcher_m(l->dispatcher), (size_t)s.experts * sizeof(*m));
    int waited = moe_device_sync(l->device);
    rc = rc ? rc : waited;
    for (int64_t i = 0; i < s.experts && rc == 0; i++) {
        empty += m[i] == 0;
        if (m[i] > 0 || cured) {
            rc = ops->zero(l->device, l->held + i * s.w1, (size_t)s.w1 * sizeof(float));
            rc = rc ? rc : ops->zero(l->device, l->held + s.experts * s.w1 + i * s.w2, (size_t)s.w2 * sizeof(float));
        }
    }
    free(m);
    if (cured && empty > 0) {
        layer_report_remedy(l, MOE_REMEDY_ZERO_WGRAD, empty);
    }
    return rc;
}

/* Adds the gradients to the main_grads and gives the memory back. */
int layer_held_end(moe_layer_t *l)
{
    if (!goes_through(l)) {
        return 0;
    }
    struct sizes s = sizes_of(l);
    const float *second = l->held + s.experts * s.w1;
    int rc = layer_frozen(l, MOE_LAYER_W1) ? 0 : layer_add(l, l->held, s.experts * s.w1, l->weights.d_w1);
    rc = rc || layer_frozen(l, MOE_LAYER_W2) ? rc : layer_add(l, second, s.experts * s.w2, l->weights.d_w2);
    layer_ready(l, MOE_LAYER_W2);
    layer_ready(l, MOE_LAYER_W1);
    return rc ? rc : moe_device_copy(l->device, l->held, l->held + elements(&s), (size_t)elements(&s) * sizeof(float));
}
