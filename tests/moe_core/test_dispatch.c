/*
 * test_dispatch.c: the AllToAll and AllGather dispatchers' options: row types, padding of rows, drop-and-pad, different
 * numbers of tokens, the remedy PAD, the shared expert inside, a handle used again.
 */
#include "tests/moe_core/dispatch_ranks.h"

#include "moe_core/include/moe/remedy.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const struct {
    int etp, ep;
} layouts[] = {{1, 1}, {1, 2}, {1, 3}, {2, 2}, {1, 4}, {4, 1}};

static const enum moe_dispatcher_kind both[] = {MOE_DISPATCH_ALLTOALL, MOE_DISPATCH_ALLGATHER};
static struct dr_result results[DR_RANKS], others[DR_RANKS];

/* Runs `check` for every kind on every layout, first with no rank empty, then with the first ep rank empty. */
static void for_each(struct dr_case c, void (*check)(const struct dr_case *c))
{
    for (size_t k = 0; k < COUNT(both); k++) {
        for (size_t l = 0; l < COUNT(layouts); l++) {
            for (uint32_t empty = 0; empty < 2; empty++) {
                c.kind = both[k];
                c.etp = layouts[l].etp;
                c.ep = layouts[l].ep;
                c.empty = empty;
                check(&c);
            }
        }
    }
}

static void check_results(const struct dr_case *c)
{
    dr_run(c, results);
    dr_check_reference(c, results);
}

static void test_rows_of_every_type_equal_the_reference(void **state)
{
    (void)state;
    for (int travel = 0; travel < 2; travel++) {
        for_each((struct dr_case){.type = MOE_BF16, .travel = travel != 0}, check_results);
        for_each((struct dr_case){.type = MOE_F16, .travel = travel != 0}, check_results);
    }
}

static void check_types_on_the_wire(const struct dr_case *c)
{
    check_results(c);
    if (c->ep * c->etp == 1) {
        return;
    }
    uint64_t tokens = 4 * (uint64_t)dr_ranks(c);
    assert_int_equal(results[0].forward.unit[2].bytes, tokens * DR_HIDDEN * 2); /* tokens in their type */
    assert_int_equal(results[0].forward.unit[3].bytes, tokens * DR_HIDDEN * 4); /* outputs in the probabilities' */
    assert_int_equal(results[0].backward.unit[0].bytes, tokens * DR_HIDDEN * 4);
    assert_int_equal(results[0].backward.unit[1].bytes, tokens * DR_HIDDEN * 2);
}

static void test_allgather_sends_outputs_as_float32(void **state)
{
    (void)state;
    for (size_t l = 0; l < COUNT(layouts); l++) {
        struct dr_case c = {
            .kind = MOE_DISPATCH_ALLGATHER, .type = MOE_BF16, .etp = layouts[l].etp, .ep = layouts[l].ep};
        check_types_on_the_wire(&c);
    }
}

static void check_multiple(const struct dr_case *c)
{
    check_results(c);
    for (int r = 0; r < dr_ranks(c); r++) {
        int64_t sum = 0;
        for (int i = 0; i < DR_LOCAL; i++) {
            assert_int_equal(results[r].m[i] % c->row_multiple, 0);
            sum += results[r].m[i];
        }
        assert_int_equal(sum, results[r].plan.received);
    }
}

static void test_rows_padded_to_a_multiple_change_no_result(void **state)
{
    (void)state;
    for_each((struct dr_case){.row_multiple = 4, .masked = DR_ALL}, check_multiple);
    for_each((struct dr_case){.row_multiple = 8, .travel = true}, check_multiple);
}

static void check_pad(const struct dr_case *c)
{
    check_results(c);
    for (int r = 0; r < dr_ranks(c); r++) {
        bool empty = (c->empty >> (r / c->etp) & 1) != 0;
        assert_int_equal(results[r].agreed & MOE_REMEDY_PAD, MOE_REMEDY_PAD);
        assert_int_equal(results[r].plan.padded, empty);
        assert_int_equal(results[r].plan.received == 1, empty);
        /* The row comes from the next ep rank's first etp rank, to the first etp rank here. */
        for (int p = 0; empty && p < results[r].plan.peers; p++) {
            assert_int_equal(results[r].received[p], p == (r / c->etp + 1) % c->ep && r % c->etp == 0);
        }
    }
}

