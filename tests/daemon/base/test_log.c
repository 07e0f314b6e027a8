/*
 * test_log.c: what came from outside is text in the log, and many lines of one kind are few.
 */
#include "daemon/base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char log_text[1 << 20];

/* Takes the time out of each line, which must be there, and as documented. */
static const char *untimed(char *text)
{
    static const char shape[] = "rollcalld: dddd-dd-ddTdd:dd:dd.dddZ ";
    const size_t n = sizeof(shape) - 1, keep = sizeof("rollcalld: ") - 1;
    char *out = text;
    for (char *at = text; *at;) {
        assert_true(strlen(at) > n);
        for (size_t i = 0; i < n; i++) {
            assert_true(shape[i] == 'd' && i >= keep ? at[i] >= '0' && at[i] <= '9' : at[i] == shape[i]);
        }
        memmove(out, at, keep);
        out += keep;
        at += n;
        size_t rest = strcspn(at, "\n") + 1;
        memmove(out, at, rest);
        out += rest;
        at += rest;
    }
    *out = '\0';
    return text;
}

/* What `write_some` writes to standard error, without the times. */
static const char *logged(void (*write_some)(void))
{
    FILE *f = tmpfile();
    int kept = dup(STDERR_FILENO);
    assert_non_null(f);
    dup2(fileno(f), STDERR_FILENO);
    write_some();
    dup2(kept, STDERR_FILENO);
    close(kept);
    rewind(f);
    log_text[fread(log_text, 1, sizeof(log_text) - 1, f)] = '\0';
    fclose(f);
    return untimed(log_text);
}

static int lines_of(const char *text)
{
    int n = 0;
    for (; *text; text++) {
        n += *text == '\n';
    }
    return n;
}

static void of_a_bad_host(void)
{
    roll_log(ROLL_LOG_WARNING, "root: agent on %s is here",
             "a\x1b[2J\nrollcalld: all is well\r\x7f\xc2\x9b"
             "31m\xe2\x80\xae");
    roll_log(ROLL_LOG_WARNING, "root: host %s", "n\xc3\xb6rd \xff\xc0\xaf \xf0\x9f\x98\x80");
}

static void test_what_is_no_text_is_shown_and_not_obeyed(void **state)
{
    (void)state;
    assert_string_equal(logged(of_a_bad_host),
                        "rollcalld: root: agent on a\\x1b[2J\\x0arollcalld: all is well\\x0d\\x7f\\xc2\\x9b31m"
                        "\\xe2\\x80\\xae is here\n"
                        "rollcalld: root: host n\xc3\xb6rd \\xff\\xc0\\xaf \xf0\x9f\x98\x80\n");
}

static void refusals(void)
{
    for (int i = 0; i < 1500; i++) {
        roll_log(ROLL_LOG_WARNING, "root: key refused: 10.0.0.%d", i);
    }
    roll_log_tick(false); /* the minute is not over */
    roll_log_tick(true);
    roll_log_tick(true);
}

static void test_many_lines_of_one_kind_are_few_and_counted(void **state)
{
    (void)state;
    unsigned before = roll_log_troubles();
    const char *text = logged(refusals);
    assert_int_equal(lines_of(text), ROLL_LOG_KIND_LINES + 1);
    assert_non_null(strstr(text, "rollcalld: 1480 more like this one: root: key refused: 10.0.0.1499\n"));
    assert_int_equal(roll_log_troubles() - before, 1500);
}

static void of_two_hosts(void)
{
    for (int i = 0; i < 500; i++) {
        roll_log_about(ROLL_LOG_WARNING, "10.0.0.1", "root: %s has other keys", "10.0.0.1");
    }
    roll_log_about(ROLL_LOG_WARNING, "10.0.0.2", "root: %s has other keys", "10.0.0.2");
    roll_log_tick(true);
}

static void test_who_comes_again_and_again_hides_nobody(void **state)
{
    (void)state;
    const char *text = logged(of_two_hosts);
    assert_int_equal(lines_of(text), 3);
    assert_non_null(strstr(text, "rollcalld: root: 10.0.0.1 has other keys\n"));
    assert_non_null(strstr(text, "rollcalld: root: 10.0.0.2 has other keys\n"));
    assert_non_null(strstr(text, "499 more like this one: root: 10.0.0.1 has other keys\n"));
}

static void arrivals(void)
{
    for (int i = 0; i < 200; i++) {
        roll_log(ROLL_LOG_INFO, "root: agent on node%d is here", i);
    }
    for (int i = 0; i < 100; i++) {
        roll_log(ROLL_LOG_INFO, "root: agent on node7 is here");
    }
    roll_log_tick(true);
}

static void test_news_that_differs_is_not_folded(void **state)
{
    (void)state;
    const char *text = logged(arrivals);
    assert_int_equal(lines_of(text), 200 + ROLL_LOG_KIND_LINES + 1);
    assert_non_null(strstr(text, "more like this one: root: agent on node7 is here"));
}

static void a_peer_that_comes_and_goes(void)
{
    for (int i = 0; i < 10000; i++) {
        roll_log(ROLL_LOG_INFO, "root: agent on node1 (pid %d) is here", i);
    }
    roll_log_tick(true);
}

static void test_news_without_end_ends(void **state)
{
    (void)state;
    const char *text = logged(a_peer_that_comes_and_goes);
    assert_int_equal(lines_of(text), ROLL_LOG_NEWS_LINES + 1);
    assert_non_null(strstr(text, "5904 more like this one: root: agent on node1 (pid 9999) is here"));
}

static void a_long_line(void)
{
    char long_text[4000];
    memset(long_text, '\n', sizeof(long_text) - 1);
    long_text[sizeof(long_text) - 1] = '\0';
    roll_log(ROLL_LOG_ERROR, "%s", long_text);
}

static void test_a_long_line_is_cut(void **state)
{
    (void)state;
    const char *text = logged(a_long_line);
    assert_int_equal(lines_of(text), 1);
    assert_true(strlen(text) < 1100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_no_text_is_shown_and_not_obeyed),
        cmocka_unit_test(test_many_lines_of_one_kind_are_few_and_counted),
        cmocka_unit_test(test_who_comes_again_and_again_hides_nobody),
        cmocka_unit_test(test_news_that_differs_is_not_folded),
        cmocka_unit_test(test_news_without_end_ends),
        cmocka_unit_test(test_a_long_line_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
