/*
 * run_warden.c: the process that cleans up when `rollcall run` itself is killed with SIGKILL.
 *
 * The warden is there before anything is made that it would have to remove, and it is told of each thing before that
 * thing exists or by that thing itself: a child tells of itself before it becomes a program, so there is no instant at
 * which a kill leaves something that the warden does not know. It holds one end of a socket whose other end only `run`
 * and its children before exec have, so end of file means for certain that `run` is gone and nothing more will come. A
 * process comes with a pidfd of its own: its number alone may be another's by the time it is needed. A socket rather
 * than a pipe, because a pidfd that the warden opened later, by number, would have the same doubt.
 * PR_SET_PDEATHSIG was rejected: it reaches direct children only, is cleared by set-user-id programs, and leaves nobody
 * to remove the directory.
 */
#include "daemon/base/array.h"
#include "daemon/console/file.h"
#include "daemon/console/run/run.h"

#include "trace/err.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GRACE_MS 2000
#define DEAD_MS  10000 /* a process that was sent SIGKILL is gone by then, unless the kernel holds it */
#define TELL_S   1     /* a warden that stands still must not hold the job up for longer */

enum note_kind { NOTE_GROUP = 1, NOTE_DAEMON, NOTE_FORGET, NOTE_DIR, NOTE_DONE };
struct note {
    int32_t kind;
    int32_t pid;
    char dir[PATH_MAX]; /* NOTE_DIR alone sends it */
};
#define NOTE_BYTES offsetof(struct note, dir)

struct target {
    pid_t pid;
    int fd; /* its pidfd; -1 = none could be had */
    bool group;
};

struct guarded {
    struct target *target;
    size_t used, room;
    char dir[PATH_MAX]; /* "" = none */
};

static void sleep_ms(long ms)
{
    struct timespec ts = {ms / 1000, (ms % 1000) * 1000000};
    nanosleep(&ts, NULL);
}

/* Whether there was somebody to signal. */
static bool signal_target(const struct target *t, int sig, const char *dir)
{
    if (t->group) {
        return roll_group_signal(t->fd, t->pid, sig, dir);
    }
    return (t->fd >= 0 ? roll_pidfd_signal(t->fd, sig) : kill(t->pid, sig)) == 0;
}

static bool lives(const struct target *t, const char *dir)
{
    return t->group     ? roll_group_lives(t->fd, t->pid, dir)
           : t->fd >= 0 ? roll_pidfd_lives(t->fd)
                        : kill(t->pid, 0) == 0;
}

/* Waits, at most `ms`, until all of these processes, or groups, have ended. */
static bool gone(const struct guarded *g, bool groups, int ms)
{
    for (int waited = 0;; waited += 20) {
        size_t left = 0;
        for (size_t i = 0; i < g->used; i++) {
            left += g->target[i].group == groups && lives(&g->target[i], g->dir);
        }
        if (left == 0 || waited >= ms) {
            return left == 0;
        }
        sleep_ms(20);
    }
}

static void signal_all(const struct guarded *g, bool groups, int sig)
{
    for (size_t i = 0; i < g->used; i++) {
        if (g->target[i].group == groups) {
            signal_target(&g->target[i], sig, g->dir);
        }
    }
}

/* Ends the groups, or what is none. */
static void end_all(const struct guarded *g, bool groups)
{
    signal_all(g, groups, SIGTERM);
    signal_all(g, groups, SIGCONT);
    if (!gone(g, groups, GRACE_MS)) {
        signal_all(g, groups, SIGKILL);
        gone(g, groups, DEAD_MS);
    }
}

static void forget(struct guarded *g, pid_t pid)
{
    for (size_t i = g->used; i-- > 0;) {
        if (g->target[i].pid == pid) {
            if (g->target[i].fd >= 0) {
                close(g->target[i].fd);
            }
            g->target[i] = g->target[--g->used];
        }
    }
}

/* Receives the next note and the pidfd that comes with it (-1 = none). False at the end of file. */
static bool next_note(int socket, struct note *note, int *fd)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    for (;;) {
        struct iovec to = {note, sizeof(*note)};
        struct msghdr message = {
            .msg_iov = &to, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
        ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        *fd = -1;
        const struct cmsghdr *head = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
        if (head != NULL && head->cmsg_type == SCM_RIGHTS) {
            memcpy(fd, CMSG_DATA(head), sizeof(*fd));
        }
        return got >= (ssize_t)NOTE_BYTES;
    }
}

