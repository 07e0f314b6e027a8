/*
 * poll.h: a host that polls waits too: loops over cudaStreamQuery, cudaEventQuery and ncclCommGetAsyncError, of one thread, over one thing, with
 * no other recorded call in between.
 *
 * A poll is cheap and may come by the million, so it writes no record: the first one of a loop notes what is polled, the next ones count and look
 * at the clock. A loop that has lasted for 100 ms is said by one record, which stays entered; every 200 ms a new one takes its place (every second when the
 * loop is old), so that who reads the ring knows that the loop goes on. It returns when what was polled is ready, or when the thread makes another recorded call.
 * Loops that are shorter, and threads that poll many things by turns (a watchdog), write nothing at all.
 */
#ifndef ROLL_INTERPOSER_POLL_H
#define ROLL_INTERPOSER_POLL_H

#include "interposer/clock.h"
#include "interposer/session.h"
#include "interposer/thread.h"
#include "trace/op.h"

/* What a record of class POLL says in `result` when it has returned. */
enum roll_poll_end {
    ROLL_POLL_READY = 0,
    ROLL_POLL_LEFT = 1, /* the thread has made another call, or the poll failed */
    ROLL_POLL_GOES_ON = 2,
};

void roll_poll_begin(struct roll_thread *t, uintptr_t key);
void roll_poll_say(struct roll_thread *t, uint8_t op, uintptr_t what, bool per_thread, uintptr_t pc,
                   const uintptr_t *frame);
/* Ends the loop that this thread is in, if any. */
void roll_poll_end(struct roll_thread *t, enum roll_poll_end how);

static inline void roll_poll_over(struct roll_thread *t)
{
    if (__builtin_expect(t->poll.key != 0, 0)) {
        roll_poll_end(t, ROLL_POLL_LEFT);
    }
}

/* A poll has answered: `waits`: not ready; else `ready`, or it failed. Only where roll_wanted. */
static inline void roll_polled(struct roll_thread *t, uint8_t op, uintptr_t what, bool per_thread, bool waits,
                               bool ready, uintptr_t pc, const uintptr_t *frame)
{
    uintptr_t key = what << 2 | (uintptr_t)(op - ROLL_OP_STREAM_QUERY + 1);
    if (!waits) {
        if (t->poll.key == key) {
            roll_poll_end(t, ready ? ROLL_POLL_READY : ROLL_POLL_LEFT);
        }
        return;
    }
    if (t->poll.key != key) {
        roll_poll_begin(t, key);
        return;
    }
    t->poll.polls++;
    if (__builtin_expect(roll_clock_now(t) >= t->poll.next_ns, 0)) {
        roll_poll_say(t, op, what, per_thread, pc, frame);
    }
}

#endif
