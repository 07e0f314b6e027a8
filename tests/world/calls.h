/*
 * calls.h: what the world itself does with the calls that it answers (calls.c).
 */
#ifndef ROLL_TESTS_WORLD_CALLS_H
#define ROLL_TESTS_WORLD_CALLS_H

#include "tests/world/world.h"

/* Outside of every daemon: in whose name calls are made. host NULL: nobody's, and libc answers. */
struct caller {
    const struct host *host;
    pid_t pid;
};
extern struct caller calls_as;

/* The process of a rank has ended: its pidfds say so. */
void calls_ended(const struct host *host, pid_t pid);
/* Something may have changed in a folder of the host: who waits there looks again. */
void calls_touch(const struct host *host);

#endif
