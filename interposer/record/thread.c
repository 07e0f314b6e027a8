/*
 * thread.c: a thread's first recorded call. Thread ids are never given back. They have 16 bits: in a process with more
 * than 65,535 threads that call NCCL the later threads share the last id.
 */
#include "interposer/record/thread.h"

#include "interposer/bind/compat.h"
#include "interposer/record/pystack.h"
#include "interposer/record/session.h"
#include "trace/def.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

__thread struct roll_thread roll_thread_self;

static _Atomic uint32_t threads;

void roll_thread_attach(struct roll_thread *t)
{
    int saved = errno;
    uint32_t id = atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed) + 1;
    t->id = (uint16_t)(id < UINT16_MAX ? id : UINT16_MAX);
    if (!roll_stack_bounds(&t->stack_low, &t->stack_high)) {
        t->stack_low = 0;
        t->stack_high = 0;
    }
    char name[17] = "";
    prctl(PR_GET_NAME, name, 0, 0, 0);
    struct roll_def_thread def = {.tid = (uint32_t)syscall(SYS_gettid), .name_bytes = (uint32_t)strnlen(name, 16)};
    if (id <= UINT16_MAX) {
        roll_def_append(&roll_session->ring, ROLL_DEF_THREAD, t->id, &def, sizeof(def), name, def.name_bytes);
    }
    /* A thread whose calls all stand at known call sites asks for none, and so would never look for its Python. */
    pthread_mutex_lock(&roll_lock);
    roll_pystack_find();
    pthread_mutex_unlock(&roll_lock);
    errno = saved;
}
