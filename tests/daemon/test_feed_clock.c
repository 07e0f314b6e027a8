/*
 * test_feed_clock.c: when time passes for an engine: live, in an agent's trace, and after the fact. Nothing here reads
 * a clock: each test hands its times in.
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/feed/clock.h"

#define MS   UINT64_C(1000000)
#define WALL UINT64_C(1700000000000000000)
#define MONO UINT64_C(5000000000)

/* A clock of a run whose ranks are all seen, and whose engine has had its first tick. */
static struct roll_feed_clock running(uint64_t stall_ns)
{
    struct roll_feed_clock clock;
    struct roll_feed_time time;
    roll_feed_clock_init(&clock, stall_ns, MONO);
    roll_feed_clock_see(&clock, MONO, true);
    roll_feed_clock_pass(&clock, MONO, WALL, &time);
    assert_true(time.engine_ns == WALL && time.wall_ns == WALL);
    return clock;
}

/* The time in which the clock would have to wait for its next tick. */
static uint64_t wait_of(const struct roll_feed_clock *clock, uint64_t from, bool live)
{
    uint64_t wait = 0;
    while (!roll_feed_clock_is_due(clock, from + wait, live)) {
        wait += MS / 2;
        assert_true(wait < 5000 * MS);
    }
    return wait;
}

static void times_are_rounded_so_that_nothing_is_said_too_early(void **state)
{
    (void)state;
    struct roll_feed_time time = roll_feed_time_on_grid(WALL + 199999, WALL + 100001);
    assert_true(time.engine_ns == WALL + 100000);
    assert_true(time.wall_ns == WALL + 200000);
    time = roll_feed_time_on_grid(WALL, WALL);
    assert_true(time.engine_ns == WALL && time.wall_ns == WALL);
}

static void ticks_come_soon_after_input_and_seldom_in_a_still_job(void **state)
{
    (void)state;
    static const struct {
        uint64_t quiet_ms, stall_ns;
        bool dirty, live;
        uint64_t wait; /* in halves of a ms */
    } cases[] = {
        {0, 0, true, true, 4},
        {20000, 0, true, false, 4},
        {0, 0, false, true, 10},
        {990, 0, false, true, 10},
        {1001, 0, false, true, 40},
        {9900, 0, false, true, 40},
        {10001, 0, false, true, 200},
        {10001, 0, false, false, 2000},
        {9000, 0, false, false, 40},
        {10001, 400 * MS, false, true, 100},
        {10001, 80 * MS, false, true, 40},
        {10001, 4000 * MS, false, true, 200},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct roll_feed_clock clock = running(cases[i].stall_ns);
        clock.dirty = cases[i].dirty;
        uint64_t now = MONO + cases[i].quiet_ms * MS;
        roll_feed_clock_skip(&clock, now);
        uint64_t wait = 2 * wait_of(&clock, now, cases[i].live) / MS;
        /* The same asked beforehand, where nothing ends while it waits. */
        assert_int_equal(roll_feed_clock_wait_ns(&clock, now, cases[i].live), cases[i].wait * MS / 2);
        if (wait != cases[i].wait) {
            fail_msg("case %zu: %d halves of a ms, not %d", i, (int)wait, (int)cases[i].wait);
        }
    }
}

/* Of a job that is over nothing is left to be judged: its clock rests, until something comes after all. */
static void the_clock_of_a_job_that_is_over_rests(void **state)
{
    (void)state;
    struct roll_feed_clock clock = running(0);
    uint64_t now = MONO + 600001 * MS;
    roll_feed_clock_skip(&clock, now);
    assert_true(roll_feed_clock_wait_ns(&clock, now, false) == UINT64_MAX);
    assert_true(roll_feed_clock_wait_ns(&clock, now, true) == 100 * MS); /* it stands, and may go on */
    roll_feed_clock_input(&clock, now, true);
    assert_true(roll_feed_clock_wait_ns(&clock, now, false) == 2 * MS);
}

static void input_that_moves_no_rank_does_not_end_the_quiet(void **state)
{
    (void)state;
    struct roll_feed_clock clock = running(0);
    struct roll_feed_time time;
    uint64_t now = MONO + 20000 * MS;
    roll_feed_clock_input(&clock, now, false);
    assert_true(clock.dirty);
    roll_feed_clock_pass(&clock, now, WALL, &time);
    assert_int_equal(wait_of(&clock, now, true) / MS, 100);
    roll_feed_clock_input(&clock, now, true);
    roll_feed_clock_pass(&clock, now, WALL, &time);
    assert_int_equal(wait_of(&clock, now, true) / MS, 5);
}

