/* test_hostnccl.c: real jobs of several processes on hostnccl: every rank's records against what the job did. */
#include "tests/interposer/harness.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RANKS_MAX 4

static char texts[RANKS_MAX][3][32];

static void start_ranks(struct job job[], int size, const char *mode)
{
    static char path[128], nccl_dir[128], number[8];
    snprintf(path, sizeof(path), "LD_LIBRARY_PATH=%s", job_path("ROLL_TEST_HOSTNCCL"));
    snprintf(number, sizeof(number), "%d", size);
    for (int r = 0; r < size; r++) {
        if (r == 0) {
            job_begin(&job[r]);
        } else {
            job_join(&job[r], &job[0]);
        }
        snprintf(nccl_dir, sizeof(nccl_dir), "HOSTNCCL_DIR=%s", job[0].dir);
        snprintf(texts[r][0], sizeof(texts[r][0]), "RANK=%d", r);
        snprintf(texts[r][1], sizeof(texts[r][1]), "WORLD_SIZE=%d", size);
        snprintf(texts[r][2], sizeof(texts[r][2]), "%d", r);
        job_env(&job[r], path);
        job_env(&job[r], nccl_dir);
        job_env(&job[r], texts[r][0]);
        job_env(&job[r], texts[r][1]);
        char *argv[] = {(char *)(uintptr_t)job_path("ROLL_TEST_RANKS"),
                        (char *)(uintptr_t)mode,
                        texts[r][2],
                        number,
                        job[0].dir,
                        NULL};
        job_start(&job[r], argv);
    }
}

static void end_ranks(struct job job[], int size)
{
    for (int r = 1; r < size; r++) {
        job_leave(&job[r]);
    }
    job_end(&job[0]);
}

struct expected {
    uint8_t op;
    uint64_t count;
    int32_t peer; /* MINUS: depends on the rank */
    uint32_t seq;
    uint32_t group;
    uint16_t comm;
};
#define NEXT     (-100) /* the next rank */
#define PREVIOUS (-101)
#define SELF     (-102)
#define LAST     (-103)
#define COLOR    (-104)

static const struct expected whole_job[] = {
    {ROLL_OP_COMM_INIT, 0, SELF, 0, 0, 1},    {ROLL_OP_ALLREDUCE, 1024, -1, 0, 0, 1},
    {ROLL_OP_ALLREDUCE, 1024, -1, 1, 0, 1},   {ROLL_OP_ALLREDUCE, 1024, -1, 2, 0, 1},
    {ROLL_OP_STREAM_SYNC, 0, -1, 0, 0, 0},    {ROLL_OP_BROADCAST, 7, LAST, 3, 0, 1},
    {ROLL_OP_REDUCE, 8, 0, 4, 0, 1},          {ROLL_OP_ALLGATHER, 9, -1, 5, 0, 1},
    {ROLL_OP_REDUCESCATTER, 10, -1, 6, 0, 1}, {ROLL_OP_ALLTOALL, 11, -1, 7, 0, 1},
    {ROLL_OP_ALLREDUCE, 0, -1, 8, 0, 1},      {ROLL_OP_BROADCAST, 12, 0, 8, 0, 1},
    {ROLL_OP_DEVICE_SYNC, 0, -1, 0, 0, 0},    {ROLL_OP_SEND, 13, NEXT, 0, 1, 1},
    {ROLL_OP_RECV, 13, PREVIOUS, 0, 1, 1},    {ROLL_OP_GROUP_END, 0, -1, 0, 1, 0},
    {ROLL_OP_EVENT_SYNC, 0, -1, 0, 0, 0},     {ROLL_OP_COMM_SPLIT, 0, COLOR, 0, 0, 1},
    {ROLL_OP_ALLREDUCE, 14, -1, 0, 0, 2},     {ROLL_OP_STREAM_SYNC, 0, -1, 0, 0, 0},
    {ROLL_OP_COMM_DESTROY, 0, -1, 0, 0, 2},   {ROLL_OP_COMM_FINALIZE, 0, -1, 0, 0, 1},
    {ROLL_OP_COMM_DESTROY, 0, -1, 0, 0, 1},
};

static int32_t expected_peer(int32_t peer, int rank, int size)
{
    switch (peer) {
    case NEXT:
        return (rank + 1) % size;
    case PREVIOUS:
        return (rank + size - 1) % size;
    case SELF:
        return rank;
    case LAST:
        return size - 1;
    case COLOR:
        return rank % 2;
    default:
        return peer;
    }
}

