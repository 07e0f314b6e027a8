/*
 * test_memory.c: what a loop needed while it was behind goes back to the system when it has caught up for a while.
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS 65536u
#define BYTES  1000u /* of a block: 64 MB in all */
#define S_     UINT64_C(1000000000)

static long own_kib(void)
{
    char line[256];
    long kib = -1;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (kib < 0 && fgets(line, sizeof(line), f)) {
        (void)sscanf(line, "RssAnon: %ld kB", &kib);
    }
    fclose(f);
    return kib;
}

static void what_was_needed_once_goes_back(void **state)
{
    (void)state;
    static char *block[BLOCKS];
    struct roll_memory_ebb ebb = {.behind_ns = 0};
    assert_false(roll_memory_ebb(&ebb, false, 100 * S_)); /* it was never behind */
    for (size_t i = 0; i < BLOCKS; i++) {
        assert_non_null(block[i] = malloc(BYTES));
        memset(block[i], 1, BYTES);
    }
    assert_false(roll_memory_ebb(&ebb, true, 101 * S_));
    for (size_t i = 0; i + 1 < BLOCKS; i++) { /* the last one is still used, and lies above them all */
        free(block[i]);
    }
    long before = own_kib();
    assert_false(roll_memory_ebb(&ebb, false, 101 * S_ + ROLL_MEMORY_EBB_NS - 1)); /* it may be behind again soon */
    assert_true(roll_memory_ebb(&ebb, false, 101 * S_ + ROLL_MEMORY_EBB_NS));
    assert_false(roll_memory_ebb(&ebb, false, 200 * S_));           /* once */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* whose heaps keep what was freed */
    assert_true(before > 60000);
    assert_true(own_kib() < before - 50000);
#else
    assert_true(before > 0);
#endif
    free(block[BLOCKS - 1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_was_needed_once_goes_back)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
