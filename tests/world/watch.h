/*
 * watch.h: inotify in the world: who waits for files that appear in a folder is told, or is refused it, as the plan
 * says.
 */
#ifndef ROLL_TESTS_WORLD_WATCH_H
#define ROLL_TESTS_WORLD_WATCH_H

#include <stdint.h>

/* A file has appeared at `path`, below the folder `dir` (as for openat). event: IN_CREATE or IN_MOVED_TO. */
void watch_appeared(int dir, const char *path, uint32_t event);
/* A descriptor is closed: what it watched is watched no more. */
void watch_closed(int fd);

#endif