static void test_pad_leaves_nobody_empty_and_changes_no_result(void **state)
{
    (void)state;
    struct dr_case c = {.travel = true};
    for (int r = 0; r < DR_RANKS; r++) {
        c.proposed[r] = MOE_REMEDY_PAD | MOE_REMEDY_FILL;
    }
    for_each(c, check_pad);
    c.travel = false;
    for_each(c, check_pad);
}

/* A rank whose rows are all those of its last expert is not empty: nobody sends it a pad row. */
static void test_a_rank_with_rows_for_one_expert_is_not_padded(void **state)
{
    (void)state;
    static const enum moe_dispatcher_kind all[] = {MOE_DISPATCH_ALLTOALL, MOE_DISPATCH_ALLGATHER, MOE_DISPATCH_DEEPEP,
                                                   MOE_DISPATCH_HYBRIDEP};
    for (size_t k = 0; k < COUNT(all); k++) {
        for (int first = 0; first < 2; first++) {
            struct dr_case c = {.kind = all[k], .etp = 1, .ep = 3, .travel = true};
            for (int p = 0; p < 3; p++) {
                c.unchosen |= 1u << (p * DR_LOCAL + (first ? 0 : DR_LOCAL - 1));
                c.proposed[p] = MOE_REMEDY_PAD;
            }
            check_results(&c);
            for (int r = 0; r < 3; r++) {
                assert_int_equal(results[r].agreed & MOE_REMEDY_PAD, MOE_REMEDY_PAD);
                assert_int_equal(results[r].plan.padded, 0);
                assert_int_equal(results[r].plan.empty_experts, 1);
                assert_true(results[r].plan.received > 0);
            }
        }
    }
}

static void test_pad_is_not_used_unless_all_propose_it(void **state)
{
    (void)state;
    for (size_t k = 0; k < COUNT(both); k++) {
        for (int missing = 0; missing < 4; missing++) {
            struct dr_case c = {.kind = both[k], .etp = 2, .ep = 2, .empty = 2};
            for (int r = 0; r < 4; r++) {
                c.proposed[r] = r == missing ? MOE_REMEDY_FILL : MOE_REMEDY_PAD | MOE_REMEDY_FILL;
            }
            check_results(&c);
            for (int r = 0; r < 4; r++) {
                assert_int_equal(results[r].agreed, MOE_REMEDY_FILL);
                assert_int_equal(results[r].plan.padded, 0);
                assert_int_equal(results[r].plan.received == 0, r >= 2);
            }
        }
    }
}

/* Groups that move a single row, or none: the smallest that is something. */
static void test_single_rows_arrive(void **state)
{
    (void)state;
    for (size_t l = 0; l < COUNT(layouts); l++) {
        for (int travel = 0; travel < 2; travel++) {
            for (int kind = 0; kind < 2; kind++) {
                struct dr_case c = {.kind = both[kind],
                                    .etp = layouts[l].etp,
                                    .ep = layouts[l].ep,
                                    .local = layouts[l].ep > 1 ? 1 : 0, /* a token's choices go to as many ranks */
                                    .tokens = DR_SINGLE,
                                    .travel = travel != 0,
                                    .uneven = kind ? MOE_UNEVEN_MAX : MOE_UNEVEN_NONE};
                check_results(&c);
            }
        }
    }
}

