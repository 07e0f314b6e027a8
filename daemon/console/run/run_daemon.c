/*
 * run_daemon.c: starts and ends the daemon of one `rollcall run`.
 *
 * The daemon is our child, in a session of its own so that the terminal's Ctrl-C does not reach it before the last
 * verdicts are out; the daemon says through a pipe when it is ready and where it listens, so nothing is polled.
 */
#include "daemon/console/console.h"
#include "daemon/console/run/run.h"

#include "trace/err.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define READY_MS 10000
#define STOP_MS  5000
#define WRITE_MS 12000 /* more, where a bundle about a finding may be on its way to the disk */

enum { WITHOUT_TRACE = 1u, WITHOUT_HTTP = 2u, WITHOUT_INCIDENT = 4u };
#define WITHOUT "without " /* what a daemon says that ends for want of one of these, before the option's name */

static void child(const struct roll_run_options *o, const struct roll_place *place, const char *dir, int ready_fd,
                  const sigset_t *mask, pid_t run, struct roll_warden *warden)
{
    const char *argv[40];
    size_t n = 0;
    char ready[16], parent[16];
    int null = open("/dev/null", O_RDWR);

    roll_warden_guard_daemon(warden, getpid()); /* before it is the daemon, because `run` may be killed meanwhile */
    setsid();
    sigprocmask(SIG_SETMASK, mask, NULL);
    signal(SIGPIPE, SIG_DFL);
    dup2(null, STDIN_FILENO);
    dup2(null, STDOUT_FILENO);
    fcntl(ready_fd, F_SETFD, 0);
    /* The daemon must not watch itself, nor believe that it was started by a rank. */
    unsetenv("LD_PRELOAD");
    unsetenv("ROLLCALL_DAEMON");
    snprintf(ready, sizeof(ready), "%d", ready_fd);
    snprintf(parent, sizeof(parent), "%d", (int)run);
    argv[n++] = place->daemon;
    argv[n++] = o->daemon != NULL ? "--agent" : "--standalone";
    argv[n++] = "--dir";
    argv[n++] = dir;
    argv[n++] = "--own-dir";
    argv[n++] = "--linger";
    argv[n++] = "30";
    argv[n++] = "--parent";
    argv[n++] = parent;
    argv[n++] = "--ready-fd";
    argv[n++] = ready;
    if (o->daemon != NULL) {
        argv[n++] = "--connect";
        argv[n++] = o->daemon;
    } else {
        if (o->policy != NULL) {
            argv[n++] = "--policy";
            argv[n++] = o->policy;
        }
        if (o->digest || o->stream) {
            argv[n++] = o->digest ? "--digest" : "--stream";
        }
        if (o->stacks != NULL) {
            argv[n++] = "--stacks";
            argv[n++] = o->stacks;
        }
        if (o->expect != NULL) {
            argv[n++] = "--expect";
            argv[n++] = o->expect;
        }
        if (o->http != NULL) {
            argv[n++] = "--http";
            argv[n++] = o->http;
        }
        if (o->incident != NULL) {
            argv[n++] = "--incident-dir";
            argv[n++] = o->incident;
        }
    }
    const char *const kept[][2] = {{"--trace", o->trace},
                                   {"--trace-segment", o->trace_segment},
                                   {"--trace-limit", o->trace_limit},
                                   {"--trace-age", o->trace_age}};
    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++) {
        if (kept[i][1] != NULL) {
            argv[n++] = kept[i][0];
            argv[n++] = kept[i][1];
        }
    }
    argv[n] = NULL;
    execv(place->daemon, (char *const *)argv);
    _exit(127);
}

/* Reads the one line that the daemon writes when it is ready. */
static int wait_ready(int fd, char *out, size_t size)
{
    size_t used = 0;
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (;;) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        long waited = (now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000;
        struct pollfd p = {fd, POLLIN, 0};
        int n = waited < READY_MS ? poll(&p, 1, (int)(READY_MS - waited)) : 0;
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n == 0) {
            return ROLL_E_TIMEOUT;
        }
        ssize_t got = n < 0 ? -1 : read(fd, out + used, size - 1 - used);
        if (got <= 0) {
            return ROLL_E_CLOSED;
        }
        used += (size_t)got;
        out[used] = '\0';
        char *end = strchr(out, '\n');
        if (end != NULL) {
            *end = '\0';
            return 0;
        }
        if (used + 1 == size) {
            return ROLL_E_SIZE;
        }
    }
}

/* Waits, as long as an end takes, for a process that is about to end. False: it has not. */
static bool reaped(pid_t pid, int *status)
{
    const struct timespec nap = {0, 5000000};
    for (int waited = 0; waited < STOP_MS; waited += 5) {
        if (waitpid(pid, status, WNOHANG) == pid) {
            return true;
        }
        nanosleep(&nap, NULL);
    }
    return false;
}

/* Starts the daemon once. *status: its wait status, where it ended before it was ready; else -1. lacking: the option
 * for want of which it ended, or "". */
