/*
 * watch.h: inotify in the world: who waits for files that appear in a folder is told, whatever the machine's own
 * inotify has left.
 */
#ifndef ROLL_TESTS_WORLD_WATCH_H
#define ROLL_TESTS_WORLD_WATCH_H

/* A file appeared at `path`, below the folder `dir` (as for openat). */
void watch_told(int dir, const char *path);

/* A descriptor is closed: what it watched is no longer watched. */
void watch_closed(int fd);

#endif
