/*
 * pystack.h: the Python frames of the thread that makes a call, read by that thread itself.
 *
 * While a thread is inside one of our wrappers it runs no Python, whether it holds the interpreter's lock or (as in
 * PyTorch) has let it go: its chain of frames stands still, and the frames keep their code objects alive. So plain
 * loads are enough: no lock, no call into Python, no system call. Where things are in the interpreter's memory comes
 * from trace/python_layout.h. The first use in a process follows this thread's chain with reads that cannot fault and
 * judges all that it finds; an interpreter that does not look like its version stays unread, and calls have native
 * frames alone. Asking Python by its own functions was rejected: they want its lock, which the thread may not have.
 */
#ifndef ROLL_INTERPOSER_RECORD_PYSTACK_H
#define ROLL_INTERPOSER_RECORD_PYSTACK_H

#include "interposer/bind/compat.h"
#include "trace/python_layout.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROLL_PYSTACK_DEPTH 32u /* frames, from the innermost, that tell call sites apart */

/* A frame: its code object, and where in it the frame stands (in the form of the version's layout). */
struct roll_pyframe {
    uintptr_t code;
    uint64_t at;
};

/* What reading frames relies on: constant once roll_pystack_ready is set, but for what it points to. */
struct roll_pystack {
    struct roll_py_layout layout;
    uintptr_t runtime, main; /* _PyRuntime, and its main interpreter: 0 there once Python has ended */
    uintptr_t code_type, text_type;
    roll_specific_t specific; /* NULL: the state is in the thread-local block */
    unsigned key;
    uintptr_t key_at; /* where _PyRuntime has the key, in the form of find_key */
    size_t tls_module, tls_offset;
};
extern struct roll_pystack roll_pystack __attribute__((visibility("hidden")));

/* Whether frames can be read in this process. */
extern _Atomic uint32_t roll_pystack_ready __attribute__((visibility("hidden")));

/* Mixes this thread's Python frames into a hash of its call site. For use in a process whose frames can be read. */
uint64_t roll_pystack_mix_frames(uint64_t hash) __attribute__((visibility("hidden")));

/* The same in any process; a thread without Python keeps its hash. No lock, no system call, no allocation. */
static inline uint64_t roll_pystack_mix(uint64_t hash)
{
    return atomic_load_explicit(&roll_pystack_ready, memory_order_acquire) != 0 ? roll_pystack_mix_frames(hash) : hash;
}

/* Looks for an interpreter, unless one was found or judged before. On a thread whose frames are of interest, because
 * the thread's own state is what is looked for. Under roll_lock. Keeps errno. */
void roll_pystack_find(void);

/* This thread's Python frames, innermost first; returns how many, at most `max`. 0: none. */
uint32_t roll_pystack_read(struct roll_pyframe *out, uint32_t max);

/* Reads memory of this process: false where there is none. The second way never fails, and is for what stands still. */
typedef bool roll_pystack_get(uintptr_t at, void *out, size_t bytes);
bool roll_pystack_peek(uintptr_t at, void *out, size_t bytes);
bool roll_pystack_load(uintptr_t at, void *out, size_t bytes);

/* Whether the interpreter that was found still runs: it has not begun to end. */
bool roll_pystack_runs(void);

/*
 * What a frame stands for. A thread reads its own frames with roll_pystack_load, those of another with
 * roll_pystack_peek. Texts are cut to what fits, the end of a path and the beginning of a name are kept; the result
 * says that all of it could be read. *line is 0 when the line table cannot be read or does not
 * reach that far. Under roll_lock.
 */
bool roll_pystack_describe(const struct roll_pyframe *frame, roll_pystack_get *get, char *file, size_t file_bytes,
                           char *function, size_t function_bytes, uint32_t *line);

/* A number for a frame that differs, as far as can be, from that of another code object which had this address before.
 */
uint64_t roll_pystack_identity(const struct roll_pyframe *frame);

#endif
