/* test_life.c: the ring and the job, when the job is killed, forks, laps its ring, or cannot have one. */
#include "tests/interposer/harness.h"

#include "trace/control.h"
#include "trace/ident.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void test_exit_marks_the_ring_finished(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    job_begin(&job);
    job_run(&job, "ROLL_TEST_JOB", "many", "10");
    JOB_SUCCEEDED(&job);
    dump_open(&job, &dump);
    assert_int_equal(atomic_load(&dump.ring.header->state), ROLL_RING_FINISHED);
    assert_true(atomic_load(&dump.ring.header->finish_ns) >= dump.records[dump.count - 1].enter_ns);
    assert_int_equal(atomic_load(&dump.ring.header->exit_status), ROLL_EXIT_UNKNOWN);
    assert_int_equal(dump.ring.header->world_rank, -1);
    dump_close(&dump);
    assert_int_equal(job_files(&job, ".ctl"), 1);
    job_end(&job);
}

static void test_a_small_ring_keeps_the_newest_records(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    job_begin(&job);
    job_env(&job, "ROLLCALL_RING_RECORDS=64");
    job_run(&job, "ROLL_TEST_JOB", "many", "1000");
    JOB_SUCCEEDED(&job);
    dump_open(&job, &dump);
    assert_int_equal(dump.ring.header->capacity, 64);
    assert_int_equal(atomic_load(&dump.ring.header->head), 1001);
    assert_int_equal(dump.count, 64);
    for (size_t i = 0; i < dump.count; i++) {
        assert_int_equal(dump.records[i].count, 1000 - 63 + i);
        assert_int_equal(dump.records[i].seq, 1000 - 64 + i);
    }
    dump_close(&dump);
    job_end(&job);
}

static void test_a_killed_job_leaves_a_valid_ring(void **state)
{
    (void)state;
    for (int i = 0; i < 10; i++) {
        struct job job;
        struct dump dump;
        char *argv[] = {(char *)(uintptr_t)job_path("ROLL_TEST_JOB"), (char *)(uintptr_t) "forever", NULL};
        job_begin(&job);
        job_start(&job, argv);
        const struct timespec pause = {0, 1000000 + 1234567 * i};
        uint64_t calls = 0;
        while (calls < 1000 && kill(job.pid, 0) == 0) {
            nanosleep(&pause, NULL);
            if (job_files(&job, ".ring") == 1) {
                dump_open(&job, &dump);
                calls = atomic_load(&dump.ring.header->head);
                dump_close(&dump);
            }
        }
        nanosleep(&pause, NULL);
        kill(job.pid, SIGKILL);
        job_wait(&job);
        assert_true(WIFSIGNALED(job.status));
        dump_open(&job, &dump);
        assert_int_equal(atomic_load(&dump.ring.header->state), ROLL_RING_ATTACHED);
        uint64_t head = atomic_load(&dump.ring.header->head);
        assert_true(head >= 1000);
        assert_true(dump.count + 1 >= (head < dump.ring.mask + 1 ? head : dump.ring.mask + 1));
        for (size_t k = 1; k < dump.count; k++) {
            assert_int_equal(roll_record_check(&dump.records[k]), 0);
            if (dump.records[k].op == ROLL_OP_ALLREDUCE) {
                assert_int_equal(dump.records[k].count, dump.records[k].seq + 1);
            }
        }
        dump_close(&dump);
        job_end(&job);
    }
}

static void test_a_forked_child_leaves_its_parents_ring_alone(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    job_begin(&job);
    job_run(&job, "ROLL_TEST_JOB", "fork", NULL);
    JOB_SUCCEEDED(&job);
    assert_string_equal(job.errors, "");
    dump_open(&job, &dump);
    assert_int_equal(dump.count, 3); /* init, one call before the fork, one after */
    assert_int_equal(dump.records[1].count, 1);
    assert_int_equal(dump.records[2].count, 2);
    assert_int_equal(atomic_load(&dump.ring.header->state), ROLL_RING_ATTACHED);
    dump_close(&dump);
    job_end(&job);
}

static void test_errno_is_what_nccl_left(void **state)
{
    (void)state;
    struct job job;
    job_begin(&job);
    job_run(&job, "ROLL_TEST_JOB", "errno", NULL);
    JOB_SUCCEEDED(&job);
    job_end(&job);
}

static void test_disabled_it_only_forwards(void **state)
{
    (void)state;
    struct job job;
    job_begin(&job);
    job_env(&job, "ROLLCALL_DISABLE=1");
    job_run(&job, "ROLL_TEST_JOB", "operations", NULL);
    JOB_SUCCEEDED(&job);
    assert_string_equal(job.errors, "");
    assert_int_equal(job_files(&job, ""), 0);
    job_end(&job);
}