/* Drop-and-pad: no exchange of counts, equal splits, rows without a token are zero. */
static void test_capacity_exchanges_no_counts(void **state)
{
    (void)state;
    for (size_t l = 0; l < COUNT(layouts); l++) {
        for (int64_t capacity = 1; capacity <= 3; capacity++) {
            struct dr_case c = {.etp = layouts[l].etp,
                                .ep = layouts[l].ep,
                                .capacity = capacity,
                                .travel = capacity != 2,
                                .empty = (uint32_t)capacity & 1,
                                .steps = 2,
                                .row_multiple = capacity == 3 ? 4 : 0};
            int64_t rows = capacity * DR_LOCAL * dr_ranks(&c);
            check_results(&c);
            size_t units = (size_t)(c.ep > 1) * (c.travel ? 3 : 2) + (size_t)(c.etp > 1) * (c.travel ? 3 : 2);
            for (int r = 0; r < dr_ranks(&c); r++) {
                assert_int_equal(results[r].forward.units, units);
                assert_int_equal(results[r].backward.units, units);
                assert_int_equal(results[r].plan.sent, capacity * DR_LOCAL * c.ep);
                assert_true(results[r].plan.received >= rows);
                assert_int_equal(results[r].agreed, 0);
                for (size_t i = 0; i < units; i++) { /* equal splits: every peer the same */
                    assert_int_equal(results[r].forward.unit[i].sent[0], results[0].forward.unit[i].sent[0]);
                    assert_int_equal(results[r].forward.unit[i].bytes, results[0].forward.unit[i].bytes);
                    const struct dr_unit *obligation = &results[r].obligation[i],
                                         *issued = &results[r].backward.unit[i];
                    assert_true(obligation->bytes > 0); /* sizes are known, so the plan says them */
                    assert_int_equal(obligation->op, issued->op);
                    assert_int_equal(obligation->op == DR_ALLTOALL ? issued->sent[0] : issued->bytes / (uint64_t)c.etp,
                                     obligation->bytes * sizeof(float));
                }
            }
        }
    }
}

static void test_different_numbers_of_tokens_padded_by_allgather(void **state)
{
    (void)state;
    for (size_t l = 0; l < COUNT(layouts); l++) {
        for (int bound = 0; bound < 2; bound++) {
            for (uint32_t empty = 0; empty < 2; empty++) {
                struct dr_case c = {.kind = MOE_DISPATCH_ALLGATHER,
                                    .etp = layouts[l].etp,
                                    .ep = layouts[l].ep,
                                    .empty = empty,
                                    .tokens = DR_ONE_WITHOUT,
                                    .travel = empty != 0,
                                    .uneven = bound ? MOE_UNEVEN_BOUND : MOE_UNEVEN_MAX,
                                    .token_bound = bound ? 60 : 0};
                check_results(&c);
                bool max = !bound && dr_ranks(&c) > 1;
                assert_int_equal(results[0].forward.units, dr_ranks(&c) > 1 ? 4u + max : 0u);
                assert_int_equal(results[0].forward.unit[0].op, max                ? DR_ALLREDUCE
                                                                : dr_ranks(&c) > 1 ? DR_ALLGATHER
                                                                                   : DR_NOTHING);
                /* a single rank, which has no tokens */
                assert_int_equal(results[0].plan.sent, max || bound ? MOE_TOKEN_ALIGN : 0);
            }
        }
    }
}

/* The exchange that agrees cannot itself be padded: from the second forward on. */
static void test_uneven_as_a_remedy_acts_from_the_next_forward(void **state)
{
    (void)state;
    struct dr_case c = {.kind = MOE_DISPATCH_ALLGATHER, .etp = 1, .ep = 3, .steps = 2};
    for (int r = 0; r < 3; r++) {
        c.proposed[r] = MOE_REMEDY_UNEVEN;
    }
    check_results(&c);
    assert_int_equal(results[0].forward.units, 5);
    assert_int_equal(results[0].forward.unit[0].op, DR_ALLREDUCE);
    c.steps = 1;
    check_results(&c);
    assert_int_equal(results[0].forward.units, 4);
    c.steps = 2;
    c.proposed[1] = 0;
    check_results(&c);
    assert_int_equal(results[0].forward.units, 4);
}

/* Ranks see a switch at different steps, or never, and are late by random times: every step has one answer for all, and
 * goes through. */
