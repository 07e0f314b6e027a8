/*
 * test_alike.c: what a replay says of its verdicts beside those of the trace: the same, different and why, or that
 * nobody waited long enough to judge.
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/console/export/alike.h"

#include <stdlib.h>
#include <string.h>

static struct roll_stands skipped = {ROLL_VERDICT_CALL_SKIPPED, ROLL_PROVEN, "3"};
static struct roll_stands added = {ROLL_VERDICT_CALL_ADDED, ROLL_SUSPECTED, "3"};
static struct roll_stands stuck = {ROLL_VERDICT_COLLECTIVE_STUCK, ROLL_SUSPECTED, "0-3"};
static struct roll_stands layer = {ROLL_VERDICT_MOE_OBLIGATION, ROLL_PROVEN, "0"};

static struct roll_standing list_of(struct roll_stands *at, size_t n)
{
    return (struct roll_standing){.at = at, .used = n};
}

/* What is said, owned by the caller. */
static char *said(struct roll_standing was, struct roll_standing now, double ended_after_s, bool same)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    assert_int_equal(roll_standing_compare(out, &was, &now, ended_after_s), same);
    assert_int_equal(fclose(out), 0);
    return text;
}

static void test_the_same_is_said_in_one_line(void **state)
{
    (void)state;
    char *text = said(list_of(&skipped, 1), list_of(&skipped, 1), 3, true);
    assert_string_equal(text, "rollcall: replay: the same as in the trace: call-skipped (proven, rank 3)\n");
    free(text);
    text = said(list_of(NULL, 0), list_of(NULL, 0), 0, true);
    assert_string_equal(text, "rollcall: replay: the same as in the trace: no finding\n");
    free(text);
}

static void test_a_wait_that_is_too_short_is_said_to_be_too_short(void **state)
{
    (void)state;
    char *text = said(list_of(&stuck, 1), list_of(NULL, 0), 3, false);
    assert_non_null(strstr(text, "the trace has collective-stuck (suspected, ranks 0-3), the replay has not"));
    assert_non_null(strstr(text, "3 s without a move (--timeout) are too short to judge it; --timeout 70 is enough"));
    free(text);
    text = said(list_of(&stuck, 1), list_of(NULL, 0), 70, false); /* which is what that line has asked for */
    assert_null(strstr(text, "too short"));
    free(text);
    text = said(list_of(&stuck, 1), list_of(NULL, 0), 0, false); /* it ended by itself */
    assert_null(strstr(text, "too short"));
    free(text);
}

static void test_what_is_not_repeatable_is_told_with_its_reason(void **state)
{
    (void)state;
    char *text = said(list_of(&layer, 1), list_of(NULL, 0), 200, false);
    assert_non_null(strstr(text, "moe-obligation-missing (proven, rank 0)"));
    assert_non_null(strstr(text, "not repeatable"));
    free(text);
    text = said(list_of(&added, 1), list_of(&skipped, 1), 3, false); /* one rank, two codes: no wait would mend it */
    assert_non_null(strstr(text, "only the replay has call-skipped (proven, rank 3)"));
    assert_non_null(strstr(text, "by another code"));
    assert_null(strstr(text, "too short"));
    free(text);
}

static void test_a_finding_that_is_there_twice_is_asked_for_twice(void **state)
{
    (void)state;
    struct roll_stands twice[] = {skipped, skipped};
    char *text = said(list_of(twice, 2), list_of(&skipped, 1), 0, false);
    assert_non_null(strstr(text, "the replay has not"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_same_is_said_in_one_line),
        cmocka_unit_test(test_a_wait_that_is_too_short_is_said_to_be_too_short),
        cmocka_unit_test(test_what_is_not_repeatable_is_told_with_its_reason),
        cmocka_unit_test(test_a_finding_that_is_there_twice_is_asked_for_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
