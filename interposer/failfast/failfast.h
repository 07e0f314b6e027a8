/*
 * failfast.h: refusing a call that does not fit what other ranks of this node have called at the same place, where the
 * user wants that (ROLLCALL_ON_MISMATCH=error or abort). docs/INTERPOSER.md says what the application sees.
 */
#ifndef ROLL_INTERPOSER_FAILFAST_H
#define ROLL_INTERPOSER_FAILFAST_H

#include "interposer/record/comms.h"
#include "interposer/record/thread.h"
#include "trace/ident.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct roll_fill;
struct roll_call;
struct roll_compare;

/* Reads the wish from the environment and maps the page; NULL: calls are only reported. Under roll_lock. */
struct roll_compare *roll_failfast_start(const char *dir, const struct roll_ident *ident);

/*
 * Compares a call that is about to be made; inside a group it is kept for the group's end. True: it must not be made.
 * `handle` as the application gave it; site and pc say where it is made. No lock, no system call unless it differs.
 */
bool roll_failfast_call(struct roll_thread *t, struct roll_comm *comm, const struct roll_fill *fill, uint16_t site,
                        uintptr_t pc);

/* NCCL has returned an error for a call that had been compared: it takes no number, and nobody is compared with it. */
void roll_failfast_failed(const struct roll_call *call);

/* A graph is launched that holds collectives of the communicator; hash: of their signatures. */
void roll_failfast_launched(struct roll_comm *comm, uint64_t hash);

/* Whether these unique ids may be those of other communicators too: NCCL makes them of NCCL_COMM_ID alone where that is
 * set. Pure. */
bool roll_failfast_common_id(const void *ids, size_t bytes);
/* A number for a set of ranks, whatever their order. Borrows; `ranks` may be NULL. Pure. */
uint64_t roll_failfast_set_of(const int *ranks, int n);

/* A call or a group has been refused and its record is closed: aborts the communicator where that is wanted. */
ncclResult_t roll_failfast_refused(struct roll_thread *t, uintptr_t pc, const uintptr_t *frame);

/* failfast_group.c: the outermost group begins (of the NCCL of this set); ends (true: it must not be launched); has
 * ended and `failed` or was only simulated. */
void roll_failfast_group_begin(struct roll_thread *t, unsigned set);
bool roll_failfast_group_end(struct roll_thread *t);
void roll_failfast_group_done(struct roll_thread *t, bool failed);
/* Ends the group in NCCL without launching it. What NCCL says to that. */
ncclResult_t roll_failfast_group_cancel(unsigned set, ncclResult_t (*real)(void));

/* Whether we have aborted the communicator of this handle: NCCL must not see it any more. Lock-free; cheap where
 * nothing has been aborted. */
bool roll_failfast_aborted(ncclComm_t handle);
/* The application has ended such a communicator: the handle may come again. True when it was one. */
bool roll_failfast_ended(ncclComm_t handle);

/* What ncclGetLastError says: our text while NCCL has had no error since (`real`: NCCL's own text). */
const char *roll_failfast_last_error(unsigned set, const char *real);

#endif
