/* test_record.c: compares the records with the calls that the job made. */
#include "tests/interposer/harness.h"

#include "trace/ident.h"

struct expected {
    uint8_t op;
    uint64_t count;
    uint8_t dtype, redop;
    int32_t peer;
    uint32_t seq;
    int stream; /* 0: none, 1: legacy, else 16 * n + 0x7000 */
    uint8_t flags;
    uint8_t result;
};

#define B       ROLL_FLAG_BYTES
#define I       ROLL_FLAG_INPLACE
#define NO_TYPE ROLL_DTYPE_NONE
#define NO_RED  ROLL_RED_NONE

/* The list of job_mode_every_operation in job_calls.c, rank 1 of 4. */
static const struct expected operations[] = {
    {ROLL_OP_COMM_INIT, 4, NO_TYPE, NO_RED, 1, 0, 0, 0, 0},
    {ROLL_OP_ALLREDUCE, 10, 7, 0, -1, 0, 1, 0, 0},
    {ROLL_OP_BROADCAST, 11, 0, NO_RED, 2, 1, 0x7010, B | I, 0},
    {ROLL_OP_BROADCAST, 12, 1, NO_RED, 3, 2, 0x7010, B | I, 0}, /* ncclBcast: once, although NCCL calls ncclBroadcast */
    {ROLL_OP_REDUCE, 13, 2, 1, 0, 3, 0x7020, 0, 0},
    {ROLL_OP_ALLGATHER, 14, 2, NO_RED, -1, 4, 0x7020, B | I, 0},
    {ROLL_OP_REDUCESCATTER, 15, 8, 2, -1, 5, 0x7010, I, 0},
    {ROLL_OP_ALLTOALL, 0, 9, NO_RED, -1, 6, 0x7010, B, 0}, /* zero: takes no number */
    {ROLL_OP_ALLTOALL, 16, 9, NO_RED, -1, 6, 0x7010, B, 0},
    {ROLL_OP_GATHER, 17, 0, NO_RED, 1, 7, 0x7010, B | I, 0},
    {ROLL_OP_SCATTER, 18, 10, NO_RED, 1, 8, 0x7010, B, 0},
    {ROLL_OP_SEND, 19, 7, NO_RED, 2, 0, 0x7010, B, 0},
    {ROLL_OP_SEND, 20, 7, NO_RED, 2, 1, 0x7010, B, 0},
    {ROLL_OP_SEND, 21, 7, NO_RED, 3, 0, 0x7010, B, 0},
    {ROLL_OP_RECV, 22, 7, NO_RED, 2, 0, 0x7010, B, 0},
    {ROLL_OP_ALLREDUCE, 666, 7, ROLL_RED_PREMUL, -1, 9, 0x7010, 0, 4},
    {ROLL_OP_COMM_REVOKE, 0, NO_TYPE, NO_RED, -1, 0, 0, 0, 0},
    {ROLL_OP_COMM_FINALIZE, 0, NO_TYPE, NO_RED, -1, 0, 0, 0, 0},
    {ROLL_OP_COMM_DESTROY, 0, NO_TYPE, NO_RED, -1, 0, 0, 0, 0},
};

static void check_record(const struct dump *dump, const struct roll_record *rec, const struct expected *want)
{
    assert_int_equal(rec->op, want->op);
    assert_int_equal(rec->count, want->count);
    assert_int_equal(rec->dtype, want->dtype);
    assert_int_equal(rec->redop, want->redop);
    assert_int_equal(rec->peer, want->peer);
    assert_int_equal(rec->seq, want->seq);
    assert_int_equal(rec->flags, want->flags);
    assert_int_equal(rec->result, want->result);
    assert_int_equal(roll_seal_state(rec->seal), ROLL_STATE_RETURNED);
    assert_int_equal(rec->group, 0);
    assert_int_equal(rec->comm, 1);
    assert_int_equal(rec->thread, 1);
    assert_int_equal(rec->step, ROLL_STEP_NONE);
    assert_int_equal(rec->layer, ROLL_LAYER_NONE);
    assert_int_equal(rec->phase, ROLL_PHASE_NONE);
    assert_true(rec->callsite != 0);
    if (want->stream <= 1) {
        assert_int_equal(rec->stream, want->stream);
    } else {
        assert_int_equal(dump_def(dump, ROLL_DEF_STREAM, rec->stream)->stream.handle, want->stream);
    }
}

