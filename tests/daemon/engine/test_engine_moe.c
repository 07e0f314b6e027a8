/*
 * test_engine_moe.c: ranks without tokens, missing backward obligations, remedies; each with its healthy twin.
 */
#include "tests/daemon/engine/sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t sizes[] = {2, 3, 4, 8, 64};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))
#define A2A   ROLL_OP_ALLTOALL

/* One forward pass of a layer on every rank; `empty` ranks from the end got no rows; `legacy` ones then skip. */
static void forward(struct sim *sim, uint32_t ep, uint32_t layer, uint32_t empty, bool legacy)
{
    for (uint32_t r = 0; r < sim->ranks; r++) {
        bool none = r >= sim->ranks - empty;
        sim_call(sim, r, ep, A2A, 64);
        sim_moe_forward(sim, r, ep, layer, none ? 0 : 32, none && legacy ? 0 : 2);
        sim_call(sim, r, ep, A2A, 1024);
    }
}

static void backward(struct sim *sim, uint32_t ep, uint32_t empty, bool legacy)
{
    for (uint32_t r = 0; r < sim->ranks; r++) {
        bool skips = r >= sim->ranks - empty && legacy;
        for (int k = 0; k < 2 && !skips; k++) {
            sim_call(sim, r, ep, A2A, 1024);
        }
    }
}

static void test_missing_obligation_is_predicted_in_forward(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t ep = sim_comm(sim, "ep", NULL, sizes[i]);
        sim_step(sim, 17);
        forward(sim, ep, 3, 1, true);
        char want[128];
        snprintf(want, sizeof(want), "predicted moe-obligation-missing %u", sizes[i] - 1);
        sim->patience_ns = S_ / 10;
        sim_expect(sim, want);
        char *text = sim_run(sim, 0, true, true);
        snprintf(want, sizeof(want), "Rank %u received no tokens in MoE layer 3, step 17", sizes[i] - 1);
        assert_non_null(strstr(text, want));
        assert_non_null(strstr(text, "2 backward collectives (first: AlltoAll on communicator ep"));
        assert_non_null(strstr(text, "note moe-zero-tokens"));
        assert_non_null(strstr(text, "note moe-gemm-skipped"));
        assert_null(strstr(text, "rollcall remedy"));
        free(text);
        sim->config.policy = ROLL_POLICY_ADVISE;
        text = sim_run(sim, 0, true, true);
        assert_non_null(strstr(text, "rollcall remedy on fill --layer 3"));
        free(text);
        sim_destroy(&sim);
    }
}

static void test_several_ranks_that_skip_are_named_together(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t ep = sim_comm(sim, "ep", NULL, 4);
    sim_step(sim, 1);
    forward(sim, ep, 0, 3, true);
    sim_expect(sim, "predicted moe-obligation-missing 1-3");
    sim_destroy(&sim);
}

/* Other ranks are without tokens in each layer: one mistake of the program, one finding, whether it comes true or not.
 */
static void test_layers_with_other_empty_ranks_are_one_finding(void **state)
{
    (void)state;
    for (uint32_t hangs = 0; hangs < 2; hangs++) {
        struct sim *sim = sim_new(4);
        uint32_t ep = sim_comm(sim, "ep", NULL, 4);
        sim_step(sim, 1);
        for (uint32_t layer = 0; layer < 3; layer++) {
            forward(sim, ep, layer, 3 - layer, true);
        }
        if (hangs) {
            backward(sim, ep, 1, true); /* of the last layer */
            for (uint32_t r = 0; r < 4; r++) {
                sim_stuck(sim, r);
            }
        }
        sim_expect(sim, hangs ? "proven moe-obligation-missing 3" : "predicted moe-obligation-missing 1-3");
        char *text = sim_run(sim, 0, true, true);
        assert_true(hangs ||
                    strstr(text, "Ranks 1-3 received no tokens in some of MoE layers 0-2, step 1 and skipped their "
                                 "experts: they will not issue 2 backward collectives"));
        free(text);
        sim_destroy(&sim);
    }
}

static void test_empty_rank_that_keeps_its_obligations_is_healthy(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t ep = sim_comm(sim, "ep", NULL, sizes[i]);
        for (uint32_t step = 0; step < 5; step++) {
            sim_step(sim, step);
            forward(sim, ep, 0, 1, false);
            backward(sim, ep, 1, false);
        }
        sim_expect(sim, "");
        sim_destroy(&sim);
    }
}

