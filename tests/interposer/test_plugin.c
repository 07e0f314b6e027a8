/*
 * test_plugin.c: jobs that have NCCL linked into them, hidden from every preload: the ring holds exactly their calls,
 * as the profiler interface tells them, at each of its versions; a user's own plugin hears what it would hear alone.
 */
#include "tests/interposer/harness.h"
#include "tests/trace/scratch.h"

#include <sys/stat.h>
#include <unistd.h>

#define RANKS_MAX 4
#define NEWEST    7

static char texts[RANKS_MAX][8][300];

static void add_env(struct job *job, int rank, int *used, const char *format, const char *value)
{
    snprintf(texts[rank][*used], sizeof(texts[rank][0]), format, value);
    job_env(job, texts[rank][(*used)++]);
}

/* `plugin` as NCCL_PROFILER_PLUGIN; NULL: none. extra: ended by NULL. */
static void start_ranks(struct job job[], const char *program, int size, const char *mode, int version,
                        const char *plugin, const char *const extra[])
{
    static char size_text[8], rank_text[RANKS_MAX][8], version_text[8];
    snprintf(size_text, sizeof(size_text), "%d", size);
    snprintf(version_text, sizeof(version_text), "%d", version);
    for (int r = 0; r < size; r++) {
        int used = 0;
        if (r == 0) {
            job_begin(&job[r]);
        } else {
            job_join(&job[r], &job[0]);
        }
        snprintf(rank_text[r], sizeof(rank_text[r]), "%d", r);
        add_env(&job[r], r, &used, "LD_LIBRARY_PATH=%s", job_path("ROLL_TEST_HOSTNCCL"));
        add_env(&job[r], r, &used, "HOSTNCCL_DIR=%s", job[0].dir);
        add_env(&job[r], r, &used, "RANK=%s", rank_text[r]);
        add_env(&job[r], r, &used, "WORLD_SIZE=%s", size_text);
        add_env(&job[r], r, &used, "HOSTNCCL_PROFILER_NEWEST=%s", version_text);
        add_env(&job[r], r, &used, "NCCL_PROFILER_PLUGIN=%s", plugin != NULL ? plugin : "none");
        for (size_t i = 0; extra != NULL && extra[i] != NULL; i++) {
            job_env(&job[r], extra[i]);
        }
        char *argv[] = {
            (char *)(uintptr_t)job_path(program), (char *)(uintptr_t)mode, rank_text[r], size_text, job[0].dir, NULL};
        job_start(&job[r], argv);
    }
}

static void wait_ranks(struct job job[], int size)
{
    for (int r = 0; r < size; r++) {
        job_wait(&job[r]);
    }
    for (int r = 0; r < size; r++) {
        JOB_SUCCEEDED(&job[r]);
    }
}

static void end_ranks(struct job job[], int size)
{
    for (int r = 1; r < size; r++) {
        job_leave(&job[r]);
    }
    job_end(&job[0]);
}

/* what a rank of ranks.c's "whole" job leaves behind */

struct expected {
    uint8_t op;
    uint64_t count;
    int32_t peer;
    uint32_t seq;
    bool grouped;
    uint16_t comm;
    uint8_t dtype;
};

struct list {
    struct expected call[160];
    size_t count;
    int version, size, rank;
    uint32_t seq[3];               /* of collectives, by communicator */
    uint32_t p2p[3][RANKS_MAX][2]; /* of sends and receives */
};

static void add(struct list *l, struct expected e)
{
    assert_true(l->count < sizeof(l->call) / sizeof(l->call[0]));
    l->call[l->count++] = e;
}

static void add_group_end(struct list *l)
{
    add(l, (struct expected){ROLL_OP_GROUP_END, 0, -1, 0, true, 0, ROLL_DTYPE_NONE});
}

/* A collective: up to version 4 as a group of one, and AllGather and Broadcast as bytes. */
static void add_coll(struct list *l, uint8_t op, uint64_t count, uint8_t dtype, int32_t root, uint16_t comm)
{
    bool old = l->version <= 4;
    if (old && (op == ROLL_OP_ALLGATHER || op == ROLL_OP_BROADCAST)) {
        count *= dtype == ROLL_DTYPE_FLOAT32 ? 4 : 1;
        dtype = ROLL_DTYPE_INT8;
    }
    add(l, (struct expected){op, count, root, l->seq[comm]++, old, comm, dtype});
    if (old) {
        add_group_end(l);
    }
}

