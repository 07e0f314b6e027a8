/*
 * test_array.c: an array grows by doubling, and is what it was when it cannot grow.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static size_t calls, last_bytes;
static bool short_of_memory;

static void *counted_realloc(void *old, size_t bytes)
{
    calls++;
    last_bytes = bytes;
    return short_of_memory ? NULL : realloc(old, bytes);
}

#define realloc counted_realloc
#include "daemon/base/array.h"
#undef realloc

static int set_up(void **state)
{
    (void)state;
    calls = last_bytes = 0;
    short_of_memory = false;
    return 0;
}

static void test_growing_by_one_costs_few_allocations(void **state)
{
    (void)state;
    uint32_t *number = NULL;
    size_t room = 0;
    for (uint32_t i = 0; i < 100000; i++) {
        assert_int_equal(ROLL_GROW(number, room, i + 1), 0);
        number[i] = i;
    }
    assert_true(calls <= 15);
    assert_true(room >= 100000 && room < 200000);
    for (uint32_t i = 0; i < 100000; i++) {
        assert_int_equal(number[i], i);
    }
    free(number);
}

static void test_what_is_wanted_at_once_is_given_exactly(void **state)
{
    (void)state;
    uint64_t *number = NULL;
    size_t room = 0;
    assert_int_equal(ROLL_GROW(number, room, 1000), 0);
    assert_int_equal(room, 1000);
    assert_int_equal(last_bytes, 8000);
    assert_int_equal(ROLL_GROW(number, room, 1000), 0);
    assert_int_equal(ROLL_GROW(number, room, 0), 0);
    assert_int_equal(calls, 1);
    free(number);
}

static void test_short_of_memory_the_old_elements_stay(void **state)
{
    (void)state;
    uint64_t *number = NULL;
    size_t room = 0;
    assert_int_equal(ROLL_GROW(number, room, 3), 0);
    number[2] = 77;
    uint64_t *before = number;
    size_t room_before = room;
    short_of_memory = true;
    assert_int_equal(ROLL_GROW(number, room, room + 1), ROLL_E_NOMEM);
    assert_ptr_equal(number, before);
    assert_int_equal(room, room_before);
    assert_int_equal(number[2], 77);
    short_of_memory = false;
    assert_int_equal(ROLL_GROW(number, room, room + 1), 0);
    assert_int_equal(number[2], 77);
    free(number);
}

static void test_what_a_table_gains_is_zero(void **state)
{
    (void)state;
    uint64_t *number = NULL;
    size_t room = 0;
    for (size_t want = 1; want < 3000; want = want * 3 + 1) {
        size_t before = room;
        assert_int_equal(ROLL_GROW_ZERO(number, room, want), 0);
        assert_true(room >= want);
        for (size_t i = 0; i < room; i++) {
            assert_int_equal(number[i], i < before ? i + 1 : 0);
            number[i] = i + 1;
        }
    }
    size_t before = room;
    short_of_memory = true;
    assert_int_equal(ROLL_GROW_ZERO(number, room, room + 1), ROLL_E_NOMEM);
    assert_int_equal(room, before);
    assert_int_equal(ROLL_GROW_ZERO(number, room, room), 0);
    assert_int_equal(number[room - 1], room);
    free(number);
}

static void test_sizes_that_cannot_be_counted_are_refused(void **state)
{
    (void)state;
    uint64_t *number = NULL;
    size_t room = 0;
    const size_t most = PTRDIFF_MAX / sizeof(*number);
    assert_int_equal(ROLL_GROW(number, room, SIZE_MAX), ROLL_E_LIMIT);
    /* The array's bytes wrap to 8. */
    assert_int_equal(ROLL_GROW(number, room, SIZE_MAX / sizeof(*number) + 2), ROLL_E_LIMIT);
    assert_int_equal(ROLL_GROW(number, room, most + 1), ROLL_E_LIMIT);
    assert_int_equal(calls, 0);
    short_of_memory = true;
    room = most - 1; /* twice as much would be too much: it asks for all that there can be */
    assert_int_equal(ROLL_GROW(number, room, most), ROLL_E_NOMEM);
    assert_true(last_bytes == most * sizeof(*number));
    assert_int_equal(room, most - 1);
    assert_null(number);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_growing_by_one_costs_few_allocations, set_up),
        cmocka_unit_test_setup(test_what_is_wanted_at_once_is_given_exactly, set_up),
        cmocka_unit_test_setup(test_short_of_memory_the_old_elements_stay, set_up),
        cmocka_unit_test_setup(test_what_a_table_gains_is_zero, set_up),
        cmocka_unit_test_setup(test_sizes_that_cannot_be_counted_are_refused, set_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
