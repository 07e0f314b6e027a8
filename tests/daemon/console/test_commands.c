/* test_commands.c: the command line: unknown things are one line and code 2, help names every command and option. */
#include "tests/trace/cmocka_all.h"

#include "daemon/console/analyze/analyze.h"
#include "daemon/console/console.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Runs a command line in this process with a stream (1 or 2) caught in `out`. Returns the exit code. */
static int run(int stream, char *out, size_t size, int argc, const char *const *args)
{
    char *argv[16];
    for (int i = 0; i < argc; i++) {
        argv[i] = strdup(args[i]);
    }
    argv[argc] = NULL;
    FILE *f = tmpfile();
    assert_non_null(f);
    fflush(stdout);
    int saved = dup(stream);
    dup2(fileno(f), stream);
    int code = roll_console_main(argc, argv);
    fflush(stdout);
    dup2(saved, stream);
    close(saved);
    rewind(f);
    size_t n = fread(out, 1, size - 1, f);
    out[n] = '\0';
    fclose(f);
    for (int i = 0; i < argc; i++) {
        free(argv[i]);
    }
    return code;
}

#define RUN(stream, ...)                                                                                               \
    run(stream, out, sizeof(out), (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)),                       \
        (const char *[]){__VA_ARGS__})

static void assert_one_line(const char *text)
{
    assert_true(strncmp(text, "rollcall: ", 10) == 0);
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
}

static void test_unknown_command_is_one_line_and_code_2(void **state)
{
    (void)state;
    char out[4096];
    assert_int_equal(RUN(2, "rollcall", "frobnicate"), ROLL_EXIT_USAGE);
    assert_one_line(out);
    assert_non_null(strstr(out, "frobnicate"));
    assert_int_equal(RUN(2, "rollcall", "jobs", "frobnicate"), ROLL_EXIT_USAGE);
    assert_one_line(out);
    assert_int_equal(RUN(2, "rollcall", "help", "frobnicate"), ROLL_EXIT_USAGE);
    assert_one_line(out);
}

static void test_unknown_option_of_every_command_is_one_line_and_code_2(void **state)
{
    (void)state;
    char out[4096];
    for (const struct roll_command *c = roll_commands; c->name != NULL; c++) {
        assert_int_equal(RUN(2, "rollcall", c->name, "--no-such-option"), ROLL_EXIT_USAGE);
        assert_one_line(out);
        assert_non_null(strstr(out, "--no-such-option"));
        assert_non_null(strstr(out, c->name));
        assert_int_equal(RUN(2, "rollcall", c->name, "-Z"), ROLL_EXIT_USAGE);
        assert_one_line(out);
    }
}

static void test_help_names_every_command(void **state)
{
    (void)state;
    char out[8192];
    assert_int_equal(RUN(1, "rollcall", "help"), ROLL_EXIT_CLEAN);
    for (const struct roll_command *c = roll_commands; c->name != NULL; c++) {
        char one[4096];
        assert_non_null(strstr(out, c->name));
        assert_int_equal(run(1, one, sizeof(one), 3, (const char *[]){"rollcall", "help", c->name}), ROLL_EXIT_CLEAN);
        assert_non_null(strstr(one, c->brief));
        assert_non_null(strstr(one, "--help"));
    }
    assert_int_equal(RUN(1, "rollcall", "--version"), ROLL_EXIT_CLEAN);
    assert_string_equal(out, "rollcall " ROLL_VERSION "\n");
}

