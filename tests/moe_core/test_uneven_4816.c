/*
 * test_uneven_4816.c: ranks with different numbers of tokens, none included (Megatron-LM #4816; hazards H7 and H13).
 *
 * Every case holds outputs and all gradients against the reference in double, counts the calls of every rank, and
 * compares runs with more and fewer pad tokens bit by bit. Without the remedy the ranks really hang: that is waited
 * for, and ended by ncclCommAbort.
 */
#include "tests/moe_core/flex_ranks.h"

#include "moe_core/include/moe/remedy.h"
#include "moe_core/include/moe/uneven.h"

static struct flex_result a[FLEX_RANKS], b[FLEX_RANKS];

/* Tokens of rank r in each pattern. */
enum { PATTERNS = 7 };
static int64_t pattern(int which, int r, int ranks)
{
    switch (which) {
    case 0: /* all different */
        return 3 + 5 * r;
    case 1: /* none on the first */
        return r == 0 ? 0 : 4 + 3 * r;
    case 2: /* none on every other */
        return r % 2 == 1 ? 0 : 9;
    case 3: /* all but one have none */
        return r == ranks - 1 ? 70 : 0;
    case 4: /* one beyond the alignment */
        return r == ranks / 2 ? 65 : 64 - r;
    case 5: /* a single one on the first */
        return r == 0 ? 1 : 2;
    default: /* no rank has tokens */
        return 0;
    }
}

static struct flex_case uneven(enum moe_dispatcher_kind kind, enum moe_uneven how, int ranks, int which)
{
    struct flex_case c = {.ranks = ranks, .kind = kind, .uneven = how, .bound = 70, .topk = 2, .travel = true};
    for (int r = 0; r < ranks; r++) {
        c.tokens[r] = pattern(which, r, ranks);
    }
    return c;
}

static int64_t most_tokens(const struct flex_case *c)
{
    int64_t most = 0;
    for (int r = 0; r < c->ranks; r++) {
        most = c->tokens[r] > most ? c->tokens[r] : most;
    }
    return most;
}

static void run_well(const struct flex_case *c, struct flex_result *results)
{
    flex_run(c, results);
    for (int r = 0; r < c->ranks; r++) {
        if (results[r].rc != 0) {
            fail_msg("rank %d: %d (%s)", r, results[r].rc, results[r].message);
        }
    }
    flex_check(c, results, 1e-5);
    flex_same_calls(c, results);
}

static const struct {
    enum moe_dispatcher_kind kind;
    enum moe_uneven how;
} ways[] = {
    {MOE_DISPATCH_HYBRIDEP, MOE_UNEVEN_MAX},  {MOE_DISPATCH_HYBRIDEP, MOE_UNEVEN_BOUND},
    {MOE_DISPATCH_ALLGATHER, MOE_UNEVEN_MAX}, {MOE_DISPATCH_ALLGATHER, MOE_UNEVEN_BOUND},
    {MOE_DISPATCH_DEEPEP, MOE_UNEVEN_NONE}, /* pads nothing, needs nothing */
    {MOE_DISPATCH_DEEPEP, MOE_UNEVEN_MAX},
};

static void check_padding(const struct flex_case *c, const struct flex_result *results, int forwards)
{
    for (int r = 0; r < c->ranks; r++) {
        bool hybrid = c->kind == MOE_DISPATCH_HYBRIDEP,
             max = c->kind != MOE_DISPATCH_DEEPEP && c->uneven == MOE_UNEVEN_MAX;
        /* exactly one MAX per forward that asks, on every rank, and nowhere else */
        assert_int_equal(flex_count(&results[r], 'R'), max ? forwards : 0);
        assert_int_equal(flex_count(&results[r], '?'), 0);
        assert_int_equal(results[r].uniform[MOE_UNIFORM_TOKENS], 0); /* nothing needs equal ones */
        assert_int_equal(results[r].uniform[MOE_UNIFORM_BUFFER],
                         c->kind != MOE_DISPATCH_ALLGATHER); /* when it is made */
        assert_int_equal(results[r].said[MOE_UNIFORM_BUFFER], results[0].said[MOE_UNIFORM_BUFFER]);
        assert_int_equal(results[r].padded, !hybrid ? c->tokens[r] : moe_uneven_round(max ? most_tokens(c) : c->bound));
    }
}

static void test_uneven_tokens_equal_the_reference(void **state)
{
    (void)state;
    static const struct {
        int ranks, etp;
        uint32_t empty;
    } layouts[] = {{2, 1, 0}, {4, 1, 0}, {4, 2, 0}, {8, 1, 0}, {4, 1, 6}, {8, 2, 1}};
    for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
        for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
            for (int which = 0; which < PATTERNS; which++) {
                struct flex_case c = uneven(ways[w].kind, ways[w].how, layouts[i].ranks, which);
                c.etp = layouts[i].etp;
                c.empty = layouts[i].empty;
                c.travel = which % 2 == 0;
                c.masked = which == 2;
                run_well(&c, a);
                check_padding(&c, a, 1);
            }
        }
    }
}