/* Two layers that were never numbered: what differs between them is no difference between ranks. */
static void test_layers_of_one_number_are_compared_in_their_order(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (int sick = 0; sick < 2; sick++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t ep = sim_comm(sim, "ep", NULL, sizes[i]);
            sim_step(sim, 0);
            for (uint32_t r = 0; r < sizes[i]; r++) {
                bool lacks = sick && r == 0;
                sim_moe_forward(sim, r, ep, 0, 8, 4);
                sim_moe_forward(sim, r, ep, 0, 8, lacks ? 1 : 2);
                sim_moe_forward(sim, r, ep, 0, 8, 6);
            }
            sim->patience_ns = S_ / 10;
            sim_expect(sim, sick ? "predicted moe-obligation-missing 0" : "");
            sim_destroy(&sim);
        }
    }
}

/* More lists of one number than there is room for, a list that is missing, a communicator whose size is not known:
 * nothing meets the wrong one. */
static void test_lists_that_cannot_be_compared_say_nothing(void **state)
{
    (void)state;
    enum { MANY, MISSING, OPEN, CASES };
    for (int what = 0; what < CASES; what++) {
        struct sim *sim = sim_new(4);
        uint32_t ep = sim_comm(sim, "ep", NULL, 4);
        for (uint32_t r = 0; r < 4 && what == OPEN; r++) {
            sim->rank[r].event[0].def.comm.info.flags = ROLL_DEF_COMM_OPEN;
        }
        for (uint32_t step = 0; step < 3; step++) {
            sim_step(sim, step);
            for (uint32_t r = 0; r < 4; r++) {
                for (uint32_t k = 0; k < (what == MANY ? 100 : 4); k++) {
                    if (what == MISSING && step == 1 && r == 3 && k == 1) {
                        sim_lose(sim, r, 9);
                    } else {
                        sim_moe_forward(sim, r, ep, 0, 8, 1 + k % 5 + (what == OPEN ? r : 0));
                    }
                }
            }
        }
        sim->patience_ns = S_ / 10;
        sim_expect(sim, "");
        sim_destroy(&sim);
    }
}

static void test_nobody_with_tokens_is_healthy(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t ep = sim_comm(sim, "ep", NULL, 4);
    sim_step(sim, 0);
    forward(sim, ep, 0, 4, true);
    backward(sim, ep, 4, true);
    sim_expect(sim, "");
    sim_destroy(&sim);
}

/* The dispatch of a rank, the last one without rows, as PyTorch makes it: empty messages are made. */
static void dispatch(struct sim *sim, uint32_t r, uint32_t ep)
{
    sim_group(sim, r);
    for (uint32_t p = 0; p < sim->ranks; p++) {
        uint64_t rows = r + 1 == sim->ranks || p + 1 == sim->ranks ? 0 : 8;
        sim_send(sim, r, ep, p, rows);
        sim_recv(sim, r, ep, p, rows);
    }
    sim_group_end(sim, r);
}

/* The last rank received nothing and lacks its obligations; `tokens` are its own. posts: empty messages are made, else
 * all-to-alls of no rows are no calls. */
static void one_without_rows(struct sim *sim, uint32_t ep, uint64_t tokens, bool skips, bool posts)
{
    for (uint32_t r = 0; r < sim->ranks; r++) {
        bool last = r == sim->ranks - 1;
        struct roll_record *rec = sim_record(sim, r, ROLL_OP_MOE_ROUTE, ep);
        rec->layer = 0;
        rec->count = last ? tokens : 8;
        rec->phase = ROLL_PHASE_FORWARD;
        if (posts) {
            dispatch(sim, r, ep);
        }
        if (!last || skips) {
            sim_moe_forward(sim, r, ep, 0, last ? 0 : 32, last ? 0 : 2);
            continue;
        }
        const uint16_t ops[] = {ROLL_OP_MOE_COUNTS, ROLL_OP_MOE_OBLIGE_END};
        for (size_t i = 0; i < 2; i++) {
            rec = sim_record(sim, r, ops[i], ep);
            rec->layer = 0;
            rec->count = 0;
            rec->phase = ROLL_PHASE_FORWARD;
        }
    }
}

static void test_rank_with_nothing_to_exchange_owes_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (int tokens = 0; tokens < 2; tokens++) {
            for (int way = 0; way < 4; way++) {
                struct sim *sim = sim_new(sizes[i]);
                uint32_t ep = sim_comm(sim, "ep", NULL, sizes[i]);
                char want[128] = "";
                bool skips = (way & 1) != 0, posts = (way & 2) != 0;
                sim_step(sim, 2);
                one_without_rows(sim, ep, (uint64_t)tokens, skips, posts);
                if (tokens > 0 || posts) { /* peers wait for empty messages, too */
                    snprintf(want, sizeof(want), "predicted moe-obligation-missing %u", sizes[i] - 1);
                }
                sim_expect(sim, want);
                sim_destroy(&sim);
            }
        }
    }
}

