/*
 * watchdog.h: the job's own timeout, as frameworks have it: a thread that ends the process when a step makes no
 * progress.
 */
#ifndef MOE_CORE_TRAIN_WATCHDOG_H
#define MOE_CORE_TRAIN_WATCHDOG_H

#include <stdint.h>

#define WATCHDOG_START_S 120 /* what the start may take at least */

/*
 * For how many seconds the job may stand still. moves: how often it has moved, 0 while it starts, 1 in its first step;
 * start_s: what the start took, and with the first step when that is over; longest_s: the longest later step. Pure.
 */
uint32_t watchdog_limit_s(uint32_t timeout_s, uint32_t moves, double start_s, double longest_s);

/*
 * Starts the thread, once per process. Where the start or steps are slow the limit is longer than the timeout
 * (watchdog_limit_s). Returns 0 or -1.
 */
int watchdog_start(int32_t rank, uint32_t timeout_s);

/* Notes progress: `what` (static string) and `step` say what the job does from now on. Any thread. */
void watchdog_progress(const char *what, uint32_t step);

/* Ends the thread. */
void watchdog_stop(void);

#endif
