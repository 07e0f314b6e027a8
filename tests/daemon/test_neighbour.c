/*
 * test_neighbour.c: another user of the node, as it is and as root of a user namespace of its own: what it can read,
 * write, connect to, delete and signal of a job that is watched. Nothing; and the job and its verdicts are whole after
 * all of it. What it had put in the place of the ring directory before is not used.
 *
 * The directory lies in one that everybody may write, with the sticky bit, as /dev/shm is. Who may connect over tcp is
 * tried by test_trust.c. Needs root, to be another user; without, the test is skipped (exit status 77).
 */
#include "tests/daemon/harness.h"
#include "tests/daemon/synth.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>

#define SKIPPED 77
#define OTHER   65534
#define RANKS   2
#define CALLS   20000u

static char dir[96], trace[96], file[16][512];
static pid_t daemon_pid, rank_pid[RANKS];

/* Each returns whether the stranger got something. */

static bool opens(const char *path, int flags)
{
    int fd = open(path, flags | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0) {
        close(fd);
    }
    return fd >= 0;
}

static bool lists(void)
{
    return opens(dir, O_RDONLY | O_DIRECTORY) || opens(trace, O_RDONLY | O_DIRECTORY);
}
static bool reads(void)
{
    bool got = false;
    for (size_t i = 0; file[i][0]; i++) {
        got = got || opens(file[i], O_RDONLY) || opens(file[i], O_RDWR) || truncate(file[i], 0) == 0;
    }
    return got;
}
static bool makes(void)
{
    char path[600], link[600];
    snprintf(path, sizeof(path), "%s/job.0.0.1.ring", dir);
    snprintf(link, sizeof(link), "%s/link", dir);
    return opens(path, O_RDWR | O_CREAT) || mkdir(link, 0700) == 0 || symlink("/etc/passwd", link) == 0;
}
static bool removes(void)
{
    char away[1024];
    bool got = rmdir(dir) == 0;
    snprintf(away, sizeof(away), "%s.away", dir);
    got = got || rename(dir, away) == 0 || chmod(dir, 0777) == 0;
    for (size_t i = 0; file[i][0]; i++) {
        snprintf(away, sizeof(away), "%.512s.away", file[i]);
        got = got || unlink(file[i]) == 0 || rename(file[i], away) == 0 || link(file[i], away) == 0;
    }
    return got;
}
static bool watches(void)
{
    int fd = inotify_init1(IN_CLOEXEC);
    return fd >= 0 && inotify_add_watch(fd, dir, IN_ALL_EVENTS) >= 0;
}
static bool connects(void)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(to.sun_path, sizeof(to.sun_path), "%s/root", dir);
    return connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0;
}
static bool signals(void)
{
    return kill(daemon_pid, SIGTERM) == 0 || kill(rank_pid[0], SIGTERM) == 0 ||
           sigqueue(rank_pid[0], SIGRTMIN + 5, (union sigval){.sival_int = 0}) == 0;
}
static bool looks_in(pid_t pid)
{
    char path[64], byte;
    static const char *const names[] = {"mem", "environ", "maps", "fd"};
    bool got = ptrace(PTRACE_SEIZE, pid, NULL, NULL) == 0;
    struct iovec to = {&byte, 1}, from = {(void *)dir, 1};
    got = got || process_vm_readv(pid, &to, 1, &from, 1, 0) == 1;
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, names[i]);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        errno = 0;
        got = got || (fd >= 0 && read(fd, &byte, 1) == 1) || (fd >= 0 && errno == EISDIR);
    }
    return got;
}
static bool looks(void)
{
    return looks_in(daemon_pid) || looks_in(rank_pid[0]);
}

static bool (*const tries[])(void) = {lists, reads, makes, removes, watches, connects, signals, looks};
static const char *const words[] = {"lists", "reads", "makes", "removes", "watches", "connects", "signals", "looks"};
enum { TRIES = sizeof(tries) / sizeof(*tries) };

static bool becomes_another_user(void)
{
    return setgroups(0, NULL) == 0 && setgid(OTHER) == 0 && setuid(OTHER) == 0;
}

/* In a user namespace of its own, as its root. Where the kernel gives nobody one there is nothing to try. */
static bool becomes_root_of_its_own(void)
{
    if (!becomes_another_user() || unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID) != 0) {
        return false;
    }
    int fd = open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC);
    static const char map[] = "0 65534 1";
    return fd >= 0 && write(fd, map, sizeof(map) - 1) == (ssize_t)sizeof(map) - 1 && close(fd) == 0 && geteuid() == 0;
}

