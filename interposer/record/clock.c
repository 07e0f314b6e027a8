/*
 * clock.c: ties the time-stamp counter to CLOCK_MONOTONIC.
 *
 * Each thread runs on the counter for at most 10 ms and then asks the kernel again, so nothing adds up, however long
 * the job runs. The rate is the counter's advance against the clock between two looks of one thread, so it follows a
 * clock that is being slewed (by NTP, up to some per cent) within two such spans. Used only where the processor says
 * that the counter is constant and never stops, and the kernel itself runs its clock on it (which implies that the
 * processors' counters agree). Waiting at start to calibrate was rejected: until 2 ms have passed, the kernel is asked
 * for the time. A rate measured once over a long time was rejected too: it is exact only until somebody corrects the
 * clock.
 */
#include "interposer/record/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define WINDOW_NS   10000000u
#define BASE_MIN_NS 2000000u /* least time between two looks that give a rate: each look errs by some 50 ns */
#define TIGHT_TICKS 2000u    /* a look that took longer was interrupted and is not used */
#define INVARIANT   (1u << 8)

struct roll_clock roll_clock;

static bool usable;

#if defined(__x86_64__)
static bool kernel_uses_tsc(void)
{
    char name[16] = "";
    int fd = open("/sys/devices/system/clocksource/clocksource0/current_clocksource", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    ssize_t n = read(fd, name, sizeof(name) - 1);
    close(fd);
    return n >= 4 && strncmp(name, "tsc\n", 4) == 0;
}

/* The clock and the counter at one moment: the tightest of three looks; *best says how tight. */
static uint64_t both(uint64_t *tsc, uint64_t *best)
{
    uint64_t ns = 0;
    *best = UINT64_MAX;
    for (int i = 0; i < 3; i++) {
        uint64_t before = __rdtsc();
        uint64_t now = roll_clock_monotonic();
        uint64_t width = __rdtsc() - before;
        if (width < *best) {
            *best = width;
            ns = now;
            *tsc = before + width / 2;
        }
        if (width < 500) {
            break;
        }
    }
    return ns;
}
#endif

void roll_clock_start(void)
{
#if defined(__x86_64__)
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    usable = __get_cpuid(0x80000007u, &eax, &ebx, &ecx, &edx) != 0 && (edx & INVARIANT) != 0 && kernel_uses_tsc();
#endif
}

uint64_t roll_clock_resync(struct roll_thread *t)
{
#if defined(__x86_64__)
    if (!usable) {
        return roll_clock_monotonic();
    }
    uint64_t tsc = 0, width = 0;
    uint64_t ns = both(&tsc, &width);
    uint64_t span = ns - t->ns_base;
    bool rated = atomic_load_explicit(&roll_clock.window, memory_order_relaxed) != 0;
    /* The look was interrupted, or it is too soon to tell the rate. */
    if (width > TIGHT_TICKS || (t->ns_base != 0 && span < BASE_MIN_NS && !rated)) {
        return ns;
    }
    if (t->ns_base != 0 && span >= BASE_MIN_NS && tsc > t->tsc_base) {
        double rate = (double)span / (double)(tsc - t->tsc_base); /* ns per tick */
        atomic_store_explicit(&roll_clock.mult, (uint64_t)(rate * 4294967296.0), memory_order_relaxed);
        atomic_store_explicit(&roll_clock.window, (uint64_t)((double)WINDOW_NS / rate), memory_order_relaxed);
    }
    t->tsc_base = tsc;
    t->ns_base = ns;
    return ns;
#else
    (void)t;
    return roll_clock_monotonic();
#endif
}
