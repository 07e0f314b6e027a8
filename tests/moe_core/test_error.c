/*
 * test_error.c: the message of the last failure: what a layer adds to the message of a part that does not know where it
 * is. The functions are internal, so error.c is compiled into this test.
 */
#include "moe_core/base/fail.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void failure_names_the_place_that_is_known(void **state)
{
    (void)state;
    assert_int_equal(moe_fail(MOE_E_SHAPE, 3, 2, "%d rows", 7), MOE_E_SHAPE);
    assert_string_equal(moe_last_error(), "rank 3, layer 2, shapes do not fit together: 7 rows");
    moe_fail(MOE_E_SHAPE, 3, MOE_NO_LAYER, "7 rows");
    assert_string_equal(moe_last_error(), "rank 3, shapes do not fit together: 7 rows");
    moe_fail(MOE_E_SHAPE, MOE_NO_RANK, MOE_NO_LAYER, "7 rows");
    assert_string_equal(moe_last_error(), "shapes do not fit together: 7 rows");
}

static void layer_adds_its_place_to_a_failure_without_one(void **state)
{
    (void)state;
    moe_fail(MOE_E_ARG, MOE_NO_RANK, MOE_NO_LAYER, "no router preset '%s'", "mix");
    assert_int_equal(moe_fail_at(MOE_E_ARG, 5, 7), MOE_E_ARG);
    assert_string_equal(moe_last_error(), "rank 5, layer 7, invalid argument: no router preset 'mix'");
    /* A second layer function on the way out adds nothing. */
    moe_fail_at(MOE_E_ARG, 5, 7);
    assert_string_equal(moe_last_error(), "rank 5, layer 7, invalid argument: no router preset 'mix'");
}

static void word_layer_in_a_detail_is_not_a_place(void **state)
{
    (void)state;
    moe_fail(MOE_E_ARG, MOE_NO_RANK, MOE_NO_LAYER, "no router preset '%s'", "two-layer");
    moe_fail_at(MOE_E_ARG, 5, 7);
    assert_string_equal(moe_last_error(), "rank 5, layer 7, invalid argument: no router preset 'two-layer'");
}

static void layer_leaves_a_failure_alone_that_names_its_place(void **state)
{
    (void)state;
    moe_fail(MOE_E_COUNT, 5, 2, "in expert 1");
    moe_fail_at(MOE_E_COUNT, 5, 7);
    assert_string_equal(moe_last_error(), "rank 5, layer 2, a token count is negative or too large: in expert 1");
    moe_fail_layers(MOE_E_COUNT, 5, "in one of the layers %u to %u", 2u, 4u);
    moe_fail_at(MOE_E_COUNT, 5, 7);
    assert_string_equal(moe_last_error(),
                        "rank 5, a token count is negative or too large: in one of the layers 2 to 4");
}

/* What a rank tells its peers: the reason without the place, and whether it is its own. */
static void detail_is_known_apart_from_place_and_text(void **state)
{
    (void)state;
    struct moe_failure kept;
    moe_fail(MOE_E_SHAPE, 3, 2, "%d rows", 7);
    moe_failure_keep(&kept);
    assert_string_equal(kept.message + kept.detail, "7 rows");
    assert_int_equal(kept.code, MOE_E_SHAPE);
    moe_fail(MOE_E_ARG, MOE_NO_RANK, MOE_NO_LAYER, "no router preset");
    moe_fail_at(MOE_E_ARG, 5, 7);
    moe_failure_keep(&kept);
    assert_string_equal(kept.message + kept.detail, "no router preset");
    assert_int_equal(kept.code, MOE_E_ARG);
    assert_false(kept.told);
    assert_int_equal(moe_told(moe_fail(MOE_E_COUNT, 5, 2, "rank 1")), MOE_E_COUNT);
    moe_failure_keep(&kept);
    assert_true(kept.told);
    moe_fail(MOE_E_COUNT, 5, 2, "rank 1");
    moe_failure_keep(&kept);
    assert_false(kept.told);
}

static void success_changes_no_message(void **state)
{
    (void)state;
    moe_fail(MOE_E_ARG, MOE_NO_RANK, MOE_NO_LAYER, "no router preset 'mix'");
    assert_int_equal(moe_fail_at(0, 5, 7), 0);
    assert_string_equal(moe_last_error(), "invalid argument: no router preset 'mix'");
}

static void long_message_is_cut_and_keeps_its_place(void **state)
{
    char text[1024];
    (void)state;
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    moe_fail(MOE_E_CAPACITY, MOE_NO_RANK, MOE_NO_LAYER, "%s", text);
    moe_fail_at(MOE_E_CAPACITY, 2147483647, 4294967294u);
    assert_int_equal(
        strncmp(moe_last_error(), "rank 2147483647, layer 4294967294, more rows than the buffer holds: xxx", 71), 0);
    assert_true(strlen(moe_last_error()) < 256);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failure_names_the_place_that_is_known),
        cmocka_unit_test(layer_adds_its_place_to_a_failure_without_one),
        cmocka_unit_test(word_layer_in_a_detail_is_not_a_place),
        cmocka_unit_test(layer_leaves_a_failure_alone_that_names_its_place),
        cmocka_unit_test(detail_is_known_apart_from_place_and_text),
        cmocka_unit_test(success_changes_no_message),
        cmocka_unit_test(long_message_is_cut_and_keeps_its_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
