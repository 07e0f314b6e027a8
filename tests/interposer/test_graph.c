/* test_graph.c: what is recorded of calls that are captured into CUDA graphs, and of their launches. */
#include "tests/interposer/harness.h"

#include "trace/signature.h"

static void run(const char *mode, struct job *job, struct dump *dump)
{
    job_begin(job);
    job_run(job, "ROLL_TEST_GRAPH", mode, NULL);
    JOB_SUCCEEDED(job);
    dump_open(job, dump);
}

static void done(struct job *job, struct dump *dump)
{
    dump_close(dump);
    job_end(job);
}

static uint64_t hash_of(const struct dump *dump, uint16_t graph, uint16_t comm)
{
    uint64_t hash = 0;
    for (size_t i = 0; i < dump->count; i++) {
        const struct roll_record *rec = &dump->records[i];
        if ((rec->flags & ROLL_FLAG_CAPTURED) != 0 && rec->aux == graph && rec->comm == comm && rec->count != 0 &&
            rec->result == 0 && roll_op_class(rec->op) == ROLL_CLASS_COLL) {
            struct roll_signed_call call = {rec->count, rec->peer, rec->op, rec->dtype, rec->redop, rec->flags};
            hash = roll_sequence_hash(hash, roll_signature(&call));
        }
    }
    return hash;
}

struct want {
    uint8_t op;
    uint8_t flags;
    uint16_t comm, aux;
    uint32_t seq;
    uint64_t count; /* 0: the graph's hash */
    uint8_t result;
    uint32_t group;
};

static void check(const struct dump *dump, const struct want *want, size_t n)
{
    assert_int_equal(dump->count, n);
    for (size_t i = 0; i < n; i++) {
        const struct roll_record *rec = &dump->records[i];
        assert_int_equal(rec->op, want[i].op);
        assert_int_equal(rec->flags & (ROLL_FLAG_CAPTURED | ROLL_FLAG_REPLAYED), want[i].flags);
        assert_int_equal(rec->comm, want[i].comm);
        assert_int_equal(rec->seq, want[i].seq);
        assert_int_equal(rec->result, want[i].result);
        assert_int_equal(rec->group, want[i].group);
        assert_int_equal(roll_seal_state(rec->seal), ROLL_STATE_RETURNED);
        assert_true(rec->callsite != 0);
        if (rec->op != ROLL_OP_COMM_INIT) {
            assert_int_equal(rec->aux, want[i].aux);
        }
        if (rec->op == ROLL_OP_GRAPH_LAUNCH) {
            assert_true(rec->count == hash_of(dump, rec->aux, rec->comm) && rec->count != 0);
        } else if (want[i].count != 0) {
            assert_int_equal(rec->count, want[i].count);
        }
    }
    assert_int_equal(atomic_load(&dump->ring.header->losses[ROLL_LOSS_GRAPH]), 0);
}

#define INIT(comm)                                                                                                     \
    {                                                                                                                  \
        ROLL_OP_COMM_INIT, 0, comm, 0, 0, 0, 0, 0                                                                      \
    }
#define CALL(comm, seq, n)                                                                                             \
    {                                                                                                                  \
        ROLL_OP_ALLREDUCE, 0, comm, 0, seq, n, 0, 0                                                                    \
    }
#define CAPTURED(comm, g, seq, n)                                                                                      \
    {                                                                                                                  \
        ROLL_OP_ALLREDUCE, ROLL_FLAG_CAPTURED, comm, g, seq, n, 0, 0                                                   \
    }
#define LAUNCH(comm, g, seq, fail)                                                                                     \
    {                                                                                                                  \
        ROLL_OP_GRAPH_LAUNCH, 0, comm, g, seq, 0, fail, 0                                                              \
    }

static void test_captured_calls_and_launches_are_recorded(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    static const struct want want[] = {
        INIT(1),
        CALL(1, 0, 5),
        CAPTURED(1, 1, 1, 10),
        CAPTURED(1, 1, 2, 11),
        CAPTURED(1, 1, 3, 12),
        CALL(1, 4, 6),
        LAUNCH(1, 1, 5, 0),
        LAUNCH(1, 1, 6, 0),
        LAUNCH(1, 1, 7, 0), /* after the graph's destruction */
        CAPTURED(1, 2, 8, 20),
        LAUNCH(1, 2, 9, 1), /* failed */
        CALL(1, 9, 7),
    };
    run("plain", &job, &dump);
    check(&dump, want, sizeof(want) / sizeof(want[0]));
    const struct roll_def *def = dump_def(&dump, ROLL_DEF_GRAPH, 1);
    assert_int_equal(def->graph.info.first_ticket, 2);
    assert_int_equal(def->graph.info.last_ticket, 4);
    assert_int_equal(def->graph.info.calls, 3);
    assert_int_equal(def->graph.info.parts, 1);
    assert_int_equal(def->graph.part[0].collectives, 3);
    assert_int_equal(def->graph.part[0].comm, 1);
    assert_int_equal(def->graph.part[0].p2p, 0);
    assert_true(def->graph.part[0].hash == hash_of(&dump, 1, 1));
    done(&job, &dump);
}