static void test_rank_that_leaves_is_not_said_to_skip(void **state)
{
    (void)state;
    for (int skips = 0; skips < 2; skips++) {
        struct sim *sim = sim_new(4);
        uint32_t ep = sim_comm(sim, "ep", NULL, 4);
        sim_step(sim, 2);
        one_without_rows(sim, ep, 5, skips, false);
        char *text = sim_run(sim, 0, true, true);
        assert_non_null(strstr(text, "Rank 3 received no tokens in MoE layer 0, step 2"));
        assert_int_equal(strstr(text, "skipped its experts") != NULL, skips);
        assert_int_equal(strstr(text, "left that layer's exchange or cut its backward") != NULL, !skips);
        free(text);
        sim_destroy(&sim);
    }
}

static void test_prediction_that_comes_true_is_said_once_more_and_nothing_else(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (int goes_on = 0; goes_on < 3; goes_on++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t dp = sim_world(sim), ep = sim_comm(sim, "ep", NULL, sizes[i]), last = sizes[i] - 1;
            for (uint32_t step = 0; step < 3; step++) {
                sim_step(sim, step);
                forward(sim, ep, 0, step == 2 ? 1 : 0, true);
                backward(sim, ep, step == 2 ? 1 : 0, true);
                for (uint32_t r = 0; r < sizes[i]; r++) {
                    if (step < 2 || r == last || goes_on == 2) {
                        sim_call(sim, r, dp, ROLL_OP_ALLREDUCE, 4096);
                    }
                    if (step == 2 && r == last &&
                        goes_on == 1) { /* on to the next step's counts: meets its peers' backward */
                        sim_call(sim, r, ep, A2A, 64);
                    }
                    if (step == 2) {
                        sim_stuck(sim, r);
                    }
                }
            }
            char want[128];
            /* The verdict confirms the prediction. */
            snprintf(want, sizeof(want), "proven moe-obligation-missing %u", last);
            sim_expect(sim, want);
            sim_destroy(&sim);
        }
    }
}

static void test_prediction_for_point_to_point_exchanges_comes_true(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t dp = sim_world(sim), ep = sim_comm(sim, "ep", NULL, 4);
    sim_step(sim, 5);
    for (uint32_t r = 0; r < 4; r++) {
        sim_moe_forward(sim, r, ep, 1, r == 3 ? 0 : 16, r == 3 ? 0 : 2);
    }
    for (uint32_t r = 0; r < 4; r++) {
        if (r != 3) {
            sim_group(sim, r);
            for (uint32_t p = 0; p < 4; p++) {
                sim_send(sim, r, ep, p, 16);
                sim_recv(sim, r, ep, p, 16);
            }
            sim_group_end(sim, r);
        } else {
            sim_call(sim, r, dp, ROLL_OP_ALLREDUCE, 4096);
        }
        sim_stuck(sim, r);
    }
    sim_expect(sim, "proven moe-obligation-missing 3");
    sim_destroy(&sim);
}

static void test_remedy_is_a_note_and_prevents_the_prediction(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t ep = sim_comm(sim, "ep", NULL, 3);
    for (uint32_t step = 0; step < 4; step++) {
        sim_step(sim, step);
        for (uint32_t r = 0; r < 3; r++) {
            if (r == 2) {
                struct roll_record *rec = sim_record(sim, r, ROLL_OP_MOE_REMEDY, ep);
                rec->layer = 0;
                rec->peer = ROLL_REMEDY_FILL;
            }
            sim_moe_forward(sim, r, ep, 0, r == 2 ? 0 : 8, 2);
        }
    }
    sim_expect(sim, "");
    char *all = sim_run(sim, 0, true, false);
    assert_string_equal(all, "note moe-remedied 2; note moe-zero-tokens 2");
    free(all);
    sim_destroy(&sim);
}

static void test_lost_records_make_a_list_say_nothing(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t ep = sim_comm(sim, "ep", NULL, 3);
    sim_step(sim, 0);
    for (uint32_t r = 0; r < 3; r++) {
        struct roll_record *rec = sim_record(sim, r, ROLL_OP_MOE_COUNTS, ep);
        rec->layer = 0;
        rec->count = 8;
        for (uint32_t i = 0; i < 2; i++) {
            if (r == 1 && i == 0) {
                sim_lose(sim, r, 1);
                continue;
            }
            rec = sim_record(sim, r, ROLL_OP_MOE_OBLIGE, ep);
            rec->layer = 0;
            rec->seq = i;
            rec->peer = A2A;
        }
        rec = sim_record(sim, r, ROLL_OP_MOE_OBLIGE_END, ep);
        rec->layer = 0;
        rec->count = 2;
    }
    sim_expect(sim, "");
    sim_destroy(&sim);
}