static void check_operations(const struct dump *dump)
{
    uint64_t last = 0;
    assert_int_equal(dump->count, sizeof(operations) / sizeof(operations[0]));
    for (size_t i = 0; i < dump->count; i++) {
        const struct roll_record *rec = &dump->records[i];
        check_record(dump, rec, &operations[i]);
        assert_int_equal(roll_seal_ticket(rec->seal), i);
        assert_true(rec->enter_ns >= last);
        last = rec->enter_ns;
    }
    for (size_t i = 0; i < ROLL_LOSS_LIMIT; i++) {
        assert_int_equal(atomic_load(&dump->ring.header->losses[i]), 0);
    }
}

static void test_every_operation_is_recorded_field_by_field(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    job_begin(&job);
    job_env(&job, "RANK=3");
    job_env(&job, "WORLD_SIZE=4");
    job_env(&job, "LOCAL_RANK=2");
    job_env(&job, "ROLLCALL_JOB=unit");
    job_run(&job, "ROLL_TEST_JOB", "operations", NULL);
    JOB_SUCCEEDED(&job);
    assert_string_equal(job.errors, "");
    dump_open(&job, &dump);
    check_operations(&dump);
    assert_int_equal(dump.ring.header->world_rank, 3);
    assert_int_equal(dump.ring.header->world_size, 4);
    assert_int_equal(dump.ring.header->local_rank, 2);
    assert_int_equal(dump.ring.header->pid, job.pid);
    assert_string_equal(dump.ring.header->job, "unit");
    uint8_t id[128];
    memset(id, 1, sizeof(id));
    const struct roll_def *comm = dump_def(&dump, ROLL_DEF_COMM, 1);
    assert_true(comm->comm.info.key == roll_key_unique_id(id, sizeof(id)));
    assert_int_equal(comm->comm.info.rank, 1);
    assert_int_equal(comm->comm.info.nranks, 4);
    assert_int_equal(comm->comm.info.origin, ROLL_COMM_INIT);
    assert_int_equal(dump_def(&dump, ROLL_DEF_THREAD, 1)->thread.tid, (uint32_t)job.pid);
    dump_close(&dump);
    job_end(&job);
}

static void run_through_host(const char *scope)
{
    struct job job;
    struct dump dump;
    char *argv[] = {(char *)(uintptr_t)job_path("ROLL_TEST_HOST"), (char *)(uintptr_t)scope,
                    (char *)(uintptr_t)job_path("ROLL_TEST_PLUGIN"), (char *)(uintptr_t) "operations", NULL};
    job_begin(&job);
    job_start(&job, argv);
    job_wait(&job);
    JOB_SUCCEEDED(&job);
    dump_open(&job, &dump);
    check_operations(&dump);
    dump_close(&dump);
    job_end(&job);
}

static void test_nccl_loaded_with_global_scope_is_found(void **state)
{
    (void)state;
    run_through_host("global");
}

static void test_nccl_loaded_with_local_scope_is_found(void **state)
{
    (void)state;
    run_through_host("local");
}

static void test_nccl_may_be_unloaded_and_loaded_again(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    char *argv[] = {(char *)(uintptr_t)job_path("ROLL_TEST_HOST"),
                    (char *)(uintptr_t) "again",
                    (char *)(uintptr_t)job_path("ROLL_TEST_PLUGIN"),
                    (char *)(uintptr_t) "many",
                    (char *)(uintptr_t) "2",
                    NULL};
    job_begin(&job);
    job_start(&job, argv);
    job_wait(&job);
    JOB_SUCCEEDED(&job);
    dump_open(&job, &dump);
    assert_int_equal(dump.count, 6);
    dump_close(&dump);
    job_end(&job);
}