static void check_rank(const struct dump *dump, int rank, int size)
{
    uint16_t stream = dump->records[1].stream;
    char names[ROLL_CALLSITE_DEPTH][64];
    assert_int_equal(dump->count, sizeof(whole_job) / sizeof(whole_job[0]));
    for (size_t i = 0; i < dump->count; i++) {
        const struct roll_record *rec = &dump->records[i];
        const struct expected *want = &whole_job[i];
        assert_int_equal(rec->op, want->op);
        uint64_t count = want->op == ROLL_OP_EVENT_SYNC
                             ? i + 1
                             : want->count; /* the place of the event: behind all records before it */
        assert_int_equal(rec->count, want->op == ROLL_OP_COMM_INIT ? (uint64_t)size : count);
        assert_int_equal(rec->peer, expected_peer(want->peer, rank, size));
        assert_int_equal(rec->seq, want->seq);
        assert_int_equal(rec->group, want->group);
        assert_int_equal(rec->comm, want->comm);
        assert_int_equal(rec->result, 0);
        assert_int_equal(roll_seal_state(rec->seal), ROLL_STATE_RETURNED);
        bool on_stream = roll_op_class(rec->op) == ROLL_CLASS_COLL || roll_op_class(rec->op) == ROLL_CLASS_P2P ||
                         rec->op == ROLL_OP_STREAM_SYNC || rec->op == ROLL_OP_EVENT_SYNC ||
                         rec->op == ROLL_OP_GROUP_END;
        assert_int_equal(rec->stream, on_stream ? stream : 0);
    }
    dump_frames(dump, dump->records[2].callsite, names);
    assert_string_equal(names[0], "train_step");
    assert_int_equal(atomic_load(&dump->ring.header->state), ROLL_RING_FINISHED);
    assert_int_equal(dump->ring.header->world_rank, rank);
    for (size_t i = 0; i < ROLL_LOSS_LIMIT; i++) {
        assert_int_equal(atomic_load(&dump->ring.header->losses[i]), 0);
    }
    const struct roll_def *world = dump_def(dump, ROLL_DEF_COMM, 1), *half = dump_def(dump, ROLL_DEF_COMM, 2);
    assert_int_equal(world->comm.info.rank, rank);
    assert_int_equal(world->comm.info.nranks, size);
    assert_int_equal(world->comm.info.device, rank);
    assert_int_equal(half->comm.info.rank, rank / 2);
    assert_int_equal(half->comm.info.nranks, size / 2);
    assert_int_equal(half->comm.info.color, rank % 2);
}

static void check_job(int size)
{
    struct job job[RANKS_MAX];
    static struct dump dump[RANKS_MAX];
    start_ranks(job, size, "whole");
    for (int r = 0; r < size; r++) {
        job_wait(&job[r]);
    }
    for (int r = 0; r < size; r++) {
        JOB_SUCCEEDED(&job[r]);
        dump_open(&job[r], &dump[r]);
        check_rank(&dump[r], r, size);
        uint64_t world = dump_def(&dump[0], ROLL_DEF_COMM, 1)->comm.info.key;
        uint64_t half = dump_def(&dump[r % 2], ROLL_DEF_COMM, 2)->comm.info.key;
        assert_true(dump_def(&dump[r], ROLL_DEF_COMM, 1)->comm.info.key == world);
        assert_true(dump_def(&dump[r], ROLL_DEF_COMM, 2)->comm.info.key == half);
        assert_true(dump_def(&dump[r], ROLL_DEF_COMM, 2)->comm.info.parent_key == world);
    }
    for (int r = 0; r < size; r++) {
        dump_close(&dump[r]);
    }
    end_ranks(job, size);
}

static void test_two_ranks_are_recorded_alike(void **state)
{
    (void)state;
    check_job(2);
}

static void test_four_ranks_are_recorded_alike(void **state)
{
    (void)state;
    check_job(4);
}

/*
 * Tickets: 0 CommInit, 1-3 calls, 4-6 captured, 7-10 launches, 11 wait, 12-13 calls, 14 wait, 15 destroy. By an event
 * the last calls are known only when a later one asks.
 */
