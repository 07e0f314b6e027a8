/*
 * calls.c: what the daemons ask of libc and of /proc, answered by the world: time, waiting, who and where they are, and
 * what dies with its process. Files have files.c.
 *
 * What begins threads or other processes is refused, as a system may refuse it: each daemon goes on without. To let
 * them run was rejected: their order would be the machine's.
 */
#include "tests/world/calls.h"

#include "tests/world/files.h"
#include "tests/world/rank.h"
#include "tests/world/watch.h"

#include "daemon/base/file.h"
#include "daemon/base/proc.h"
#include "trace/err.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zstd.h>

#define FDS      4096
#define MAPS     1024
#define PIDFDS   256
#define CONTEXTS 64
#define REAL_NS  (UINT64_C(1790000000) * S_) /* the wall clock when the world's time is 0 */
#define LOOP_US  10u                         /* a look that does not wait takes so long */

#define WRAP(type, name, ...)                                                                                          \
    type __real_##name(__VA_ARGS__);                                                                                   \
    type __wrap_##name(__VA_ARGS__)
WRAP(int, clock_gettime, clockid_t clock, struct timespec *out);
WRAP(int, poll, struct pollfd *fds, nfds_t n, int timeout_ms);
WRAP(int, nanosleep, const struct timespec *time, struct timespec *left);
WRAP(pid_t, getpid, void);
WRAP(pid_t, getppid, void);
WRAP(ssize_t, getrandom, void *out, size_t bytes, unsigned flags);
WRAP(int, gethostname, char *out, size_t bytes);
WRAP(int, close, int fd);
WRAP(int, pipe2, int fds[2], int flags);
WRAP(int, epoll_create1, int flags);
WRAP(int, epoll_wait, int fd, struct epoll_event *events, int most, int timeout_ms);
WRAP(void *, mmap, void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
WRAP(int, munmap, void *at, size_t bytes);
WRAP(ssize_t, write, int fd, const void *data, size_t bytes);
WRAP(long, syscall, long number, ...);
WRAP(pid_t, waitpid, pid_t pid, int *status, int options);
WRAP(int, posix_spawn, pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
     const posix_spawnattr_t *attributes, char *const argv[], char *const env[]);
WRAP(int, pthread_create, pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument);
WRAP(ZSTD_CCtx *, ZSTD_createCCtx, void);
WRAP(size_t, ZSTD_freeCCtx, ZSTD_CCtx *context);
WRAP(ZSTD_DCtx *, ZSTD_createDCtx, void);
WRAP(size_t, ZSTD_freeDCtx, ZSTD_DCtx *context);
WRAP(int, roll_read_text, const char *path, char *out, size_t size);
WRAP(int, roll_proc_stat, pid_t pid, pid_t tid, struct roll_proc_stat *out);

struct caller calls_as;

static struct process *fd_owner[FDS];
static struct {
    void *at;
    size_t bytes;
    struct process *owner; /* NULL = free */
} map[MAPS];
static struct {
    int fd;
    pid_t pid;
    const struct host *host; /* NULL = free */
} pidfd[PIDFDS];
static struct {
    void *at; /* NULL = free */
    bool compresses;
    struct process *owner;
} context[CONTEXTS];

static const struct host *here(void)
{
    return process_now ? process_now->host : calls_as.host;
}

/* Where the running process is to be killed in this call. */
static void may_die(void)
{
    if (process_call()) {
        process_die();
    }
}

/* time */

int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    const struct host *host = here();
    if (!host || (clock != CLOCK_MONOTONIC && clock != CLOCK_REALTIME)) {
        return __real_clock_gettime(clock, out);
    }
    uint64_t ns =
        clock == CLOCK_MONOTONIC ? world.now_ns + host->mono_ns : REAL_NS + world.now_ns + (uint64_t)host->real_ns;
    *out = (struct timespec){.tv_sec = (time_t)(ns / S_), .tv_nsec = (long)(ns % S_)};
    return 0;
}

/* Real descriptors change only where the world has touched something on the host, and stay ready until they are read.
 */
static int look(struct pollfd *fds, nfds_t n)
{
    struct pollfd real[16] = {0};
    int ready = 0;
    bool touched = process_now->touched;
    for (nfds_t i = 0; i < n && i < 16; i++) {
        real[i] = (struct pollfd){.fd = fds[i].fd, .events = fds[i].events};
        real[i].fd = socket_is_fd(fds[i].fd) ? -1 : fds[i].fd;
    }
    process_now->touched = touched && __real_poll(real, n, 0) > 0;
    for (nfds_t i = 0; i < n && i < 16; i++) {
        bool simulated = socket_is_fd(fds[i].fd);
        fds[i].revents = simulated ? (socket_fd_ready(fds[i].fd) ? POLLIN : 0) : real[i].revents;
        ready += fds[i].revents != 0;
    }
    return ready;
}

