/*
 * callsite.h: who called: the return addresses above a wrapper and the Python frames behind them, as a small id.
 */
#ifndef ROLL_INTERPOSER_RECORD_CALLSITE_H
#define ROLL_INTERPOSER_RECORD_CALLSITE_H

#include "interposer/record/pystack.h"
#include "interposer/record/thread.h"
#include "interposer/wrap/api.h"
#include "trace/def.h"

/* In the place of an id in the shared table: the call site depends on where the main thread stands (pymain.h). */
#define ROLL_CALLSITE_STANDS UINT16_MAX

/* Finds or makes the definition of these addresses and remembers it in the shared table under `hash`. Keeps errno. */
uint16_t roll_callsite_intern(uint64_t hash, const uintptr_t *pc, uint32_t depth);

/* The call site under a hash that the shared table holds without an id: there is none, or ROLL_CALLSITE_STANDS. */
uint16_t roll_callsite_other(uint64_t hash, uint16_t id, const uintptr_t *pc, uint32_t depth);

/* The ids given so far, by the hash of the addresses as they stood on the stack: single words, 48 bits of the hash and
 * 16 of id, shared by all threads without a lock. A table per thread was rejected: that would be kilobytes of
 * thread-local memory, and a library that is loaded late (by a front) is given less than that. */
#define ROLL_CALLSITE_BUCKETS 4096u /* a power of two */
#define ROLL_CALLSITE_WAYS    4u
extern _Atomic uint64_t roll_callsite_known[ROLL_CALLSITE_BUCKETS][ROLL_CALLSITE_WAYS]
    __attribute__((visibility("hidden")));

/* Counts a call that had to be recorded without a call site. */
void roll_callsite_lost(void);

/* Defines the module that holds an address, if it is not defined yet; false when no object in the process holds the
 * address. `guess`: the address may be any word, so the loader is not asked too often. Under roll_lock. */
bool roll_module_define(uintptr_t pc, bool guess);

/*
 * The call site of a wrapper whose return address is `pc` and whose frame is `frame`. Walks frame pointers within the
 * thread's own stack, ever upwards, so that it reads nothing but stack even where the application was compiled
 * without frame pointers; roll_callsite_intern cuts off the words that the walk finds then. No lock, no system call.
 */
static inline uint16_t roll_callsite(struct roll_thread *t, uintptr_t pc, const uintptr_t *frame)
{
    uintptr_t pcs[ROLL_CALLSITE_DEPTH];
    uint64_t hash = pc * UINT64_C(0x9e3779b97f4a7c15);
    uint32_t depth = 1;
    pcs[0] = pc;
    if (ROLL_LIKELY((uintptr_t)frame >= t->stack_low && (uintptr_t)frame < t->stack_high)) {
        uintptr_t at = (uintptr_t)frame, last = t->stack_high - 2 * sizeof(uintptr_t);
        while (depth < ROLL_CALLSITE_DEPTH) {
            uintptr_t next = *(const uintptr_t *)at;
            if (next <= at || next > last || (next & (sizeof(uintptr_t) - 1)) != 0) {
                break;
            }
            uintptr_t above = ((const uintptr_t *)next)[1];
            if (above < 4096) {
                break;
            }
            pcs[depth++] = above;
            hash = (hash ^ above) * UINT64_C(0xff51afd7ed558ccd);
            at = next;
        }
    }
    hash = roll_pystack_mix(hash ^ hash >> 32);
    const _Atomic uint64_t *bucket = roll_callsite_known[hash & (ROLL_CALLSITE_BUCKETS - 1)];
    for (unsigned way = 0; way < ROLL_CALLSITE_WAYS; way++) {
        uint64_t word = atomic_load_explicit(&bucket[way], memory_order_relaxed);
        if (ROLL_LIKELY((word ^ hash) >> 16 == 0) && word != 0) {
            uint16_t id = (uint16_t)word;
            return ROLL_LIKELY((uint16_t)(id + 1) > 1) ? id : roll_callsite_other(hash, id, pcs, depth);
        }
    }
    return roll_callsite_intern(hash, pcs, depth);
}

#endif
