/*
 * session.c: what all files of the interposer lean on: the session, its lock, its memory, and the one line that says
 * what is missing. wrap/start.c starts and ends recording.
 */
#include "interposer/record/session.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define ARENA_BYTES (1024u * 1024u)

static struct roll_session nothing;
struct roll_session *roll_session = &nothing;
pthread_mutex_t roll_lock = PTHREAD_MUTEX_INITIALIZER;

static uint8_t *arena;
static size_t arena_left;

bool roll_env_true(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && strcmp(value, "1") == 0;
}

/* Writes a line to standard error if that is possible at once. A pipe may be full, or have lost its reader, and the job
 * must neither wait for the pipe nor die of a signal that our line has raised. */
static void write_line(const char *line, size_t bytes)
{
    struct pollfd ready = {.fd = STDERR_FILENO, .events = POLLOUT};
    sigset_t ours, before, pending;
    if (poll(&ready, 1, 0) != 1 || (ready.revents & POLLOUT) == 0) {
        return;
    }
    sigemptyset(&ours);
    sigaddset(&ours, SIGPIPE);
    sigaddset(&ours, SIGXFSZ);
    sigpending(&pending);
    if (sigismember(&pending, SIGPIPE) == 1 || sigismember(&pending, SIGXFSZ) == 1) {
        return; /* a signal that our line raises could not be told from the job's own */
    }
    sigprocmask(SIG_BLOCK, &ours, &before);
    if (write(STDERR_FILENO, line, bytes) < 0) {
        static const struct timespec now = {0, 0};
        sigtimedwait(&ours, NULL, &now);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
}

void roll_tell(const char *line, size_t bytes)
{
    int saved = errno;
    if (!roll_env_true("ROLLCALL_QUIET")) {
        write_line(line, bytes);
    }
    errno = saved;
}

void roll_say(const char *what, ...)
{
    static _Atomic bool said;
    int saved = errno;
    if (!roll_env_true("ROLLCALL_QUIET") && !atomic_exchange(&said, true)) {
        char line[1024] = "rollcall: ";
        size_t used = strlen(line);
        va_list args;
        va_start(args, what);
        int n = vsnprintf(line + used, sizeof(line) - used - 64, what, args);
        va_end(args);
        used += n < 0 ? 0 : (size_t)n;
        if (used > sizeof(line) - 64) {
            used = sizeof(line) - 64;
        }
        used += (size_t)snprintf(line + used, sizeof(line) - used, "; the job runs on without it\n");
        write_line(line, used);
    }
    errno = saved;
}

void *roll_session_alloc(size_t bytes)
{
    bytes = (bytes + 63) & ~(size_t)63;
    if (bytes > ARENA_BYTES / 4) {
        void *own = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return own == MAP_FAILED ? NULL : own;
    }
    if (bytes > arena_left) {
        void *more = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (more == MAP_FAILED) {
            return NULL;
        }
        arena = more;
        arena_left = ARENA_BYTES;
    }
    void *out = arena;
    arena += bytes;
    arena_left -= bytes;
    return out;
}
