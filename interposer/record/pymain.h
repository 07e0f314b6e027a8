/*
 * pymain.h: where the process's main thread stands in Python, as another thread sees it that has no line of the user's
 * itself: autograd's thread, which makes the calls of a backward pass while the main thread waits for it.
 *
 * Another thread's frames do not stand still, so nothing here is read with plain loads: one system call
 * (process_vm_readv, which cannot fault) reads all of a stand that is known, and a stand counts only when two readings
 * of it agree. A stand that the agent reads when a verdict wants it was rejected: a call returns long before its
 * verdict, and by then the main thread waits somewhere else.
 */
#ifndef ROLL_INTERPOSER_RECORD_PYMAIN_H
#define ROLL_INTERPOSER_RECORD_PYMAIN_H

#include "interposer/record/pystack.h"

/* Frames of the main thread, innermost first; what they lead to may go away at any time. */
struct roll_pymain {
    uint32_t frames;
    uintptr_t head, inner; /* what the thread's state holds, and the innermost frame */
    struct roll_pymain_frame {
        uintptr_t frame;
        struct roll_pyframe at;
        bool shim;                   /* stands for C code */
        uint64_t file, lines, first; /* of the code object: another one at its address differs in some of them */
    } of[ROLL_PYSTACK_DEPTH];
};

/* Whether this thread is another one than the main thread, and the main thread's frames can be read. Under roll_lock.
 */
bool roll_pymain_is_other(void);

/* Reads where the main thread stands, and returns a number for it, which is not 0. 0: it moves, runs no Python, or
 * cannot be read. For use after roll_pymain_is_other was true. Keeps errno. */
uint64_t roll_pymain_read(struct roll_pymain *out);

/* Whether the main thread still stands there. */
bool roll_pymain_stands(const struct roll_pymain *stand);

#endif
