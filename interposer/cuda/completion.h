/*
 * completion.h: learning when the work of a call is complete on the device. Off unless ROLLCALL_COMPLETION asks for it.
 */
#ifndef ROLL_INTERPOSER_COMPLETION_H
#define ROLL_INTERPOSER_COMPLETION_H

#include "interposer/record/thread.h"
#include "interposer/wrap/api.h"
#include "trace/ring.h"

#include <stdatomic.h>

/* enum roll_completion; what the calls look at. OFF again for good when something that it needs is missing. */
extern _Atomic uint32_t roll_completion_mode __attribute__((visibility("hidden")));

/* Reads ROLLCALL_COMPLETION; once, when recording starts. Says the one line about a word that it does not know. */
void roll_completion_start(struct roll_ring_header *header);

/*
 * The call of `ticket` has returned, and its work (that of a whole group, for the group's end) is on t->work_stream:
 * asks the device, or an event, to tell when it is complete. The thread is inside a wrapper. Keeps errno; no lock is
 * waited for.
 */
void roll_completion_after(struct roll_thread *t, uint64_t ticket);

/* A capture is about to begin: what counting needs is made now, because nothing may be made while it is open. */
void roll_completion_before_capture(void);
/* A capture with NCCL calls is about to end on `stream`: its last node counts replays of graph `id`. */
void roll_completion_count(cudaStream_t stream, uint16_t id);

#endif
