/*
 * bus_guard.h: files of others that are mapped: one that is cut meanwhile reads as zeros from there on, and this
 * process lives.
 */
#ifndef ROLL_DAEMON_BASE_BUS_GUARD_H
#define ROLL_DAEMON_BASE_BUS_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Guards this process, and those that it forks, from now on. Before threads begin. */
void roll_guard(void);
/* How often the end of a file was met so far. Any thread. */
uint64_t roll_guard_cuts(void);
/*
 * Whether such an end lay in these bytes: after roll_guard_cuts has changed. since: roll_guard_cuts before they were
 * mapped; another file may have been cut there earlier. Any thread.
 */
bool roll_guard_was_cut(const void *base, size_t bytes, uint64_t since);

#endif
