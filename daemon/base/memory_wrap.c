/*
 * memory_wrap.c: counts the allocations that fail, wherever they are made: the linker puts these functions in place of
 * those of libc (--wrap) in the programs that ask for it.
 *
 * Without memory much of the code says less instead of giving up: a set of ranks lacks one, a member of a JSON object
 * is not there. That would be a wrong answer that looks like a right one. To carry each such failure through all of its
 * callers was rejected: there are hundreds, one that is forgotten shows only when it matters, and all that the last
 * caller can do is to say that something is missing. Which this makes certain.
 */
#include "daemon/base/memory.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* type, name, parameters, arguments, what it returns without memory, whether it has other reasons to return that. A
 * size of 0 is among those. */
#define ROLL_ALLOCATORS(ROW)                                                                                           \
    ROW(void *, malloc, (size_t bytes), (bytes), NULL, bytes == 0)                                                     \
    ROW(void *, calloc, (size_t n, size_t bytes), (n, bytes), NULL, n == 0 || bytes == 0)                              \
    ROW(void *, realloc, (void *at, size_t bytes), (at, bytes), NULL, bytes == 0)                                      \
    ROW(void *, aligned_alloc, (size_t to, size_t bytes), (to, bytes), NULL, bytes == 0)                               \
    ROW(char *, strdup, (const char *text), (text), NULL, false)                                                       \
    ROW(char *, strndup, (const char *text, size_t most), (text, most), NULL, false)                                   \
    ROW(int, vasprintf, (char **out, const char *format, va_list args), (out, format, args), -1, false)                \
    ROW(FILE *, open_memstream, (char **out, size_t *bytes), (out, bytes), NULL, errno != ENOMEM)                      \
    ROW(FILE *, fmemopen, (void *at, size_t bytes, const char *mode), (at, bytes, mode), NULL, errno != ENOMEM)        \
    ROW(FILE *, fopen, (const char *path, const char *mode), (path, mode), NULL, errno != ENOMEM)                      \
    ROW(DIR *, opendir, (const char *path), (path), NULL, errno != ENOMEM)                                             \
    ROW(DIR *, fdopendir, (int fd), (fd), NULL, errno != ENOMEM)                                                       \
    ROW(char *, realpath, (const char *path, char *out), (path, out), NULL, errno != ENOMEM)

/* __real_: by the linker, what these names are without --wrap. */
#define ROLL_ALLOCATOR(type, name, parameters, arguments, none, other)                                                 \
    type __real_##name parameters;                                                                                     \
    type __wrap_##name parameters;                                                                                     \
    type __wrap_##name parameters                                                                                      \
    {                                                                                                                  \
        type got = __real_##name arguments;                                                                            \
        if (got == (none) && !(other)) {                                                                               \
            roll_memory_failed();                                                                                      \
        }                                                                                                              \
        return got;                                                                                                    \
    }
ROLL_ALLOCATORS(ROLL_ALLOCATOR)

int __wrap_asprintf(char **out, const char *format, ...);

int __wrap_asprintf(char **out, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = __wrap_vasprintf(out, format, args);
    va_end(args);
    return n;
}
