/*
 * counted.h: how many bytes this process has received on a connection, where the kernel does not count them: on sockets
 * of the file system (ipc).
 *
 * Any thread.
 */
#ifndef ROLL_DAEMON_WIRE_COUNTED_H
#define ROLL_DAEMON_WIRE_COUNTED_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define ROLL_COUNTED_FDS 65536 /* descriptors that are counted; of more a daemon has no use */

/* The bytes that recv(2) has given on this descriptor while it was the file with this inode; 0: none. */
uint64_t roll_counted(int fd, ino_t inode);
/* No descriptor from this one on was ever counted. */
int roll_counted_top(void);
/* A new era begins: a connection belongs to the era in which its first bytes came. */
void roll_counted_era(void);
/* Whether descriptor `fd` has its first bytes from this era; then *inode and *bytes say which file it is, and how many
 * there were. */
bool roll_counted_new(int fd, ino_t *inode, uint64_t *bytes);
/* It is of no era any more: what was to be done about it is done. */
void roll_counted_old(int fd);

#endif
