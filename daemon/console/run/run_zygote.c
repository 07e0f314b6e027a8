/*
 * run_zygote.c: interpreters that have imported a framework once, and become the ranks of a job by fork (zygote.py).
 *
 * An interpreter with PyTorch in it takes hundreds of MiB and seconds of a processor, which is the same for each rank.
 * A zygote ends when it has forked its ranks: they are then children of this process, a subreaper, so that the end of
 * each rank is seen here with its own status. clone() with CLONE_PARENT was rejected: it goes past the handlers of
 * pthread_atfork, which the libraries in the process rely on.
 *
 * Where every interpreter has a hash seed of its own, ranks differ in the order of a set; a job that issues collectives
 * in that order is ill. So that this still shows there are two zygotes, and ranks whose numbers differ in one bit, as
 * neighbours in a group often do, come from different ones.
 */
#include "daemon/console/console.h"
#include "daemon/console/run/run.h"

#include "trace/err.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PACKET_BYTES 4096
#define LOOK_MS      100
#define READY_S      600 /* an import from a network's file system can take minutes */

int roll_python_script(char *const command[])
{
    const char *base = command[0] != NULL ? strrchr(command[0], '/') : NULL;
    base = base != NULL ? base + 1 : command[0];
    if (base == NULL || fnmatch("python*", base, 0) != 0) {
        return -1;
    }
    int i = 1;
    while (command[i] != NULL && command[i][0] == '-') {
        const char *option = command[i] + 1;
        if (strcmp(option, "m") == 0 || strcmp(option, "c") == 0) {
            return command[i + 1] != NULL ? i : -1;
        }
        if (strcmp(option, "W") == 0 || strcmp(option, "X") == 0) {
            i += command[i + 1] != NULL ? 2 : 1;
        } else if (option[0] == 'W' || option[0] == 'X') {
            i++;
        } else if (option[0] != '\0' && option[strspn(option, "bBdEIOPqRsSuv")] == '\0') {
            i++;
        } else {
            return -1; /* from a terminal, or with an option whose meaning is not known here */
        }
    }
    return command[i] != NULL ? i : -1;
}

bool roll_python_is_fed(char *const command[])
{
    char *named[] = {command[0], "script", NULL};
    int i = 1;
    while (command[i] != NULL && command[i][0] == '-' && command[i][1] != '\0') {
        if (command[i][strspn(command[i], "-bBdEIOPqRsSuv")] != '\0') {
            return false; /* another way to name a program, or a question to the interpreter */
        }
        i++;
    }
    return roll_python_script(named) > 0 && (command[i] == NULL || strcmp(command[i], "-") == 0);
}

/* talk */

static bool is_asked_to_stop(void)
{
    sigset_t pending;
    return sigpending(&pending) == 0 && (sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1 ||
                                         sigismember(&pending, SIGHUP) == 1 || sigismember(&pending, SIGQUIT) == 1);
}

static time_t now_s(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return ts.tv_sec;
}

/* Receives one packet as text. 0; CLOSED: the process has ended; TIMEOUT; INCOMPLETE, with `until_asked`: the user asks
 * this program to stop, and the signal is still pending. */
static int receive(int fd, bool until_asked, char *out, size_t size)
{
    time_t until = now_s() + READY_S;
    for (;;) {
        struct pollfd at = {fd, POLLIN, 0};
        int n = poll(&at, 1, LOOK_MS);
        if (n > 0) {
            ssize_t got = recv(fd, out, size - 1, 0);
            out[got > 0 ? got : 0] = '\0';
            return got > 0 ? 0 : ROLL_E_CLOSED;
        }
        if (until_asked && is_asked_to_stop()) {
            return ROLL_E_INCOMPLETE;
        }
        if (now_s() >= until) {
            return ROLL_E_TIMEOUT;
        }
    }
}

