/*
 * agent_look.c: see agent_look.h.
 *
 * Each look has a thread: one for all was rejected, because behind a process that does not answer the others of the
 * node would not be looked at either. A thread that was left is counted until it ends; there are so many at most.
 */
#include "daemon/agent/agent_look.h"

#include "daemon/agent/agent_process.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

#define THREADS_MOST 8u
#define STACK_BYTES  ((size_t)256 * 1024) /* what reads the mappings has lines of 5 KiB on it */

struct roll_agent_look {
    struct roll_source_process process;
    json_t *environment, *libraries; /* owned; the thread's until `done` */
    bool is_it;                      /* likewise */
    atomic_bool done;                /* written by the thread (release), read by the agent (acquire), which then reads
                                        what the thread has written */
    atomic_uint holders;             /* thread and agent; who lets go last frees (acquire and release: it must see what
                                        the other has written) */
};

static atomic_uint threads; /* that are at work; a number alone, which orders nothing */

static void let_go(roll_agent_look_t *look)
{
    if (atomic_fetch_sub_explicit(&look->holders, 1, memory_order_acq_rel) == 1) {
        json_decref(look->environment);
        json_decref(look->libraries);
        free(look);
    }
}

static void *work(void *argument)
{
    roll_agent_look_t *look = argument;
    /* Before and behind: the number may go to another process in between. */
    look->is_it = roll_source_is_writer(&look->process);
    if (look->is_it) {
        look->environment = roll_process_environment(look->process.pid);
        look->libraries = roll_process_libraries(look->process.pid);
        look->is_it = roll_source_is_writer(&look->process);
    }
    atomic_store_explicit(&look->done, true, memory_order_release);
    let_go(look);
    atomic_fetch_sub_explicit(&threads, 1, memory_order_relaxed);
    return NULL;
}

static int start(roll_agent_look_t *look)
{
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, old;
    int err = pthread_attr_init(&attributes);
    if (err != 0) {
        return err;
    }
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals belong to the daemon's own threads */
    err = pthread_create(&thread, &attributes, work, look);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attributes);
    return err;
}

roll_agent_look_t *roll_agent_look_new(const struct roll_source_process *process, const char **why)
{
    *why = "too many processes of its node do not answer";
    if (atomic_load_explicit(&threads, memory_order_relaxed) >= THREADS_MOST) {
        return NULL;
    }
    *why = "its agent has no memory or thread to look at its process";
    roll_agent_look_t *look = calloc(1, sizeof(*look));
    if (!look) {
        return NULL;
    }
    look->process = *process;
    atomic_init(&look->holders, 2);
    atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed);
    if (start(look) != 0) {
        atomic_fetch_sub_explicit(&threads, 1, memory_order_relaxed);
        free(look);
        return NULL;
    }
    return look;
}

bool roll_agent_look_done(roll_agent_look_t *look, json_t **environment, json_t **libraries, const char **why)
{
    *environment = *libraries = NULL;
    *why = NULL;
    if (!atomic_load_explicit(&look->done, memory_order_acquire)) {
        return false;
    }
    if (look->is_it) {
        *environment = json_incref(look->environment);
        *libraries = json_incref(look->libraries);
    } else {
        *why = "the process that its ring names is not the one that writes it, or has ended";
    }
    return true;
}

void roll_agent_look_leave(roll_agent_look_t **look)
{
    if (*look) {
        let_go(*look);
        *look = NULL;
    }
}
