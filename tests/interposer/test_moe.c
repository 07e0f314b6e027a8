/* test_moe.c: moe_core's observations become records and context; remedies come from the control page. */
#include "tests/interposer/harness.h"

#include "trace/control.h"
#include "trace/ident.h"

static void test_moe_events_are_recorded_and_give_context(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    job_begin(&job);
    job_run(&job, "ROLL_TEST_JOB", "moe", NULL);
    JOB_SUCCEEDED(&job);
    dump_open(&job, &dump);
    assert_int_equal(dump.count, 5);
    const struct roll_record *counts = &dump.records[1], *call = &dump.records[2], *oblige = &dump.records[3];
    assert_int_equal(counts->op, ROLL_OP_MOE_COUNTS);
    assert_int_equal(roll_seal_state(counts->seal), ROLL_STATE_RETURNED);
    assert_int_equal(counts->count, 5);
    assert_int_equal(counts->group, UINT32_MAX);
    assert_int_equal(counts->aux, UINT16_MAX);
    assert_int_equal(counts->peer, 4);
    assert_int_equal(counts->comm, 1);
    assert_int_equal(counts->step, 70);
    assert_int_equal(counts->microbatch, 2);
    assert_int_equal(counts->layer, 3);
    assert_int_equal(counts->phase, ROLL_PHASE_FORWARD);
    assert_int_equal(call->op, ROLL_OP_ALLREDUCE);
    assert_int_equal(call->step, 70);
    assert_int_equal(call->layer, 3);
    assert_int_equal(call->microbatch, 2);
    assert_int_equal(call->phase, ROLL_PHASE_FORWARD);
    assert_int_equal(oblige->op, ROLL_OP_MOE_OBLIGE);
    assert_int_equal(oblige->seq, 6);
    const struct roll_record *other = &dump.records[4]; /* of a thread that has had no event */
    assert_int_equal(other->op, ROLL_OP_ALLREDUCE);
    assert_int_equal(other->thread, 2);
    assert_int_equal(other->step, 70);
    assert_int_equal(other->phase, ROLL_PHASE_BACKWARD);
    assert_int_equal(atomic_load(&dump.ring.header->losses[ROLL_LOSS_MOE_KIND]), 1);
    dump_close(&dump);
    job_end(&job);
}

static void test_a_job_tells_its_steps_and_names(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    job_begin(&job);
    job_run(&job, "ROLL_TEST_JOB", "names", NULL);
    JOB_SUCCEEDED(&job);
    dump_open(&job, &dump);
    assert_int_equal(dump.count, 5); /* an init, two calls, a report of moe_core, a call */
    for (size_t i = 1; i <= 2; i++) {
        assert_int_equal(dump.records[i].op, ROLL_OP_ALLREDUCE);
        assert_int_equal(dump.records[i].step, 7);
        assert_int_equal(dump.records[i].layer, ROLL_LAYER_NONE);
        assert_int_equal(dump.records[i].phase, ROLL_PHASE_NONE);
    }
    assert_int_equal(dump.records[0].step, ROLL_STEP_NONE);
    assert_int_equal(dump.records[4].step, 70);
    const struct roll_def *tensors = dump_def(&dump, ROLL_DEF_NAME, 1), *group = dump_def(&dump, ROLL_DEF_NAME, 2);
    assert_non_null(tensors);
    assert_int_equal(tensors->name.info.kind, ROLL_NAME_TENSORS);
    assert_int_equal(tensors->name.info.count, 25);
    assert_int_equal(tensors->name.info.size, 2);
    assert_int_equal(tensors->name.info.text_bytes, 8);
    assert_memory_equal(tensors->name.text, "bucket 3", 8);
    assert_non_null(group);
    assert_int_equal(group->name.info.kind, ROLL_NAME_GROUP);
    assert_int_equal(group->name.info.line, 91);
    assert_memory_equal(group->name.label, "0dp/x/train.pyxxx", 17);
    assert_int_equal(group->name.info.function_bytes, 240); /* a long text is cut */
    dump_close(&dump);
    job_end(&job);
}

