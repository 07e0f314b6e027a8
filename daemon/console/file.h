/*
 * file.h: reading whole files, and the one line that says why one cannot be read.
 */
#ifndef ROLL_CONSOLE_FILE_H
#define ROLL_CONSOLE_FILE_H

#include <stddef.h>

/*
 * Reads a regular file whole into *data (returns owned, free it) and its length into *bytes.
 * Errors: NOTFOUND, DENIED, IO (also for anything that is no regular file), LIMIT (above 8 GiB), NOMEM.
 */
int roll_file_read(const char *path, void **data, size_t *bytes);

/* One line on standard error: what is wrong with the file and what to do. */
void roll_file_complain(const char *path, int err);

/* Removes a directory with everything in it; follows no links. Returns 0 or ROLL_E_IO. */
int roll_directory_remove(const char *path);

#endif
