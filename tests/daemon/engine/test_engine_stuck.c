/*
 * test_engine_stuck.c: everyone has arrived and nothing completes; and what looks alike and is healthy: slow calls,
 * long kernels in front and behind, hosts that run ahead, ranks that have left.
 */
#include "tests/daemon/engine/scenes.h"

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
#define AR    ROLL_OP_ALLREDUCE
#define SICK  "suspected collective-stuck -"
#define LONE  "suspected rank-stuck " /* ranks that stay in calls of their own: test_engine_lone.c */

static void test_all_arrived_and_none_left(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim);
        scene_waited_calls(sim, w, 5);
        scene_all_stuck(sim, w);
        scene_expect_after(sim, 19, "");
        scene_expect_after(sim, 40, SICK);
        char *text = sim_run(sim, 0, false, true);
        assert_non_null(strstr(text, "AllReduce of 512 float32 (sum), #5"));
        assert_non_null(strstr(text, "host node0"));
        free(text);
        sim_destroy(&sim);
    }
}

static void test_the_first_waits_get_more_patience(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim);
    scene_waited_calls(sim, w, 2);
    scene_all_stuck(sim, w);
    scene_expect_after(sim, 58, "");
    scene_expect_after(sim, 70, SICK);
    sim_destroy(&sim);
}

static void test_long_waits_before_make_patient(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim);
    scene_waited_calls(sim, w, 5);
    sim_all(sim, w, AR, 512);
    for (uint32_t r = 0; r < 4; r++) {
        sim_sync(sim, r)->call_ns = r == 2 ? UINT32_MAX : 100; /* 4.3 s */
    }
    scene_all_stuck(sim, w);
    scene_expect_after(sim, 21, "");
    scene_expect_after(sim, 30, SICK);
    sim_destroy(&sim);
}

static void test_who_has_left_makes_it_a_matter_of_kernels(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim);
        scene_waited_calls(sim, w, 5);
        scene_all_stuck(sim, w);
        sim_return(sim, sizes[i] - 1);
        char want[64] = LONE "0";
        if (sizes[i] > 2) {
            snprintf(want, sizeof(want), LONE "0-%u", sizes[i] - 2);
        }
        scene_expect_after(sim, 19, "");
        scene_expect_after(sim, 200, want);
        sim_destroy(&sim);
    }
}

static void test_a_rank_that_is_elsewhere_stands_in_no_call(void **state)
{
    (void)state;
    for (int stopped = 0; stopped < 3; stopped++) {
        struct sim *sim = sim_new(4);
        uint32_t w = sim_world(sim);
        scene_waited_calls(sim, w, 5);
        scene_all_stuck(sim, w);
        if (stopped == 0) {
            sim_proc(sim, 3, ROLL_PROC_STOPPED, ROLL_EXIT_UNKNOWN);
        } else if (stopped == 1) {
            sim_lose(sim, 3, 5);
        } else {
            sim_return(sim, 3); /* goes on, and comes back from another wait */
            sim_sync(sim, 3)->stream = 3;
        }
        scene_expect_after(sim, 200, stopped == 2 ? LONE "0-2" : "");
        sim_destroy(&sim);
    }
}

static void test_completion_tells_who_is_left_in_it(void **state)
{
    (void)state;
    for (size_t i = 1; i < SIZES; i++) {
        for (int known = 0; known < 2; known++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim);
            scene_waited_calls(sim, w, 5);
            for (uint32_t r = 0; r < sim->ranks; r++) { /* the device says of the fifth that it is over */
                struct roll_record *rec = sim_call(sim, r, w, AR, 512);
                rec->seal = roll_seal(roll_seal_ticket(rec->seal), known ? ROLL_STATE_COMPLETE : ROLL_STATE_RETURNED);
            }
            sim_all(sim, w, AR, 512);
            for (uint32_t r = 0; r < sim->ranks; r++) {
                if (r == 0) {
                    sim_sync(sim, r);
                } else {
                    sim_stuck(sim, r);
                }
            }
            char lone[64];
            snprintf(lone, sizeof(lone), LONE "1-%u", sizes[i] - 1);
            scene_expect_after(sim, 40, known ? SICK : lone);
            if (known) {
                char *text = sim_run(sim, 0, false, true);
                assert_non_null(strstr(text, "Rank 0 has left it"));
                free(text);
            }
            sim_destroy(&sim);
        }
    }
}

static void test_a_root_that_has_left_says_nothing_of_the_call(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim);
    scene_waited_calls(sim, w, 5);
    for (uint32_t r = 0; r < 4; r++) {
        struct roll_record *rec = sim_call(sim, r, w, AR, 512);
        rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_COMPLETE);
        sim_call(sim, r, w, ROLL_OP_BROADCAST, 512);
        if (r == 0) {
            sim_sync(sim, r);
        } else {
            sim_stuck(sim, r);
        }
    }
    scene_expect_after(sim, 200, LONE "1-3");
    sim_destroy(&sim);
}

static void test_others_who_wait_for_its_ranks_are_one_cause(void **state)
{
    (void)state;
    struct sim *sim = sim_new(6);
    uint32_t w = sim_world(sim), pair = sim_comm(sim, "pair", (uint32_t[]){0, 3}, 2);
    scene_waited_calls(sim, w, 5);
    sim_all(sim, pair, AR, 64);
    for (uint32_t r = 0; r < 6; r++) {
        if (r != 0 && r != 3) {
            sim_call(sim, r, w, AR, 512);
        }
        sim_stuck(sim, r);
    }
    scene_expect_after(sim, 15, "");
    scene_expect_after(sim, 60, SICK);
    char *text = sim_run(sim, 0, false, true);
    assert_non_null(strstr(text, "communicator pair"));
    free(text);
    sim_destroy(&sim);
}

