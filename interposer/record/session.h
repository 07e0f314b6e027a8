/*
 * session.h: the life of recording in one process: nothing until the first NCCL call that matters, then a ring, a
 * control page and perhaps an agent; off for good after fork, or when the ring cannot be had.
 */
#ifndef ROLL_INTERPOSER_RECORD_SESSION_H
#define ROLL_INTERPOSER_RECORD_SESSION_H

#include "interposer/wrap/api.h"
#include "trace/control.h"
#include "trace/ident.h"
#include "trace/ring.h"

#include <pthread.h>
#include <stdbool.h>

enum roll_session_state {
    ROLL_SESSION_NONE = 0, /* also what a forked child sees: the page is wiped on fork */
    ROLL_SESSION_ACTIVE = 1,
};

/* What tells of steps, the worst first: two ways to count must not meet, so what is worse than what has told counts no
 * more. Below moe_core (has_moe). rollcall.torch has the numbers, too. */
enum roll_step_by {
    ROLL_STEP_BY_PROFILER = 1,  /* a profiler's count, from where it was started */
    ROLL_STEP_BY_NAME = 2,      /* how often a range of one name was entered */
    ROLL_STEP_BY_OPTIMIZER = 3, /* steps of an optimizer */
    ROLL_STEP_BY_MARK = 4,      /* the number in a range's name */
    ROLL_STEP_BY_JOB = 5,       /* the job called rollcall.torch.step */
};

struct roll_session {
    _Atomic uint32_t state;
    struct roll_ring ring;
    struct roll_control *control; /* NULL: there is no control page */
    struct roll_compare *compare; /* NULL: calls that differ are not refused; see failfast.h */
    _Atomic uint32_t groups;      /* explicit groups so far */
    /* The last MoE event of the process, for threads that have had none of their own (an autograd thread). */
    _Atomic uint64_t moe;       /* step << 32 | layer << 16 | microbatch */
    _Atomic uint32_t moe_phase; /* phase + 1; 0 = no event yet */
    _Atomic bool has_moe;       /* moe_core tells of steps: what else tells of steps counts them in its own way */
    _Atomic uint32_t step_by;   /* enum roll_step_by: the best of what has told of a step */
};

/* Never NULL. A mapping of its own that the kernel wipes in a forked child. */
extern struct roll_session *roll_session __attribute__((visibility("hidden")));

/* Guards the slow paths: new communicators, call sites, streams. It is never taken on the hot path, and never while
 * NCCL runs. */
extern pthread_mutex_t roll_lock __attribute__((visibility("hidden")));

/* The nop build is the same library without recording. It measures what the wrappers alone cost. */
#ifdef ROLL_NOP
#define ROLL_RECORDING false
#else
#define ROLL_RECORDING true
#endif

static inline bool roll_active(void)
{
    return ROLL_RECORDING &&
           ROLL_LIKELY(atomic_load_explicit(&roll_session->state, memory_order_acquire) == ROLL_SESSION_ACTIVE);
}

/* Starts recording, unless that has been tried before. Keeps errno. Any thread. */
void roll_session_start(void);

/* Memory that lives as long as the process, zeroed; NULL when there is none. Under roll_lock. Not malloc: the
 * application may have replaced it, or be inside it. */
void *roll_session_alloc(size_t bytes);

/*
 * Prints the one line: "rollcall: <what>; the job runs on without it", once per process, not at all with
 * ROLLCALL_QUIET=1. `what` is a printf format. Keeps errno.
 */
void roll_say(const char *what, ...) __attribute__((format(printf, 1, 2)));

/* Writes a whole line to standard error where that is possible at once; not with ROLLCALL_QUIET=1. Keeps errno. */
void roll_tell(const char *line, size_t bytes);

/* A boolean of the environment: "1" is true, everything else false. */
bool roll_env_true(const char *name);

/* Starts the agent of dir, connected to endpoint, unless an agent holds the lock there. Leaves the application no
 * zombie and no SIGCHLD. Errors: NOTFOUND, IO. */
int roll_agent_start(const char *dir, const char *endpoint);

#endif
