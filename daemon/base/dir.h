/*
 * dir.h: opens a directory that only this user may change, and judges it by what was opened. Any thread.
 *
 * Every directory in which rollcall makes, removes or trusts files goes through this. Its parent may be open to all
 * users (/dev/shm, /tmp): what is there under our name may be anybody's, a link to a directory of ours among them.
 */
#ifndef ROLL_DAEMON_BASE_DIR_H
#define ROLL_DAEMON_BASE_DIR_H

#include <stddef.h>

#define ROLL_DIR_MAKE  (1u << 0) /* make it (0700, one level) where it is missing */
#define ROLL_DIR_GROUP (1u << 1) /* its group may write, too */

/*
 * Opens the directory at `path`: no link, of this user, writable by nobody else. *fd, returned owned, is for openat and
 * the like: what the path means later is of no matter. On error `why` holds one line that begins with the path. Errors:
 * NOTFOUND, DENIED (a link; of another user; others may write), ARG (no directory), IO, SIZE.
 */
int roll_dir_open(const char *path, unsigned flags, int *fd, char *why, size_t why_size);

/* Says why a file or a folder could not be made, by its errno: "PATH: cannot be made: /no/such is not there". "No such
 * file" alone would name what nobody expected to be there. Returns out. */
const char *roll_dir_cannot_make(const char *path, int number, char *out, size_t size);

#endif
