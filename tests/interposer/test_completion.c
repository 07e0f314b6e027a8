/* test_completion.c: completion on the device, learnt in each of the three ways, on a fake device.
 */
#include "tests/interposer/harness.h"

#include "interposer/cuda/count_ptx.h"

#include <unistd.h>

static uint64_t done_on(const struct dump *dump, uint64_t handle)
{
    for (uint32_t id = 1; id < 64; id++) {
        for (size_t i = 0; i < dump->def_count; i++) {
            const struct roll_def *def = &dump->defs[i];
            if (def->type == ROLL_DEF_STREAM && def->id == id && def->stream.handle == handle) {
                return atomic_load(&dump->ring.header->done[id]);
            }
        }
    }
    return UINT64_MAX;
}

static void run(const char *way, const char *mode, struct job *job, struct dump *dump)
{
    job_begin(job);
    if (way != NULL) {
        job_env(job, way);
    }
    job_run(job, "ROLL_TEST_GRAPH", mode, NULL);
    JOB_SUCCEEDED(job);
    dump_open(job, dump);
}

#define STREAM(n) (0x7000u + 16u * (n))

static void check(const char *way, enum roll_completion completion, bool counted)
{
    struct job job;
    struct dump dump;
    run(way, "completion", &job, &dump);
    assert_string_equal(job.errors, "");
    assert_int_equal(atomic_load(&dump.ring.header->completion), completion);
    bool on = completion != ROLL_COMPLETION_OFF;
    assert_int_equal(done_on(&dump, STREAM(1)), on ? 3 + 1 : 0);
    assert_int_equal(done_on(&dump, STREAM(2)), on ? 2 + 1 : 0); /* not the refused one */
    assert_int_equal(done_on(&dump, STREAM(3)), on ? 6 + 1 : 0); /* the group's end */
    assert_int_equal(done_on(&dump, STREAM(4)), on ? 11 + 1 : 0);
    assert_int_equal(done_on(&dump, STREAM(5)), 0);
    assert_int_equal(atomic_load(&dump.ring.header->done[1]), 0);
    assert_int_equal(atomic_load(&dump.ring.header->graph_done[1]), counted ? 2 : 0);
    assert_int_equal(dump.records[6].op, ROLL_OP_GROUP_END);
    assert_int_equal(dump_def(&dump, ROLL_DEF_STREAM, dump.records[6].stream)->stream.handle, STREAM(3));
    dump_close(&dump);
    job_end(&job);
}

static void test_nothing_is_done_unless_asked_for(void **state)
{
    (void)state;
    check(NULL, ROLL_COMPLETION_OFF, false);
    check("ROLLCALL_COMPLETION=off", ROLL_COMPLETION_OFF, false);
}

static void test_streams_write_what_is_complete(void **state)
{
    (void)state;
    check("ROLLCALL_COMPLETION=write", ROLL_COMPLETION_WRITE, false);
}

static void test_replays_are_counted_on_the_device(void **state)
{
    (void)state;
    check("ROLLCALL_COMPLETION=counter", ROLL_COMPLETION_COUNTER, true);
}

static void test_events_are_asked(void **state)
{
    (void)state;
    check("ROLLCALL_COMPLETION=event", ROLL_COMPLETION_EVENT, false);
}

static void test_events_are_a_small_number(void **state)
{
    (void)state;
    struct job job;
    struct dump dump;
    run("ROLLCALL_COMPLETION=event", "behind", &job, &dump);
    assert_int_equal(dump.count, 1001);
    dump_close(&dump);
    job_end(&job);
}

static void check_refused(const char *way, const char *mode, const char *line)
{
    struct job job;
    struct dump dump;
    run(way, mode, &job, &dump);
    if (strstr(job.errors, line) == NULL || strchr(job.errors, '\n') != strrchr(job.errors, '\n')) {
        fail_msg("wanted one line with '%s', got '%s'", line, job.errors);
    }
    assert_int_equal(atomic_load(&dump.ring.header->completion), ROLL_COMPLETION_OFF);
    assert_int_equal(dump.count, 1001); /* the calls are recorded all the same */
    dump_close(&dump);
    job_end(&job);
}

static void test_what_cannot_be_had_is_said_once(void **state)
{
    (void)state;
    check_refused("ROLLCALL_COMPLETION=write", "narrow", "this device has no 64-bit stream memory operations");
    check_refused("ROLLCALL_COMPLETION=always", "behind",
                  "ROLLCALL_COMPLETION=always is none of off, write, counter, event");
}

/* The kernel is text that only a driver reads: the vendor's assembler, where there is one, must take it. */
static void test_the_counting_kernel_can_be_assembled(void **state)
{
    (void)state;
    const char *ptxas = getenv("ROLL_TEST_PTXAS");
    if (ptxas == NULL || access(ptxas, X_OK) != 0) {
        print_message("SKIPPED: no ptxas here: the counting kernel is not assembled\n");
        skip();
    }
    char path[] = "/tmp/roll-count-XXXXXX", command[512];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, ROLL_COUNT_PTX, strlen(ROLL_COUNT_PTX)), (ssize_t)strlen(ROLL_COUNT_PTX));
    close(fd);
    snprintf(command, sizeof(command), "'%s' -arch=sm_80 -o /dev/null '%s'", ptxas, path);
    int status = system(command);
    unlink(path);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_done_unless_asked_for),
        cmocka_unit_test(test_streams_write_what_is_complete),
        cmocka_unit_test(test_replays_are_counted_on_the_device),
        cmocka_unit_test(test_events_are_asked),
        cmocka_unit_test(test_events_are_a_small_number),
        cmocka_unit_test(test_what_cannot_be_had_is_said_once),
        cmocka_unit_test(test_the_counting_kernel_can_be_assembled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
