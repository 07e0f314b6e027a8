/*
 * clock.h: CLOCK_MONOTONIC at the price of reading the processor's counter, where that counter is what the kernel's
 * clock runs on. Elsewhere the time comes from clock_gettime.
 */
#ifndef ROLL_INTERPOSER_RECORD_CLOCK_H
#define ROLL_INTERPOSER_RECORD_CLOCK_H

#include "interposer/record/thread.h"
#include "interposer/wrap/api.h"

#include <stdatomic.h>
#include <stdint.h>
#include <time.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

struct roll_clock {
    _Atomic uint64_t window; /* counter ticks that a thread may run on its own; 0 = ask the kernel each time */
    _Atomic uint64_t mult;   /* ns per tick, times 2^32 */
};
extern struct roll_clock roll_clock __attribute__((visibility("hidden")));

/* Finds out whether the counter can be trusted. Called once, when recording starts. */
void roll_clock_start(void);

/* Asks the kernel for the time, and ties this thread's counter to the answer. */
uint64_t roll_clock_resync(struct roll_thread *t);

static inline uint64_t roll_clock_monotonic(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Now, CLOCK_MONOTONIC ns within about 1 us; never goes back in a thread. */
static inline uint64_t roll_clock_now(struct roll_thread *t)
{
    uint64_t ns;
#if defined(__x86_64__)
    uint64_t ticks = __rdtsc() - t->tsc_base;
    if (ROLL_LIKELY(ticks < atomic_load_explicit(&roll_clock.window, memory_order_relaxed))) {
        ns = t->ns_base + (ticks * atomic_load_explicit(&roll_clock.mult, memory_order_relaxed) >> 32);
    } else {
        ns = roll_clock_resync(t);
    }
#else
    ns = roll_clock_resync(t);
#endif
    if (ROLL_UNLIKELY(ns < t->ns_last)) {
        ns = t->ns_last;
    }
    t->ns_last = ns;
    return ns;
}

#endif
