/*
 * poll.h: a host that polls waits too. A loop of polls is a thread that calls cudaStreamQuery, cudaEventQuery or
 * ncclCommGetAsyncError again and again about one thing (a stream, an event, a communicator), or about up to four by
 * turns, with no other recorded call in between.
 *
 * A poll is cheap and may come by the million, so it writes no record: the first poll of a loop notes the thing, the
 * next ones count and look at the clock. A loop that has lasted for 100 ms writes one record, which stays entered.
 * Every 200 ms a new record takes its place (more rarely when the loop is old: until_next in poll.c), so that a reader
 * of the ring knows that the loop goes on. The record returns when the thing is ready, or when the thread makes another
 * recorded call.
 *
 * Where there are several things, each record says how many and names one; the next record names the next thing. Nobody
 * can see whether the host needs one of the things or all of them. So a loop begins anew when one of its things is
 * ready, and when another thing joins: none of them has been ready since the loop began. A thing that no poll asked
 * about since the last record has left the loop. Loops that are shorter, and threads that poll more things (a
 * watchdog), write nothing at all.
 */
#ifndef ROLL_INTERPOSER_CUDA_POLL_H
#define ROLL_INTERPOSER_CUDA_POLL_H

#include "interposer/record/clock.h"
#include "interposer/record/session.h"
#include "interposer/record/thread.h"
#include "trace/op.h"
#include "trace/record.h"

/* The place of a thing among the things of the loop; ROLL_POLL_THINGS when it is none of them. */
unsigned roll_poll_find(const struct roll_poll *poll, uintptr_t key);
/* Called when a thing is polled that the loop does not have: the thing joins the loop, or begins one. */
void roll_poll_join(struct roll_thread *t, uintptr_t key);
void roll_poll_say(struct roll_thread *t, unsigned thing, uint8_t op, uintptr_t what, bool per_thread, uintptr_t pc,
                   const uintptr_t *frame);
/* Ends the loop that this thread is in, if any. */
void roll_poll_end(struct roll_thread *t, enum roll_poll_end how);

static inline void roll_poll_over(struct roll_thread *t)
{
    if (__builtin_expect(t->poll.key[0] != 0, 0)) {
        roll_poll_end(t, ROLL_POLL_LEFT);
    }
}

/* Called when a poll has answered. `waits`: not ready yet; `ready`: ready; neither: the poll failed. Only where
 * roll_wanted. */
static inline void roll_polled(struct roll_thread *t, uint8_t op, uintptr_t what, bool per_thread, bool waits,
                               bool ready, uintptr_t pc, const uintptr_t *frame)
{
    uintptr_t key = what << 2 | (uintptr_t)(op - ROLL_OP_STREAM_QUERY + 1);
    struct roll_poll *poll = &t->poll;
    unsigned thing = __builtin_expect(poll->key[0] == key, 1) ? 0 : roll_poll_find(poll, key);
    if (!waits) {
        if (thing < ROLL_POLL_THINGS) {
            roll_poll_end(t, ready && thing == poll->said ? ROLL_POLL_READY : ROLL_POLL_LEFT);
        }
        return;
    }
    if (thing == ROLL_POLL_THINGS) {
        roll_poll_join(t, key);
        return;
    }
    poll->polls++;
    poll->asked |= (uint8_t)(1u << thing);
    if (__builtin_expect(roll_clock_now(t) >= poll->next_ns, 0)) {
        roll_poll_say(t, thing, op, what, per_thread, pc, frame);
    }
}

#endif
