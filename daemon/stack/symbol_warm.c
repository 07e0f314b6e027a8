/*
 * symbol_warm.c: a queue of addresses and the thread that looks them up, one for all tables of the process.
 *
 * The first look into a program's debug information takes tens of milliseconds, and would otherwise delay the first
 * verdict, which is the one that people wait for. Call sites are defined when they are first used, mostly long before
 * anything is wrong. The thread only fills the memory of the files (symbol_file.c), under their locks: what a verdict
 * shows does not depend on who looked first, so it is the same live and afterwards. Printing without names when they
 * are late was rejected: the same trace would then give other bytes.
 *
 * The same thread closes the files when nothing has been asked for a while: a job defines its call sites when it
 * begins, and runs for weeks. What it has read goes back to the system then, where that is much: a thread for each
 * table was rejected, because each would give back the memory of the whole process, for which all others wait.
 */
#include "daemon/stack/symbol_warm.h"

#include "daemon/base/array.h"
#include "daemon/base/memory.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#define WAITING 4096u /* most addresses that wait; a job has a few hundred call sites */
#define SHARE   3072u /* of one table: a job that asks for more leaves room for the others */
#define REST_S  5     /* to open a program again takes tens of ms of this thread */

/* Who asks. What it has asked for is taken out when it goes, with its files. */
struct roll_symbol_warm {
    unsigned waiting; /* addresses of its that wait */
};

struct item {
    roll_symbol_warm_t *owner;     /* borrowed */
    struct roll_symbol_file *file; /* borrowed from it */
    uint64_t address;
};

/* The owners, and the thread, which runs while there are any. Held while the thread is started and joined. */
static pthread_mutex_t life = PTHREAD_MUTEX_INITIALIZER;
static unsigned owners;
static pthread_t thread;

/* The queue; `lock` guards all of it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more;                            /* something was asked for, or the thread is to end */
static pthread_cond_t done = PTHREAD_COND_INITIALIZER; /* a look, or a rest, is over */
static bool stop, rests;                               /* rests: the thread closes all files at this moment */
static unsigned first, count;                          /* ends of a circular buffer */
static struct item queue[WAITING];
static const roll_symbol_warm_t *at_work; /* whose address is being looked up; NULL: nobody's */
static struct item *opened;               /* the files that were looked into since the last rest */
static size_t opened_used, opened_room;

static void note_open(const struct item *item)
{
    for (size_t i = 0; i < opened_used; i++) {
        if (opened[i].file == item->file) {
            return;
        }
    }
    if (ROLL_GROW(opened, opened_room, opened_used + 1) == 0) {
        opened[opened_used++] = *item;
    }
}

/* Closes the files. Under the lock, which is given back meanwhile: no owner goes until that is over. */
static void rest(void)
{
    rests = true;
    pthread_mutex_unlock(&lock);
    while (opened_used > 0) { /* of this thread alone while it rests */
        roll_symbol_file_rest(opened[--opened_used].file);
    }
    pthread_mutex_lock(&lock);
    rests = false;
    pthread_cond_broadcast(&done);
    pthread_mutex_unlock(&lock);
    roll_memory_trim(); /* else what was read stays with the process, between what is still used */
    pthread_mutex_lock(&lock);
}

/* Waits for something to do; where nothing comes, the files rest. Under the lock, which is given back meanwhile. */
static void wait_for_more(void)
{
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += REST_S;
    if (opened_used == 0) {
        pthread_cond_wait(&more, &lock);
    } else if (pthread_cond_timedwait(&more, &lock, &end) == ETIMEDOUT && count == 0 && !stop) {
        rest();
    }
}

static void *work(void *argument)
{
    struct roll_symbol_frame ignored[4];
    (void)argument;
    pthread_mutex_lock(&lock);
    while (!stop) {
        if (count == 0) {
            wait_for_more();
            continue;
        }
        struct item item = queue[first];
        first = (first + 1) % WAITING;
        count--;
        item.owner->waiting--;
        at_work = item.owner;
        pthread_mutex_unlock(&lock);
        roll_symbol_file_frames(item.file, item.address, ignored, 4);
        pthread_mutex_lock(&lock);
        note_open(&item);
        at_work = NULL;
        pthread_cond_broadcast(&done);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* Under `life`. */
static int start(void)
{
    pthread_condattr_t by;
    pthread_condattr_init(&by);
    pthread_condattr_setclock(&by, CLOCK_MONOTONIC); /* a clock that is set must not keep files open */
    pthread_cond_init(&more, &by);
    pthread_condattr_destroy(&by);
    stop = false;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals belong to the daemon's own threads */
    int err = pthread_create(&thread, NULL, work, NULL);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (err) {
        pthread_cond_destroy(&more);
    }
    return err;
}

/* Under `life`. Nobody owns anything any more. */
static void end(void)
{
    pthread_mutex_lock(&lock);
    stop = true;
    pthread_cond_signal(&more);
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
    pthread_cond_destroy(&more);
    free(opened);
    opened = NULL;
    opened_used = opened_room = 0;
}

roll_symbol_warm_t *roll_symbol_warm_new(void)
{
    roll_symbol_warm_t *w = calloc(1, sizeof(*w));
    if (!w) {
        return NULL;
    }
    pthread_mutex_lock(&life);
    if (owners == 0 && start() != 0) {
        free(w);
        w = NULL;
    }
    owners += w != NULL;
    pthread_mutex_unlock(&life);
    return w;
}

/* Takes out what this one has asked for. */
static void leave(const roll_symbol_warm_t *w)
{
    unsigned keep = 0;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < count; i++) {
        struct item item = queue[(first + i) % WAITING];
        if (item.owner != w) {
            queue[(first + keep++) % WAITING] = item;
        }
    }
    count = keep;
    while (at_work == w || rests) {
        pthread_cond_wait(&done, &lock);
    }
    size_t left = 0;
    for (size_t i = 0; i < opened_used; i++) {
        if (opened[i].owner != w) {
            opened[left++] = opened[i];
        }
    }
    opened_used = left;
    pthread_mutex_unlock(&lock);
}

void roll_symbol_warm_destroy(roll_symbol_warm_t **warm)
{
    roll_symbol_warm_t *w = *warm;
    if (!w) {
        return;
    }
    leave(w);
    pthread_mutex_lock(&life);
    if (--owners == 0) {
        end();
    }
    pthread_mutex_unlock(&life);
    free(w);
    *warm = NULL;
}

void roll_symbol_warm_add(roll_symbol_warm_t *w, struct roll_symbol_file *file, uint64_t address)
{
    pthread_mutex_lock(&lock);
    if (count < WAITING && w->waiting < SHARE) {
        w->waiting++;
        queue[(first + count++) % WAITING] = (struct item){w, file, address};
        pthread_cond_signal(&more);
    }
    pthread_mutex_unlock(&lock);
}