static void add_p2p(struct list *l, uint8_t op, uint64_t count, int32_t peer)
{
    uint32_t *seq = &l->p2p[1][peer][op == ROLL_OP_RECV];
    add(l, (struct expected){op, count, peer, (*seq)++, true, 1, ROLL_DTYPE_FLOAT32});
}

static void add_sync(struct list *l, uint8_t op)
{
    add(l, (struct expected){op, 0, -1, 0, false, 0, ROLL_DTYPE_NONE});
}

static void add_init(struct list *l, int size, int rank, uint16_t comm)
{
    if (l->version >= 4) { /* older ones do not tell */
        add(l, (struct expected){ROLL_OP_COMM_INIT, (uint64_t)size, rank, 0, false, comm, ROLL_DTYPE_NONE});
    }
}

static void add_destroy(struct list *l, uint16_t comm)
{
    add(l, (struct expected){ROLL_OP_COMM_DESTROY, 0, -1, 0, false, comm, ROLL_DTYPE_NONE});
}

static void expect_whole(struct list *l, int version, int size, int rank)
{
    const uint8_t f32 = ROLL_DTYPE_FLOAT32;
    bool half_runs = size > 2; /* NCCL makes a copy of a collective of one rank, and does not tell of it */
    *l = (struct list){.version = version, .size = size, .rank = rank};
    add_init(l, size, rank, 1);
    for (int i = 0; i < 3; i++) {
        add_coll(l, ROLL_OP_ALLREDUCE, 1024, f32, -1, 1);
    }
    add_sync(l, ROLL_OP_STREAM_SYNC);
    add_coll(l, ROLL_OP_BROADCAST, 7, ROLL_DTYPE_INT8, size - 1, 1);
    add_coll(l, ROLL_OP_REDUCE, 8, f32, 0, 1);
    add_coll(l, ROLL_OP_ALLGATHER, 9, f32, -1, 1);
    add_coll(l, ROLL_OP_REDUCESCATTER, 10, f32, -1, 1);
    for (int r = 0; r < size; r++) { /* AlltoAll */
        add_p2p(l, ROLL_OP_SEND, 11, r);
        add_p2p(l, ROLL_OP_RECV, 11, r);
    }
    add_group_end(l);
    add_coll(l, ROLL_OP_BROADCAST, 12, f32, 0, 1);
    add_sync(l, ROLL_OP_DEVICE_SYNC);
    add_p2p(l, ROLL_OP_SEND, 13, (rank + 1) % size);
    add_p2p(l, ROLL_OP_RECV, 13, (rank + size - 1) % size);
    add_group_end(l);
    add_sync(l, ROLL_OP_EVENT_SYNC);
    add_init(l, size / 2, rank / 2, 2);
    if (half_runs) {
        add_coll(l, ROLL_OP_ALLREDUCE, 14, f32, -1, 2);
    }
    add_sync(l, ROLL_OP_STREAM_SYNC);
    if (half_runs || version >= 4) {
        add_destroy(l, 2);
    }
    add_destroy(l, 1);
}

static void check_records(const struct dump *dump, const struct list *l)
{
    uint32_t group = 0;
    for (size_t i = 0; i < dump->count && i < l->count; i++) {
        const struct roll_record *rec = &dump->records[i];
        const struct expected *want = &l->call[i];
        bool sync = roll_op_class(rec->op) == ROLL_CLASS_SYNC;
        char line[256];
        roll_record_format(rec, line, sizeof(line));
        uint64_t count =
            rec->op == ROLL_OP_EVENT_SYNC ? i + 1 : want->count; /* the place of its event: behind all before it */
        if (rec->op != want->op || rec->count != count || rec->peer != want->peer || rec->seq != want->seq ||
            rec->comm != want->comm || rec->dtype != want->dtype || (rec->group != 0) != want->grouped) {
            fail_msg("version %d rank %d of %d, record %zu: %s", l->version, l->rank, l->size, i, line);
        }
        assert_int_equal(roll_seal_state(rec->seal), ROLL_STATE_RETURNED);
        assert_int_equal(rec->redop, ROLL_RED_NONE);
        assert_int_equal((rec->flags & ROLL_FLAG_PLUGIN) != 0, !sync);
        if (want->grouped) { /* one number from the first call to its end */
            assert_true(group == 0 || rec->group == group);
            group = rec->op == ROLL_OP_GROUP_END ? 0 : rec->group;
        }
    }
    assert_int_equal(dump->count, l->count);
    for (size_t i = 0; i < ROLL_LOSS_LIMIT; i++) {
        assert_int_equal(atomic_load(&dump->ring.header->losses[i]), 0);
    }
}

