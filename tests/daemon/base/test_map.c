/*
 * test_map.c: a map finds what was entered, under keys that meet in one slot as well, and loses nothing when it cannot
 * grow.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static bool short_of_memory;

static void *scarce_calloc(size_t n, size_t bytes)
{
    return short_of_memory ? NULL : calloc(n, bytes);
}

#define calloc scarce_calloc
#include "daemon/base/map.h"
#undef calloc

#define KEYS 3000u

/* The keys that begin at the last slot of the smallest map: their chain goes round its end. */
static uint64_t colliding_key(uint64_t *last)
{
    do {
        ++*last;
    } while (roll_map_begin(*last, ROLL_MAP_FIRST) != ROLL_MAP_FIRST - 1);
    return *last;
}

static void test_an_empty_map_has_nothing(void **state)
{
    (void)state;
    struct roll_map map = {0};
    assert_true(roll_map_get(&map, 0) == ROLL_MAP_NONE);
    roll_map_fini(&map);
}

static void test_every_key_is_found_while_the_map_grows(void **state)
{
    (void)state;
    struct roll_map map = {0};
    for (uint32_t i = 0; i < KEYS; i++) {
        assert_true(roll_map_get(&map, (uint64_t)i << 40) == ROLL_MAP_NONE);
        assert_int_equal(roll_map_add(&map, (uint64_t)i << 40, i), 0);
        assert_true(map.used * 2 <= map.slots);
    }
    for (uint32_t i = 0; i < KEYS; i++) {
        assert_int_equal(roll_map_get(&map, (uint64_t)i << 40), i);
    }
    assert_true(roll_map_get(&map, (uint64_t)KEYS << 40) == ROLL_MAP_NONE);
    assert_true(roll_map_get(&map, 1) == ROLL_MAP_NONE);
    roll_map_fini(&map);
}

static void test_keys_that_meet_in_one_slot_are_told_apart(void **state)
{
    (void)state;
    struct roll_map map = {0};
    uint64_t last = 0, key[ROLL_MAP_FIRST / 2];
    for (uint32_t i = 0; i < ROLL_MAP_FIRST / 2; i++) {
        key[i] = colliding_key(&last);
        assert_int_equal(roll_map_add(&map, key[i], 1000 + i), 0);
    }
    assert_int_equal(map.slots, ROLL_MAP_FIRST);
    for (uint32_t i = 0; i < ROLL_MAP_FIRST / 2; i++) {
        assert_int_equal(roll_map_get(&map, key[i]), 1000 + i);
    }
    assert_true(roll_map_get(&map, colliding_key(&last)) == ROLL_MAP_NONE);
    roll_map_fini(&map);
}

/* In the order in which they were entered, whatever else lies between them and however often the map has grown. */
static void test_one_key_gives_all_that_was_entered_under_it(void **state)
{
    (void)state;
    struct roll_map map = {0};
    uint64_t last = 0, key = colliding_key(&last);
    for (uint32_t i = 0; i < 500; i++) {
        assert_int_equal(roll_map_add(&map, key, i), 0);
        assert_int_equal(roll_map_add(&map, colliding_key(&last), 100000 + i), 0);
    }
    size_t step = 0;
    for (uint32_t i = 0; i < 500; i++) {
        assert_int_equal(roll_map_each(&map, key, &step), i);
    }
    assert_true(roll_map_each(&map, key, &step) == ROLL_MAP_NONE);
    assert_true(roll_map_each(&map, key, &step) == ROLL_MAP_NONE);
    roll_map_fini(&map);
}

/* Things come and go, in chains that go round the end of the map too: what is there is found, what has gone is not, and
 * the map does not grow. */
static void test_what_is_taken_out_leaves_no_mark(void **state)
{
    (void)state;
    struct roll_map map = {0};
    uint64_t last = 0, key[24];
    bool here[24] = {false};
    for (uint32_t i = 0; i < 24; i++) {
        key[i] = i % 2 ? colliding_key(&last) : (uint64_t)i << 40;
    }
    roll_map_remove(&map, key[0], 0);
    for (uint32_t turn = 0, at = 7; turn < 20000; turn++) {
        at = at * 1103515245u + 12345u;
        uint32_t i = (at >> 16) % 24;
        if (here[i]) {
            roll_map_remove(&map, key[i], i);
        } else {
            assert_int_equal(roll_map_add(&map, key[i], 100 + i), 0);
            roll_map_renumber(&map, key[i], 100 + i, i);
        }
        here[i] = !here[i];
        roll_map_remove(&map, key[i], 999); /* is not there */
        for (uint32_t k = 0; k < 24; k++) {
            assert_true(roll_map_get(&map, key[k]) == (here[k] ? k : ROLL_MAP_NONE));
        }
    }
    assert_int_equal(map.slots, ROLL_MAP_FIRST);
    roll_map_fini(&map);
}

static void test_short_of_memory_what_was_entered_stays(void **state)
{
    (void)state;
    struct roll_map map = {0};
    short_of_memory = true;
    assert_int_equal(roll_map_add(&map, 1, 1), ROLL_E_NOMEM);
    assert_true(roll_map_get(&map, 1) == ROLL_MAP_NONE);
    short_of_memory = false;
    for (uint32_t i = 0; i < ROLL_MAP_FIRST / 2; i++) {
        assert_int_equal(roll_map_add(&map, i, i), 0);
    }
    short_of_memory = true;
    assert_int_equal(roll_map_add(&map, 12345, 1), ROLL_E_NOMEM);
    assert_true(roll_map_get(&map, 12345) == ROLL_MAP_NONE);
    for (uint32_t i = 0; i < ROLL_MAP_FIRST / 2; i++) {
        assert_int_equal(roll_map_get(&map, i), i);
    }
    short_of_memory = false;
    assert_int_equal(roll_map_add(&map, 12345, 1), 0);
    assert_int_equal(roll_map_get(&map, 12345), 1);
    roll_map_fini(&map);
}

/* After roll_map_reserve one more is entered without memory. */
static void test_room_that_was_reserved_is_there(void **state)
{
    (void)state;
    struct roll_map map = {0};
    for (uint32_t i = 0; i < 1000; i++) {
        short_of_memory = false;
        assert_int_equal(roll_map_reserve(&map), 0);
        short_of_memory = true;
        assert_int_equal(roll_map_add(&map, i, i), 0);
    }
    short_of_memory = false;
    roll_map_fini(&map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_empty_map_has_nothing),
        cmocka_unit_test(test_every_key_is_found_while_the_map_grows),
        cmocka_unit_test(test_keys_that_meet_in_one_slot_are_told_apart),
        cmocka_unit_test(test_one_key_gives_all_that_was_entered_under_it),
        cmocka_unit_test(test_what_is_taken_out_leaves_no_mark),
        cmocka_unit_test(test_short_of_memory_what_was_entered_stays),
        cmocka_unit_test(test_room_that_was_reserved_is_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
