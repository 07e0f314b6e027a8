/*
 * order.h: which stream has been made to wait for which NCCL calls of other streams, by events.
 *
 * A stream that waits for an event stands behind whatever stood before the event on the stream where that was recorded:
 * the NCCL calls there, and what that stream itself waited for before. So each stream and each event has a short list
 * of calls, the newest of each stream behind which it stands. A wait between streams writes no record, because
 * frameworks make many of them that have nothing to do with NCCL. The next NCCL call on the stream tells what is new
 * in the list (trace/record.h), and so does a wait of the host. What another call in the list has told for itself is
 * left out: calls that are made one after the other need one number each.
 *
 * A list may lack a call, and then the reader knows less; it never has a call too many. A list that is full drops the
 * oldest call. What happens in captures is no order of the device.
 */
#ifndef ROLL_INTERPOSER_CUDA_ORDER_H
#define ROLL_INTERPOSER_CUDA_ORDER_H

#include "interposer/wrap/api.h"
#include "trace/record.h"

#include <stdatomic.h>
#include <stdbool.h>

#define ROLL_ORDER_STREAMS 3074u /* ids of streams.c are below this */

/* A call in a list: ticket + 1 in the upper 48 bits, the id of its stream in the others. */
struct roll_order_list {
    uint64_t call[ROLL_BEHIND_MAX];
    _Atomic uint32_t calls;
};

struct roll_order {
    _Atomic uint64_t last;       /* ticket + 1 of the newest call that was enqueued on the stream; 0: none */
    _Atomic uint64_t told_for;   /* ticket + 1 of the first call that was enqueued behind all of `told` */
    _Atomic uint32_t pending;    /* `now` has calls that no call of the stream has told */
    struct roll_order_list now;  /* the calls behind which the stream stands */
    struct roll_order_list told; /* those that its newest call stands behind */
};

extern struct roll_order roll_orders[ROLL_ORDER_STREAMS] __attribute__((visibility("hidden")));

/* The next call on this stream has something to tell. */
static inline bool roll_order_pending(uint16_t stream)
{
    return atomic_load_explicit(&roll_orders[stream].pending, memory_order_relaxed) != 0;
}

/* A call has been enqueued on the stream. */
static inline void roll_order_enqueued(uint16_t stream, uint64_t ticket)
{
    struct roll_order *o = &roll_orders[stream];
    if (stream != 0) {
        atomic_store_explicit(&o->last, ticket + 1, memory_order_relaxed);
        if (ROLL_UNLIKELY(atomic_load_explicit(&o->told_for, memory_order_relaxed) == 0)) {
            atomic_store_explicit(&o->told_for, ticket + 1, memory_order_release);
        }
    }
}

/* All of these may be called by any thread that is inside one of our wrappers, and wait for no lock for long. The lists
 * that they give hold tickets + 1, the newest last, and have room for ROLL_BEHIND_MAX. */

/* An event is recorded on this stream; `captured`: by a graph, so that it is no event of the device. */
void roll_order_recorded(cudaEvent_t event, uint16_t stream, bool captured);
/* There is a call before the event. */
bool roll_order_has(cudaEvent_t event);
/* The stream waits for the event. */
void roll_order_waits(uint16_t stream, cudaEvent_t event);
/* What the next call on the stream has to tell; it counts as told. */
unsigned roll_order_take(uint16_t stream, uint64_t *out);
/* The call that was to tell it was refused. */
void roll_order_untold(uint16_t stream);
/* What a host waits for that waits for the stream, or for the event, beside the stream's own calls. */
unsigned roll_order_of_stream(uint16_t stream, uint64_t *out);
unsigned roll_order_of_event(cudaEvent_t event, uint64_t *out);
/* The event, or the stream, is destroyed: another one may get its address. */
void roll_order_forget_event(cudaEvent_t event);
void roll_order_forget_stream(uint16_t stream);

#endif
