/*
 * test_frozen.c: layers with frozen parameters: no work for their gradients, everything else as ever.
 *
 * Every case is held against the reference in double, whose frozen gradients are left out, with the ranks' gradients
 * begun at a number that must stay. What was done is counted: products, column sums, hooks, calls of NCCL.
 */
#include "tests/moe_core/form_ranks.h"

#include "moe_core/include/moe/remedy.h"

static struct form_result a[FORM_RANKS], b[FORM_RANKS];

static const uint32_t everything = MOE_FROZEN_ROUTER | MOE_FROZEN_EXPERTS | MOE_FROZEN_SHARED;

/* A layer with every parameter that there is. */
static struct form_case whole(enum form_layout layout, enum moe_dispatcher_kind kind)
{
    return (struct form_case){.layout = layout,
                              .config = {.dispatcher = kind,
                                         .renormalise = true,
                                         .router = {.gate_bias = true},
                                         .has_bias = true,
                                         .place = MOE_PROB_ACTIVATION,
                                         .shared_ffn = FORM_S,
                                         .shared_bias = true,
                                         .shared_gate = true}};
}

static void freeze(struct form_case *c, uint32_t bits)
{
    for (int r = 0; r < FORM_RANKS; r++) {
        c->frozen[r] = bits;
    }
}

static bool has(uint32_t bits, enum moe_layer_parameter p)
{
    return (bits >> p & 1u) != 0;
}

/* Elements of the sum over tp that are left. */
static size_t summed(uint32_t frozen)
{
    size_t gate = has(frozen, MOE_LAYER_GATE) ? 0 : FORM_E * FORM_H;
    size_t bias = has(frozen, MOE_LAYER_GATE_BIAS) ? 0 : FORM_E;
    size_t shared = has(frozen, MOE_LAYER_SHARED_GATE) ? 0 : FORM_H;
    return gate + bias + shared;
}

static bool is_sum(const struct form_case *c, const struct form_call *call)
{
    return form_on_tp(c) && call->op == 'R' && call->on_tp && call->kind == 'f';
}

/* Products and sums for gradients: exactly those of the parameters that are not frozen. */
static void check_work(const struct form_result *r, uint32_t frozen)
{
    const struct {
        const int *got;
        enum moe_layer_parameter of[3];
        int count;
    } table[] = {
        {&r->wgrads, {MOE_LAYER_W1, MOE_LAYER_W2, MOE_LAYER_SHARED_W1}, 3},
        {&r->bgrads, {MOE_LAYER_B1, MOE_LAYER_B2, MOE_LAYER_SHARED_B1}, 3},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        int want = !has(frozen, i == 0 ? MOE_LAYER_SHARED_W2 : MOE_LAYER_SHARED_B2);
        for (int j = 0; j < table[i].count; j++) {
            want += !has(frozen, table[i].of[j]);
        }
        assert_int_equal(*table[i].got, want);
    }
    assert_int_equal(r->gate_products, !has(frozen, MOE_LAYER_GATE) + !has(frozen, MOE_LAYER_SHARED_GATE));
    assert_int_equal(r->bias_sums, !has(frozen, MOE_LAYER_GATE_BIAS));
    for (int p = 0; p < MOE_LAYER_PARAMETERS; p++) {
        assert_int_equal(r->hooks[p], !has(frozen, (enum moe_layer_parameter)p));
    }
}

/* The calls of a run without frozen parameters, but for the sum over tp. */
static void check_calls(const struct form_case *c, const struct form_result *plain, const struct form_result *frozen,
                        uint32_t bits)
{
    size_t j = 0, sums = 0;
    for (size_t i = 0; i < plain->calls; i++) {
        bool sum = is_sum(c, &plain->call[i]);
        if (sum && summed(bits) == 0) {
            continue;
        }
        assert_true(j < frozen->calls);
        const struct form_call *call = &frozen->call[j++];
        assert_int_equal(call->op, plain->call[i].op);
        assert_int_equal(call->kind, plain->call[i].kind);
        assert_int_equal(call->count, sum ? summed(bits) : plain->call[i].count);
        sums += sum;
    }
    assert_int_equal(j, frozen->calls);
    assert_int_equal(sums, form_on_tp(c) && summed(bits) > 0);
}

