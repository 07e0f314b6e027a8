/*
 * order_note.h: an event is recorded on a stream, or a stream waits for one: what is noted of it. Neither writes a
 * record, and neither counts as a call. sync.c has the wrappers of the runtime, capture.c those of the driver.
 */
#ifndef ROLL_INTERPOSER_CUDA_ORDER_NOTE_H
#define ROLL_INTERPOSER_CUDA_ORDER_NOTE_H

#include "interposer/wrap/call.h"

/* What is recorded on, or waited for by, a captured stream becomes an edge of a graph. */
static inline bool roll_note_captured(uint16_t id, cudaStream_t stream)
{
    unsigned long long capture;
    return ROLL_UNLIKELY(atomic_load_explicit(&roll_captures_open, memory_order_relaxed) != 0) &&
           id != ROLL_STREAM_LEGACY && roll_capture_of(stream, &capture);
}

/* Only where roll_wanted. */
static inline void roll_note_event(struct roll_thread *t, cudaEvent_t event, cudaStream_t stream, bool per_thread)
{
    roll_enter_begin(t);
    roll_poll_over(t); /* the thread has given work to a stream, so it did more than wait */
    uint64_t head = atomic_load_explicit(&roll_session->ring.header->head, memory_order_relaxed);
    uint16_t id = roll_stream_id(t, stream, per_thread);
    roll_order_recorded(event, id, roll_note_captured(id, stream));
    /* The calls of an open group are enqueued behind the event, whatever their tickets. */
    roll_event_note(event, id, t->group_depth == 0 ? head + 1 : 0);
    roll_enter_end(t);
    t->depth = 0;
}

/* Called when the stream has been made to wait. */
static inline void roll_note_wait(struct roll_thread *t, cudaStream_t stream, cudaEvent_t event, bool per_thread)
{
    if (roll_order_has(event)) {
        roll_enter_begin(t);
        uint16_t id = roll_stream_id(t, stream, per_thread);
        if (!roll_note_captured(id, stream)) {
            roll_order_waits(id, event);
        }
        roll_enter_end(t);
        t->depth = 0;
    }
}

#endif
