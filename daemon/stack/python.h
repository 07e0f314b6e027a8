/*
 * python.h: the Python stacks of a process, read out of its memory: no signal, no stop, no GIL.
 */
#ifndef ROLL_DAEMON_STACK_PYTHON_H
#define ROLL_DAEMON_STACK_PYTHON_H

#include "daemon/stack/module.h"
#include "daemon/stack/text_pool.h"
#include "trace/python_layout.h"

#define ROLL_PY_THREADS_MAX 1024u
#define ROLL_PY_CHAIN_MAX   4096u /* frames followed */
#define ROLL_PY_INNER       128u  /* innermost frames that are kept of a deep stack */
#define ROLL_PY_OUTER       64u   /* outermost frames that are kept of a deep stack; frames between are only counted */

struct roll_py_frame {
    const char *function, *file; /* both in the text pool */
    unsigned line;               /* 0 = unknown */
    bool entry; /* first frame of a call into the interpreter loop: one native frame stands for it and for the frames it
                   calls */
};
struct roll_py_thread {
    uint64_t ident;       /* pthread_self() */
    pid_t tid;            /* 0 = not known */
    uint32_t left_out;    /* frames between outer and inner ones that were not kept, or beyond ROLL_PY_CHAIN_MAX */
    uint32_t left_out_at; /* frame, counted from the innermost, in front of which they were left out */
    bool torn; /* the stack changed while it was read, several times over: its frames may be of two moments */
    struct roll_py_frame *frame; /* owned; innermost first */
    size_t frames;
};
struct roll_py_stacks {
    char version[16];              /* "3.11" */
    struct roll_py_thread *thread; /* owned */
    size_t threads, room;
    bool more; /* there are more than ROLL_PY_THREADS_MAX */
};

/*
 * Reads the Python stacks of a process. 0; ROLL_E_NOTFOUND: no CPython in this process, or the interpreter has not
 * begun; VERSION: a CPython that is not known
 * (`why` names it); DENIED, with errno; CORRUPT: memory that does not look like this version's. `why` holds one line on
 * error.
 */
int roll_py_read(struct roll_target *target, struct roll_modules *modules, struct roll_text_pool *pool,
                 struct roll_py_stacks *out, char why[ROLL_STACK_WHY_BYTES]);
void roll_py_stacks_fini(struct roll_py_stacks *stacks);

#endif
