/*
 * stack_run.c: starts, reads and ends the helper.
 *
 * The helper is a process and not a thread: an unwinder that follows damaged tables may crash or spin, ptrace binds a
 * thread to the threads that it traces, and a killed process lets go of everything. It is started with posix_spawn,
 * because the caller may hold gigabytes and have threads.
 */
#include "daemon/stack/stack_run.h"

#include "daemon/base/array.h"
#include "daemon/base/clock.h"
#include "trace/err.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SILENT_NS  (6000 * ROLL_MS) /* a helper that writes nothing for this long counts as hung */
#define LINE_BYTES (16u * 1024u * 1024u)

extern char **environ;

struct process {
    pid_t pid;
    bool done;
};

struct roll_stack_run {
    char *helper, *dir;
    struct process *process;
    size_t processes, answered;
    unsigned samples, interval_ms;
    bool native, python;
    uint64_t deadline_ns, heard_ns;
    pid_t child;   /* -1 = none */
    int fd;        /* -1 = none */
    pid_t current; /* process that the helper looks at; 0 = the helper has not begun, or has looked at all */
    char *buffer;
    size_t used, room;
    char why[128]; /* how the last helper ended */
};

/* the child */

static char *wish_text(const roll_stack_run_t *run)
{
    json_t *pids = json_array();
    for (size_t i = 0; i < run->processes; i++) {
        if (!run->process[i].done) {
            json_array_append_new(pids, json_integer(run->process[i].pid));
        }
    }
    json_t *wish = json_pack("{s:o, s:i, s:i, s:b, s:b}", "pids", pids, "samples", (int)run->samples, "interval_ms",
                             (int)run->interval_ms, "native", (int)run->native, "python", (int)run->python);
    if (wish && run->dir) {
        json_object_set_new(wish, "dir", json_string(run->dir));
    }
    char *text = wish ? json_dumps(wish, JSON_COMPACT) : NULL;
    json_decref(wish);
    return text;
}

static int spawn(roll_stack_run_t *run, int out)
{
    char option[] = "--stack", *wish = wish_text(run);
    char *argv[] = {run->helper, option, wish, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    int rc = wish ? posix_spawn(&run->child, run->helper, &actions, &attributes, argv, environ) : ENOMEM;
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    free(wish);
    run->child = rc == 0 ? run->child : -1;
    return rc;
}

static int start(roll_stack_run_t *run, uint64_t now)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) {
        return errno;
    }
    int rc = spawn(run, fds[1]);
    close(fds[1]);
    if (rc != 0) {
        close(fds[0]);
        return rc;
    }
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    run->fd = fds[0];
    run->used = 0;
    run->current = 0;
    run->heard_ns = now;
    return 0;
}

/* Ends the helper, if it has not ended, and notes how it ended. */
static void stop(roll_stack_run_t *run, const char *because)
{
    int status = 0;
    if (run->fd >= 0) {
        close(run->fd);
        run->fd = -1;
    }
    if (run->child <= 0) {
        return;
    }
    if (because) {
        kill(run->child, SIGKILL);
    }
    while (waitpid(run->child, &status, 0) < 0 && errno == EINTR) {
    }
    run->child = -1;
    if (because) {
        snprintf(run->why, sizeof(run->why), "%s", because);
    } else if (WIFSIGNALED(status)) {
        snprintf(run->why, sizeof(run->why), "the stack reader died of signal %d on it", WTERMSIG(status));
    } else if (WIFEXITED(status) && WEXITSTATUS(status) != 0) {
        snprintf(run->why, sizeof(run->why), "the stack reader ended with status %d", WEXITSTATUS(status));
    } else {
        snprintf(run->why, sizeof(run->why), "the stack reader said nothing about it");
    }
}

/* life */

roll_stack_run_t *roll_stack_run_new(const struct roll_stack_ask *ask, char *why, size_t why_size)
{
    roll_stack_run_t *run = calloc(1, sizeof(*run));
    int rc = ENOMEM;
    if (run) {
        uint64_t now = roll_mono_ns();
        run->fd = -1;
        run->child = -1;
        run->samples = ask->samples;
        run->interval_ms = ask->interval_ms;
        run->native = ask->native;
        run->python = ask->python;
        run->deadline_ns = now + ask->timeout_ns;
        run->helper = strdup(ask->helper);
        run->dir = ask->dir ? strdup(ask->dir) : NULL;
        run->process = calloc(ask->pids ? ask->pids : 1, sizeof(*run->process));
        for (size_t i = 0; run->process && i < ask->pids; i++) {
            run->process[run->processes++].pid = ask->pid[i];
        }
        rc = run->helper && run->process && (!ask->dir || run->dir) && ask->pids <= ROLL_STACK_PIDS_MAX ? 0 : ENOMEM;
        rc = rc || ask->pids == 0 ? rc : start(run, now);
    }
    if (rc != 0) {
        snprintf(why, why_size, "the stack reader %s cannot be started: %s", ask->helper, strerror(rc));
        roll_stack_run_destroy(&run);
    }
    return run;
}

