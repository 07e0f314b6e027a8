/*
 * watchdog.h: the job's own timeout, as frameworks have it: a thread that ends the process when a step makes no
 * progress.
 */
#ifndef MOE_CORE_TRAIN_WATCHDOG_H
#define MOE_CORE_TRAIN_WATCHDOG_H

#include <stdint.h>

#define WATCHDOG_START_S 120 /* what the start and the first step may take at least */

/*
 * Starts the thread, once per process. The timeout counts from the end of the first step; before that, and where steps
 * are slow, the limit is longer (watchdog.c). Returns 0 or -1.
 */
int watchdog_start(int32_t rank, uint32_t timeout_s);

/* Notes progress: `what` (static string) and `step` say what the job does from now on. Any thread. */
void watchdog_progress(const char *what, uint32_t step);

/* Ends the thread. */
void watchdog_stop(void);

#endif
