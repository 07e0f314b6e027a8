/*
 * run_ranks.c: the processes of the job: environment, start, output, signals, end.
 *
 * Every rank is the leader of a process group of its own, so that a signal for the job reaches what the rank started as
 * well, and never this program. Output is passed through untouched (the ranks inherit our descriptors) unless an option
 * needs to look at it: --prefix tags lines, --timeout must know whether anything was printed. Then the output goes
 * through pipes.
 */
#include "daemon/base/file.h"
#include "daemon/console/console.h"
#include "daemon/console/run/run.h"

#include "trace/err.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int roll_run_code(int status)
{
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* A TCP port that is free on loopback now. Another process could take it before rank 0 does; that is how launchers do
 * it. */
static int free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    int port = 29500;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&at, len) == 0 && getsockname(fd, (struct sockaddr *)&at, &len) == 0) {
        port = ntohs(at.sin_port);
    }
    if (fd >= 0) {
        close(fd);
    }
    return port;
}

static void set_number(const char *name, uint32_t value)
{
    char text[16];
    snprintf(text, sizeof(text), "%u", value);
    setenv(name, text, 1);
}

/* Runs in the child: sets the variables of this rank. Those that all ranks share were set before. */
static void set_rank(const struct roll_run_options *o, uint32_t rank, int port)
{
    if (o->ranks == 0) {
        return;
    }
    set_number("RANK", rank);
    uint32_t local = o->nodes > 1 ? o->ranks / o->nodes : o->ranks;
    set_number("LOCAL_RANK", rank % local);
    set_number("WORLD_SIZE", o->ranks);
    set_number("LOCAL_WORLD_SIZE", local);
    if (o->nodes > 1) {
        set_number("GROUP_RANK", rank / local);
        set_number("GROUP_WORLD_SIZE", o->nodes);
    }
    if (getenv("MASTER_ADDR") == NULL) {
        setenv("MASTER_ADDR", "127.0.0.1", 1);
    }
    if (getenv("MASTER_PORT") == NULL) {
        set_number("MASTER_PORT", (uint32_t)port);
    }
}

static void set_common(const struct roll_run_options *o, const struct roll_place *place, const char *dir)
{
    char path[PATH_MAX];
    if (dir[0] != '\0') {
        setenv("ROLLCALL_DIR", dir, 1);
    }
    if (place->daemon[0] != '\0') {
        setenv("ROLLCALL_BIN", place->daemon, 1);
    }
    if (o->policy != NULL) {
        setenv("ROLLCALL_POLICY", o->policy, 1);
    }
    if (o->on_mismatch != NULL) {
        setenv("ROLLCALL_ON_MISMATCH", o->on_mismatch, 1);
    }
    if (o->quiet) {
        setenv("ROLLCALL_QUIET", "1", 1);
    }
    if (o->daemon != NULL) {
        setenv("ROLLCALL_DAEMON", o->daemon, 1);
    } else {
        /* The root of this run is ours; a rank must not start an agent for another. */
        unsetenv("ROLLCALL_DAEMON");
    }
    if (o->behind != NULL && (o->bound == NULL || !o->bound->plugin)) { /* a plugin is for an NCCL that is linked in */
        roll_env_prepend("LD_PRELOAD", o->behind);
    }
    if (place->preload[0] != '\0') {
        roll_env_prepend("LD_PRELOAD", place->preload);
        roll_bind_apply(o->bound, place);
    }
    if (o->python_stacks && place->python[0] != '\0') {
        roll_env_prepend("PYTHONPATH", place->python);
    }
    if (o->hostnccl) {
        roll_env_prepend("LD_LIBRARY_PATH", place->hostnccl);
        if (dir[0] != '\0') {
            /* This directory is made here, because the ranks meet in it before the library has seen it. */
            snprintf(path, sizeof(path), "%s/hostnccl", dir);
            mkdir(path, 0700);
            setenv("HOSTNCCL_DIR", path, 0);
        }
    }
}

