/*
 * watchdog.c: ends the process with status 3 when the job has made no progress for the timeout.
 *
 * The timeout counts from the time at which the job itself begins to work: on a machine that is busy with other things
 * processes take long to start, and the first step waits for the last of them. Until the first step is done, the limit
 * is at least START_S. From then on the limit follows the measured pace: a step that takes PACE times as long as any
 * step before it, and twice as long as the whole start, stands still; a step that takes longer than the timeout may
 * merely be slow.
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
    double start_s, longest_s;       /* time of the start with the first step; of the longest step after it */
    uint32_t limit_s, moves;
    bool stop, running;
} dog = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint32_t whole(double seconds)
{
    return (uint32_t)(seconds < 86400 ? seconds + 1 : 86400);
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Sets the deadline of the present step. The caller holds the lock once the thread runs. */
static void set_deadline(void)
{
    clock_gettime(CLOCK_MONOTONIC, &dog.begin);
    uint32_t pace = larger(whole(PACE * dog.longest_s), whole(2 * dog.start_s));
    dog.limit_s = larger(dog.timeout_s, dog.moves < FIRST_DONE ? START_S : pace);
    dog.deadline = dog.begin;
    dog.deadline.tv_sec += dog.limit_s;
}

/* Notes how long the present step, or the start, took. */
static void measure(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double took = (double)(now.tv_sec - dog.begin.tv_sec) + 1e-9 * (double)(now.tv_nsec - dog.begin.tv_nsec);
    dog.moves++;
    if (dog.moves <= FIRST_DONE) {
        dog.start_s += took;
    } else if (took > dog.longest_s) {
        dog.longest_s = took;
    }
}

static void *watch(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&dog.lock);
    while (!dog.stop) {
        struct timespec deadline = dog.deadline, now;
        if (pthread_cond_timedwait(&dog.moved, &dog.lock, &deadline) != ETIMEDOUT || dog.stop) {
            continue;
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec > dog.deadline.tv_sec ||
            (now.tv_sec == dog.deadline.tv_sec && now.tv_nsec >= dog.deadline.tv_nsec)) {
            fprintf(stderr, "moe_train: rank %d: watchdog: step %u (%s): no progress for %u s\n", dog.rank, dog.step,
                    dog.what, dog.limit_s);
            _exit(3);
        }
    }
    pthread_mutex_unlock(&dog.lock);
    return NULL;
}

int watchdog_start(int32_t rank, uint32_t timeout_s)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&dog.moved, &attr);
    pthread_condattr_destroy(&attr);
    dog.rank = rank;
    dog.timeout_s = timeout_s;
    dog.what = "start-up";
    set_deadline();
    dog.running = pthread_create(&dog.thread, NULL, watch, NULL) == 0;
    return dog.running ? 0 : -1;
}

void watchdog_progress(const char *what, uint32_t step)
{
    pthread_mutex_lock(&dog.lock);
    dog.what = what;
    dog.step = step;
    measure();
    set_deadline();
    if (dog.moves == FIRST_DONE) {
        pthread_cond_signal(&dog.moved); /* the only time that a limit becomes shorter than the one it waits for */
    }
    pthread_mutex_unlock(&dog.lock);
}

void watchdog_stop(void)
{
    if (!dog.running) {
        return;
    }
    pthread_mutex_lock(&dog.lock);
    dog.stop = true;
    pthread_cond_signal(&dog.moved);
    pthread_mutex_unlock(&dog.lock);
    pthread_join(dog.thread, NULL);
    dog.running = false;
}
