/*
 * callsite.h: who called: the return addresses above a wrapper, as a small id.
 */
#ifndef ROLL_INTERPOSER_CALLSITE_H
#define ROLL_INTERPOSER_CALLSITE_H

#include "interposer/api.h"
#include "interposer/thread.h"
#include "trace/def.h"

/* Finds or makes the definition of these addresses and remembers it in the thread's cache under `hash`. */
uint16_t roll_callsite_intern(struct roll_thread *t, uint64_t hash, const uintptr_t *pc, uint32_t depth);

/* Counts a call that had to be recorded without a call site. */
void roll_callsite_lost(void);

/* The module that holds an address is defined; false when no object in the process has it. `guess`: the address may be
 * any word, so the loader is not asked too often. Under roll_lock. */
bool roll_module_define(uintptr_t pc, bool guess);

/*
 * The call site of a wrapper whose return address is `pc` and whose frame is `frame`. Walks frame pointers within the
 * thread's own stack, ever upwards, so that it reads nothing but stack even where the application was compiled
 * without frame pointers; what it then finds are addresses that roll_callsite_intern cuts off. No lock, no system call.
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
    hash ^= hash >> 32;
    unsigned slot = (unsigned)hash & (ROLL_CALLSITE_CACHE - 1);
    if (ROLL_LIKELY(t->callsite[slot].hash == hash && t->callsite[slot].known)) {
        if (ROLL_UNLIKELY(t->callsite[slot].id == 0)) {
            roll_callsite_lost();
        }
        return (uint16_t)t->callsite[slot].id;
    }
    return roll_callsite_intern(t, hash, pcs, depth);
}

#endif
