/* test_memory.c: shared memory and processes: nothing is left behind however a job ends, and a full file system is an
 * error code. */
#include "tests/hostnccl/nccl/harness.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int x[64], y[64];

static void case_hang(struct rank *r)
{
    NCCL(ncclAllReduce(x, y, 4, ncclInt, ncclSum, r->comm, r->stream));
    finish(r);
    tell(r, "joined");
    if (r->rank == 1) {
        stay(r); /* for ever */
    }
    NCCL(ncclAllReduce(x, y, 4, ncclInt, ncclSum, r->comm, r->stream));
    CUDA(cudaStreamSynchronize(r->stream));
}

/* A collective hangs on the stream, and the program ends as programs do: exit handlers, destructors and all. */
static void case_exit_while_hung(struct rank *r)
{
    if (r->rank == 1) {
        stay(r);
    } else {
        NCCL(ncclAllReduce(x, y, 4, ncclInt, ncclSum, r->comm, r->stream));
        CHECK(still_busy(r->stream, 50));
        tell(r, "done");
    }
    exit(0);
}

static void case_incomplete_init(struct rank *r)
{
    ncclComm_t comm;

    if (r->rank == 1) {
        sleep_ms(60000);
    }
    (void)ncclCommInitRank(&comm, r->n, r->id, r->rank);
}

static void case_simple(struct rank *r)
{
    NCCL(ncclAllReduce(x, y, 4, ncclInt, ncclSum, r->comm, r->stream));
    finish(r);
}

static void case_full(struct rank *r)
{
    const size_t count = 1u << 20;
    char *big = malloc(count * (size_t)r->n), *out = malloc(count * (size_t)r->n);

    memset(big, 1, count * (size_t)r->n);
    NCCL_IS(ncclSystemError, ncclAlltoAll(big, out, count, ncclChar, r->comm, r->stream));
    CHECK(strstr(ncclGetLastError(r->comm), "No space") != NULL);
    /* The error before was fatal. */
    NCCL_IS(ncclSystemError, ncclAllReduce(x, y, 4, ncclInt, ncclSum, r->comm, r->stream));
    CUDA(cudaStreamSynchronize(r->stream));
    free(big);
    free(out);
}

static const struct rank_case CASES[] = {
    {"hang", case_hang, false},
    {"exit_while_hung", case_exit_while_hung, false},
    {"incomplete_init", case_incomplete_init, true},
    {"simple", case_simple, false},
    {"full", case_full, false},
    {0},
};

static void a_job_that_ends_or_hangs_at_exit_leaves_nothing(void **state)
{
    (void)state;
    ranks_run("simple", 4, 10, NULL);
    ranks_run("exit_while_hung", 3, 10, NULL);
}

/* The number of segments becomes `want`. */
static bool segments_become(const struct job *j, int want)
{
    for (int i = 0; i < 20000 && job_segments(j) != want; i++) {
        sleep_ms(10);
    }
    return job_segments(j) == want;
}

static void a_killed_job_leaves_no_segment(void **state)
{
    struct job j;

    (void)state;
    job_start(&j, "hang", 3, NULL);
    job_await(&j, "joined");
    assert_true(segments_become(&j, 0)); /* removed as soon as all had joined */
    job_kill(&j);
    assert_int_equal(job_segments(&j), 0);
    job_clean(&j);
}

static void the_default_signal_ends_a_hung_rank(void **state)
{
    struct job j;

    (void)state;
    job_start(&j, "hang", 2, NULL);
    job_await(&j, "joined");
    assert_int_equal(kill(j.pids[0], SIGTERM), 0);
    int status = 0;
    assert_int_equal(waitpid(j.pids[0], &status, 0), j.pids[0]);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    j.pids[0] = 0;
    job_clean(&j);
}