/* One MAX for a forward and its recomputed ones; a dispatcher that is not told of microbatches asks each time. */
static void test_a_microbatch_agrees_once_recompute_included(void **state)
{
    (void)state;
    for (int kind = MOE_DISPATCH_ALLGATHER; kind <= MOE_DISPATCH_HYBRIDEP; kind += 2) {
        struct flex_case c = uneven((enum moe_dispatcher_kind)kind, MOE_UNEVEN_MAX, 4, 1);
        c.forwards = 3;
        run_well(&c, a);
        check_padding(&c, a, 3);
        c.recomputed = true;
        run_well(&c, b);
        check_padding(&c, b, 1);
        flex_equal(&c, a, b);
    }
}

static void test_results_do_not_depend_on_the_number_of_pad_tokens(void **state)
{
    (void)state;
    for (int which = 0; which < PATTERNS; which++) {
        for (int budget = 0; budget < 2; budget++) {
            struct flex_case c = uneven(MOE_DISPATCH_HYBRIDEP, MOE_UNEVEN_MAX, 4, which);
            c.row_budget = budget ? 60 : 0; /* with overflow in some patterns: it drops the same choices */
            c.travel = which % 2 == 1;
            run_well(&c, a);
            c.uneven = MOE_UNEVEN_BOUND;
            for (c.bound = 70; c.bound <= 200; c.bound += 60) {
                run_well(&c, b);
                assert_true(b[0].padded >= a[0].padded);
                flex_equal(&c, a, b);
            }
            if (!budget) {
                c.kind = MOE_DISPATCH_DEEPEP; /* no rank has tokens at all */
                run_well(&c, b);
                flex_equal(&c, a, b);
            }
        }
    }
}

static void test_gathered_results_do_not_depend_on_it_either(void **state)
{
    (void)state;
    for (int which = 0; which < PATTERNS; which++) {
        struct flex_case c = uneven(MOE_DISPATCH_ALLGATHER, MOE_UNEVEN_MAX, 4, which);
        run_well(&c, a);
        c.uneven = MOE_UNEVEN_BOUND;
        for (c.bound = 70; c.bound <= 200; c.bound += 130) {
            run_well(&c, b);
            flex_equal(&c, a, b);
        }
    }
}

static void test_equal_tokens_need_no_padding(void **state)
{
    (void)state;
    struct flex_case c = uneven(MOE_DISPATCH_HYBRIDEP, MOE_UNEVEN_NONE, 4, 5);
    for (int r = 0; r < 4; r++) {
        c.tokens[r] = 7;
    }
    run_well(&c, a);
    assert_int_equal(a[0].padded, 7);
    c.uneven = MOE_UNEVEN_MAX;
    run_well(&c, b);
    assert_int_equal(b[0].padded, 64);
    flex_equal(&c, a, b);
}

/* H7: nothing pads, and the ranks hang; each twin does not. */
static void test_without_the_remedy_uneven_tokens_hang(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        int ranks = i < 3 ? 2 << i : 2 << (i - 3);
        struct flex_case c = uneven(i < 3 ? MOE_DISPATCH_HYBRIDEP : MOE_DISPATCH_ALLGATHER, MOE_UNEVEN_NONE, ranks, 1);
        assert_true(flex_hangs(&c, a, 200));
        for (int r = 0; r < ranks; r++) { /* reported before any rank waits */
            assert_int_equal(a[r].uniform[MOE_UNIFORM_TOKENS], 1);
            assert_int_equal(a[r].said[MOE_UNIFORM_TOKENS], c.tokens[r]);
        }
    }
}

/* The remedy as the control page switches it: all ranks propose it while numbers are still equal, then it is in force.
 */
