/*
 * test_engine_wait.c: ranks that do not come: dead, ended, stopped, busy, blocked. Each with its healthy twin.
 */
#include "tests/daemon/engine/scenes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t sizes[] = {2, 3, 4, 8, 64};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))
#define AR    ROLL_OP_ALLREDUCE

/* All but the last rank go on and wait for ever. */
static void others_wait(struct sim *sim, uint32_t w)
{
    for (uint32_t r = 0; r + 1 < sim->ranks; r++) {
        sim_call(sim, r, w, AR, 512);
        sim_call(sim, r, w, AR, 512);
        sim_stuck(sim, r);
    }
}

static void expect_last(struct sim *sim, const char *what)
{
    char want[128];
    snprintf(want, sizeof(want), "%s %u", what, sim->ranks - 1);
    sim_expect(sim, want);
}

static void test_dead_rank_is_named_with_its_signal(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim);
        scene_calls(sim, w, 5);
        others_wait(sim, w);
        sim_proc(sim, sizes[i] - 1, ROLL_PROC_DEAD, SIM_SIGNAL(SIGKILL));
        expect_last(sim, "proven rank-dead");
        char *text = sim_run(sim, 0, false, true);
        assert_non_null(strstr(text, "signal 9"));
        free(text);
        sim_destroy(&sim);
    }
}

static void test_death_of_all_is_a_note(void **state)
{
    (void)state;
    for (int status = 0; status < 2; status++) {
        struct sim *sim = sim_new(4);
        uint32_t w = sim_world(sim);
        scene_calls(sim, w, 5);
        for (uint32_t r = 0; r < 4; r++) {
            sim_call(sim, r, w, AR, 512);
            sim_stuck(sim, r);
            sim_proc(sim, r, ROLL_PROC_DEAD, status ? SIM_SIGNAL(SIGTERM) : ROLL_EXIT_UNKNOWN);
        }
        sim->finish = true;
        sim_expect(sim, "");
        char *all = sim_run(sim, 0, true, false);
        assert_string_equal(all, "note rank-dead -");
        free(all);
        sim_destroy(&sim);
    }
}

static void test_death_after_destroy_is_nobodys_business(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t w = sim_world(sim);
    scene_calls(sim, w, 5);
    for (uint32_t r = 0; r < 3; r++) {
        sim_record(sim, r, ROLL_OP_COMM_DESTROY, w);
    }
    sim_proc(sim, 1, ROLL_PROC_DEAD, SIM_SIGNAL(SIGSEGV));
    sim_expect(sim, "");
    sim_destroy(&sim);
}

static void test_ended_rank_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim);
        scene_calls(sim, w, 5);
        others_wait(sim, w);
        sim_proc(sim, sizes[i] - 1, ROLL_PROC_FINISHED, SIM_EXIT(0));
        if (sizes[i] == 2) {
            sim_expect(sim, "proven rank-finished -"); /* one ended, one called once more: a tie */
        } else {
            expect_last(sim, "proven rank-finished");
        }
        sim_destroy(&sim);
    }
}

/* Between as many that wait as have ended, an exit code that says failure names those that have ended. Code 0, a status
 * that is not known and a signal after exit() has begun do not, and a failure beside a good end does not. */
