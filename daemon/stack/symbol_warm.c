/*
 * symbol_warm.c: a queue of addresses and the thread that looks them up.
 *
 * The first look into a program's debug information takes tens of milliseconds, and would otherwise delay the first
 * verdict, which is the one that people wait for. Call sites are defined when they are first used, mostly long before
 * anything is wrong. The thread only fills the memory of the files (symbol_file.c), under their locks: what a verdict
 * shows does not depend on who looked first, so it is the same live and afterwards. Printing without names when they
 * are late was rejected: the same trace would then give other bytes.
 *
 * The same thread closes the files when nothing has been asked for a while: a job defines its call sites when it
 * begins, and runs for weeks.
 */
#include "daemon/stack/symbol_warm.h"

#include "daemon/base/array.h"

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#define WAITING 4096u /* most addresses that wait; a job has a few hundred call sites */
#define REST_S  5     /* to open a program again takes tens of ms of this thread */

struct item {
    struct roll_symbol_file *file;
    uint64_t address;
};

struct roll_symbol_warm {
    pthread_t thread;
    pthread_mutex_t lock; /* guards the members below */
    pthread_cond_t more;
    bool stop;
    unsigned first, count; /* ends of a circular buffer */
    struct item item[WAITING];
    /* Of the thread alone: the files that it has looked into since it last closed all. */
    struct roll_symbol_file **open;
    size_t open_used, open_room;
};

static void note_open(struct roll_symbol_warm *w, struct roll_symbol_file *file)
{
    for (size_t i = 0; i < w->open_used; i++) {
        if (w->open[i] == file) {
            return;
        }
    }
    if (ROLL_GROW(w->open, w->open_room, w->open_used + 1) == 0) {
        w->open[w->open_used++] = file;
    }
}

/* Waits for something to do; where nothing comes, the files rest. Under the lock, which is given back meanwhile. */
static void wait_for_more(struct roll_symbol_warm *w)
{
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += REST_S;
    if (w->open_used == 0) {
        pthread_cond_wait(&w->more, &w->lock);
    } else if (pthread_cond_timedwait(&w->more, &w->lock, &end) == ETIMEDOUT) {
        pthread_mutex_unlock(&w->lock);
        while (w->open_used > 0) {
            roll_symbol_file_rest(w->open[--w->open_used]);
        }
        malloc_trim(0); /* else what was read stays with the process, between what is still used */
        pthread_mutex_lock(&w->lock);
    }
}

static void *work(void *argument)
{
    struct roll_symbol_warm *w = argument;
    struct roll_symbol_frame ignored[4];
    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        if (w->count == 0) {
            wait_for_more(w);
            continue;
        }
        struct item item = w->item[w->first];
        w->first = (w->first + 1) % WAITING;
        w->count--;
        pthread_mutex_unlock(&w->lock);
        roll_symbol_file_frames(item.file, item.address, ignored, 4);
        note_open(w, item.file);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

roll_symbol_warm_t *roll_symbol_warm_new(void)
{
    roll_symbol_warm_t *w = calloc(1, sizeof(*w));
    if (!w) {
        return NULL;
    }
    pthread_condattr_t by;
    pthread_condattr_init(&by);
    pthread_condattr_setclock(&by, CLOCK_MONOTONIC); /* a clock that is set must not keep files open */
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->more, &by);
    pthread_condattr_destroy(&by);
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals belong to the daemon's own threads */
    int err = pthread_create(&w->thread, NULL, work, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (err) {
        pthread_cond_destroy(&w->more);
        pthread_mutex_destroy(&w->lock);
        free(w);
        return NULL;
    }
    return w;
}

void roll_symbol_warm_destroy(roll_symbol_warm_t **warm)
{
    roll_symbol_warm_t *w = *warm;
    if (!w) {
        return;
    }
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->more);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->more);
    pthread_mutex_destroy(&w->lock);
    free(w->open);
    free(w);
    *warm = NULL;
}

void roll_symbol_warm_add(roll_symbol_warm_t *w, struct roll_symbol_file *file, uint64_t address)
{
    pthread_mutex_lock(&w->lock);
    if (w->count < WAITING) {
        w->item[(w->first + w->count++) % WAITING] = (struct item){file, address};
        pthread_cond_signal(&w->more);
    }
    pthread_mutex_unlock(&w->lock);
}
