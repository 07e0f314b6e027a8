/* test_python.c: layouts and line tables of CPython 3.9 to 3.14, on bytes written by hand from the documented formats.
 */
#include "tests/trace/cmocka_all.h"

#include "trace/err.h"
#include "trace/python_layout.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void each_version_has_a_layout(void **state)
{
    (void)state;
    for (unsigned minor = 9; minor <= 12; minor++) {
        const struct roll_py_layout *l = roll_py_layout_known(minor);
        assert_non_null(l);
        assert_int_equal(l->minor, minor);
        assert_true(l->frame_at + 8 <= ROLL_PY_FRAME_BYTES);
    }
    assert_null(roll_py_layout_known(8));
    assert_null(roll_py_layout_known(13)); /* carries its own */
}

/* A table of offsets in which word i holds i * 2: what was read from where can be told apart. */
static void table(uint64_t words[ROLL_PY_OFFSET_WORDS], uint32_t version, uint64_t free_threaded)
{
    for (unsigned i = 0; i < ROLL_PY_OFFSET_WORDS; i++) {
        words[i] = i * 2;
    }
    memcpy(words, "xdebugpy", 8);
    words[1] = version;
    words[2] = free_threaded;
}

static void offsets_are_read_in_the_order_of_their_version(void **state)
{
    (void)state;
    uint64_t words[ROLL_PY_OFFSET_WORDS];
    struct roll_py_layout l;
    table(words, 0x030d00f0, 0);
    assert_int_equal(roll_py_layout_read(words, ROLL_PY_OFFSET_WORDS, &l), 0);
    assert_int_equal(l.minor, 13);
    assert_int_equal(l.interpreters, 5 * 2);
    assert_int_equal(l.thread_frame, 23 * 2);
    assert_int_equal(l.frame_owner, 33 * 2);
    assert_int_equal(l.code_bytes, 43 * 2);
    assert_int_equal(l.object_type, 45 * 2);
    table(words, 0x030e01f0, 0);
    assert_int_equal(roll_py_layout_read(words, ROLL_PY_OFFSET_WORDS, &l), 0);
    assert_int_equal(l.minor, 14);
    assert_int_equal(l.thread_frame, 26 * 2);
    assert_int_equal(l.frame_owner, 36 * 2);
    assert_int_equal(l.code_bytes, 48 * 2);
    assert_int_equal(l.object_type, 51 * 2);
    assert_int_equal(l.text_ascii, 40);
    table(words, 0x030e01f0, 1); /* a free-threaded build has larger object heads */
    assert_int_equal(roll_py_layout_read(words, ROLL_PY_OFFSET_WORDS, &l), 0);
    assert_true(l.free_threaded);
    assert_int_equal(l.text_ascii, 56);
    assert_int_equal(l.text_kind_bit, 8);
}

static void bad_tables_are_refused(void **state)
{
    (void)state;
    uint64_t words[ROLL_PY_OFFSET_WORDS];
    struct roll_py_layout l;
    table(words, 0x030d00f0, 0);
    words[0] = 0;
    assert_int_equal(roll_py_layout_read(words, ROLL_PY_OFFSET_WORDS, &l), ROLL_E_MAGIC);
    table(words, 0x030f00f0, 0);
    assert_int_equal(roll_py_layout_read(words, ROLL_PY_OFFSET_WORDS, &l), ROLL_E_VERSION);
    table(words, 0x040d00f0, 0);
    assert_int_equal(roll_py_layout_read(words, ROLL_PY_OFFSET_WORDS, &l), ROLL_E_VERSION);
    table(words, 0x030d00f0, 0);
    assert_int_equal(roll_py_layout_read(words, 20, &l), ROLL_E_SHORT);
    words[31] = UINT64_MAX;
    assert_int_equal(roll_py_layout_read(words, ROLL_PY_OFFSET_WORDS, &l), ROLL_E_CORRUPT);
    table(words, 0x030d00f0, 0);
    words[33] = 4096; /* beyond what is read of a frame */
    assert_int_equal(roll_py_layout_read(words, ROLL_PY_OFFSET_WORDS, &l), ROLL_E_CORRUPT);
}

static void lines_of_3_9(void **state)
{
    (void)state;
    static const uint8_t t[] = {0, 1,           8, 2,
                                6, (uint8_t)-1, 4, 10}; /* from 0: 11; from 8: 13; from 14: 12; from 18: 22 */
    assert_int_equal(roll_py_line(ROLL_PY_LNOTAB, t, sizeof(t), 10, 0), 11);
    assert_int_equal(roll_py_line(ROLL_PY_LNOTAB, t, sizeof(t), 10, 7), 11);
    assert_int_equal(roll_py_line(ROLL_PY_LNOTAB, t, sizeof(t), 10, 8), 13);
    assert_int_equal(roll_py_line(ROLL_PY_LNOTAB, t, sizeof(t), 10, 14), 12);
    assert_int_equal(roll_py_line(ROLL_PY_LNOTAB, t, sizeof(t), 10, 400), 22);
    assert_int_equal(roll_py_line(ROLL_PY_LNOTAB, t, 0, 10, 400), 10);
}

