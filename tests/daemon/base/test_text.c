/* test_text.c: text measured, cut and broken into lines. */
#include "tests/trace/cmocka_all.h"

#include "daemon/base/text.h"

#include <stdlib.h>

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

static void test_wrap_breaks_between_words(void **state)
{
    (void)state;
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    roll_text_wrap("one two  three\n\nfourteen-characters a b", 8, out);
    fclose(out);
    assert_string_equal(text, "one two\nthree\n\nfourteen-characters\na b\n");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fit_cuts_at_characters),
        cmocka_unit_test(test_wrap_breaks_between_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
