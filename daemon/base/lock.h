/*
 * lock.h: a lock file that one process at a time holds. The lock ends with its owner, whatever ends that process.
 */
#ifndef ROLL_DAEMON_BASE_LOCK_H
#define ROLL_DAEMON_BASE_LOCK_H

/*
 * Makes the file at `path` (0600), locks it and writes our pid into it; *fd (returns owned) holds the lock until
 * roll_lock_leave or the end of the process. Never waits. BUSY when another process has the lock (*pid is its pid, 0
 * unknown); DENIED (also for a link); NOTFOUND (no such directory); IO.
 */
int roll_lock_take(const char *path, int *fd, int *pid);
/* Removes the file and releases the lock; *fd becomes -1. With *fd -1 nothing happens. */
void roll_lock_leave(const char *path, int *fd);

#endif
