/*
 * finding.h: what a kernel does that it must not. A finding is printed once for each pair of places, with the kernel,
 * the line of its source, the block and the thread, and the launch becomes a fault of the device, which every later
 * call of the program sees.
 */
#ifndef ROLL_TESTS_KERNELS_EMU_FINDING_H
#define ROLL_TESTS_KERNELS_EMU_FINDING_H

#include "tests/kernels_emu/block.h"

/* As the vendor numbers them. */
enum {
    EMU_ILLEGAL_ADDRESS = 700,
    EMU_TIMEOUT = 702,
    EMU_ILLEGAL_INSTRUCTION = 715,
    EMU_MISALIGNED = 716,
    EMU_LAUNCH_FAILURE = 719,
    EMU_ILLEGAL_STATE = 401,
};

/* Ends the launch, from a fiber. */
[[noreturn]] void emu_stop(struct emu_thread *T, int error, const struct emu_site *site, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Ends the launch, from the scheduler. */
void emu_stop_grid(struct emu_grid *grid, int error, const struct emu_site *site, uint32_t thread, const char *format,
                   ...) __attribute__((format(printf, 5, 6)));
/* The launch goes on and fails at its end, so that one run finds more than one thing. */
void emu_found(struct emu_thread *T, const struct emu_site *site, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
