/*
 * front.h: the function of librollcall.so that a front (front.c) calls.
 */
#ifndef ROLL_INTERPOSER_BIND_FRONT_H
#define ROLL_INTERPOSER_BIND_FRONT_H

#include "interposer/wrap/api.h"

/*
 * The function that a front's function of this id jumps to: our wrapper for the real NCCL; or the real function, where
 * it is never recorded or `twin` (the pnccl name) is asked for. `front` is the front's marker. NULL when there is no
 * real NCCL (*there 0; the one line says so), or when the real NCCL lacks the function (*there 1). Keeps errno. Any
 * thread; may load the real NCCL.
 */
ROLL_EXPORT roll_function_t roll_front_function(const int *front, unsigned id, int twin, int *there);

#endif