static void lines_of_3_10(void **state)
{
    (void)state;
    static const uint8_t t[] = {4, 1, 6, 0x80, 2, 2}; /* below 4: 11; below 10: none, so 11; below 12: 13 */
    assert_int_equal(roll_py_line(ROLL_PY_RANGES, t, sizeof(t), 10, 3), 11);
    assert_int_equal(roll_py_line(ROLL_PY_RANGES, t, sizeof(t), 10, 4), 11);
    assert_int_equal(roll_py_line(ROLL_PY_RANGES, t, sizeof(t), 10, 10), 13);
    assert_int_equal(roll_py_line(ROLL_PY_RANGES, t, sizeof(t), 10, 12), 0);
}

static void lines_of_3_11(void **state)
{
    (void)state;
    static const uint8_t t[] = {
        0x80 | 3 << 3 | 1,  0x12,                /* 2 units, short: line 10 */
        0x80 | 11 << 3 | 0, 1,    2,             /* 1 unit, one line down: 11 */
        0x80 | 15 << 3 | 0,                      /* 1 unit, nowhere: still 11 */
        0x80 | 14 << 3 | 1, 0x46, 0x02, 1, 1, 1, /* 2 units, long: +(0x46 & 63 | 2 << 6) = 134 / 2 = +67: 78 */
        0x80 | 13 << 3 | 7, 0x03,                /* 8 units, no columns: -1: 77 */
    };
    const unsigned want[] = {10, 10, 11, 11, 78, 78, 77, 77, 77};
    for (unsigned i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        assert_int_equal(roll_py_line(ROLL_PY_LOCATIONS, t, sizeof(t), 10, i * 2), want[i]);
    }
    assert_int_equal(roll_py_line(ROLL_PY_LOCATIONS, t, sizeof(t), 10, 1000), 0);
}

/* Line 0, at which the code of each module begins from 3.11 on, and nothing, with no line before it. */
static void instructions_without_a_line_are_at_the_nearest(void **state)
{
    (void)state;
    static const uint8_t module[] = {0x80 | 13 << 3 | 0, 0x03, 0x80 | 15 << 3 | 0, 0x80 | 13 << 3 | 0, 0x0a};
    const unsigned want[] = {1, 1, 5};
    for (unsigned i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        assert_int_equal(roll_py_line(ROLL_PY_LOCATIONS, module, sizeof(module), 1, i * 2), want[i]);
    }
    static const uint8_t nothing[] = {4, 0x80}, below[] = {4, (uint8_t)-3}, before[] = {0, (uint8_t)-3};
    assert_int_equal(roll_py_line(ROLL_PY_RANGES, nothing, sizeof(nothing), 3, 0), 3);
    assert_int_equal(roll_py_line(ROLL_PY_RANGES, below, sizeof(below), 3, 0), 3);
    assert_int_equal(roll_py_line(ROLL_PY_LNOTAB, before, sizeof(before), 3, 0), 3);
}

/* Is `line` none, or as near to the first line as `steps` entries can lead? */
static bool is_near(unsigned line, unsigned first, size_t steps)
{
    int64_t away = (int64_t)line - (int64_t)first;
    return line == 0 || (away <= (int64_t)steps * 127 && away >= -(int64_t)steps * 128);
}

/*
 * Whatever the bytes are: the search ends, gives no line that the entries cannot lead to, gives none behind the code
 * that the entries cover, and reads nothing behind the table (which ends where a page begins that nobody may read).
 */
static void hostile_lines_end(void **state)
{
    (void)state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *map = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(map != MAP_FAILED);
    assert_int_equal(mprotect(map + page, page, PROT_NONE), 0);
    uint32_t seed = 1;
    unsigned found = 0;
    for (unsigned round = 0; round < 20000; round++) {
        size_t n = round % 40;
        uint8_t *t = map + page - n;
        for (size_t i = 0; i < n; i++) {
            seed = seed * 1664525u + 1013904223u;
            t[i] = (uint8_t)(seed >> 24);
        }
        unsigned first = seed >> 1, at = (seed >> 20) % 600;
        assert_true(is_near(roll_py_line(ROLL_PY_LNOTAB, t, n, first, at), first, n / 2));
        assert_true(is_near(roll_py_line(ROLL_PY_RANGES, t, n, first, at), first, n / 2));
        assert_int_equal(roll_py_line(ROLL_PY_RANGES, t, n, first, 255 * (unsigned)(n / 2)), 0);
        unsigned line = roll_py_line(ROLL_PY_LOCATIONS, t, n, first, at);
        assert_true(line <= INT32_MAX);
        found += line != 0;
        assert_int_equal(roll_py_line(ROLL_PY_LOCATIONS, t, n, first, 16 * (unsigned)n), 0);
    }
    assert_true(found > 1000); /* the bytes do lead somewhere */
    assert_int_equal(munmap(map, 2 * page), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_version_has_a_layout),
        cmocka_unit_test(offsets_are_read_in_the_order_of_their_version),
        cmocka_unit_test(bad_tables_are_refused),
        cmocka_unit_test(lines_of_3_9),
        cmocka_unit_test(lines_of_3_10),
        cmocka_unit_test(lines_of_3_11),
        cmocka_unit_test(instructions_without_a_line_are_at_the_nearest),
        cmocka_unit_test(hostile_lines_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