static _Noreturn void guard(int socket, const char *scratch)
{
    static struct guarded g;
    struct note note;
    for (int fd; next_note(socket, &note, &fd);) {
        if (note.kind == NOTE_DONE) {
            _exit(0);
        } else if (note.kind == NOTE_FORGET) {
            forget(&g, note.pid);
        } else if (note.kind == NOTE_DIR) {
            snprintf(g.dir, sizeof(g.dir), "%s", note.dir);
        } else if (roll_array_grow(&g.target, &g.room, g.used + 1, sizeof(*g.target)) == 0) {
            g.target[g.used++] = (struct target){note.pid, fd, note.kind == NOTE_GROUP};
        }
    }
    end_all(&g, true);
    if (g.dir[0] != '\0') {
        roll_run_dir_clear(g.dir);
    }
    end_all(&g, false);
    if (g.dir[0] != '\0') {
        roll_run_dir_remove(g.dir);
    }
    if (scratch != NULL) {
        roll_directory_remove(scratch);
    }
    _exit(0);
}

/* Closes all descriptors except the socket: the warden must not keep the job's pipes or terminals open. */
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

static void allow_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) { /* one for each rank */
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int roll_warden_start(struct roll_warden *w, const char *scratch)
{
    int pair[2];
    struct timeval patience = {.tv_sec = TELL_S};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        return ROLL_E_IO;
    }
    setsockopt(pair[1], SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    pid_t pid = fork();
    if (pid < 0) {
        close(pair[0]);
        close(pair[1]);
        return ROLL_E_IO;
    }
    if (pid == 0) {
        setsid();
        prctl(PR_SET_NAME, "rollcall-warden");
        prctl(PR_SET_CHILD_SUBREAPER, 0);
        signal(SIGTERM, SIG_IGN);
        close(pair[1]);
        close_others(pair[0]);
        allow_descriptors();
        guard(pair[0], scratch);
    }
    close(pair[0]);
    *w = (struct roll_warden){.pid = pid, .fd = pair[1]};
    return 0;
}

static void tell(const struct roll_warden *w, const struct note *note, size_t bytes, int fd)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec text = {(void *)(uintptr_t)note, bytes};
    struct msghdr message = {.msg_iov = &text, .msg_iovlen = 1};
    if (w->pid <= 0) {
        return;
    }
    if (fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof(control.bytes);
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        *head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(head), &fd, sizeof(fd));
    }
    ssize_t n = sendmsg(w->fd, &message, MSG_NOSIGNAL);
    (void)n; /* an error means that the warden is gone, and nothing depends on it while we live */
}

static void tell_of(const struct roll_warden *w, enum note_kind kind, pid_t pid)
{
    int fd = w->pid > 0 && kind != NOTE_FORGET && kind != NOTE_DONE ? roll_pidfd(pid) : -1;
    tell(w, &(struct note){.kind = (int32_t)kind, .pid = pid}, NOTE_BYTES, fd);
    if (fd >= 0) {
        close(fd);
    }
}

void roll_warden_guard_dir(struct roll_warden *w, const char *dir)
{
    struct note note = {.kind = NOTE_DIR};
    size_t n = (size_t)snprintf(note.dir, sizeof(note.dir), "%s", dir);
    tell(w, &note, NOTE_BYTES + n + 1, -1);
}

void roll_warden_guard_group(struct roll_warden *w, pid_t group)
{
    tell_of(w, NOTE_GROUP, group);
}

void roll_warden_guard_daemon(struct roll_warden *w, pid_t pid)
{
    tell_of(w, NOTE_DAEMON, pid);
}

void roll_warden_forget(struct roll_warden *w, pid_t pid)
{
    tell_of(w, NOTE_FORGET, pid);
}

void roll_warden_dismiss(struct roll_warden *w)
{
    if (w->pid <= 0) {
        return;
    }
    tell_of(w, NOTE_DONE, 0);
    close(w->fd);
    while (waitpid(w->pid, NULL, 0) < 0 && errno == EINTR) {
    }
    w->pid = 0;
}
