/*
 * place.h: the files of rollcalld in its ring directory (locks, the endpoint file, the socket), and going to the
 * background.
 */
#ifndef ROLL_DAEMON_ROLLCALLD_PLACE_H
#define ROLL_DAEMON_ROLLCALLD_PLACE_H

#include <stdbool.h>
#include <stddef.h>

/* Makes `dir` (0700, one level) where it is missing and makes its name absolute. On error `why` holds one line. DENIED,
 * IO, SIZE. */
int roll_place_dir(char *dir, size_t size, char *why, size_t why_size);
/* Takes DIR/root.lock: 0, BUSY, DENIED, IO. */
int roll_place_lock_root(const char *dir, int *fd);
/* Writes DIR/endpoint atomically. 0 or IO. */
int roll_place_endpoint(const char *dir, const char *endpoint);
/* Removes endpoint, socket and lock. */
void roll_place_leave_root(const char *dir, int *fd);
/* Removes every plain file and socket in DIR but the cookie (curve.h), and DIR when it is empty then. */
void roll_place_remove(const char *dir);

/*
 * Goes to the background: returns in the child, in a session of its own, without inherited descriptors except keep_fd;
 * the parent waits for roll_place_ready and exits with its code. -1 when it cannot fork.
 */
int roll_place_detach(int keep_fd);
/* Tells the waiting parent the exit code; with 0, standard error goes to DIR/NAME.log from now on. */
void roll_place_ready(int code, const char *dir, const char *name);
/* From now on standard error goes to DIR/NAME.log; without a directory, nowhere. */
void roll_place_to_log(const char *dir, const char *name);
/* The parent has been told by a process before this one. */
void roll_place_was_ready(void);
/* Removes the log file of a detached daemon that had nothing to complain about. */
void roll_place_log_done(const char *dir, const char *name);

#endif
