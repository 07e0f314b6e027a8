/*
 * schedule.cc: which thread of a block runs next, until all have ended, a finding ends the launch, or nobody can go on.
 *
 * A GPU promises nothing about the order of threads, so it is chosen to hurt: always the lowest, always the highest, at
 * random, or with a lane that is left behind until nothing else can run, not even the copy engine. That lane is one
 * lane of one warp in every other block, and one lane of every warp in the rest. Boxes arrive late in the ascending
 * order, at once in the descending one, and whenever chance says so in the others. Of a cluster the lowest block runs
 * until it can do nothing, or the highest, or one that chance leaves ahead for a while.
 */
#include "tests/kernels_emu/fiber.h"
#include "tests/kernels_emu/finding.h"
#include "tests/kernels_emu/race.h"

#include <string>

/* xorshift*, of which the upper half is good enough. */
uint64_t emu_random(struct emu_grid *grid)
{
    uint64_t x = grid->random_state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    grid->random_state = x;
    return x * UINT64_C(0x2545F4914F6CDD1D) >> 33;
}

void emu_ready(struct emu_thread *T)
{
    T->own->state = EMU_RUNS;
    T->block->ready[T->number / 64] |= UINT64_C(1) << T->number % 64;
    T->block->ready_count++;
}

void emu_wait(struct emu_thread *T, const struct emu_site *site)
{
    T->own->state = EMU_WAITS;
    T->own->waits_at = site;
    emu_fiber_leave(&T->own->stack_pointer, T->block->grid->scheduler, false);
}

static bool is_starved(const struct emu_block *block, uint32_t number)
{
    return block->starved_lane >= 0 && (int)(number % EMU_WARP) == block->starved_lane &&
           (block->starved_warp < 0 || (int)(number / EMU_WARP) == block->starved_warp);
}

/* Which of a word's threads may run: without the starved ones, unless `all`. */
static uint64_t candidates(const struct emu_block *block, uint32_t word, bool all)
{
    uint64_t set = block->ready[word];
    for (uint32_t half = 0; half < 2 && !all; half++) {
        uint32_t number = word * 64 + half * EMU_WARP + (uint32_t)block->starved_lane;
        if (is_starved(block, number)) {
            set &= ~(UINT64_C(1) << number % 64);
        }
    }
    return set;
}

/* A ready thread in the order of the environment; -1: none, or starved ones only while not `all`. */
static int choose(struct emu_grid *grid, bool all)
{
    struct emu_block *block = grid->block;
    enum emu_order order = emu_environment()->order;
    uint32_t words = (block->threads + 63) / 64;
    bool is_random = order == EMU_RANDOM || order == EMU_STARVING;
    uint32_t start = is_random ? (uint32_t)(emu_random(grid) % words) : 0;
    uint32_t turn = is_random ? (uint32_t)(emu_random(grid) % 64) : 0;
    for (uint32_t i = 0; i < words; i++) {
        uint32_t word = order == EMU_DESCENDING ? words - 1 - i : (start + i) % words;
        uint64_t set = candidates(block, word, all || block->starved_lane < 0);
        if (set == 0) {
            continue;
        }
        if (order == EMU_DESCENDING) {
            return (int)(word * 64 + 63 - (uint32_t)__builtin_clzll(set));
        }
        uint64_t turned = turn ? set >> turn | set << (64 - turn) : set;
        return (int)(word * 64 + ((uint32_t)__builtin_ctzll(turned) + turn) % 64);
    }
    return -1;
}

/* Whether a box arrives before the next thread runs. */
static bool box_is_due(struct emu_grid *grid)
{
    if (grid->block->boxes.empty()) {
        return false;
    }
    switch (emu_environment()->order) {
    case EMU_ASCENDING:
        return false;
    case EMU_DESCENDING:
        return true;
    default:
        return emu_random(grid) % 16 == 0;
    }
}