/* The wall clock jumps and the process is held up: the engine's time goes on evenly, a quarter of a stall at most. */
static void the_engines_time_is_patience_and_no_wall_clock(void **state)
{
    (void)state;
    struct roll_feed_clock clock = running(0);
    struct roll_feed_time time;
    roll_feed_clock_pass(&clock, MONO + 5 * MS, WALL - 3600000 * MS, &time);
    assert_true(time.engine_ns == WALL + 5 * MS);
    assert_true(time.wall_ns == WALL - 3600000 * MS);
    roll_feed_clock_pass(&clock, MONO + 60000 * MS, WALL, &time);
    assert_true(time.engine_ns == WALL + 130 * MS); /* 500 ms / 4 more */
    clock = running(40 * MS);
    roll_feed_clock_pass(&clock, MONO + 60000 * MS, WALL, &time);
    assert_true(time.engine_ns == WALL + 10 * MS);
    roll_feed_clock_skip(&clock, MONO + 70000 * MS);
    roll_feed_clock_pass(&clock, MONO + 70001 * MS, WALL, &time);
    assert_true(time.engine_ns == WALL + 11 * MS);
}

/* Rounding is for what is told: what was cut off is not lost tick by tick. */
static void small_steps_add_up(void **state)
{
    (void)state;
    struct roll_feed_clock clock = running(0);
    struct roll_feed_time time = {0};
    for (uint64_t i = 1; i <= 100; i++) {
        roll_feed_clock_pass(&clock, MONO + i * 50000, WALL, &time);
    }
    assert_true(time.engine_ns == WALL + 5 * MS);
}

static void the_clock_stands_still_for_a_rank_that_is_not_seen(void **state)
{
    (void)state;
    struct roll_feed_clock clock = running(0);
    struct roll_feed_time time;
    for (uint64_t ms = 1; ms < 10000; ms += 7) {
        roll_feed_clock_see(&clock, MONO + ms * MS, false);
        assert_false(roll_feed_clock_is_due(&clock, MONO + ms * MS + 5000 * MS, true));
    }
    roll_feed_clock_see(&clock, MONO + 10000 * MS, true); /* seen again: the next silence is a new one */
    roll_feed_clock_pass(&clock, MONO + 10001 * MS, WALL, &time);
    assert_true(time.engine_ns < WALL + 20 * MS);
    roll_feed_clock_see(&clock, MONO + 10002 * MS, false);
    assert_true(clock.stands_still);
    roll_feed_clock_see(&clock, MONO + 20001 * MS, false);
    assert_true(clock.stands_still);
    /* The silent agent is given up: the others have a right to know. */
    roll_feed_clock_see(&clock, MONO + 20002 * MS, false);
    assert_false(clock.stands_still);
    assert_true(roll_feed_clock_is_due(&clock, MONO + 20200 * MS, true));
}

static void a_new_run_waits_until_its_ranks_are_seen(void **state)
{
    (void)state;
    struct roll_feed_clock clock;
    roll_feed_clock_init(&clock, 0, MONO);
    assert_false(roll_feed_clock_is_due(&clock, MONO + 60000 * MS, true));
    roll_feed_clock_see(&clock, MONO + 60000 * MS, true);
    assert_true(roll_feed_clock_is_due(&clock, MONO + 60000 * MS, true));
}

/* A root that goes on from its trace continues the engine's time of then, however long it was away. */
static void an_agent_that_is_about_to_be_given_up_is_waited_for(void **state)
{
    (void)state;
    struct roll_feed_clock clock = running(0);
    uint64_t since = MONO + 1000 * MS;
    roll_feed_clock_see(&clock, since, true);
    roll_feed_clock_await(&clock, since, true);
    assert_true(roll_feed_clock_wait_ns(&clock, since + 5000 * MS, true) == UINT64_MAX);
    /* Others are seen meanwhile: what is awaited is so all the same. */
    roll_feed_clock_see(&clock, since + ROLL_FEED_AWAITED_NS - MS, true);
    roll_feed_clock_await(&clock, since + ROLL_FEED_AWAITED_NS - MS, true);
    assert_false(roll_feed_clock_is_due(&clock, since + ROLL_FEED_AWAITED_NS - MS, true));
    roll_feed_clock_see(&clock, since + ROLL_FEED_AWAITED_NS, true);
    roll_feed_clock_await(&clock, since + ROLL_FEED_AWAITED_NS, true);
    assert_true(wait_of(&clock, since + ROLL_FEED_AWAITED_NS, true) < 200 * MS);
    /* It was heard, and is silent again: that is another wait. */
    roll_feed_clock_await(&clock, since + ROLL_FEED_AWAITED_NS + MS, false);
    roll_feed_clock_await(&clock, since + ROLL_FEED_AWAITED_NS + 2 * MS, true);
    assert_true(roll_feed_clock_wait_ns(&clock, since + ROLL_FEED_AWAITED_NS + 5000 * MS, true) == UINT64_MAX);
}