/* The count of a reduction tells the step that it must carry: 1000 + step; 999: none. */
static void check_marks(const char *program, const char *mode, size_t reductions)
{
    struct job job;
    struct dump dump;
    char variable[512];
    job_begin(&job);
    job_env(&job, strcmp(mode, "own_mark") == 0 ? "ROLLCALL_STEP_MARK=batch" : "ROLLCALL_STEP_MARK=");
    snprintf(variable, sizeof(variable), "NVTX_INJECTION64_PATH=%s", job_path("ROLL_TEST_PRELOAD"));
    job_env(&job, variable);
    job_run(&job, program, mode, NULL);
    JOB_SUCCEEDED(&job);
    assert_string_equal(job.errors, "");
    dump_open(&job, &dump);
    size_t at = 0, n = 0;
    for (const struct roll_record *rec; (rec = dump_next(&dump, &at, ROLL_OP_ALLREDUCE)) != NULL; n++) {
        assert_int_equal(rec->step, rec->count == 999 ? ROLL_STEP_NONE : rec->count - 1000);
    }
    assert_int_equal(n, reductions);
    dump_close(&dump);
    job_end(&job);
}

static void test_marks_of_nvtx_are_steps(void **state)
{
    (void)state;
    check_marks("ROLL_TEST_JOB", "marks", 21);
    check_marks("ROLL_TEST_JOB", "own_mark", 3);
}

static void test_marks_of_the_real_headers_are_steps(void **state)
{
    (void)state;
    if (getenv("ROLL_TEST_NVTX") == NULL) {
        print_message("SKIPPED: no nvtx3/nvToolsExt.h here: the headers were compared by hand alone\n");
        skip();
    }
    check_marks("ROLL_TEST_NVTX", "marks", 21);
    check_marks("ROLL_TEST_NVTX", "own_mark", 3);
}

/* Runs the job with a control page that was made before it; the job prints the masks that it is given. */
static void check_masks(enum roll_policy policy, const struct roll_control_change *changes, size_t n, const char *want)
{
    struct job job;
    struct roll_control *control = NULL;
    char path[256];
    job_begin(&job);
    job_env(&job, "ROLLCALL_JOB=masks");
    assert_int_equal(roll_control_path(path, sizeof(path), job.dir, "masks", 0), 0);
    assert_int_equal(roll_control_open(path, true, policy, &control), 0);
    struct roll_control_change set = {.action = 3, .mask = (uint32_t)policy};
    assert_int_equal(roll_control_apply(control, &set), 0);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(roll_control_apply(control, &changes[i]), 0);
    }
    job_run(&job, "ROLL_TEST_JOB", "moe", NULL);
    JOB_SUCCEEDED(&job);
    assert_string_equal(job.output, want);
    roll_control_close(&control);
    job_end(&job);
}

/* Masks asked for: (comm, layer 3), (comm, layer 4), (no comm, layer 4, hazard fill), (comm, layer 4, hazard fill);
 * 0x80 is what the library itself answers. */
static void test_remedies_come_from_the_control_page(void **state)
{
    (void)state;
    uint8_t id[128];
    memset(id, 1, sizeof(id));
    uint64_t key = roll_key_unique_id(id, sizeof(id));
    const struct roll_control_change job = {.level = 0, .action = 1, .mask = ROLL_REMEDY_PAD};
    const struct roll_control_change group = {.level = 1, .action = 1, .mask = ROLL_REMEDY_FILL, .comm_key = key};
    const struct roll_control_change layer = {.level = 2, .action = 2, .mask = ROLL_REMEDY_PAD, .layer = 4};
    const struct roll_control_change all[] = {job, group, layer};
    check_masks(ROLL_POLICY_OBSERVE, NULL, 0, "128 128 128 128\n");
    check_masks(ROLL_POLICY_OBSERVE, &job, 1, "130 130 130 130\n");
    check_masks(ROLL_POLICY_OBSERVE, &group, 1, "129 129 128 129\n");
    check_masks(ROLL_POLICY_OBSERVE, all, 3, "131 129 128 129\n");
    check_masks(ROLL_POLICY_AUTO, NULL, 0, "128 128 129 129\n");
}

static void test_without_a_control_page_the_library_decides(void **state)
{
    (void)state;
    struct job job;
    job_begin(&job);
    job_env(&job, "ROLLCALL_DISABLE=1");
    job_run(&job, "ROLL_TEST_JOB", "moe", NULL);
    JOB_SUCCEEDED(&job);
    assert_string_equal(job.output, "128 128 128 128\n");
    job_end(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moe_events_are_recorded_and_give_context),
        cmocka_unit_test(test_a_job_tells_its_steps_and_names),
        cmocka_unit_test(test_marks_of_nvtx_are_steps),
        cmocka_unit_test(test_marks_of_the_real_headers_are_steps),
        cmocka_unit_test(test_remedies_come_from_the_control_page),
        cmocka_unit_test(test_without_a_control_page_the_library_decides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
