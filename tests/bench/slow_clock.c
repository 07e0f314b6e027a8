/*
 * slow_clock.c: a library to preload: time passes more slowly for whoever runs with it.
 *
 * roll_bench scale shows thousands of nodes on a machine of two cores. Its processes all live in a time that passes
 * ROLL_SLOW_FACTOR times more slowly than the real one: what each of them does in a second of that time is what it
 * would do in a second on a machine of its own, and the processor has FACTOR seconds for all of them together. Clocks
 * of processor time stay real. To give the daemons a factor of their own was rejected: each interval in them would have
 * to know of it, and what is measured would be another program.
 *
 * The other nodes on this machine are hidden as well: an agent looks whether the ranks of its node get a processor, and
 * reads what every process of its node has mapped; here it would see the load, and the processes, of all nodes.
 *
 *   ROLL_SLOW_FACTOR=8 ROLL_SLOW_MONO=NS ROLL_SLOW_REAL=NS: what both clocks showed when slow time began
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define VISIBLE     __attribute__((visibility("default")))
#define NS          INT64_C(1000000000)
#define KEEP_MOST_S 32767 /* that the kernel takes */

static int64_t factor = 1, mono_began, real_began;
static int (*real_gettime)(clockid_t, struct timespec *);
static int (*real_nanosleep)(clockid_t, int, const struct timespec *, struct timespec *);
static int (*real_poll)(struct pollfd *, nfds_t, int);
static int (*real_epoll_wait)(int, struct epoll_event *, int, int);
static int (*real_open)(const char *, int, ...);
static DIR *(*real_opendir)(const char *);
static int (*real_setsockopt)(int, int, int, const void *, socklen_t);

static int64_t number(const char *name)
{
    const char *text = getenv(name);
    return text ? strtoll(text, NULL, 10) : 0;
}

static void *next(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

/* Others' constructors may ask for the time before ours has run. */
__attribute__((constructor)) static void begin(void)
{
    if (!real_gettime) {
        real_nanosleep = (int (*)(clockid_t, int, const struct timespec *, struct timespec *))next("clock_nanosleep");
        real_poll = (int (*)(struct pollfd *, nfds_t, int))next("poll");
        real_epoll_wait = (int (*)(int, struct epoll_event *, int, int))next("epoll_wait");
        real_open = (int (*)(const char *, int, ...))next("open");
        real_opendir = (DIR * (*)(const char *)) next("opendir");
        real_setsockopt = (int (*)(int, int, int, const void *, socklen_t))next("setsockopt");
        real_gettime = (int (*)(clockid_t, struct timespec *))next("clock_gettime");
        mono_began = number("ROLL_SLOW_MONO");
        real_began = number("ROLL_SLOW_REAL");
        int64_t f = number("ROLL_SLOW_FACTOR");
        factor = f > 0 ? f : 1;
    }
}

static int64_t ns_of(const struct timespec *ts)
{
    return ts->tv_sec * NS + ts->tv_nsec;
}

static struct timespec time_of(int64_t ns)
{
    return (struct timespec){.tv_sec = ns / NS, .tv_nsec = ns % NS};
}

static int64_t began(clockid_t clock)
{
    switch (clock) {
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_RAW:
    case CLOCK_MONOTONIC_COARSE:
        return mono_began;
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE:
        return real_began;
    default:
        return 0;
    }
}

VISIBLE int clock_gettime(clockid_t clock, struct timespec *ts)
{
    begin();
    int rc = real_gettime(clock, ts);
    int64_t from = began(clock);
    if (rc == 0 && from != 0) {
        *ts = time_of(from + (ns_of(ts) - from) / factor);
    }
    return rc;
}

VISIBLE int clock_nanosleep(clockid_t clock, int flags, const struct timespec *asked, struct timespec *left)
{
    begin();
    int64_t from = began(clock);
    struct timespec stretched;
    if (flags & TIMER_ABSTIME) {
        stretched = from != 0 ? time_of(from + (ns_of(asked) - from) * factor) : *asked;
        return real_nanosleep(clock, flags, &stretched, left);
    }
    stretched = time_of(ns_of(asked) * factor);
    int rc = real_nanosleep(clock, flags, &stretched, left);
    if (rc != 0 && left) {
        *left = time_of(ns_of(left) / factor);
    }
    return rc;
}

VISIBLE int nanosleep(const struct timespec *asked, struct timespec *left)
{
    int rc = clock_nanosleep(CLOCK_MONOTONIC, 0, asked, left);
    errno = rc ? rc : errno;
    return rc ? -1 : 0;
}

VISIBLE int usleep(useconds_t us)
{
    struct timespec ts = time_of((int64_t)us * 1000);
    return nanosleep(&ts, NULL);
}

VISIBLE unsigned sleep(unsigned s)
{
    struct timespec ts = time_of((int64_t)s * NS), left = {0};
    return nanosleep(&ts, &left) == 0 ? 0 : (unsigned)left.tv_sec;
}

static int stretched_ms(int ms)
{
    return ms > 0 ? (int)(ms < INT_MAX / factor ? ms * factor : INT_MAX) : ms;
}

VISIBLE int poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
    begin();
    return real_poll(fds, n, stretched_ms(timeout_ms));
}