static void test_groups_are_numbered_and_closed_by_one_record(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    job_begin(&job);
    job_run(&job, "ROLL_TEST_JOB", "groups", NULL);
    JOB_SUCCEEDED(&job);
    dump_open(&job, &dump);
    static const struct {
        uint8_t op;
        uint32_t group;
        uint16_t aux;
        uint16_t comm;
    } want[] = {
        {ROLL_OP_COMM_INIT, 0, 0, 1}, {ROLL_OP_SEND, 1, 0, 1},      {ROLL_OP_RECV, 1, 0, 1},
        {ROLL_OP_ALLREDUCE, 1, 0, 1}, {ROLL_OP_GROUP_END, 1, 3, 0}, {ROLL_OP_ALLREDUCE, 0, 0, 1},
        {ROLL_OP_COMM_INIT, 2, 0, 2}, {ROLL_OP_COMM_INIT, 2, 0, 3}, {ROLL_OP_GROUP_END, 2, 2, 0},
        {ROLL_OP_ALLREDUCE, 0, 0, 3},
    };
    assert_int_equal(dump.count, sizeof(want) / sizeof(want[0]));
    for (size_t i = 0; i < dump.count; i++) {
        assert_int_equal(dump.records[i].op, want[i].op);
        assert_int_equal(dump.records[i].group, want[i].group);
        assert_int_equal(dump.records[i].aux, want[i].aux);
        assert_int_equal(dump.records[i].comm, want[i].comm);
        bool in_group = want[i].group != 0 && want[i].op != ROLL_OP_GROUP_END;
        assert_int_equal((dump.records[i].flags & ROLL_FLAG_IN_GROUP) != 0, in_group);
    }
    assert_int_equal(dump_def(&dump, ROLL_DEF_COMM, 3)->comm.info.rank, 1);
    dump_close(&dump);
    job_end(&job);
}

