/*
 * layer_preset.c: the layers of published models: beside the router, which router_preset.c knows, what their experts
 * have. A table, because the models differ in nothing but options of the layer.
 */
#include "moe_core/layer/layer_state.h"

#include <string.h>

static const struct {
    const char *name;
    bool has_bias, shared;
    enum moe_activation activation;
    enum moe_prob_place place;
} presets[] = {
    {"mixtral", false, false, MOE_SWIGLU, MOE_PROB_SOURCE},
    {"deepseek-v3", false, true, MOE_SWIGLU, MOE_PROB_SOURCE},
    {"qwen3-moe", false, false, MOE_SWIGLU, MOE_PROB_SOURCE},
    {"gpt-oss", true, false, MOE_SWIGLU_CLAMPED, MOE_PROB_ACTIVATION},
};

int moe_layer_preset(const char *name, struct moe_layer_config *config)
{
    struct moe_router_config router = {.hidden = config->hidden};
    int rc = moe_router_preset(name, &router);
    for (size_t i = 0; i < sizeof(presets) / sizeof(presets[0]) && rc == 0; i++) {
        if (strcmp(presets[i].name, name) == 0) {
            config->experts = router.experts;
            config->topk = router.topk;
            config->renormalise = router.renormalise;
            config->router = router.options;
            config->has_bias = presets[i].has_bias;
            config->activation = presets[i].activation;
            config->clamp = (struct moe_clamp){0};
            config->place = presets[i].place;
            config->shared_ffn = presets[i].shared ? config->ffn : 0;
            config->shared_bias = config->shared_gate = false;
        }
    }
    return rc;
}