static void what_a_job_killed_in_init_leaves_is_removed_by_the_next(void **state)
{
    struct job killed;
    ncclUniqueId id;
    ncclComm_t comm;

    (void)state;
    job_start(&killed, "incomplete_init", 2, NULL);
    assert_true(segments_become(&killed, 1));
    setenv("HOSTNCCL_DIR", killed.dir, 1);
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    assert_int_equal(ncclCommInitRank(&comm, 1, id, 0), ncclSuccess);
    assert_int_equal(job_segments(&killed), 1); /* the segment's owner lives: not touched */
    assert_int_equal(ncclCommDestroy(comm), ncclSuccess);
    job_kill(&killed);
    assert_int_equal(job_segments(&killed), 1);
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    assert_int_equal(ncclCommInitRank(&comm, 1, id, 0), ncclSuccess);
    assert_int_equal(job_segments(&killed), 0);
    assert_int_equal(ncclCommDestroy(comm), ncclSuccess);
    unsetenv("HOSTNCCL_DIR");
    job_clean(&killed);
}

static void the_directory_is_private(void **state)
{
    char dir[] = "/dev/shm/hostnccl-test-XXXXXX", sub[64];
    struct stat st;
    ncclUniqueId id;
    ncclComm_t comm;

    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(sub, sizeof(sub), "%s/sub", dir);
    setenv("HOSTNCCL_DIR", sub, 1);
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    assert_int_equal(ncclCommInitRank(&comm, 1, id, 0), ncclSuccess);
    assert_int_equal(stat(sub, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    assert_int_equal(ncclCommDestroy(comm), ncclSuccess);
    setenv("HOSTNCCL_DIR", "/nonexistent/deeper", 1);
    assert_int_equal(ncclCommInitRank(&comm, 1, id, 0), ncclSystemError);
    assert_non_null(strstr(ncclGetLastError(NULL), "/nonexistent/deeper"));
    assert_null(comm);
    unsetenv("HOSTNCCL_DIR");
    assert_int_equal(rmdir(sub), 0);
    assert_int_equal(rmdir(dir), 0);
}

/* In a mount namespace of its own, with a small file system over the job's directory. */
static void a_full_file_system_is_an_error_code(void **state)
{
    int status;

    (void)state;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        struct job j;
        if (unshare(CLONE_NEWNS) && unshare(CLONE_NEWUSER | CLONE_NEWNS)) {
            _exit(77);
        }
        if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
            mount("small", "/dev/shm", "tmpfs", 0, "size=600k")) {
            _exit(77);
        }
        job_start(&j, "full", 4, NULL);
        _exit(job_wait(&j, 20) ? 1 : 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        print_message("skipped: a mount namespace with a small tmpfs is not permitted here (%s)\n", strerror(EPERM));
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* Anyone can make a directory of our default name before us. */
static void a_directory_of_another_user_is_refused(void **state)
{
    enum { NOBODY_HERE = 61234 };
    static const char dir[] = "/dev/shm/hostnccl-61234";
    int status;

    (void)state;
    if (geteuid() != 0) {
        print_message("skipped: only root can become another user\n");
        skip();
    }
    assert_int_equal(mkdir(dir, 0777), 0);
    assert_int_equal(chmod(dir, 0777), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        unsetenv("HOSTNCCL_DIR");
        if (setgid(NOBODY_HERE) || setuid(NOBODY_HERE) || execl("/proc/self/exe", "refused", "refused", NULL)) {
            _exit(126);
        }
    }
    int got = waitpid(pid, &status, 0);
    assert_int_equal(rmdir(dir), 0);
    assert_int_equal(got, pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) >= 126) { /* the libraries lie where only root may look */
        print_message("skipped: another user cannot run this program from here\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* The other user's program. */
static int be_refused(void)
{
    ncclUniqueId id;
    ncclComm_t comm;

    return ncclGetUniqueId(&id) || ncclCommInitRank(&comm, 1, id, 0) != ncclSystemError ||
           !strstr(ncclGetLastError(NULL), strerror(EPERM));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_that_ends_or_hangs_at_exit_leaves_nothing),
        cmocka_unit_test(a_killed_job_leaves_no_segment),
        cmocka_unit_test(the_default_signal_ends_a_hung_rank),
        cmocka_unit_test(what_a_job_killed_in_init_leaves_is_removed_by_the_next),
        cmocka_unit_test(the_directory_is_private),
        cmocka_unit_test(a_directory_of_another_user_is_refused),
        cmocka_unit_test(a_full_file_system_is_an_error_code),
    };

    if (argc > 1 && !strcmp(argv[1], "refused")) {
        return be_refused();
    }
    rank_main(argc, argv, CASES);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