static void test_children_get_the_key_that_every_member_computes(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    job_begin(&job);
    job_run(&job, "ROLL_TEST_JOB", "children", NULL);
    JOB_SUCCEEDED(&job);
    dump_open(&job, &dump);
    uint8_t ids[3][128];
    memset(ids[0], 1, 128);
    uint64_t parent = roll_key_unique_id(ids[0], 128);
    const struct {
        uint64_t key;
        int32_t rank, nranks, color;
        uint32_t child, origin, flags;
        const char *label;
    } want[] = {
        {parent, 1, 4, ROLL_COLOR_NONE, 0, ROLL_COMM_INIT, 0, ""},
        {roll_key_child(parent, 0, 5), 0, 2, 5, 0, ROLL_COMM_SPLIT, 0, "tensor"},
        {roll_key_child(parent, 2, 6), 0, 2, 6, 2, ROLL_COMM_SPLIT, 1, "late"},
        {roll_key_child(parent, 3, ROLL_COLOR_NONE), 1, 3, ROLL_COLOR_NONE, 3, ROLL_COMM_SHRINK, 0, ""},
    };
    for (uint32_t i = 0; i < 4; i++) {
        const struct roll_def *def = dump_def(&dump, ROLL_DEF_COMM, i + 1);
        assert_true(def->comm.info.key == want[i].key);
        assert_int_equal(def->comm.info.rank, want[i].rank);
        assert_int_equal(def->comm.info.nranks, want[i].nranks);
        assert_int_equal(def->comm.info.color, want[i].color);
        assert_int_equal(def->comm.info.child, want[i].child);
        assert_int_equal(def->comm.info.origin, want[i].origin);
        assert_int_equal(def->comm.info.flags, want[i].flags);
        assert_true(def->comm.info.parent_key == (i == 0 ? 0 : parent));
        assert_int_equal(def->comm.info.label_bytes, strlen(want[i].label));
        assert_memory_equal(def->comm.label, want[i].label, strlen(want[i].label));
    }
    for (int i = 0; i < 3; i++) {
        memset(ids[i], i + 2, 128);
    }
    const struct roll_def *scalable = dump_def(&dump, ROLL_DEF_COMM, 5);
    assert_true(scalable->comm.info.key == roll_key_unique_id(ids, sizeof(ids)));
    assert_int_equal(scalable->comm.info.label_bytes, 0);
    for (uint32_t i = 0; i < 3; i++) { /* ncclCommInitAll: three members here, one key */
        const struct roll_def *def = dump_def(&dump, ROLL_DEF_COMM, 6 + i);
        assert_int_equal(def->comm.info.rank, i);
        assert_int_equal(def->comm.info.nranks, 3);
        assert_true(def->comm.info.key == dump_def(&dump, ROLL_DEF_COMM, 6)->comm.info.key);
        assert_true(def->comm.info.key != parent);
    }
    static const uint16_t comms[] = {3, 4, 2, 8, 0}; /* of the five AllReduce calls; the last was never created */
    size_t at = 0;
    for (size_t i = 0; i < 5; i++) {
        const struct roll_record *rec = dump_next(&dump, &at, ROLL_OP_ALLREDUCE);
        assert_non_null(rec);
        assert_int_equal(rec->count, i + 1);
        assert_int_equal(rec->comm, comms[i]);
        assert_int_equal((rec->flags & ROLL_FLAG_NONBLOCKING) != 0, i == 0);
    }
    assert_int_equal(atomic_load(&dump.ring.header->losses[ROLL_LOSS_COMM_UNKNOWN]), 1);
    at = 0;
    const struct roll_record *none = dump_next(&dump, &at, ROLL_OP_COMM_SPLIT);
    none = dump_next(&dump, &at, ROLL_OP_COMM_SPLIT);
    assert_int_equal(none->peer, -1);
    assert_int_equal(none->comm, 1);
    assert_int_equal(none->aux, 1);
    dump_close(&dump);
    job_end(&job);
}

static void test_calls_tell_behind_which_calls_they_stand(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    job_begin(&job);
    job_run(&job, "ROLL_TEST_JOB", "orders", NULL);
    JOB_SUCCEEDED(&job);
    dump_open(&job, &dump);
    /* By ticket: how far before it stands what the record is behind. */
    static const uint16_t want[] = {[2] = 1, [6] = 1, [7] = 6, [11] = 1, [12] = 11, [13] = 3, [14] = 0};
    assert_int_equal(dump.count, sizeof(want) / sizeof(want[0]));
    for (size_t i = 1; i < dump.count; i++) {
        const struct roll_record *rec = &dump.records[i];
        assert_int_equal(rec->op, i == 5    ? ROLL_OP_STREAM_WAIT
                                  : i == 7  ? ROLL_OP_STREAM_SYNC
                                  : i == 11 ? ROLL_OP_GROUP_END
                                            : ROLL_OP_ALLREDUCE);
        assert_int_equal(rec->aux, want[i]); /* of the group's end: one call in it */
        assert_int_equal(roll_seal_state(rec->seal), ROLL_STATE_RETURNED);
    }
    assert_int_equal(dump.records[5].count, 2 | 1 << 16); /* 3 and 4, in the order of their tickets */
    assert_int_equal(dump.records[5].stream, dump.records[6].stream);
    dump_close(&dump);
    job_end(&job);
}

