/*
 * test_engine_elastic.c: jobs that go on without some of their ranks, or wait in other ways: communicators that are
 * revoked, aborted, shrunk and made anew, ranks that do so seconds apart, calls that are in progress when they return.
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

static const uint32_t sizes[] = {3, 4, 8, 64};
#define SIZES       (sizeof(sizes) / sizeof(sizes[0]))
#define AR          ROLL_OP_ALLREDUCE
#define IN_PROGRESS 7

/* The rank leaves the communicator by this call. */
static void leaves(struct sim *sim, uint32_t rank, enum roll_op op, uint32_t comm)
{
    (void)sim_record(sim, rank, op, comm);
}

/* All but the last rank make a communicator of their own out of `w`, and go on with it. */
static void goes_on_smaller(struct sim *sim, uint32_t w)
{
    uint32_t n = sim->ranks - 1;
    for (uint32_t r = 0; r < n; r++) {
        (void)sim_record(sim, r, ROLL_OP_COMM_SHRINK, w);
    }
    uint32_t small = sim_comm(sim, "small", NULL, n);
    for (uint32_t step = 0; step < 3; step++) {
        sim_all(sim, small, AR, 100 + step);
        for (uint32_t r = 0; r < n; r++) {
            sim_sync(sim, r);
        }
    }
}

/* An engine that has been fed all ranks of the scenario; source: by rank. Returns owned. */
static roll_engine_t *fed(const struct sim *sim, uint32_t *source)
{
    roll_engine_t *e = roll_engine_new(&sim->config);
    uint64_t now = 0;
    assert_non_null(e);
    for (uint32_t r = 0; r < sim->ranks; r++) {
        source[r] = sim_open(sim, e, r);
        for (size_t i = 0; i < sim->rank[r].events; i++) {
            sim_feed(e, source[r], &sim->rank[r].event[i], &now);
        }
    }
    return e;
}

/* In every order of records this finding stands, or none; true: in some order it does. */
static bool nothing_but(const struct sim *sim, const char *want)
{
    bool any = false;
    for (uint32_t order = 0; order < SIM_ORDERS; order++) {
        char *got = sim_run(sim, order, false, false);
        if (got[0] != '\0' && strcmp(got, want) != 0) {
            fail_msg("order %u: %s", order, got);
        }
        any = any || got[0] != '\0';
        free(got);
    }
    return any;
}

/* Everybody is through with its calls; the others shrink the communicator, and the last rank leaves it and ends. */
static void test_a_job_that_shrinks_is_healthy(void **state)
{
    (void)state;
    static const enum roll_op left_by[] = {ROLL_OP_COMM_DESTROY, ROLL_OP_COMM_ABORT, ROLL_OP_COMM_FINALIZE};
    for (size_t i = 0; i < SIZES * 6; i++) {
        struct sim *sim = sim_new(sizes[i % SIZES]);
        uint32_t w = sim_world(sim), odd = sim->ranks - 1;
        scene_calls(sim, w, 4);
        bool revoked = i / SIZES >= 3;
        for (uint32_t r = 0; revoked && r < sim->ranks; r++) {
            leaves(sim, r, ROLL_OP_COMM_REVOKE, w);
        }
        leaves(sim, odd, left_by[i / SIZES % 3], w);
        sim_proc(sim, odd, ROLL_PROC_FINISHED, SIM_EXIT(0));
        goes_on_smaller(sim, w);
        sim_expect(sim, "");
        sim_destroy(&sim);
    }
}

/* The last rank is killed. The others' watchdogs see it seconds apart, revoke or abort, and go on: the death is all
 * that is told. */
static void test_a_death_after_which_the_others_go_on(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES * 2; i++) {
        struct sim *sim = sim_new(sizes[i % SIZES]);
        uint32_t w = sim_world(sim), odd = sim->ranks - 1;
        char want[64];
        scene_calls(sim, w, 4);
        sim_proc(sim, odd, ROLL_PROC_DEAD, SIM_SIGNAL(9));
        for (uint32_t r = 0; r < odd; r++) {
            sim_call(sim, r, w, AR, 512);
            sim_stuck(sim, r);
            sim_pass(sim, r, r < 4 ? S_ / 4 * (1 + r) : 0);
            struct roll_record *wait = &sim->rank[r].event[sim->rank[r].events - 2].rec, back = *wait;
            leaves(sim, r, i / SIZES == 0 ? ROLL_OP_COMM_REVOKE : ROLL_OP_COMM_ABORT, w);
            sim->rank[r].event[sim->rank[r].events - 1].rec.thread = 2; /* the watchdog's */
            sim_return(sim, r);
            back.seal = roll_seal(roll_seal_ticket(back.seal), ROLL_STATE_RETURNED);
            back.result = 1;
            sim->rank[r].event[sim->rank[r].events - 1].rec = back;
        }
        goes_on_smaller(sim, w);
        snprintf(want, sizeof(want), "proven rank-dead %u", odd);
        assert_true(nothing_but(sim, want)); /* where it is read after the others have left, nobody needs the rank */
        sim_destroy(&sim);
    }
}

