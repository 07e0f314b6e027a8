/*
 * cluster.cc: what the blocks of a cluster do to each other: arrivals at another block's mbarrier, and the barrier of
 * all their threads. Copies into other blocks are copy_engine.cc's.
 *
 * A place in another block's shared memory is an offset with the block's number, plus one, above bit 24: no offset
 * reaches so far, and an address that was not made by mapa is found out. To reach a block that has ended is a fault, as
 * it would be on a GPU.
 */
#include "tests/kernels_emu/finding.h"
#include "tests/kernels_emu/mbarrier.h"

enum { RANK_SHIFT = 24 };

uint32_t emu_map_rank(struct emu_thread *T, uint32_t offset, uint32_t rank, const struct emu_site *site)
{
    if (rank >= T->block->grid->cluster.size() || offset >> RANK_SHIFT) {
        emu_stop(T, EMU_ILLEGAL_ADDRESS, site, "block %u of a cluster of %zu", rank, T->block->grid->cluster.size());
    }
    return (rank + 1) << RANK_SHIFT | offset;
}

void emu_mbarrier_arrive_at(struct emu_thread *T, uint64_t place, const struct emu_site *site)
{
    uint32_t rank = (uint32_t)(place >> RANK_SHIFT) - 1;
    if (rank >= T->block->grid->cluster.size()) {
        emu_stop(T, EMU_ILLEGAL_ADDRESS, site, "no place in a block of the cluster");
    }
    struct emu_block *to = &T->block->grid->cluster[rank];
    uint32_t offset = (uint32_t)place & ((1u << RANK_SHIFT) - 1);
    if (to == T->block) {
        emu_mbarrier_arrive(T, offset, 0, site);
        return;
    }
    auto found = to->mbarrier.find(offset);
    if (to->live == 0 || found == to->mbarrier.end()) {
        emu_stop(T, EMU_ILLEGAL_ADDRESS, site,
                 to->live ? "block %u of the cluster has no mbarrier there yet" : "block %u of the cluster has ended",
                 rank);
    }
    if (found->second.pending == 0) {
        emu_stop(T, EMU_LAUNCH_FAILURE, site, "more arrivals than the mbarrier of block %u expects in a phase (%u)",
                 rank, found->second.expected);
    }
    found->second.pending--;
    emu_mbarrier_settle(to, &found->second);
}

static void settle(struct emu_grid *grid)
{
    uint32_t live = 0;
    for (struct emu_block &block : grid->cluster) {
        live += block.live;
    }
    if (grid->meeting.arrived == 0 || grid->meeting.arrived < live) {
        return;
    }
    grid->meeting.arrived = 0;
    grid->meeting.phase++;
    for (struct emu_thread *t : grid->meeting.waiting) {
        emu_ready(t);
    }
    grid->meeting.waiting.clear();
}

void emu_cluster_arrive(struct emu_thread *T, const struct emu_site *site)
{
    (void)site;
    struct emu_grid *grid = T->block->grid;
    T->own->met = grid->meeting.phase;
    grid->meeting.arrived++;
    settle(grid);
}

void emu_cluster_wait(struct emu_thread *T, const struct emu_site *site)
{
    struct emu_grid *grid = T->block->grid;
    if (grid->meeting.phase == T->own->met) {
        grid->meeting.waiting.push_back(T);
        emu_wait(T, site);
    }
}

void emu_cluster_thread_ended(struct emu_grid *grid)
{
    settle(grid);
}