/* What was announced: the list of the run without frozen parameters, but for the sum over tp. */
static void check_obligations(const struct form_case *c, const struct form_result *plain,
                              const struct form_result *frozen, uint32_t bits)
{
    bool gone = form_on_tp(c) && summed(bits) == 0;
    assert_true(plain->obligations > 0);
    assert_int_equal(frozen->obligations, plain->obligations - gone);
    for (size_t i = 0; i < frozen->obligations; i++) {
        bool sum = form_on_tp(c) && i + 1 == plain->obligations; /* the last of the list */
        assert_int_equal(frozen->obligation[i].peer, plain->obligation[i].peer);
        assert_int_equal(frozen->obligation[i].count, sum ? summed(bits) : plain->obligation[i].count);
    }
}

static const uint32_t masks[] = {MOE_FROZEN_ROUTER,
                                 MOE_FROZEN_EXPERTS,
                                 MOE_FROZEN_ROUTER | MOE_FROZEN_EXPERTS,
                                 MOE_FROZEN_SHARED,
                                 MOE_FROZEN_ROUTER | MOE_FROZEN_SHARED,
                                 MOE_FROZEN_ROUTER | MOE_FROZEN_EXPERTS | MOE_FROZEN_SHARED,
                                 1u << MOE_LAYER_W1 | 1u << MOE_LAYER_W2,                 /* biases alone are trained */
                                 1u << MOE_LAYER_B1 | 1u << MOE_LAYER_W2,                 /* one linear, half of it */
                                 1u << MOE_LAYER_GATE | 1u << MOE_LAYER_SHARED_W1,        /* a gap in the sum over tp */
                                 1u << MOE_LAYER_GATE_BIAS | 1u << MOE_LAYER_SHARED_GATE, /* and at its end */
                                 1u << MOE_LAYER_GATE_BIAS};
enum { MASKS = sizeof(masks) / sizeof(masks[0]) };

static void test_what_is_frozen_gets_no_work_in_any_layout(void **state)
{
    (void)state;
    for (int layout = 0; layout < FORM_LAYOUTS; layout++) {
        struct form_case c = whole((enum form_layout)layout, MOE_DISPATCH_ALLTOALL);
        form_run(&c, a);
        form_check(&c, a, 1e-5);
        for (size_t i = 0; i < MASKS; i++) {
            freeze(&c, masks[i]);
            c.null = i % 2 == 0;
            form_run(&c, b);
            form_check(&c, b, 1e-5);
            for (int r = 0; r < FORM_RANKS; r++) {
                check_work(&b[r], masks[i]);
                check_calls(&c, &a[r], &b[r], masks[i]);
                check_obligations(&c, &a[r], &b[r], masks[i]);
                assert_memory_equal(a[r].y, b[r].y, sizeof(a[r].y)); /* forward knows nothing of it */
                assert_memory_equal(a[r].dx, b[r].dx, sizeof(a[r].dx));
            }
        }
    }
}

/* Empty ranks at every place, all kinds of dispatchers, the forms of backward. */
static void test_empty_ranks_and_every_dispatcher(void **state)
{
    (void)state;
    static const uint32_t empties[] = {0, 1, 2, 8, 6, 7};
    for (int kind = 0; kind < MOE_DISPATCH_KINDS; kind++) {
        for (size_t n = 0; n < sizeof(empties) / sizeof(empties[0]); n++) {
            struct form_case c = whole(n % 2 == 0 ? FORM_EP : FORM_SEQ, (enum moe_dispatcher_kind)kind);
            c.empty = empties[n];
            c.null = n % 2 == 1;
            c.config.place = n % 3 == 0 ? MOE_PROB_SOURCE : n % 3 == 1 ? MOE_PROB_INPUT : MOE_PROB_ACTIVATION;
            c.config.recompute = n == 1;
            c.config.delay_wgrad = n == 2 || n == 5;
            c.config.experts_recompute = n == 3 ? MOE_RECOMPUTE_FC1 : n == 4 ? MOE_RECOMPUTE_ACTIVATION : 0;
            form_run(&c, a);
            for (size_t i = 0; i < MASKS; i += 2) {
                freeze(&c, masks[i]);
                form_run(&c, b);
                form_check(&c, b, 1e-5);
                for (int r = 0; r < FORM_RANKS; r++) {
                    check_work(&b[r], masks[i]);
                    check_calls(&c, &a[r], &b[r], masks[i]);
                }
            }
        }
    }
}