static void test_waits_are_recorded_with_their_stream(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    job_begin(&job);
    job_run(&job, "ROLL_TEST_JOB", "waits", NULL);
    JOB_SUCCEEDED(&job);
    dump_open(&job, &dump);
    static const struct {
        uint8_t op;
        uint64_t stream;
    } want[] = {
        {ROLL_OP_STREAM_SYNC, 0x7010}, {ROLL_OP_STREAM_SYNC, 1},     {ROLL_OP_STREAM_SYNC, 2},
        {ROLL_OP_EVENT_SYNC, 0},       {ROLL_OP_EVENT_SYNC, 0x7010}, {ROLL_OP_DEVICE_SYNC, 0},
    };
    assert_int_equal(dump.count, 1 + sizeof(want) / sizeof(want[0]));
    for (size_t i = 1; i < dump.count; i++) {
        const struct roll_record *rec = &dump.records[i];
        assert_int_equal(rec->op, want[i - 1].op);
        uint64_t stream = rec->stream <= 1 ? rec->stream : dump_def(&dump, ROLL_DEF_STREAM, rec->stream)->stream.handle;
        assert_int_equal(stream, want[i - 1].stream);
        assert_int_equal(rec->comm, 0);
        assert_int_equal(rec->count, i == 5 ? 5 + 1 : 0); /* where the event stands: behind the five before it */
        assert_int_equal(roll_seal_state(rec->seal), ROLL_STATE_RETURNED);
    }
    assert_int_equal(dump_def(&dump, ROLL_DEF_COMM, 1)->comm.info.device, 3);
    dump_close(&dump);
    job_end(&job);
}

static void test_calls_in_which_a_host_may_wait_are_recorded(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    job_begin(&job);
    job_run(&job, "ROLL_TEST_JOB", "may_wait", NULL);
    JOB_SUCCEEDED(&job);
    dump_open(&job, &dump);
    static const struct {
        uint8_t op;
        uint64_t stream;
    } want[] = {
        {ROLL_OP_FREE, 0}, {ROLL_OP_STREAM_SYNC, 0x7010}, {ROLL_OP_COMM_INIT, 0}, {ROLL_OP_FREE, 0}, {ROLL_OP_COPY, 1},
        {ROLL_OP_COPY, 2}, {ROLL_OP_COPY, 0x7010},        {ROLL_OP_COPY, 2}};
    assert_int_equal(dump.count, 1 + sizeof(want) / sizeof(want[0]));
    for (size_t i = 1; i < dump.count; i++) {
        const struct roll_record *rec = &dump.records[i];
        assert_int_equal(rec->op, want[i - 1].op);
        uint64_t stream = rec->stream <= 1 ? rec->stream : dump_def(&dump, ROLL_DEF_STREAM, rec->stream)->stream.handle;
        assert_int_equal(stream, want[i - 1].stream);
        assert_int_equal(roll_seal_state(rec->seal), ROLL_STATE_RETURNED);
        assert_true(rec->callsite != 0);
    }
    dump_close(&dump);
    job_end(&job);
}

/* Checks the records of one loop, from dump.records[*at] on, and how the loop ended. */
static void expect_loop(const struct dump *dump, size_t *at, uint8_t op, uint64_t place, uint8_t result)
{
    uint32_t seq = 0, polls = 0;
    size_t first = *at;
    while (*at < dump->count && dump->records[*at].op == op) {
        const struct roll_record *rec = &dump->records[*at];
        bool last = *at + 1 == dump->count || dump->records[*at + 1].op != op;
        assert_int_equal(roll_seal_state(rec->seal), ROLL_STATE_RETURNED);
        assert_int_equal(rec->result, last ? result : 2);
        assert_int_equal(rec->count, place);
        assert_int_equal(dump_def(dump, ROLL_DEF_STREAM, rec->stream)->stream.handle, 0x7010);
        assert_true(rec->seq >= 100 && rec->seq >= seq + (seq ? 200 : 0));
        assert_true(rec->aux >= 2 && rec->aux >= polls);
        assert_true(rec->callsite != 0);
        seq = rec->seq;
        polls = rec->aux;
        ++*at;
    }
    assert_in_range(*at - first, 1,
                    4); /* the first after 100 ms, further ones each 200 ms; fewer where the machine was busy */
}

