/* test_proc_look.c: which signs mean that NCCL is at work in a process, and which only look like it. Each case is a
 * child process with such signs. */
#include "tests/trace/cmocka_all.h"

#include "tests/trace/scratch.h"

#include "daemon/stack/proc_look.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void map_file(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, 4096) != 0 || mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED) {
        _exit(1);
    }
    close(fd);
}

/* Looks at a child that maps `file` (NULL: none), removed or not, and whose thread is called `thread` (NULL: as it is).
 */
static struct roll_look look_at(const char *file, bool removed, const char *thread)
{
    static struct roll_look look; /* large */
    struct roll_look_kin kin;
    int ready[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        if (file != NULL) {
            map_file(file);
        }
        if (removed) {
            unlink(file);
        }
        if (thread != NULL) {
            prctl(PR_SET_NAME, thread);
        }
        if (write(ready[1], "r", 1) == 1) {
            pause();
        }
        _exit(1);
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    assert_int_equal(roll_look((uint32_t)pid, &look), 0);
    assert_int_equal(roll_look_kin((uint32_t)pid, &kin), 0);
    assert_int_equal(kin.parent, getpid());
    assert_int_equal(kin.inner, pid);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    if (file != NULL && !removed) {
        unlink(file);
    }
    return look;
}

static void test_memory_of_a_communicator_shows_that_nccl_works(void **state)
{
    (void)state;
    char dir[64], path[96];
    snprintf(path, sizeof(path), "/dev/shm/nccl-test%d", (int)getpid());
    assert_non_null(strstr(look_at(path, false, NULL).work, "its shared memory nccl-test"));
    assert_non_null(strstr(look_at(path, true, NULL).work, "its shared memory nccl-test")); /* as NCCL does */
    scratch_make(dir);
    assert_non_null(strstr(look_at(scratch_path(dir, "hn-0123456789abcdef"), false, NULL).work, "hn-0123456789abcdef"));
    scratch_remove(dir);
}

/* A mapped program called nccl-something is no sign. */
static void test_files_that_are_only_called_so_show_nothing(void **state)
{
    (void)state;
    static const char *const names[] = {"nccl-bench", "libnccl-net.so", "hn-notes", "hn-0123456789abcdefg"};
    char dir[64];
    scratch_make(dir);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_string_equal(look_at(scratch_path(dir, names[i]), false, NULL).work, "");
    }
    scratch_remove(dir);
}

static void test_threads_of_nccl_show_that_it_works(void **state)
{
    (void)state;
    assert_string_equal(look_at(NULL, false, "NCCL Service  0").work, "its thread NCCL Service  0 runs");
    assert_string_equal(look_at(NULL, false, "NCCL Progress 3").work, "its thread NCCL Progress 3 runs");
    assert_string_equal(look_at(NULL, false, "NCCLish").work, "");
    assert_string_equal(look_at(NULL, false, "NCCL BootstrapR").work, ""); /* an id was made, and nothing else */
}

static void test_what_is_mapped_shows_nccl_and_our_library(void **state)
{
    (void)state;
    char dir[64];
    scratch_make(dir);
    struct roll_look look = look_at(scratch_path(dir, "libnccl.so.2"), false, NULL);
    assert_int_equal(look.nccls, 1);
    assert_false(look.preload);
    assert_string_equal(look.work, "");
    assert_true(look_at(scratch_path(dir, "librollcall.so"), false, NULL).preload);
    assert_true(look_at(scratch_path(dir, "librollcall_audit.so"), false, NULL).audit);
    scratch_remove(dir);
}

/* A process in a pid namespace of its own, as a container's first process, has number 1 there. */
static void test_a_process_has_another_number_in_its_pid_namespace(void **state)
{
    (void)state;
    struct roll_look_kin kin;
    pid_t pid =
        (pid_t)syscall(SYS_clone, SIGCHLD | CLONE_NEWPID | (geteuid() != 0 ? CLONE_NEWUSER : 0), NULL, NULL, NULL, 0);
    if (pid == 0) {
        pause();
        _exit(1);
    }
    if (pid < 0) {
        print_message("SKIPPED: this system gives no pid namespace: %s\n", strerror(errno));
        skip();
    }
    assert_int_equal(roll_look_kin((uint32_t)pid, &kin), 0);
    assert_int_equal(kin.parent, getpid());
    assert_int_equal(kin.inner, 1);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void test_a_process_that_is_not_there_is_an_error(void **state)
{
    (void)state;
    static struct roll_look look;
    struct roll_look_env env;
    struct roll_look_kin kin;
    assert_true(roll_look(999999999, &look) < 0);
    assert_true(roll_look_env(999999999, &env) < 0);
    assert_true(roll_look_kin(999999999, &kin) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_of_a_communicator_shows_that_nccl_works),
        cmocka_unit_test(test_files_that_are_only_called_so_show_nothing),
        cmocka_unit_test(test_threads_of_nccl_show_that_it_works),
        cmocka_unit_test(test_what_is_mapped_shows_nccl_and_our_library),
        cmocka_unit_test(test_a_process_has_another_number_in_its_pid_namespace),
        cmocka_unit_test(test_a_process_that_is_not_there_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