/* Frozen in one microbatch, trained in the next: one layer, and what the first one skipped is not made up for. */
static void test_a_layer_thaws_between_microbatches(void **state)
{
    (void)state;
    for (int layout = 0; layout < FORM_LAYOUTS; layout++) {
        for (size_t i = 0; i < MASKS; i += 3) {
            struct form_case c = whole((enum form_layout)layout, MOE_DISPATCH_ALLTOALL);
            freeze(&c, masks[i]);
            c.thawed = 1;
            c.null = true;
            c.order = "AaBb";
            form_run(&c, a);
            form_check(&c, a, 1e-5);
            for (int p = 0; p < MOE_LAYER_PARAMETERS; p++) {
                assert_int_equal(a[0].hooks[p], has(masks[i], (enum moe_layer_parameter)p) ? 1 : 2);
            }
        }
    }
}

static void test_rows_of_16_bits_and_the_losses_of_a_frozen_router(void **state)
{
    (void)state;
    for (int type = MOE_F32; type <= MOE_F16; type++) {
        struct form_case c = whole(FORM_SEQ, MOE_DISPATCH_DEEPEP);
        c.config.type = c.config.weight = c.config.bias = (enum moe_dtype)type;
        c.config.router.coeff[MOE_LOSS_SWITCH] = 0.5f; /* they pull at dx, whoever is frozen */
        c.config.router.coeff[MOE_LOSS_Z] = 0.1f;
        freeze(&c, MOE_FROZEN_ROUTER);
        form_run(&c, a);
        form_check(&c, a, type == MOE_F32 ? 1e-5 : 3e-2);
        freeze(&c, everything);
        c.null = true;
        form_run(&c, a);
        form_check(&c, a, type == MOE_F32 ? 1e-5 : 3e-2);
    }
}

/* The exchange carries what each rank freezes: all ranks get the same error, and none waits for another. */
static void test_ranks_that_differ_all_get_the_same_error(void **state)
{
    (void)state;
    for (int kind = 0; kind < MOE_DISPATCH_KINDS; kind++) {
        for (int odd = 0; odd < FORM_RANKS; odd++) {
            struct form_case c = whole(odd % 2 == 0 ? FORM_SEQ : FORM_ETP, (enum moe_dispatcher_kind)kind);
            freeze(&c, odd == 0 ? 0 : MOE_FROZEN_EXPERTS);
            c.frozen[odd] = MOE_FROZEN_ROUTER;
            form_run(&c, a);
            for (int r = 0; r < FORM_RANKS; r++) {
                const char *say = odd == 0 ? "rank 1 of the group freezes nothing, rank 0 freezes gate, gate_bias"
                                           : "freezes gate, gate_bias, rank 0 freezes w1, b1, w2, b2";
                assert_int_equal(a[r].rc, MOE_E_ARG);
                assert_non_null(strstr(a[r].message, say));
                assert_non_null(strstr(a[r].message, "layer 3"));
                assert_int_equal(a[r].obligations, 0);
            }
        }
    }
    /* A parameter that the layer does not have says nothing; one that no layer has is refused before any call. */
    struct form_case c = {.layout = FORM_EP};
    c.frozen[1] = MOE_FROZEN_SHARED | 1u << MOE_LAYER_GATE_BIAS;
    form_run(&c, a);
    form_check(&c, a, 1e-5);
    freeze(&c, 1u << MOE_LAYER_PARAMETERS);
    form_run(&c, a);
    for (int r = 0; r < FORM_RANKS; r++) {
        assert_int_equal(a[r].rc, MOE_E_ARG);
        assert_int_equal(a[r].calls, 0);
    }
}

