/*
 * test_engine_fast_clock.c: one host's wall clock goes fast. What has been explained stays explained: calls that were
 * known before a trouble do not look as if they had been made behind it.
 */
#include "daemon/engine/model/engine_state.h"
#include "tests/daemon/engine/story.h"
#include "trace/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>

#define NOW (1001 * S_) /* the calls of a scenario begin at 1,000 s */

/* Rank 1 calls for nothing where rank 0 gathers and waits, leaves, and ends. */
static void leave_out_and_end(struct sim *sim, uint32_t world)
{
    sim_call(sim, 0, world, ROLL_OP_ALLGATHER, 1);
    sim_call(sim, 1, world, ROLL_OP_ALLGATHER, 0);
    sim_stuck(sim, 0);
    sim_record(sim, 1, ROLL_OP_COMM_DESTROY, world);
    sim_proc(sim, 1, ROLL_PROC_FINISHED, 0);
}

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
    leave_out_and_end(sim, world);

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

/* Rank 1 leaves a collective out and ends, rank 0 waits in it, which is told. Then the wall clocks of both are set, and
 * only now it is read that a message which they had exchanged before is complete. How often is it said? */
static unsigned says_over_a_step(int64_t step_ns)
{
    struct sim *sim = sim_new(2);
    uint32_t world = sim_world(sim), source[2];
    sim_all(sim, world, ROLL_OP_ALLREDUCE, 8);
    struct roll_record sent = *sim_send(sim, 0, world, 1, 4);
    sim_recv(sim, 1, world, 0, 4);
    leave_out_and_end(sim, world);

    struct roll_engine_config config = {.stall_ns = 0};
    roll_engine_t *e = roll_engine_new(&config);
    const struct roll_verdict *v;
    uint64_t now = NOW;
    unsigned said = 0;
    assert_non_null(e);
    roll_engine_tick(e, now);
    for (uint32_t r = 0; r < 2; r++) {
        source[r] = sim_open(sim, e, r);
    }
    for (uint32_t r = 0; r < 2; r++) {
        for (size_t i = 0; i < sim->rank[r].events; i++) {
            sim_feed(e, source[r], &sim->rank[r].event[i], &now);
        }
    }
    for (int i = 0; i < 500; i++) {
        sim_wait(e, S_ / 50, &now);
        if (i == 250) {
            for (uint32_t r = 0; r < 2; r++) {
                assert_int_equal(roll_engine_clock_set(e, source[r], step_ns, now), 0);
            }
            sent.seal = roll_seal(roll_seal_ticket(sent.seal), ROLL_STATE_COMPLETE);
            assert_int_equal(roll_engine_feed(e, source[0], &sent, 1), 0);
        }
        while ((v = roll_engine_next(e)) != NULL) {
            said += v->code == ROLL_VERDICT_ZERO_COUNT;
        }
    }
    roll_engine_destroy(&e);
    sim_destroy(&sim);
    return said;
}

static void test_clocks_that_are_set_end_no_silence(void **state)
{
    (void)state;
    static const int64_t steps_s[] = {0, 1, 30, 3600, -1, -30, -3600};
    for (size_t i = 0; i < sizeof(steps_s) / sizeof(steps_s[0]); i++) {
        unsigned said = says_over_a_step(steps_s[i] * (int64_t)S_);
        if (said != 1) {
            fail_msg("set by %d s: said %u times", (int)steps_s[i], said);
        }
    }
}

/* A message that is too long for its receiver is told, and its ranks come back from it all the same; then another rank
 * makes a wrong call. When the clocks have been set in between, that is told as if they had not been. */
