/*
 * test_engine_align.c: who is named in a disagreement, and when: the vote before all have come, and how ranks that come
 * later confirm or replace what was said.
 */
#include "tests/daemon/engine/stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AR ROLL_OP_ALLREDUCE
#define AG ROLL_OP_ALLGATHER

static const uint32_t sizes[] = {2, 3, 4, 5, 8, 12};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

/* A history, and a call at which the ranks of `wrong` (a bit each) have another count; by call sites a wrong argument.
 */
static struct sim *job(uint32_t ranks, uint32_t wrong)
{
    struct sim *sim = sim_new(ranks);
    uint32_t w = sim_world(sim);
    sim->site = 1;
    for (int i = 0; i < 6; i++) {
        sim_all(sim, w, AR, 256);
    }
    for (uint32_t r = 0; r < ranks; r++) {
        sim->site = 2;
        sim_call(sim, r, w, AG, wrong & 1u << r ? 99 : 100);
        sim->site = 3;
        sim_stuck(sim, r);
    }
    return sim;
}

/* Two wrong ones and one right one of five have come; the other right ones are late. */
static void test_a_vote_before_all_have_come_names_nobody(void **state)
{
    (void)state;
    for (uint32_t known = 0; known < 2; known++) { /* the late ones are known members, or not even that */
        struct stage s;
        stage_open(&s, job(5, 1u << 0 | 1u << 1));
        for (uint32_t r = 3; known && r < 5; r++) {
            stage_show(&s, r, true);
        }
        for (uint32_t r = 0; r < 3; r++) {
            stage_show(&s, r, false);
        }
        assert_string_equal(stage_pass(&s, 300), "");
        stage_show(&s, 3, false);
        stage_show(&s, 4, false);
        assert_string_equal(stage_pass(&s, 50), "proven count-mismatch 0-1");
        assert_string_equal(stage_pass(&s, 5000), "");
        stage_close(&s);
    }
}

/* The ranks come after the stall time: what was said before named nobody, and is replaced. */
static void test_what_was_said_before_all_had_come_is_replaced(void **state)
{
    (void)state;
    struct stage s;
    stage_open(&s, job(5, 1u << 0 | 1u << 1));
    for (uint32_t r = 0; r < 3; r++) {
        stage_show(&s, r, false);
    }
    assert_string_equal(stage_pass(&s, 700), "suspected count-mismatch -");
    stage_show(&s, 3, false);
    assert_string_equal(stage_pass(&s, 500), "");
    stage_show(&s, 4, false);
    assert_string_equal(stage_pass(&s, 100), "proven count-mismatch 0-1 =1");
    assert_string_equal(stage_pass(&s, 5000), "");
    stage_close(&s);
}

static void test_one_against_one_of_four_is_no_tie_yet(void **state)
{
    (void)state;
    struct stage s;
    stage_open(&s, job(4, 1u << 1));
    stage_show(&s, 0, false);
    stage_show(&s, 1, false);
    assert_string_equal(stage_pass(&s, 400), "");
    assert_string_equal(stage_pass(&s, 300), "suspected count-mismatch -");
    stage_show(&s, 2, false);
    stage_show(&s, 3, false);
    assert_string_equal(stage_pass(&s, 50), "proven count-mismatch 1 =1");
    stage_close(&s);
}

static void test_more_than_half_decide_before_the_rest_has_come(void **state)
{
    (void)state;
    for (size_t i = 1; i < SIZES; i++) {
        uint32_t n = sizes[i], enough = n / 2 + 1;
        struct stage s;
        stage_open(&s, job(n, 1u << (n - 1)));
        stage_show(&s, n - 1, false);
        for (uint32_t r = 0; r + 1 < enough; r++) {
            stage_show(&s, r, false);
        }
        assert_string_equal(stage_pass(&s, 50), "");
        stage_show(&s, enough - 1, false);
        char want[64];
        snprintf(want, sizeof(want), "proven count-mismatch %u", n - 1);
        assert_string_equal(stage_pass(&s, 50), want);
        for (uint32_t r = enough; r + 1 < n; r++) {
            stage_show(&s, r, false);
        }
        assert_string_equal(stage_pass(&s, 5000), "");
        stage_close(&s);
    }
}

static void test_a_rank_that_errs_likewise_and_late_is_added(void **state)
{
    (void)state;
    struct stage s;
    stage_open(&s, job(8, 1u << 6 | 1u << 7));
    for (uint32_t r = 0; r < 7; r++) {
        stage_show(&s, r, false);
    }
    assert_string_equal(stage_pass(&s, 300), "proven count-mismatch 6");
    stage_show(&s, 7, false);
    assert_string_equal(stage_pass(&s, 300), "proven count-mismatch 6-7 !1");
    assert_string_equal(stage_pass(&s, 5000), "");
    stage_close(&s);
}

/* Two of five have ended: they have made neither call, and will not. Two against one is decided then; one against one
 * is a tie. */
static void test_ranks_that_have_ended_do_not_come_any_more(void **state)
{
    (void)state;
    for (uint32_t ended = 2; ended < 4; ended++) {
        struct sim *sim = sim_new(5 + (ended == 2));
        uint32_t w = sim_world(sim);
        for (int i = 0; i < 3; i++) {
            sim->site = 1;
            sim_all(sim, w, AR, 256);
        }
        uint32_t callers = sim->ranks - ended;
        for (uint32_t r = 0; r < sim->ranks; r++) {
            sim->site = 2;
            if (r < callers) {
                sim_call(sim, r, w, AG, r == 0 ? 99 : 100);
                sim->site = 3;
                sim_stuck(sim, r);
            } else {
                sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(0));
            }
        }
        struct stage s;
        stage_open(&s, sim);
        for (uint32_t r = 0; r < sim->ranks; r++) {
            stage_show(&s, r, false);
        }
        /* 3 of 6 against 1, with 2 away; 1 against 1, with 3 away. */
        assert_string_equal(stage_pass(&s, 300), ended == 2 ? "proven count-mismatch 0" : "proven count-mismatch -");
        stage_close(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_vote_before_all_have_come_names_nobody),
        cmocka_unit_test(test_what_was_said_before_all_had_come_is_replaced),
        cmocka_unit_test(test_one_against_one_of_four_is_no_tie_yet),
        cmocka_unit_test(test_more_than_half_decide_before_the_rest_has_come),
        cmocka_unit_test(test_a_rank_that_errs_likewise_and_late_is_added),
        cmocka_unit_test(test_ranks_that_have_ended_do_not_come_any_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
