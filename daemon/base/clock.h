/*
 * clock.h: the monotonic clock and the wall clock, in ns.
 */
#ifndef ROLL_DAEMON_BASE_CLOCK_H
#define ROLL_DAEMON_BASE_CLOCK_H

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

/*
 * Reads both clocks at one moment. A thread that is preempted between the two readings pairs them wrongly by as long as
 * it was away, and every record of its ring would then be dated wrongly by that. So the closest of a few tries counts.
 */
static inline void roll_clock_pair(uint64_t *mono_ns, uint64_t *real_ns)
{
    uint64_t closest = UINT64_MAX;
    for (int i = 0; i < 8 && closest > 20000; i++) {
        uint64_t before = roll_mono_ns(), real = roll_real_ns(), took = roll_mono_ns() - before;
        if (took < closest) {
            closest = took;
            *mono_ns = before + took / 2;
            *real_ns = real;
        }
    }
}

#endif
