/*
 * test_proc.c: the stat of processes with any name, of threads, and of processes that have ended; words of the other
 * files; the boot id as the rings have it.
 */
#include "daemon/base/proc.h"
#include "trace/err.h"
#include "trace/ring.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define REST " 1 1 1 0 -1 4194560 5 0 0 0 1 2 0 0 20 0 1 0 7654321 100 200"

static void test_lines_with_any_name_are_understood(void **state)
{
    (void)state;
    static const struct {
        const char *line, *name;
        char state;
        uint64_t start_ticks;
    } cases[] = {
        {"12 (cat) R" REST, "cat", 'R', 7654321},
        {"12 (a b) S" REST, "a b", 'S', 7654321},
        {"12 (:) R 1 (x)) Z" REST, ":) R 1 (x)", 'Z', 7654321},
        {"12 (()) t" REST, "()", 't', 7654321},
        {"12 () D" REST, "", 'D', 7654321},
        {"12 (a-name-longer-than-all-of-them) D" REST, "a-name-longer-th", 'D', 7654321},
        {"12 (cut) S 1 1", "cut", 'S', 0},
    };
    static const char *const broken[] = {"", "12", "12 (cat", "12 cat) S", ")(", "12 (cat)", "12 (cat) ", "12 (cat)S"};
    struct roll_proc_stat stat;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_true(roll_proc_stat_parse(cases[i].line, &stat));
        assert_string_equal(stat.name, cases[i].name);
        assert_int_equal(stat.state, cases[i].state);
        assert_true(stat.start_ticks == cases[i].start_ticks);
    }
    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
        assert_false(roll_proc_stat_parse(broken[i], &stat));
    }
}

static atomic_int tid;
static atomic_bool leave;

static void *thread_main(void *arg)
{
    prctl(PR_SET_NAME, ") Z 1 (");
    atomic_store(&tid, (int)syscall(SYS_gettid));
    while (!atomic_load(&leave)) {
        usleep(1000);
    }
    return arg;
}

static void test_a_thread_is_told_by_its_own_name(void **state)
{
    (void)state;
    pthread_t thread;
    struct roll_proc_stat stat;
    assert_int_equal(pthread_create(&thread, NULL, thread_main, NULL), 0);
    while (atomic_load(&tid) == 0) {
        usleep(1000);
    }
    assert_int_equal(roll_proc_stat(getpid(), atomic_load(&tid), &stat), 0);
    assert_string_equal(stat.name, ") Z 1 (");
    assert_true(stat.state == 'S' || stat.state == 'R');
    assert_int_equal(roll_proc_stat(getpid(), 0, &stat), 0);
    assert_string_not_equal(stat.name, ") Z 1 (");
    atomic_store(&leave, true);
    pthread_join(thread, NULL);
}

static void test_a_process_that_ends_is_a_zombie_and_then_nothing(void **state)
{
    (void)state;
    struct roll_proc_stat stat;
    siginfo_t info;
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_NAME, "a (b) c");
        pause();
        _exit(0);
    }
    do { /* until it has its name */
        assert_int_equal(roll_proc_stat(child, 0, &stat), 0);
    } while (strcmp(stat.name, "a (b) c") != 0);
    uint64_t start_ticks = stat.start_ticks;
    assert_true(start_ticks > 0);
    kill(child, SIGKILL);
    assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
    assert_int_equal(roll_proc_stat(child, 0, &stat), 0);
    assert_int_equal(stat.state, 'Z');
    assert_true(stat.start_ticks == start_ticks);
    waitpid(child, NULL, 0);
    assert_int_equal(roll_proc_stat(child, 0, &stat), ROLL_E_NOTFOUND);
}

/* Whenever a process ends while it is read, it is there or it is not, and never half. */
static void test_processes_that_end_while_they_are_read(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        struct roll_proc_stat stat;
        int err, reaped = 0;
        pid_t child = fork();
        if (child == 0) {
            _exit(0);
        }
        do {
            err = roll_proc_stat(child, 0, &stat);
            if (err == 0) {
                assert_true(strchr("RSDZX", stat.state) != NULL);
                assert_true(stat.start_ticks > 0);
            }
            reaped = reaped ? reaped : waitpid(child, NULL, WNOHANG);
        } while (err == 0);
        assert_int_equal(err, ROLL_E_NOTFOUND);
        assert_int_equal(reaped, child);
    }
}

static void test_words_are_found_in_their_line_only(void **state)
{
    (void)state;
    const char *text = "Name:\tUid: 7\nUmask:\t0022\nUid:\t1000\t1001\n"
                       "some avg10=1.25 total=9\nfull avg10=2.50 total=8\nlast 3";
    assert_int_equal(atoi(roll_proc_word(text, "Uid:", "")), 1000);
    assert_int_equal(atoi(roll_proc_word(text, "last", "")), 3);
    assert_true(atof(roll_proc_word(text, "full ", "avg10=")) == 2.5);
    assert_int_equal(atoi(roll_proc_word(text, "some ", "total=")), 9);
    assert_null(roll_proc_word(text, "Umask:", "total="));
    assert_null(roll_proc_word(text, "mask:", ""));
    assert_null(roll_proc_word(text, "VmRSS:", ""));
    assert_null(roll_proc_word("", "Uid:", ""));
}

static void test_boot_id_and_start_time_are_those_of_our_own_ring(void **state)
{
    (void)state;
    char path[] = "/tmp/rollcall-proc-XXXXXX";
    struct roll_ring_params params = {
        .capacity = 1024, .world_size = 1, .job = "unit", .exe = "unit", .defs_bytes = 1024 * 1024};
    struct roll_ring ring;
    struct roll_proc_stat stat;
    static const uint8_t none[16];
    close(mkstemp(path));
    unlink(path);
    assert_int_equal(roll_ring_create(path, &params, &ring), 0);
    assert_memory_equal(ring.header->boot_id, roll_proc_boot_id(), 16);
    assert_memory_not_equal(roll_proc_boot_id(), none, 16);
    assert_int_equal(roll_proc_stat(getpid(), 0, &stat), 0);
    assert_true(ring.header->start_ticks == stat.start_ticks);
    roll_ring_close(&ring);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines_with_any_name_are_understood),
        cmocka_unit_test(test_a_thread_is_told_by_its_own_name),
        cmocka_unit_test(test_a_process_that_ends_is_a_zombie_and_then_nothing),
        cmocka_unit_test(test_processes_that_end_while_they_are_read),
        cmocka_unit_test(test_words_are_found_in_their_line_only),
        cmocka_unit_test(test_boot_id_and_start_time_are_those_of_our_own_ring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
