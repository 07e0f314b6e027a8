/*
 * test_options.c: what each kind of option takes, what is refused, and where reading ends.
 */
#include "daemon/base/nearest.h"
#include "daemon/base/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static bool quiet;
static const char *text, *any, *mine;
static uint32_t count;
static int64_t number;
static double seconds;

static int take(const struct roll_option *option, const char *word, void *into)
{
    assert_string_equal(option->name, "mine");
    *(const char **)into = word;
    return strcmp(word, "end") == 0 ? 7 : strcmp(word, "good") == 0 ? ROLL_OPTION_GO_ON : ROLL_OPTION_BAD;
}

static const struct roll_option table[] = {
    {"quiet", 'q', ROLL_OPT_FLAG, NULL, "say less", &quiet},
    {"text", 't', ROLL_OPT_TEXT, "T", "a text", &text},
    {"any", 0, ROLL_OPT_ANY, "T", "a text, maybe none", &any},
    {"count", 'n', ROLL_OPT_COUNT, "N", "how many", &count},
    {"number", 0, ROLL_OPT_NUMBER, "N", "which", &number},
    {"seconds", 0, ROLL_OPT_SECONDS, "S", "how long", &seconds},
    {"mine", 0, ROLL_OPT_OWN, "WORD", "end, good", &(struct roll_option_own){take, &mine, "no word"}},
    {"help", 'h', ROLL_OPT_HELP, NULL, "this", NULL},
    {0},
};

/* Reads a command line of at most seven words to its end, or to the first that is not taken. */
static enum roll_option_event read_line(bool leading, const char *const *words, struct roll_option_reader *out)
{
    static char copy[8][64];
    static char *argv[9];
    int argc = 1;
    strcpy(copy[0], "program");
    argv[0] = copy[0];
    for (; words[argc - 1] != NULL; argc++) {
        snprintf(copy[argc], sizeof(copy[argc]), "%s", words[argc - 1]);
        argv[argc] = copy[argc];
    }
    argv[argc] = NULL;
    *out = (struct roll_option_reader){.table = table, .leading = leading, .argc = argc, .argv = argv};
    enum roll_option_event event;
    while ((event = roll_options_next(out)) == ROLL_OPTION_TAKEN) {
    }
    return event;
}
#define READ(leading, ...) read_line(leading, (const char *const[]){__VA_ARGS__, NULL}, &r)

static void test_every_kind_is_stored(void **state)
{
    (void)state;
    struct roll_option_reader r;
    assert_int_equal(READ(false, "-q", "--text=a", "--any=", "-n3", "--number", "0", "--seconds=.5"), ROLL_OPTION_OVER);
    assert_true(quiet);
    assert_string_equal(text, "a");
    assert_string_equal(any, "");
    assert_int_equal(count, 3);
    assert_int_equal(number, 0);
    assert_true(seconds == 0.5);
    assert_int_equal(READ(false, "--mine", "good", "-qn", "4", "--num", "12"), ROLL_OPTION_OVER);
    assert_string_equal(mine, "good");
    assert_int_equal(count, 4);
    assert_int_equal(number, 12);
}

static void test_bad_arguments_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *option, *argument;
    } bad[] = {
        {"text", ""},        {"count", "0"},
        {"count", "-1"},     {"count", "4294967296"},
        {"count", "2x"},     {"count", " 2"},
        {"count", ""},       {"number", "-1"},
        {"number", "x"},     {"number", "99999999999999999999"},
        {"seconds", "0"},    {"seconds", "-1"},
        {"seconds", "nan"},  {"seconds", "1s"},
        {"seconds", "1e10"}, {"seconds", ""},
        {"mine", "bad"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct roll_option_reader r;
        char word[64];
        snprintf(word, sizeof(word), "--%s=%s", bad[i].option, bad[i].argument);
        if (READ(false, word, "--quiet") != ROLL_OPTION_WRONG) {
            fail_msg("%s was taken", word);
        }
        assert_string_equal(r.option->name, bad[i].option);
        assert_string_equal(r.word, bad[i].argument);
    }
}

static void test_what_is_no_option_is_told_apart(void **state)
{
    (void)state;
    struct roll_option_reader r;
    assert_int_equal(READ(false, "-q", "--nonsense"), ROLL_OPTION_UNKNOWN);
    assert_string_equal(r.word, "--nonsense");
    assert_int_equal(r.at, 2);
    assert_int_equal(READ(false, "-qZ"), ROLL_OPTION_LETTER);
    assert_int_equal(r.letter, 'Z');
    assert_int_equal(READ(false, "--text"), ROLL_OPTION_LACKS);
    assert_string_equal(r.word, "--text");
    assert_int_equal(READ(false, "-t"), ROLL_OPTION_LACKS);
    assert_int_equal(READ(false, "--quiet=3"), ROLL_OPTION_EXTRA);
    assert_string_equal(r.word, "--quiet=3");
}

