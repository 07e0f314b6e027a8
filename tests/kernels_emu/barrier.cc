/*
 * barrier.cc: bar.sync, of the whole block or of some of its warps, and its forms that combine a flag. Two different
 * lines of a program that meet in one barrier are a finding: PTX allows it, but no kernel here means it.
 */
#include "tests/kernels_emu/finding.h"
#include "tests/kernels_emu/race.h"

static void release(struct emu_block *block, struct emu_barrier_state *b, bool is_of_all)
{
    b->result_any = b->any, b->result_all = b->all;
    b->any = false, b->all = true;
    b->arrived = 0;
    if (is_of_all) {
        emu_clock_join_block(block);
    } else {
        emu_clock_join_threads(b->waiting);
    }
    for (struct emu_thread *t : b->waiting) {
        emu_ready(t);
    }
    b->waiting.clear();
}

/* The last one to come also waits, for a moment: the order in which they go on is the scheduler's to choose. */
static const struct emu_barrier_state *arrive(struct emu_thread *T, uint32_t id, uint32_t count, bool value,
                                              const struct emu_site *site)
{
    struct emu_block *block = T->block;
    if (id > 15 || count % EMU_WARP) {
        emu_stop(T, EMU_ILLEGAL_INSTRUCTION, site, "barrier %u of %u threads", id, count);
    }
    struct emu_barrier_state *b = &block->barrier[id];
    if (b->arrived == 0) {
        b->count = count, b->site = site, b->all = true;
    } else if (b->count != count || b->site->line != site->line || strcmp(b->site->file, site->file) != 0) {
        emu_found(T, site, "other threads are in the barrier of %s:%d", b->site->file, b->site->line);
    }
    b->any |= value;
    b->all &= value;
    b->arrived++;
    b->waiting.push_back(T);
    if (b->arrived == (count ? count : block->live)) {
        release(block, b, count == 0 || count == block->live);
    }
    emu_wait(T, site);
    return b;
}

void emu_barrier_thread_ended(struct emu_block *block)
{
    for (auto &named : block->barrier) {
        struct emu_barrier_state *b = &named.second;
        if (b->arrived > 0 && b->count == 0 && b->arrived == block->live) {
            release(block, b, true);
        }
    }
}

void emu_barrier(struct emu_thread *T, uint32_t id, uint32_t count, const struct emu_site *site)
{
    arrive(T, id, count, false, site);
}

bool emu_barrier_or(struct emu_thread *T, uint32_t id, bool value, const struct emu_site *site)
{
    return arrive(T, id, 0, value, site)->result_any;
}

bool emu_barrier_and(struct emu_thread *T, uint32_t id, bool value, const struct emu_site *site)
{
    return arrive(T, id, 0, value, site)->result_all;
}
