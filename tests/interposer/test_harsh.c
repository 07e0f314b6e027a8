/* test_harsh.c: programs that a preloaded library must not hurt, and what is recorded of them. The modes are in
 * harsh.c. */
#include "tests/interposer/harness.h"

#include "trace/ident.h"

#include <sys/wait.h>

static void run(struct job *job, const char *mode)
{
    job_begin(job);
    job_run(job, "ROLL_TEST_HARSH", mode, NULL);
    JOB_SUCCEEDED(job);
}

static void run_and_open(struct job *job, const char *mode, struct dump *dump)
{
    run(job, mode);
    dump_open(job, dump);
}

static void end(struct job *job, struct dump *dump)
{
    dump_close(dump);
    job_end(job);
}

static uint64_t losses(const struct dump *dump, enum roll_loss cause)
{
    return atomic_load(&dump->ring.header->losses[cause]);
}

static void test_the_smallest_stack_is_enough(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    run_and_open(&job, "small-stack", &dump);
    assert_int_equal(dump.count, 5);
    end(&job, &dump);
    /* Also when the agent is started from there. */
    job_begin(&job);
    job_env(&job, "ROLLCALL_DAEMON=tcp://127.0.0.1:7777");
    job_env(&job, "ROLLCALL_BIN=/bin/true");
    job_run(&job, "ROLL_TEST_HARSH", "small-stack", NULL);
    JOB_SUCCEEDED(&job);
    job_end(&job);
}

static void test_ranks_forked_after_the_id_was_made_are_recorded(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    run(&job, "fork-after-id");
    assert_int_equal(job_files(&job, ".ring"), 1); /* the launcher is no rank */
    job.pid = atoi(job.output);
    dump_open(&job, &dump);
    assert_int_equal(dump.count, 2);
    assert_int_equal(dump.ring.header->pid, job.pid);
    end(&job, &dump);
}

static void test_calls_for_which_there_is_no_room_cost_no_memory(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    run_and_open(&job, "no-room", &dump);
    assert_true(losses(&dump, ROLL_LOSS_DEFS_FULL) > 0);
    assert_true(losses(&dump, ROLL_LOSS_DEFS_FULL) < 900); /* once a thing, not once a call */
    assert_int_equal(losses(&dump, ROLL_LOSS_COMM_UNKNOWN), 2001);
    end(&job, &dump);
}

static void test_a_standard_error_that_nobody_reads_does_no_harm(void **state)
{
    (void)state;
    static const char *const modes[] = {"deaf-stderr", "full-stderr"};
    for (size_t i = 0; i < 2; i++) {
        struct job job;
        job_begin(&job);
        job_env(&job, "ROLLCALL_DIR=/dev/null");
        job_run(&job, "ROLL_TEST_HARSH", modes[i], NULL);
        JOB_SUCCEEDED(&job);
        job_end(&job);
    }
}

static void test_handlers_that_call_nccl_never_wait_for_their_own_thread(void **state)
{
    (void)state;
    struct job job;
    run(&job, "signals-at-start");
    job_end(&job);
    run(&job, "signals-in-init-all");
    job_end(&job);
}

static void test_a_cancelled_thread_leaves_no_lock_behind(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    run_and_open(&job, "cancel", &dump);
    assert_int_equal(dump.count, 3);
    end(&job, &dump);
}

static void test_nonblocking_children_are_never_mistaken_for_each_other(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    static const int32_t colors[] = {6, 5, 8};
    size_t at = 0;
    run_and_open(&job, "one-variable", &dump);
    for (size_t i = 0; i < 3; i++) {
        const struct roll_record *rec = dump_next(&dump, &at, ROLL_OP_ALLREDUCE);
        assert_non_null(rec);
        assert_int_equal(dump_def(&dump, ROLL_DEF_COMM, rec->comm)->comm.info.color, colors[i]);
    }
    end(&job, &dump);
}