/* One rank alone leaves the communicator in the middle, and nobody else: it is told, and how it left. */
static void test_who_leaves_alone_is_told(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES * 2; i++) {
        struct sim *sim = sim_new(sizes[i % SIZES]);
        uint32_t w = sim_world(sim), odd = sim->ranks - 1;
        bool revokes = i / SIZES == 0;
        scene_calls(sim, w, 4);
        leaves(sim, odd, revokes ? ROLL_OP_COMM_REVOKE : ROLL_OP_COMM_ABORT, w);
        for (uint32_t r = 0; r < odd; r++) {
            sim_call(sim, r, w, AR, 512);
            sim_stuck(sim, r);
        }
        scene_tells(sim, "proven call-skipped", odd,
                    revokes ? "has revoked the communicator" : "has aborted the communicator",
                    revokes ? "aborted" : "revoked");
        sim_destroy(&sim);
    }
}

/* On nonblocking communicators calls return while they are in progress, creations too; the ranks ask until they are
 * through, some of them seconds later. */
static void test_calls_in_progress_are_healthy(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES * 2; i++) {
        struct sim *sim = sim_new(sizes[i % SIZES]);
        uint32_t w = sim_world(sim);
        bool grouped = i / SIZES == 1;
        for (uint32_t r = 0; r < sim->ranks; r++) {
            struct roll_record *rec = sim_record(sim, r, ROLL_OP_COMM_INIT, w);
            rec->count = sim->ranks;
            rec->peer = (int32_t)r;
            rec->result = IN_PROGRESS;
            rec->flags = ROLL_FLAG_NONBLOCKING;
            if (r < 3) {
                sim_pass(sim, r, S_);
            }
            sim_record(sim, r, ROLL_OP_COMM_ASYNC, w)->result = IN_PROGRESS;
            (void)sim_record(sim, r, ROLL_OP_COMM_ASYNC, w);
            for (uint32_t k = 0; k < 4; k++) {
                if (grouped) {
                    sim_group(sim, r);
                }
                rec = sim_call(sim, r, w, AR, 100 + k);
                rec->result = IN_PROGRESS;
                rec->flags |= ROLL_FLAG_NONBLOCKING;
                if (grouped) {
                    sim_group_end(sim, r);
                    sim->rank[r].event[sim->rank[r].events - 1].rec.result = IN_PROGRESS;
                }
                sim_record(sim, r, ROLL_OP_COMM_ASYNC, w)->result = IN_PROGRESS;
                (void)sim_record(sim, r, ROLL_OP_COMM_ASYNC, w);
            }
            sim_sync(sim, r);
        }
        sim_expect(sim, "");
        sim_destroy(&sim);
    }
}

/* A nonblocking communicator tells one rank of an error of another one: nobody is accused for having been told. */
static void test_an_error_that_is_asked_for_accuses_nobody(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim), odd = sim->ranks - 1;
        char want[64];
        scene_calls(sim, w, 4);
        sim_proc(sim, odd, ROLL_PROC_DEAD, SIM_SIGNAL(9));
        for (uint32_t r = 0; r < odd; r++) {
            sim_call(sim, r, w, AR, 512)->result = IN_PROGRESS;
            sim_record(sim, r, ROLL_OP_COMM_ASYNC, w)->result = 6; /* ncclRemoteError */
            leaves(sim, r, ROLL_OP_COMM_ABORT, w);
            sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(1));
        }
        snprintf(want, sizeof(want), "proven rank-dead %u", odd);
        (void)nothing_but(sim, want);
        char *got = sim_run(sim, 0, true, false); /* where all have ended the death is a note */
        assert_non_null(strstr(got, "rank-dead"));
        free(got);
        sim_destroy(&sim);
    }
}

/* Rank 1 waits for rank 0, which is busy, and rank 2 waits for rank 1. That is told. Then rank 1's watchdog gives up:
 * its end follows from what is known, however it ends, and rank 2 waits on for the same reason. Where it ends in good
 * order it has chosen to, and is told. */
