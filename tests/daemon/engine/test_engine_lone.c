/*
 * test_engine_lone.c: a rank stays in a call of its own, and nobody waits for it; and what looks alike and is healthy,
 * or is another matter: calls that end, threads that go on, ranks for which others wait, trouble elsewhere.
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

static const uint32_t sizes[] = {2, 3, 4, 8, 64};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))
#define AR    ROLL_OP_ALLREDUCE

/* The rank has entered such a call. */
static struct roll_record *enters(struct sim *sim, uint32_t rank, enum roll_op op, uint32_t comm)
{
    struct roll_record *rec = sim_record(sim, rank, op, comm);
    rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
    return rec;
}

/* The rank comes back from the call, so much later. */
static void comes_back(struct sim *sim, uint32_t rank, struct roll_record entered, uint64_t later_ns)
{
    sim_pass(sim, rank, later_ns);
    struct roll_record *rec = sim_record(sim, rank, entered.op, UINT32_MAX);
    sim->rank[rank].ticket--;
    *rec = entered;
    rec->call_ns = UINT32_MAX;
    rec->seal = roll_seal(roll_seal_ticket(entered.seal), ROLL_STATE_RETURNED);
}

static void expect_rank(struct sim *sim, uint64_t seconds, const char *code, uint32_t rank)
{
    char want[64];
    snprintf(want, sizeof(want), "%s %u", code, rank);
    scene_expect_after(sim, seconds, want);
}

/* All have come back from all they had called, and the last rank enters a call that does not return. */
static void test_a_rank_by_itself_is_told_after_its_patience(void **state)
{
    (void)state;
    static const enum roll_op ops[] = {ROLL_OP_STREAM_SYNC,  ROLL_OP_DEVICE_SYNC,  ROLL_OP_EVENT_SYNC,
                                       ROLL_OP_FREE,         ROLL_OP_COPY,         ROLL_OP_COMM_FINALIZE,
                                       ROLL_OP_COMM_DESTROY, ROLL_OP_COMM_SUSPEND, ROLL_OP_EXT_GROUPED_GEMM,
                                       ROLL_OP_COMM_SHRINK};
    for (size_t i = 0; i < SIZES; i++) {
        for (size_t k = 0; k < sizeof(ops) / sizeof(ops[0]); k++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), last = sizes[i] - 1;
            scene_waited_calls(sim, w, 2);
            enters(sim, last, ops[k], roll_op_class(ops[k]) == ROLL_CLASS_COMM ? w : UINT32_MAX);
            if (i > 0 && i < 4) {
                scene_expect_after(sim, 58, "");
            }
            expect_rank(sim, 70, "suspected rank-stuck", last);
            sim_destroy(&sim);
        }
    }
}

static void test_the_text_says_what_is_known(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim);
    scene_waited_calls(sim, w, 5);
    enters(sim, 3, ROLL_OP_COMM_DESTROY, w);
    sim->patience_ns = 70 * S_;
    char *text = sim_run(sim, 0, false, true);
    assert_non_null(strstr(text, "Rank 3 has been inside CommDestroy on communicator"));
    assert_non_null(strstr(text, " s: host node0 (rank 3)"));
    assert_non_null(strstr(text, "no other rank waits for it"));
    assert_non_null(strstr(text, "ranks 0-2 have not begun to end it"));
    free(text);
    sim_destroy(&sim);
    sim = sim_new(2);
    w = sim_world(sim);
    scene_waited_calls(sim, w, 5);
    sim_record(sim, 0, ROLL_OP_WAITSIGNAL, w);
    enters(sim, 0, ROLL_OP_FREE, UINT32_MAX);
    sim->patience_ns = 70 * S_;
    text = sim_run(sim, 0, false, true);
    assert_non_null(strstr(text, "inside cudaFree for"));
    assert_non_null(strstr(text, "One-sided calls came before it"));
    free(text);
    sim_destroy(&sim);
}

/* A place at which waits have returned three times is known, and four times suspect_ns are enough there. */
static void test_a_known_place_needs_less_patience(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t w = sim_world(sim);
    scene_waited_calls(sim, w, 5);
    sim_stuck(sim, 1);
    scene_expect_after(sim, 19, "");
    scene_expect_after(sim, 30, "suspected rank-stuck 1");
    sim_destroy(&sim);
}

static void test_a_call_on_a_communicator_of_its_own(void **state)
{
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        for (int all = 0; all < 2; all++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), last = sizes[i] - 1;
            char want[64];
            scene_waited_calls(sim, w, 5);
            for (uint32_t r = all ? 0 : last; r <= last; r++) {
                uint32_t own = sim_comm(sim, "own", &r, 1);
                struct roll_record *rec = sim_call(sim, r, own, AR, 64);
                rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
            }
            snprintf(want, sizeof(want), all ? "suspected rank-stuck 0-%u" : "suspected rank-stuck %u", last);
            scene_expect_after(sim, 70, want);
            sim_destroy(&sim);
        }
    }
}

/* What returns in time is told at no time; what returns later is told, and taken back, also where the process ends
 * before anybody has looked. */