static void check_whole(int version, int size)
{
    struct job job[RANKS_MAX];
    static struct dump dump[RANKS_MAX];
    static struct list want;
    start_ranks(job, "ROLL_TEST_STATIC_RANKS", size, "whole", version, job_path("ROLL_TEST_PRELOAD"), NULL);
    wait_ranks(job, size);
    for (int r = 0; r < size; r++) {
        dump_open(&job[r], &dump[r]);
        expect_whole(&want, version, size, r);
        check_records(&dump[r], &want);
        const struct roll_def *world = dump_def(&dump[r], ROLL_DEF_COMM, 1);
        assert_int_equal(world->comm.info.rank, r);
        assert_int_equal(world->comm.info.nranks,
                         size); /* up to version 3 this is an upper bound: the size of the job */
        assert_int_equal((world->comm.info.flags & ROLL_DEF_COMM_OPEN) != 0, version <= 3);
        assert_true(world->comm.info.key == dump_def(&dump[0], ROLL_DEF_COMM, 1)->comm.info.key);
    }
    for (int r = 0; r < size; r++) {
        dump_close(&dump[r]);
    }
    end_ranks(job, size);
}

static void test_every_version_tells_exactly_the_calls_of_two_ranks(void **state)
{
    (void)state;
    for (int version = 1; version <= NEWEST; version++) {
        check_whole(version, 2);
    }
}

static void test_a_job_of_four_ranks_is_recorded_whole(void **state)
{
    (void)state;
    for (int version = 1; version <= NEWEST; version += 3) {
        check_whole(version, 4);
    }
}

/* Without the variable only calls outside of NCCL are seen of such a job, and no plugin is loaded. */
static void test_without_the_plugin_a_static_nccl_is_not_seen(void **state)
{
    (void)state;
    struct job job[2];
    start_ranks(job, "ROLL_TEST_STATIC_RANKS", 2, "whole", NEWEST, NULL, NULL);
    wait_ranks(job, 2);
    assert_int_equal(job_files(&job[0], ".ring"), 0);
    end_ranks(job, 2);
}

/* Where the wrappers see everything, the plugin adds no record, not even from NCCL's own threads, on which no wrapper
 * is open. */
static void check_not_twice(const char *program, const char *mode, const char *behind)
{
    size_t plain = 0;
    char preload[1024];
    snprintf(preload, sizeof(preload), "LD_PRELOAD=%s%s%s", job_path("ROLL_TEST_PRELOAD"), behind != NULL ? ":" : "",
             behind != NULL ? behind : "");
    const char *extra[] = {preload, NULL};
    for (int with = 0; with < 2; with++) {
        struct job job[2];
        static struct dump dump;
        start_ranks(job, program, 2, mode, NEWEST, with ? job_path("ROLL_TEST_PRELOAD") : NULL, extra);
        wait_ranks(job, 2);
        dump_open(&job[0], &dump);
        size_t calls = 0; /* how often a state is asked for before it changes depends on the machine's speed */
        for (size_t i = 0; i < dump.count; i++) {
            uint8_t op = dump.records[i].op;
            calls += roll_op_class(op) != ROLL_CLASS_POLL && op != ROLL_OP_COMM_ASYNC;
        }
        plain = with ? plain : calls;
        assert_int_equal(calls, plain);
        for (size_t i = 0; i < dump.count; i++) {
            assert_int_equal(dump.records[i].flags & ROLL_FLAG_PLUGIN, 0);
        }
        dump_close(&dump);
        end_ranks(job, 2);
    }
    assert_true(plain > 4);
}

static void test_calls_that_the_wrappers_record_are_not_recorded_twice(void **state)
{
    (void)state;
    check_not_twice("ROLL_TEST_RANKS", "whole", NULL);
    check_not_twice("ROLL_TEST_SHARED_JOB", "nonblocking", NULL);
    check_not_twice("ROLL_TEST_SHARED_JOB", "same", job_path("ROLL_TEST_SHIM")); /* known by the open wrapper alone */
}

