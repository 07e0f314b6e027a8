/*
 * test_engine_stuck_elsewhere.c: a collective that all have entered and none leaves, beside trouble elsewhere and
 * trouble that is over: it explains the wait only where the waiters depend on it.
 */
#include "tests/daemon/engine/story.h"

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

/* The rank polls its stream for so long already, and tells it once more; *before: what it told last. */
static void polls_on(struct story *t, uint32_t rank, uint32_t ms, struct roll_record *before)
{
    struct roll_record *rec = sim_record(t->sim, rank, ROLL_OP_STREAM_QUERY, UINT32_MAX);
    rec->seq = ms;
    rec->aux = UINT16_MAX; /* so often */
    rec->result = 2;
    struct roll_record returned = *rec;
    rec->result = 0;
    rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
    if (before->seal != 0) {
        sim_pass(t->sim, rank, 0);
        struct sim_rank *r = &t->sim->rank[rank];
        r->event[r->events - 1] = (struct sim_event){.kind = SIM_RECORD, .rec = *before};
    }
    *before = returned;
}

/* Two ranks stand in a call behind one that differs. All poll, for longer than an engine remembers calls: it is told
 * once, and never that the call behind it is stuck. Where nothing differs it is. */
static void test_a_trouble_explains_also_when_polls_are_all_that_is_remembered(void **state)
{
    (void)state;
    static const uint32_t left[] = {0, 1}, right[] = {1, 2};
    for (int differ = 0; differ < 2; differ++) {
        char said[STORY_SAID], all[STORY_SAID] = "";
        struct roll_record before[3] = {{0}};
        struct story t;
        story_open(&t, 3, 0);
        uint32_t a = sim_comm(t.sim, "a", left, 2), b = sim_comm(t.sim, "b", right, 2);
        for (uint32_t n = 1; n <= 3; n++) {
            sim_call(t.sim, 0, a, AR, 10 * n);
            sim_call(t.sim, 1, a, AR, 10 * (n + (differ && n > 1)));
        }
        sim_call(t.sim, 1, b, AR, 64);
        sim_call(t.sim, 2, b, AR, 64);
        for (uint32_t n = 0, ms = 100; n < 280; n++) {
            for (uint32_t r = 0; r < 3; r++) {
                polls_on(&t, r, ms, &before[r]);
            }
            uint32_t again = ms >= 60000 ? ms / 60 : ms >= 5000 ? 1000 : ms >= 1000 ? ms / 5 : 200;
            story_pass(&t, again * (S_ / 1000));
            ms += again;
            size_t used = strlen(all);
            snprintf(all + used, sizeof(all) - used, "%s", story_said(&t, 0, said));
        }
        assert_string_equal(all, differ ? "suspected sequence-tie -" : SICK);
        story_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_record_lost_long_ago_explains_nothing),
        cmocka_unit_test(test_a_wait_for_one_stream_does_not_end_a_loss_on_another),
        cmocka_unit_test(test_a_rank_that_died_elsewhere_explains_nothing),
        cmocka_unit_test(test_an_abort_of_one_side_explains_a_wait_until_the_other_is_through),
        cmocka_unit_test(test_findings_that_hang_nothing_explain_no_wait),
        cmocka_unit_test(test_a_trouble_explains_also_when_polls_are_all_that_is_remembered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