static void test_a_call_that_ends_is_taken_back(void **state)
{
    (void)state;
    static const enum roll_op ops[] = {ROLL_OP_STREAM_SYNC, ROLL_OP_FREE, ROLL_OP_COMM_DESTROY};
    char said[STORY_SAID];
    for (size_t i = 0; i < 4; i++) {
        for (size_t k = 0; k < sizeof(ops) / sizeof(ops[0]); k++) {
            struct story t;
            story_open(&t, sizes[i], (uint32_t)k);
            uint32_t w = sim_world(t.sim), last = sizes[i] - 1;
            char want[64];
            scene_waited_calls(t.sim, w, 2);
            enters(t.sim, last, ops[k], w);
            story_pass(&t, 50 * S_);
            story_return(&t, last);
            story_pass(&t, 50 * S_);
            assert_string_equal(story_said(&t, ROLL_VERDICT_RANK_STUCK, said), "");
            enters(t.sim, last, ops[k], w);
            story_pass(&t, 70 * S_);
            if (roll_op_class(ops[k]) == ROLL_CLASS_SYNC) { /* a wait that took 50 s gets five times as long */
                assert_string_equal(story_said(&t, ROLL_VERDICT_RANK_STUCK, said), "");
                story_pass(&t, 200 * S_);
            }
            snprintf(want, sizeof(want), "suspected rank-stuck %u", last);
            assert_string_equal(story_said(&t, ROLL_VERDICT_RANK_STUCK, said), want);
            story_return(&t, last);
            if (i % 2 != 0) {
                sim_proc(t.sim, last, ROLL_PROC_FINISHED, SIM_EXIT(0));
            }
            story_pass(&t, S_);
            assert_string_equal(story_said(&t, ROLL_VERDICT_RANK_STUCK, said), "withdrawn rank-stuck");
            story_close(&t);
        }
    }
}

/* A wait that took long gets five times as long again. */
static void test_a_long_call_makes_patient(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t w = sim_world(sim);
    scene_waited_calls(sim, w, 2);
    struct roll_record in = *enters(sim, 2, ROLL_OP_COMM_FINALIZE, w);
    comes_back(sim, 2, in, 65 * S_);
    enters(sim, 2, ROLL_OP_COMM_DESTROY, w);
    sim->patience_ns = 300 * S_;
    char *got = sim_run(sim, 0, false, false);
    assert_string_equal(got, "");
    free(got);
    scene_expect_after(sim, 340, "suspected rank-stuck 2");
    sim_destroy(&sim);
}

/* Many ranks at one place are one finding; when most have come back, the others are named alone. */
static void test_many_ranks_are_one_finding(void **state)
{
    (void)state;
    for (size_t i = 1; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim), last = sizes[i] - 1;
        char want[64];
        scene_waited_calls(sim, w, 2);
        struct roll_record in[64];
        for (uint32_t r = 0; r <= last; r++) {
            in[r] = *enters(sim, r, ROLL_OP_FREE, UINT32_MAX);
        }
        snprintf(want, sizeof(want), "suspected rank-stuck 0-%u", last);
        scene_expect_after(sim, 70, want);
        for (uint32_t r = 0; r < last; r++) {
            comes_back(sim, r, in[r], r == 0 ? 70 * S_ : 0);
        }
        sim->patience_ns = 20 * S_;
        snprintf(want, sizeof(want), "suspected rank-stuck %u", last);
        char *got = sim_run(sim, 0, false, false);
        assert_string_equal(got, want);
        free(got);
        sim_destroy(&sim);
    }
}

/* Ranks that get there much later join the finding, which stays one. */
static void test_later_ranks_join(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim);
    scene_waited_calls(sim, w, 2);
    for (uint32_t r = 0; r < 4; r++) {
        sim_pass(sim, r, 30 * S_);
        enters(sim, r, ROLL_OP_FREE, UINT32_MAX);
    }
    scene_expect_after(sim, 120, "suspected rank-stuck 0-3");
    sim_destroy(&sim);
}

static void test_places_of_the_program_are_told_apart(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim);
    scene_waited_calls(sim, w, 2);
    for (uint32_t r = 0; r < 4; r++) {
        sim->site = r < 2 ? 11 : 12;
        enters(sim, r, ROLL_OP_FREE, UINT32_MAX);
    }
    scene_expect_after(sim, 70, "suspected rank-stuck 0-1; suspected rank-stuck 2-3");
    sim_destroy(&sim);
}

/* Others wait for the rank: that is told, earlier, and nothing else. */
static void test_a_rank_for_which_others_wait_is_another_matter(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim), last = sizes[i] - 1;
        scene_waited_calls(sim, w, 5);
        for (uint32_t r = 0; r < last; r++) {
            sim_call(sim, r, w, AR, 512);
            sim_stuck(sim, r);
        }
        enters(sim, last, ROLL_OP_FREE, UINT32_MAX);
        expect_rank(sim, 100, "suspected rank-blocked", last);
        sim_destroy(&sim);
    }
}

