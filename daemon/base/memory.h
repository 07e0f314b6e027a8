/*
 * memory.h: how often this process was refused memory, and what goes back to the system that was needed once.
 *
 * Failures are counted in programs that are linked with ROLL_COUNT_MEMORY (daemon/CMakeLists.txt); in others there are
 * none.
 */
#ifndef ROLL_DAEMON_BASE_MEMORY_H
#define ROLL_DAEMON_BASE_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

/* How many allocations have failed so far: of our own code, of strings of libc's, and of jansson's after
 * roll_memory_begin. Any thread. */
uint64_t roll_memory_failures(void);
/* One more has failed. Any thread. */
void roll_memory_failed(void);
/* Has jansson's allocations counted, too. Once, before the first JSON. */
void roll_memory_begin(void);

/* Gives what has been freed back to the system, where libc keeps much of it (ROLL_MEMORY_MUCH): other threads that
 * allocate wait meanwhile, and little is not worth that. Any thread. */
#define ROLL_MEMORY_MUCH ((size_t)16 << 20)
void roll_memory_trim(void);

/*
 * What a loop held while it was behind (a daemon that stood still is sent megabytes in a moment) has been freed when it
 * has caught up, and libc keeps it: between what is still used, it would never go back. So it is given back once the
 * loop has not been behind for ROLL_MEMORY_EBB_NS, once for each such time: other threads that allocate wait
 * meanwhile: 44 ms for 128 MiB with holes, 0.6 s for 1 GiB.
 */
#define ROLL_MEMORY_EBB_NS (UINT64_C(10) * 1000000000u)
struct roll_memory_ebb {
    uint64_t behind_ns; /* when the loop was behind last; 0: nothing is to be given back. All zero is valid */
};
/* To be called some times a second by the loop. Returns whether memory was given back. */
bool roll_memory_ebb(struct roll_memory_ebb *ebb, bool behind, uint64_t now);

#endif
