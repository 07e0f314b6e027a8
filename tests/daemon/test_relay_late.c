/*
 * test_relay_late.c: when a relay takes an agent for silent: after it has listened in vain, or, where it listens badly,
 * has gone round for long; and not because it was stopped itself. The clock is a number here.
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/base/clock.h"
#include "daemon/relay/relay_state.h"

#include <stdlib.h>

#define S (1000 * ROLL_MS)

static void test_an_agent_is_silent_sooner_or_later(void **state)
{
    (void)state;
    static const struct {
        uint64_t turn_ms, at_least, at_most;
    } c[] = {{20, 10, 11}, {140, 10, 11}, {150, 30, 31}, {200, 30, 31}, {900, 30, 32}, {5000, 150, 160}};
    for (size_t i = 0; i < sizeof(c) / sizeof(c[0]); i++) {
        struct roll_relay *r = calloc(1, sizeof(*r));
        struct relay_child child = {.synced = true};
        uint64_t now = 5000 * S, begin = now;
        assert_non_null(r);
        roll_relay_late_turn(r, now);
        child.seen_ns = now;
        roll_relay_late_heard(r, &child, now);
        while (!roll_relay_is_lost(r, &child, now) && now - begin < 300 * S) {
            now += c[i].turn_ms * ROLL_MS;
            roll_relay_late_turn(r, now);
        }
        if (now - begin < c[i].at_least * S || now - begin > c[i].at_most * S) {
            fail_msg("turns of %d ms: silent after %.1f s", (int)c[i].turn_ms, (double)(now - begin) * 1e-9);
        }
        free(r);
    }
}

static void test_a_relay_that_was_stopped_takes_nobody_for_silent(void **state)
{
    (void)state;
    struct roll_relay *r = calloc(1, sizeof(*r));
    struct relay_child child = {.synced = true};
    uint64_t now = 5000 * S;
    assert_non_null(r);
    roll_relay_late_turn(r, now);
    child.seen_ns = now;
    roll_relay_late_heard(r, &child, now);
    now += 3600 * S;
    roll_relay_late_turn(r, now);
    assert_false(roll_relay_is_lost(r, &child, now));
    free(r);
}

/* A relay tells what it has refused, and what the relays below it have, as far as that can be. */
static void test_a_relay_sums_what_is_refused_below(void **state)
{
    (void)state;
    struct roll_relay *r = calloc(1, sizeof(*r));
    struct relay_child one = {.synced = true, .relay = true}, two = one, agent = {.synced = true};
    struct roll_frame_heartbeat beat = {.made_ns = 1}, told;
    assert_non_null(r);
    r->refused = 5;
    beat.refused = 7; /* the first one counts what is past: this relay may have known it under another name */
    roll_relay_late_beat(r, &one, &beat, S);
    roll_relay_late_tell(r, &told, S);
    assert_int_equal(told.refused, 5);
    roll_relay_late_beat(r, &two, &beat, S);
    beat.refused = 9;
    roll_relay_late_beat(r, &one, &beat, S);
    beat.refused = 10;
    roll_relay_late_beat(r, &two, &beat, S);
    roll_relay_late_beat(r, &agent, &beat, S);
    beat.refused = 20;
    roll_relay_late_beat(r, &agent, &beat, S);
    roll_relay_late_tell(r, &told, S);
    assert_int_equal(told.refused, 5 + 2 + 3);
    beat.refused = UINT64_MAX;
    roll_relay_late_beat(r, &two, &beat, S);
    beat.refused = 2;
    roll_relay_late_beat(r, &two, &beat, S);
    roll_relay_late_tell(r, &told, S);
    assert_int_equal(told.refused, 5 + 2 + 3);
    free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_agent_is_silent_sooner_or_later),
        cmocka_unit_test(test_a_relay_that_was_stopped_takes_nobody_for_silent),
        cmocka_unit_test(test_a_relay_sums_what_is_refused_below),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
