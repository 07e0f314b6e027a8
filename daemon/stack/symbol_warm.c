/*
 * symbol_warm.c: a queue of addresses and the thread that looks them up.
 *
 * The first look into a program's debug information takes tens of milliseconds, and would otherwise delay the first
 * verdict, which is the one that people wait for. Call sites are defined when they are first used, mostly long before
 * anything is wrong. The thread only fills the memory of the files (symbol_file.c), under their locks: what a verdict
 * shows does not depend on who looked first, so it is the same live and afterwards. Printing without names when they
 * are late was rejected: the same trace would then give other bytes.
 */
#include "daemon/stack/symbol_warm.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#define WAITING 4096u /* most addresses that wait; a job has a few hundred call sites */

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
};

static void *work(void *argument)
{
    struct roll_symbol_warm *w = argument;
    struct roll_symbol_frame ignored[4];
    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        if (w->count == 0) {
            pthread_cond_wait(&w->more, &w->lock);
            continue;
        }
        struct item item = w->item[w->first];
        w->first = (w->first + 1) % WAITING;
        w->count--;
        pthread_mutex_unlock(&w->lock);
        roll_symbol_file_frames(item.file, item.address, ignored, 4);
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
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->more, NULL);
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
