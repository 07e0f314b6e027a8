/*
 * file.h: opening and making the files that processes map; inside trace/ only.
 */
#ifndef ROLL_TRACE_FILE_H
#define ROLL_TRACE_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Opens a regular file without following a link; *bytes is its size. Returns the descriptor, or an error code.
 * No malloc. Any thread. Errors: NOTFOUND, DENIED, LIMIT, IO, CORRUPT (not a regular file). */
int roll_file_open(const char *path, bool writable, uint64_t *bytes);

/* A file that is being made; nobody else can open it by its final name. */
struct roll_new_file {
    int fd;                   /* -1: no file */
    char temporary[PATH_MAX]; /* name of the file until it is published; "" when it has none */
};

/* Makes a file (0600, all `bytes` allocated and zero) in the directory of `path`. The file has no name where the file
 * system allows that, so that a killed maker leaves nothing; else its name is `path`.tmp.PID.N. On failure nothing is
 * left. No malloc, no SIGXFSZ. Any thread. Errors: SPACE, DENIED, NOTFOUND (no such directory), LIMIT (RLIMIT_FSIZE,
 * descriptors), ARG (name too long), IO. */
int roll_file_make(const char *path, uint64_t bytes, struct roll_new_file *out);

/* Gives the file its final name, `path`. A file that has that name already is replaced, or the answer is BUSY. */
int roll_file_publish(struct roll_new_file *file, const char *path, bool replace);

/* Closes the file; unless it was published, it is gone. */
void roll_file_finish(struct roll_new_file *file);

#endif