static void test_communicators_streams_and_messages_in_one_graph(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    enum { C = ROLL_FLAG_CAPTURED, R = ROLL_FLAG_REPLAYED };
    static const struct want want[] = {
        INIT(1),
        INIT(2),
        CAPTURED(1, 1, 0, 10),
        CAPTURED(2, 1, 0, 11), /* on a stream that joined */
        CALL(2, 1, 12),        /* on one that did not */
        {ROLL_OP_ALLREDUCE, C, 1, 1, 1, 0, 0, 0},
        {ROLL_OP_ALLREDUCE, C, 1, 1, 1, 13, 4, 0}, /* refused: it gives its number back */
        {ROLL_OP_SEND, C, 1, 1, 0, 14, 0, 1},
        {ROLL_OP_RECV, C, 1, 1, 0, 15, 0, 1},
        {ROLL_OP_GROUP_END, 0, 0, 2, 0, 0, 0, 1},
        {ROLL_OP_GRAPH_LAUNCH, 0, 1, 1, 1, 0, 0, 2},
        {ROLL_OP_GRAPH_LAUNCH, 0, 2, 1, 2, 0, 0, 2},
        {ROLL_OP_SEND, R, 1, 1, 1, 14, 0, 2},
        {ROLL_OP_RECV, R, 1, 1, 1, 15, 0, 2},
        {ROLL_OP_GROUP_END, 0, 0, 4, 0, 0, 0, 2},
        {ROLL_OP_SEND, 0, 1, 0, 2, 16, 0, 0},
    };
    run("mixed", &job, &dump);
    check(&dump, want, sizeof(want) / sizeof(want[0]));
    const struct roll_def *def = dump_def(&dump, ROLL_DEF_GRAPH, 1);
    assert_int_equal(def->graph.info.parts, 2);
    assert_int_equal(def->graph.part[0].p2p, 2);
    assert_int_equal(def->graph.part[1].comm, 2);
    done(&job, &dump);
}

static void test_graphs_made_of_graphs_hold_the_same(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    uint64_t seen[6];
    size_t at = 0;
    run("derived", &job, &dump);
    for (size_t i = 0; i < 6; i++) {
        const struct roll_record *rec = dump_next(&dump, &at, ROLL_OP_GRAPH_LAUNCH);
        assert_non_null(rec);
        seen[i] = rec->count;
    }
    assert_null(dump_next(&dump, &at, ROLL_OP_GRAPH_LAUNCH));
    for (size_t i = 1; i < 5; i++) {
        assert_true(seen[i] == seen[0]);
    }
    assert_true(seen[5] != seen[0]);
    done(&job, &dump);
}

static void test_the_driver_is_seen_too_and_nothing_twice(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    static const struct want want[] = {INIT(1), CAPTURED(1, 1, 0, 10), LAUNCH(1, 1, 1, 0), LAUNCH(1, 1, 2, 0),
                                       LAUNCH(1, 1, 3, 0)};
    run("driver", &job, &dump);
    check(&dump, want, sizeof(want) / sizeof(want[0]));
    done(&job, &dump);
}

static void test_tables_are_bounded_and_losses_counted(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    size_t at = 0;
    run("bounded", &job, &dump);
    const struct roll_record *rec = dump_next(&dump, &at, ROLL_OP_GRAPH_LAUNCH);
    assert_non_null(rec);
    assert_true(rec->count == hash_of(&dump, rec->aux, rec->comm));
    assert_int_equal(atomic_load(&dump.ring.header->losses[ROLL_LOSS_GRAPH]), 9000 - 8192);
    done(&job, &dump);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_captured_calls_and_launches_are_recorded),
        cmocka_unit_test(test_communicators_streams_and_messages_in_one_graph),
        cmocka_unit_test(test_graphs_made_of_graphs_hold_the_same),
        cmocka_unit_test(test_the_driver_is_seen_too_and_nothing_twice),
        cmocka_unit_test(test_tables_are_bounded_and_losses_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