static void test_the_remedy_acts_from_the_next_forward_when_all_agree(void **state)
{
    (void)state;
    for (int budget = 0; budget < 2; budget++) {
        for (uint32_t bit = MOE_REMEDY_UNEVEN; bit <= MOE_REMEDY_BOUND; bit <<= 1) {
            struct flex_case c = uneven(MOE_DISPATCH_HYBRIDEP, MOE_UNEVEN_NONE, 4, 0);
            c.first_tokens = 3;
            c.forwards = 3;
            c.row_budget = budget ? 300 : 0;
            for (int r = 0; r < 4; r++) {
                c.proposed[r] = bit;
            }
            run_well(&c, a);
            for (int r = 0; r < 4; r++) {
                assert_int_equal(flex_count(&a[r], 'R'), (bit == MOE_REMEDY_UNEVEN ? 2 : 0) + budget);
                assert_int_equal(a[r].padded, moe_uneven_round(bit == MOE_REMEDY_UNEVEN ? 18 : c.bound));
                assert_int_equal(a[r].agreed[0], budget ? 0 : bit);
                assert_int_equal(a[r].agreed[1], bit);
            }
        }
    }
    struct flex_case c = uneven(MOE_DISPATCH_HYBRIDEP, MOE_UNEVEN_NONE, 4, 0);
    c.first_tokens = 3;
    c.forwards = 2;
    for (int r = 0; r < 3; r++) {
        c.proposed[r] = MOE_REMEDY_UNEVEN; /* rank 3 never sees the switch, so no rank pads */
    }
    assert_true(flex_hangs(&c, a, 200));
    for (int r = 0; r < 4; r++) {
        assert_int_equal(flex_count(&a[r], 'R'), 0);
    }
}

/* A remedy that is on while all ranks have the same number of tokens has nothing to cure: it pads no row, waits for
 * nothing more (BOUND), and is not reported as used. Where they differ it pads rows to the largest one. */
static void test_a_remedy_that_is_on_for_nothing_pads_no_row(void **state)
{
    (void)state;
    const uint32_t both = MOE_REMEDY_UNEVEN | MOE_REMEDY_BOUND;
    static const enum moe_dispatcher_kind kinds[] = {MOE_DISPATCH_ALLGATHER, MOE_DISPATCH_HYBRIDEP};
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < 6; i++) {
            const uint32_t bit = i % 3 == 0 ? 0 : i % 3 == 1 ? MOE_REMEDY_UNEVEN : MOE_REMEDY_BOUND;
            const bool differ = i >= 3;
            struct flex_case c = uneven(kinds[k], MOE_UNEVEN_NONE, 4, 0);
            if (differ && bit == 0) {
                continue; /* hangs */
            }
            c.first_tokens = 3;
            c.forwards = 3;
            for (int r = 0; r < 4; r++) {
                c.proposed[r] = bit;
                c.tokens[r] = differ ? c.tokens[r] : 9;
            }
            run_well(&c, bit == 0 ? b : a);
            for (int r = 0; r < 4 && bit != 0; r++) {
                assert_int_equal(a[r].agreed[2], bit);
                assert_int_equal(a[r].remedied & both, differ ? bit : 0);
                assert_int_equal(a[r].forward_waits, b[r].forward_waits + (bit == MOE_REMEDY_UNEVEN));
                if (kinds[k] == MOE_DISPATCH_ALLGATHER) {
                    assert_int_equal(a[r].sent, differ ? moe_uneven_round(18) : 9);
                }
            }
        }
    }
}

/* H13: sizes from a rank's own number of tokens. */
static void test_a_budget_from_the_own_tokens_hangs(void **state)
{
    (void)state;
    struct flex_case c = uneven(MOE_DISPATCH_HYBRIDEP, MOE_UNEVEN_MAX, 4, 0);
    c.budget_factor = 4.0f;
    run_well(&c, a);
    for (int r = 0; r < 4; r++) {
        assert_int_equal(a[r].received, 64 * 2 * 4);
    }
    assert_int_equal(a[0].uniform[MOE_UNIFORM_CAPACITY], 0);
    c.legacy.local_capacity = true;
    assert_true(flex_hangs(&c, a, 200));
    for (int r = 0; r < 4; r++) {
        assert_int_equal(a[r].said[MOE_UNIFORM_CAPACITY], c.tokens[r]);
    }
}

static void test_tokens_beyond_the_bound_are_an_error_before_any_call(void **state)
{
    (void)state;
    struct flex_case c = uneven(MOE_DISPATCH_HYBRIDEP, MOE_UNEVEN_BOUND, 2, 0);
    c.bound = 7;
    assert_true(flex_hangs(&c, a, 200)); /* the rank's peer waits: the message must say why */
    assert_int_equal(a[1].rc, MOE_E_CAPACITY);
    assert_int_equal(a[1].calls, 0);
    assert_non_null(strstr(a[1].message, "rank 1, layer 3"));
    assert_non_null(strstr(a[1].message, "8 tokens, the bound is 7"));
    c.ranks = 1;
    c.tokens[0] = 3;
    c.bound = 0;
    flex_run(&c, a);
    assert_int_equal(a[0].rc, MOE_E_UNSUPPORTED);
    c.tokens[0] = 11;
    c.max_tokens = 10;
    flex_run(&c, a);
    assert_int_equal(a[0].rc, MOE_E_SHAPE);
}

