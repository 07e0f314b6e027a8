/*
 * test_verdict_line.c: a note beside a running job: one line, or, where a terminal is too narrow for it, few.
 */
#include "tests/daemon/verdict/sample.h"

/* Beside a running job a note takes one line, whatever its text holds. */
static void a_note_fits_in_one_line(void **state)
{
    (void)state;
    static const struct {
        const char *code, *said, *want;
    } cases[] = {
        {"moe-zero-tokens", "Rank 0 received no tokens in MoE layer 3, step 13. Further steps are not told.",
         "note      moe-zero-tokens    Rank 0 received no tokens in MoE layer 3, step 13.\n"},
        {"rank-dead", "It took 1.5 s. 2 ranks are left",
         "note      rank-dead          It took 1.5 s. 2 ranks are left\n"},
        {"a-code-longer-than-its-column", "a\nb\033[2J", "note      a-code-longer-than-its-column  a b [2J\n"},
        {"no-text", "", "note      no-text            different element counts in one collective\n"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        json_t *json = sample_verdict();
        json_object_set_new(json, "certainty", json_string("note"));
        json_object_set_new(json, "code", json_string(cases[i].code));
        json_object_set_new(json, "text", json_string(cases[i].said));
        char *text = NULL;
        size_t bytes = 0;
        FILE *out = open_memstream(&text, &bytes);
        assert_int_equal(roll_verdict_print_line(out, json, false), 0);
        fclose(out);
        assert_string_equal(text, cases[i].want);
        free(text);
        json_decref(json);
    }
}

/* A terminal that is too narrow would break it inside of words. */
static void a_note_is_broken_between_words_where_the_columns_are_few(void **state)
{
    (void)state;
    static const struct {
        unsigned columns;
        const char *code, *said, *want;
    } cases[] = {
        {100, "rank-slow", "Rank 0 is late. It", "note      rank-slow          Rank 0 is late.\n"},
        {80, "moe-zero-tokens", "Rank 0 received no tokens in MoE layer 3, step 13, and these were many words. More.",
         "note      moe-zero-tokens    Rank 0 received no tokens in MoE layer 3, step 13,\n"
         "                             and these were many words.\n"},
        {60, "moe-zero-tokens", "Rank 0 received no\ntokens in MoE layer 3, step 13, of the job. More.",
         "note      moe-zero-tokens\n"
         "          Rank 0 received no tokens in MoE layer 3, step 13,\n"
         "          of the job.\n"},
        {60, "a-code-longer-than-its-column", "It fits beside it", /* 10 + 29 + 2 + 17 columns */
         "note      a-code-longer-than-its-column  It fits beside it\n"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        json_t *json = sample_verdict();
        json_object_set_new(json, "certainty", json_string("note"));
        json_object_set_new(json, "code", json_string(cases[i].code));
        json_object_set_new(json, "text", json_string(cases[i].said));
        char *text = NULL;
        size_t bytes = 0;
        FILE *out = open_memstream(&text, &bytes);
        assert_int_equal(roll_verdict_print_line(out, json, ROLL_VERDICT_COLUMNS(cases[i].columns)), 0);
        fclose(out);
        assert_string_equal(text, cases[i].want);
        free(text);
        json_decref(json);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_note_fits_in_one_line),
        cmocka_unit_test(a_note_is_broken_between_words_where_the_columns_are_few),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