static void check_completion(const char *way, enum roll_completion completion, uint64_t least, uint64_t most,
                             uint64_t replays)
{
    struct job job[2];
    static struct dump dump[2];
    setenv("ROLLCALL_COMPLETION", way, 1);
    start_ranks(job, 2, "graphs");
    unsetenv("ROLLCALL_COMPLETION");
    for (int r = 0; r < 2; r++) {
        job_wait(&job[r]);
    }
    for (int r = 0; r < 2; r++) {
        static const uint8_t ops[] = {
            ROLL_OP_COMM_INIT,    ROLL_OP_ALLREDUCE,    ROLL_OP_ALLREDUCE,    ROLL_OP_ALLREDUCE,
            ROLL_OP_ALLREDUCE,    ROLL_OP_ALLREDUCE,    ROLL_OP_ALLREDUCE,    ROLL_OP_GRAPH_LAUNCH,
            ROLL_OP_GRAPH_LAUNCH, ROLL_OP_GRAPH_LAUNCH, ROLL_OP_GRAPH_LAUNCH, ROLL_OP_STREAM_SYNC,
            ROLL_OP_ALLREDUCE,    ROLL_OP_ALLREDUCE,    ROLL_OP_STREAM_SYNC,  ROLL_OP_COMM_DESTROY};
        JOB_SUCCEEDED(&job[r]);
        assert_string_equal(job[r].errors, "");
        dump_open(&job[r], &dump[r]);
        assert_int_equal(dump[r].count, sizeof(ops));
        for (size_t i = 0; i < sizeof(ops); i++) {
            assert_int_equal(dump[r].records[i].op, ops[i]);
            assert_int_equal((dump[r].records[i].flags & ROLL_FLAG_CAPTURED) != 0, i >= 4 && i <= 6);
        }
        assert_true(dump[r].records[7].count == dump[0].records[7].count);
        const struct roll_ring_header *h = dump[r].ring.header;
        uint64_t done = atomic_load(&h->done[dump[r].records[1].stream]);
        assert_int_equal(atomic_load(&h->completion), completion);
        assert_in_range(done, least, most);
        assert_int_equal(atomic_load(&h->graph_done[1]), replays);
        dump_close(&dump[r]);
    }
    end_ranks(job, 2);
}

static void test_completion_of_calls_and_launches_is_learnt(void **state)
{
    (void)state;
    check_completion("off", ROLL_COMPLETION_OFF, 0, 0, 0);
    check_completion("write", ROLL_COMPLETION_WRITE, 14, 14, 0);
    check_completion("counter", ROLL_COMPLETION_COUNTER, 14, 14, 4);
    check_completion("event", ROLL_COMPLETION_EVENT, 2, 14, 0);
}

/* The call that nobody joins is seen from outside while it lasts: the host waits for the stream of the all-reduce. */
static void test_a_blocked_host_is_seen_while_it_waits(void **state)
{
    (void)state;
    struct job job[2];
    struct dump dump;
    const struct timespec pause = {0, 10000000};
    bool seen = false;
    start_ranks(job, 2, "skip");
    for (int i = 0; i < 28000 && !seen; i++) {
        nanosleep(&pause, NULL);
        if (job_files(&job[0], ".ring") < 2) {
            continue;
        }
        dump_open(&job[0], &dump);
        const struct roll_record *last = dump.count > 0 ? &dump.records[dump.count - 1] : NULL;
        if (last != NULL && last->op == ROLL_OP_STREAM_SYNC) {
            seen = true;
            assert_int_equal(roll_seal_state(last->seal), ROLL_STATE_ENTERED);
            assert_int_equal(last->stream, dump.records[dump.count - 2].stream);
            assert_int_equal(dump.records[dump.count - 2].op, ROLL_OP_ALLREDUCE);
            assert_int_equal(roll_seal_state(dump.records[dump.count - 2].seal), ROLL_STATE_RETURNED);
        }
        dump_close(&dump);
    }
    for (int r = 0; r < 2; r++) {
        kill(job[r].pid, SIGKILL);
        job_wait(&job[r]);
    }
    assert_true(seen);
    end_ranks(job, 2);
}

/* A wait that ended in an error does not show that its work is over. Tickets: 0 CommInit, 1 call, 2 wait, 3 call, 4-6
 * waits. */
static void test_a_wait_that_failed_says_so(void **state)
{
    (void)state;
    struct job job[1];
    struct dump dump;
    start_ranks(job, 1, "fault");
    job_wait(&job[0]);
    JOB_SUCCEEDED(&job[0]);
    dump_open(&job[0], &dump);
    static const uint8_t ops[] = {ROLL_OP_COMM_INIT,   ROLL_OP_ALLREDUCE,  ROLL_OP_STREAM_SYNC, ROLL_OP_ALLREDUCE,
                                  ROLL_OP_STREAM_SYNC, ROLL_OP_EVENT_SYNC, ROLL_OP_DEVICE_SYNC};
    assert_int_equal(dump.count, sizeof(ops));
    for (size_t i = 0; i < sizeof(ops); i++) {
        assert_int_equal(dump.records[i].op, ops[i]);
        assert_int_equal(roll_seal_state(dump.records[i].seal), ROLL_STATE_RETURNED);
        assert_int_equal(dump.records[i].result, i < 4 ? 0 : 1);
    }
    dump_close(&dump);
    end_ranks(job, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_ranks_are_recorded_alike),
        cmocka_unit_test(test_four_ranks_are_recorded_alike),
        cmocka_unit_test(test_completion_of_calls_and_launches_is_learnt),
        cmocka_unit_test(test_a_blocked_host_is_seen_while_it_waits),
        cmocka_unit_test(test_a_wait_that_failed_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
