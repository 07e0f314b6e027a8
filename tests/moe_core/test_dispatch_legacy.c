/*
 * test_dispatch_legacy.c: the wrong behaviours of frameworks in the dispatchers really do what they are said to do, and
 * what cures them.
 *
 * The three fixes of Megatron-LM #3626 are about a detached output, a wrong shape and wrong bytes; each is provoked
 * here, on several numbers of ranks, and ends as an error or as a hang that ncclCommAbort ends. Every sick run has a
 * healthy twin.
 */
#include "tests/moe_core/dispatch_ranks.h"

#include "moe_core/include/moe/remedy.h"

enum { PATIENCE = 200 };

static struct dr_result results[DR_RANKS], plain[DR_RANKS];
static const enum moe_dispatcher_kind both[] = {MOE_DISPATCH_ALLTOALL, MOE_DISPATCH_ALLGATHER};
static const int sizes[] = {2, 3, 8};

/* Whether exactly the ranks of `mask` hang. */
static void check_hung(const struct dr_case *c, uint32_t mask)
{
    for (int r = 0; r < dr_ranks(c); r++) {
        if (results[r].hung != (mask >> r & 1)) {
            char text[160];
            dr_describe(c, text, sizeof(text));
            fail_msg("%s: rank %d %s (%s)", text, r, results[r].hung ? "hangs" : "does not hang", results[r].message);
        }
    }
}

static uint32_t all_but(const struct dr_case *c, int rank)
{
    return ((1u << dr_ranks(c)) - 1) & ~(1u << rank);
}

static void check_equal_bits(const struct dr_case *c)
{
    for (int r = 0; r < dr_ranks(c); r++) {
        assert_int_equal(results[r].rc, 0);
        assert_memory_equal(results[r].y, plain[r].y, sizeof(plain[r].y));
        assert_memory_equal(results[r].dx, plain[r].dx, sizeof(plain[r].dx));
        assert_memory_equal(results[r].d_probs, plain[r].d_probs, sizeof(plain[r].d_probs));
        assert_memory_equal(results[r].d_w, plain[r].d_w, sizeof(plain[r].d_w));
    }
}

/* Fix 2: an expert output without a history; the rank issues no backward collective, and its plan says so while forward
 * runs. */
static void test_detached_rank_issues_nothing_in_backward(void **state)
{
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        for (size_t s = 0; s < 3; s++) {
            int last = sizes[s] - 1;
            struct dr_case c = {.kind = both[k], .etp = 1, .ep = sizes[s], .travel = true, .empty = 1u << last};
            dr_run(&c, plain);
            c.detach = 1u << last;
            c.patience_ms = PATIENCE;
            dr_run(&c, results);
            check_hung(&c, all_but(&c, last));
            assert_int_equal(results[last].rc, 0);
            assert_int_equal(results[last].backward.units, 0);
            assert_int_equal(results[last].obligations, 0);
            assert_int_equal(results[0].obligations, plain[0].obligations);
            for (int r = 0; r < c.ep; r++) {
                assert_true(results[r].forward_done);
                assert_memory_equal(results[r].forward.unit, plain[r].forward.unit, sizeof(plain[r].forward.unit));
            }
        }
    }
}

/* Fixes 1 and 3, AllGather: the unpermute of no rows has no rows, so the ReduceScatter has no bytes on that rank, and
 * the view fails. */
static void test_unpermute_of_no_rows_scatters_no_bytes(void **state)
{
    (void)state;
    for (size_t s = 0; s < 3; s++) {
        struct dr_case c = {.kind = MOE_DISPATCH_ALLGATHER, .etp = 1, .ep = sizes[s], .empty = 1};
        dr_run(&c, plain);
        c.legacy.empty_unpermute = true;
        c.patience_ms = PATIENCE;
        dr_run(&c, results);
        check_hung(&c, all_but(&c, 0));
        assert_int_equal(results[0].rc, MOE_E_SHAPE);
        assert_non_null(strstr(results[0].message, "rank 0, layer 3"));
        assert_int_equal(results[0].forward.unit[3].op, DR_REDUCESCATTER);
        assert_int_equal(results[0].forward.unit[3].bytes, 0);
        assert_true(results[1].forward.unit[3].bytes > 0);
        c.granted = MOE_REMEDY_FILL;
        c.patience_ms = 0;
        dr_run(&c, results);
        check_equal_bits(&c);
        assert_int_equal(results[0].plan.remedied, MOE_REMEDY_FILL);
        assert_int_equal(results[1].plan.remedied, 0);
    }
}