/* What the stranger got: bits of `tries`; -1: it could not become one. */
static int what_gets(bool (*become)(void))
{
    pid_t pid = fork();
    if (pid == 0) {
        unsigned got = 0;
        if (!become()) {
            _exit(255);
        }
        for (unsigned i = 0; i < TRIES; i++) {
            got |= tries[i]() ? 1u << i : 0;
        }
        for (unsigned i = 0; i < TRIES; i++) {
            if (got & 1u << i) {
                fprintf(stderr, "the stranger %s\n", words[i]);
            }
        }
        _exit(got != 0);
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status) == 255 ? -1 : WEXITSTATUS(status);
}

/* Files that there are by now: all of the directory, of the trace, the cookie, the verdicts and the log. */
static bool name_files(void)
{
    char command[1200], line[512];
    size_t n = 0;
    memset(file, 0, sizeof(file));
    snprintf(command, sizeof(command), "find '%s' '%s' '%s' '%s' -type f", dir, trace, harness_path("open/verdicts"),
             harness_path("cookie"));
    FILE *out = popen(command, "r");
    while (out && n + 1 < sizeof(file) / sizeof(*file) && fgets(line, sizeof(line), out)) {
        line[strcspn(line, "\n")] = '\0';
        snprintf(file[n++], sizeof(file[0]), "%s", line);
    }
    return out && pclose(out) == 0 && n >= 7; /* rings, control page, endpoint, locks, segment, verdicts */
}

static void open_to_all(const char *path, mode_t mode)
{
    assert_true(mkdir(path, mode) == 0 || errno == EEXIST);
    assert_int_equal(chmod(path, mode), 0);
}

static void test_another_user_gets_nothing(void **state)
{
    (void)state;
    char endpoint[256];
    open_to_all(harness_dir(), 0755);
    open_to_all(harness_path("shm"), 01777);
    open_to_all(harness_path("open"), 0755);
    snprintf(dir, sizeof(dir), "%s/rollcall-0", harness_path("shm"));
    snprintf(trace, sizeof(trace), "%s", harness_path("shm/trace"));
    daemon_pid = DAEMON("daemon.err", endpoint, "--dir", dir, "--trace", trace, "--json", harness_path("open/verdicts"),
                        "--listen", "tcp://127.0.0.1:*");
    assert_true(daemon_pid > 0);
    for (int r = 0; r < RANKS; r++) {
        rank_pid[r] = harness_rank(dir, r, RANKS, 0, CALLS, "wait");
    }
    snprintf(endpoint, sizeof(endpoint), "ipc://%s/root", dir);
    roll_client_t *client = harness_client(endpoint);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "ranks") == RANKS));
    assert_true(HARNESS_UNTIL(name_files()));
    assert_int_equal(what_gets(becomes_another_user), 0);
    int got = what_gets(becomes_root_of_its_own);
    if (got < 0) {
        print_message("not tried: this machine gives a user no namespace of its own\n");
    }
    assert_true(got <= 0);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "records") == RANKS * CALLS));
    assert_int_equal(harness_drained(client, "findings"), 0);
    assert_int_equal(harness_has(client, "job", "lost"), 0);
    roll_client_destroy(&client);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(harness_end(rank_pid[r], SIGTERM), 0);
    }
    assert_int_equal(harness_end(daemon_pid, SIGTERM), 0);
}

/* The stranger was first: the directory of that name is its own, or one of everybody's. */
static void test_what_another_user_has_put_there_is_not_used(void **state)
{
    (void)state;
    static const mode_t modes[] = {0700, 0777};
    for (size_t i = 0; i < sizeof(modes) / sizeof(*modes); i++) {
        snprintf(dir, sizeof(dir), "%s", harness_path(i == 0 ? "first" : "second"));
        open_to_all(dir, modes[i]);
        assert_int_equal(chown(dir, OTHER, OTHER), 0);
        assert_int_equal(harness_end(SPAWN("daemon.err", "rollcalld", "--dir", dir), 0), 3);
        assert_int_equal(harness_count(dir, ""), 0);
    }
    assert_true(harness_logged("daemon.err", "belongs to another user"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, harness_set_up, harness_tear_down)

int main(void)
{
    if (geteuid() != 0) {
        printf("skipped: only root can be another user\n");
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = {
        TEST(test_another_user_gets_nothing),
        TEST(test_what_another_user_has_put_there_is_not_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
