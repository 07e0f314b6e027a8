/*
 * capture.h: one thread's registers and stack, copied while it is stopped for some tens of microseconds.
 *
 * Unwinding happens later, on the copy: so how long a rank is held up does not depend on how hard its stack is to
 * unwind. Stopping the whole process for the length of a walk, as debuggers do, was rejected: a training process has
 * hundreds of threads.
 */
#ifndef ROLL_DAEMON_STACK_CAPTURE_H
#define ROLL_DAEMON_STACK_CAPTURE_H

#include "daemon/stack/target.h"

#include <sys/user.h>

#define ROLL_CAPTURE_BYTES (1024u * 1024u) /* bytes of a stack that are copied; memory above is read live */

struct roll_capture {
    struct user_regs_struct regs;
    uint64_t low;        /* address of stack[0] */
    size_t bytes;        /* copied */
    uint64_t stopped_ns; /* how long the thread was held up */
    bool blind; /* the thread was not stopped, because it cannot or must not be: only pc and sp are known, from /proc */
    uint8_t stack[ROLL_CAPTURE_BYTES];
};

/*
 * Captures one thread; `patience_ns` bounds the wait for it to stop. The thread is never left stopped or traced: it is
 * detached on every path, and the kernel detaches it when this process is killed in between. A thread that was stopped
 * before (SIGSTOP) stays stopped. 0; ROLL_E_NOTFOUND: the thread has ended; ROLL_E_DENIED with *error = errno;
 * ROLL_E_TIMEOUT: the thread neither stopped nor is asleep in a system call; ROLL_E_UNSUPPORTED on other machines than
 * x86-64.
 */
int roll_capture_thread(struct roll_target *target, const struct roll_thread_info *thread, uint64_t patience_ns,
                        struct roll_capture *out, int *error);

/* Lets go of threads that stopped too late for their capture. Returns how many such threads are left; while there are
 * any it must be called often. */
size_t roll_capture_release(void);

#endif
