/*
 * test_layer_alone.c: what a layer keeps from one pass to the next, and what it must not: counts of tokens under
 * recompute, gradients in buffers of its own, and the plan of a rank that skipped its experts.
 */
#include "tests/moe_core/layer_alone.h"
#include "tests/moe_core/refusing.h"

#include "moe_core/include/moe/remedy.h"

/* Three tokens for expert 0 in a forward alone, two for expert 1 in one that is recomputed: counted once each, expert 0
 * is above the mean; with the second one counted twice expert 1 would be. Then three more for expert 1. */
static void test_a_recomputed_token_is_counted_once_and_the_next_one_again(void **state)
{
    (void)state;
    struct moe_layer_config config = alone_config();
    static struct layer_alone a;
    config.recompute = true;
    config.router.expert_bias = true;
    for (int more = 0; more < 2; more++) {
        alone_begin(&a, &config);
        moe_router_t *router = moe_layer_router(a.layer);
        assert_int_equal(alone_pass(&a, 3, 0, false), 0);
        assert_int_equal(alone_pass(&a, 2, 1, true), 0);
        assert_true(moe_router_counting(router));
        if (more) {
            assert_int_equal(alone_pass(&a, 3, 1, true), 0);
        }
        assert_int_equal(moe_router_update_bias(&router, &a.bias, 1, NULL, 0.125f), 0);
        assert_int_equal(moe_device_sync(a.device), 0);
        assert_true(a.bias[0] == (more ? 0.125f : -0.125f));
        assert_true(a.bias[1] == (more ? -0.125f : 0.125f));
        /* and a second update counts what came after the first */
        assert_int_equal(alone_pass(&a, 1, more, true), 0);
        assert_int_equal(moe_router_update_bias(&router, &a.bias, 1, NULL, 0.0625f), 0);
        assert_int_equal(moe_device_sync(a.device), 0);
        assert_true(a.bias[more] == -0.1875f);
        alone_end(&a);
    }
}

/* dx is overwritten: the same pass gives the same bits a second time, also where rows are cast and summed on the way.
 */
static void test_dx_is_that_of_the_last_pass_alone(void **state)
{
    (void)state;
    for (enum moe_dtype type = MOE_F32; type <= MOE_F16; type++) {
        struct moe_layer_config config = alone_config();
        static struct layer_alone a;
        unsigned char first[LAYER_T * LAYER_H * sizeof(float)], y[sizeof(first)];
        size_t bytes = LAYER_T * LAYER_H * moe_dtype_bytes(type);
        config.type = type;
        alone_begin(&a, &config);
        for (int pass = 0; pass < 3; pass++) {
            memset(a.y, 0xff, bytes);
            memset(a.dx, 0xff, bytes);
            assert_int_equal(alone_pass(&a, LAYER_T, -1, true), 0);
            if (pass == 0) {
                memcpy(first, a.dx, bytes);
                memcpy(y, a.y, bytes);
            }
            assert_memory_equal(a.dx, first, bytes);
            assert_memory_equal(a.y, y, bytes);
        }
        for (int64_t i = 0; i < LAYER_T * LAYER_H; i++) {
            assert_true(isfinite(typed_get(type, a.dx, i)));
        }
        alone_end(&a);
    }
}

/* H1: the rank that skipped its experts has no backward of them, says so, and is whole again with the next tokens. */
static void test_a_rank_that_skipped_its_experts_has_no_backward_of_them(void **state)
{
    (void)state;
    struct moe_layer_config config = alone_config();
    static struct layer_alone a;
    float dx[LAYER_T * LAYER_H] = {0}, d_w2[ALONE_W2] = {0}, d_gate[LAYER_L * LAYER_H] = {0};
    config.options.legacy_skip_empty = true;
    alone_begin(&a, &config);
    for (int pass = 0; pass < 3; pass++) {
        bool empty = pass == 1;
        size_t skips = 0, products = 0;
        a.result.events = 0;
        memset(a.d_w2, 0, sizeof(d_w2));
        memset(a.d_gate, 0, sizeof(d_gate));
        assert_int_equal(alone_pass(&a, empty ? 0 : LAYER_T, -1, true), 0);
        assert_int_equal(moe_layer_skipped(a.layer), empty);
        for (size_t i = 0; i < a.result.events; i++) {
            skips += a.result.event[i].kind == MOE_EV_SKIP;
            products += a.result.event[i].kind == MOE_EV_GEMM;
        }
        assert_int_equal(skips, empty);
        assert_int_equal(products, empty ? 0 : 2);
        if (pass == 0) {
            memcpy(dx, a.dx, sizeof(dx));
            memcpy(d_w2, a.d_w2, sizeof(d_w2));
            memcpy(d_gate, a.d_gate, sizeof(d_gate));
        }
        assert_int_equal(memcmp(a.d_w2, d_w2, sizeof(d_w2)) == 0, !empty);
        assert_int_equal(memcmp(a.d_gate, d_gate, sizeof(d_gate)) == 0, !empty);
        assert_memory_equal(a.dx, dx,
                            empty ? 0 : sizeof(dx)); /* all of it is back, that of dispatch and combine, too */
    }
    alone_end(&a);
}

/* Slack, which is where the host does not know the rows, is cleared in y and in dx where SANITIZE is on; elsewhere
 * there is none, and nothing is done. */
static void test_slack_is_cleared_where_there_is_any_and_it_is_asked_for(void **state)
{
    (void)state;
    for (int budget = 0; budget < 2; budget++) {
        struct moe_layer_config config = alone_config();
        static struct layer_alone a;
        config.dispatcher = MOE_DISPATCH_HYBRIDEP;
        config.row_budget = budget ? LAYER_T + 3 : 0;
        alone_begin(&a, &config);
        for (int on = 0; on < 2; on++) {
            a.c.remedies[0] = on ? MOE_REMEDY_SANITIZE : 0;
            refuse(a.device, REFUSE_NOTHING);
            assert_int_equal(alone_pass(&a, LAYER_T, -1, true), 0);
            assert_int_equal(atomic_load(&refusing_state.cleared), budget && on ? 2 : 0);
        }
        alone_end(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_recomputed_token_is_counted_once_and_the_next_one_again),
        cmocka_unit_test(test_dx_is_that_of_the_last_pass_alone),
        cmocka_unit_test(test_a_rank_that_skipped_its_experts_has_no_backward_of_them),
        cmocka_unit_test(test_slack_is_cleared_where_there_is_any_and_it_is_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
