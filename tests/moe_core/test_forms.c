/*
 * test_forms.c: the forms that frameworks bring: a narrow gate with float32 scores, a loss scaler, the layers of
 * published models with all their biases. Each in every layout, with empty ranks, against the reference in double.
 */
#include "tests/moe_core/form_ranks.h"

static struct form_result a[FORM_RANKS];

static const uint32_t empties[] = {0, 1, 2, 8, 6};
enum { EMPTIES = sizeof(empties) / sizeof(empties[0]) };

/* The reference computes with the numbers that the narrow gate holds, in double: the tolerance is that of float32. */
static void test_a_narrow_gate_gives_float32_scores(void **state)
{
    (void)state;
    for (int layout = 0; layout < FORM_LAYOUTS; layout++) {
        for (int gate = MOE_BF16; gate <= MOE_F16; gate++) {
            for (int type = MOE_F32; type <= MOE_F16; type++) {
                struct form_case c = {.layout = (enum form_layout)layout,
                                      .empty = empties[(layout + type) % 3],
                                      .config = {.type = (enum moe_dtype)type,
                                                 .renormalise = true,
                                                 .dispatcher = (enum moe_dispatcher_kind)((layout + gate) % 4),
                                                 .router = {.gate_type = (enum moe_dtype)gate,
                                                            .gate_bias = true,
                                                            .coeff = {[MOE_LOSS_Z] = 0.1f}}}};
                c.order = "AaBb";
                form_run(&c, a);
                form_check(&c, a, type == MOE_F32 ? 1e-5 : type == MOE_BF16 ? 3e-2 : 4e-3);
            }
        }
    }
    struct form_case c = {.config = {.router = {.gate_type = MOE_E4M3}}};
    form_run(&c, a);
    for (int r = 0; r < FORM_RANKS; r++) {
        assert_int_equal(a[r].rc, MOE_E_ARG);
        assert_int_equal(a[r].calls, 0);
    }
}

/* The upstream gradients are scaled by the caller, the losses' by the layer: all four of them, in every layout. */
static void test_the_loss_scale_reaches_the_losses(void **state)
{
    (void)state;
    for (int layout = 0; layout < FORM_LAYOUTS; layout++) {
        for (int loss = 0; loss < MOE_LOSSES; loss++) {
            struct form_case c = {
                .layout = (enum form_layout)layout, .empty = 1, .loss_scale = 1024, .config = {.renormalise = true}};
            c.config.router.coeff[loss] = 0.5f;
            c.config.recompute = loss == MOE_LOSS_Z; /* the scale is not lost there */
            form_run(&c, a);
            form_check(&c, a, 2e-4);
            float with[FORM_E * FORM_H];
            memcpy(with, a[0].grad[MOE_LAYER_GATE], sizeof(with));
            c.loss_scale = 1;
            form_run(&c, a);
            form_check(&c, a, 2e-5);
            float worst = 0;
            for (int i = 0; i < FORM_E * FORM_H; i++) {
                worst = fmaxf(worst, fabsf(with[i] - a[0].grad[MOE_LAYER_GATE][i]));
            }
            assert_true(worst > 5e-3f); /* it matters in this test */
        }
    }
}

/* An overflow is in the gradients, and stops nobody. */
static void test_an_overflow_shows_and_every_rank_comes_to_its_end(void **state)
{
    (void)state;
    for (int kind = 0; kind < MOE_DISPATCH_KINDS; kind++) {
        struct form_case c = {.config = {.dispatcher = (enum moe_dispatcher_kind)kind, .renormalise = true}};
        c.loss_scale = 3e38f;
        c.config.router.coeff[MOE_LOSS_Z] = 10;
        form_run(&c, a);
        for (int r = 0; r < FORM_RANKS; r++) {
            bool finite = true;
            assert_int_equal(a[r].rc, 0);
            for (int64_t i = 0; i < FORM_E * FORM_H; i++) {
                finite = finite && isfinite(a[r].grad[MOE_LAYER_GATE][i]);
            }
            assert_false(finite);
            for (int64_t i = 0; i < FORM_MOST / FORM_RANKS; i++) {
                assert_true(isfinite(a[r].grad[MOE_LAYER_W1][i])); /* the losses do not reach the experts */
            }
        }
    }
}

/* Routers, activations, biases and shared experts as published, made small. */
static void test_the_layers_of_published_models(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t experts;
        int32_t topk, small_topk;
        bool gate_bias, expert_bias, bias, shared;
    } models[] = {{"mixtral", 8, 2, 2, false, false, false, false},
                  {"deepseek-v3", 256, 8, 4, false, true, false, true},
                  {"qwen3-moe", 128, 8, 3, false, false, false, false},
                  {"gpt-oss", 128, 4, 3, true, false, true, false}};
    for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++) {
        for (int layout = 0; layout < FORM_LAYOUTS; layout++) {
            for (int n = 0; n < EMPTIES; n++) {
                struct form_case c = {.layout = (enum form_layout)layout, .order = "AaBb"};
                c.config.ffn = FORM_S;
                assert_int_equal(moe_layer_preset(models[m].name, &c.config), 0);
                assert_int_equal(c.config.experts, models[m].experts);
                assert_int_equal(c.config.topk, models[m].topk);
                assert_int_equal(c.config.router.gate_bias, models[m].gate_bias);
                assert_int_equal(c.config.router.expert_bias, models[m].expert_bias);
                assert_int_equal(c.config.has_bias, models[m].bias);
                assert_int_equal(c.config.shared_ffn, models[m].shared ? FORM_S : 0);
                c.config.topk = models[m].small_topk;
                /* with groups, an expert is a group, and half of the groups stay */
                c.empty = c.config.router.groups > 0 || layout == FORM_ETP || layout == FORM_SHARD ? 0 : empties[n];
                c.config.dispatcher = (enum moe_dispatcher_kind)(n % MOE_DISPATCH_KINDS);
                c.config.router.coeff[MOE_LOSS_GLOBAL] = 0; /* counts over microbatches: test_router.c */
                form_run(&c, a);
                form_check(&c, a, 2e-5);
            }
        }
    }
    struct moe_layer_config config = {.ffn = 3};
    assert_int_equal(moe_layer_preset("llama", &config), MOE_E_ARG);
    assert_int_equal(config.ffn, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_narrow_gate_gives_float32_scores),
        cmocka_unit_test(test_the_loss_scale_reaches_the_losses),
        cmocka_unit_test(test_an_overflow_shows_and_every_rank_comes_to_its_end),
        cmocka_unit_test(test_the_layers_of_published_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
