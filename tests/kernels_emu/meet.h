/* meet.h: the lanes of a warp in one instruction (meet.cc); the matrix unit of sm_80 and maps use it, too. */
#ifndef ROLL_TESTS_KERNELS_EMU_MEET_H
#define ROLL_TESTS_KERNELS_EMU_MEET_H

#include "tests/kernels_emu/block.h"

/* Waits for the lanes of the mask; the last one calls `last` (NULL: nothing) before the others go on. The values of all
 * lanes, good until the thread's next meeting. `kind`: a literal, the same for lanes that may meet. */
uint64_t *emu_meet(struct emu_thread *T, uint32_t mask, uint64_t value, const char *kind, const struct emu_site *site,
                   void (*last)(struct emu_thread *T, uint32_t mask, uint64_t *values));

#endif
