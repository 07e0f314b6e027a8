/*
 * program_threads.c: a process whose stacks are known.
 *
 * usage: stack_threads COUNTER MODE [N]. COUNTER is a file of 8 bytes, mapped: a thread of its own counts in it for as long as the process
 * lives, so whoever looks can tell that it goes on. MODE: stuck (main thread three frames deep in a wait, N threads in another),
 * moving (a thread that alternates between two functions), exit (ends after N milliseconds), deep (recursion N deep), epoll (a wait that
 * must not end with EINTR: it exits with 9 then).
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
    puts("ready");
    fflush(stdout);
    if (strcmp(argv[2], "exit") == 0) {
        nap(n);
        return 0;
    }
    if (strcmp(argv[2], "deep") == 0) {
        return recurse(n);
    }
    if (strcmp(argv[2], "epoll") == 0) {
        struct epoll_event event;
        int rc = epoll_wait(epoll_create1(0), &event, 1, n);
        return rc < 0 && errno == EINTR ? 9 : 0;
    }
    return level_one(one);
}
