/*
 * test_series.c: reading a series ends at the first interrupt, and what is left unread counts as cut; an interrupt that
 * the caller did not ask for, or that is ignored, changes nothing.
 */
#include "tests/daemon/node_traces.h"
#include "tests/trace/cmocka_all.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define TICKS 1000u

static struct roll_analyze_file file;

static void write_trace(void)
{
    struct node_traces t;
    node_traces_begin(&t, 1, 1);
    for (uint32_t i = 0; i < TICKS; i++) {
        node_traces_tick(&t, 0, 1000 + i);
    }
    node_traces_end(&t);
    node_traces_path(0, file.path);
    strcpy(file.series, file.path);
}

/* Reads to the end; `at`: the frame before which SIGINT comes, 0: none. Returns the frames. */
static uint32_t read_all(uint32_t at, bool *cut)
{
    struct roll_reading reading;
    struct roll_series s = {.file = &file, .files = 1, .reading = &reading, .cut = cut, .ahead = roll_ahead_new(1, 1)};
    uint32_t frames = 0;
    *cut = false;
    assert_non_null(s.ahead);
    roll_reading_begin(&reading, &file, 1, true);
    assert_int_equal(roll_series_begin(&s, 0), 0);
    while (!s.ended) {
        if (++frames == at) {
            assert_int_equal(raise(SIGINT), 0);
        }
        assert_int_equal(roll_series_advance(&s), 0);
    }
    roll_series_end(&s);
    roll_reading_end(&reading);
    roll_ahead_destroy(&s.ahead);
    return frames;
}

static void an_interrupt_ends_reading(void **state)
{
    (void)state;
    struct sigaction now;
    bool cut;
    write_trace();
    assert_int_equal(read_all(0, &cut), TICKS + 1);
    assert_false(cut);
    assert_int_equal(read_all(400, &cut), 400);
    assert_true(cut);
    assert_int_equal(sigaction(SIGINT, NULL, &now), 0);
    assert_true(now.sa_handler == SIG_DFL);
    assert_int_equal(read_all(0, &cut), TICKS + 1); /* the next one is read whole */
    assert_false(cut);
}

static void an_interrupt_that_is_ignored_ends_nothing(void **state)
{
    (void)state;
    struct sigaction now;
    bool cut;
    write_trace();
    signal(SIGINT, SIG_IGN);
    assert_int_equal(read_all(400, &cut), TICKS + 1);
    assert_false(cut);
    assert_int_equal(sigaction(SIGINT, NULL, &now), 0);
    assert_true(now.sa_handler == SIG_IGN);
    signal(SIGINT, SIG_DFL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(an_interrupt_ends_reading, node_traces_set_up, node_traces_tear_down),
        cmocka_unit_test_setup_teardown(an_interrupt_that_is_ignored_ends_nothing, node_traces_set_up,
                                        node_traces_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