static void test_exit_code_of_a_failure_settles_a_tie(void **state)
{
    (void)state;
    static const struct {
        uint32_t ranks;
        int32_t last, before; /* how the last rank ends; how the one before it does, among four */
        enum roll_proc_state proc;
        const char *want;
    } rows[] = {
        {2, SIM_EXIT(1), 0, ROLL_PROC_FINISHED, "proven rank-finished 1"},
        {2, SIM_EXIT(0), 0, ROLL_PROC_FINISHED, "proven rank-finished -"},
        {2, ROLL_EXIT_UNKNOWN, 0, ROLL_PROC_FINISHED, "proven rank-finished -"},
        {2, SIM_SIGNAL(SIGSEGV), 0, ROLL_PROC_FINISHED, "proven rank-finished -"},
        {2, SIM_SIGNAL(SIGSEGV), 0, ROLL_PROC_DEAD, "proven rank-dead 1"},
        {2, SIM_EXIT(1), 0, ROLL_PROC_DEAD, "proven rank-dead 1"},
        {4, SIM_EXIT(1), SIM_EXIT(2), ROLL_PROC_FINISHED, "proven rank-finished 2-3"},
        {4, SIM_EXIT(1), SIM_EXIT(0), ROLL_PROC_FINISHED, "proven rank-finished -"},
    };
    /* Most have failed: that they are many does not make the one that waits wrong. Who has ended in order votes. */
    static const struct {
        int32_t exit[3];
        const char *want;
    } many[] = {
        {{SIM_EXIT(1), SIM_EXIT(1), SIM_EXIT(1)}, "proven rank-finished 1-3"},
        {{SIM_EXIT(0), SIM_EXIT(0), SIM_EXIT(0)}, "proven call-added 0"},
        {{SIM_EXIT(0), SIM_EXIT(0), SIM_EXIT(1)}, "proven rank-finished -"},
        {{SIM_EXIT(0), SIM_EXIT(1), SIM_EXIT(1)}, "proven rank-finished -"},
    };
    for (size_t i = 0; i < sizeof(many) / sizeof(many[0]); i++) {
        struct sim *sim = sim_new(4);
        uint32_t w = sim_world(sim);
        scene_calls(sim, w, 5);
        sim_call(sim, 0, w, AR, 512);
        sim_stuck(sim, 0);
        for (uint32_t r = 1; r < 4; r++) {
            sim_proc(sim, r, ROLL_PROC_FINISHED, many[i].exit[r - 1]);
        }
        sim_expect(sim, many[i].want);
        sim_destroy(&sim);
    }
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint32_t n = rows[i].ranks, waiting = n / 2;
        struct sim *sim = sim_new(n);
        uint32_t w = sim_world(sim);
        scene_calls(sim, w, 5);
        for (uint32_t r = 0; r < waiting; r++) {
            sim_call(sim, r, w, AR, 512);
            sim_stuck(sim, r);
        }
        for (uint32_t r = waiting; r < n; r++) {
            sim_proc(sim, r, rows[i].proc, r == n - 1 ? rows[i].last : rows[i].before);
        }
        sim_expect(sim, rows[i].want);
        char *text = sim_run(sim, 0, false, true);
        bool tie = rows[i].want[strlen(rows[i].want) - 1] == '-';
        assert_int_equal(strstr(text, "do not say which side is wrong") != NULL, tie);
        free(text);
        sim_destroy(&sim);
    }
}

static void test_orderly_end_is_healthy(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim);
    scene_calls(sim, w, 5);
    for (uint32_t r = 0; r < 4; r++) {
        sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(0));
    }
    sim->finish = true;
    sim_expect(sim, "");
    sim_destroy(&sim);
}

/* A process takes along what it had enqueued and nobody has seen done. Its records may show that it was done, in other
 * ways than by a wait: here its peer is heard late, and waits no more. */
static void test_what_is_known_to_be_over_did_not_end_with_the_process(void **state)
{
    (void)state;
    enum { NOTHING, DESTROYED, DESTROYED_OTHER, BEHIND_IT, BEHIND_IT_ELSEWHERE, GROUP, SHOWS };
    for (int shows = 0; shows < SHOWS; shows++) {
        struct sim *sim = sim_new(2);
        uint32_t w = sim_world(sim), v = sim_comm(sim, "v", NULL, 2);
        for (uint32_t r = 0; r < 2; r++) {
            if (shows == GROUP) {
                sim_group(sim, r);
            }
            sim_call(sim, r, w, AR, 100)->stream = 5;
            if (shows == GROUP) {
                sim_group_end(sim, r);
                struct roll_record *end = &sim->rank[r].event[sim->rank[r].events - 1].rec;
                end->seal = roll_seal(roll_seal_ticket(end->seal), r == 1 ? ROLL_STATE_COMPLETE : ROLL_STATE_RETURNED);
            } else if (shows == BEHIND_IT || shows == BEHIND_IT_ELSEWHERE) {
                struct roll_record *rec = sim_call(sim, r, v, AR, 100);
                rec->stream = shows == BEHIND_IT ? 5 : 6;
                rec->seal = roll_seal(roll_seal_ticket(rec->seal), r == 1 ? ROLL_STATE_COMPLETE : ROLL_STATE_RETURNED);
            }
        }
        if (shows == DESTROYED || shows == DESTROYED_OTHER) {
            sim_record(sim, 1, ROLL_OP_COMM_DESTROY, shows == DESTROYED ? w : v);
        }
        sim_proc(sim, 1, ROLL_PROC_FINISHED, SIM_EXIT(0));
        sim_stuck(sim, 0)->op = ROLL_OP_DEVICE_SYNC;
        for (uint32_t order = 0; order < SIM_ORDERS; order++) {
            char *got = sim_run(sim, order, false, true);
            bool told = strstr(got, "without waiting for it") != NULL;
            bool over = shows == DESTROYED || shows == BEHIND_IT || shows == GROUP;
            if (told == over) {
                fail_msg("%d, order %u: %s", shows, order, got);
            }
            free(got);
        }
        sim_destroy(&sim);
    }
}