static void the_past_is_continued(void **state)
{
    (void)state;
    struct roll_feed_clock clock;
    struct roll_feed_time time;
    roll_feed_clock_init(&clock, 0, MONO);
    roll_feed_clock_replay(&clock, WALL - 3600000 * MS);
    roll_feed_clock_skip(&clock, MONO + 900 * MS);
    roll_feed_clock_pass(&clock, MONO + 900 * MS, WALL, &time);
    assert_true(time.engine_ns == WALL - 3600000 * MS);
}

static void the_wall_clock_of_verdicts_is_at_most_a_millisecond_old(void **state)
{
    (void)state;
    struct roll_feed_clock clock = running(0);
    struct roll_feed_time time;
    assert_false(roll_feed_clock_stamp(&clock, WALL + MS - 1, &time));
    assert_true(roll_feed_clock_stamp(&clock, WALL + MS + 1, &time));
    assert_true(time.wall_ns == WALL + MS + 100000);
    assert_true(time.engine_ns == WALL); /* no time passes by it */
    assert_false(roll_feed_clock_stamp(&clock, WALL + 2 * MS, &time));
    assert_true(roll_feed_clock_stamp(&clock, WALL - 1000 * MS, &time)); /* the wall clock was set back */
    assert_true(time.wall_ns == WALL - 1000 * MS);
}

static void an_agents_trace_ticks_when_something_moved_or_time_has_passed(void **state)
{
    (void)state;
    struct roll_trace_clock clock = {.moved = true};
    assert_true(roll_trace_clock_is_due(&clock, MONO, false));
    assert_false(roll_trace_clock_is_due(&clock, MONO + 19 * MS, false));
    assert_true(roll_trace_clock_is_due(&clock, MONO + 20 * MS, false));
    assert_true(roll_trace_clock_is_due(&clock, MONO + 21 * MS, true));
    clock.moved = true;
    assert_true(roll_trace_clock_is_due(&clock, MONO + 22 * MS, false));
    assert_true(roll_trace_clock_is_due(&clock, MONO + 10023 * MS, false)); /* nothing has moved for 10 s */
    assert_false(roll_trace_clock_is_due(&clock, MONO + 10122 * MS, false));
    assert_true(roll_trace_clock_is_due(&clock, MONO + 10123 * MS, false));
}

static void rings_are_looked_at_ten_times_a_recorded_second(void **state)
{
    (void)state;
    uint64_t ticked = 0;
    assert_true(roll_record_clock_is_due(&ticked, WALL));
    assert_false(roll_record_clock_is_due(&ticked, WALL + 100 * MS - 1));
    assert_true(roll_record_clock_is_due(&ticked, WALL + 100 * MS));
    assert_true(ticked == WALL + 100 * MS);
    assert_false(roll_record_clock_is_due(&ticked, WALL)); /* a late record does not turn it back */
    assert_true(ticked == WALL + 100 * MS);
}

static void merged_traces_go_as_far_as_the_slowest(void **state)
{
    (void)state;
    static const struct {
        struct roll_merge_part part[3];
        bool passes;
        uint64_t clock;
    } cases[] = {
        {{{30, false, false}, {20, false, false}, {40, false, false}}, true, 20},
        {{{30, false, false}, {0, false, false}, {40, false, false}}, false, 10}, /* one has not begun */
        {{{30, false, false}, {10, false, false}, {40, false, false}}, false, 10},
        /* The agent ended, and its ranks with it. */
        {{{30, false, false}, {20, true, false}, {40, false, false}}, true, 30},
        {{{30, false, false}, {20, true, true}, {40, false, false}}, false, 10}, /* nobody knows what they did then */
        {{{30, true, false}, {20, true, false}, {40, true, false}}, false, 10},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t clock = 10;
        assert_int_equal(roll_merge_clock_pass(&clock, cases[i].part, 3), cases[i].passes);
        assert_int_equal(clock, cases[i].clock);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_are_rounded_so_that_nothing_is_said_too_early),
        cmocka_unit_test(ticks_come_soon_after_input_and_seldom_in_a_still_job),
        cmocka_unit_test(the_clock_of_a_job_that_is_over_rests),
        cmocka_unit_test(input_that_moves_no_rank_does_not_end_the_quiet),
        cmocka_unit_test(the_engines_time_is_patience_and_no_wall_clock),
        cmocka_unit_test(small_steps_add_up),
        cmocka_unit_test(the_clock_stands_still_for_a_rank_that_is_not_seen),
        cmocka_unit_test(a_new_run_waits_until_its_ranks_are_seen),
        cmocka_unit_test(an_agent_that_is_about_to_be_given_up_is_waited_for),
        cmocka_unit_test(the_past_is_continued),
        cmocka_unit_test(the_wall_clock_of_verdicts_is_at_most_a_millisecond_old),
        cmocka_unit_test(an_agents_trace_ticks_when_something_moved_or_time_has_passed),
        cmocka_unit_test(rings_are_looked_at_ten_times_a_recorded_second),
        cmocka_unit_test(merged_traces_go_as_far_as_the_slowest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