/* A message, and a split, for which another rank waits. */
static void test_messages_and_splits_are_waited_for_too(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t w = sim_world(sim);
    scene_waited_calls(sim, w, 5);
    sim_recv(sim, 0, w, 2, 64);
    sim_stuck(sim, 0);
    enters(sim, 2, ROLL_OP_FREE, UINT32_MAX);
    scene_expect_after(sim, 100, "suspected rank-blocked 2");
    sim_destroy(&sim);
    sim = sim_new(3);
    w = sim_world(sim);
    scene_waited_calls(sim, w, 5);
    for (uint32_t r = 0; r < 2; r++) {
        enters(sim, r, ROLL_OP_COMM_SPLIT, w);
    }
    enters(sim, 2, ROLL_OP_FREE, UINT32_MAX);
    sim->patience_ns = 100 * S_;
    char *got = sim_run(sim, 0, false, false);
    assert_null(strstr(got, "rank-stuck"));
    free(got);
    sim_destroy(&sim);
}

/* The rank has been told when another one comes to wait for it: then only that is told. */
static void test_who_comes_to_wait_for_it_makes_it_blocked(void **state)
{
    (void)state;
    char said[STORY_SAID];
    for (size_t i = 0; i < 4; i++) {
        struct story t;
        story_open(&t, sizes[i], 0);
        uint32_t w = sim_world(t.sim), last = sizes[i] - 1;
        char want[64];
        scene_waited_calls(t.sim, w, 5);
        enters(t.sim, last, ROLL_OP_FREE, UINT32_MAX);
        story_pass(&t, 70 * S_);
        snprintf(want, sizeof(want), "suspected rank-stuck %u", last);
        assert_string_equal(story_said(&t, ROLL_VERDICT_RANK_STUCK, said), want);
        for (uint32_t r = 0; r < last; r++) {
            sim_call(t.sim, r, w, AR, 512);
            sim_stuck(t.sim, r);
        }
        story_pass(&t, 20 * S_);
        snprintf(want, sizeof(want), "suspected rank-blocked %u", last);
        assert_string_equal(story_said(&t, ROLL_VERDICT_RANK_STUCK, said), want);
        struct roll_engine_summary sum;
        roll_engine_summary(t.e, &sum);
        assert_int_equal(sum.findings, 1);
        story_close(&t);
    }
}

/* Another thread of the rank goes on: the rank does not hang. */
static void test_a_rank_of_which_another_thread_goes_on_says_nothing(void **state)
{
    (void)state;
    struct sim *sim = sim_new(2);
    uint32_t w = sim_world(sim);
    scene_waited_calls(sim, w, 2);
    enters(sim, 1, ROLL_OP_STREAM_SYNC, UINT32_MAX)->stream = 7;
    for (int k = 0; k < 12; k++) {
        sim_pass(sim, 1, 10 * S_);
        struct roll_record *rec = sim_sync(sim, 1);
        rec->thread = 2;
        rec->stream = 8;
    }
    scene_expect_after(sim, 15, "");
    sim_destroy(&sim);
}

/* Trouble that is known may be why the rank is there. */
static void test_trouble_that_is_known_says_enough(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        struct sim *sim = sim_new(4);
        uint32_t w = sim_world(sim);
        scene_waited_calls(sim, w, 2);
        sim_all(sim, w, AR, 512);
        enters(sim, 3, ROLL_OP_FREE, UINT32_MAX);
        if (kind == 0) {
            sim_proc(sim, 3, ROLL_PROC_STOPPED, ROLL_EXIT_UNKNOWN);
        } else if (kind == 1) {
            sim_lose(sim, 2, 5);
        } else if (kind == 2) {
            sim_proc(sim, 1, ROLL_PROC_DEAD, SIM_SIGNAL(9));
        } else {
            sim_call(sim, 1, w, AR, 100);
            sim_call(sim, 2, w, AR, 200);
            sim_call(sim, 0, w, AR, 100);
        }
        sim->patience_ns = 100 * S_;
        for (uint32_t order = 0; order < SIM_ORDERS; order++) {
            char *got = sim_run(sim, order, false, false);
            assert_null(strstr(got, "rank-stuck"));
            free(got);
        }
        sim_destroy(&sim);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rank_by_itself_is_told_after_its_patience),
        cmocka_unit_test(test_the_text_says_what_is_known),
        cmocka_unit_test(test_a_known_place_needs_less_patience),
        cmocka_unit_test(test_a_call_on_a_communicator_of_its_own),
        cmocka_unit_test(test_a_call_that_ends_is_taken_back),
        cmocka_unit_test(test_a_long_call_makes_patient),
        cmocka_unit_test(test_many_ranks_are_one_finding),
        cmocka_unit_test(test_later_ranks_join),
        cmocka_unit_test(test_places_of_the_program_are_told_apart),
        cmocka_unit_test(test_a_rank_for_which_others_wait_is_another_matter),
        cmocka_unit_test(test_messages_and_splits_are_waited_for_too),
        cmocka_unit_test(test_who_comes_to_wait_for_it_makes_it_blocked),
        cmocka_unit_test(test_a_rank_of_which_another_thread_goes_on_says_nothing),
        cmocka_unit_test(test_trouble_that_is_known_says_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