static int send_rank(int fd, const char *variables, const int out[2])
{
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec text = {(void *)(uintptr_t)variables, strlen(variables)};
    struct msghdr message = {.msg_iov = &text, .msg_iovlen = 1};
    if (out[0] >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof(control.bytes);
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        *head =
            (struct cmsghdr){.cmsg_len = CMSG_LEN(2 * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(head), out, 2 * sizeof(int));
    }
    return sendmsg(fd, &message, MSG_NOSIGNAL) >= 0 ? 0 : ROLL_E_CLOSED;
}

/* life */

/* The command of a zygote: that of the job, with zygote.py and its arguments in front of the script. */
static char **zygote_command(const struct roll_run_options *o, const struct roll_place *place, char *socket)
{
    int script = roll_python_script(o->command), n = 0, used = 0;
    while (o->command[n] != NULL) {
        n++;
    }
    char **out = calloc((size_t)n + 5, sizeof(*out));
    for (int i = 0; out != NULL && i < n; i++) {
        if (i == script) {
            out[used++] = (char *)(uintptr_t)place->zygote;
            out[used++] = socket;
            out[used++] = (char *)(uintptr_t)(o->scratch != NULL ? o->scratch : "/nonexistent");
            out[used++] = (char *)(uintptr_t)o->zygote;
        }
        out[used++] = o->command[i];
    }
    return out;
}

static int start_one(struct roll_zygote *z, const struct roll_run_options *o, const struct roll_place *place,
                     const char *dir, const sigset_t *mask, struct roll_warden *warden, int port)
{
    int pair[2];
    char number[16];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        return ROLL_E_IO;
    }
    snprintf(number, sizeof(number), "%d", pair[1]);
    char **command = zygote_command(o, place, number);
    pid_t pid = command != NULL ? fork() : -1;
    if (pid == 0) {
        fcntl(pair[1], F_SETFD, 0);
        roll_env_set("ROLLCALL_ZYGOTE", "1", true);
        roll_run_become(o, place, dir, mask, warden, port, command, -1);
    }
    free(command);
    close(pair[1]);
    if (pid < 0) {
        close(pair[0]);
        return ROLL_E_NOMEM;
    }
    setpgid(pid, pid);
    *z = (struct roll_zygote){.pid = pid, .fd = pair[0]};
    return 0;
}

void roll_zygotes_end(struct roll_zygotes *all, struct roll_warden *warden)
{
    for (unsigned i = 0; i < all->count; i++) {
        if (all->is_bad) {
            kill(-all->zygote[i].pid, SIGKILL);
        }
        close(all->zygote[i].fd);
        while (waitpid(all->zygote[i].pid, NULL, 0) < 0 && errno == EINTR) {
        }
        if (kill(-all->zygote[i].pid, 0) != 0) {
            roll_warden_forget(warden, all->zygote[i].pid);
        }
    }
    all->count = 0;
}

/* Waits until all have imported what they shall. 0, or an error with one line in `why`. */
static int wait_until_ready(const struct roll_zygotes *all, char *why, size_t size)
{
    char text[PACKET_BYTES];
    int err = 0;
    for (unsigned i = 0; i < all->count && err == 0; i++) {
        err = receive(all->zygote[i].fd, true, text, sizeof(text));
        if (err != 0) {
            snprintf(why, size, "%s",
                     err == ROLL_E_TIMEOUT ? "the import takes too long" : "the interpreter has ended");
        } else if (strcmp(text, "ready") != 0) {
            snprintf(why, size, "%s", strncmp(text, "no ", 3) == 0 ? text + 3 : text);
            err = ROLL_E_UNSUPPORTED;
        }
    }
    return err;
}

void roll_zygotes_start(struct roll_zygotes *all, const struct roll_run_options *o, const struct roll_place *place,
                        const char *dir, const sigset_t *mask, struct roll_warden *warden, int port)
{
    char why[PACKET_BYTES] = "no process can be started";
    const char *seed = getenv("PYTHONHASHSEED");
    bool is_one_seed = seed != NULL && seed[0] != '\0' && strcmp(seed, "random") != 0;
    unsigned wanted = is_one_seed || o->ranks < 2 ? 1 : ROLL_ZYGOTES_MAX;
    int err = 0;
    *all = (struct roll_zygotes){.count = 0};
    while (err == 0 && all->count < wanted) {
        err = start_one(&all->zygote[all->count], o, place, dir, mask, warden, port);
        all->count += err == 0;
    }
    err = err == 0 ? wait_until_ready(all, why, sizeof(why)) : err;
    if (err != 0) {
        all->is_bad = true;
        roll_zygotes_end(all, warden);
    }
    if (err != 0 && err != ROLL_E_INCOMPLETE) {
        roll_say("each rank gets an interpreter of its own: %s", why);
    }
}

/* The zygote of a rank: by whether its number has an odd number of ones. */
static struct roll_zygote *zygote_of(struct roll_zygotes *all, uint32_t rank)
{
    return &all->zygote[(unsigned)__builtin_popcount(rank) % all->count];
}

int roll_zygote_fork(struct roll_zygotes *all, uint32_t rank, const char *variables, const int out[2],
                     struct roll_warden *warden, pid_t *pid)
{
    struct roll_zygote *z = zygote_of(all, rank);
    char text[PACKET_BYTES] = "";
    int number = 0, err = send_rank(z->fd, variables, out);
    err = err == 0 ? receive(z->fd, false, text, sizeof(text)) : err;
    if (err != 0 || sscanf(text, "pid %d", &number) != 1 || number <= 0) {
        all->is_bad = true;
        return err != 0 ? err : ROLL_E_IO;
    }
    roll_warden_guard_group(warden, number);
    *pid = number;
    return send(z->fd, "go", 2, MSG_NOSIGNAL) == 2 ? 0 : ROLL_E_CLOSED;
}
