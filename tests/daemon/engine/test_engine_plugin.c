/*
 * test_engine_plugin.c: what NCCL's profiler plugin tells: no reductions, at times no streams and no sizes; and the
 * note about a process of which nothing is seen.
 */
#include "tests/daemon/engine/sim.h"

#include "trace/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t sizes[] = {2, 3, 4, 8};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))
#define AR    ROLL_OP_ALLREDUCE

/* A call as the plugin of an old NCCL tells it. */
static void told(struct sim *sim, uint32_t rank, uint32_t comm, uint64_t count)
{
    struct roll_record *rec = sim_call(sim, rank, comm, AR, count);
    rec->flags |= ROLL_FLAG_PLUGIN;
    rec->redop = ROLL_RED_NONE;
    rec->stream = 0;
}

/* An unknown reduction differs from none; a count does. */
static void test_an_unknown_reduction_is_no_mismatch(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (int sick = 0; sick < 2; sick++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t world = sim_world(sim);
            for (uint32_t r = 0; r < sizes[i]; r++) {
                for (int k = 0; k < 4; k++) {
                    if (sick || r > 0) {
                        told(sim, r, world, sick && r == 0 && k == 2 ? 7 : 64);
                    } else {
                        sim_call(sim, r, world, AR, 64)->redop = ROLL_RED_MAX;
                    }
                }
            }
            char *lines = sim_run(sim, 0, false, false);
            assert_int_equal(strstr(lines, "count-mismatch") != NULL, sick);
            assert_null(strstr(lines, sick ? "redop" : "mismatch"));
            free(lines);
            sim_destroy(&sim);
        }
    }
}

/* Two communicators that each rank takes in another order: on streams of their own nobody waits, so nothing is said. */
static void test_unknown_streams_are_not_one_stream(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t a = sim_comm(sim, "a", NULL, sizes[i]), b = sim_comm(sim, "b", NULL, sizes[i]);
        for (uint32_t r = 0; r < sizes[i]; r++) {
            told(sim, r, r % 2 ? a : b, 64);
            told(sim, r, r % 2 ? b : a, 64);
        }
        sim_expect(sim, "");
        sim_destroy(&sim);
    }
}

/* a communicator whose size nobody tells */

static struct roll_record call_of(uint64_t ticket, uint32_t seq, uint64_t count)
{
    return (struct roll_record){.seal = roll_seal(ticket, ROLL_STATE_RETURNED),
                                .enter_ns = S_ + ticket,
                                .count = count,
                                .seq = seq,
                                .peer = ROLL_PEER_NONE,
                                .step = ROLL_STEP_NONE,
                                .comm = 1,
                                .thread = 1,
                                .op = AR,
                                .dtype = ROLL_DTYPE_FLOAT32,
                                .redop = ROLL_RED_NONE,
                                .flags = ROLL_FLAG_PLUGIN,
                                .layer = ROLL_LAYER_NONE};
}

/* `members` of a job of eight share a communicator of which each only knows its own rank; the last may pass another
 * count. */
static void run_open(uint32_t members, bool sick, bool *found, struct roll_view_comm *view)
{
    struct roll_engine_config config = {0};
    roll_engine_t *e = roll_engine_new(&config);
    const struct roll_verdict *v;
    for (uint32_t r = 0; r < members; r++) {
        struct roll_source_info info = {
            .stream = r + 1, .world_rank = (int32_t)r, .world_size = 8, .pid = 9, .host = "n", .exe = "x"};
        struct roll_def def = {.type = ROLL_DEF_COMM, .id = 1, .comm.label = ""};
        uint32_t source;
        def.comm.info = (struct roll_def_comm){.key = 5, .rank = (int32_t)r, .nranks = 8, .flags = ROLL_DEF_COMM_OPEN};
        assert_int_equal(roll_engine_open(e, &info, &source), 0);
        assert_int_equal(roll_engine_clock(e, source, 0), 0);
        assert_int_equal(roll_engine_define(e, source, &def), 0);
    }
    for (uint64_t k = 0; k < 20; k++) {
        for (uint32_t r = 0; r < members; r++) {
            struct roll_record rec = call_of(k, (uint32_t)k, sick && r == members - 1 && k == 9 ? 3 : 64);
            assert_int_equal(roll_engine_feed(e, r, &rec, 1), 0);
        }
        assert_int_equal(roll_engine_tick(e, (k + 2) * S_), 0);
    }
    (void)roll_engine_tick(e, 60 * S_);
    *found = false;
    while ((v = roll_engine_next(e)) != NULL) {
        *found = true;
        assert_int_equal(v->code, ROLL_VERDICT_COUNT_MISMATCH);
        assert_int_equal(v->seq, 9);
    }
    assert_true(roll_engine_comm(e, 0, view));
    roll_engine_destroy(&e);
}

