/* test_text.c: columns, spans, counts, times: the plain text that all subcommands print. */
#include "tests/trace/cmocka_all.h"

#include "daemon/base/text.h"
#include "daemon/console/text.h"

#include <string.h>

static void test_columns_align_and_end_without_blanks(void **state)
{
    (void)state;
    struct roll_columns t = {.columns = 3, .right = 1u << 1};
    char line[128];
    assert_int_equal(roll_columns_row(&t, (const char *[]){"NAME", "N", "TEXT"}), 0);
    assert_int_equal(roll_columns_row(&t, (const char *[]){"a", "1000", NULL}), 0);
    assert_int_equal(roll_columns_row(&t, (const char *[]){"longer", "7", "x"}), 0);
    assert_int_equal(roll_columns_rows(&t), 3);
    roll_columns_line(&t, 0, 0, line, sizeof(line));
    assert_string_equal(line, "NAME       N  TEXT");
    roll_columns_line(&t, 1, 0, line, sizeof(line));
    assert_string_equal(line, "a       1000");
    roll_columns_line(&t, 2, 0, line, sizeof(line));
    assert_string_equal(line, "longer     7  x");
    assert_int_equal(roll_columns_line(&t, 3, 0, line, sizeof(line)), 0);
    roll_columns_fini(&t);
}

static void test_columns_shrink_the_named_column_to_the_width(void **state)
{
    (void)state;
    struct roll_columns t = {.columns = 2, .shrink = 1};
    char line[128];
    roll_columns_row(&t, (const char *[]){"HOST", "STATE"});
    roll_columns_row(&t, (const char *[]){"a-very-long-host-name.example", "running"});
    roll_columns_line(&t, 1, 20, line, sizeof(line));
    assert_string_equal(line, "a-very-lon\xe2\x80\xa6  running");
    assert_int_equal(roll_text_width(line), 20);
    roll_columns_fini(&t);
}

static void test_columns_take_no_control_characters(void **state)
{
    (void)state;
    struct roll_columns t = {.columns = 1};
    char line[64];
    roll_columns_row(&t, (const char *[]){"a\x1b[2Jb\nc"});
    roll_columns_line(&t, 0, 0, line, sizeof(line));
    assert_string_equal(line, "a?[2Jb?c");
    roll_columns_fini(&t);
}

static void test_numbers_are_written_for_people(void **state)
{
    (void)state;
    char out[64], time[ROLL_TIME_BYTES];
    assert_string_equal(roll_count_text(0, out, sizeof(out)), "0");
    assert_string_equal(roll_count_text(999, out, sizeof(out)), "999");
    assert_string_equal(roll_count_text(1234567, out, sizeof(out)), "1,234,567");
    assert_string_equal(roll_mean_text(2, out, sizeof(out)), "2");
    assert_string_equal(roll_mean_text(2.5, out, sizeof(out)), "2.5");
    assert_string_equal(roll_mean_text(999.94, out, sizeof(out)), "999.9");
    assert_string_equal(roll_mean_text(999.96, out, sizeof(out)), "1,000");
    assert_string_equal(roll_mean_text(12345.6, out, sizeof(out)), "12,346");
    assert_string_equal(roll_plural(1, "rank", "ranks", out, sizeof(out)), "1 rank");
    assert_string_equal(roll_plural(1000, "rank", "ranks", out, sizeof(out)), "1,000 ranks");
    assert_string_equal(roll_span_text(999, out, sizeof(out)), "999 ns");
    assert_string_equal(roll_span_text(1500, out, sizeof(out)), "1.5 us");
    assert_string_equal(roll_span_text(2500000, out, sizeof(out)), "2.5 ms");
    assert_string_equal(roll_span_text(12300000000u, out, sizeof(out)), "12.3 s");
    assert_string_equal(roll_span_text(300000000000u, out, sizeof(out)), "5 min");
    assert_string_equal(roll_span_text(9000000000000u, out, sizeof(out)), "2.5 h");
    assert_string_equal(roll_time_text(1700000000000000042u, time), "2023-11-14T22:13:20.000000042Z");
}

static void test_a_summary_says_what_is_missing(void **state)
{
    (void)state;
    char out[ROLL_SUMMARY_TEXT];
    struct roll_summary s = {.ranks = 4, .of_ranks = 4, .calls = 1234, .comms = 1, .findings = 0};
    assert_string_equal(roll_summary_text(&s, out, sizeof(out)),
                        "4 ranks, 1,234 calls on 1 communicator: 0 findings, nothing lost");
    s.of_ranks = 8;
    s.incomplete = 2;
    assert_string_equal(roll_summary_text(&s, out, sizeof(out)),
                        "4 of 8 ranks, 1,234 calls on 1 communicator: 0 findings, the other ranks were not recorded, 2 "
                        "calls that not all their ranks made");
    s = (struct roll_summary){.ranks = 1, .calls = 1, .comms = 2, .findings = 1, .lost = 3, .incomplete = 1};
    assert_string_equal(
        roll_summary_text(&s, out, sizeof(out)),
        "1 rank, 1 call on 2 communicators: 1 finding, 3 records lost, 1 call that not all its ranks made");
    s = (struct roll_summary){.ranks = 1, .calls = 1, .comms = 2, .older = 1317};
    assert_string_equal(roll_summary_text(&s, out, sizeof(out)),
                        "1 rank, 1 call on 2 communicators: 0 findings, nothing lost, 1,317 older calls are not in "
                        "this recording");
    s = (struct roll_summary){.ranks = 1, .calls = 1, .comms = 2, .findings = 1, .lost = 3, .incomplete = 1};
    s.unrecorded[ROLL_LOSS_DEFS_FULL] = 1317;
    s.unrecorded[ROLL_LOSS_SIGNAL] = 2;
    assert_string_equal(roll_summary_text(&s, out, sizeof(out)),
                        "1 rank, 1 call on 2 communicators: 1 finding, 3 records lost, not recorded: 1,317 defs_full "
                        "and 2 signal, 1 call that not all its ranks made");
    s.lost = s.incomplete = 0;
    assert_string_equal(roll_summary_text(&s, out, sizeof(out)),
                        "1 rank, 1 call on 2 communicators: 1 finding, not recorded: 1,317 defs_full and 2 signal");
    s = (struct roll_summary){.ranks = 4, .calls = 1236, .comms = 0};
    roll_summary_failed(&s, 1234, 2, "CommInit", "ncclInvalidArgument");
    assert_string_equal(roll_summary_text(&s, out, sizeof(out)),
                        "4 ranks, 1,236 calls on 0 communicators: 0 findings, nothing lost, 1,234 calls returned an "
                        "error (the first, CommInit of rank 2: ncclInvalidArgument)");
    roll_summary_failed(&s, 1, 0, "AllReduce", "ncclInvalidUsage");
    assert_string_equal(roll_summary_text(&s, out, sizeof(out)),
                        "4 ranks, 1,236 calls on 0 communicators: 0 findings, nothing lost, 1 call returned an error "
                        "(AllReduce of rank 0: ncclInvalidUsage)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_columns_align_and_end_without_blanks),
        cmocka_unit_test(test_columns_shrink_the_named_column_to_the_width),
        cmocka_unit_test(test_columns_take_no_control_characters),
        cmocka_unit_test(test_numbers_are_written_for_people),
        cmocka_unit_test(test_a_summary_says_what_is_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
