/*
 * refused.h: calls of which NCCL has enqueued nothing give back the numbers that they took.
 */
#ifndef ROLL_INTERPOSER_WRAP_REFUSED_H
#define ROLL_INTERPOSER_WRAP_REFUSED_H

#include "interposer/record/thread.h"

#include <stdint.h>

struct roll_call;

/* Gives back the number of a call that has returned an error. Inside a group nothing is done: the group's end decides.
 * Keeps errno; the thread is busy. */
void roll_refused_call(struct roll_thread *t, const struct roll_call *call);

/* Gives back the numbers of the calls of group `id` of this thread, of which nothing was enqueued: the group failed, or
 * was only simulated. Its calls, at most `calls`, are looked for in the ring before `ticket`. Keeps errno; the thread
 * is busy. */
void roll_refused_group(struct roll_thread *t, uint32_t id, uint32_t calls, uint64_t ticket);

#endif
