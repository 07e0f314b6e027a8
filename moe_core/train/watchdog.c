/*
 * watchdog.c: ends the process with status 3 when nothing moved for the timeout.
 *
 * A thread of its own, because the main thread is the one that is stuck (in cudaStreamSynchronize). It says what
 * frameworks say: which step, and how long; not who or why. An alarm signal was rejected: the main thread may be
 * inside a library call that restarts.
 */
#include "moe_core/train/watchdog.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static struct {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    int32_t rank;
    uint32_t timeout_s, step;
    const char *what;
    struct timespec deadline;
    bool stop, running;
} dog = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void set_deadline(void)
{
    clock_gettime(CLOCK_MONOTONIC, &dog.deadline);
    dog.deadline.tv_sec += dog.timeout_s;
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
                    dog.what, dog.timeout_s);
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
    set_deadline();
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
