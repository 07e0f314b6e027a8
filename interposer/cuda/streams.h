/*
 * streams.h: small ids for CUDA streams, and which stream an event was last recorded on.
 */
#ifndef ROLL_INTERPOSER_CUDA_STREAMS_H
#define ROLL_INTERPOSER_CUDA_STREAMS_H

#include "interposer/record/thread.h"
#include "interposer/wrap/api.h"

#include <stdbool.h>

#define ROLL_STREAM_LEGACY 1u

uint16_t roll_stream_id_slow(struct roll_thread *t, uint64_t key);

/* The id of a stream that has one; 0: it has none. */
uint16_t roll_stream_known(cudaStream_t stream);

/* The id of a stream; 1 for the legacy default stream, 0 (and the loss counted) when the table is full. `per_thread`:
 * the application was compiled so that stream 0 means the thread's own stream. */
static inline uint16_t roll_stream_id(struct roll_thread *t, cudaStream_t stream, bool per_thread)
{
    uint64_t key = (uint64_t)(uintptr_t)stream;
    if (key <= 2) {
        if (key <= 1 && !(key == 0 && per_thread)) {
            return ROLL_STREAM_LEGACY;
        }
        key = 2 | (uint64_t)t->id << 48; /* a key per thread, with bits that no address has */
    }
    unsigned at = (unsigned)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 61) & (ROLL_STREAM_CACHE - 1);
    if (ROLL_LIKELY(t->stream[at].handle == key)) {
        return (uint16_t)t->stream[at].id;
    }
    return roll_stream_id_slow(t, key);
}

/* roll_event_note notes that an event was recorded on a stream; roll_event_stream returns that stream and the place, 0
 * when not known. `place` is ticket + 1 of the first record that was written behind the event, so that all earlier
 * calls are before the event. Lock-free. */
void roll_event_note(cudaEvent_t event, uint16_t stream, uint64_t place);
uint16_t roll_event_stream(cudaEvent_t event, uint64_t *place);

#endif