int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
    if (!process_now) {
        return __real_poll(fds, n, timeout_ms);
    }
    uint64_t us = timeout_ms == 0 ? LOOP_US : (uint64_t)(timeout_ms < 0 ? 0 : timeout_ms) * 1000;
    uint64_t until = timeout_ms < 0 ? WORLD_NEVER : world.now_ns + us * US_;
    if (process_now->polled_ns == world.now_ns) { /* who looks again at once has needed some time for it */
        process_wait(world.now_ns + LOOP_US * US_);
    }
    process_now->polled_ns = world.now_ns;
    for (;;) {
        may_die();
        int ready = look(fds, n);
        if (ready > 0 || world.now_ns >= until) {
            return ready;
        }
        process_wait(until);
    }
}

int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
    if (!process_now) {
        return __real_nanosleep(time, left);
    }
    uint64_t until = world.now_ns + (uint64_t)time->tv_sec * (uint64_t)S_ + (uint64_t)time->tv_nsec;
    while (world.now_ns < until) {
        process_wait(until);
    }
    return 0;
}

/* who and where */

pid_t __wrap_getpid(void)
{
    return process_now ? process_now->pid : calls_as.host ? calls_as.pid : __real_getpid();
}

pid_t __wrap_getppid(void)
{
    return process_now ? 1 : __real_getppid();
}

ssize_t __wrap_getrandom(void *out, size_t bytes, unsigned flags)
{
    if (!here()) {
        return __real_getrandom(out, bytes, flags);
    }
    for (size_t i = 0; i < bytes; i++) {
        ((uint8_t *)out)[i] = (uint8_t)world_below(256);
    }
    return (ssize_t)bytes;
}

int __wrap_gethostname(char *out, size_t bytes)
{
    const struct host *host = here();
    if (!host) {
        return __real_gethostname(out, bytes);
    }
    snprintf(out, bytes, "%s", host->name);
    return 0;
}

int __wrap_roll_read_text(const char *path, char *out, size_t size)
{
    const struct host *host = here();
    if (!host || (strncmp(path, "/proc/", 6) != 0 && strncmp(path, "/sys/", 5) != 0) ||
        strcmp(path, "/proc/sys/kernel/random/boot_id") == 0) {
        return __real_roll_read_text(path, out, size);
    }
    out[0] = '\0';
    if (strcmp(path, "/proc/pressure/cpu") != 0) {
        return ROLL_E_NOTFOUND;
    }
    uint64_t total_us = 1000 + world.now_ns / 1000 * host->starved / 1000;
    return snprintf(out, size, "some avg10=0.00 avg60=0.00 avg300=0.00 total=%llu\n", (unsigned long long)total_us);
}

int __wrap_roll_proc_stat(pid_t pid, pid_t tid, struct roll_proc_stat *out)
{
    (void)tid;
    if (!here()) {
        return __real_roll_proc_stat(pid, tid, out);
    }
    *out = (struct roll_proc_stat){.name = "train", .state = rank_process(here(), pid)};
    return out->state ? 0 : ROLL_E_NOTFOUND;
}

/* descriptors */

int calls_own(int fd)
{
    if (process_now) {
        process_now->touched = true;
    }
    if (fd >= 0 && fd < FDS) {
        fd_owner[fd] = process_now;
    }
    return fd;
}

void calls_disown(int fd)
{
    if (fd >= 0 && fd < FDS) {
        fd_owner[fd] = NULL;
    }
}

void calls_ready(int fd)
{
    struct process *p = fd >= 0 && fd < FDS ? fd_owner[fd] : NULL;
    if (p) {
        p->touched = true;
        process_wake(p, world.now_ns);
    }
}

int __wrap_close(int fd)
{
    for (uint32_t i = 0; i < PIDFDS; i++) {
        if (pidfd[i].host && pidfd[i].fd == fd) {
            pidfd[i].host = NULL;
        }
    }
    calls_disown(fd);
    watch_closed(fd);
    return __real_close(fd);
}

int __wrap_pipe2(int fds[2], int flags)
{
    int rc = __real_pipe2(fds, flags);
    if (rc == 0) {
        calls_own(fds[0]);
        calls_own(fds[1]);
    }
    return rc;
}

int __wrap_epoll_create1(int flags)
{
    return calls_own(__real_epoll_create1(flags));
}

/* Nothing has become ready where the world has touched nothing. */
int __wrap_epoll_wait(int fd, struct epoll_event *events, int most, int timeout_ms)
{
    return process_now && !process_now->touched ? 0 : __real_epoll_wait(fd, events, most, timeout_ms);
}

