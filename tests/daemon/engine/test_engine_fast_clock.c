/*
 * test_engine_fast_clock.c: one host's wall clock goes fast. What has been explained stays explained: calls that were
 * known before a trouble do not look as if they had been made behind it.
 */
#include "tests/daemon/engine/sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>

#define NOW (1001 * S_) /* the calls of a scenario begin at 1,000 s */

/* Rank 1 makes a collective with nothing in it, which NCCL drops there, and ends; rank 0 waits in it. Before that they
 * have sent messages, which the device has told to be complete. How often is it said? */
static unsigned says(uint64_t ahead_ns)
{
    struct sim *sim = sim_new(2);
    uint32_t world = sim_world(sim), source[2];
    sim_all(sim, world, ROLL_OP_ALLREDUCE, 8);
    struct roll_record *rec = sim_send(sim, 0, world, 1, 4);
    rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_COMPLETE);
    rec = sim_recv(sim, 1, world, 0, 4);
    rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_COMPLETE);
    sim_call(sim, 0, world, ROLL_OP_ALLGATHER, 1);
    sim_call(sim, 1, world, ROLL_OP_ALLGATHER, 0);
    sim_stuck(sim, 0);
    sim_record(sim, 1, ROLL_OP_COMM_DESTROY, world);
    sim_proc(sim, 1, ROLL_PROC_FINISHED, 0);

    struct roll_engine_config config = {.stall_ns = 0};
    roll_engine_t *e = roll_engine_new(&config);
    const struct roll_verdict *v;
    uint64_t now = NOW;
    unsigned said = 0;
    assert_non_null(e);
    roll_engine_tick(e, now);
    for (uint32_t r = 0; r < 2; r++) {
        source[r] = sim_open(sim, e, r);
        assert_int_equal(roll_engine_clock(e, source[r], r == 0 ? (int64_t)ahead_ns : 0), 0);
    }
    for (uint32_t r = 0; r < 2; r++) {
        for (size_t i = 0; i < sim->rank[r].events; i++) {
            sim_feed(e, source[r], &sim->rank[r].event[i], &now);
        }
    }
    for (int i = 0; i < 500; i++) { /* 10 s: longer than the clock goes fast */
        sim_wait(e, S_ / 50, &now);
        while ((v = roll_engine_next(e)) != NULL) {
            said += v->code == ROLL_VERDICT_ZERO_COUNT;
        }
    }
    roll_engine_destroy(&e);
    sim_destroy(&sim);
    return said;
}

static void test_a_clock_that_goes_fast_ends_no_silence(void **state)
{
    (void)state;
    assert_int_equal(says(0), 1);
    assert_int_equal(says(3 * S_), 1);
    assert_int_equal(says(7200 * S_), 1);
}

/* When it is told, so much of what the clock goes fast has passed that the newest call is about of now. */
static void test_a_clock_that_goes_fast_by_little_ends_none(void **state)
{
    (void)state;
    for (uint64_t ahead_ns = S_ / 10; ahead_ns <= 3 * S_; ahead_ns += S_ / 10) {
        unsigned said = says(ahead_ns);
        if (said != 1) {
            fail_msg("%.1f s fast: said %u times", (double)ahead_ns / 1e9, said);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_clock_that_goes_fast_ends_no_silence),
        cmocka_unit_test(test_a_clock_that_goes_fast_by_little_ends_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
