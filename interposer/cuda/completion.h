/*
 * completion.h: learning when the work of a call is complete on the device. Off unless ROLLCALL_COMPLETION asks for it.
 */
#ifndef ROLL_INTERPOSER_CUDA_COMPLETION_H
#define ROLL_INTERPOSER_CUDA_COMPLETION_H

#include "interposer/record/thread.h"
#include "interposer/wrap/api.h"
#include "trace/ring.h"

#include <stdatomic.h>

/* The mode (enum roll_completion) that every call looks at. It becomes OFF for good when something that it needs is
 * missing. */
extern _Atomic uint32_t roll_completion_mode __attribute__((visibility("hidden")));

/* Reads ROLLCALL_COMPLETION, once, when recording starts. The one line says so when its value is unknown. */
void roll_completion_start(struct roll_ring_header *header);

/*
 * Asks the device, or an event, to tell when the work of a call is complete. The call of `ticket` has returned; its
 * work (for a group's end, that of the whole group) is on t->work_stream. The thread is inside a wrapper. Keeps errno;
 * waits for no lock.
 */
void roll_completion_after(struct roll_thread *t, uint64_t ticket);

/* Called when a capture is about to begin: makes what counting replays needs, because nothing may be made while a
 * capture is open. */
void roll_completion_before_capture(void);
/* Called when a capture with NCCL calls is about to end on `stream`: adds a last node that counts the replays of graph
 * `id`. */
void roll_completion_count(cudaStream_t stream, uint16_t id);

#endif