static _Noreturn void child(const struct roll_run_options *o, const struct roll_place *place, const char *dir,
                            const sigset_t *mask, uint32_t rank, int port, const int out[2], int error_fd,
                            struct roll_warden *warden)
{
    setpgid(0, 0);
    roll_warden_guard_group(warden,
                            getpid()); /* before the job's program runs, because we may be killed at any moment */
    if (o->ranks > 0) {
        int null = open("/dev/null", O_RDONLY);
        dup2(null, STDIN_FILENO);
        close(null);
    }
    for (int i = 0; i < 2; i++) {
        if (out[i] >= 0) {
            dup2(out[i], 1 + i);
        }
    }
    set_common(o, place, dir);
    set_rank(o, rank, port);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGTTOU, SIG_DFL);
    sigprocmask(SIG_SETMASK, mask, NULL);
    execvp(o->command[0], o->command);
    int code = errno;
    ssize_t n = write(error_fd, &code, sizeof(code));
    (void)n;
    _exit(code == ENOENT ? 127 : 126);
}

static int start_rank(struct roll_run_job *job, uint32_t i, const struct roll_run_options *o,
                      const struct roll_place *place, const char *dir, const sigset_t *mask, int port,
                      struct roll_warden *warden)
{
    struct roll_run_rank *r = &job->rank[i];
    int error_fd[2] = {-1, -1}, pipe_fd[2][2] = {{-1, -1}, {-1, -1}}, code = 0, err = 0;
    bool piped = o->prefix || o->timeout_s > 0;

    if (pipe2(error_fd, O_CLOEXEC) != 0) {
        code = errno;
        goto out;
    }
    for (int k = 0; piped && k < 2; k++) {
        if (pipe2(pipe_fd[k], O_CLOEXEC) != 0) {
            code = errno;
            goto out;
        }
    }
    r->pid = fork();
    if (r->pid < 0) {
        code = errno;
        r->pid = 0;
        goto out;
    }
    if (r->pid == 0) {
        int out[2] = {pipe_fd[0][1], pipe_fd[1][1]};
        child(o, place, dir, mask, i, port, out, error_fd[1], warden);
    }
    setpgid(r->pid, r->pid); /* the child does this too; whichever comes first, no signal can miss the group */
    close(error_fd[1]);
    error_fd[1] = -1;
    if (read(error_fd[0], &code, sizeof(code)) != (ssize_t)sizeof(code)) {
        code = 0;
    }
    if (code != 0) {
        waitpid(r->pid, NULL, 0);
        r->pid = 0;
        goto out;
    }
    r->alive = true;
    job->alive++;
    for (int k = 0; piped && k < 2; k++) {
        r->out[k].fd = pipe_fd[k][0];
        pipe_fd[k][0] = -1;
        fcntl(r->out[k].fd, F_SETFL, O_NONBLOCK);
    }
out:
    for (int k = 0; k < 2; k++) {
        for (int e = 0; e < 2; e++) {
            if (pipe_fd[k][e] >= 0) {
                close(pipe_fd[k][e]);
            }
        }
        if (error_fd[k] >= 0) {
            close(error_fd[k]);
        }
    }
    if (code != 0) {
        roll_say("cannot run '%s': %s", o->command[0], strerror(code));
        err = code == ENOENT ? ROLL_E_NOTFOUND : code == EACCES ? ROLL_E_DENIED : ROLL_E_IO;
    }
    return err;
}

int roll_run_job_start(struct roll_run_job *job, const struct roll_run_options *o, const struct roll_place *place,
                       const char *dir, const sigset_t *mask, struct roll_warden *warden)
{
    *job = (struct roll_run_job){.count = o->ranks > 0 ? o->ranks : 1, .prefix = o->prefix};
    job->rank = calloc(job->count, sizeof(*job->rank));
    if (job->rank == NULL) {
        return ROLL_E_NOMEM;
    }
    for (uint32_t i = 0; i < job->count; i++) {
        job->rank[i].out[0] = (struct roll_run_output){.fd = -1, .to = STDOUT_FILENO};
        job->rank[i].out[1] = (struct roll_run_output){.fd = -1, .to = STDERR_FILENO};
    }
    int port = free_port();
    for (uint32_t i = 0; i < job->count; i++) {
        int err = start_rank(job, i, o, place, dir, mask, port, warden);
        if (err != 0) {
            return err;
        }
    }
    if (o->ranks == 0 && isatty(STDIN_FILENO) && tcgetpgrp(STDIN_FILENO) == getpgrp()) {
        /* A single command may read the terminal (a debugger, a prompt), so it gets the foreground, as in a shell.
         */
        job->terminal = tcsetpgrp(STDIN_FILENO, job->rank[0].pid) == 0;
        kill(-job->rank[0].pid, SIGCONT);
    }
    return 0;
}