static void test_list_shorter_than_its_end_says_nothing(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t ep = sim_comm(sim, "ep", NULL, 3);
    sim_step(sim, 0);
    for (uint32_t r = 0; r < 3; r++) {
        sim_moe_forward(sim, r, ep, 0, 8, r == 1 ? 1 : 2);
        struct sim_rank *rank = &sim->rank[r];
        rank->event[rank->events - 1].rec.count = 2; /* the second one's record was never made */
    }
    sim_expect(sim, "");
    sim_destroy(&sim);
}

static void test_prediction_for_one_layer_of_many_steps_is_told_once(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t ep = sim_comm(sim, "ep", NULL, 3);
    for (uint32_t step = 0; step < 20; step++) { /* an evaluation: forward only, so that nothing ever waits */
        sim_step(sim, step);
        forward(sim, ep, 0, 1, true);
    }
    sim_expect(sim, "predicted moe-obligation-missing 2");
    sim_destroy(&sim);
}

static void test_prediction_that_did_not_come_true_is_forgotten(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t ep = sim_comm(sim, "ep", NULL, 3);
    sim->site = 1;
    sim_step(sim, 0);
    forward(sim, ep, 0, 1, true); /* an evaluation: no backward */
    for (uint32_t step = 1; step < 4; step++) {
        sim_step(sim, step);
        forward(sim, ep, 0, 0, true);
        backward(sim, ep, 0, true);
    }
    sim->site = 2;
    for (uint32_t r = 0; r < 3; r++) {
        sim_call(sim, r, ep, A2A, r == 0 ? 77 : 78);
        sim_stuck(sim, r);
    }
    sim_expect(sim, "proven count-mismatch 0"); /* the prediction is withdrawn */
    sim_destroy(&sim);
}

/* A bucket that holds only what has a gradient is empty on the rank that skipped its experts: the verdict says why, and
 * what cures it. */
static void test_zero_elements_for_want_of_gradients_name_the_remedy(void **state)
{
    (void)state;
    for (uint32_t skips = 0; skips < 2; skips++) {
        struct sim *sim = sim_new(4);
        uint32_t edp = sim_comm(sim, "edp", NULL, 4);
        sim_step(sim, 1);
        for (uint32_t r = 0; r < 4; r++) {
            uint32_t ep = sim_comm(sim, "ep", &r, 1);
            for (uint32_t layer = 0; layer < 2; layer++) {
                sim_moe_forward(sim, r, ep, layer, r == 3 && skips ? 0 : 5, r == 3 && skips ? 0 : 1);
            }
            sim_call(sim, r, edp, ROLL_OP_ALLREDUCE, r == 3 ? 0 : 64);
            sim_stuck(sim, r);
        }
        sim_expect(sim, "proven zero-count 3");
        char *text = sim_run(sim, 0, false, true);
        bool why =
            strstr(text, "In step 1 rank 3 received no tokens in MoE layers 0-1 and skipped its experts") != NULL;
        assert_int_equal(why, skips == 1);
        free(text);
        sim_destroy(&sim);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing_obligation_is_predicted_in_forward),
        cmocka_unit_test(test_several_ranks_that_skip_are_named_together),
        cmocka_unit_test(test_layers_with_other_empty_ranks_are_one_finding),
        cmocka_unit_test(test_empty_rank_that_keeps_its_obligations_is_healthy),
        cmocka_unit_test(test_layers_of_one_number_are_compared_in_their_order),
        cmocka_unit_test(test_lists_that_cannot_be_compared_say_nothing),
        cmocka_unit_test(test_nobody_with_tokens_is_healthy),
        cmocka_unit_test(test_rank_with_nothing_to_exchange_owes_nothing),
        cmocka_unit_test(test_rank_that_leaves_is_not_said_to_skip),
        cmocka_unit_test(test_prediction_that_comes_true_is_said_once_more_and_nothing_else),
        cmocka_unit_test(test_prediction_for_point_to_point_exchanges_comes_true),
        cmocka_unit_test(test_remedy_is_a_note_and_prevents_the_prediction),
        cmocka_unit_test(test_lost_records_make_a_list_say_nothing),
        cmocka_unit_test(test_list_shorter_than_its_end_says_nothing),
        cmocka_unit_test(test_prediction_that_did_not_come_true_is_forgotten),
        cmocka_unit_test(test_prediction_for_one_layer_of_many_steps_is_told_once),
        cmocka_unit_test(test_zero_elements_for_want_of_gradients_name_the_remedy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
