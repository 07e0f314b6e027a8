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

/* The variables that tell a rank which one it is, as "RANK=0 LOCAL_RANK=0"; "" where there are none. */
static void rank_variables(const struct roll_run_options *o, uint32_t rank, char *out, size_t size)
{
    uint32_t local = o->nodes > 1 ? o->ranks / o->nodes : o->ranks;
    out[0] = '\0';
    if (o->ranks > 0) {
        int n = snprintf(out, size, "RANK=%u LOCAL_RANK=%u", rank, rank % local);
        if (o->nodes > 1) {
            snprintf(out + n, size - (size_t)n, " GROUP_RANK=%u", rank / local);
        }
    }
}

static void set_variables(char *list)
{
    for (char *rest = NULL, *at = strtok_r(list, " ", &rest); at != NULL; at = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(at, '=');
        *value = '\0';
        roll_env_set(at, value + 1, true);
    }
}

/* Starts a program as a rank. 0, or errno. */
static int exec_rank(struct roll_run_rank *r, const struct roll_run_options *o, const struct roll_place *place,
                     const char *dir, const sigset_t *mask, int port, const int out[2], struct roll_warden *warden)
{
    int error_fd[2], code = 0;
    if (pipe2(error_fd, O_CLOEXEC) != 0) {
        return errno;
    }
    pid_t pid = fork();
    if (pid == 0) {
        char variables[128];
        for (int k = 0; k < 2; k++) {
            if (out[k] >= 0) {
                dup2(out[k], 1 + k);
            }
        }
        rank_variables(o, r->number, variables, sizeof(variables));
        set_variables(variables);
        roll_run_become(o, place, dir, mask, warden, port, o->command, error_fd[1]);
    }
    if (pid < 0) {
        code = errno;
    } else {
        setpgid(pid, pid); /* the child does this too; whichever comes first, no signal can miss the group */
    }
    close(error_fd[1]);
    if (pid > 0 && read(error_fd[0], &code, sizeof(code)) != (ssize_t)sizeof(code)) {
        code = 0;
    }
    close(error_fd[0]);
    if (pid > 0 && code != 0) {
        waitpid(pid, NULL, 0);
        roll_warden_forget(warden, pid);
    }
    r->pid = code == 0 ? pid : 0;
    return code;
}

/* Forks a rank from a zygote. 0, or errno. */
static int fork_rank(struct roll_run_rank *r, const struct roll_run_options *o, struct roll_zygotes *zygotes,
                     const int out[2], struct roll_warden *warden)
{
    char variables[128];
    rank_variables(o, r->number, variables, sizeof(variables));
    return roll_zygote_fork(zygotes, r->number, variables, out, warden, &r->pid) == 0 ? 0 : EAGAIN;
}

static int start_rank(struct roll_run_job *job, uint32_t i, const struct roll_run_options *o,
                      const struct roll_place *place, const char *dir, const sigset_t *mask, int port,
                      struct roll_zygotes *zygotes, struct roll_warden *warden)
{
    struct roll_run_rank *r = &job->rank[i];
    int pipe_fd[2][2] = {{-1, -1}, {-1, -1}}, code = 0, err = 0;
    bool piped = o->prefix || o->timeout_s > 0;

    for (int k = 0; piped && k < 2; k++) {
        if (pipe2(pipe_fd[k], O_CLOEXEC) != 0) {
            code = errno;
            goto out;
        }
    }
    int out[2] = {pipe_fd[0][1], pipe_fd[1][1]};
    code = zygotes->count > 0 ? fork_rank(r, o, zygotes, out, warden)
                              : exec_rank(r, o, place, dir, mask, port, out, warden);
    if (code != 0) {
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
    }
    if (code != 0) {
        struct stat st;
        bool folder = code == EACCES && stat(o->command[0], &st) == 0 && S_ISDIR(st.st_mode);
        roll_say("cannot run '%s': %s", o->command[0], folder ? "it is a folder" : strerror(code));
        err = code == ENOENT ? ROLL_E_NOTFOUND : code == EACCES ? ROLL_E_DENIED : ROLL_E_IO;
    }
    return err;
}

