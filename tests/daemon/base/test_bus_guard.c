/*
 * test_bus_guard.c: a mapped file that is cut reads as zeros from there on, and it is known whose end was met.
 */
#include "daemon/base/bus_guard.h"
#include "tests/trace/cmocka_all.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BYTES (3u * 65536u) /* some pages, whatever the machine's are */

static unsigned char *map_of(int *fd)
{
    char path[] = "/tmp/roll_guard_XXXXXX";
    *fd = mkstemp(path);
    assert_true(*fd >= 0);
    unlink(path);
    assert_int_equal(ftruncate(*fd, BYTES), 0);
    unsigned char *map = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    assert_true(map != MAP_FAILED);
    memset(map, 7, BYTES);
    return map;
}

static void test_a_file_that_is_cut_reads_as_zeros(void **state)
{
    (void)state;
    int fd, whole_fd;
    unsigned char *map = map_of(&fd), *whole = map_of(&whole_fd);
    roll_guard(); /* behind cmocka's own handlers */
    assert_int_equal(ftruncate(fd, BYTES / 3), 0);
    assert_int_equal(map[BYTES / 3 - 1], 7);
    assert_int_equal(roll_guard_cuts(), 0);
    assert_int_equal(map[BYTES / 3], 0);
    assert_int_equal(map[BYTES - 1], 0);
    map[BYTES - 1] = 9; /* who writes there is not disturbed, and disturbs nobody */
    assert_int_equal(map[BYTES - 1], 9);
    assert_int_equal(roll_guard_cuts(), 2);
    assert_true(roll_guard_was_cut(map, BYTES, 0));
    assert_false(roll_guard_was_cut(map, BYTES / 3, 0));
    assert_true(roll_guard_was_cut(map, BYTES, 1));
    assert_false(roll_guard_was_cut(map, BYTES, 2)); /* one that was mapped there afterwards */
    assert_int_equal(whole[BYTES - 1], 7);
    assert_false(roll_guard_was_cut(whole, BYTES, 0));
    munmap(map, BYTES);
    munmap(whole, BYTES);
    close(fd);
    close(whole_fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_file_that_is_cut_reads_as_zeros)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