static void test_who_gives_up_waiting_is_not_accused(void **state)
{
    (void)state;
    static const struct {
        enum roll_proc_state proc;
        int32_t status;
        bool told;
    } ends[] = {{ROLL_PROC_FINISHED, SIM_EXIT(1), false}, {ROLL_PROC_DEAD, SIM_EXIT(1), false},
                {ROLL_PROC_DEAD, SIM_SIGNAL(6), false},   {ROLL_PROC_FINISHED, ROLL_EXIT_UNKNOWN, false},
                {ROLL_PROC_FINISHED, SIM_EXIT(0), true},  {ROLL_PROC_DEAD, SIM_SIGNAL(11), true}};
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        static const uint32_t low[2] = {0, 1}, high[2] = {1, 2};
        struct sim *sim = sim_new(4);
        uint32_t w = sim_world(sim), a = sim_comm(sim, "a", low, 2), b = sim_comm(sim, "b", high, 2), source[4];
        scene_calls(sim, w, 4);
        sim_call(sim, 1, a, AR, 64);
        sim_stuck(sim, 1);
        sim_call(sim, 2, b, AR, 64);
        sim_stuck(sim, 2);
        roll_engine_t *e = fed(sim, source);
        uint64_t now = 100 * S_;
        roll_engine_tick(e, now);
        sim_wait(e, 10 * S_, &now);
        const struct roll_verdict *v = roll_engine_next(e);
        assert_non_null(v);
        assert_int_equal(v->code, ROLL_VERDICT_RANK_BUSY);
        assert_null(roll_engine_next(e));
        assert_int_equal(roll_engine_process(e, source[1], ends[i].proc, ends[i].status), 0);
        sim_wait(e, 30 * S_, &now);
        v = roll_engine_next(e);
        if ((v != NULL) != ends[i].told) {
            fail_msg("end %zu: %s", i, v ? v->text : "nothing");
        }
        roll_engine_destroy(&e);
        sim_destroy(&sim);
    }
}

/* The ranks of an earlier attempt have ended, one of them by a failure; the same ranks come again, in processes of
 * their own, and are healthy. */
static void test_a_second_attempt_of_all_ranks_is_healthy(void **state)
{
    (void)state;
    uint32_t n = 4;
    struct sim *sim = sim_new(n);
    uint32_t w = sim_world(sim);
    scene_calls(sim, w, 3);
    uint32_t source[8];
    uint64_t now = 100 * S_;
    roll_engine_t *e = fed(sim, source);
    roll_engine_tick(e, now);
    sim_wait(e, S_, &now);
    for (uint32_t r = 0; r < n; r++) {
        assert_int_equal(roll_engine_process(e, source[r], ROLL_PROC_FINISHED, SIM_EXIT(0)), 0);
    }
    sim_wait(e, 3 * S_, &now);
    struct sim *next = sim_new(n);
    uint32_t first = sim_world(next), second = sim_comm(next, "again", NULL, n);
    (void)first;
    for (uint32_t k = 0; k < 4; k++) {
        sim_all(next, second, AR, 77 + k);
    }
    for (uint32_t r = 0; r < n; r++) {
        struct roll_source_info info = {.stream = n + r + 1, .world_rank = (int32_t)r, .world_size = (int32_t)n};
        assert_int_equal(roll_engine_open(e, &info, &source[n + r]), 0);
    }
    for (uint32_t r = 0; r < n; r++) {
        for (size_t i = 0; i < next->rank[r].events; i++) {
            if (next->rank[r].event[i].kind != SIM_DEFINE || next->rank[r].event[i].def.type != ROLL_DEF_COMM ||
                next->rank[r].event[i].def.id != 1) { /* the communicator of the first attempt is not made again */
                sim_feed(e, source[n + r], &next->rank[r].event[i], &now);
            }
        }
        sim_wait(e, 2 * S_, &now); /* they come seconds apart */
    }
    sim_wait(e, 30 * S_, &now);
    roll_engine_finish(e);
    for (const struct roll_verdict *v; (v = roll_engine_next(e));) {
        if (v->certainty != ROLL_NOTE && v->withdraws == 0) {
            fail_msg("%s", v->text);
        }
    }
    roll_engine_destroy(&e);
    sim_destroy(&next);
    sim_destroy(&sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_job_that_shrinks_is_healthy),
        cmocka_unit_test(test_a_death_after_which_the_others_go_on),
        cmocka_unit_test(test_who_leaves_alone_is_told),
        cmocka_unit_test(test_calls_in_progress_are_healthy),
        cmocka_unit_test(test_an_error_that_is_asked_for_accuses_nobody),
        cmocka_unit_test(test_who_gives_up_waiting_is_not_accused),
        cmocka_unit_test(test_a_second_attempt_of_all_ranks_is_healthy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