static void test_the_bound_with_a_budget_waits_for_nothing_and_can_be_captured(void **state)
{
    (void)state;
    for (int which = 0; which < PATTERNS; which++) {
        struct flex_case c = uneven(MOE_DISPATCH_HYBRIDEP, MOE_UNEVEN_BOUND, 4, which);
        c.row_budget = 80;
        run_well(&c, a);
        c.capture = true;
        run_well(&c, b);
        flex_equal(&c, a, b);
        for (int r = 0; r < 4; r++) {
            assert_int_equal(a[r].forward_waits, 0);
            assert_int_equal(b[r].dropped, 2 * a[r].dropped); /* two replays */
        }
    }
    struct flex_case c = uneven(MOE_DISPATCH_HYBRIDEP, MOE_UNEVEN_MAX, 2, 0);
    run_well(&c, a);
    assert_int_equal(a[0].forward_waits, 2); /* T_pad, and the number of rows */
    c.row_budget = 80;
    run_well(&c, a);
    assert_int_equal(a[0].forward_waits, 1);
}

/* The parts alone: padding writes what it says and nothing else. */
static void test_padding_writes_what_it_says_and_nothing_else(void **state)
{
    (void)state;
    moe_device_t *device = NULL;
    moe_uneven_group_t *group = NULL;
    int64_t padded = -1;
    assert_int_equal(moe_device_new_host(&device), 0);
    float *from = support_floats(device, 10), *to = support_floats(device, 20);
    for (int i = 0; i < 10; i++) {
        from[i] = (float)i;
    }
    support_poison(to, 20);
    assert_int_equal(moe_uneven_pad(device, from, 3, 7, 2 * sizeof(float), to), 0);
    assert_int_equal(moe_device_sync(device), 0);
    for (int i = 0; i < 14; i++) {
        assert_true(to[i] == (i < 6 ? (float)i : 0.0f));
    }
    assert_true(support_is_poison(to + 14, 6));
    support_poison(from, 10);
    assert_int_equal(moe_uneven_trim(device, to, 3, 2 * sizeof(float), from), 0);
    assert_int_equal(moe_device_sync(device), 0);
    assert_memory_equal(from, to, 6 * sizeof(float));
    assert_true(support_is_poison(from + 6, 4));
    assert_int_equal(moe_uneven_pad(device, from, 3, 2, 4, to), MOE_E_SHAPE);
    struct moe_uneven_config config = {.max_tokens = 100, .token_bound = 30, .layer = 2, .world_rank = 5};
    assert_int_equal(moe_uneven_new(device, &config, &group), 0);
    assert_int_equal(moe_uneven_most(group), 128);
    assert_int_equal(moe_uneven_agree(group, MOE_UNEVEN_BOUND, NULL, 0, &padded), 0);
    assert_int_equal(padded, 64);
    assert_int_equal(moe_uneven_agree(group, MOE_UNEVEN_MAX, NULL, 65, &padded), 0);
    assert_int_equal(padded, 128);
    assert_int_equal(moe_uneven_agree(group, MOE_UNEVEN_NONE, NULL, 65, &padded), 0);
    assert_int_equal(padded, 65);
    assert_int_equal(moe_uneven_agree(group, MOE_UNEVEN_MAX, NULL, -1, &padded), MOE_E_SHAPE);
    assert_int_equal(moe_uneven_agree(group, MOE_UNEVEN_BOUND, NULL, 31, &padded), MOE_E_CAPACITY);
    assert_non_null(strstr(moe_last_error(), "rank 5, layer 2"));
    moe_uneven_destroy(&group);
    moe_device_free(device, &from);
    moe_device_free(device, &to);
    moe_device_destroy(&device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_uneven_tokens_equal_the_reference),
        cmocka_unit_test(test_a_microbatch_agrees_once_recompute_included),
        cmocka_unit_test(test_results_do_not_depend_on_the_number_of_pad_tokens),
        cmocka_unit_test(test_gathered_results_do_not_depend_on_it_either),
        cmocka_unit_test(test_equal_tokens_need_no_padding),
        cmocka_unit_test(test_without_the_remedy_uneven_tokens_hang),
        cmocka_unit_test(test_the_remedy_acts_from_the_next_forward_when_all_agree),
        cmocka_unit_test(test_a_remedy_that_is_on_for_nothing_pads_no_row),
        cmocka_unit_test(test_a_budget_from_the_own_tokens_hangs),
        cmocka_unit_test(test_tokens_beyond_the_bound_are_an_error_before_any_call),
        cmocka_unit_test(test_the_bound_with_a_budget_waits_for_nothing_and_can_be_captured),
        cmocka_unit_test(test_padding_writes_what_it_says_and_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
