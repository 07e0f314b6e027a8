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
/* A new descriptor is the running process's, and is closed when that dies. Returns it. */
int calls_own(int fd);
/* It is nobody's any more. */
void calls_disown(int fd);
/* Something has come on a descriptor: whose it is looks. */
void calls_ready(int fd);

#endif
