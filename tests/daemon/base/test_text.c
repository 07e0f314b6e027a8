/* test_text.c: text measured, cut and broken into lines. */
#include "tests/trace/cmocka_all.h"

#include "daemon/base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void test_fit_cuts_at_characters(void **state)
{
    (void)state;
    char text[32] = "\xc3\xa4\xc3\xb6\xc3\xbc\xc3\x9f";
    assert_int_equal(roll_text_width(text), 4);
    roll_text_fit(text, sizeof(text), 4);
    assert_int_equal(roll_text_width(text), 4);
    roll_text_fit(text, sizeof(text), 3);
    assert_string_equal(text, "\xc3\xa4\xc3\xb6\xe2\x80\xa6");
}

static void test_plain_text_steers_no_terminal(void **state)
{
    (void)state;
    char text[] = "a\033[2Jb\x7f\n\xc2\x9b"
                  "c\xc3\xa4\xc2";
    roll_text_plain(text, strlen(text));
    assert_string_equal(text, "a [2Jb \n  c\xc3\xa4\xc2");
}

/* What shows as nothing and turns what stands around it becomes a blank for each of its bytes. */
static void test_plain_text_has_no_invisible_characters(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t odd;
    } cases[] = {
        {"\xe2\x80\xae", 3},                      /* U+202E, from right to left */
        {"\xe2\x80\xaa", 3}, {"\xe2\x81\xa6", 3}, /* U+2066, isolate */
        {"\xe2\x81\xa9", 3}, {"\xe2\x80\x8f", 3}, /* U+200F, mark */
        {"\xe2\x80\x8b", 3},                      /* U+200B, of no width */
        {"\xef\xbb\xbf", 3}, {"\xc2\xad", 2},     {"\xd8\x9c", 2}, {"\xf3\xa0\x81\x81", 4}, /* a tag */
        {"\xe2\x80\xa6", 0},                                                                /* an ellipsis */
        {"\xe2\x80\xaf", 0},                                                                /* a narrow blank */
        {"\xe2\x82\xac", 0},                                                                /* a sign */
        {"\xd7\x90", 0}, /* a letter that is written from right to left by itself */
        {"\xe4\xb8\xad", 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[16], want[16];
        size_t bytes = strlen(cases[i].text);
        snprintf(text, sizeof(text), "a%sb", cases[i].text);
        snprintf(want, sizeof(want), "a%.*sb", (int)bytes, cases[i].odd > 0 ? "    " : cases[i].text);
        roll_text_plain(text, strlen(text));
        assert_string_equal(text, want);
        assert_true(cases[i].odd == 0 || cases[i].odd == bytes);
        snprintf(text, sizeof(text), "%.*s", (int)bytes - 1, cases[i].text); /* cut: what is left steers nothing */
        roll_text_plain(text, strlen(text));
    }
}

static void test_wrap_breaks_between_words(void **state)
{
    (void)state;
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    roll_text_wrap("one two  three\n\nfourteen-characters a b", 0, 8, out);
    fclose(out);
    assert_string_equal(text, "one two\nthree\n\nfourteen-characters\na b\n");
    free(text);
}

static void test_wrap_keeps_to_its_indent_and_steers_no_terminal(void **state)
{
    (void)state;
    char *text = NULL, word[400];
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    fputs("gut ", out);
    roll_text_wrap(" one\ttw\x1b[2J\n\n \xc3\xa4\xc3\xb6 \xc2\x9b"
                   "b",
                   4, 10, out);
    fclose(out);
    assert_string_equal(text, "gut one\n    tw [2J\n\n    \xc3\xa4\xc3\xb6  b\n");
    free(text);
    memset(word, 'x', sizeof(word) - 1); /* a word is never cut */
    word[sizeof(word) - 1] = '\0';
    out = open_memstream(&text, &bytes);
    assert_non_null(out);
    roll_text_wrap(word, 0, 20, out);
    roll_text_wrap("", 3, 20, out);
    fclose(out);
    assert_int_equal(strspn(text, "x"), sizeof(word) - 1);
    assert_string_equal(text + sizeof(word) - 1, "\n\n");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fit_cuts_at_characters),
        cmocka_unit_test(test_plain_text_steers_no_terminal),
        cmocka_unit_test(test_plain_text_has_no_invisible_characters),
        cmocka_unit_test(test_wrap_breaks_between_words),
        cmocka_unit_test(test_wrap_keeps_to_its_indent_and_steers_no_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
