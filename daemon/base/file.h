/*
 * file.h: all of a file, and all of what is to be written. Any thread.
 *
 * Errors of the readers: NOTFOUND (also for a process that has ended, below /proc), DENIED, LIMIT (descriptors of ours
 * have run out), NOMEM, IO; errno says more.
 */
#ifndef ROLL_DAEMON_BASE_FILE_H
#define ROLL_DAEMON_BASE_FILE_H

#include <stddef.h>

/*
 * Reads a small file, as those of /proc and /sys, into out: at most size - 1 bytes, which end with a 0 in any case.
 * Waits for nobody. The bytes, or an error.
 */
int roll_read_text(const char *path, char *out, size_t size);
/*
 * Reads a regular file whole, files of /proc included, which do not say how large they are: at most `most` bytes, and a
 * 0 behind them. *data is owned by the caller. 0, or an error; IO for anything else than a regular file as well, and
 * LIMIT for one that says that it is larger. After an error *data is NULL.
 */
int roll_read_whole(const char *path, size_t most, char **data, size_t *bytes);
/* Writes all, over interruptions and short writes. The bytes written: fewer than `bytes` after an error, see errno. */
size_t roll_write_all(int fd, const void *data, size_t bytes);

#endif