/* A group that a thread of NCCL launches: its sends still come before its end, with their peers. */
static void check_nonblocking(int version)
{
    struct job job[2];
    static struct dump dump;
    size_t sends = 0, ends = 0, reduces = 0, at = 0;
    start_ranks(job, "ROLL_TEST_STATIC_JOB", 2, "nonblocking", version, job_path("ROLL_TEST_PRELOAD"), NULL);
    wait_ranks(job, 2);
    for (int r = 0; r < 2; r++) {
        dump_open(&job[r], &dump);
        sends = ends = reduces = 0;
        for (at = 0; at < dump.count; at++) {
            const struct roll_record *rec = &dump.records[at];
            assert_int_equal(roll_seal_state(rec->seal), ROLL_STATE_RETURNED);
            reduces += rec->op == ROLL_OP_ALLREDUCE;
            if (rec->op == ROLL_OP_SEND || rec->op == ROLL_OP_RECV) {
                assert_int_equal(rec->peer, 1 - r);
                assert_int_equal(rec->count, 5);
                assert_true(rec->group != 0);
                sends++;
            }
            if (rec->op == ROLL_OP_GROUP_END && rec->aux == 2) {
                ends++;
                assert_int_equal(sends, 2 * ends);
                assert_int_equal(rec->group, dump.records[at - 1].group);
            }
        }
        assert_int_equal(sends, 4);
        assert_int_equal(ends, 2);
        assert_int_equal(reduces, 2);
        dump_close(&dump);
    }
    end_ranks(job, 2);
}

static void test_groups_launched_by_another_thread(void **state)
{
    (void)state;
    check_nonblocking(NEWEST);
    check_nonblocking(4);
}

static void test_two_communicators_in_one_group(void **state)
{
    (void)state;
    struct job job[2];
    static struct dump dump;
    static const struct {
        uint8_t op;
        uint16_t comm;
        uint64_t count;
    } want[] = {
        {ROLL_OP_COMM_INIT, 1, 2},   {ROLL_OP_COMM_INIT, 2, 2},    {ROLL_OP_ALLREDUCE, 1, 7},
        {ROLL_OP_SEND, 2, 8},        {ROLL_OP_RECV, 2, 8},         {ROLL_OP_GROUP_END, 0, 0},
        {ROLL_OP_ALLREDUCE, 1, 9},   {ROLL_OP_ALLREDUCE, 2, 10},   {ROLL_OP_GROUP_END, 0, 0},
        {ROLL_OP_STREAM_SYNC, 0, 0}, {ROLL_OP_COMM_DESTROY, 2, 0}, {ROLL_OP_COMM_DESTROY, 1, 0},
    };
    start_ranks(job, "ROLL_TEST_STATIC_JOB", 2, "two", NEWEST, job_path("ROLL_TEST_PRELOAD"), NULL);
    wait_ranks(job, 2);
    dump_open(&job[0], &dump);
    assert_int_equal(dump.count, sizeof(want) / sizeof(want[0]));
    for (size_t i = 0; i < dump.count; i++) {
        assert_int_equal(dump.records[i].op, want[i].op);
        assert_int_equal(dump.records[i].comm, want[i].comm);
        assert_int_equal(dump.records[i].count, want[i].count);
        assert_int_equal(dump.records[i].group, i >= 2 && i <= 5 ? 1 : i >= 6 && i <= 8 ? 2 : 0);
    }
    dump_close(&dump);
    end_ranks(job, 2);
}

/* the user's own plugin */

static void read_log(const char *path, char *out, size_t size)
{
    FILE *f = fopen(path, "re");
    size_t n = f != NULL ? fread(out, 1, size - 1, f) : 0;
    out[n] = '\0';
    if (f != NULL) {
        fclose(f);
    }
}

/* How the user's plugin is loaded: alone; behind ours; behind ours with recording disabled; behind ours by its file
 * name alone. */
enum stand { ALONE, CHAINED, DISABLED, BY_NAME, STANDS };

/* What the user's plugin hears of rank 0. */
static void hear(const char *user, int version, const char *mask, enum stand stand, char *out, size_t size)
{
    bool chained = stand != ALONE, ours = stand == CHAINED || stand == BY_NAME;
    static char log[128], log_text[160], mask_text[64], chain_text[600], directory[64];
    struct job job[2];
    snprintf(log, sizeof(log), "/tmp/roll-test-user-profiler.%d", (int)getpid());
    unlink(log);
    snprintf(log_text, sizeof(log_text), "USER_PROFILER_LOG=%s", log);
    snprintf(mask_text, sizeof(mask_text), "USER_PROFILER_MASK=%s", mask);
    snprintf(chain_text, sizeof(chain_text), "ROLLCALL_CHAIN_PROFILER=%s", user);
    if (stand == BY_NAME) { /* as NCCL looks for it where no variable is set */
        scratch_make(directory);
        assert_int_equal(symlink(user, scratch_path(directory, "libnccl-profiler.so")), 0);
        snprintf(chain_text, sizeof(chain_text), "LD_LIBRARY_PATH=%s:%s", directory, job_path("ROLL_TEST_HOSTNCCL"));
    }
    const char *extra[] = {log_text, mask_text, chained ? chain_text : NULL,
                           stand == DISABLED ? "ROLLCALL_DISABLE=1" : NULL, NULL};
    start_ranks(job, "ROLL_TEST_STATIC_RANKS", 1, "whole", version, chained ? job_path("ROLL_TEST_PRELOAD") : user,
                extra);
    wait_ranks(job, 1);
    read_log(log, out, size);
    unlink(log);
    if (stand == BY_NAME) {
        scratch_remove(directory);
    }
    assert_int_equal(job_files(&job[0], ".ring"), ours);
    if (ours) { /* we have heard the event too */
        static struct dump dump;
        size_t at = 0;
        dump_open(&job[0], &dump);
        assert_non_null(dump_next(&dump, &at, ROLL_OP_SEND));
        dump_close(&dump);
    }
    end_ranks(job, 1);
}