static int start_once(struct roll_run_daemon *d, const struct roll_run_options *o, const struct roll_place *place,
                      const char *dir, const sigset_t *mask, struct roll_warden *warden, int *status, char *lacking,
                      size_t size)
{
    int pipe_fd[2] = {-1, -1};
    pid_t run = getpid();
    int err = 0;
    *status = -1;
    lacking[0] = '\0';
    if (pipe2(pipe_fd, O_CLOEXEC) != 0 || (d->pid = fork()) < 0) {
        roll_say("cannot start the daemon: %s", strerror(errno));
        err = ROLL_E_IO;
        goto out;
    }
    if (d->pid == 0) {
        child(o, place, dir, pipe_fd[1], mask, run, warden);
    }
    close(pipe_fd[1]);
    pipe_fd[1] = -1;
    err = wait_ready(pipe_fd[0], d->endpoint, sizeof(d->endpoint));
    if (err == 0 && strncmp(d->endpoint, WITHOUT, sizeof(WITHOUT) - 1) == 0) {
        snprintf(lacking, size, "%s", d->endpoint + sizeof(WITHOUT) - 1);
        err = ROLL_E_CLOSED;
    }
    if (err != 0) {
        pid_t pid = d->pid;
        /* Who has closed the pipe is ending: what it says of itself is its own, not that of a signal of ours. */
        if (err != ROLL_E_CLOSED || !reaped(pid, status)) {
            roll_run_daemon_stop(d);
        }
        roll_warden_forget(warden, pid);
    }
out:
    if (err != 0) {
        d->pid = 0;
        d->endpoint[0] = '\0';
    }
    for (int i = 0; i < 2; i++) {
        if (pipe_fd[i] >= 0) {
            close(pipe_fd[i]);
        }
    }
    return err;
}

/* The options without which the daemon is tried again: a trace, a page or a place for bundles that cannot be had must
 * not cost the verdicts as well. */
static const struct {
    unsigned bit;
    const char *name;
} names[] = {{WITHOUT_TRACE, "--trace"}, {WITHOUT_HTTP, "--http"}, {WITHOUT_INCIDENT, "--incident-dir"}};
#define NAMES (sizeof(names) / sizeof(names[0]))

static unsigned bit_of(const char *option)
{
    unsigned bit = 0;
    for (size_t i = 0; i < NAMES; i++) {
        bit |= strcmp(names[i].name, option) == 0 ? names[i].bit : 0;
    }
    return bit;
}

static void without(struct roll_run_options *o, unsigned which, char *lacks, size_t size)
{
    if (which & WITHOUT_TRACE) {
        o->trace = o->trace_segment = o->trace_limit = o->trace_age = NULL;
    }
    o->http = which & WITHOUT_HTTP ? NULL : o->http;
    o->incident = which & WITHOUT_INCIDENT ? NULL : o->incident;
    size_t used = 0;
    lacks[0] = '\0';
    for (size_t i = 0; i < NAMES; i++) {
        if (which & names[i].bit) {
            used += (size_t)snprintf(lacks + used, size - used, "%s%s", used > 0 ? " and " : "", names[i].name);
        }
    }
}

int roll_run_daemon_start(struct roll_run_daemon *d, const struct roll_run_options *o, const struct roll_place *place,
                          const char *dir, const sigset_t *mask, struct roll_warden *warden)
{
    unsigned given = (o->trace != NULL && !o->rehearses ? WITHOUT_TRACE : 0) | (o->http != NULL ? WITHOUT_HTTP : 0) |
                     (o->incident != NULL ? WITHOUT_INCIDENT : 0);
    unsigned left_out = 0, more = 0;
    int err, status = -1;
    *d = (struct roll_run_daemon){.writes = o->incident != NULL};
    if (place->daemon[0] == '\0') {
        roll_say("rollcalld was not found beside this program");
        return ROLL_E_NOTFOUND;
    }
    do { /* each time without one option more */
        struct roll_run_options reduced = *o;
        char lacking[sizeof(d->endpoint)];
        left_out |= more;
        without(&reduced, left_out, d->lacks, sizeof(d->lacks));
        err = start_once(d, &reduced, place, dir, mask, warden, &status, lacking, sizeof(lacking));
        if (err == ROLL_E_CLOSED && status >= 0 && WIFEXITED(status) && WEXITSTATUS(status) == ROLL_EXIT_USAGE) {
            return ROLL_E_ARG;
        }
        more = err == ROLL_E_CLOSED ? bit_of(lacking) & given & ~left_out : 0;
    } while (more != 0);
    if (err != 0) {
        d->lacks[0] = '\0';
        if (err != ROLL_E_IO) {
            roll_say("the daemon %s", err == ROLL_E_TIMEOUT ? "was not ready in time" : "ended before it was ready");
        }
    } else if (o->daemon != NULL) {
        snprintf(d->endpoint, sizeof(d->endpoint), "%s", o->daemon);
    }
    return err;
}

void roll_run_daemon_stop(struct roll_run_daemon *d)
{
    if (d->pid <= 0) {
        return;
    }
    kill(d->pid, SIGTERM);
    for (int waited = 0; waitpid(d->pid, NULL, WNOHANG) == 0; waited += 5) {
        struct timespec nap = {0, 5000000};
        if (waited == STOP_MS + (d->writes ? WRITE_MS : 0)) {
            kill(d->pid, SIGKILL);
            while (waitpid(d->pid, NULL, 0) < 0 && errno == EINTR) {
            }
            break;
        }
        nanosleep(&nap, NULL);
    }
    d->pid = 0;
}