static void check_refused(const char *says, size_t calls)
{
    for (int r = 0; r < FORM_RANKS; r++) {
        assert_int_equal(a[r].rc, MOE_E_ARG);
        assert_non_null(strstr(a[r].message, says));
        assert_non_null(strstr(a[r].message, "layer 3"));
        assert_int_equal(a[r].calls, calls);
    }
}

/*
 * Where the host waits for no exchange the difference is found late, but on all ranks at once: with a row budget in the
 * next forward but one; with drop-and-pad in the first one, and after that when the next step begins.
 */
static void test_ranks_that_differ_are_found_where_nobody_waits(void **state)
{
    (void)state;
    const char *says = "rank 2 of the group freezes w1, b1, w2, b2, rank 0 freezes nothing";
    for (int layout = FORM_EP; layout <= FORM_SEQ; layout++) {
        for (int capacity = 0; capacity < 2; capacity++) {
            struct form_case c =
                whole((enum form_layout)layout, capacity ? MOE_DISPATCH_ALLTOALL : MOE_DISPATCH_HYBRIDEP);
            c.config.shared_ffn = 0;
            c.config.shared_bias = c.config.shared_gate = false;
            c.config.row_budget = capacity ? 0 : FORM_RANKS * FORM_T * 2;
            c.config.router.capacity_factor = capacity ? 4.0f : 0.0f;
            c.config.router.pad_to_capacity = capacity == 1;
            c.null = true;
            c.steps = true;
            c.order = "AaBbCcDd";
            form_run(&c, a); /* alike: nothing is found */
            form_check(&c, a, 1e-5);
            size_t pass = a[0].calls / 4;
            assert_int_equal(a[0].calls, 4 * pass);
            c.frozen[2] = MOE_FROZEN_EXPERTS;
            form_run(&c, a);
            check_refused(says, capacity ? 1 : 2 * pass);
            c.freezes = 1;
            form_run(&c, a);
            check_refused(says, capacity ? 2 * pass : 3 * pass);
            c.steps = false; /* one step: drop-and-pad compares once in it */
            form_run(&c, a);
            if (capacity) {
                assert_int_equal(a[0].rc, 0);
                assert_int_equal(a[2].calls, 4 * (pass - 1) + 1);
            } else {
                check_refused(says, 3 * pass);
            }
        }
    }
}

/*
 * With a row budget the host is two forwards behind: what it was told of two it says once, and a caller who then gives
 * the same on all ranks goes on.
 */
static void test_a_difference_that_was_mended_is_not_found_again(void **state)
{
    (void)state;
    struct form_case c = whole(FORM_EP, MOE_DISPATCH_HYBRIDEP);
    c.config.shared_ffn = 0;
    c.config.shared_bias = c.config.shared_gate = false;
    c.config.row_budget = FORM_RANKS * FORM_T * 2;
    c.null = true;
    c.steps = true;
    c.order = "ABCcDd"; /* C is refused once, for what was said in A */
    c.thawed = 2;
    c.frozen[2] = MOE_FROZEN_EXPERTS;
    form_run(&c, a);
    check_refused("rank 2 of the group freezes w1, b1, w2, b2, rank 0 freezes nothing", a[0].calls);
    c.insists = 1;
    form_run(&c, a);
    form_check(&c, a, 1e-5);
}

/* Ranks of tp that meet in no exchange: the lists of obligations differ, so an observer knows in forward. */
static void test_a_difference_that_no_exchange_carries_is_announced(void **state)
{
    (void)state;
    struct form_case c = {.layout = FORM_SHARD, .order = "A"};
    c.frozen[0] = c.frozen[2] = MOE_FROZEN_ROUTER; /* rank 0 of each pair: both meet in ep */
    form_run(&c, a);
    for (int r = 0; r < FORM_RANKS; r++) {
        assert_int_equal(a[r].rc, 0);
        assert_int_equal(a[r].obligations, r % 2 == 0 ? 2 : 3);
    }
}