/* The job ran as if we were not there, and one line says why it was not recorded. */
static void check_one_line(struct job *job, const char *about)
{
    JOB_SUCCEEDED(job);
    assert_int_equal(strncmp(job->errors, "rollcall: ", 10), 0);
    assert_non_null(strstr(job->errors, about));
    const char *end = strchr(job->errors, '\n');
    assert_non_null(end);
    assert_int_equal(end[1], '\0');
    static const char tail[] = "; the job runs on without it";
    assert_memory_equal(end - strlen(tail), tail, strlen(tail));
    assert_string_equal(job->output, "");
}

static void test_a_directory_that_cannot_be_had_costs_one_line(void **state)
{
    (void)state;
    static const char *const dirs[] = {"ROLLCALL_DIR=/proc/self/nowhere", "ROLLCALL_DIR=/dev/null",
                                       "ROLLCALL_DIR=/nonexistent/deep/dir"};
    for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
        struct job job;
        job_begin(&job);
        job_env(&job, dirs[i]);
        job_run(&job, "ROLL_TEST_JOB", "operations", NULL);
        check_one_line(&job, dirs[i] + strlen("ROLLCALL_DIR="));
        job_end(&job);
    }
}

static void test_quiet_means_no_line_at_all(void **state)
{
    (void)state;
    struct job job;
    job_begin(&job);
    job_env(&job, "ROLLCALL_DIR=/dev/null");
    job_env(&job, "ROLLCALL_QUIET=1");
    job_run(&job, "ROLL_TEST_JOB", "operations", NULL);
    JOB_SUCCEEDED(&job);
    assert_string_equal(job.errors, "");
    job_end(&job);
}

static void test_a_directory_open_to_others_is_refused(void **state)
{
    (void)state;
    struct job job;
    job_begin(&job);
    assert_int_equal(chmod(job.dir, 0755), 0);
    job_run(&job, "ROLL_TEST_JOB", "operations", NULL);
    check_one_line(&job, "must belong to this user alone");
    assert_int_equal(job_files(&job, ""), 0);
    job_end(&job);
    if (geteuid() == 0) {
        job_begin(&job);
        assert_int_equal(chown(job.dir, 12345, 12345), 0);
        job_run(&job, "ROLL_TEST_JOB", "operations", NULL);
        check_one_line(&job, "must belong to this user alone");
        assert_int_equal(job_files(&job, ""), 0);
        job_end(&job);
    }
}

static void test_a_file_size_limit_costs_one_line(void **state)
{
    (void)state;
    struct job job;
    struct rlimit before, limit;
    job_begin(&job);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = 65536;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    job_run(&job, "ROLL_TEST_JOB", "operations", NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    check_one_line(&job, "cannot make the ring");
    assert_int_equal(job_files(&job, ""), 0);
    job_end(&job);
}

/* Runs the job on a file system that is too small for a ring: 0, or 77 where no such file system can be made. */
static int run_on_a_full_file_system(const struct job *job)
{
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
        return 77;
    }
    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    if (mount("small", job->dir, "tmpfs", 0, "size=256k,mode=0700") != 0) {
        return 77;
    }
    struct job inner = *job;
    job_run(&inner, "ROLL_TEST_JOB", "operations", NULL);
    bool told = strstr(inner.errors, "cannot make the ring") != NULL && strstr(inner.errors, "runs on") != NULL;
    return inner.status == 0 && told && job_files(&inner, ".ring") == 0 ? 0 : 1;
}

static void test_a_full_file_system_costs_one_line(void **state)
{
    (void)state;
    struct job job;
    int status = 0;
    job_begin(&job);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        _exit(run_on_a_full_file_system(&job));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    job_end(&job);
    if (WEXITSTATUS(status) == 77) {
        print_message("skipped: this machine does not let a test mount a small file system\n");
        skip();
    }
    assert_int_equal(status, 0);
}