static void say_deadlock(struct emu_grid *grid)
{
    std::map<const struct emu_site *, std::pair<const struct emu_thread *, uint32_t>>
        waits; /* site -> first, how many */
    for (struct emu_block &block : grid->cluster) {
        for (uint32_t i = 0; i < block.threads; i++) {
            if (block.state[i].state == EMU_WAITS) {
                waits.emplace(block.state[i].waits_at, std::make_pair(&block.thread[i], 0)).first->second.second++;
            }
        }
    }
    std::string all;
    uint32_t thread = 0;
    const struct emu_site *site = nullptr;
    for (auto &w : waits) {
        if (!site || w.second.second < waits[site].second) {
            site = w.first, thread = w.second.first->number;
            grid->block = w.second.first->block;
        }
        const char *file = w.first ? w.first->file : "?";
        all += (all.empty() ? "" : ", ") + std::to_string(w.second.second) + " from " +
               std::to_string(w.second.first->number) + " on at " + file + ":" +
               std::to_string(w.first ? w.first->line : 0);
    }
    emu_stop_grid(grid, EMU_TIMEOUT, site, thread, "deadlock: all threads wait for ever: %.500s", all.c_str());
}

static void thread_ended(struct emu_thread *T)
{
    struct emu_block *block = T->block;
    block->live--;
    if (!T->own->copies.empty()) {
        emu_found(T, T->own->copies[0].site, "the thread ends before its cp.async is done");
    }
    emu_meeting_thread_ended(T);
    emu_barrier_thread_ended(block);
    emu_cluster_thread_ended(block->grid);
}

/* One thread of the block at hand runs, or a box arrives. False: nothing can; without the starved ones, unless `all`.
 */
static bool step(struct emu_grid *grid, bool all)
{
    struct emu_block *block = grid->block;
    if (box_is_due(grid)) {
        emu_box_land(grid, emu_random(grid) % block->boxes.size());
        return true;
    }
    int next = block->ready_count ? choose(grid, all) : -1;
    if (next < 0 && !block->boxes.empty()) {
        emu_box_land(grid, emu_environment()->order == EMU_ASCENDING ? 0 : emu_random(grid) % block->boxes.size());
        return true;
    }
    if (next < 0) {
        return false;
    }
    block->ready[next / 64] &= ~(UINT64_C(1) << next % 64);
    block->ready_count--;
    block->state[next].state = EMU_RUNS;
    emu_fiber_enter(&grid->scheduler, block->state[next].stack_pointer, block->rank * EMU_THREADS + (size_t)next);
    if (block->state[next].state == EMU_ENDED && !grid->fault) {
        thread_ended(&block->thread[next]);
    }
    return true;
}

/* A step of one of the cluster's blocks, `ahead` first. */
static bool step_of_any(struct emu_grid *grid, uint32_t ahead, bool all)
{
    uint32_t blocks = (uint32_t)grid->cluster.size();
    for (uint32_t i = 0; i < blocks; i++) {
        grid->block = &grid->cluster[(ahead + i) % blocks];
        if (step(grid, all)) {
            return true;
        }
    }
    return false;
}

static uint32_t live(const struct emu_grid *grid)
{
    uint32_t count = 0;
    for (const struct emu_block &block : grid->cluster) {
        count += block.live;
    }
    return count;
}

void emu_run_cluster(struct emu_grid *grid)
{
    uint32_t blocks = (uint32_t)grid->cluster.size();
    uint32_t ahead = emu_environment()->order == EMU_DESCENDING ? blocks - 1 : 0;
    bool is_random = emu_environment()->order == EMU_RANDOM || emu_environment()->order == EMU_STARVING;
    while (live(grid) > 0 && !grid->fault) {
        if (blocks > 1 && is_random && emu_random(grid) % 64 == 0) {
            ahead = (uint32_t)(emu_random(grid) % blocks);
        }
        if (!step_of_any(grid, ahead, false) && !step_of_any(grid, ahead, true)) {
            say_deadlock(grid);
            return;
        }
    }
}