static void test_stopped_rank_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim);
        scene_calls(sim, w, 5);
        others_wait(sim, w);
        sim_proc(sim, sizes[i] - 1, ROLL_PROC_STOPPED, ROLL_EXIT_UNKNOWN);
        expect_last(sim, "proven rank-stopped");
        sim_destroy(&sim);
    }
}

static void test_busy_rank_is_suspected_only_after_patience(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim);
        scene_calls(sim, w, 5);
        others_wait(sim, w);
        sim->patience_ns = 4 * S_;
        sim_expect(sim, "");
        sim->patience_ns = 10 * S_;
        expect_last(sim, "suspected rank-busy");
        sim_destroy(&sim);
    }
}

static void test_rank_inside_a_wait_without_reason_is_suspected_blocked(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t w = sim_world(sim);
    scene_calls(sim, w, 5);
    others_wait(sim, w);
    sim_stuck(sim, 2);
    expect_last(sim, "suspected rank-blocked");
    sim_destroy(&sim);
}

static void test_destroyed_communicator_while_peers_wait(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t w = sim_world(sim);
    scene_calls(sim, w, 5);
    others_wait(sim, w);
    sim_record(sim, 2, ROLL_OP_COMM_DESTROY, w);
    expect_last(sim, "proven call-skipped");
    sim_destroy(&sim);
}

static void test_abort_releases_everybody(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t w = sim_world(sim);
    scene_calls(sim, w, 5);
    others_wait(sim, w);
    for (uint32_t r = 0; r < 3; r++) {
        sim_record(sim, r, ROLL_OP_COMM_ABORT, w);
    }
    sim_expect(sim, "");
    sim_destroy(&sim);
}

static void test_member_that_never_joins_the_init(void **state)
{
    (void)state;
    for (int variant = 0; variant < 4; variant++) { /* 0 unseen, 1 seen but elsewhere, 2 dead, 3 healthy */
        struct sim *sim = sim_new(4);
        for (uint32_t r = 0; r < 4; r++) {
            if (r == 3 && variant != 3) {
                sim_sync(sim, r);
                continue;
            }
            struct roll_record *rec = sim_record(sim, r, ROLL_OP_COMM_INIT, UINT32_MAX);
            rec->count = 4;
            rec->peer = (int32_t)r;
            if (variant != 3) {
                rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
            }
        }
        if (variant == 2) {
            sim_proc(sim, 3, ROLL_PROC_DEAD, SIM_SIGNAL(SIGSEGV));
        }
        sim->skip_last_source = variant == 0;
        sim_expect(sim, variant == 3 ? "" : variant == 2 ? "proven init-missing 3" : "suspected init-missing 3");
        sim->patience_ns = 3 * S_;
        sim_expect(sim, variant == 2 ? "proven init-missing 3" : "");
        sim_destroy(&sim);
    }
}

static void test_consequences_in_other_communicators_are_not_told(void **state)
{
    (void)state;
    struct sim *sim = sim_new(8);
    uint32_t w = sim_world(sim);
    uint32_t low[4] = {0, 1, 2, 3}, high[4] = {4, 5, 6, 7};
    uint32_t a = sim_comm(sim, "low", low, 4), b = sim_comm(sim, "high", high, 4);
    scene_calls(sim, w, 2);
    for (uint32_t r = 4; r < 7; r++) { /* 7 has died: its group waits, and the world waits for its group */
        sim_call(sim, r, b, AR, 64);
        sim_stuck(sim, r);
    }
    for (uint32_t r = 0; r < 4; r++) {
        sim_call(sim, r, a, AR, 64);
        sim_sync(sim, r);
        sim_call(sim, r, w, AR, 512);
        sim_stuck(sim, r);
    }
    sim_proc(sim, 7, ROLL_PROC_DEAD, SIM_SIGNAL(SIGSEGV));
    sim_expect(sim, "proven rank-dead 7");
    sim_destroy(&sim);
}

