/*
 * bus_guard.c: see bus_guard.h.
 *
 * Whoever may write a ring may cut it, at any moment between a look at its size and the next look into it, and the
 * kernel answers the reader with SIGBUS. The handler puts a page of zeros into that place, and the instruction is tried
 * again: decoders refuse zeros, as they refuse all else. To copy through pread instead was rejected: an agent glances
 * at the heads of all rings many times a second, and each glance would be a system call. A list of the mappings was
 * rejected, too: the kernel says BUS_ADRERR of mapped files alone, and a handler that looks into a list needs one that
 * is never half changed.
 */
#include "daemon/base/bus_guard.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#define KEPT 1024u /* places that are remembered: who was cut is asked soon, and lets the mapping go */

static _Atomic uint64_t
    taken;                    /* places that are, or are about to be, written: two threads may meet such ends at once */
static _Atomic uint64_t cuts; /* partner: roll_guard_cuts; behind the place, so that a reader who sees it sees that */
static _Atomic uintptr_t place[KEPT]; /* by number of the cut */
static size_t page = 4096;

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    (void)context;
    uintptr_t at = (uintptr_t)info->si_addr & ~(uintptr_t)(page - 1);
    void *zeros = info->si_code != BUS_ADRERR
                      ? MAP_FAILED
                      : mmap((void *)at, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (zeros == MAP_FAILED) { /* bad memory, or none: the instruction meets it once more, and the process ends */
        signal(number, SIG_DFL);
        return;
    }
    uint64_t n = atomic_fetch_add_explicit(&taken, 1, memory_order_relaxed);
    atomic_store_explicit(&place[n % KEPT], at, memory_order_relaxed);
    atomic_fetch_add_explicit(&cuts, 1, memory_order_release);
}

void roll_guard(void)
{
    struct sigaction sa = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_RESTART};
    long bytes = sysconf(_SC_PAGESIZE);
    page = bytes > 0 ? (size_t)bytes : page;
    sigaction(SIGBUS, &sa, NULL);
}

uint64_t roll_guard_cuts(void)
{
    return atomic_load_explicit(&cuts, memory_order_acquire);
}

bool roll_guard_was_cut(const void *base, size_t bytes, uint64_t since)
{
    uint64_t n = roll_guard_cuts(), kept = n > KEPT ? n - KEPT : 0;
    for (uint64_t i = kept > since ? kept : since; i < n; i++) {
        uintptr_t at = atomic_load_explicit(&place[i % KEPT], memory_order_relaxed);
        if (at - ((uintptr_t)base & ~(uintptr_t)(page - 1)) < bytes) {
            return true;
        }
    }
    return false;
}
