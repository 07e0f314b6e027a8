/*
 * clock.h: the two clocks, in ns.
 */
#ifndef ROLL_DAEMON_CLOCK_H
#define ROLL_DAEMON_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t roll_clock(clockid_t clock)
{
    struct timespec ts;
    clock_gettime(clock, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static inline uint64_t roll_mono_ns(void)
{
    return roll_clock(CLOCK_MONOTONIC);
}

static inline uint64_t roll_real_ns(void)
{
    return roll_clock(CLOCK_REALTIME);
}

#define ROLL_MS UINT64_C(1000000)

#endif
