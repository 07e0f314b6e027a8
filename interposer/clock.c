/*
 * clock.c: ties the time-stamp counter to CLOCK_MONOTONIC.
 *
 * Each thread runs on the counter for at most 10 ms and then asks the kernel again, so neither a slewed clock nor an
 * error of the rate can add up beyond about a microsecond. The rate is the counter's advance against the clock since
 * recording started, refined at each look until the base is long enough. Used only where the processor says that the
 * counter is constant and never stops, and the kernel itself runs its clock on it (which implies that the processors'
 * counters agree). Waiting at start to calibrate was rejected: until 2 ms have passed, the kernel is asked.
 */
#include "interposer/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define WINDOW_NS    10000000u
#define BASE_MIN_NS  2000000u
#define BASE_LONG_NS 10000000000u
#define INVARIANT    (1u << 8)

struct roll_clock roll_clock;

static bool usable;
static uint64_t base_ns, base_tsc;

#if defined(__x86_64__)
static bool kernel_uses_tsc(void)
{
    char name[16] = "";
    int fd = open("/sys/devices/system/clocksource/clocksource0/current_clocksource", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    ssize_t n = read(fd, name, sizeof name - 1);
    close(fd);
    return n >= 4 && strncmp(name, "tsc\n", 4) == 0;
}

/* The clock and the counter at one moment: the tightest of three looks. */
static uint64_t both(uint64_t *tsc)
{
    uint64_t best = UINT64_MAX, ns = 0;
    for (int i = 0; i < 3; i++) {
        uint64_t before = __rdtsc();
        uint64_t now = roll_clock_monotonic();
        uint64_t width = __rdtsc() - before;
        if (width < best) {
            best = width;
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
    base_ns = both(&base_tsc);
#endif
}

uint64_t roll_clock_resync(struct roll_thread *t)
{
#if defined(__x86_64__)
    if (!usable) {
        return roll_clock_monotonic();
    }
    uint64_t tsc = 0;
    uint64_t ns = both(&tsc);
    uint64_t age = ns - base_ns;
    uint64_t mult = atomic_load_explicit(&roll_clock.mult, memory_order_relaxed);
    if (age >= BASE_MIN_NS && (mult == 0 || age < BASE_LONG_NS)) {
        mult = (uint64_t)((double)age / (double)(tsc - base_tsc) * 4294967296.0);
        atomic_store_explicit(&roll_clock.mult, mult, memory_order_relaxed);
        uint64_t window = mult == 0 ? 0 : (uint64_t)((double)WINDOW_NS * 4294967296.0 / (double)mult);
        atomic_store_explicit(&roll_clock.window, window, memory_order_relaxed);
    }
    t->tsc_base = tsc;
    t->ns_base = ns;
    return ns;
#else
    (void)t;
    return roll_clock_monotonic();
#endif
}
