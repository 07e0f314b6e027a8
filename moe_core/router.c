/*
 * router.c: the gate product and the choice of experts, forward and backward.
 *
 * Keeps what backward needs (softmax, choice, weights); relies on the back end for the order of ties. Recomputing the
 * softmax in backward was rejected: a recomputation that differs in the last bit may choose another expert (hazard
 * H9).
 */
#include "moe_core/include/moe/router.h"

#include "moe_core/fail.h"
#include "moe_core/include/moe/ops.h"

#include <stdlib.h>

struct moe_router {
    moe_device_t *device;
    struct moe_router_config config;
    int64_t tokens; /* of the last forward, -1 before any */
    const float *x, *gate;
    float *logits, *soft, *probs, *d_logits;
    int32_t *index;
    int64_t *counts;
};

int moe_router_new(moe_device_t *device, const struct moe_router_config *config, moe_router_t **out)
{
    *out = NULL;
    if (config->experts < 1 || config->topk < 1 || config->topk > config->experts || config->hidden < 1 ||
        config->max_tokens < 0) {
        return moe_fail(MOE_E_SHAPE, MOE_NO_RANK, MOE_NO_LAYER, "top-%d of %lld experts, hidden %lld", config->topk,
                        (long long)config->experts, (long long)config->hidden);
    }
    moe_router_t *router = calloc(1, sizeof *router);
    if (router == NULL) {
        return moe_fail(MOE_E_NOMEM, MOE_NO_RANK, MOE_NO_LAYER, "a router");
    }
    router->device = device;
    router->config = *config;
    router->tokens = -1;
    size_t cells = (size_t)config->max_tokens * (size_t)config->experts * sizeof(float);
    int rc = moe_device_alloc(device, cells, (void **)&router->logits);
    rc = rc ? rc : moe_device_alloc(device, cells, (void **)&router->soft);
    rc = rc ? rc : moe_device_alloc(device, cells, (void **)&router->probs);
    rc = rc ? rc : moe_device_alloc(device, cells, (void **)&router->d_logits);
    rc = rc ? rc
            : moe_device_alloc(device, (size_t)config->max_tokens * (size_t)config->topk * sizeof(int32_t),
                               (void **)&router->index);
    rc = rc ? rc : moe_device_alloc(device, (size_t)config->experts * sizeof(int64_t), (void **)&router->counts);
    if (rc != 0) {
        moe_router_destroy(&router);
        return rc;
    }
    *out = router;
    return 0;
}

void moe_router_destroy(moe_router_t **router)
{
    moe_router_t *r = *router;
    if (r == NULL) {
        return;
    }
    float **buffers[] = {&r->logits, &r->soft, &r->probs, &r->d_logits};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) {
        moe_device_free(r->device, buffers[i]);
    }
    moe_device_free(r->device, &r->index);
    moe_device_free(r->device, &r->counts);
    free(r);
    *router = NULL;
}

int moe_router_forward(moe_router_t *router, const float *x, const float *gate, int64_t tokens)
{
    const struct moe_router_config *c = &router->config;
    if (tokens < 0 || tokens > c->max_tokens) {
        return moe_fail(MOE_E_SHAPE, MOE_NO_RANK, MOE_NO_LAYER, "%lld tokens, made for at most %lld", (long long)tokens,
                        (long long)c->max_tokens);
    }
    router->tokens = tokens;
    router->x = x;
    router->gate = gate;
    const struct moe_device_ops *ops = moe_device_ops(router->device);
    struct moe_gemm product = {.tb = true,
                               .m = tokens,
                               .n = c->experts,
                               .k = c->hidden,
                               .alpha = 1.0f,
                               .a = x,
                               .b = gate,
                               .c = router->logits};
    struct moe_topk choice = {.tokens = tokens,
                              .experts = c->experts,
                              .k = c->topk,
                              .renormalise = c->renormalise,
                              .logits = router->logits,
                              .soft = router->soft,
                              .probs = router->probs,
                              .index = router->index,
                              .counts = router->counts};
    int rc = ops->gemm(router->device, &product);
    return rc ? rc : ops->topk(router->device, &choice);
}

const int32_t *moe_router_index(const moe_router_t *router)
{
    return router->index;
}

const float *moe_router_probs(const moe_router_t *router)
{
    return router->probs;
}

const int64_t *moe_router_counts(const moe_router_t *router)
{
    return router->counts;
}

int moe_router_backward(moe_router_t *router, const float *d_probs, float *dx, float *d_gate)
{
    const struct moe_router_config *c = &router->config;
    int64_t tokens = router->tokens;
    if (tokens < 0) {
        return moe_fail(MOE_E_STATE, MOE_NO_RANK, MOE_NO_LAYER, "router backward before forward");
    }
    const struct moe_device_ops *ops = moe_device_ops(router->device);
    struct moe_topk_backward choice = {.tokens = tokens,
                                       .experts = c->experts,
                                       .k = c->topk,
                                       .renormalise = c->renormalise,
                                       .soft = router->soft,
                                       .probs = router->probs,
                                       .d_probs = d_probs,
                                       .index = router->index,
                                       .d_logits = router->d_logits};
    struct moe_gemm dgrad = {.m = tokens,
                             .n = c->hidden,
                             .k = c->experts,
                             .alpha = 1.0f,
                             .beta = 1.0f,
                             .a = router->d_logits,
                             .b = router->gate,
                             .c = dx};
    struct moe_gemm wgrad = {.ta = true,
                             .m = c->experts,
                             .n = c->hidden,
                             .k = tokens,
                             .alpha = 1.0f,
                             .beta = 1.0f,
                             .a = router->d_logits,
                             .b = router->x,
                             .c = d_gate};
    int rc = ops->topk_backward(router->device, &choice);
    rc = rc ? rc : ops->gemm(router->device, &dgrad);
    return rc ? rc : ops->gemm(router->device, &wgrad);
}