static void check_chain(const char *user, int version, const char *mask)
{
    static char alone[65536], behind[65536];
    hear(job_path(user), version, mask, ALONE, alone, sizeof(alone));
    assert_non_null(strstr(alone, "init\n"));
    for (enum stand stand = CHAINED; stand < STANDS; stand++) {
        hear(job_path(user), version, mask, stand, behind, sizeof(behind));
        assert_string_equal(behind, alone);
    }
}

static void test_the_users_plugin_hears_what_it_hears_alone(void **state)
{
    (void)state;
    check_chain("ROLL_TEST_USER_V5", 7, "0");    /* the user's plugin wants no events, and we do */
    check_chain("ROLL_TEST_USER_V5", 7, "4");    /* sends and receives, with their parents */
    check_chain("ROLL_TEST_USER_V5", 5, "3839"); /* everything */
    check_chain("ROLL_TEST_USER_V5", 5, "64");   /* channels of kernels, which we do not want */
    check_chain("ROLL_TEST_USER_V4", 4, "95");
    check_chain("ROLL_TEST_USER_V3", 3, "95");
}

/* A version 4 plugin behind a newer NCCL: API events of calls are kept from the plugin, and its parents are groups. */
static void test_an_older_plugin_is_spoken_to_in_its_own_version(void **state)
{
    (void)state;
    static char behind[65536], alone[65536];
    hear(job_path("ROLL_TEST_USER_V4"), 7, "4", CHAINED, behind, sizeof(behind));
    hear(job_path("ROLL_TEST_USER_V4"), 4, "4", ALONE, alone, sizeof(alone));
    assert_non_null(strstr(alone, "start 4 parent 1\n"));
    assert_string_equal(behind, alone);
}

static void test_a_plugin_that_cannot_be_chained_is_named_and_the_job_runs(void **state)
{
    (void)state;
    static const struct {
        const char *user;
        const char *says;
    } rows[] = {
        {"/nowhere/libmine.so", "cannot load the profiler plugin /nowhere/libmine.so"},
        {"ROLL_TEST_USER_V3", "has no table that can share version 7 with ours"},
        {"ROLL_TEST_PRELOAD", "is rollcall itself: nothing is chained"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        static char chain[300];
        struct job job[2];
        static struct dump dump;
        snprintf(chain, sizeof(chain), "ROLLCALL_CHAIN_PROFILER=%s",
                 rows[i].user[0] == '/' ? rows[i].user : job_path(rows[i].user));
        const char *extra[] = {chain, NULL};
        start_ranks(job, "ROLL_TEST_STATIC_RANKS", 2, "whole", NEWEST, job_path("ROLL_TEST_PRELOAD"), extra);
        wait_ranks(job, 2);
        assert_non_null(strstr(job[0].errors, rows[i].says));
        dump_open(&job[0], &dump);
        assert_true(dump.count > 10);
        dump_close(&dump);
        end_ranks(job, 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_version_tells_exactly_the_calls_of_two_ranks),
        cmocka_unit_test(test_a_job_of_four_ranks_is_recorded_whole),
        cmocka_unit_test(test_without_the_plugin_a_static_nccl_is_not_seen),
        cmocka_unit_test(test_calls_that_the_wrappers_record_are_not_recorded_twice),
        cmocka_unit_test(test_groups_launched_by_another_thread),
        cmocka_unit_test(test_two_communicators_in_one_group),
        cmocka_unit_test(test_the_users_plugin_hears_what_it_hears_alone),
        cmocka_unit_test(test_an_older_plugin_is_spoken_to_in_its_own_version),
        cmocka_unit_test(test_a_plugin_that_cannot_be_chained_is_named_and_the_job_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