static void test_a_communicator_of_unknown_size_has_the_members_that_are_seen(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct roll_view_comm view;
        bool found;
        run_open(sizes[i], false, &found, &view);
        assert_false(found); /* nobody waits for the six who may not exist */
        assert_int_equal(view.size, sizes[i]);
        assert_int_equal(view.done, 20);
        run_open(sizes[i], true, &found, &view);
        assert_true(found);
    }
}

static void test_a_definition_that_contradicts_an_open_one_is_refused(void **state)
{
    (void)state;
    struct roll_engine_config config = {0};
    roll_engine_t *e = roll_engine_new(&config);
    uint32_t source;
    struct roll_source_info info = {.stream = 1, .world_size = 2, .pid = 9, .host = "n", .exe = "x"};
    struct roll_def def = {.type = ROLL_DEF_COMM, .id = 1, .comm.label = ""};
    assert_int_equal(roll_engine_open(e, &info, &source), 0);
    def.comm.info = (struct roll_def_comm){.key = 5, .rank = 0, .nranks = 2, .flags = ROLL_DEF_COMM_OPEN};
    assert_int_equal(roll_engine_define(e, source, &def), 0);
    def.id = 2;
    def.comm.info.rank = 1;
    def.comm.info.flags = 0;
    assert_int_equal(roll_engine_define(e, source, &def), ROLL_E_CORRUPT);
    def.comm.info = (struct roll_def_comm){.key = 5, .rank = 7, .nranks = 8, .flags = ROLL_DEF_COMM_OPEN};
    assert_int_equal(roll_engine_define(e, source, &def), ROLL_E_CORRUPT);
    roll_engine_destroy(&e);
}

/* the note */

static void test_a_process_of_which_nothing_is_seen_is_noted_once(void **state)
{
    (void)state;
    struct roll_engine_config config = {0};
    roll_engine_t *e = roll_engine_new(&config);
    struct roll_engine_note note = {
        .pid = 77, .world_rank = 3, .host = "node1", .exe = "train", .reason = "its thread NCCL Service 0 runs"};
    struct roll_engine_summary summary;
    assert_int_equal(roll_engine_note(e, &note), 0);
    assert_int_equal(roll_engine_note(e, &note), 0); /* the rank's agent came back */
    const struct roll_verdict *v = roll_engine_next(e);
    assert_non_null(v);
    assert_int_equal(v->code, ROLL_VERDICT_ATTACHED_UNSEEN);
    assert_int_equal(v->certainty, ROLL_NOTE);
    assert_true(roll_rankset_has(&v->culprits, 3));
    assert_non_null(strstr(v->text, "its thread NCCL Service 0 runs"));
    assert_null(roll_engine_next(e));
    note.host = "node2"; /* a pid on another host is another process */
    note.world_rank = -1;
    assert_int_equal(roll_engine_note(e, &note), 0);
    v = roll_engine_next(e);
    assert_non_null(v);
    assert_true(roll_rankset_count(&v->culprits) == 0);
    roll_engine_summary(e, &summary);
    assert_int_equal(summary.findings, 0);
    note.pid = 0;
    assert_int_equal(roll_engine_note(e, &note), ROLL_E_ARG);
    roll_engine_destroy(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_unknown_reduction_is_no_mismatch),
        cmocka_unit_test(test_unknown_streams_are_not_one_stream),
        cmocka_unit_test(test_a_communicator_of_unknown_size_has_the_members_that_are_seen),
        cmocka_unit_test(test_a_definition_that_contradicts_an_open_one_is_refused),
        cmocka_unit_test(test_a_process_of_which_nothing_is_seen_is_noted_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
