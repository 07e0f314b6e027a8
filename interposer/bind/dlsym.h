/*
 * dlsym.h: answers to lookups of NCCL's functions; see dlsym.c.
 */
#ifndef ROLL_INTERPOSER_BIND_DLSYM_H
#define ROLL_INTERPOSER_BIND_DLSYM_H

#include "interposer/wrap/api.h"

#include <stdbool.h>

/*
 * The answer to a lookup in `handle`, which is an NCCL's: our wrapper that forwards to the function; the function
 * itself where it is never recorded, or where `twin` (its pnccl name) is meant; NULL when that NCCL lacks it. Any
 * thread; may take the loader's lock.
 */
roll_function_t roll_lookup_recorded(void *handle, unsigned id, bool twin);

/* Whether a loaded object (a struct link_map) is one of our fronts, which record by themselves. */
bool roll_is_front(void *map);

#endif
