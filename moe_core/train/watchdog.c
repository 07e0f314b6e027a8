/*
 * watchdog.c: ends the process with status 3 when the job has made no progress for the timeout.
 *
 * The timeout counts from the time at which the job itself begins to work: on a machine that is busy with other things
 * processes take long to start, and each waits for the last of them. Until they have met, the limit is at least
 * START_S. From then on the limit follows the measured pace: the first step stands still when it takes PACE times as
 * long as the start, or START_S; a later one when it takes PACE times as long as any before it, and twice as long as
 * the start with the first step. A step that takes longer than the timeout may merely be slow. To wait for START_S in
 * the first step as well was rejected: a rank whose peers have failed there stood for two minutes, whatever the
 * timeout.
 *
 * The watchdog is a thread of its own, because the main thread is the one that is stuck (in cudaStreamSynchronize). Its
 * message says what the messages of frameworks say: which step, and how long; not which rank is to blame or why. An
 * alarm signal was rejected: the main thread may be inside a library call that restarts.
 */
#include "moe_core/train/watchdog.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { START_S = WATCHDOG_START_S, PACE = 20 };
enum { FIRST_DONE = 2 }; /* the second move: first the start, then the first step */

static struct {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    int32_t rank;
    uint32_t timeout_s, step;
    const char *what;
    struct timespec begin, deadline; /* of the present step or start */
    double start_s, longest_s;       /* time of the start, then with the first step; of the longest step after it */
    uint32_t limit_s, moves;
    bool stop, running;
} watchdog = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint32_t whole(double seconds)
{
    return (uint32_t)(seconds < 86400 ? seconds + 1 : 86400);
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

uint32_t watchdog_limit_s(uint32_t timeout_s, uint32_t moves, double start_s, double longest_s)
{
    uint32_t first = PACE * whole(start_s), later = larger(whole(PACE * longest_s), whole(2 * start_s));
    uint32_t pace = moves == 0 || (moves < FIRST_DONE && first > START_S) ? START_S
                    : moves < FIRST_DONE                                  ? first
                                                                          : later;
    return larger(timeout_s, pace);
}

/* Sets the deadline of the present step. The caller holds the lock once the thread runs. */
static void set_deadline(void)
{
    clock_gettime(CLOCK_MONOTONIC, &watchdog.begin);
    watchdog.limit_s = watchdog_limit_s(watchdog.timeout_s, watchdog.moves, watchdog.start_s, watchdog.longest_s);
    watchdog.deadline = watchdog.begin;
    watchdog.deadline.tv_sec += watchdog.limit_s;
}

/* Notes how long the present step, or the start, took. */
static void measure(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double took = (double)(now.tv_sec - watchdog.begin.tv_sec) + 1e-9 * (double)(now.tv_nsec - watchdog.begin.tv_nsec);
    watchdog.moves++;
    if (watchdog.moves <= FIRST_DONE) {
        watchdog.start_s += took;
    } else if (took > watchdog.longest_s) {
        watchdog.longest_s = took;
    }
}

static void *watch(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&watchdog.lock);
    while (!watchdog.stop) {
        struct timespec deadline = watchdog.deadline, now;
        if (pthread_cond_timedwait(&watchdog.moved, &watchdog.lock, &deadline) != ETIMEDOUT || watchdog.stop) {
            continue;
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec > watchdog.deadline.tv_sec ||
            (now.tv_sec == watchdog.deadline.tv_sec && now.tv_nsec >= watchdog.deadline.tv_nsec)) {
            fprintf(stderr, "moe_train: rank %d: watchdog: step %u (%s): no progress for %u s\n", watchdog.rank,
                    watchdog.step, watchdog.what, watchdog.limit_s);
            _exit(3);
        }
    }
    pthread_mutex_unlock(&watchdog.lock);
    return NULL;
}

int watchdog_start(int32_t rank, uint32_t timeout_s)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&watchdog.moved, &attr);
    pthread_condattr_destroy(&attr);
    watchdog.rank = rank;
    watchdog.timeout_s = timeout_s;
    watchdog.what = "start-up";
    set_deadline();
    watchdog.running = pthread_create(&watchdog.thread, NULL, watch, NULL) == 0;
    return watchdog.running ? 0 : -1;
}

void watchdog_progress(const char *what, uint32_t step)
{
    pthread_mutex_lock(&watchdog.lock);
    watchdog.what = what;
    watchdog.step = step;
    measure();
    set_deadline();
    if (watchdog.moves <= FIRST_DONE) {
        pthread_cond_signal(&watchdog.moved); /* only then a limit may be shorter than the one that is waited for */
    }
    pthread_mutex_unlock(&watchdog.lock);
}

void watchdog_stop(void)
{
    if (!watchdog.running) {
        return;
    }
    pthread_mutex_lock(&watchdog.lock);
    watchdog.stop = true;
    pthread_cond_signal(&watchdog.moved);
    pthread_mutex_unlock(&watchdog.lock);
    pthread_join(watchdog.thread, NULL);
    watchdog.running = false;
}