long __wrap_syscall(long number, ...)
{
    va_list args;
    va_start(args, number);
    long a = va_arg(args, long), b = va_arg(args, long), c = va_arg(args, long);
    va_end(args);
    if (number != SYS_pidfd_open || !process_now) {
        return __real_syscall(number, a, b, c);
    }
    if (!rank_process(process_now->host, (pid_t)a)) {
        errno = ESRCH;
        return -1;
    }
    for (uint32_t i = 0; i < PIDFDS; i++) {
        if (!pidfd[i].host) {
            pidfd[i].fd = calls_own(eventfd(0, EFD_CLOEXEC));
            pidfd[i].pid = (pid_t)a;
            pidfd[i].host = process_now->host;
            return pidfd[i].fd;
        }
    }
    errno = EMFILE;
    return -1;
}

/* Something may have become ready for whoever waits on the host: it looks again. */
static void touch(const struct host *host)
{
    for (uint32_t i = 0; i < WORLD_PROCESSES; i++) {
        struct process *p = process_at(i);
        if (p && p->host == host) {
            p->touched = true;
            process_wake(p, world.now_ns);
        }
    }
}

void calls_ended(const struct host *host, pid_t pid)
{
    uint64_t one = 1;
    for (uint32_t i = 0; i < PIDFDS; i++) {
        if (pidfd[i].host == host && pidfd[i].pid == pid && __real_write(pidfd[i].fd, &one, sizeof(one)) < 0) {
            abort();
        }
    }
    touch(host);
}

/* mappings, and the contexts of a library that is not ours */

/* Rings get their pages as they are written: most of a ring is never used here. */
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    void *got = __real_mmap(at, bytes, protection, flags & ~MAP_POPULATE, fd, offset);
    bool inside = (flags & MAP_FIXED) != 0; /* of another one, and goes with it */
    for (uint32_t i = 0; process_now && got != MAP_FAILED && !inside && i < MAPS; i++) {
        if (!map[i].owner) {
            map[i].at = got;
            map[i].bytes = bytes;
            map[i].owner = process_now;
            break;
        }
    }
    return got;
}

int __wrap_munmap(void *at, size_t bytes)
{
    for (uint32_t i = 0; i < MAPS; i++) {
        if (map[i].owner && map[i].at == at) {
            map[i].owner = NULL;
            break;
        }
    }
    return __real_munmap(at, bytes);
}

static void *keep(void *at, bool compresses)
{
    for (uint32_t i = 0; process_now && at && i < CONTEXTS; i++) {
        if (!context[i].at) {
            context[i].at = at;
            context[i].compresses = compresses;
            context[i].owner = process_now;
            break;
        }
    }
    return at;
}

static void *let_go(void *at)
{
    for (uint32_t i = 0; at && i < CONTEXTS; i++) {
        context[i].at = context[i].at == at ? NULL : context[i].at;
    }
    return at;
}

ZSTD_CCtx *__wrap_ZSTD_createCCtx(void)
{
    return keep(__real_ZSTD_createCCtx(), true);
}

size_t __wrap_ZSTD_freeCCtx(ZSTD_CCtx *at)
{
    return __real_ZSTD_freeCCtx(let_go(at));
}

ZSTD_DCtx *__wrap_ZSTD_createDCtx(void)
{
    return keep(__real_ZSTD_createDCtx(), false);
}

size_t __wrap_ZSTD_freeDCtx(ZSTD_DCtx *at)
{
    return __real_ZSTD_freeDCtx(let_go(at));
}

/* what is refused */

pid_t __wrap_waitpid(pid_t pid, int *status, int options)
{
    if (!process_now) {
        return __real_waitpid(pid, status, options);
    }
    errno = ECHILD;
    return -1;
}

int __wrap_posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                       const posix_spawnattr_t *attributes, char *const argv[], char *const env[])
{
    return process_now ? EAGAIN : __real_posix_spawn(pid, path, actions, attributes, argv, env);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
    return process_now ? EAGAIN : __real_pthread_create(thread, attributes, run, argument);
}

/* ends */

int calls_left(const struct process *p)
{
    int left = 0;
    for (uint32_t i = 0; i < FDS; i++) {
        left += fd_owner[i] == p;
    }
    for (uint32_t i = 0; i < MAPS; i++) {
        left += map[i].owner == p;
    }
    for (uint32_t i = 0; i < CONTEXTS; i++) {
        left += context[i].at && context[i].owner == p;
    }
    return left;
}

void calls_free(struct process *p)
{
    files_free(p);
    for (int i = 0; i < FDS; i++) {
        if (fd_owner[i] == p) {
            __wrap_close(i);
        }
    }
    for (uint32_t i = 0; i < MAPS; i++) {
        if (map[i].owner == p) {
            map[i].owner = NULL;
            __real_munmap(map[i].at, map[i].bytes);
        }
    }
    for (uint32_t i = 0; i < CONTEXTS; i++) {
        if (context[i].at && context[i].owner == p) {
            void *at = context[i].at;
            context[i].at = NULL;
            (void)(context[i].compresses ? __real_ZSTD_freeCCtx(at) : __real_ZSTD_freeDCtx(at));
        }
    }
}

void calls_reset(void)
{
    files_reset();
    calls_as = (struct caller){0};
}