/* Fix 3, all-to-all and Flex: the source whose routing map is all false (Megatron-LM #1877). Its collectives are all
 * issued; the view fails; backward never begins there. */
static void test_source_without_rows_fails_at_the_view(void **state)
{
    (void)state;
    static const enum moe_dispatcher_kind viewing[] = {MOE_DISPATCH_ALLTOALL, MOE_DISPATCH_DEEPEP,
                                                       MOE_DISPATCH_HYBRIDEP};
    for (size_t i = 0; i < 9; i++) {
        struct dr_case c = {.kind = viewing[i / 3], .etp = 1, .ep = sizes[i % 3], .mute = 2, .travel = true};
        dr_run(&c, plain);
        dr_check_reference(&c, plain);
        c.legacy.empty_unpermute = true;
        c.patience_ms = PATIENCE;
        dr_run(&c, results);
        check_hung(&c, all_but(&c, 1));
        assert_int_equal(results[1].rc, MOE_E_SHAPE);
        assert_int_equal(results[1].forward.units, plain[1].forward.units);
        assert_int_equal(results[1].backward.units, 0);
        c.granted = MOE_REMEDY_FILL;
        c.patience_ms = 0;
        dr_run(&c, results);
        check_equal_bits(&c);
        assert_int_equal(results[1].plan.remedied, MOE_REMEDY_FILL);
    }
}

/* The same code on a rank without tokens: 0 rows are what was asked for. */
static void test_a_rank_without_tokens_has_no_view_that_fails(void **state)
{
    (void)state;
    static const enum moe_dispatcher_kind viewing[] = {MOE_DISPATCH_ALLTOALL, MOE_DISPATCH_DEEPEP,
                                                       MOE_DISPATCH_HYBRIDEP};
    for (size_t i = 0; i < 3; i++) {
        struct dr_case c = {.kind = viewing[i], .etp = 1, .ep = 3, .tokens = DR_ONE_WITHOUT, .travel = true};
        c.uneven = viewing[i] == MOE_DISPATCH_HYBRIDEP ? MOE_UNEVEN_MAX : MOE_UNEVEN_NONE;
        c.legacy.empty_unpermute = true;
        dr_run(&c, results);
        dr_check_reference(&c, results);
    }
}

/* H5: rows from the own input: combine has a backward, dispatch has none. */
static void test_rows_from_the_own_input_have_no_reverse_dispatch(void **state)
{
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        for (size_t s = 0; s < 3; s++) {
            struct dr_case c = {.kind = both[k], .etp = 1, .ep = sizes[s], .travel = true, .empty = 2};
            dr_run(&c, plain);
            c.legacy.empty_from_input = true;
            c.patience_ms = PATIENCE;
            dr_run(&c, results);
            check_hung(&c, all_but(&c, 1));
            assert_int_equal(results[1].rc, 0);
            assert_int_equal(results[1].obligations, 1);
            assert_int_equal(results[1].backward.units, 1);
            assert_int_equal(results[0].obligations, plain[0].obligations);
            c.granted = MOE_REMEDY_FILL;
            c.patience_ms = 0;
            dr_run(&c, results);
            check_equal_bits(&c);
            c.granted = 0;
            c.empty = 0;
            dr_run(&c, results); /* no rank is without rows, so nothing happens */
            dr_check_reference(&c, results);
        }
    }
}

/* H12, first outcome: the splits do not add up to the buffer; the rank stops alone, after the exchange of counts. */
static void test_static_rows_with_a_masked_map_are_a_split_error(void **state)
{
    (void)state;
    for (size_t s = 0; s < 3; s++) {
        struct dr_case c = {.etp = 1, .ep = sizes[s], .masked = 2};
        dr_run(&c, plain);
        c.legacy.static_rows = true;
        c.patience_ms = PATIENCE;
        dr_run(&c, results);
        check_hung(&c, all_but(&c, 1));
        assert_int_equal(results[1].rc, MOE_E_SPLIT);
        assert_non_null(strstr(results[1].message, "rank 1, layer 3"));
        assert_non_null(strstr(results[1].message, "4 x 2 = 8"));
        assert_int_equal(results[1].forward.units, 1);
        c.patience_ms = 0;
        c.granted = MOE_REMEDY_SPLITS;
        dr_run(&c, results);
        check_equal_bits(&c);
        assert_int_equal(results[1].plan.remedied, MOE_REMEDY_SPLITS);
        assert_int_equal(results[0].plan.remedied, 0);
        c.granted = 0;
        c.proposed[1] = MOE_REMEDY_SPLITS;
        dr_run(&c, results);
        check_equal_bits(&c);
        c.proposed[1] = 0;
        c.masked = 0;
        dr_run(&c, results); /* a full map: no trouble */
        dr_check_reference(&c, results);
    }
}

