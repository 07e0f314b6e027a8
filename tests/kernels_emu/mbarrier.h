/* mbarrier.h: what the copy engine needs of mbarriers (mbarrier.cc). */
#ifndef ROLL_TESTS_KERNELS_EMU_MBARRIER_H
#define ROLL_TESTS_KERNELS_EMU_MBARRIER_H

#include "tests/kernels_emu/block.h"

/* The mbarrier at that offset; ends the launch where there is none. */
struct emu_mbarrier_state *emu_mbarrier_at(struct emu_thread *T, uint64_t offset, const struct emu_site *site);
/* Begins the next phase where this one is over. */
void emu_mbarrier_settle(struct emu_block *block, struct emu_mbarrier_state *m);

#endif
