/*
 * Settings, the text of the last error, and debug lines.
 *
 * The last error is one text per process, as in NCCL. It is written whole under a lock into one of two buffers in turn, so that a
 * reader on another thread sees an old text or a new one.
 */
#include "hostnccl/nccl/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char texts[2][512];
static _Atomic int current;
static struct hn_settings settings;
static pthread_once_t settings_once = PTHREAD_ONCE_INIT;

static bool flag(const char *name)
{
    const char *value = getenv(name);

    return value && *value && strcmp(value, "0") != 0;
}

static void read_settings(void)
{
    const char *mismatch = getenv("HOSTNCCL_ON_MISMATCH"), *death = getenv("HOSTNCCL_PEER_DEATH");

    settings.debug = flag("HOSTNCCL_DEBUG");
    settings.peer_death_is_error = death && !strcmp(death, "error");
    settings.mismatch = mismatch && !strcmp(mismatch, "error")   ? HN_MISMATCH_ERROR
                        : mismatch && !strcmp(mismatch, "print") ? HN_MISMATCH_PRINT
                                                                 : HN_MISMATCH_HANG;
}

const struct hn_settings *hn_settings(void)
{
    pthread_once(&settings_once, read_settings);
    return &settings;
}

ncclResult_t hn_fail(ncclResult_t code, const char *format, ...)
{
    va_list args;

    pthread_mutex_lock(&lock);
    int next = !atomic_load(&current);
    va_start(args, format);
    vsnprintf(texts[next], sizeof texts[next], format, args);
    va_end(args);
    atomic_store(&current, next);
    pthread_mutex_unlock(&lock);
    hn_debug("error %d: %s", (int)code, texts[next]);
    return code;
}

const char *hn_last_error(void)
{
    return texts[atomic_load(&current)];
}

void hn_debug(const char *format, ...)
{
    char line[512];
    va_list args;

    if (!hn_settings()->debug) {
        return;
    }
    int used = snprintf(line, sizeof line, "hostnccl %d: ", (int)getpid());
    va_start(args, format);
    int more = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
    va_end(args);
    used = used + more < (int)sizeof line - 1 ? used + more : (int)sizeof line - 2;
    line[used] = '\n';
    (void)!write(STDERR_FILENO, line, (size_t)used + 1); /* one write: lines of ranks do not mix */
}
