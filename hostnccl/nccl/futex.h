/* futex.h: waiting words in shared memory: counters on which processes and threads sleep. See futex.c. */
#ifndef ROLL_HOSTNCCL_NCCL_FUTEX_H
#define ROLL_HOSTNCCL_NCCL_FUTEX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A counter that only grows (modulo 2^32), and the number of sleepers on it. Lives in shared or private memory. */
struct hn_word {
    _Atomic uint32_t value;
    _Atomic uint32_t waiters;
};

/* A waiter that another thread of the same process can stop. `stop` makes the present wait and every later one fail. */
struct hn_wait {
    _Atomic int stop;
    _Atomic(struct hn_word *) on; /* where the waiter sleeps, for hn_wait_kick */
    int (*check)(
        void *); /* NULL, or called about ten times a second during a sleep; a result other than 0 ends the wait */
    void *check_arg;
};

/* Waits until the counter has reached `target`. 0, or -1 when stopped (or ended by `check`). One thread per hn_wait. */
int hn_word_wait_reach(struct hn_wait *w, struct hn_word *word, uint32_t target);

/* Waits until the counter differs from `seen`. Returns as hn_word_wait_reach does. */
int hn_word_wait_change(struct hn_wait *w, struct hn_word *word, uint32_t seen);

/* Sets or adds one to the counter and wakes all sleepers, in whichever process. */
void hn_word_set(struct hn_word *word, uint32_t value);
void hn_word_bump(struct hn_word *word);

static inline uint32_t hn_word_get(struct hn_word *word)
{
    return atomic_load_explicit(&word->value, memory_order_acquire);
}

static inline bool hn_reached(uint32_t value, uint32_t target)
{
    return (int32_t)(value - target) >= 0;
}

/* Wakes the waiter once so that it looks at its stop flag. The caller repeats it until the waiter has left: a single
 * wake can fall between the waiter's look and its sleep. */
void hn_wait_kick(struct hn_wait *w);

#endif