static void test_slow_rank_that_makes_progress_is_not_accused(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t w = sim_world(sim);
    scene_calls(sim, w, 3);
    others_wait(sim, w);
    sim->patience_ns = 2 * S_;
    sim_expect(sim, "");
    sim_destroy(&sim);
}

static void test_soft_reasons_are_not_told_beside_a_hard_one(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t w = sim_world(sim);
    scene_calls(sim, w, 3);
    sim_call(sim, 0, w, AR, 512);
    sim_stuck(sim, 0);
    sim_proc(sim, 2, ROLL_PROC_DEAD, SIM_SIGNAL(SIGSEGV)); /* rank 1 sits outside NCCL for good */
    sim_expect(sim, "proven rank-dead 2");
    sim_destroy(&sim);
}

static void test_rank_that_gives_up_after_a_mismatch_is_not_accused(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t w = sim_world(sim);
    sim->site = 1;
    scene_calls(sim, w, 3);
    sim->site = 2;
    for (uint32_t r = 0; r < 3; r++) {
        sim_call(sim, r, w, AR, r == 2 ? 100 : 200);
    }
    sim->site = 3;
    others_wait(sim, w);
    sim_proc(sim, 2, ROLL_PROC_FINISHED, SIM_EXIT(9));
    sim_expect(sim, "proven count-mismatch 2");
    sim_destroy(&sim);
}

static void test_host_inside_a_group_end_is_blocked_by_its_partners(void **state)
{
    (void)state;
    for (int sick = 0; sick < 2; sick++) {
        struct sim *sim = sim_new(2);
        uint32_t a = sim_comm(sim, "a", NULL, 2), b = sim_comm(sim, "b", NULL, 2);
        for (uint32_t r = 0; r < 2;
             r++) { /* connections are made inside the end of the group: the host does not return */
            sim_group(sim, r);
            sim_send(sim, r, sick && r ? b : a, !r, 64);
            sim_recv(sim, r, sick && r ? b : a, !r, 64);
            sim_group_end(sim, r);
            struct sim_rank *rank = &sim->rank[r];
            struct roll_record *end = &rank->event[rank->events - 1].rec;
            end->seal = roll_seal(roll_seal_ticket(end->seal), ROLL_STATE_ENTERED);
            if (!sick) {
                sim_return(sim, r);
            }
        }
        sim_expect(sim, sick ? "proven circular-wait -" : "");
        sim_destroy(&sim);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dead_rank_is_named_with_its_signal),
        cmocka_unit_test(test_death_of_all_is_a_note),
        cmocka_unit_test(test_death_after_destroy_is_nobodys_business),
        cmocka_unit_test(test_ended_rank_is_named),
        cmocka_unit_test(test_exit_code_of_a_failure_settles_a_tie),
        cmocka_unit_test(test_orderly_end_is_healthy),
        cmocka_unit_test(test_what_is_known_to_be_over_did_not_end_with_the_process),
        cmocka_unit_test(test_stopped_rank_is_named),
        cmocka_unit_test(test_busy_rank_is_suspected_only_after_patience),
        cmocka_unit_test(test_rank_inside_a_wait_without_reason_is_suspected_blocked),
        cmocka_unit_test(test_destroyed_communicator_while_peers_wait),
        cmocka_unit_test(test_abort_releases_everybody),
        cmocka_unit_test(test_member_that_never_joins_the_init),
        cmocka_unit_test(test_consequences_in_other_communicators_are_not_told),
        cmocka_unit_test(test_soft_reasons_are_not_told_beside_a_hard_one),
        cmocka_unit_test(test_rank_that_gives_up_after_a_mismatch_is_not_accused),
        cmocka_unit_test(test_host_inside_a_group_end_is_blocked_by_its_partners),
        cmocka_unit_test(test_slow_rank_that_makes_progress_is_not_accused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
