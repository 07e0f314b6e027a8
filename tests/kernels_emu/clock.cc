/*
 * clock.cc: vector clocks (race.h). A barrier of the whole block, the common case, costs one number a thread: what all
 * knew then is in block->base. A warp's lanes know each other's times apart from that (lanes). Only blocks with
 * mbarriers, barriers of a part or the matrix unit pay for whole vectors.
 */
#include "tests/kernels_emu/finding.h"
#include "tests/kernels_emu/race.h"

#include <algorithm>

void emu_clock_begin(struct emu_block *block)
{
    if (block->has_clocks) {
        return;
    }
    block->has_clocks = true;
    for (auto &s : block->state) {
        s.known.assign(block->threads + EMU_AGENTS, 0);
    }
}

uint32_t emu_agent_new(struct emu_thread *T, const struct emu_site *site)
{
    struct emu_block *block = T->block;
    emu_clock_begin(block);
    if (block->agents == EMU_AGENTS) {
        emu_stop(T, EMU_ILLEGAL_INSTRUCTION, site, "more mbarriers and warpgroups than the emulator tells apart");
    }
    block->agent_clock[block->agents] = 1;
    return block->agents++;
}

void emu_clock_known(const struct emu_thread *T, emu_clock *to)
{
    const struct emu_block *block = T->block;
    uint32_t first = T->number / EMU_WARP * EMU_WARP;
    *to = T->own->known;
    to->resize(block->threads + EMU_AGENTS);
    for (uint32_t i = 0; i < block->threads; i++) {
        (*to)[i] = std::max((*to)[i], block->base[i]);
    }
    for (uint32_t i = 0; i < EMU_WARP && first + i < block->threads; i++) {
        (*to)[first + i] = std::max((*to)[first + i], T->own->lanes[i]);
    }
    (*to)[T->number] = T->own->clock;
}

void emu_clock_join(emu_clock *to, const emu_clock &from)
{
    to->resize(std::max(to->size(), from.size()));
    for (size_t i = 0; i < from.size(); i++) {
        (*to)[i] = std::max((*to)[i], from[i]);
    }
}

void emu_clock_join_block(struct emu_block *block)
{
    for (uint32_t i = 0; i < block->threads; i++) {
        block->base[i] = block->state[i].clock++;
    }
    if (!block->has_clocks) {
        return;
    }
    uint32_t agents[EMU_AGENTS] = {0};
    for (auto &s : block->state) {
        for (uint32_t a = 0; a < block->agents; a++) {
            agents[a] = std::max(agents[a], s.known[block->threads + a]);
        }
    }
    for (auto &s : block->state) {
        std::copy(agents, agents + block->agents, s.known.begin() + block->threads);
    }
}

void emu_clock_join_threads(const std::vector<struct emu_thread *> &threads)
{
    emu_clock all, one;
    if (threads.empty()) {
        return;
    }
    emu_clock_begin(threads[0]->block);
    for (struct emu_thread *t : threads) {
        emu_clock_known(t, &one);
        emu_clock_join(&all, one);
        t->own->clock++;
    }
    for (struct emu_thread *t : threads) {
        emu_clock_join(&t->own->known, all);
    }
}

void emu_clock_join_warp(struct emu_thread *T, uint32_t mask)
{
    struct emu_block *block = T->block;
    struct emu_thread_state *states = &block->state[T->number / EMU_WARP * EMU_WARP];
    uint32_t lanes[EMU_WARP] = {0};
    emu_clock known;
    for (uint32_t i = 0; i < EMU_WARP; i++) {
        if (mask >> i & 1) {
            for (uint32_t j = 0; j < EMU_WARP; j++) {
                lanes[j] = std::max(lanes[j], states[i].lanes[j]);
            }
            emu_clock_join(&known, states[i].known);
        }
    }
    for (uint32_t i = 0; i < EMU_WARP; i++) {
        if (mask >> i & 1) {
            lanes[i] = std::max(lanes[i], states[i].clock++);
        }
    }
    for (uint32_t i = 0; i < EMU_WARP; i++) {
        if (mask >> i & 1) {
            std::copy(lanes, lanes + EMU_WARP, states[i].lanes);
            states[i].known = known;
        }
    }
}
