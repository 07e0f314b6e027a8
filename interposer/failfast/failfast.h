/*
 * failfast.h: refusing a call that does not fit what other ranks of this node have called at the same place, where the
 * user wants that (ROLLCALL_ON_MISMATCH=error or abort). docs/INTERPOSER.md says what the application sees.
 */
#ifndef ROLL_INTERPOSER_FAILFAST_FAILFAST_H
#define ROLL_INTERPOSER_FAILFAST_FAILFAST_H

#include "interposer/record/comms.h"
#include "interposer/record/thread.h"
#include "trace/ident.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct roll_fill;
struct roll_call;
struct roll_compare;

/* Reads ROLLCALL_ON_MISMATCH and maps the page; NULL: calls are only reported. Under roll_lock. */
struct roll_compare *roll_failfast_start(const char *dir, const struct roll_ident *ident);

/*
 * Compares a call that is about to be made; inside a group the call is kept for the group's end. True: the call must
 * not be made. `handle` is the application's own; site and pc say where the call is made. No lock and no system call
 * unless the call differs.
 */
bool roll_failfast_call(struct roll_thread *t, struct roll_comm *comm, const struct roll_fill *fill, uint16_t site,
                        uintptr_t pc);

/* Called when NCCL has returned an error for a call that was compared: the call takes no number, and no other rank is
 * compared with it any more. */
void roll_failfast_failed(const struct roll_call *call);

/* Called when a graph is launched that holds collectives of the communicator; `hash` is that of their signatures. */
void roll_failfast_launched(struct roll_comm *comm, uint64_t hash);

/* Whether other communicators may have the same unique ids: where NCCL_COMM_ID is set, NCCL makes every id of that
 * alone. Pure. */
bool roll_failfast_common_id(const void *ids, size_t bytes);
/* A number for a set of ranks, whatever their order. Borrows; `ranks` may be NULL. Pure. */
uint64_t roll_failfast_set_of(const int *ranks, int n);

/* The `result` for the record of the call, or of the end of the group, that has just been refused: DECLINED where its
 * arguments were the reason, not where its communicator had been aborted before. */
int roll_failfast_result(void);
/* Called when a call or a group has been refused and its record is closed: aborts the communicator where
 * ROLLCALL_ON_MISMATCH=abort. */
ncclResult_t roll_failfast_refused(struct roll_thread *t, uintptr_t pc, const uintptr_t *frame);

/* failfast_group.c. roll_failfast_group_begin: the outermost group begins, in the NCCL of this set.
 * roll_failfast_group_end: it is about to end; true: it must not be launched. roll_failfast_group_done: it has ended;
 * `failed`: with an error, or it was only simulated. */
void roll_failfast_group_begin(struct roll_thread *t, unsigned set);
bool roll_failfast_group_end(struct roll_thread *t);
void roll_failfast_group_done(struct roll_thread *t, bool failed);
/* Ends the group in NCCL without launching it. Returns NCCL's result. */
ncclResult_t roll_failfast_group_cancel(unsigned set, ncclResult_t (*real)(void));

/* Whether fail-fast has aborted the communicator of this handle: then NCCL must not see the handle any more. Lock-free;
 * cheap where nothing has been aborted. */
bool roll_failfast_aborted(ncclComm_t handle);
/* Called when the application ends a communicator: forgets that it was aborted, because NCCL may use the handle again.
 * True when fail-fast had aborted it. */
bool roll_failfast_ended(ncclComm_t handle);

/* The text for ncclGetLastError: ours, while NCCL has had no error since; else `real`, NCCL's own text. */
const char *roll_failfast_last_error(unsigned set, const char *real);

#endif