/* One slip of the hand is recognised, an abbreviation of several names them, and nothing is made up. */
static void test_what_was_meant_is_suggested(void **state)
{
    (void)state;
    static const struct roll_option some[] = {
        {.name = "json"}, {.name = "trace"}, {.name = "trace-age"}, {.name = "http"}, {0}};
    static const char *const words[][2] = {{"--jsom", " (did you mean --json?)"},
                                           {"--josn", " (did you mean --json?)"},
                                           {"--htpp=:9400", " (did you mean --http?)"},
                                           {"--trce", " (did you mean --trace?)"},
                                           {"--tra", " (it is short for --trace, --trace-age)"},
                                           {"--save", ""},
                                           {"--x", ""},
                                           {"--", ""},
                                           {"", ""}};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        char meant[320];
        assert_string_equal(roll_options_meant(some, words[i][0], meant, sizeof(meant)), words[i][1]);
    }
    assert_int_equal(roll_nearest_distance("top", "tpo"), 1);
    assert_int_equal(roll_nearest_distance("", "why"), 3);
    assert_int_equal(roll_nearest_distance("stacks", "stakcs"), 1);
}

static void test_a_function_may_end_the_program(void **state)
{
    (void)state;
    struct roll_option_reader r;
    quiet = false;
    assert_int_equal(READ(false, "--mine=end", "--quiet"), ROLL_OPTION_EXIT);
    assert_int_equal(r.code, 7);
    assert_false(quiet);
}

static void test_operands_are_found(void **state)
{
    (void)state;
    struct roll_option_reader r;
    assert_int_equal(READ(false, "a", "-q", "b"), ROLL_OPTION_OVER);
    assert_int_equal(r.operand, 2);
    assert_string_equal(r.argv[r.operand], "a");
    assert_int_equal(READ(true, "-q", "a", "-n", "b"), ROLL_OPTION_OVER); /* -n is a's */
    assert_int_equal(r.operand, 2);
    assert_int_equal(READ(false, "-q", "--", "-n"), ROLL_OPTION_OVER);
    assert_int_equal(r.operand, 3);
}

/* What the help prints, broken before so many columns. */
static void printed(const struct roll_option *rows, size_t columns, char *out, size_t size)
{
    FILE *file = tmpfile();
    fflush(stdout);
    int old = dup(STDOUT_FILENO);
    dup2(fileno(file), STDOUT_FILENO);
    roll_options_print(rows, true, 16, columns);
    fflush(stdout);
    dup2(old, STDOUT_FILENO);
    close(old);
    rewind(file);
    out[fread(out, 1, size - 1, file)] = '\0';
    fclose(file);
}

static void test_help_lists_every_row(void **state)
{
    (void)state;
    char out[1024];
    printed(table, 0, out, sizeof(out));
    assert_string_equal(out, "  -q, --quiet      say less\n"
                             "  -t, --text T     a text\n"
                             "      --any T      a text, maybe none\n"
                             "  -n, --count N    how many\n"
                             "      --number N   which\n"
                             "      --seconds S  how long\n"
                             "      --mine WORD  end, good\n"
                             "  -h, --help       this\n");
}

/* On a narrow terminal what a row says goes on below itself, and not at the edge. */
static void test_help_is_broken_before_the_edge(void **state)
{
    (void)state;
    static const struct roll_option wordy[] = {
        {"text", 't', ROLL_OPT_TEXT, "T", "some words that are too many for one line of it", NULL},
        {"longer-than-that", 0, ROLL_OPT_TEXT, "T", "the others", NULL},
        {0},
    };
    char out[1024];
    printed(wordy, 40, out, sizeof(out));
    assert_string_equal(out, "  -t, --text T     some words that are\n"
                             "                   too many for one line\n"
                             "                   of it\n"
                             "      --longer-than-that T\n"
                             "                   the others\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kind_is_stored),
        cmocka_unit_test(test_bad_arguments_are_named),
        cmocka_unit_test(test_what_is_no_option_is_told_apart),
        cmocka_unit_test(test_what_was_meant_is_suggested),
        cmocka_unit_test(test_a_function_may_end_the_program),
        cmocka_unit_test(test_operands_are_found),
        cmocka_unit_test(test_help_lists_every_row),
        cmocka_unit_test(test_help_is_broken_before_the_edge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
