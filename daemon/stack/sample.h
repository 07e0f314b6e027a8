/*
 * sample.h: the threads of one process, looked at several times.
 */
#ifndef ROLL_DAEMON_STACK_SAMPLE_H
#define ROLL_DAEMON_STACK_SAMPLE_H

#include "daemon/stack/names.h"
#include "daemon/stack/python.h"
#include "daemon/stack/walk.h"

#include <jansson.h>

#define ROLL_STACK_SAMPLES_MAX 16u

struct roll_stack_wish {
    unsigned samples, interval_ms;
    bool native, python;
    const char *dir;    /* directory of the *.pystacks announcements; NULL = none */
    unsigned budget_ms; /* time for one look at one process */
    unsigned thread_ms; /* time for one thread to stop */
};

/* The result of one look at one thread. */
struct roll_thread_sample {
    bool native, python;
    bool cut;
    uint32_t depth;
    uint32_t *place;          /* innermost first; owned */
    struct roll_py_thread py; /* owned */
};

struct roll_sampled_thread {
    struct roll_thread_info info;
    uint64_t ident; /* of a Python thread whose tid is not known */
    struct roll_thread_sample sample[ROLL_STACK_SAMPLES_MAX];
    char why[96]; /* why a look gave no native stack */
};

struct roll_sampled {
    pid_t pid;
    struct roll_sampled_thread *thread;
    size_t threads, room;
    size_t left_out; /* most threads that one look left out */
    char native_why[ROLL_STACK_WHY_BYTES],
        python_why[ROLL_STACK_WHY_BYTES]; /* why stacks are missing; "" = nothing was refused */
    char python_version[16];
    const char *python_by; /* "reader", "signal", "py-spy"; NULL = none */
    uint64_t taken_ns;     /* wall clock of the first look */
    uint64_t stopped_ns;   /* longest time that one thread was held up */
    bool gone;
};

/* Takes look number `i` at the process. Everything that goes wrong is noted in `s`. 0 or NOMEM. */
int roll_sample_look(struct roll_sampled *s, const struct roll_stack_wish *wish, unsigned i, struct roll_names *names,
                     struct roll_text_pool *pool);
void roll_sample_fini(struct roll_sampled *s);

/* rollcall.stack/1 of one process, names and all; owned. NULL when out of memory. */
json_t *roll_sample_json(const struct roll_sampled *s, const struct roll_stack_wish *wish, struct roll_names *names);

#endif
