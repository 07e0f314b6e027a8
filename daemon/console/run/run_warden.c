/*
 * run_warden.c: the process that cleans up when `rollcall run` itself is killed with SIGKILL.
 *
 * The warden holds the read end of a pipe whose write end only `run` has, so end of file means for certain that `run`
 * is gone. PR_SET_PDEATHSIG was rejected: it reaches direct children only, is cleared by set-user-id programs, and
 * leaves nobody to remove the directory.
 */
#include "daemon/console/file.h"
#include "daemon/console/run/run.h"

#include "trace/err.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GROUPS_MAX 4096
#define GRACE_MS   2000

enum note_kind { NOTE_GROUP = 1, NOTE_DAEMON = 2, NOTE_DONE = 3 };
struct note {
    int32_t kind;
    int32_t pid;
};

static void sleep_ms(long ms)
{
    struct timespec ts = {ms / 1000, (ms % 1000) * 1000000};
    nanosleep(&ts, NULL);
}

/* Waits, at most `ms`, until none of these processes and groups can be signalled any more. */
static bool gone(const pid_t *target, size_t n, int ms)
{
    for (int waited = 0;; waited += 20) {
        size_t left = 0;
        for (size_t i = 0; i < n; i++) {
            left += kill(target[i], 0) == 0;
        }
        if (left == 0 || waited >= ms) {
            return left == 0;
        }
        sleep_ms(20);
    }
}

static void end_all(const pid_t *target, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        kill(target[i], SIGTERM);
        kill(target[i], SIGCONT);
    }
    if (!gone(target, n, GRACE_MS)) {
        for (size_t i = 0; i < n; i++) {
            kill(target[i], SIGKILL);
        }
    }
}

static _Noreturn void guard(int fd, const char *dir, const char *scratch)
{
    static pid_t target[GROUPS_MAX]; /* negative: process groups */
    size_t n = 0;
    pid_t daemon = 0;
    struct note note;
    for (;;) {
        ssize_t got = read(fd, &note, sizeof(note));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got != (ssize_t)sizeof(note)) {
            break;
        }
        if (note.kind == NOTE_DONE) {
            _exit(0);
        }
        if (note.kind == NOTE_GROUP && n < GROUPS_MAX) {
            target[n++] = -note.pid;
        } else if (note.kind == NOTE_DAEMON) {
            daemon = note.pid;
        }
    }
    end_all(target, n);
    roll_run_dir_clear(dir);
    if (daemon != 0) {
        end_all(&daemon, 1);
        gone(&daemon, 1, 200);
    }
    roll_run_dir_remove(dir);
    if (scratch != NULL) {
        roll_directory_remove(scratch);
    }
    _exit(0);
}

/* Closes all descriptors except the pipe: the warden must not keep the job's pipes or terminals open. */
static void close_others(int keep)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd <= 2 && null >= 0; fd++) {
        dup2(null, fd);
    }
    if (keep > 3) {
        close_range(3, (unsigned)keep - 1, 0);
    }
    close_range((unsigned)keep + 1, ~0u, 0);
}

int roll_warden_start(struct roll_warden *w, const char *dir, const char *scratch)
{
    int pipe_fd[2];
    if (pipe2(pipe_fd, O_CLOEXEC) != 0) {
        return ROLL_E_IO;
    }
    pid_t pid = fork();
    if (pid < 0) {
        close(pipe_fd[0]);
        close(pipe_fd[1]);
        return ROLL_E_IO;
    }
    if (pid == 0) {
        setsid();
        prctl(PR_SET_NAME, "rollcall-warden");
        signal(SIGTERM, SIG_IGN);
        close(pipe_fd[1]);
        close_others(pipe_fd[0]);
        guard(pipe_fd[0], dir, scratch);
    }
    close(pipe_fd[0]);
    *w = (struct roll_warden){.pid = pid, .fd = pipe_fd[1]};
    return 0;
}

static void tell(struct roll_warden *w, enum note_kind kind, pid_t pid)
{
    struct note note = {(int32_t)kind, pid};
    ssize_t n = w->pid > 0 ? write(w->fd, &note, sizeof(note)) : 0;
    (void)n; /* an error means that the warden is gone, and nothing depends on it while we live */
}

void roll_warden_guard_group(struct roll_warden *w, pid_t group)
{
    tell(w, NOTE_GROUP, group);
}

void roll_warden_guard_daemon(struct roll_warden *w, pid_t pid)
{
    tell(w, NOTE_DAEMON, pid);
}

void roll_warden_dismiss(struct roll_warden *w)
{
    if (w->pid <= 0) {
        return;
    }
    tell(w, NOTE_DONE, 0);
    close(w->fd);
    while (waitpid(w->pid, NULL, 0) < 0 && errno == EINTR) {
    }
    w->pid = 0;
}
