/*
 * tell.h: a call, or a wait of the host, tells behind which calls of other streams it stands (interposer/cuda/order.h).
 */
#ifndef ROLL_INTERPOSER_WRAP_TELL_H
#define ROLL_INTERPOSER_WRAP_TELL_H

#include "interposer/record/thread.h"

struct roll_fill;

/* Each returns how many records it has written in front of the call's own. The thread is inside a wrapper. */

/* The record of a call on fill->stream, which is about to be written, tells what is new; fill->behind says how. */
unsigned roll_tell_call(struct roll_thread *t, struct roll_fill *fill);
/* The same of a launch of a graph, whose own records have no room for it. */
unsigned roll_tell_launch(struct roll_thread *t, uint16_t stream);
/* The same of a wait for these calls (tickets + 1). */
unsigned roll_tell_wait(struct roll_thread *t, struct roll_fill *fill, const uint64_t *calls, unsigned n);

#endif
