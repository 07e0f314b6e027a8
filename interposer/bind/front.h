/*
 * front.h: between a front (front.c) and librollcall.so, which it needs.
 */
#ifndef ROLL_INTERPOSER_FRONT_H
#define ROLL_INTERPOSER_FRONT_H

#include "interposer/wrap/api.h"

/*
 * The function that a front's function of this id is to jump to: our wrapper for the real NCCL, or the real function
 * where that is never recorded or `twin` (the pnccl name) is asked for. `front` is the front's marker. NULL when there
 * is no real NCCL (*there 0; said in one line) or it lacks the function (*there 1). Keeps errno. Any thread; may load
 * the real NCCL.
 */
ROLL_EXPORT roll_function_t roll_front_function(const int *front, unsigned id, int twin, int *there);

#endif
