/*
 * program_threads.c: a process whose stacks are known.
 *
 * usage: stack_threads COUNTER MODE [N]. COUNTER is a file of 8 bytes, mapped: a thread of its own counts in it for as
 * long as the process lives, so whoever looks can tell that it goes on. MODE: stuck (main thread three frames deep in a
 * wait, N threads in another), moving (a thread that alternates between two functions), exit (ends after N
 * milliseconds), deep (recursion N deep), calls (system calls that a stop would end with EINTR or cut short: it exits
 * when its standard input ends, with 9 when one of them has returned).
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define KEEP __attribute__((noinline))

static _Atomic uint64_t *counter;
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static volatile int one = 1;

static void nap(long ms)
{
    const struct timespec ts = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&ts, NULL);
}

static void *counting(void *arg)
{
    for (;;) {
        atomic_fetch_add(counter, 1);
        nap(1);
    }
    return arg;
}

KEEP static int level_three(int x)
{
    pthread_mutex_lock(&gate); /* held: for ever */
    return x + one;
}

KEEP static int level_two(int x)
{
    return level_three(x) + one;
}

KEEP static int level_one(int x)
{
    return level_two(x) + one;
}

KEEP static int waits_here(int x)
{
    pthread_mutex_lock(&gate);
    return x + one;
}

static void *waiter(void *arg)
{
    (void)!waits_here(one);
    return arg;
}

KEEP static int step_a(void)
{
    nap(60);
    return one;
}

KEEP static int step_b(void)
{
    nap(60);
    return -one;
}

static void *mover(void *arg)
{
    while (step_a() + step_b() == 0) {
    }
    return arg;
}

KEEP static int recurse(int n)
{
    if (n == 0) {
        pthread_mutex_lock(&gate);
    }
    return n > 0 ? recurse(n - 1) + one : one;
}

/* calls that nothing ends but a signal */

static _Atomic int returned;

static void ended(void)
{
    atomic_fetch_add(&returned, 1);
}

static int timed_socket(int *peer)
{
    const struct timeval hour = {3600, 0};
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0 ||
        setsockopt(fds[0], SOL_SOCKET, SO_RCVTIMEO, &hour, sizeof(hour)) != 0) {
        _exit(3);
    }
    *peer = fds[1];
    return fds[0];
}

static void *in_epoll(void *arg)
{
    struct epoll_event event;
    (void)!epoll_wait(epoll_create1(0), &event, 1, -1);
    ended();
    return arg;
}

static void *in_recv(void *arg)
{
    char byte;
    int peer;
    (void)!recv(timed_socket(&peer), &byte, 1, 0);
    ended();
    return arg;
}

static void *in_read(void *arg)
{
    char byte;
    int peer;
    (void)!read(timed_socket(&peer), &byte, 1);
    ended();
    return arg;
}

/* Half of it is there: cut short, the call would return that. */
static void *in_recv_all(void *arg)
{
    char bytes[8];
    int peer, fd = timed_socket(&peer);
    (void)!write(peer, "half", 4);
    (void)!recv(fd, bytes, sizeof(bytes), MSG_WAITALL);
    ended();
    return arg;
}

static void *in_write(void *arg)
{
    static char much[1 << 20];
    int fds[2];
    (void)!pipe(fds);
    (void)!write(fds[1], much, sizeof(much));
    ended();
    return arg;
}

static void spawn(void *(*function)(void *), int n)
{
    pthread_attr_t attr;
    pthread_t thread;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 65536);
    for (int i = 0; i < n; i++) {
        if (pthread_create(&thread, &attr, function, NULL) != 0) {
            _exit(3);
        }
    }
}

int main(int argc, char **argv)
{
    int fd = argc > 2 ? open(argv[1], O_RDWR | O_CREAT, 0600) : -1, n = argc > 3 ? atoi(argv[3]) : 0;
    if (fd < 0 || ftruncate(fd, 8) != 0) {
        return 2;
    }
    counter = mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (counter == MAP_FAILED) {
        return 2;
    }
    pthread_mutex_lock(&gate);
    spawn(counting, 1);
    if (strcmp(argv[2], "moving") == 0) {
        spawn(mover, 1);
    }
    if (strcmp(argv[2], "stuck") == 0) {
        spawn(waiter, n);
    }
    if (strcmp(argv[2], "calls") == 0) {
        spawn(in_epoll, 1);
        spawn(in_recv, 1);
        spawn(in_read, 1);
        spawn(in_recv_all, 1);
        spawn(in_write, 1);
    }
    puts("ready");
    fflush(stdout);
    if (strcmp(argv[2], "exit") == 0) {
        nap(n);
        return 0;
    }
    if (strcmp(argv[2], "deep") == 0) {
        return recurse(n);
    }
    if (strcmp(argv[2], "calls") == 0) {
        char byte;
        while (read(STDIN_FILENO, &byte, 1) < 0 && errno == EINTR) {
        }
        return atomic_load(&returned) ? 9 : 0;
    }
    return level_one(one);
}
