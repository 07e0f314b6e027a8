/*
 * log.h: one line per event on standard error. Any thread.
 *
 * A line may hold what came from outside: names of hosts, jobs, labels, addresses. What it shows is text and nothing
 * else, and many lines of one kind become few, with a number.
 */
#ifndef ROLL_DAEMON_BASE_LOG_H
#define ROLL_DAEMON_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum roll_log_level { ROLL_LOG_ERROR, ROLL_LOG_WARNING, ROLL_LOG_INFO };

#define ROLL_LOG_KIND_LINES 20 /* lines of one kind that are written within a minute */
#define ROLL_LOG_NEWS_LINES                                                                                            \
    4096 /* of news of one format, whatever they say: each node of a large job may arrive at once */
#define ROLL_LOG_KIND_NS (UINT64_C(60) * 1000000000u) /* the minute */

/* Sets what is logged: only warnings and errors when quiet, or with ROLLCALL_QUIET=1; else everything. */
void roll_log_init(bool quiet);
/*
 * One line: "rollcalld: 2026-11-27T21:30:12.345Z " and the text. Bytes that are no text (control characters, line ends
 * among them, and what is no UTF-8) are shown as \xHH. Of one kind (warnings and errors: the same format; else: the
 * same text) ROLL_LOG_KIND_LINES are written in a minute, and of news of one format ROLL_LOG_NEWS_LINES; the others are
 * counted, which roll_log_tick tells when the minute is over.
 */
void roll_log(enum roll_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/*
 * The same about somebody: of what has this format one line about each is written in a minute, so that one who comes
 * again and again hides nobody else. The lines that are written count as roll_log counts them.
 */
void roll_log_about(enum roll_log_level level, const char *whom, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Tells what was left out, of minutes that are over; with all, also of those that are not: at the end. For the loops,
 * some times a second or more rarely. */
void roll_log_tick(bool all);
/* How many lines of WARNING and ERROR there were, those that were left out, too: a detached daemon keeps its log file
 * when there were any. */
unsigned roll_log_troubles(void);

/* The newest lines, those that were not written because of their level among them, oldest first, each with its line
 * end: as many as `size` bytes hold. For who asks this daemon later; the log itself may be a terminal that nobody
 * reads. */
void roll_log_tail(char *out, size_t size);

/* Copies text as roll_log shows it; cut to size. */
void roll_log_clean(const char *text, char *out, size_t size);

#endif
