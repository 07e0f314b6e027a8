/*
 * meet.cc: instructions that the lanes of a warp execute together: the lanes of the mask wait until all are there, with
 * a value each. What the mask names and does not come, comes with another instruction, or has ended is a finding: on a
 * GPU it hangs or is undefined.
 *
 * Only __syncwarp orders memory between lanes; shuffles and votes do not, as the PTX ISA has it.
 */
#include "tests/kernels_emu/meet.h"
#include "tests/kernels_emu/finding.h"
#include "tests/kernels_emu/race.h"

#include <algorithm>

uint64_t *emu_meet(struct emu_thread *T, uint32_t mask, uint64_t value, const char *kind, const struct emu_site *site,
                   void (*last)(struct emu_thread *T, uint32_t mask, uint64_t *values))
{
    struct emu_block *block = T->block;
    uint32_t number = T->number / EMU_WARP, lane = T->number % EMU_WARP, first = number * EMU_WARP;
    struct emu_meeting *w = &block->warp[number];
    uint32_t rest = block->threads - first;
    mask &= rest >= EMU_WARP ? ~0u : (1u << rest) - 1;
    if (!(mask >> lane & 1)) {
        emu_stop(T, EMU_ILLEGAL_INSTRUCTION, site, "the lane is not in the mask %08x", mask);
    }
    if (mask & ~w->live) {
        emu_stop(T, EMU_ILLEGAL_INSTRUCTION, site, "the mask %08x names a lane that has ended", mask);
    }
    if (w->arrived == 0) {
        w->mask = mask, w->kind = kind, w->site = site;
    } else if (w->mask != mask || w->kind != kind) {
        emu_stop(T, EMU_ILLEGAL_INSTRUCTION, site, "other lanes of the warp are in %s of %s:%d, mask %08x, not %08x",
                 w->kind, w->site->file, w->site->line, w->mask, mask);
    } else if (w->site != site) {
        emu_found(T, site, "other lanes of the warp execute this at %s:%d", w->site->file, w->site->line);
    }
    uint64_t *values = w->values[w->turn];
    values[lane] = value;
    w->arrived |= 1u << lane;
    if (w->arrived != mask) {
        emu_wait(T, site);
        return values;
    }
    if (last) {
        last(T, mask, values);
    }
    w->arrived = 0;
    w->turn ^= 1; /* a lane may come to the next meeting before another has read its values of this one */
    for (uint32_t i = 0; i < EMU_WARP; i++) {
        if ((mask >> i & 1) && i != lane) {
            emu_ready(&block->thread[first + i]);
        }
    }
    return values;
}

void emu_meeting_thread_ended(struct emu_thread *T)
{
    struct emu_meeting *w = &T->block->warp[T->number / EMU_WARP];
    uint32_t bit = 1u << T->number % EMU_WARP;
    w->live &= ~bit;
    if (w->arrived && (w->mask & bit)) {
        emu_found(T, w->site, "a lane ends that the others of its warp wait for");
    }
}

static void sync_warp(struct emu_thread *T, uint32_t mask, uint64_t *values)
{
    (void)values;
    emu_clock_join_warp(T, mask);
}

void emu_sync_warp(struct emu_thread *T, uint32_t mask, const struct emu_site *site)
{
    emu_meet(T, mask, 0, "bar.warp.sync", site, sync_warp);
}

uint32_t emu_shuffle(struct emu_thread *T, enum emu_shuffle how, uint32_t value, uint32_t lane, uint32_t clamp,
                     uint32_t mask, bool *is_in_range, const struct emu_site *site)
{
    static const char *const names[] = {"shfl.bfly", "shfl.up", "shfl.down", "shfl.idx"};
    uint64_t *values = emu_meet(T, mask, value, names[how], site, nullptr);
    int own = (int)(T->number % EMU_WARP), by = (int)(lane & 31), segment = (int)(clamp >> 8 & 31);
    int least = own & segment, most = least | ((int)(clamp & 31) & ~segment), from = own;
    switch (how) {
    case EMU_SHUFFLE_BFLY:
        from = own ^ by;
        break;
    case EMU_SHUFFLE_UP:
        from = own - by;
        break;
    case EMU_SHUFFLE_DOWN:
        from = own + by;
        break;
    case EMU_SHUFFLE_IDX:
        from = least | (by & ~segment);
        break;
    }
    *is_in_range = how == EMU_SHUFFLE_UP ? from >= most : from <= most;
    from = *is_in_range ? from : own;
    if (!(mask >> from & 1)) {
        emu_found(T, site, "the value comes from lane %d, which the mask %08x does not name", from, mask);
    }
    return (uint32_t)values[from];
}

uint32_t emu_ballot(struct emu_thread *T, bool value, uint32_t mask, const struct emu_site *site)
{
    uint64_t *values = emu_meet(T, mask, value, "vote.ballot", site, nullptr);
    uint32_t set = 0;
    for (int i = 0; i < EMU_WARP; i++) {
        set |= mask >> i & 1 ? (uint32_t)values[i] << i : 0;
    }
    return set;
}

uint32_t emu_reduce_max(struct emu_thread *T, uint32_t value, uint32_t mask, const struct emu_site *site)
{
    uint64_t *values = emu_meet(T, mask, value, "redux.max", site, nullptr);
    uint32_t most = 0;
    for (int i = 0; i < EMU_WARP; i++) {
        most = mask >> i & 1 ? std::max(most, (uint32_t)values[i]) : most;
    }
    return most;
}

uint32_t emu_reduce_min(struct emu_thread *T, uint32_t value, uint32_t mask, const struct emu_site *site)
{
    uint64_t *values = emu_meet(T, mask, value, "redux.min", site, nullptr);
    uint32_t least = ~0u;
    for (int i = 0; i < EMU_WARP; i++) {
        least = mask >> i & 1 ? std::min(least, (uint32_t)values[i]) : least;
    }
    return least;
}
