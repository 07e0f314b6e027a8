/*
 * router_preset.c: the routers of published models, as a table.
 *
 * Numbers are those of the models' configurations; numbers that the training code of a model chooses freely (loss
 * coefficients) are those that its authors name, or 0.
 */
#include "moe_core/include/moe/router.h"

#include "moe_core/base/fail.h"

#include <string.h>

static const struct {
    const char *name;
    struct moe_router_config config;
} presets[] = {
    {"mixtral",
     {.experts = 8, .topk = 2, .renormalise = true, .options = {.after = true, .coeff = {[MOE_LOSS_SWITCH] = 0.02f}}}},
    {"deepseek-v3",
     {.experts = 256,
      .topk = 8,
      .renormalise = true,
      .options = {.score = MOE_SCORE_SIGMOID,
                  .expert_bias = true,
                  .groups = 8,
                  .group_topk = 4,
                  .scale = 2.5f,
                  .coeff = {[MOE_LOSS_SEQUENCE] = 0.0001f}}}},
    {"qwen3-moe", {.experts = 128, .topk = 8, .renormalise = true, .options = {.coeff = {[MOE_LOSS_GLOBAL] = 0.001f}}}},
    {"gpt-oss", {.experts = 128, .topk = 4, .renormalise = true, .options = {.after = true, .gate_bias = true}}},
};

int moe_router_preset(const char *name, struct moe_router_config *config)
{
    for (size_t i = 0; i < sizeof(presets) / sizeof(presets[0]); i++) {
        if (strcmp(presets[i].name, name) == 0) {
            struct moe_router_config preset = presets[i].config;
            preset.max_tokens = config->max_tokens;
            preset.hidden = config->hidden;
            preset.balance = config->balance;
            preset.global = config->global;
            *config = preset;
            return 0;
        }
    }
    return moe_fail(MOE_E_ARG, MOE_NO_RANK, MOE_NO_LAYER, "no router preset '%s'", name);
}
