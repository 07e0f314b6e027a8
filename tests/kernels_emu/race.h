/*
 * race.h: who has touched a word of memory, and whether he who touches it now knows of it.
 *
 * Happens-before by vector clocks, as the PTX memory model has it for what the kernels use: barriers of the block,
 * __syncwarp and mbarriers order memory; shuffles, votes and relaxed atomics do not. Two accesses race where they touch
 * the same byte, one of them writes, not both are strong (atomic, relaxed, volatile), and neither is known to the
 * other. Blocks never know of each other; in a launch of clusters, whose blocks could, the
 * shared memory is not looked at. All readers since the last write are kept, not a sample.
 *
 * Asynchronous work is an agent with a clock of its own: an mbarrier, for the boxes that complete on it, and a
 * warpgroup, for its wgmma. It knows what the thread knows that started it, and others know of it once they have waited
 * for its mbarrier, or for its group.
 */
#ifndef ROLL_TESTS_KERNELS_EMU_RACE_H
#define ROLL_TESTS_KERNELS_EMU_RACE_H

#include "tests/kernels_emu/block.h"

/* clocks (clock.cc) */

/* From here on each thread has a vector clock of its own: before, barriers and __syncwarp need less. */
void emu_clock_begin(struct emu_block *block);
/* The number of a new agent; ends the launch where there are too many. */
uint32_t emu_agent_new(struct emu_thread *T, const struct emu_site *site);

/* Whether the thread knows of what `who` did at that time. Here, because every access asks. */
static inline bool emu_clock_knows(const struct emu_thread *T, uint32_t who, uint32_t clock)
{
    const struct emu_block *block = T->block;
    if (who == T->number) {
        return true;
    }
    if (who < block->threads) {
        if (clock <= block->base[who]) {
            return true;
        }
        if (who / EMU_WARP == T->number / EMU_WARP && clock <= T->own->lanes[who % EMU_WARP]) {
            return true;
        }
    }
    return block->has_clocks && who < T->own->known.size() && clock <= T->own->known[who];
}

/* All that the thread knows, itself included. */
void emu_clock_known(const struct emu_thread *T, emu_clock *to);
void emu_clock_join(emu_clock *to, const emu_clock &from);
void emu_clock_join_block(struct emu_block *block);
void emu_clock_join_threads(const std::vector<struct emu_thread *> &threads);
void emu_clock_join_warp(struct emu_thread *T, uint32_t mask);

/* accesses (race.cc): `how` of enum emu_how; offsets where `is_shared` */

void emu_race_access(struct emu_thread *T, uint64_t address, uint32_t bytes, bool is_shared, int how,
                     const struct emu_site *site);
/* By an agent, started by the thread. */
void emu_race_agent(struct emu_thread *T, uint32_t agent, uint32_t clock, uint64_t offset, uint32_t bytes, int how,
                    const struct emu_site *site);
/* cp.async into shared memory: races with everything, its own thread included, until the thread has waited for it; then
 * it counts as a store of the thread. */
void emu_race_copy(struct emu_thread *T, uint64_t offset, uint32_t bytes, bool is_done, const struct emu_site *site);
/* A launch, and a block of it, begin: the cells are empty. `is_overlapped`: what the kernel before touched may still be
 * touched by it. */
void emu_race_begin_launch(struct emu_grid *grid, bool is_overlapped);
void emu_race_begin_block(struct emu_grid *grid);

#endif
