/*
 * test_engine_stuck_elsewhere.c: a collective that all have entered and none leaves, beside trouble elsewhere and
 * trouble that is over: it explains the wait only where the waiters depend on it.
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

/* trouble elsewhere, and trouble that is over: it explains a wait only where the waiters depend on it */

#define AR        ROLL_OP_ALLREDUCE
#define SICK      "suspected collective-stuck -"
#define OLD_STEPS 300u

/* What has been lost is over when the host has come back from a wait behind it, and not before. */
static void test_a_record_lost_long_ago_explains_nothing(void **state)
{
    (void)state;
    for (int over = 0; over < 2; over++) {
        struct sim *sim = sim_new(4);
        uint32_t w = sim_world(sim);
        scene_waited_calls(sim, w, over ? 3 : OLD_STEPS);
        sim_lose(sim, 1, 1);
        if (over) {
            scene_waited_calls(sim, w, OLD_STEPS);
        } else {
            sim_all(sim, w, AR, 512);
        }
        scene_all_stuck(sim, w);
        scene_expect_after(sim, 100, over ? SICK : "");
        sim_destroy(&sim);
    }
}

/* Other streams: what was lost may have been a call there, and the stream that is waited for may wait for it by an
 * event. */
static void test_a_wait_for_one_stream_does_not_end_a_loss_on_another(void **state)
{
    (void)state;
    for (uint32_t later = 5; later <= 305; later += 300) {
        struct sim *sim = sim_new(4);
        uint32_t w = sim_world(sim), two = sim_comm(sim, "two", NULL, 4);
        scene_waited_calls(sim, w, 5);
        for (uint32_t r = 0; r < 4; r++) {
            sim_call(sim, r, two, AR, 64)->stream = 3;
            sim_record(sim, r, ROLL_OP_DEVICE_SYNC, 0);
        }
        sim_lose(sim, 1, 1);
        scene_waited_calls(sim, w, later);
        scene_all_stuck(sim, w);
        scene_expect_after(sim, 100, later > 100 ? SICK : "");
        sim_destroy(&sim);
    }
}

/* Rank 4 shares a communicator with rank 3 only and dies early. 0-2: nobody has to do with it. 0-3: rank 3 has come
 * back from all it had called there, or not. */
static void test_a_rank_that_died_elsewhere_explains_nothing(void **state)
{
    (void)state;
    for (uint32_t members = 3; members <= 4; members++) {
        for (int through = 0; through < 2; through++) {
            struct sim *sim = sim_new(5);
            uint32_t a = sim_comm(sim, "a", NULL, members), b = sim_comm(sim, "b", (uint32_t[]){3, 4}, 2);
            for (uint32_t i = 0; i < 20; i++) {
                for (uint32_t r = 0; r < members; r++) {
                    sim_call(sim, r, a, AR, 512);
                    sim_sync(sim, r);
                }
            }
            sim_all(sim, b, AR, 8);
            if (through) {
                sim_sync(sim, 3);
            }
            sim_proc(sim, 4, ROLL_PROC_DEAD, SIM_SIGNAL(9));
            for (uint32_t r = 0; r < members; r++) {
                sim_call(sim, r, a, AR, 512);
                sim_stuck(sim, r);
            }
            bool silent = members == 4 && !through;
            scene_expect_after(sim, 100, silent ? "proven rank-dead 4" : "proven rank-dead 4; " SICK);
            sim_destroy(&sim);
        }
    }
}

/* Rank 3 has aborted what rank 2 keeps: rank 2 is through with its calls there, or not. */
static void test_an_abort_of_one_side_explains_a_wait_until_the_other_is_through(void **state)
{
    (void)state;
    for (int through = 0; through < 2; through++) {
        struct sim *sim = sim_new(4);
        uint32_t w = sim_world(sim), b = sim_comm(sim, "b", (uint32_t[]){2, 3}, 2);
        scene_waited_calls(sim, w, 5);
        sim_all(sim, b, AR, 5);
        if (through) {
            sim_sync(sim, 2);
        }
        sim_sync(sim, 3);
        sim_record(sim, 3, ROLL_OP_COMM_ABORT, b);
        if (through) {
            scene_waited_calls(sim, w, 30);
        }
        scene_all_stuck(sim, w);
        scene_expect_after(sim, 100, through ? SICK : "");
        sim_destroy(&sim);
    }
}

/* What was found and hangs nothing is no reason to wait, and neither is what was found of calls that are over. */
static void test_findings_that_hang_nothing_explain_no_wait(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim);
    for (uint32_t i = 0; i < 50; i++) {
        for (uint32_t r = 0; r < 4; r++) {
            struct roll_record *rec = sim_call(sim, r, w, AR, 9);
            rec->redop = r == 1 && i == 3 ? ROLL_RED_MAX : rec->redop;
            sim_sync(sim, r);
        }
    }
    scene_all_stuck(sim, w);
    scene_expect_after(sim, 150, "proven redop-mismatch 1; " SICK);
    sim_destroy(&sim);
    sim = sim_new(4); /* at every step, the last one too */
    w = sim_world(sim);
    for (uint32_t i = 0; i < 51; i++) {
        for (uint32_t r = 0; r < 4; r++) {
            struct roll_record *rec = sim_call(sim, r, w, AR, 9);
            rec->redop = r == 1 ? ROLL_RED_MAX : rec->redop;
            if (i < 50) {
                sim_sync(sim, r);
            } else {
                sim_stuck(sim, r);
            }
        }
    }
    scene_expect_after(sim, 150, "proven redop-mismatch 1; " SICK);
    sim_destroy(&sim);
    sim = sim_new(4);
    w = sim_world(sim);
    uint32_t b = sim_comm(sim, "b", NULL, 2);
    for (uint32_t r = 0; r < 2; r++) {
        if (r == 0) {
            sim_group(sim, r);
        }
        sim_call(sim, r, b, AR, 5);
        sim_call(sim, r, b, AR, 6);
        if (r == 0) {
            sim_group_end(sim, r);
        }
        sim_sync(sim, r);
    }
    scene_waited_calls(sim, w, 30);
    scene_all_stuck(sim, w);
    scene_expect_after(sim, 150, SICK "; suspected group-mismatch -");
    sim_destroy(&sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_record_lost_long_ago_explains_nothing),
        cmocka_unit_test(test_a_wait_for_one_stream_does_not_end_a_loss_on_another),
        cmocka_unit_test(test_a_rank_that_died_elsewhere_explains_nothing),
        cmocka_unit_test(test_an_abort_of_one_side_explains_a_wait_until_the_other_is_through),
        cmocka_unit_test(test_findings_that_hang_nothing_explain_no_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
