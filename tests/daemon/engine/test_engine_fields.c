/*
 * test_engine_fields.c: what stands in a verdict beside its code: times, sides, step.
 */
#include "daemon/engine/engine.h"

#include "trace/op.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <string.h>

#define WALL   1700000000000000000ull
#define BOOTED 5000000000ull /* the host's monotonic clock at WALL */

/* Three ranks on hosts whose monotonic clocks differ by a second each; rank 2 passes another count. */
static roll_engine_t *three_ranks(void)
{
    struct roll_engine_config config = {0};
    roll_engine_t *e = roll_engine_new(&config);
    for (uint32_t r = 0; r < 3; r++) {
        struct roll_source_info info = {
            .stream = r + 1, .world_rank = (int32_t)r, .world_size = 3, .pid = 9, .host = "n", .exe = "x"};
        struct roll_def def = {.type = ROLL_DEF_COMM, .id = 1, .comm.label = ""};
        struct roll_record rec = {.seal = roll_seal(0, ROLL_STATE_RETURNED),
                                  .enter_ns = BOOTED + r * 1000000000ull + 100 + r,
                                  .count = r == 2 ? 9 : 8,
                                  .peer = ROLL_PEER_NONE,
                                  .step = 7,
                                  .comm = 1,
                                  .stream = 2,
                                  .thread = 1,
                                  .op = ROLL_OP_ALLREDUCE,
                                  .dtype = ROLL_DTYPE_FLOAT32,
                                  .layer = ROLL_LAYER_NONE};
        uint32_t source;
        def.comm.info = (struct roll_def_comm){.key = 5, .rank = (int32_t)r, .nranks = 3};
        assert_int_equal(roll_engine_open(e, &info, &source), 0);
        assert_int_equal(roll_engine_clock(e, source, (int64_t)(WALL - BOOTED - r * 1000000000ull)), 0);
        assert_int_equal(roll_engine_define(e, source, &def), 0);
        assert_int_equal(roll_engine_tick(e, WALL + 1), 0);
        assert_int_equal(roll_engine_feed(e, source, &rec, 1), 0);
    }
    return e;
}

static void test_times_of_evidence_are_wall_clock(void **state)
{
    (void)state;
    roll_engine_t *e = three_ranks();
    (void)roll_engine_tick(e, WALL + 2000000000ull);
    roll_engine_tick(e, WALL + 2000000001ull);
    const struct roll_verdict *v = roll_engine_next(e);
    assert_non_null(v);
    assert_int_equal(v->code, ROLL_VERDICT_COUNT_MISMATCH);
    assert_int_equal(v->sides, 2);
    assert_int_equal(v->event_ns, WALL + 102);
    assert_int_equal(v->side[0].rec.enter_ns, WALL + 102);
    assert_int_equal(v->side[1].rec.enter_ns, WALL + 100 + roll_rankset_at(&v->side[1].ranks, 0));
    assert_int_equal(v->step, 7);
    roll_engine_destroy(&e);
}

static void test_time_of_a_verdict_is_that_of_a_tick(void **state)
{
    (void)state;
    roll_engine_t *e = three_ranks();
    uint64_t now = WALL;
    const struct roll_verdict *v = NULL;
    for (; !v && now < WALL + 3000000000ull; now += 50000000u) {
        roll_engine_tick(e, now);
        v = roll_engine_next(e);
    }
    assert_non_null(v);
    assert_int_equal(v->time_ns, now - 50000000u);
    roll_engine_destroy(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_times_of_evidence_are_wall_clock),
        cmocka_unit_test(test_time_of_a_verdict_is_that_of_a_tick),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