/* A loop over two streams: each record says so, and names the stream that the record before did not. */
static void expect_turns(const struct dump *dump, size_t *at)
{
    size_t first = *at;
    for (; *at < dump->count && dump->records[*at].op == ROLL_OP_STREAM_QUERY; ++*at) {
        const struct roll_record *rec = &dump->records[*at];
        uint64_t handle = dump_def(dump, ROLL_DEF_STREAM, rec->stream)->stream.handle;
        assert_int_equal(rec->peer, 2);
        assert_true(rec->seq >= 100 && rec->aux >= 2);
        assert_true(*at == first || dump_def(dump, ROLL_DEF_STREAM, rec[-1].stream)->stream.handle != handle);
        assert_int_equal(rec->result, dump->records[*at + 1].op == ROLL_OP_STREAM_QUERY ? 2 : 1);
    }
    assert_in_range(*at - first, 1, 2);
}

static void test_loops_of_polls_are_told_by_a_record_now_and_then(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    job_begin(&job);
    job_run(&job, "ROLL_TEST_JOB", "polls", NULL);
    JOB_SUCCEEDED(&job);
    dump_open(&job, &dump);
    size_t at = 1;
    expect_loop(&dump, &at, ROLL_OP_STREAM_QUERY, 0, 0);
    assert_int_equal(dump.records[at++].op, ROLL_OP_ALLREDUCE);
    expect_loop(&dump, &at, ROLL_OP_EVENT_QUERY, at + 1, 1); /* behind every call up to then */
    assert_int_equal(dump.records[at++].op, ROLL_OP_ALLREDUCE);
    expect_turns(&dump, &at);
    assert_int_equal(dump.records[at++].op, ROLL_OP_ALLREDUCE);
    assert_int_equal(at, dump.count);
    for (size_t i = 0; i < 16; i++) {
        assert_int_equal(atomic_load(&dump.ring.header->losses[i]), 0);
    }
    dump_close(&dump);
    job_end(&job);
}

static void test_call_sites_lead_to_the_calling_functions(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    char names[ROLL_CALLSITE_DEPTH][64];
    job_begin(&job);
    job_run(&job, "ROLL_TEST_JOB", "callsites", NULL);
    JOB_SUCCEEDED(&job);
    dump_open(&job, &dump);
    assert_int_equal(dump.count, 5);
    uint16_t through = dump.records[1].callsite, direct = dump.records[4].callsite;
    assert_int_equal(dump.records[3].callsite, through);
    assert_int_not_equal(direct, through);
    dump_frames(&dump, through, names);
    assert_string_equal(names[0], "job_inner");
    assert_string_equal(names[1], "job_outer");
    assert_string_equal(names[2], "job_mode_callsites");
    dump_frames(&dump, direct, names);
    assert_string_equal(names[0], "job_inner");
    assert_string_equal(names[1], "job_mode_callsites");
    dump_close(&dump);
    job_end(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_operation_is_recorded_field_by_field),
        cmocka_unit_test(test_nccl_loaded_with_global_scope_is_found),
        cmocka_unit_test(test_nccl_loaded_with_local_scope_is_found),
        cmocka_unit_test(test_nccl_may_be_unloaded_and_loaded_again),
        cmocka_unit_test(test_groups_are_numbered_and_closed_by_one_record),
        cmocka_unit_test(test_children_get_the_key_that_every_member_computes),
        cmocka_unit_test(test_waits_are_recorded_with_their_stream),
        cmocka_unit_test(test_calls_tell_behind_which_calls_they_stand),
        cmocka_unit_test(test_calls_in_which_a_host_may_wait_are_recorded),
        cmocka_unit_test(test_loops_of_polls_are_told_by_a_record_now_and_then),
        cmocka_unit_test(test_call_sites_lead_to_the_calling_functions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
