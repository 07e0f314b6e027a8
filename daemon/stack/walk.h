/*
 * walk.h: the return addresses of a captured thread.
 */
#ifndef ROLL_DAEMON_STACK_WALK_H
#define ROLL_DAEMON_STACK_WALK_H

#include "daemon/stack/capture.h"
#include "daemon/stack/module.h"

#define ROLL_STACK_DEPTH 192u /* frames kept of one thread, the innermost */

struct roll_walk {
    size_t depth;
    bool cut;                      /* there are more frames, or the walk could not go on */
    bool exact[ROLL_STACK_DEPTH];  /* true: the thread was at this very address (innermost frame, signal frames); false:
                                      pc is behind a call */
    uint64_t pc[ROLL_STACK_DEPTH]; /* addresses, innermost first */
};

/* Walks with libunwind over the copy. Makes one address space, which is kept until roll_walk_fini. 0, NOMEM,
 * UNSUPPORTED. */
int roll_walk_libunwind(struct roll_target *target, struct roll_modules *modules, const struct roll_capture *capture,
                        struct roll_walk *out);
/* Walks with libdwfl over the same copy, for code whose unwind tables libunwind does not take. It is slower and opens
 * the files. 0, UNSUPPORTED. */
int roll_walk_dwfl(struct roll_target *target, pid_t tid, const struct roll_capture *capture, struct roll_walk *out);

/* Walks with libunwind, and, where that ends before the thread's first function, with libdwfl; the longer walk counts.
 * 0 or an error of the two. */
int roll_walk_thread(struct roll_target *target, struct roll_modules *modules, pid_t tid,
                     const struct roll_capture *capture, struct roll_walk *out);
void roll_walk_fini(void);

#endif
