/*
 * memory.h: how often this process was refused memory. For programs that are linked with ROLL_COUNT_MEMORY
 * (daemon/CMakeLists.txt); in others it is 0.
 */
#ifndef ROLL_DAEMON_BASE_MEMORY_H
#define ROLL_DAEMON_BASE_MEMORY_H

#include <stdint.h>

/* How many allocations have failed so far: of our own code, of strings of libc's, and of jansson's after
 * roll_memory_begin. Any thread. */
uint64_t roll_memory_failures(void);
/* One more has failed. Any thread. */
void roll_memory_failed(void);
/* Has jansson's allocations counted, too. Once, before the first JSON. */
void roll_memory_begin(void);

#endif