static void test_a_gradient_that_is_missing_and_not_frozen_is_named(void **state)
{
    (void)state;
    struct form_case c = whole(FORM_EP, MOE_DISPATCH_ALLTOALL);
    moe_device_t *device = NULL;
    moe_layer_t *layer = NULL;
    struct moe_layer_config config = c.config;
    config.max_tokens = 0;
    config.hidden = config.ffn = config.experts = config.topk = 1;
    config.shared_ffn = 0;
    assert_int_equal(moe_device_new_host(&device), 0);
    assert_int_equal(moe_layer_new(device, &config, &layer), 0);
    float *one = support_floats(device, 2);
    struct moe_step step = {.step = 0};
    struct moe_layer_weights w = {.gate = one,
                                  .gate_bias = one,
                                  .w1 = one,
                                  .w2 = one,
                                  .b1 = one,
                                  .b2 = one,
                                  .d_gate = one,
                                  .d_w1 = one,
                                  .d_w2 = one,
                                  .d_b1 = one,
                                  .d_b2 = one};
    assert_int_equal(moe_layer_forward(layer, &w, &step, one, 0, one), 0);
    assert_int_equal(moe_layer_backward(layer, one, one), MOE_E_ARG);
    assert_non_null(strstr(moe_last_error(), "that of gate_bias is missing"));
    w.frozen = 1u << MOE_LAYER_GATE_BIAS;
    assert_int_equal(moe_layer_forward(layer, &w, &step, one, 0, one), 0);
    assert_int_equal(moe_layer_backward(layer, one, one), 0);
    assert_int_equal(moe_device_sync(device), 0);
    moe_device_free(device, &one);
    moe_layer_destroy(&layer);
    moe_device_destroy(&device);
}

/* Hazards of gradients that are not computed are none: no remedy is asked for. */
static void test_no_remedy_is_asked_for_what_is_frozen(void **state)
{
    (void)state;
    struct form_case c = {.layout = FORM_SHARD,
                          .config = {.options = {.legacy_router_unsummed = true, .legacy_wgrad_uninitialised = true}},
                          .empty = 1,
                          .order = "AaBb",
                          .granted = UINT32_MAX};
    form_run(&c, a);
    form_check(&c, a, 1e-5);
    for (int r = 0; r < FORM_RANKS; r++) {
        assert_int_equal(a[r].asked, MOE_REMEDY_ROUTER_SUM | MOE_REMEDY_ZERO_WGRAD);
    }
    c.granted = 0;
    c.null = true;
    freeze(&c, MOE_FROZEN_ROUTER | MOE_FROZEN_EXPERTS);
    form_run(&c, a);
    form_check(&c, a, 1e-5);
    for (int r = 0; r < FORM_RANKS; r++) {
        assert_int_equal(a[r].asked, 0);
        for (size_t i = 0; i < a[r].calls; i++) {
            assert_false(a[r].call[i].on_tp); /* no vote, and no sum */
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_frozen_gets_no_work_in_any_layout),
        cmocka_unit_test(test_empty_ranks_and_every_dispatcher),
        cmocka_unit_test(test_a_layer_thaws_between_microbatches),
        cmocka_unit_test(test_rows_of_16_bits_and_the_losses_of_a_frozen_router),
        cmocka_unit_test(test_ranks_that_differ_all_get_the_same_error),
        cmocka_unit_test(test_ranks_that_differ_are_found_where_nobody_waits),
        cmocka_unit_test(test_a_difference_that_was_mended_is_not_found_again),
        cmocka_unit_test(test_a_difference_that_no_exchange_carries_is_announced),
        cmocka_unit_test(test_a_gradient_that_is_missing_and_not_frozen_is_named),
        cmocka_unit_test(test_no_remedy_is_asked_for_what_is_frozen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
