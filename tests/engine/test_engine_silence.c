/*
 * test_engine_silence.c: after a verdict that does not end the job the job goes on, and a second, unrelated fault is told.
 *
 * A table of first faults and a table of second ones; each pair is a program of its own, at several rank counts. What the first one is told as stands in its
 * row; the second one must be told as if it were the first.
 */
#include "tests/engine/sim.h"

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

#define AR ROLL_OP_ALLREDUCE

static void steps(struct sim *sim, uint32_t w, uint32_t n)
{
    sim->site = 1;
    for (uint32_t i = 0; i < n; i++) {
        sim_all(sim, w, AR, 512);
        for (uint32_t r = 0; r < sim->ranks; r++) {
            sim_sync(sim, r);
        }
    }
}

/* One call in which the last rank errs; it comes to its end all the same, as wrong calls often do. */
static void odd_call(struct sim *sim, uint32_t w, int kind)
{
    sim->site = 2;
    for (uint32_t r = 0; r < sim->ranks; r++) {
        bool odd = r == sim->ranks - 1;
        struct roll_record *rec = sim_call(sim, r, w, AR, 512);
        rec->redop = odd && kind == 0 ? ROLL_RED_MAX : rec->redop;
        rec->count = odd && kind == 1 ? 500 : rec->count;
        rec->dtype = odd && kind == 2 ? ROLL_DTYPE_INT32 : rec->dtype;
        sim_sync(sim, r);
    }
}

static const char *const first_said[] = {"proven redop-mismatch", "proven count-mismatch", "proven dtype-mismatch"};
#define FIRSTS (sizeof(first_said) / sizeof(first_said[0]))

enum second { KILLED, CRASHED, STOPPED, BUSY, ENDED, OTHER_ROOT, SECONDS };
static const char *const second_said[SECONDS] = {"proven rank-dead",    "proven rank-dead",     "proven rank-stopped",
                                                 "suspected rank-busy", "proven rank-finished", "proven root-mismatch"};

static void second_fault(struct sim *sim, uint32_t w, enum second kind)
{
    sim->site = 3;
    for (uint32_t r = 0; r < sim->ranks; r++) {
        bool odd = r == 0;
        if (kind == OTHER_ROOT) {
            sim_call(sim, r, w, ROLL_OP_BROADCAST, 64)->peer = odd ? 1 : 0;
            sim_stuck(sim, r);
        } else if (!odd) {
            sim_call(sim, r, w, AR, 512);
            sim_stuck(sim, r);
        }
    }
    if (kind == KILLED || kind == CRASHED) {
        sim_proc(sim, 0, ROLL_PROC_DEAD, SIM_SIGNAL(kind == KILLED ? SIGKILL : SIGSEGV));
    } else if (kind == STOPPED || kind == ENDED) {
        sim_proc(sim, 0, kind == STOPPED ? ROLL_PROC_STOPPED : ROLL_PROC_FINISHED,
                 kind == STOPPED ? ROLL_EXIT_UNKNOWN : SIM_EXIT(0));
    }
}

static void test_a_second_fault_is_told_after_every_first_one(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {3, 4, 8};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (size_t one = 0; one < FIRSTS; one++) {
            for (int two = 0; two < SECONDS; two++) {
                struct sim *sim = sim_new(sizes[i]);
                uint32_t w = sim_world(sim);
                steps(sim, w, 4);
                odd_call(sim, w, (int)one);
                steps(sim, w, 4);
                second_fault(sim, w, two);
                char a[64], b[64], want[160];
                snprintf(a, sizeof(a), "%s %u", first_said[one], sizes[i] - 1);
                snprintf(b, sizeof(b), "%s 0", second_said[two]);
                bool before = strcmp(a, b) < 0;
                snprintf(want, sizeof(want), "%s; %s", before ? a : b, before ? b : a);
                sim_expect(sim, want);
                sim_destroy(&sim);
            }
        }
    }
}

/* The healthy twin: after the first fault nothing else happens, and nothing else is said. */
static void test_a_job_that_goes_on_gives_nothing_more(void **state)
{
    (void)state;
    for (size_t one = 0; one < FIRSTS; one++) {
        struct sim *sim = sim_new(4);
        uint32_t w = sim_world(sim);
        steps(sim, w, 4);
        odd_call(sim, w, (int)one);
        steps(sim, w, 40);
        for (uint32_t r = 0; r < 4; r++) {
            sim_record(sim, r, ROLL_OP_COMM_DESTROY, w);
            sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(0));
        }
        sim->finish = true;
        char want[64];
        snprintf(want, sizeof(want), "%s 3", first_said[one]);
        sim_expect(sim, want);
        sim_destroy(&sim);
    }
}

/* A rank that hangs for the reason that has been told, and is then ended by its watchdog, is no second finding. */
static void test_consequences_stay_silent_while_the_trouble_lasts(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim);
    steps(sim, w, 4);
    sim->site = 2;
    for (uint32_t r = 0; r < 4; r++) {
        sim_call(sim, r, w, AR, r == 3 ? 500 : 512);
        sim_stuck(sim, r);
    }
    for (uint32_t r = 0; r < 2; r++) {
        sim_proc(sim, r, ROLL_PROC_DEAD, SIM_SIGNAL(SIGABRT));
    }
    sim_expect(sim, "proven count-mismatch 3");
    sim_destroy(&sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_second_fault_is_told_after_every_first_one),
        cmocka_unit_test(test_a_job_that_goes_on_gives_nothing_more),
        cmocka_unit_test(test_consequences_stay_silent_while_the_trouble_lasts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
