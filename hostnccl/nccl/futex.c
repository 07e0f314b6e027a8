/*
 * futex.c: sleeping on counters in shared memory.
 *
 * Every wait of this library is "until this 32-bit counter has moved", and the counter itself is the futex, so that
 * ranks in different processes wake each other without any lock, and 64 ranks on 2 cores cost nothing while they wait.
 * A process that is killed leaves nothing locked: each counter has one writer, and writing it is a plain store.
 *
 * Rejected: process-shared pthread condition variables (a killed process can leave their inner lock taken), and
 * spinning as the GPU does (when ranks outnumber cores, spinning starves the very rank that the others wait for).
 */
#include "hostnccl/nccl/futex.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/*
 * About a microsecond of spinning: it pays off when the peer runs on another core, and costs little when it does not.
 */
enum { HN_SPINS = 64 };
enum { HN_CHECK_NS = 100000000 };

static inline void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void futex_sleep(struct hn_word *word, uint32_t seen, bool timed)
{
    struct timespec limit = {.tv_nsec = HN_CHECK_NS};

    /* No FUTEX_PRIVATE: the word may be mapped by several processes, or twice by one. */
    (void)syscall(SYS_futex, &word->value, FUTEX_WAIT, seen, timed ? &limit : NULL, NULL, 0);
}

static void futex_wake(struct hn_word *word)
{
    (void)syscall(SYS_futex, &word->value, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Sleeps once, if the counter still is `seen`. -1 when the wait was stopped. */
static int wait_once(struct hn_wait *w, struct hn_word *word, uint32_t seen)
{
    int rc = 0;

    /* Announce, then look again: pairs with the store-then-look of wake_if_needed. Both are sequentially consistent. */
    atomic_fetch_add(&word->waiters, 1);
    atomic_store(&w->on, word);
    if (atomic_load(&w->stop)) {
        rc = -1;
    } else if (atomic_load(&word->value) == seen) {
        futex_sleep(word, seen, w->check != NULL);
        if (w->check && atomic_load(&word->value) == seen && w->check(w->check_arg)) {
            rc = -1;
        }
    }
    atomic_store(&w->on, NULL);
    atomic_fetch_sub(&word->waiters, 1);
    return rc;
}

int hn_word_wait_change(struct hn_wait *w, struct hn_word *word, uint32_t seen)
{
    for (int i = 0; i < HN_SPINS; i++) {
        if (hn_word_get(word) != seen) {
            return 0;
        }
        cpu_relax();
    }
    while (hn_word_get(word) == seen) {
        if (wait_once(w, word, seen)) {
            return -1;
        }
    }
    return 0;
}

int hn_word_wait_reach(struct hn_wait *w, struct hn_word *word, uint32_t target)
{
    for (;;) {
        uint32_t value = hn_word_get(word);
        if (hn_reached(value, target)) {
            return 0;
        }
        if (hn_word_wait_change(w, word, value)) {
            return -1;
        }
    }
}

static void wake_if_needed(struct hn_word *word)
{
    if (atomic_load(&word->waiters)) {
        futex_wake(word);
    }
}

void hn_word_set(struct hn_word *word, uint32_t value)
{
    atomic_store(&word->value, value);
    wake_if_needed(word);
}

void hn_word_bump(struct hn_word *word)
{
    atomic_fetch_add(&word->value, 1);
    wake_if_needed(word);
}

void hn_wait_kick(struct hn_wait *w)
{
    struct hn_word *word = atomic_load(&w->on);

    if (word) {
        futex_wake(word);
    }
}