int roll_run_job_reaped(struct roll_run_job *job, pid_t pid, int status)
{
    for (uint32_t i = 0; i < job->count; i++) {
        struct roll_run_rank *r = &job->rank[i];
        if (r->alive && r->pid == pid) {
            r->alive = false;
            r->status = status;
            job->alive--;
            int code = roll_run_code(status);
            if (code != 0 && job->first_failure == 0) {
                job->first_failure = code;
            }
            if (job->terminal) {
                job->terminal = false;
                tcsetpgrp(STDIN_FILENO, getpgrp());
            }
            return (int)i;
        }
    }
    return -1;
}

void roll_run_job_signal(struct roll_run_job *job, int sig)
{
    for (uint32_t i = 0; i < job->count; i++) {
        if (job->rank[i].alive) {
            kill(-job->rank[i].pid, sig);
            if (sig != SIGKILL && sig != SIGCONT) {
                kill(-job->rank[i].pid, SIGCONT); /* a stopped process would not see the signal */
            }
        }
    }
}

static void put(int fd, const char *data, size_t bytes)
{
    for (size_t done; (done = roll_write_all(fd, data, bytes)) < bytes; data += done, bytes -= done) {
        if (errno != EAGAIN) {
            return; /* nobody reads our output any more; the job goes on */
        }
        struct pollfd room = {fd, POLLOUT, 0}; /* another process that shares our output has made it non-blocking */
        poll(&room, 1, -1);
    }
}

/* Writes the complete lines, each with the rank in front; keeps an unfinished one. */
static void put_lines(struct roll_run_output *s, uint32_t rank, bool all)
{
    char tagged[sizeof(s->line) + 32];
    size_t begin = 0;
    for (size_t i = 0; i < s->used; i++) {
        bool full = i + 1 == s->used && (all || (begin == 0 && s->used == sizeof(s->line)));
        if (s->line[i] == '\n' || full) {
            bool newline = s->line[i] == '\n';
            int n = snprintf(tagged, sizeof(tagged), "[%u] %.*s%s", rank, (int)(i + 1 - begin), s->line + begin,
                             newline ? "" : "\n");
            put(s->to, tagged, (size_t)n < sizeof(tagged) ? (size_t)n : sizeof(tagged) - 1);
            begin = i + 1;
        }
    }
    memmove(s->line, s->line + begin, s->used - begin);
    s->used -= begin;
}

bool roll_run_job_relay(struct roll_run_job *job, uint32_t rank, int which)
{
    struct roll_run_output *s = &job->rank[rank].out[which];
    ssize_t n = read(s->fd, s->line + s->used, sizeof(s->line) - s->used);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return true;
    }
    if (n > 0) {
        job->output += (uint64_t)n;
        s->used += (size_t)n;
    }
    if (!job->prefix) {
        put(s->to, s->line, s->used);
        s->used = 0;
    } else {
        put_lines(s, rank, n <= 0);
    }
    if (n <= 0) {
        close(s->fd);
        s->fd = -1;
        return false;
    }
    return true;
}

void roll_run_job_sweep(struct roll_run_job *job)
{
    for (int round = 0; round < 100; round++) {
        bool left = false;
        for (uint32_t i = 0; i < job->count; i++) {
            pid_t group = job->rank[i].pid;
            while (group > 0 && waitpid(-group, NULL, WNOHANG) >
                                    0) { /* orphans become our children: see PR_SET_CHILD_SUBREAPER in run_launch.c */
            }
            if (group > 0 && kill(-group, round == 0 ? SIGTERM : round == 99 ? SIGKILL : 0) == 0) {
                left = true;
            }
        }
        if (!left) {
            return;
        }
        struct timespec nap = {0, 10000000};
        nanosleep(&nap, NULL);
    }
}

void roll_run_job_fini(struct roll_run_job *job)
{
    for (uint32_t i = 0; i < job->count && job->rank != NULL; i++) {
        for (int k = 0; k < 2; k++) {
            if (job->rank[i].out[k].fd >= 0) {
                close(job->rank[i].out[k].fd);
            }
        }
    }
    free(job->rank);
    job->rank = NULL;
}