void roll_stack_run_destroy(roll_stack_run_t **self)
{
    roll_stack_run_t *run = *self;
    if (!run) {
        return;
    }
    stop(run, "no longer wanted");
    free(run->helper);
    free(run->dir);
    free(run->process);
    free(run->buffer);
    free(run);
    *self = NULL;
}

int roll_stack_run_fd(const roll_stack_run_t *run)
{
    return run->fd;
}

bool roll_stack_run_over(const roll_stack_run_t *run)
{
    return run->answered == run->processes;
}

/* reading */

static struct process *find(roll_stack_run_t *run, pid_t pid)
{
    for (size_t i = 0; i < run->processes; i++) {
        if (run->process[i].pid == pid) {
            return &run->process[i];
        }
    }
    return NULL;
}

static json_t *answer(roll_stack_run_t *run, struct process *p, json_t *object)
{
    p->done = true;
    run->answered++;
    return object;
}

static json_t *refuse(roll_stack_run_t *run, struct process *p, const char *why)
{
    return answer(run, p, json_pack("{s:s, s:i, s:s}", "schema", "rollcall.stack/1", "pid", (int)p->pid, "error", why));
}

/* Takes one line of the helper. Returns an answer, or NULL. */
static json_t *take_line(roll_stack_run_t *run, const char *line, size_t bytes)
{
    json_t *object = json_loadb(line, bytes, 0, NULL);
    json_t *begin = json_object_get(object, "begin"), *pid = json_object_get(object, "pid");
    struct process *p = json_is_integer(pid) ? find(run, (pid_t)json_integer_value(pid)) : NULL;
    if (p && !p->done) {
        run->current = 0;
        return answer(run, p, object);
    }
    if (json_is_integer(begin)) {
        run->current = (pid_t)json_integer_value(begin);
    }
    json_decref(object);
    return NULL;
}

/* Takes the next whole line of the buffer. Returns an answer, or NULL. */
static json_t *next_line(roll_stack_run_t *run)
{
    json_t *out = NULL;
    char *end;
    while (!out && run->used > 0 && (end = memchr(run->buffer, '\n', run->used)) != NULL) {
        size_t n = (size_t)(end - run->buffer);
        out = take_line(run, run->buffer, n);
        run->used -= n + 1;
        memmove(run->buffer, end + 1, run->used);
    }
    return out;
}

/* Reads the output that is there. False at the end of the helper's output. */
static bool fill(roll_stack_run_t *run, uint64_t now)
{
    for (;;) {
        if (run->room - run->used < 65536) {
            size_t room = run->room ? run->room * 2 : 262144;
            if (room > LINE_BYTES || ROLL_GROW(run->buffer, run->room, room) != 0) {
                return false;
            }
        }
        ssize_t n = read(run->fd, run->buffer + run->used, run->room - run->used);
        if (n > 0) {
            run->used += (size_t)n;
            run->heard_ns = now;
            continue;
        }
        return n < 0 && (errno == EAGAIN || errno == EINTR);
    }
}

/* Called when the helper is gone with processes left: the process that it was looking at is given up, and another
 * helper tries the others. */
static json_t *after_helper(roll_stack_run_t *run, uint64_t now)
{
    struct process *at = run->current ? find(run, run->current) : NULL;
    if (!at || at->done) { /* the helper was looking at none: it could not begin, or died while it made names */
        for (size_t i = 0; i < run->processes && (!at || at->done); i++) {
            at = &run->process[i];
        }
    }
    json_t *out = refuse(run, at, run->why);
    if (!roll_stack_run_over(run) && start(run, now) != 0) {
        run->deadline_ns = 0;
    }
    return out;
}

json_t *roll_stack_run_next(roll_stack_run_t *run, uint64_t now)
{
    json_t *out = next_line(run);
    if (out || roll_stack_run_over(run)) {
        return out;
    }
    if (run->fd >= 0) {
        bool more = fill(run, now);
        out = next_line(run);
        if (out) {
            return out;
        }
        if (!more) {
            stop(run, NULL);
            return after_helper(run, now);
        }
    }
    if (now >= run->deadline_ns) {
        stop(run, "not finished in time");
        for (size_t i = 0; i < run->processes; i++) {
            if (!run->process[i].done) {
                return refuse(run, &run->process[i], run->why);
            }
        }
    }
    if (now > run->heard_ns && now - run->heard_ns > SILENT_NS) { /* the caller's time may be older than ours */
        stop(run, "the stack reader hung on it");
        return after_helper(run, now);
    }
    return NULL;
}
