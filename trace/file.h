/*
 * file.h: opening and making the files that processes map; inside trace/ only.
 */
#ifndef ROLL_TRACE_FILE_H
#define ROLL_TRACE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Opens a regular file without following a link; *bytes is its size. Returns the descriptor, or an error code.
 * No malloc. Any thread. Errors: NOTFOUND, DENIED, LIMIT, IO, CORRUPT (not a regular file). */
int roll_file_open(const char *path, bool writable, uint64_t *bytes);

/* Makes `path`.tmp.PID.N (0600, new, all `bytes` allocated and zero) and writes that name to `temporary`. Returns the
 * descriptor, or an error code and leaves nothing. No malloc, no SIGXFSZ. Any thread.
 * Errors: SPACE, DENIED, NOTFOUND (no such directory), LIMIT (RLIMIT_FSIZE, descriptors), ARG (name too long), IO. */
int roll_file_make(const char *path, uint64_t bytes, char *temporary, size_t temporary_bytes);

#endif