static void test_threads_on_their_own_communicators_lose_nothing(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    job_begin(&job);
    job_run(&job, "ROLL_TEST_JOB", "threads", NULL);
    JOB_SUCCEEDED(&job);
    dump_open(&job, &dump);
    uint32_t next[4] = {0, 0, 0, 0};
    size_t raced = 0;
    for (size_t i = 0; i < dump.count; i++) {
        const struct roll_record *rec = &dump.records[i];
        if (rec->op == ROLL_OP_ALLREDUCE && rec->comm < 3) {
            assert_int_equal(rec->seq, next[rec->comm]);
            next[rec->comm]++;
            assert_int_equal(rec->count, rec->comm);
        }
        raced += rec->op == ROLL_OP_ALLREDUCE && rec->comm == 3;
    }
    assert_int_equal(next[1], 5000);
    assert_int_equal(next[2], 5000);
    assert_int_equal(raced, 10000); /* a race on one communicator: every call is there, whatever its number */
    dump_close(&dump);
    job_end(&job);
}

static void test_calls_from_signal_handlers_are_recorded_or_counted(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    job_begin(&job);
    job_run(&job, "ROLL_TEST_JOB", "signals", NULL);
    JOB_SUCCEEDED(&job);
    dump_open(&job, &dump);
    size_t at = 0, recorded = 0;
    for (const struct roll_record *rec = dump_next(&dump, &at, ROLL_OP_ALLREDUCE); rec != NULL;
         rec = dump_next(&dump, &at, ROLL_OP_ALLREDUCE)) {
        assert_int_equal(roll_seal_state(rec->seal), ROLL_STATE_RETURNED);
        recorded += rec->count == 2;
    }
    /* Some thousand signals came: most of them while a call was being recorded, some between calls. */
    print_message("from the handler: %zu recorded, %llu counted as lost\n", recorded,
                  (unsigned long long)atomic_load(&dump.ring.header->losses[ROLL_LOSS_SIGNAL]));
    assert_true(atomic_load(&dump.ring.header->losses[ROLL_LOSS_SIGNAL]) > 0);
    dump_close(&dump);
    job_end(&job);
}

static void test_frame_pointers_that_are_none_do_no_harm(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    job_begin(&job);
    job_run(&job, "ROLL_TEST_JOB", "wild-frames", NULL);
    JOB_SUCCEEDED(&job);
    dump_open(&job, &dump);
    assert_int_equal(dump.count, 1 + 12);
    dump_close(&dump);
    job_end(&job);
}

static void test_communicators_come_and_go_without_end(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    job_begin(&job);
    job_run(&job, "ROLL_TEST_JOB", "churn", NULL);
    JOB_SUCCEEDED(&job);
    dump_open(&job, &dump);
    /* The definitions area is full after some thousands: from then on calls are recorded without a communicator. */
    assert_true(atomic_load(&dump.ring.header->losses[ROLL_LOSS_DEFS_FULL]) > 0);
    assert_int_equal(atomic_load(&dump.ring.header->head), 60000);
    dump_close(&dump);
    job_end(&job);
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void test_times_are_those_of_the_monotonic_clock(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    static int64_t late[3000];
    size_t at = 0, n = 0;
    uint64_t last = 0;
    job_begin(&job);
    job_run(&job, "ROLL_TEST_JOB", "clocks", NULL);
    JOB_SUCCEEDED(&job);
    dump_open(&job, &dump);
    for (const struct roll_record *rec = dump_next(&dump, &at, ROLL_OP_ALLREDUCE); rec != NULL;
         rec = dump_next(&dump, &at, ROLL_OP_ALLREDUCE)) {
        assert_true(rec->enter_ns >= last);
        last = rec->enter_ns;
        late[n++] = (int64_t)(rec->enter_ns - rec->count);
    }
    assert_int_equal(n, 3000);
    qsort(late, n, sizeof(late[0]), by_value);
    print_message("after the clock was read: earliest %lld ns, median %lld ns\n", (long long)late[0],
                  (long long)late[n / 2]);
    assert_true(late[0] > -1500);
    assert_true(late[n / 2] < 1500); /* the call itself comes a moment after its count was taken */
    dump_close(&dump);
    job_end(&job);
}

static void test_functions_of_unknown_prototype_keep_their_arguments(void **state)
{
    (void)state;
    struct job job;
    job_begin(&job);
    job_run(&job, "ROLL_TEST_JOB", "odd", NULL);
    JOB_SUCCEEDED(&job);
    job_end(&job);
}

static void test_programs_without_nccl_notice_nothing(void **state)
{
    (void)state;
    static const char *const programs[][4] = {{"/bin/ls", "/", NULL},
                                              {"/bin/bash", "-c", "echo $((6*7)); (exit 3)", NULL},
                                              {"/usr/bin/python3", "-c", "print(6 * 7)", NULL},
                                              {"/bin/true", NULL}};
    for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++) {
        if (access(programs[i][0], X_OK) != 0) {
            print_message("left out: %s is not installed\n", programs[i][0]);
            continue;
        }
        struct job with, without;
        job_begin(&with);
        job_begin(&without);
        job_env(&without, "LD_PRELOAD=");
        job_start(&with, (char *const *)(uintptr_t)programs[i]);
        job_wait(&with);
        job_start(&without, (char *const *)(uintptr_t)programs[i]);
        job_wait(&without);
        assert_int_equal(with.status, without.status);
        assert_string_equal(with.output, without.output);
        assert_string_equal(with.errors, without.errors);
        assert_int_equal(job_files(&with, ""), 0);
        job_end(&with);
        job_end(&without);
    }
}