static void test_a_switch_seen_at_different_steps_divides_nobody(void **state)
{
    (void)state;
    enum { STEPS = 6, NEVER = 99 };
    static const int seen[][4] = {{0, 0, 0, 0}, {3, 0, 1, 2}, {1, 4, 4, 1}, {0, 0, NEVER, 0}, {NEVER, 2, 0, 5}};
    const uint32_t pad = MOE_REMEDY_PAD, uneven = MOE_REMEDY_UNEVEN;
    for (enum moe_dispatcher_kind kind = 0; kind < MOE_DISPATCH_KINDS; kind++) {
        for (size_t i = 0; i < COUNT(seen); i++) {
            struct dr_case c = {.kind = kind, .etp = 2, .ep = 2, .empty = 1, .steps = STEPS, .delay_us = 3000};
            bool pads = kind == MOE_DISPATCH_ALLGATHER || kind == MOE_DISPATCH_HYBRIDEP;
            int all = 0; /* the first step in which all propose */
            for (int r = 0; r < 4; r++) {
                c.proposed[r] = pad | uneven;
                c.from_step[r] = seen[i][r];
                all = seen[i][r] > all ? seen[i][r] : all;
            }
            check_results(&c);
            for (int r = 0; r < 4; r++) {
                for (int s = 0; s < STEPS; s++) {
                    assert_int_equal(results[r].agreed_at[s], s >= all ? pad | uneven : 0);
                    assert_int_equal(results[r].units_at[s], results[0].units_at[0] + (pads && s > all));
                }
                assert_int_equal(results[r].plan.padded > 0, all < STEPS && r < 2);
            }
        }
    }
}

static void test_remedies_change_no_bit_when_nobody_is_empty(void **state)
{
    (void)state;
    const uint32_t mask = MOE_REMEDY_PAD | MOE_REMEDY_FILL | MOE_REMEDY_SPLITS | MOE_REMEDY_SANITIZE;
    for (enum moe_dispatcher_kind kind = 0; kind < MOE_DISPATCH_KINDS; kind++) {
        for (size_t l = 0; l < COUNT(layouts); l++) {
            struct dr_case c = {.kind = kind, .etp = layouts[l].etp, .ep = layouts[l].ep, .travel = true};
            dr_run(&c, others);
            for (int r = 0; r < DR_RANKS; r++) {
                c.proposed[r] = mask;
            }
            c.granted = mask;
            c.legacy.empty_from_input = true;
            check_results(&c);
            for (int r = 0; r < dr_ranks(&c); r++) {
                assert_int_equal(results[r].agreed, mask);
                assert_int_equal(results[r].plan.remedied, 0);
                assert_memory_equal(results[r].forward.unit, others[r].forward.unit, sizeof(others[r].forward.unit));
                assert_memory_equal(results[r].backward.unit, others[r].backward.unit, sizeof(others[r].backward.unit));
                assert_memory_equal(results[r].y, others[r].y, sizeof(others[r].y));
                assert_memory_equal(results[r].dx, others[r].dx, sizeof(others[r].dx));
                assert_memory_equal(results[r].d_probs, others[r].d_probs, sizeof(others[r].d_probs));
                assert_memory_equal(results[r].d_w, others[r].d_w, sizeof(others[r].d_w));
            }
        }
    }
}

static void test_a_handle_used_again_gives_the_same_bits(void **state)
{
    (void)state;
    for (size_t k = 0; k < COUNT(both); k++) {
        struct dr_case c = {.kind = both[k], .etp = 2, .ep = 2, .masked = DR_ALL, .travel = true};
        dr_run(&c, results);
        c.steps = 3;
        dr_run(&c, others);
        for (int r = 0; r < 4; r++) {
            assert_memory_equal(results[r].y, others[r].y, sizeof(results[r].y));
            assert_memory_equal(results[r].dx, others[r].dx, sizeof(results[r].dx));
            assert_memory_equal(results[r].d_probs, others[r].d_probs, sizeof(results[r].d_probs));
            assert_memory_equal(results[r].d_w, others[r].d_w, sizeof(results[r].d_w));
        }
    }
}

