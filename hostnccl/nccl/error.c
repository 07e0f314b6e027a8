/*
 * error.c: settings, the text of the last error, and debug lines.
 *
 * The last error is one text per process, as in NCCL. A reader gets a copy of its own, which stays valid until that
 * reader asks again. A fixed number of buffers used in turn was rejected: one of them would be overwritten while a slow
 * reader reads it.
 */
#include "hostnccl/nccl/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char last[512];
static struct hn_settings settings;
static pthread_once_t settings_once = PTHREAD_ONCE_INIT;

static bool flag(const char *name)
{
    const char *value = getenv(name);

    return value && *value && strcmp(value, "0") != 0;
}

/* The shortest payload that HOSTNCCL_DATA leaves out; 0: none is. */
static uint32_t read_data(const char *value)
{
    char *end = NULL;

    if (!value || !*value || !strcmp(value, "move")) {
        return 0;
    }
    if (!strcmp(value, "skip")) {
        return HN_SMALL_BYTES + 1;
    }
    if (!strncmp(value, "skip:", 5) && value[5] >= '0' && value[5] <= '9') {
        unsigned long long moved = strtoull(value + 5, &end, 10);
        if (!*end && moved < UINT32_MAX) {
            return (uint32_t)moved + 1;
        }
    }
    fprintf(stderr, "hostnccl: HOSTNCCL_DATA=%s is not move, skip or skip:BYTES; using move\n", value);
    return 0;
}

static void read_settings(void)
{
    const char *mismatch = getenv("HOSTNCCL_ON_MISMATCH"), *death = getenv("HOSTNCCL_PEER_DEATH");
    const char *order = getenv("HOSTNCCL_GROUP_ORDER"), *eager = getenv("HOSTNCCL_EAGER");
    const char *data = getenv("HOSTNCCL_DATA");

    settings.debug = flag("HOSTNCCL_DEBUG");
    settings.peer_death_is_error = death && !strcmp(death, "error");
    settings.eager_bytes = eager ? strtoull(eager, NULL, 10) : 0;
    settings.program_order = order && !strcmp(order, "program");
    settings.left_out_bytes = read_data(data);
    settings.mismatch = mismatch && !strcmp(mismatch, "error")   ? HN_MISMATCH_ERROR
                        : mismatch && !strcmp(mismatch, "print") ? HN_MISMATCH_PRINT
                                                                 : HN_MISMATCH_HANG;
}

const struct hn_settings *hn_settings_get(void)
{
    pthread_once(&settings_once, read_settings);
    return &settings;
}

bool hn_leaves_out(size_t bytes)
{
    uint32_t least = hn_settings_get()->left_out_bytes;

    return least > 0 && bytes >= least;
}

ncclResult_t hn_fail(ncclResult_t code, const char *format, ...)
{
    char text[sizeof(last)];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    pthread_mutex_lock(&lock);
    snprintf(last, sizeof(last), "%s", text);
    pthread_mutex_unlock(&lock);
    hn_debug("error %d: %s", (int)code, text);
    return code;
}

const char *hn_last_error(void)
{
    static _Thread_local char copy[sizeof(last)];

    pthread_mutex_lock(&lock);
    memcpy(copy, last, sizeof(copy));
    pthread_mutex_unlock(&lock);
    return copy;
}

void hn_debug(const char *format, ...)
{
    char line[512];
    va_list args;

    if (!hn_settings_get()->debug) {
        return;
    }
    int used = snprintf(line, sizeof(line), "hostnccl %d: ", (int)getpid());
    va_start(args, format);
    int more = vsnprintf(line + used, sizeof(line) - (size_t)used - 1, format, args);
    va_end(args);
    used = used + more < (int)sizeof(line) - 1 ? used + more : (int)sizeof(line) - 2;
    line[used] = '\n';
    (void)!write(STDERR_FILENO, line, (size_t)used + 1); /* one write: lines of ranks do not mix */
}