/* What a compiler that checks sizes calls instead. */
int __poll_chk(struct pollfd *fds, nfds_t n, int timeout_ms, size_t bytes);
VISIBLE int __poll_chk(struct pollfd *fds, nfds_t n, int timeout_ms, size_t bytes)
{
    (void)bytes;
    return poll(fds, n, timeout_ms);
}

VISIBLE int epoll_wait(int fd, struct epoll_event *events, int most, int timeout_ms)
{
    begin();
    return real_epoll_wait(fd, events, most, stretched_ms(timeout_ms));
}

/* The kernel's own patience with a connection, after which it gives it up: libzmq sets it. It went by the real clock,
 * so a root whose thread had no processor for a moment of the job's time lost its relays. */
VISIBLE int setsockopt(int fd, int level, int option, const void *value, socklen_t bytes)
{
    begin();
    bool waits = level == IPPROTO_TCP && bytes == sizeof(int) &&
                 (option == TCP_USER_TIMEOUT || option == TCP_KEEPIDLE || option == TCP_KEEPINTVL);
    if (!waits) {
        return real_setsockopt(fd, level, option, value, bytes);
    }
    int asked;
    memcpy(&asked, value, sizeof(asked));
    asked = stretched_ms(asked);
    asked = option != TCP_USER_TIMEOUT && asked > KEEP_MOST_S ? KEEP_MOST_S : asked;
    return real_setsockopt(fd, level, option, &asked, sizeof(asked));
}

static int made_file(const char *text)
{
    int fd = memfd_create("calm", MFD_CLOEXEC);
    size_t bytes = strlen(text);
    if (fd >= 0 && (write(fd, text, bytes) != (ssize_t)bytes || lseek(fd, 0, SEEK_SET) != 0)) {
        close(fd);
        return -1;
    }
    return fd;
}

static bool ends(const char *path, const char *tail)
{
    size_t a = strlen(path), b = strlen(tail);
    return a >= b && strcmp(path + a - b, tail) == 0;
}

VISIBLE int open(const char *path, int flags, ...)
{
    begin();
    va_list list;
    va_start(list, flags);
    unsigned mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(list, unsigned) : 0;
    va_end(list);
    if (strncmp(path, "/proc/", 6) == 0 || strncmp(path, "/sys/", 5) == 0) {
        if (ends(path, "/pressure/cpu") || ends(path, "/cpu.pressure")) {
            return made_file("some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n");
        }
        if (ends(path, "/loadavg")) {
            return made_file("0.00 0.00 0.00 1/100 1\n");
        }
    }
    return real_open(path, flags, mode);
}

VISIBLE int open64(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    unsigned mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(list, unsigned) : 0;
    va_end(list);
    return open(path, flags, mode);
}

VISIBLE DIR *opendir(const char *path)
{
    begin();
    return real_opendir(strcmp(path, "/proc") == 0 ? "/proc/self/ns" : path);
}