static void test_tp_ep_of_its_own_and_one_expert_for_each_rank(void **state)
{
    (void)state;
    for (size_t k = 0; k < COUNT(both); k++) {
        struct dr_case c = {.kind = both[k], .etp = 1, .ep = 3, .use_tp_ep = true, .empty = 2};
        check_results(&c);
        assert_int_equal(results[0].forward.unit[0].role, DR_TP_EP);
        for (size_t l = 0; l < COUNT(layouts); l++) {
            struct dr_case one = {.kind = both[k],
                                  .etp = layouts[l].etp,
                                  .ep = layouts[l].ep,
                                  .local = 1,
                                  .travel = true,
                                  .row_multiple = l % 2 == 0 ? 0 : 3};
            if (one.ep >= DR_TOPK) {
                check_results(&one);
            }
        }
    }
}

/* Both runs make the same collectives and products at different places: equal in every bit. */
static void test_shared_expert_inside_equals_the_one_after(void **state)
{
    (void)state;
    static const struct dr_want forward[] = {{.op = DR_ALLGATHER, .role = DR_EP},      /* counts */
                                             {.op = DR_ALLGATHER, .role = DR_TP},      /* shared x */
                                             {.op = DR_ALLTOALL, .role = DR_EP},       /* tokens; then fc1 */
                                             {.op = DR_ALLTOALL, .role = DR_EP},       /* probabilities */
                                             {.op = DR_ALLTOALL, .role = DR_EP},       /* outputs; then fc2 */
                                             {.op = DR_REDUCESCATTER, .role = DR_TP}}; /* shared y */
    static const struct dr_want backward[] = {{.op = DR_ALLGATHER, .role = DR_TP},
                                              {.op = DR_ALLTOALL, .role = DR_EP},
                                              {.op = DR_ALLTOALL, .role = DR_EP},
                                              {.op = DR_ALLTOALL, .role = DR_EP},
                                              {.op = DR_REDUCESCATTER, .role = DR_TP}};
    for (int ranks = 1; ranks <= 4; ranks *= 2) {
        for (uint32_t empty = 0; empty < 2; empty++) {
            struct dr_case c = {.etp = 1, .ep = ranks, .travel = true, .empty = empty, .shared = DR_SHARED_INSIDE};
            dr_run(&c, results);
            if (ranks > 1) {
                dr_check_sequence(&c, results, forward, COUNT(forward), backward, COUNT(backward));
            }
            c.shared = DR_SHARED_AFTER;
            dr_run(&c, others);
            for (int r = 0; r < ranks; r++) {
                assert_int_equal(results[r].rc, 0);
                assert_int_equal(others[r].rc, 0);
                assert_memory_equal(results[r].y, others[r].y, sizeof(results[r].y));
                assert_memory_equal(results[r].dx, others[r].dx, sizeof(results[r].dx));
                assert_memory_equal(results[r].d_shared, others[r].d_shared, sizeof(results[r].d_shared));
                assert_true(results[r].d_shared[0] != 0.0f);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_of_every_type_equal_the_reference),
        cmocka_unit_test(test_allgather_sends_outputs_as_float32),
        cmocka_unit_test(test_rows_padded_to_a_multiple_change_no_result),
        cmocka_unit_test(test_pad_leaves_nobody_empty_and_changes_no_result),
        cmocka_unit_test(test_a_rank_with_rows_for_one_expert_is_not_padded),
        cmocka_unit_test(test_pad_is_not_used_unless_all_propose_it),
        cmocka_unit_test(test_single_rows_arrive),
        cmocka_unit_test(test_capacity_exchanges_no_counts),
        cmocka_unit_test(test_different_numbers_of_tokens_padded_by_allgather),
        cmocka_unit_test(test_uneven_as_a_remedy_acts_from_the_next_forward),
        cmocka_unit_test(test_a_switch_seen_at_different_steps_divides_nobody),
        cmocka_unit_test(test_remedies_change_no_bit_when_nobody_is_empty),
        cmocka_unit_test(test_a_handle_used_again_gives_the_same_bits),
        cmocka_unit_test(test_tp_ep_of_its_own_and_one_expert_for_each_rank),
        cmocka_unit_test(test_shared_expert_inside_equals_the_one_after),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
