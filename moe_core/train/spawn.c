/*
 * spawn.c: starts the ranks of one host and waits for them.
 *
 * Each child execs this program again, so that a rank started here is the same as one started by any launcher. Children
 * die with the parent (PR_SET_PDEATHSIG) and the meeting directory is removed, also when the parent is asked to end, so
 * that nothing is left behind. The parent waits for the signals instead of handling them: a handler could run between
 * the check of its flag and the wait.
 */
#include "moe_core/train/spawn.h"

#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct child {
    pid_t pid; /* 0 once the child was waited for */
};

static void set_number(const char *name, int32_t value)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", value);
    setenv(name, text, 1);
}

/* Turns the child into rank `rank`. Does not return. */
static _Noreturn void become_rank(char **argv, int32_t rank, int32_t ranks, const char *dir, pid_t parent,
                                  const sigset_t *mask)
{
    sigprocmask(SIG_SETMASK, mask, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(1);
    }
    set_number("RANK", rank);
    set_number("LOCAL_RANK", rank);
    set_number("WORLD_SIZE", ranks);
    setenv("MOE_RENDEZVOUS", dir, 1);
    execv("/proc/self/exe", argv);
    fprintf(stderr, "moe_train: cannot start rank %d: %s\n", rank, strerror(errno));
    _exit(1);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void signal_all(const struct child *children, int32_t ranks, int signo)
{
    for (int32_t r = 0; r < ranks; r++) {
        if (children[r].pid > 0) {
            kill(children[r].pid, signo);
        }
    }
}

/* Marks the child of `pid` as waited for. */
static bool forget(struct child *children, int32_t ranks, pid_t pid)
{
    for (int32_t r = 0; r < ranks; r++) {
        if (children[r].pid == pid) {
            children[r].pid = 0;
            return true;
        }
    }
    return false;
}

/*
 * Waits for all ranks. The first failure, or a signal to end, gives the other ranks the grace period. Returns the
 * status of the first failure.
 */
static int wait_all(struct child *children, int32_t ranks, uint32_t grace_s, const sigset_t *signals)
{
    static const struct timespec look = {.tv_nsec = 100000000};
    int32_t alive = ranks;
    int status, first = 0;
    double deadline = 0;
    while (alive > 0) {
        for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
            int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
            alive -= forget(children, ranks, pid);
            if (code != 0 && first == 0) {
                first = code;
                deadline = seconds() + grace_s;
            }
        }
        int signo = alive > 0 ? sigtimedwait(signals, NULL, &look) : 0;
        if (signo > 0 && signo != SIGCHLD) {
            signal_all(children, ranks, signo);
            deadline = first == 0 ? seconds() + grace_s : deadline;
            first = first == 0 ? 128 + signo : first;
        }
        if (first != 0 && seconds() > deadline) {
            signal_all(children, ranks, SIGKILL);
        }
    }
    return first;
}

/* Blocks the signals that wait_all waits for; *mask is the mask from before. */
static sigset_t block_signals(sigset_t *mask)
{
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGHUP);
    signal(SIGCHLD, SIG_DFL); /* if our starter ignores SIGCHLD, the ranks' statuses would be lost */
    sigprocmask(SIG_BLOCK, &signals, mask);
    return signals;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *walk)
{
    (void)st;
    (void)type;
    (void)walk;
    return remove(path);
}

int spawn_ranks(char **argv, int32_t ranks, uint32_t grace_s)
{
    const char *tmp = getenv("TMPDIR");
    char dir[256];
    sigset_t mask, signals = block_signals(&mask);
    if (snprintf(dir, sizeof(dir), "%s/moe-train-XXXXXX", tmp != NULL && tmp[0] != '\0' ? tmp : "/tmp") >=
            (int)sizeof(dir) ||
        mkdtemp(dir) == NULL) {
        fprintf(stderr, "moe_train: cannot make a directory for the ranks to meet in (%s): %s\n", dir, strerror(errno));
        return 1;
    }
    struct child *children = calloc((size_t)ranks, sizeof(*children));
    int32_t started = 0;
    int rc = children == NULL;
    pid_t parent = getpid();
    for (; rc == 0 && started < ranks; started++) {
        pid_t pid = fork();
        if (pid == 0) {
            become_rank(argv, started, ranks, dir, parent, &mask);
        } else if (pid < 0) {
            fprintf(stderr, "moe_train: cannot start rank %d: %s\n", started, strerror(errno));
            signal_all(children, started, SIGKILL);
            rc = 1;
            break;
        }
        children[started].pid = pid;
    }
    int failed = children == NULL ? 1 : wait_all(children, started, grace_s, &signals);
    free(children);
    nftw(dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    return rc != 0 ? rc : failed;
}
