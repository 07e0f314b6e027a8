/*
 * ring_write.h: the writer's half of the ring, inline: this is what a call costs in the rank.
 *
 * reserve (fetch-add), mark the slot as being written, fill with plain stores, publish with one release store; on
 * return, rewrite the seal. The mark-then-fill order lets a reader that copies a slot check the seal before and after
 * the copy (a seqlock on one word). No locks, no system calls, no allocation.
 */
#ifndef ROLL_TRACE_RING_WRITE_H
#define ROLL_TRACE_RING_WRITE_H

#include "trace/ring.h"

/* GCC warns that its thread sanitizer does not understand fences. That does no harm here: readers are not instrumented.
 */
#if defined(__SANITIZE_THREAD__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtsan"
#endif

/*
 * Reserves a slot and marks it as being written. Returns the slot; *ticket is its number. Any thread.
 *
 * A writer that was held up for a whole lap may still be filling this slot, or this writer may find that a later ticket
 * has taken it: then the record goes to a scratch slot that nobody reads, and the reader counts its ticket as lost,
 * like any other ticket that it does not find. Taking the slot nevertheless would mix two records under one good seal.
 */
static inline struct roll_record *roll_ring_reserve(struct roll_ring *ring, uint64_t *ticket)
{
    static __thread struct roll_record scratch __attribute__((tls_model("initial-exec")));
    uint64_t t = atomic_fetch_add_explicit(&ring->header->head, 1, memory_order_relaxed);
    struct roll_record *rec = &ring->records[t & ring->mask];
    uint64_t old = __atomic_load_n(&rec->seal, __ATOMIC_RELAXED);
    uint64_t mark = roll_seal(t, ROLL_STATE_EMPTY);
    /* Compare-and-swap: between the look and the mark this thread, too, may be held up while others lap the ring. */
    do {
        if (__builtin_expect(old != 0 && ((old & 0xff) == ROLL_STATE_EMPTY || old >= mark), 0)) {
            rec = &scratch;
            rec->seal = mark;
            break;
        }
    } while (!__atomic_compare_exchange_n(&rec->seal, &old, mark, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    /* Pairs with the reader's acquire fence before it re-reads the seal: no payload byte may be seen before the mark.
     */
    atomic_thread_fence(memory_order_release);
    *ticket = t;
    return rec;
}

#if defined(__SANITIZE_THREAD__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

/* Publishes a filled slot. The release pairs with the reader's acquire load of the seal. */
static inline void roll_ring_publish(struct roll_record *rec, uint64_t ticket, enum roll_state state)
{
    __atomic_store_n(&rec->seal, roll_seal(ticket, state), __ATOMIC_RELEASE);
}

/*
 * Notes that the call of `ticket` has returned. A compare-and-swap, because another thread may have lapped the ring
 * while this call was blocked; then the slot is somebody else's and the loss is counted.
 */
static inline void roll_ring_return(struct roll_ring *ring, struct roll_record *rec, uint64_t ticket, uint32_t call_ns,
                                    uint8_t result)
{
    uint64_t seal = roll_seal(ticket, ROLL_STATE_ENTERED);
    if (__atomic_load_n(&rec->seal, __ATOMIC_RELAXED) == seal) {
        __atomic_store_n(&rec->call_ns, call_ns, __ATOMIC_RELAXED);
        __atomic_store_n(&rec->result, result, __ATOMIC_RELAXED);
        if (__atomic_compare_exchange_n(&rec->seal, &seal, roll_seal(ticket, ROLL_STATE_RETURNED), false,
                                        __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
            return;
        }
    }
    atomic_fetch_add_explicit(&ring->header->losses[ROLL_LOSS_LAPPED], 1, memory_order_relaxed);
}

#endif
