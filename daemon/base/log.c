/*
 * log.c: log lines, each one write(2), so that lines of several threads and processes do not mix. syslog was rejected:
 * the person who starts a job looks at its standard error.
 */
#include "daemon/base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Atomic int log_level = ROLL_LOG_INFO;
static _Atomic unsigned log_troubles;

void roll_log_init(bool quiet)
{
    const char *env = getenv("ROLLCALL_QUIET");
    atomic_store(&log_level, quiet || (env && strcmp(env, "1") == 0) ? ROLL_LOG_WARNING : ROLL_LOG_INFO);
}

unsigned roll_log_troubles(void)
{
    return atomic_load(&log_troubles);
}

void roll_log(enum roll_log_level level, const char *format, ...)
{
    if (level <= ROLL_LOG_WARNING) {
        atomic_fetch_add(&log_troubles, 1);
    }
    if ((int)level > atomic_load(&log_level)) {
        return;
    }
    char line[1024];
    int n = snprintf(line, sizeof(line), "rollcalld: ");
    va_list args;
    va_start(args, format);
    vsnprintf(line + n, sizeof(line) - (size_t)n - 1, format, args);
    va_end(args);
    size_t length = strlen(line);
    line[length++] = '\n';
    if (write(STDERR_FILENO, line, length) < 0) {
        return; /* standard error cannot be written, and there is no other place to say so */
    }
}
