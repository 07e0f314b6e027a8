/*
 * log.h: one line per event on standard error. Any thread.
 */
#ifndef ROLL_DAEMON_BASE_LOG_H
#define ROLL_DAEMON_BASE_LOG_H

#include <stdbool.h>

enum roll_log_level { ROLL_LOG_ERROR, ROLL_LOG_WARNING, ROLL_LOG_INFO };

/* Sets what is logged: only warnings and errors when quiet, or with ROLLCALL_QUIET=1; else everything. */
void roll_log_init(bool quiet);
void roll_log(enum roll_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* How many lines of WARNING and ERROR were written: a detached daemon keeps its log file when there were any. */
unsigned roll_log_troubles(void);

#endif
