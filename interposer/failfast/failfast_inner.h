/*
 * failfast_inner.h: what the parts of fail-fast share: failfast.c (a call), failfast_group.c (a group),
 * failfast_judge.c (what a difference proves).
 */
#ifndef ROLL_INTERPOSER_FAILFAST_INNER_H
#define ROLL_INTERPOSER_FAILFAST_INNER_H

#include "interposer/failfast/failfast.h"
#include "interposer/failfast/failfast_say.h"
#include "interposer/wrap/call.h"
#include "trace/compare.h"
#include "trace/signature.h"

#include <errno.h>

#define ROLL_GROUP_CALLS 512u /* compared in one group; a larger one is not compared */

/* A collective that is being compared. */
struct roll_group_call {
    struct roll_comm *comm;
    uint64_t signature;
    uintptr_t pc;
    uint32_t moment;
    struct roll_compare_call call;
};

/* My calls on one communicator that are compared together: n = 1 for a call of its own. Borrowed. */
struct roll_run {
    const struct roll_group_call *call;
    const uint16_t *order;
    uint32_t n;
};

/* --- failfast_judge.c --- */

uint64_t roll_failfast_signature(const struct roll_compare_call *call);
/* NCCL makes sends and receives of these. */
bool roll_failfast_lowered(uint8_t op);

/*
 * Whether number *at of my run differs, by what is published at `cell`, in a way that proves a mismatch; then *at and
 * *theirs are the calls to show. Waits some milliseconds: a difference is rare, and the job about to hang.
 */
bool roll_failfast_differs(const struct roll_run *mine, uint32_t *at, struct roll_compare_cell *cell,
                           struct roll_compare_call *theirs);

/* --- failfast.c --- */

/* The communicator that a refusal in this thread is about, between the refusal and what follows from it. */
extern __thread struct roll_comm *roll_failfast_culprit
    __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* A call has been made (by = 1), or was not made after all (UINT32_MAX). */
void roll_failfast_passed(struct roll_comm *comm, uint8_t op, uint8_t flags, uint32_t by);
/* The number of a call that was not made is given to the next one, and its line (under `key`) is taken away. */
void roll_failfast_undo(struct roll_comm *comm, uint64_t key, uint32_t seq);
/* Whether this rank's numbers are whole: a call that a signal handler made in the middle of ours took none. */
bool roll_failfast_numbered(void);

/* --- failfast_group.c --- */

/* Keeps a call for the end of this thread's group; `refused`: the group will be refused. */
void roll_failfast_keep(struct roll_thread *t, struct roll_comm *comm, const struct roll_compare_call *call,
                        uintptr_t pc, bool refused);

#endif