static void test_a_change_of_the_communicators_state_is_recorded_once(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    static const struct {
        uint8_t op, result;
    } want[] = {
        {ROLL_OP_COMM_INIT, 0},
        {ROLL_OP_ALLREDUCE, 7},
        {ROLL_OP_COMM_ASYNC, 0},
        {ROLL_OP_COMM_ASYNC, 6},
    };
    job_begin(&job);
    job_run(&job, "ROLL_TEST_JOB", "async", NULL);
    JOB_SUCCEEDED(&job);
    dump_open(&job, &dump);
    assert_int_equal(dump.count, sizeof(want) / sizeof(want[0]));
    for (size_t i = 0; i < dump.count; i++) {
        assert_int_equal(dump.records[i].op, want[i].op);
        assert_int_equal(dump.records[i].result, want[i].result);
        assert_int_equal(dump.records[i].comm, 1);
        assert_int_equal(roll_seal_state(dump.records[i].seal), ROLL_STATE_RETURNED);
    }
    dump_close(&dump);
    job_end(&job);
}

/* The last record of a job that hangs in a call, seen from outside while it hangs. */
static void check_stuck(const char *mode, enum roll_op op)
{
    const struct timespec pause = {0, 10000000};
    struct job job;
    struct dump dump;
    char *argv[] = {(char *)(uintptr_t)job_path("ROLL_TEST_JOB"), (char *)(uintptr_t)mode, NULL};
    bool seen = false;
    job_begin(&job);
    job_start(&job, argv);
    for (int i = 0; i < 28000 && !seen; i++) {
        nanosleep(&pause, NULL);
        if (job_files(&job, ".ring") == 0) {
            continue;
        }
        dump_open(&job, &dump);
        const struct roll_record *last = dump.count > 0 ? &dump.records[dump.count - 1] : NULL;
        seen = last != NULL && last->op == op && roll_seal_state(last->seal) == ROLL_STATE_ENTERED;
        dump_close(&dump);
    }
    kill(job.pid, SIGKILL);
    job_wait(&job);
    assert_true(seen);
    job_end(&job);
}

static void test_a_call_that_never_returns_is_seen_from_outside(void **state)
{
    (void)state;
    check_stuck("stuck-send", ROLL_OP_SEND);
    check_stuck("stuck-group", ROLL_OP_GROUP_END);
    check_stuck("stuck-init", ROLL_OP_COMM_INIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_change_of_the_communicators_state_is_recorded_once),
        cmocka_unit_test(test_a_call_that_never_returns_is_seen_from_outside),
        cmocka_unit_test(test_exit_marks_the_ring_finished),
        cmocka_unit_test(test_a_small_ring_keeps_the_newest_records),
        cmocka_unit_test(test_a_killed_job_leaves_a_valid_ring),
        cmocka_unit_test(test_a_forked_child_leaves_its_parents_ring_alone),
        cmocka_unit_test(test_errno_is_what_nccl_left),
        cmocka_unit_test(test_disabled_it_only_forwards),
        cmocka_unit_test(test_a_directory_that_cannot_be_had_costs_one_line),
        cmocka_unit_test(test_quiet_means_no_line_at_all),
        cmocka_unit_test(test_a_directory_open_to_others_is_refused),
        cmocka_unit_test(test_a_file_size_limit_costs_one_line),
        cmocka_unit_test(test_a_full_file_system_costs_one_line),
        cmocka_unit_test(test_threads_on_their_own_communicators_lose_nothing),
        cmocka_unit_test(test_calls_from_signal_handlers_are_recorded_or_counted),
        cmocka_unit_test(test_frame_pointers_that_are_none_do_no_harm),
        cmocka_unit_test(test_communicators_come_and_go_without_end),
        cmocka_unit_test(test_times_are_those_of_the_monotonic_clock),
        cmocka_unit_test(test_functions_of_unknown_prototype_keep_their_arguments),
        cmocka_unit_test(test_programs_without_nccl_notice_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