/* H12, second outcome, and H14: no rank checks, and rows that were never written reach the last expert, whose weight
 * gradient becomes NaN. */
static void test_static_rows_that_nobody_checks_poison_the_last_expert(void **state)
{
    (void)state;
    for (size_t s = 0; s < 3; s++) {
        for (int travel = 0; travel < 2; travel++) {
            struct dr_case c = {.etp = 1, .ep = sizes[s], .masked = 2, .travel = travel != 0};
            int last = sizes[s] - 1;
            const size_t weight = DR_HIDDEN * DR_HIDDEN;
            dr_run(&c, plain);
            c.legacy = (struct moe_dispatcher_legacy){.static_rows = true, .slack_uninitialised = true};
            dr_run(&c, results);
            for (int r = 0; r < c.ep; r++) {
                assert_int_equal(results[r].rc, 0);
                assert_int_equal(results[r].plan.slack > 0, r == 1);
                assert_memory_equal(results[r].y, plain[r].y, sizeof(plain[r].y));
                for (size_t i = 0; i < 2 * weight; i++) {
                    assert_int_equal(isnan(results[r].d_w[i]) != 0, r == last && i >= weight);
                }
            }
            c.granted = MOE_REMEDY_SANITIZE;
            dr_run(&c, results);
            dr_check_reference(&c, results);
            assert_int_equal(results[1].plan.remedied, MOE_REMEDY_SANITIZE);
            c.granted = 0;
            c.proposed[1] = MOE_REMEDY_SPLITS;
            dr_run(&c, results);
            check_equal_bits(&c);
            assert_int_equal(results[1].plan.slack, 0);
        }
    }
}

/* H13: a capacity made from a rank's own tokens: the same all-to-all has other bytes on other ranks. */
static void test_capacity_from_own_tokens_differs(void **state)
{
    (void)state;
    for (size_t s = 0; s < 3; s++) {
        struct dr_case c = {.etp = 1,
                            .ep = sizes[s],
                            .capacity = 6,
                            .tokens = DR_DIFFERENT,
                            .legacy = {.local_capacity = true},
                            .patience_ms = PATIENCE};
        dr_run(&c, results);
        assert_true(results[0].plan.sent < results[1].plan.sent);
        assert_int_not_equal(results[0].forward.unit[0].sent[1], results[1].forward.unit[0].received[0]);
        assert_true(results[0].hung || results[0].rc != 0);
        assert_true(results[1].hung || results[1].rc != 0);
        c.patience_ms = 0;
        c.legacy.local_capacity = false;
        dr_run(&c, results);
        dr_check_reference(&c, results);
        c.legacy.local_capacity = true;
        c.tokens = DR_EQUAL;
        dr_run(&c, results); /* one T everywhere gives one capacity, a smaller one */
        for (int r = 0; r < c.ep; r++) {
            assert_int_equal(results[r].rc, 0);
            assert_int_equal(results[r].plan.sent, 4 * DR_LOCAL * c.ep);
        }
    }
}

/* H7: AllGather with different numbers of tokens. */
static void test_different_tokens_without_padding_hang_or_fail(void **state)
{
    (void)state;
    for (size_t s = 0; s < 3; s++) {
        struct dr_case c = {
            .kind = MOE_DISPATCH_ALLGATHER, .etp = 1, .ep = sizes[s], .tokens = DR_DIFFERENT, .patience_ms = PATIENCE};
        dr_run(&c, results);
        assert_int_not_equal(results[0].forward.unit[0].bytes, results[1].forward.unit[0].bytes);
        for (int r = 0; r < c.ep; r++) {
            assert_true(results[r].hung || results[r].rc != 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_detached_rank_issues_nothing_in_backward),
        cmocka_unit_test(test_unpermute_of_no_rows_scatters_no_bytes),
        cmocka_unit_test(test_source_without_rows_fails_at_the_view),
        cmocka_unit_test(test_a_rank_without_tokens_has_no_view_that_fails),
        cmocka_unit_test(test_rows_from_the_own_input_have_no_reverse_dispatch),
        cmocka_unit_test(test_static_rows_with_a_masked_map_are_a_split_error),
        cmocka_unit_test(test_static_rows_that_nobody_checks_poison_the_last_expert),
        cmocka_unit_test(test_capacity_from_own_tokens_differs),
        cmocka_unit_test(test_different_tokens_without_padding_hang_or_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
