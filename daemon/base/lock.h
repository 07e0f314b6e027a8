/*
 * lock.h: a file that one process at a time holds; it dies with its owner, whatever ended it.
 */
#ifndef ROLL_DAEMON_LOCK_H
#define ROLL_DAEMON_LOCK_H

/*
 * Makes the file at `path` (0600), locks it and writes our pid into it; *fd (returns owned) holds the lock until
 * roll_lock_leave or the end of the process. Never waits. BUSY when another has it (*pid is its pid, 0 unknown); DENIED
 * (also for a link); NOTFOUND (no such directory); IO.
 */
int roll_lock_take(const char *path, int *fd, int *pid);
/* Removes the file and lets go; *fd becomes -1. Nothing when it is -1. */
void roll_lock_leave(const char *path, int *fd);

#endif