static void test_handles_that_come_late_are_known_when_they_come(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    size_t at = 0;
    run_and_open(&job, "late-groups", &dump);
    for (size_t i = 0; i < 2; i++) {
        const struct roll_record *rec = dump_next(&dump, &at, ROLL_OP_ALLREDUCE);
        assert_non_null(rec);
        assert_int_equal(dump_def(&dump, ROLL_DEF_COMM, rec->comm)->comm.info.rank, 1);
    }
    at = 0;
    for (uint32_t i = 0; i < 2; i++) { /* of InitAll: in the group like any other */
        const struct roll_record *rec = dump_next(&dump, &at, ROLL_OP_COMM_INIT);
        assert_int_equal(rec->group, 1);
    }
    end(&job, &dump);
}

static void test_simulated_groups_leave_nothing_behind(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    run_and_open(&job, "simulated", &dump);
    assert_int_equal(losses(&dump, ROLL_LOSS_COMM_UNKNOWN), 0);
    end(&job, &dump);
}

static void test_the_calling_object_is_always_defined(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    char names[ROLL_CALLSITE_DEPTH][64];
    run_and_open(&job, "new-object", &dump);
    dump_frames(&dump, dump.records[dump.count - 1].callsite, names);
    assert_string_equal(names[0], "job_mode_many");
    end(&job, &dump);
}

static void test_a_phase_that_is_none_is_recorded_as_none(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    run_and_open(&job, "odd-phase", &dump);
    assert_int_equal(dump.count, 3);
    for (size_t i = 0; i < dump.count; i++) {
        assert_int_equal(roll_record_check(&dump.records[i]), 0);
    }
    end(&job, &dump);
}

static void test_a_call_that_is_left_by_a_jump_does_not_silence_its_thread(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    run_and_open(&job, "jump", &dump);
    assert_int_equal(dump.count, 5);
    assert_int_equal(roll_seal_state(dump.records[1].seal), ROLL_STATE_ENTERED);
    assert_int_equal(dump.records[2].count, 2);
    assert_int_equal(dump.records[2].group, 1);
    assert_int_equal(dump.records[3].op, ROLL_OP_GROUP_END);
    assert_int_equal(dump.records[4].count, 3);
    assert_int_equal(roll_seal_state(dump.records[4].seal), ROLL_STATE_RETURNED);
    end(&job, &dump);
}

static void test_what_was_used_once_costs_no_memory_no_system_call_and_hardly_a_lock(void **state)
{
    (void)state;
    struct job job;
    job_begin(&job);
    job_run(&job, "ROLL_TEST_HARSH", "hot", NULL);
    if (WIFEXITED(job.status) && WEXITSTATUS(job.status) == 77) {
        job_end(&job);
        print_message("skipped: this machine does not let a process filter its system calls\n");
        skip();
    }
    JOB_SUCCEEDED(&job);
    job_end(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_smallest_stack_is_enough),
        cmocka_unit_test(test_ranks_forked_after_the_id_was_made_are_recorded),
        cmocka_unit_test(test_calls_for_which_there_is_no_room_cost_no_memory),
        cmocka_unit_test(test_a_standard_error_that_nobody_reads_does_no_harm),
        cmocka_unit_test(test_handlers_that_call_nccl_never_wait_for_their_own_thread),
        cmocka_unit_test(test_a_cancelled_thread_leaves_no_lock_behind),
        cmocka_unit_test(test_nonblocking_children_are_never_mistaken_for_each_other),
        cmocka_unit_test(test_handles_that_come_late_are_known_when_they_come),
        cmocka_unit_test(test_simulated_groups_leave_nothing_behind),
        cmocka_unit_test(test_the_calling_object_is_always_defined),
        cmocka_unit_test(test_a_phase_that_is_none_is_recorded_as_none),
        cmocka_unit_test(test_a_call_that_is_left_by_a_jump_does_not_silence_its_thread),
        cmocka_unit_test(test_what_was_used_once_costs_no_memory_no_system_call_and_hardly_a_lock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
