/*
 * fiber.h: stacks, and the switch from one to another. Threads of the operating system were rejected: a block has up to
 * a thousand, a switch between them costs microseconds, and their order would not be ours to choose. ucontext was
 * rejected for x86-64 because it makes a system call at each switch.
 */
#ifndef ROLL_TESTS_KERNELS_EMU_FIBER_H
#define ROLL_TESTS_KERNELS_EMU_FIBER_H

#include <cstddef>
#include <cstdint>

/* The stack of the i-th fiber of the calling thread, prepared to call start(argument), which must not return: its stack
 * pointer. NULL without memory. */
void *emu_fiber_prepare(size_t i, void (*start)(void *argument), void *argument);
/* From the scheduler into the i-th fiber, until it leaves. */
void emu_fiber_enter(void **scheduler, void *fiber, size_t i);
/* Back to the scheduler. `for_ever`: the fiber is not entered again. */
void emu_fiber_leave(void **fiber, void *scheduler, bool for_ever);

#endif
