/*
 * test_engine_zero.c: calls of no elements whose harm is known before anybody is seen to wait, because the hosts wait
 * in places that leave no record (a copy); and programs that look alike and are right.
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

enum program {
    DROPPED,      /* the last rank's bucket is empty, and it goes on to the loss; nobody's host is seen to wait */
    STREAMS,      /* the same, and the loss has a stream of its own on the other ranks */
    OTHER_PLACE,  /* the empty call is another one of the program */
    ALL_EMPTY,    /* on all ranks */
    ONE_MORE,     /* an empty call more, and then the bucket like the others */
    STILL_AT_IT,  /* the rank has not gone on to anything yet */
    LOSS_FIRST,   /* the others make the loss first; the bucket comes later */
    ANOTHER_BUSY, /* the last rank has made the bucket, and an empty call behind it; rank 0 has not come */
    SKIPPED,      /* all make the empty call; the last rank leaves out the bucket that comes behind it */
    PROGRAMS
};

/* What a rank does behind steps that are right: its bucket, then the loss. Where it makes no loss its host stands in a
 * copy behind the bucket. */
static void tail(struct sim *sim, uint32_t r, uint32_t edp, uint32_t w, enum program program)
{
    bool last = r == sim->ranks - 1, busy = program == ANOTHER_BUSY, all = program == ALL_EMPTY || program == ONE_MORE;
    bool empty = last ? !busy : program == ALL_EMPTY || program == SKIPPED;
    bool bucket = busy ? r > 0 : last ? program == ONE_MORE : program != ALL_EMPTY;
    sim->site = empty && program == OTHER_PLACE ? 9 : 7;
    if (empty) {
        sim_call(sim, r, edp, AR, 0);
    }
    if (program == LOSS_FIRST) {
        sim->site = 8;
        sim_call(sim, r, w, AR, 1);
        sim->site = 7;
        sim_call(sim, r, edp, AR, 4096);
        return;
    }
    if (bucket) {
        sim_call(sim, r, edp, AR, 4096);
    }
    if (busy && last) {
        sim_call(sim, r, edp, AR, 0);
    }
    if (program != STILL_AT_IT && (last || all)) {
        sim->site = 8;
        sim_call(sim, r, w, AR, 1);
    }
}

static struct sim *job(uint32_t n, enum program program)
{
    struct sim *sim = sim_new(n);
    uint32_t w = sim_world(sim), edp = sim_comm(sim, "edp", NULL, n);
    for (uint32_t step = 0; step < 3; step++) {
        sim_step(sim, step);
        for (uint32_t r = 0; r < n; r++) {
            sim->site = 7;
            sim_call(sim, r, edp, AR, 4096);
            sim->site = 8;
            sim_call(sim, r, w, AR, 1)->stream = program == STREAMS && r < n - 1 ? 3 : 2;
            sim_sync(sim, r);
        }
    }
    sim_step(sim, 3);
    for (uint32_t r = 0; r < n; r++) {
        tail(sim, r, edp, w, program);
    }
    sim->patience_ns = 2 * S_; /* less than it takes to suspect who is only quiet */
    return sim;
}

static void test_a_call_that_was_dropped_is_predicted_to_be_missed(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = job(sizes[i], DROPPED);
        scene_tells(sim, "predicted zero-count", sizes[i] - 1, "AllReduce of 1 float32 (sum) on communicator world",
                    "rank-busy");
        sim->patience_ns = 30 * S_; /* then it is known that nobody moves, and the prediction is confirmed */
        scene_tells(sim, "proven zero-count", sizes[i] - 1, "with zero elements on communicator edp", "rank-busy");
        sim_destroy(&sim);
    }
}

static void test_what_may_still_go_well_is_not_predicted(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (enum program program = DROPPED + 1; program < PROGRAMS; program++) {
            struct sim *sim = job(sizes[i], program);
            for (uint32_t order = 0; order < SIM_ORDERS; order++) {
                char *got = sim_run_all(sim, order);
                if (strstr(got, "zero-count")) {
                    fail_msg("%u ranks, program %d, order %u: %s", sizes[i], (int)program, order, got);
                }
                free(got);
            }
            sim_destroy(&sim);
        }
    }
}

/* Watchdogs end all ranks, one after the other: that follows from what was predicted, and is no finding of its own. */
static void test_watchdogs_end_what_was_predicted(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        uint32_t n = sizes[i], source[64];
        struct sim *sim = job(n, DROPPED);
        roll_engine_t *e = roll_engine_new(&sim->config);
        assert_non_null(e);
        uint64_t now = 0;
        for (uint32_t r = 0; r < n; r++) {
            source[r] = sim_open(sim, e, r);
            for (size_t k = 0; k < sim->rank[r].events; k++) {
                sim_feed(e, source[r], &sim->rank[r].event[k], &now);
            }
        }
        sim_wait(e, 2 * S_, &now);
        const struct roll_verdict *v = roll_engine_next(e);
        assert_non_null(v);
        assert_int_equal(v->certainty, ROLL_PREDICTED);
        for (uint32_t r = n; r-- > 0;) {
            assert_int_equal(roll_engine_process(e, source[r], ROLL_PROC_DEAD, SIM_EXIT(3)), 0);
            sim_wait(e, S_, &now);
        }
        roll_engine_finish(e);
        while ((v = roll_engine_next(e)) != NULL) {
            if (v->certainty != ROLL_NOTE && v->code != ROLL_VERDICT_ZERO_COUNT) {
                fail_msg("%u ranks: %s", n, v->text);
            }
        }
        roll_engine_destroy(&e);
        sim_destroy(&sim);
    }
}

/* The rank comes to the call after all, on another stream than it ever used for it: the prediction is taken back. */
static void test_a_prediction_that_does_not_come_true_is_taken_back(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        uint32_t n = sizes[i], source[64];
        struct sim *sim = job(n, DROPPED);
        size_t upto[64];
        for (uint32_t r = 0; r < n; r++) {
            upto[r] = sim->rank[r].events;
            sim->site = 7;
            if (r == n - 1) {
                sim_call(sim, r, 1, AR, 4096)->stream = 4;
            } else {
                sim_call(sim, r, 0, AR, 1);
            }
            sim_sync(sim, r)->stream = r == n - 1 ? 4 : 2;
        }
        roll_engine_t *e = roll_engine_new(&sim->config);
        assert_non_null(e);
        uint64_t now = 0;
        for (uint32_t r = 0; r < n; r++) {
            source[r] = sim_open(sim, e, r);
        }
        for (unsigned pass = 0; pass < 2; pass++) {
            for (uint32_t r = 0; r < n; r++) {
                size_t end = pass == 0 ? upto[r] : sim->rank[r].events;
                for (size_t k = pass == 0 ? 0 : upto[r]; k < end; k++) {
                    sim_feed(e, source[r], &sim->rank[r].event[k], &now);
                }
            }
            sim_wait(e, 2 * S_, &now);
        }
        const struct roll_verdict *v = roll_engine_next(e);
        assert_non_null(v);
        assert_int_equal(v->certainty, ROLL_PREDICTED);
        uint64_t number = v->number;
        v = roll_engine_next(e);
        assert_non_null(v);
        assert_int_equal(v->withdraws, number);
        assert_null(roll_engine_next(e));
        roll_engine_destroy(&e);
        sim_destroy(&sim);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_call_that_was_dropped_is_predicted_to_be_missed),
        cmocka_unit_test(test_what_may_still_go_well_is_not_predicted),
        cmocka_unit_test(test_watchdogs_end_what_was_predicted),
        cmocka_unit_test(test_a_prediction_that_does_not_come_true_is_taken_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