int roll_run_job_start(struct roll_run_job *job, const struct roll_run_options *o, const struct roll_place *place,
                       const char *dir, const sigset_t *mask, struct roll_warden *warden)
{
    uint32_t count = o->run != NULL ? (uint32_t)roll_rankset_count(o->run) : o->ranks;
    *job = (struct roll_run_job){.count = count > 0 ? count : 1, .prefix = o->prefix};
    job->rank = calloc(job->count, sizeof(*job->rank));
    if (job->rank == NULL) {
        return ROLL_E_NOMEM;
    }
    for (uint32_t i = 0; i < job->count; i++) {
        job->rank[i].group = -1;
        job->rank[i].number = o->run != NULL ? roll_rankset_at(o->run, i) : i;
        job->rank[i].out[0] = (struct roll_run_output){.fd = -1, .to = STDOUT_FILENO};
        job->rank[i].out[1] = (struct roll_run_output){.fd = -1, .to = STDERR_FILENO};
    }
    struct roll_zygotes zygotes = {.count = 0};
    int port = free_port(), err = 0;
    if (o->zygote != NULL) {
        roll_zygotes_start(&zygotes, o, place, dir, mask, warden, port);
    }
    for (uint32_t i = 0; i < job->count && err == 0; i++) {
        err = start_rank(job, i, o, place, dir, mask, port, &zygotes, warden);
    }
    roll_zygotes_end(&zygotes, warden);
    if (err != 0) {
        return err;
    }
    if (o->ranks == 0 && isatty(STDIN_FILENO) && tcgetpgrp(STDIN_FILENO) == getpgrp()) {
        /* A single command may read the terminal (a debugger, a prompt), so it gets the foreground, as in a shell.
         */
        job->terminal = tcsetpgrp(STDIN_FILENO, job->rank[0].pid) == 0;
        kill(-job->rank[0].pid, SIGCONT);
    }
    return 0;
}

static void close_one(int *fd)
{
    if (*fd >= 0) {
        close(*fd);
    }
    *fd = -1;
}

int roll_run_job_reaped(struct roll_run_job *job, pid_t pid, int status, int group, struct roll_warden *warden)
{
    for (uint32_t i = 0; i < job->count; i++) {
        struct roll_run_rank *r = &job->rank[i];
        if (r->alive && r->pid == pid) {
            r->alive = false;
            /* What is left in the group keeps its number; an empty group is never asked for again. */
            r->has_left = kill(-pid, 0) == 0;
            if (r->has_left) {
                r->group = group;
                group = -1;
            } else {
                roll_warden_forget(warden, pid);
            }
            close_one(&group);
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
    close_one(&group);
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
        put_lines(s, job->rank[rank].number, n <= 0);
    }
    if (n <= 0) {
        close(s->fd);
        s->fd = -1;
        return false;
    }
    return true;
}

void roll_run_job_sweep(struct roll_run_job *job, const char *dir)
{
    for (int round = 0; round < 100; round++) {
        bool left = false;
        for (uint32_t i = 0; i < job->count; i++) {
            struct roll_run_rank *r = &job->rank[i];
            if (!r->has_left) {
                continue;
            }
            while (waitpid(-r->pid, NULL, WNOHANG) > 0) {
                /* orphans become our children: see PR_SET_CHILD_SUBREAPER in run_launch.c */
            }
            r->has_left = roll_group_signal(r->group, r->pid, round == 0 ? SIGTERM : round == 99 ? SIGKILL : 0, dir);
            left = left || r->has_left;
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
        close_one(&job->rank[i].group);
        for (int k = 0; k < 2; k++) {
            if (job->rank[i].out[k].fd >= 0) {
                close(job->rank[i].out[k].fd);
            }
        }
    }
    free(job->rank);
    job->rank = NULL;
}
