/* memory.c: see memory.h. The counter, for whoever asks; memory_wrap.c is what counts. */
#include "daemon/base/memory.h"

#include <jansson.h>
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