/* The others have gone on and wait for the one that waits in it: nobody is known to have left it. */
static void test_some_have_gone_on_to_the_next_call(void **state)
{
    (void)state;
    for (size_t i = 1; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim);
        scene_waited_calls(sim, w, 5);
        sim_all(sim, w, AR, 512);
        for (uint32_t r = 0; r < sim->ranks; r++) {
            if (r > 0) {
                sim_call(sim, r, w, AR, 512);
            }
            sim_stuck(sim, r);
        }
        scene_expect_after(sim, 18, "");
        scene_expect_after(sim, 60, SICK);
        sim_destroy(&sim);
    }
}

static void test_what_is_missing_is_told_as_before(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim);
    scene_waited_calls(sim, w, 5);
    for (uint32_t r = 0; r < 3; r++) {
        sim_call(sim, r, w, AR, 512);
        sim_stuck(sim, r);
    }
    scene_expect_after(sim, 100, "suspected rank-busy 3");
    sim_destroy(&sim);
}

static void test_hosts_that_stay_inside_the_call_are_told(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim);
    for (uint32_t r = 0; r < 4; r++) {
        struct roll_record *rec = sim_call(sim, r, w, AR, 512);
        rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
    }
    scene_expect_after(sim, 58, "");
    scene_expect_after(sim, 100, SICK);
    sim_destroy(&sim);
}

static void test_a_message_for_which_both_ends_wait_is_told(void **state)
{
    (void)state;
    for (int sick = 0; sick < 2; sick++) {
        struct sim *sim = sim_new(3);
        uint32_t w = sim_world(sim);
        scene_waited_calls(sim, w, 5);
        sim_send(sim, 0, w, 1, 64);
        sim_recv(sim, 1, w, 0, 64);
        if (sick) {
            sim_stuck(sim, 0);
        } else {
            sim_sync(sim, 0);
        }
        sim_stuck(sim, 1);
        scene_expect_after(sim, 100, sick ? SICK : LONE "1");
        sim_destroy(&sim);
    }
}

static void test_the_stream_of_the_wait_matters(void **state)
{
    (void)state;
    /* 0: waits for a stream without NCCL calls, which may wait for the others by events. 1: one that has its own. */
    for (int own = 0; own < 2; own++) {
        struct sim *sim = sim_new(4);
        uint32_t w = sim_world(sim), two = sim_comm(sim, "two", NULL, 4);
        scene_waited_calls(sim, w, 5);
        sim_all(sim, w, AR, 512);
        for (uint32_t r = 0; r < 4; r++) {
            if (own) { /* over: a wait for this stream has come back */
                sim_call(sim, r, two, AR, 64)->stream = 3;
                sim_sync(sim, r)->stream = 3;
            }
            sim_stuck(sim, r)->stream = 3;
        }
        scene_expect_after(sim, 100, own ? LONE "0-3" : SICK);
        sim_destroy(&sim);
    }
}

static void test_calls_behind_it_are_mentioned(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim);
    scene_waited_calls(sim, w, 5);
    for (int i = 0; i < 3; i++) {
        sim_all(sim, w, AR, 512);
    }
    scene_all_stuck(sim, w);
    scene_expect_after(sim, 40, SICK);
    char *text = sim_run(sim, 0, false, true);
    assert_non_null(strstr(text, ", #5;"));
    assert_non_null(strstr(text, "one of the 3 calls"));
    free(text);
    sim_destroy(&sim);
}

static void test_a_creation_that_all_have_entered_and_none_leaves_is_told(void **state)
{
    (void)state;
    for (int sick = 0; sick < 2; sick++) {
        struct sim *sim = sim_new(4);
        uint32_t w = sim_world(sim);
        for (uint32_t r = 0; r < 4; r++) {
            struct roll_record *rec = sim_record(sim, r, ROLL_OP_COMM_INIT, w);
            rec->count = 4;
            rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
        }
        if (!sick) {
            sim_return(sim, 2);
        }
        scene_expect_after(sim, 115, "");
        scene_expect_after(sim, 130, sick ? SICK : "");
        sim_destroy(&sim);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_arrived_and_none_left),
        cmocka_unit_test(test_the_first_waits_get_more_patience),
        cmocka_unit_test(test_long_waits_before_make_patient),
        cmocka_unit_test(test_who_has_left_makes_it_a_matter_of_kernels),
        cmocka_unit_test(test_a_rank_that_is_elsewhere_stands_in_no_call),
        cmocka_unit_test(test_completion_tells_who_is_left_in_it),
        cmocka_unit_test(test_a_root_that_has_left_says_nothing_of_the_call),
        cmocka_unit_test(test_others_who_wait_for_its_ranks_are_one_cause),
        cmocka_unit_test(test_some_have_gone_on_to_the_next_call),
        cmocka_unit_test(test_what_is_missing_is_told_as_before),
        cmocka_unit_test(test_hosts_that_stay_inside_the_call_are_told),
        cmocka_unit_test(test_a_message_for_which_both_ends_wait_is_told),
        cmocka_unit_test(test_the_stream_of_the_wait_matters),
        cmocka_unit_test(test_calls_behind_it_are_mentioned),
        cmocka_unit_test(test_a_creation_that_all_have_entered_and_none_leaves_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
