/*
 * test_rankset.c: sets of ranks, compared with a bitmap.
 */
#include "tests/trace/cmocka_all.h"

#include "trace/err.h"
#include "trace/rankset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS 200

static uint64_t dice_state = 42;

static uint32_t dice(uint32_t sides)
{
    dice_state = dice_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(dice_state >> 33) % sides;
}

/* Checks that the set and the bitmap hold the same ranks, that the set is sorted, disjoint and merged, and that its
 * text is parsed back to the same set. */
static void same(const struct roll_rankset *set, const bool map[RANKS])
{
    size_t count = 0;
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(roll_rankset_has(set, r), map[r]);
        if (map[r]) {
            assert_int_equal(roll_rankset_at(set, count), r);
            count++;
        }
    }
    assert_int_equal(roll_rankset_count(set), count);
    assert_int_equal(roll_rankset_at(set, count), UINT32_MAX);
    for (size_t i = 0; i < set->used; i++) {
        assert_true(set->range[i].first <= set->range[i].last);
        assert_true(i == 0 || set->range[i - 1].last + 1 < set->range[i].first);
    }
    char text[2000];
    assert_true(roll_rankset_format(set, text, sizeof(text)) < sizeof(text));
    struct roll_rankset back = {0};
    assert_int_equal(roll_rankset_parse(text, &back), 0);
    assert_true(roll_rankset_equal(set, &back));
    roll_rankset_fini(&back);
}

static void random_sets_equal_a_bitmap(void **state)
{
    (void)state;
    for (int round = 0; round < 300; round++) {
        struct roll_rankset set = {0};
        struct roll_rankset other = {0};
        bool map[RANKS] = {false};
        for (uint32_t i = dice(40); i > 0; i--) {
            uint32_t first = dice(RANKS);
            uint32_t last = first + dice(dice(2) ? 3 : RANKS - first);
            last = last < RANKS ? last : RANKS - 1;
            struct roll_rankset *into = dice(4) == 0 ? &other : &set;
            assert_int_equal(first == last ? roll_rankset_add(into, first) : roll_rankset_add_range(into, first, last),
                             0);
            memset(map + first, true, last - first + 1);
        }
        assert_int_equal(roll_rankset_union(&set, &other), 0);
        same(&set, map);
        assert_int_equal(roll_rankset_copy(&other, &set), 0);
        assert_true(roll_rankset_equal(&other, &set));
        same(&other, map);
        roll_rankset_fini(&set);
        roll_rankset_fini(&other);
    }
}

static void text_is_folded(void **state)
{
    (void)state;
    struct roll_rankset set = {0};
    char text[64];
    assert_int_equal(roll_rankset_format(&set, text, sizeof(text)), 0);
    assert_string_equal(text, "");
    for (uint32_t r = 0; r < 8; r++) {
        assert_int_equal(r == 4 || r == 5 ? 0 : roll_rankset_add(&set, 7 - r), 0);
    }
    assert_int_equal(roll_rankset_format(&set, text, sizeof(text)), 7);
    assert_string_equal(text, "0-1,4-7");
    assert_int_equal(roll_rankset_add(&set, UINT32_MAX), 0);
    assert_int_equal(roll_rankset_add(&set, UINT32_MAX), 0);
    assert_true(roll_rankset_has(&set, UINT32_MAX));
    assert_int_equal(roll_rankset_add_range(&set, 5, 4), ROLL_E_ARG);
    assert_int_equal(roll_rankset_add_range(&set, 0, UINT32_MAX), 0);
    assert_int_equal(set.used, 1);
    assert_int_equal(roll_rankset_count(&set), (uint64_t)UINT32_MAX + 1);
    roll_rankset_clear(&set);
    assert_int_equal(roll_rankset_count(&set), 0);
    roll_rankset_fini(&set);
}

static void text_that_does_not_fit_is_cut_at_a_range(void **state)
{
    (void)state;
    struct roll_rankset set = {0};
    assert_int_equal(roll_rankset_parse("10,20,30,40-45,50", &set), 0);
    const size_t wanted = strlen("10,20,30,40-45,50");
    for (size_t size = 0; size <= wanted + 2; size++) {
        char *text = malloc(size + 1);
        assert_non_null(text);
        text[size] = 'x';
        assert_int_equal(roll_rankset_format(&set, text, size), wanted);
        assert_int_equal(text[size], 'x');
        if (size > 0) {
            assert_true(strlen(text) < size);
        }
        if (size == 10) {
            assert_string_equal(text, "10,20,\u2026");
        }
        if (size > wanted) {
            assert_string_equal(text, "10,20,30,40-45,50");
        }
        free(text);
    }
    roll_rankset_fini(&set);
}

static void malformed_text_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"x",   "-",  "1-",    "-1",  "1,",  ",1",    "1,,2",  "3-1",
                                      "1 2", " 1", "1-2-3", "0x1", "1.5", "1\xff", "4,5-4", "999999999x"};
    struct roll_rankset set = {0};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        int err = roll_rankset_parse(bad[i], &set);
        assert_true(err == ROLL_E_ARG || (i == 15 && err == ROLL_E_LIMIT));
        assert_int_equal(set.used, 0);
    }
    assert_int_equal(roll_rankset_parse("16777215", &set), 0);
    assert_int_equal(roll_rankset_parse("16777216", &set), ROLL_E_LIMIT);
    assert_int_equal(roll_rankset_parse("0-99999999999999999999", &set), ROLL_E_LIMIT);
    assert_int_equal(roll_rankset_parse("", &set), 0);
    assert_int_equal(roll_rankset_parse("3,1,2,1", &set), 0); /* order and repetition do not matter */
    assert_int_equal(set.used, 1);
    roll_rankset_fini(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_sets_equal_a_bitmap),
        cmocka_unit_test(text_is_folded),
        cmocka_unit_test(text_that_does_not_fit_is_cut_at_a_range),
        cmocka_unit_test(malformed_text_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
