/* memory.c: see memory.h. The counter, for whoever asks; memory_wrap.c is what counts. And what is given back. */
#include "daemon/base/memory.h"

#include <jansson.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>

static _Atomic uint64_t failures; /* nothing else is told by it: relaxed is enough */

uint64_t roll_memory_failures(void)
{
    return atomic_load_explicit(&failures, memory_order_relaxed);
}

void roll_memory_failed(void)
{
    atomic_fetch_add_explicit(&failures, 1, memory_order_relaxed);
}

void roll_memory_begin(void)
{
    json_set_alloc_funcs(malloc, free);
}

void roll_memory_trim(void)
{
    if (mallinfo2().fordblks >= ROLL_MEMORY_MUCH) {
        malloc_trim(0);
    }
}

bool roll_memory_ebb(struct roll_memory_ebb *ebb, bool behind, uint64_t now)
{
    if (behind) {
        ebb->behind_ns = now;
        return false;
    }
    if (ebb->behind_ns == 0 || now - ebb->behind_ns < ROLL_MEMORY_EBB_NS) {
        return false;
    }
    ebb->behind_ns = 0;
    roll_memory_trim();
    return true;
}
