/* test_agent.c: the first preloaded rank starts the agent, once, and the job does not notice. A script stands for it.
 */
#include "tests/interposer/harness.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Writes what the agent was started with into its directory. */
static const char script[] = "#!/bin/sh\n"
                             "echo \"args: $*\"  > \"$3/started\"\n"
                             "echo \"preload: ${LD_PRELOAD-none}\" >> \"$3/started\"\n"
                             "echo \"session: $(cut -d' ' -f1,5,6 /proc/$$/stat)\" >> \"$3/started\"\n"
                             "for fd in /proc/$$/fd/*; do echo \"fd: $(basename $fd) $(readlink $fd)\"; done"
                             " >> \"$3/started\"\n"
                             "grep SigBlk /proc/self/status >> \"$3/started\"\n"
                             "echo cannot start >&2\n"
                             "mv \"$3/started\" \"$3/what\"\n";

static void write_script(const struct job *job, char path[128])
{
    snprintf(path, 128, "%s/stub", job->dir);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0700);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, script, sizeof(script) - 1), sizeof(script) - 1);
    close(fd);
}

static void read_file(const struct job *job, const char *name, char *out, size_t size)
{
    char path[128];
    const struct timespec pause = {0, 10000000};
    snprintf(path, sizeof(path), "%s/%s", job->dir, name);
    for (int i = 0; i < 28000 && access(path, R_OK) != 0; i++) {
        nanosleep(&pause, NULL);
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    ssize_t n = read(fd, out, size - 1);
    out[n > 0 ? n : 0] = '\0';
    close(fd);
}

static void test_the_first_rank_starts_the_agent_unnoticed(void **state)
{
    (void)state;
    struct job job;
    char path[128], variable[160], log[4096], want[256];
    job_begin(&job);
    write_script(&job, path);
    snprintf(variable, sizeof(variable), "ROLLCALL_BIN=%s", path);
    job_env(&job, variable);
    job_env(&job, "ROLLCALL_DAEMON=tcp://127.0.0.1:7777");
    job_run(&job, "ROLL_TEST_JOB", "agent", NULL);
    JOB_SUCCEEDED(&job);
    assert_string_equal(job.errors, "");
    read_file(&job, "what", log, sizeof(log));
    snprintf(want, sizeof(want),
             "args: --agent --dir %s --connect tcp://127.0.0.1:7777 --detach --if-none --linger 30\n", job.dir);
    assert_non_null(strstr(log, want));
    assert_non_null(strstr(log, "preload: none\n"));
    assert_non_null(strstr(log, "SigBlk:\t0000000000000000\n"));
    assert_non_null(strstr(log, "fd: 0 /dev/null\n"));
    snprintf(want, sizeof(want), "fd: 2 %s/agent.log\n", job.dir);
    assert_non_null(strstr(log, want));
    assert_null(strstr(log, "memfd")); /* the job's own output */
    int pid = 0, group = -1, session = -1;
    assert_int_equal(sscanf(strstr(log, "session: "), "session: %d %d %d", &pid, &group, &session), 3);
    assert_int_equal(pid, session);
    read_file(&job, "agent.log", log, sizeof(log)); /* what it says while it starts is not lost */
    assert_string_equal(log, "cannot start\n");
    job_end(&job);
}

static void test_no_agent_is_started_where_one_holds_the_lock(void **state)
{
    (void)state;
    struct job job;
    char path[128], lock[128], variable[160];
    job_begin(&job);
    write_script(&job, path);
    snprintf(lock, sizeof(lock), "%s/agent.lock", job.dir);
    int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    snprintf(variable, sizeof(variable), "ROLLCALL_BIN=%s", path);
    job_env(&job, variable);
    job_env(&job, "ROLLCALL_DAEMON=tcp://127.0.0.1:7777");
    job_run(&job, "ROLL_TEST_JOB", "agent", NULL);
    JOB_SUCCEEDED(&job);
    assert_int_equal(job_files(&job, "agent.log") + job_files(&job, "what") + job_files(&job, "started"), 0);
    close(fd);
    job_end(&job);
}

static void test_an_agent_that_cannot_be_started_costs_one_line(void **state)
{
    (void)state;
    static const char *const bins[] = {"ROLLCALL_BIN=/nonexistent/rollcalld", "ROLLCALL_BIN=/etc/passwd"};
    for (size_t i = 0; i < 2; i++) {
        struct job job;
        job_begin(&job);
        job_env(&job, bins[i]);
        job_env(&job, "ROLLCALL_DAEMON=tcp://127.0.0.1:7777");
        job_run(&job, "ROLL_TEST_JOB", "operations", NULL);
        JOB_SUCCEEDED(&job);
        assert_non_null(strstr(job.errors, "rollcall: cannot start the agent"));
        assert_non_null(strstr(job.errors, "; the job runs on without it\n"));
        assert_int_equal(job_files(&job, ".ring"), 1); /* recorded all the same, for whoever reads it later */
        job_end(&job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_first_rank_starts_the_agent_unnoticed),
        cmocka_unit_test(test_no_agent_is_started_where_one_holds_the_lock),
        cmocka_unit_test(test_an_agent_that_cannot_be_started_costs_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
