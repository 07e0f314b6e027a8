/*
 * test_watchdog.c: how long a training job may stand still before its watchdog ends it (moe_core/train/watchdog.c).
 */
#include "tests/trace/cmocka_all.h"

#include "moe_core/train/watchdog.h"

static void test_the_limit_follows_the_pace(void **state)
{
    (void)state;
    static const struct {
        uint32_t timeout_s, moves;
        double start_s, longest_s;
        uint32_t limit_s;
    } rows[] = {
        {4, 0, 0, 0, WATCHDOG_START_S},  /* processes of a busy machine come late, */
        {500, 0, 0, 0, 500},             /* unless more is allowed anyway */
        {4, 1, 0.2, 0, 20},              /* all have come: the first step has its own limit, */
        {4, 1, 2.5, 0, 60},              /* by what the start took, */
        {4, 1, 30, 0, WATCHDOG_START_S}, /* at most that of the start */
        {500, 1, 0.2, 0, 500},
        {4, 2, 0.2, 0, 4},    /* from then on the timeout, */
        {4, 2, 10, 0, 21},    /* unless start and first step were slow, */
        {4, 9, 0.2, 0.7, 15}, /* or the longest step */
        {4, 9, 1e9, 1e9, 86400},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_int_equal(watchdog_limit_s(rows[i].timeout_s, rows[i].moves, rows[i].start_s, rows[i].longest_s),
                         rows[i].limit_s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_limit_follows_the_pace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
