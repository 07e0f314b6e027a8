/*
 * test_run.c: stack_run.h with helpers that work, die, hang and write nonsense. The helper is a shell script: what
 * matters here is that every process is answered exactly once, whatever the helper does.
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/base/clock.h"
#include "daemon/stack/stack_run.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char script[] = "/tmp/rollcall-helper-XXXXXX";

static void write_script(const char *body)
{
    FILE *f = fopen(script, "w");
    assert_non_null(f);
    fprintf(f, "#!/bin/sh\n%s\n", body);
    fclose(f);
    assert_int_equal(chmod(script, 0700), 0);
}

/* Asks for these pids; returns the errors (or "ok") in the order of pids, joined. */
static const char *ask(const pid_t *pid, size_t n, unsigned timeout_ms)
{
    static char out[1024];
    char why[256] = "", word[4][200] = {{0}};
    struct roll_stack_ask a = {script, pid, n, 1, 1, true, true, "/nowhere", timeout_ms * ROLL_MS};
    roll_stack_run_t *run = roll_stack_run_new(&a, why, sizeof(why));
    assert_non_null(run);
    assert_true(n <= 4);
    while (!roll_stack_run_over(run)) {
        struct pollfd p = {roll_stack_run_fd(run), POLLIN, 0};
        json_t *answer;
        poll(&p, 1, 20);
        while ((answer = roll_stack_run_next(run, roll_mono_ns())) != NULL) {
            json_int_t who = json_integer_value(json_object_get(answer, "pid"));
            const char *error = json_string_value(json_object_get(answer, "error"));
            for (size_t i = 0; i < n; i++) {
                if (pid[i] == who) {
                    assert_string_equal(word[i], ""); /* answered once */
                    snprintf(word[i], sizeof(word[i]), "%s", error ? error : "ok");
                }
            }
            json_decref(answer);
        }
    }
    assert_null(roll_stack_run_next(run, roll_mono_ns()));
    roll_stack_run_destroy(&run);
    out[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        assert_true(word[i][0] != '\0');
        snprintf(out + strlen(out), sizeof(out) - strlen(out), "%s%s", i ? "; " : "", word[i]);
    }
    return out;
}

static const pid_t two[] = {11, 22};

static void good_helper(void **state)
{
    (void)state;
    write_script("echo '{\"begin\":11}'; echo '{\"pid\":11}'; echo '{\"begin\":22}'; echo '{\"pid\":22}'");
    assert_string_equal(ask(two, 2, 10000), "ok; ok");
}

static void helper_that_dies_costs_one_process(void **state)
{
    (void)state;
    write_script(
        "case \"$2\" in *11*) echo '{\"begin\":11}'; kill -SEGV $$;; esac; echo '{\"begin\":22}'; echo '{\"pid\":22}'");
    assert_string_equal(ask(two, 2, 10000), "the stack reader died of signal 11 on it; ok");
}

static void helper_that_says_nothing(void **state)
{
    (void)state;
    write_script("exit 3");
    assert_string_equal(ask(two, 2, 10000),
                        "the stack reader ended with status 3; the stack reader ended with status 3");
    write_script("exit 0");
    assert_string_equal(ask(two, 2, 10000),
                        "the stack reader said nothing about it; the stack reader said nothing about it");
}

static void helper_that_hangs_is_killed(void **state)
{
    (void)state;
    write_script("echo '{\"begin\":11}'; echo '{\"pid\":11}'; echo '{\"begin\":22}'; exec sleep 100");
    uint64_t begin = roll_mono_ns();
    assert_string_equal(ask(two, 2, 3000), "ok; not finished in time");
    assert_true(roll_mono_ns() - begin < 90000 * ROLL_MS);
}

static void nonsense_is_skipped(void **state)
{
    (void)state;
    write_script("echo; echo 'no json'; echo '[]'; echo '{\"pid\":99}'; echo '{\"pid\":11}'; echo '{\"pid\":11}'; "
                 "head -c 100000 /dev/zero; echo; echo '{\"pid\":22}'; printf '{\"pid\":22'");
    assert_string_equal(ask(two, 2, 10000), "ok; ok");
}

static void no_helper(void **state)
{
    (void)state;
    char why[256] = "";
    struct roll_stack_ask a = {"/nowhere/rollcalld", two, 2, 1, 1, true, true, NULL, ROLL_MS};
    assert_null(roll_stack_run_new(&a, why, sizeof(why)));
    assert_non_null(strstr(why, "/nowhere/rollcalld cannot be started"));
}

static int set_up(void **state)
{
    (void)state;
    int fd = mkstemp(script);
    return fd < 0 || close(fd) != 0;
}

static int tear_down(void **state)
{
    (void)state;
    return unlink(script);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_helper),
        cmocka_unit_test(helper_that_dies_costs_one_process),
        cmocka_unit_test(helper_that_says_nothing),
        cmocka_unit_test(helper_that_hangs_is_killed),
        cmocka_unit_test(nonsense_is_skipped),
        cmocka_unit_test(no_helper),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