static void test_bad_arguments_say_what_is_wanted(void **state)
{
    (void)state;
    static const struct {
        const char *args[6];
        const char *part;
    } rows[] = {
        {{"rollcall", "run", "-n", "0", "--", "true"}, "from 1 up"},
        {{"rollcall", "run", "-n", "1x", "--", "true"}, "from 1 up"},
        {{"rollcall", "run", "--timeout", "-1", "--", "true"}, "seconds above 0"},
        {{"rollcall", "run", "--timeout", "nan", "--", "true"}, "seconds above 0"},
        {{"rollcall", "run", "--policy", "maybe", "--", "true"}, "observe, advise or auto"},
        {{"rollcall", "run"}, "name the command"},
        {{"rollcall", "run", "--json"}, "needs an argument"},
        {{"rollcall", "run", "--quiet=1", "--", "true"}, "takes no argument"},
        {{"rollcall", "why", "minus"}, "not a rank"},
        {{"rollcall", "why", "1", "2"}, "one rank"},
        {{"rollcall", "remedy", "maybe"}, "none of list, on, off, clear"},
        {{"rollcall", "remedy", "on"}, "name a remedy"},
        {{"rollcall", "remedy", "on", "nothing"}, "no remedy 'nothing'"},
        {{"rollcall", "remedy", "on", "fill", "--group", "xyz"}, "hexadecimal"},
        {{"rollcall", "remedy", "on", "fill", "--layer", "256"}, "wants a layer from 0 to 255"},
        {{"rollcall", "remedy", "list", "--layer", "3"}, "it takes none of"},
        {{"rollcall", "dump"}, "name the file"},
        {{"rollcall", "analyze"}, "name a trace: a directory of --trace, or files"},
        {{"rollcall", "analyze", "--policy", "x", "."}, "observe, advise or auto"},
        {{"rollcall", "replay", "--timeout", "soon", "."}, "seconds above 0"},
        {{"rollcall", "digest"}, "name the directory of a node's traces"},
        {{"rollcall", "digest", "--at", "a0:12x", "."}, "wants KEY:SEQ or KEY:SEQ-LAST"},
        {{"rollcall", "digest", "--at", "a0:12-11", "."}, "wants KEY:SEQ or KEY:SEQ-LAST"},
        {{"rollcall", "digest", "--at", "a0:4294967296", "."}, "wants KEY:SEQ or KEY:SEQ-LAST"},
        {{"rollcall", "digest", "--history", "1048577", "."}, "at most 1048576"},
        {{"rollcall", "keygen"}, "name the directory for the keys"},
        {{"rollcall", "verdicts", "--from", "-1"}, "from 0 up"},
        {{"rollcall", "top", "extra"}, "unexpected argument"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char out[4096];
        int argc = 0;
        while (argc < 6 && rows[i].args[argc] != NULL) {
            argc++;
        }
        assert_int_equal(run(2, out, sizeof(out), argc, rows[i].args), ROLL_EXIT_USAGE);
        assert_one_line(out);
        if (strstr(out, rows[i].part) == NULL) {
            fail_msg("'%s' is not in: %s", rows[i].part, out);
        }
    }
}

/* docs/CONSOLE.md: a finding counts before what cannot be read, and that before what is missing. */
static void test_the_exit_code_of_an_analysis_is_the_first_reason_in_order(void **state)
{
    (void)state;
    for (unsigned findings = 0; findings < 2; findings++) {
        for (unsigned unreadable = 0; unreadable < 2; unreadable++) {
            for (unsigned way = 0; way < 10; way++) { /* ways to be incomplete; the first is none */
                struct roll_analysis_summary s = {.unreadable = unreadable,
                                                  .cut = way == 1,
                                                  .missing = way == 2,
                                                  .unjudged = way == 3,
                                                  .unreached = way == 4};
                s.engine.findings = findings;
                s.engine.sources = way != 5;
                s.engine.lost = way == 6;
                s.older = way == 9;
                s.losses[ROLL_LOSS_CALLSITE] = 1; /* which calls are judged without */
                s.losses[ROLL_LOSS_GRAPH] = way == 7;
                int want = findings     ? ROLL_EXIT_FINDING
                           : unreadable ? ROLL_EXIT_UNREACHABLE
                           : way > 0    ? ROLL_EXIT_INCOMPLETE
                                        : ROLL_EXIT_CLEAN;
                assert_int_equal(roll_analysis_exit(&s, way == 8), want);
            }
        }
    }
}

/* A slip of the hand is recognised; what is not near anything is not explained away. */
static void test_a_mistyped_command_or_option_is_answered_with_the_nearest(void **state)
{
    (void)state;
    static const struct {
        const char *args[4];
        const char *line;
    } rows[] = {
        {{"rollcall", "tpo"}, "rollcall: unknown command 'tpo' (did you mean top?); `rollcall help` lists them\n"},
        {{"rollcall", "verdict"},
         "rollcall: unknown command 'verdict' (did you mean verdicts?); `rollcall help` lists them\n"},
        {{"rollcall", "frobnicate"}, "rollcall: unknown command 'frobnicate'; `rollcall help` lists them\n"},
        {{"rollcall", "run", "--jsom"},
         "rollcall: unknown option '--jsom' (did you mean --json?); see `rollcall help run`\n"},
        {{"rollcall", "run", "--trace-"},
         "rollcall: unknown option '--trace-' (it is short for --trace-segment, --trace-limit, --trace-age); see "
         "`rollcall help run`\n"},
        {{"rollcall", "top", "--nonsense"}, "rollcall: unknown option '--nonsense'; see `rollcall help top`\n"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char out[4096];
        int argc = 0;
        while (argc < 4 && rows[i].args[argc] != NULL) {
            argc++;
        }
        assert_int_equal(run(2, out, sizeof(out), argc, rows[i].args), ROLL_EXIT_USAGE);
        assert_string_equal(out, rows[i].line);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unknown_command_is_one_line_and_code_2),
        cmocka_unit_test(test_unknown_option_of_every_command_is_one_line_and_code_2),
        cmocka_unit_test(test_help_names_every_command),
        cmocka_unit_test(test_bad_arguments_say_what_is_wanted),
        cmocka_unit_test(test_a_mistyped_command_or_option_is_answered_with_the_nearest),
        cmocka_unit_test(test_the_exit_code_of_an_analysis_is_the_first_reason_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
