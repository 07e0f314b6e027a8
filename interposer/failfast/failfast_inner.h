/*
 * failfast_inner.h: declarations that the parts of fail-fast share: failfast.c (a call), failfast_group.c (a group),
 * failfast_judge.c (what a difference proves).
 */
#ifndef ROLL_INTERPOSER_FAILFAST_FAILFAST_INNER_H
#define ROLL_INTERPOSER_FAILFAST_FAILFAST_INNER_H

#include "interposer/failfast/failfast.h"
#include "interposer/failfast/failfast_say.h"
#include "interposer/wrap/call.h"
#include "trace/compare.h"
#include "trace/signature.h"

#include <errno.h>

#define ROLL_GROUP_CALLS 512u /* most calls of a group that is compared; a larger group is not */

/* A collective that is being compared. */
struct roll_group_call {
    struct roll_comm *comm;
    uint64_t signature;
    uintptr_t pc;
    uint32_t moment;
    struct roll_compare_call call;
};

/* Calls of this rank on one communicator that are compared together; n = 1 for a call outside a group. Borrowed. */
struct roll_run {
    const struct roll_group_call *call;
    const uint16_t *order;
    uint32_t n;
};

/* failfast_judge.c */

uint64_t roll_failfast_signature(const struct roll_compare_call *call);
/* Whether NCCL makes sends and receives of this operation. */
bool roll_failfast_lowered(uint8_t op);

/*
 * Whether call number *at of `mine` differs from the call published at `cell` in a way that proves a mismatch. Then *at
 * and *theirs become the calls to show. Waits some milliseconds: a difference is rare, and the job is about to hang.
 */
bool roll_failfast_differs(const struct roll_run *mine, uint32_t *at, struct roll_compare_cell *cell,
                           struct roll_compare_call *theirs);

/* failfast.c */

/* The communicator of a refusal in this thread, from the refusal until roll_failfast_refused. */
extern __thread struct roll_comm *roll_failfast_culprit
    __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* Counts a call that has been made (by = 1), or takes back one that was not made after all (UINT32_MAX). */
void roll_failfast_passed(struct roll_comm *comm, uint8_t op, uint8_t flags, uint32_t by);
/* Gives the number of a call that was not made to the next call, and frees its line (under `key`). */
void roll_failfast_undo(struct roll_comm *comm, uint64_t key, uint32_t seq);
/* Whether this rank's numbers count all its calls. A call that a signal handler made in the middle of another one took
 * no number. */
bool roll_failfast_numbered(void);

/* failfast_group.c */

/* Keeps a call for the end of this thread's group. `refused`: the whole group will be refused. */
void roll_failfast_keep(struct roll_thread *t, struct roll_comm *comm, const struct roll_compare_call *call,
                        uintptr_t pc, bool refused);

#endif