static void test_clocks_that_are_set_make_no_silence_endless(void **state)
{
    (void)state;
    static const int64_t steps_s[] = {0, 30, 3600, -30, -3600};
    static const uint32_t sizes[] = {2, 3, 8};
    for (size_t i = 0; i < 3 * sizeof(steps_s) / sizeof(steps_s[0]); i++) {
        uint32_t n = sizes[i % 3];
        char said[STORY_SAID];
        struct story t;
        story_open(&t, n, (uint32_t)i % 3);
        uint32_t w = sim_world(t.sim);
        sim_all(t.sim, w, ROLL_OP_ALLREDUCE, 8);
        sim_send(t.sim, 0, w, 1, 100);
        sim_stuck(t.sim, 0);
        sim_recv(t.sim, 1, w, 0, 50);
        sim_stuck(t.sim, 1);
        story_pass(&t, 3 * S_);
        assert_string_equal(story_said(&t, ROLL_VERDICT_NONE, said), "proven p2p-bytes -");
        for (uint32_t r = 0; r < n; r++) {
            assert_int_equal(roll_engine_clock_set(t.e, t.source[r], steps_s[i / 3] * (int64_t)S_, t.now), 0);
        }
        story_return(&t, 0);
        story_return(&t, 1);
        for (int k = 0; k < 4; k++) {
            for (uint32_t r = 0; r < n; r++) {
                sim_call(t.sim, r, w, ROLL_OP_ALLREDUCE, 8);
                sim_sync(t.sim, r);
            }
            story_pass(&t, S_);
        }
        assert_string_equal(story_said(&t, ROLL_VERDICT_NONE, said), "");
        for (uint32_t r = 0; r < n; r++) {
            sim_call(t.sim, r, w, ROLL_OP_ALLREDUCE, r + 1 == n ? 9 : 8);
            sim_stuck(t.sim, r);
        }
        story_pass(&t, 3 * S_);
        const char *want = n == 2   ? "suspected count-mismatch -"
                           : n == 3 ? "suspected count-mismatch 2"
                                    : "suspected count-mismatch 7";
        assert_string_equal(story_said(&t, ROLL_VERDICT_NONE, said), want);
        story_close(&t);
    }
}

/* A host came with a clock that was 2 h slow, which is then set right: it is judged by the right one, and what people
 * are shown follows in any case. */
static void test_a_clock_that_was_wrong_is_judged_by_when_it_is_right(void **state)
{
    (void)state;
    struct sim *sim = sim_new(2);
    uint32_t world = sim_world(sim), source[2];
    roll_engine_t *e = roll_engine_new(&(struct roll_engine_config){.stall_ns = 0});
    uint64_t now = NOW;
    assert_non_null(e);
    roll_engine_tick(e, now);
    sim_all(sim, world, ROLL_OP_ALLREDUCE, 8);
    for (uint32_t r = 0; r < 2; r++) {
        source[r] = sim_open(sim, e, r);
        assert_int_equal(roll_engine_clock(e, source[r], r == 0 ? -7200 * (int64_t)S_ : 0), 0);
        for (size_t i = 0; i < sim->rank[r].events; i++) {
            sim_feed(e, source[r], &sim->rank[r].event[i], &now);
        }
    }
    assert_int_equal(roll_engine_clock_set(e, source[0], 0, now), 0);
    assert_int_equal(roll_engine_clock_set(e, source[1], 7200 * (int64_t)S_, now), 0);
    assert_int_equal(roll_engine_clock_set(e, 2, 0, now), ROLL_E_ARG);
    assert_int_equal(((struct roll_engine *)e)->source[source[0]]->line, 0);
    assert_int_equal(((struct roll_engine *)e)->source[source[1]]->line, 0);
    assert_int_equal(((struct roll_engine *)e)->source[source[1]]->offset, 7200 * (int64_t)S_);
    roll_engine_destroy(&e);
    sim_destroy(&sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_clock_that_goes_fast_ends_no_silence),
        cmocka_unit_test(test_a_clock_that_goes_fast_by_little_ends_none),
        cmocka_unit_test(test_clocks_that_are_set_end_no_silence),
        cmocka_unit_test(test_clocks_that_are_set_make_no_silence_endless),
        cmocka_unit_test(test_a_clock_that_was_wrong_is_judged_by_when_it_is_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
