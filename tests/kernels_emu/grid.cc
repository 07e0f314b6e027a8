/*
 * grid.cc: a launch: its parameters, its shared memory, its blocks one after the other, its threads as fibers.
 *
 * What a GPU leaves undefined is made different each time: shared memory holds one of three patterns when a block
 * begins, and dynamic shared memory begins at a multiple of 16 bytes and no better. So a kernel that relies on more
 * fails.
 */
#include "tests/kernels_emu/fiber.h"
#include "tests/kernels_emu/finding.h"
#include "tests/kernels_emu/race.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>

enum { REGISTERS = 65536, REGISTERS_MAX = 255 };

static void start(void *argument)
{
    struct emu_thread *T = (struct emu_thread *)argument;
    T->block->grid->kernel->body(T, T->block->grid->parameters);
    T->own->state = EMU_ENDED;
    emu_fiber_leave(&T->own->stack_pointer, T->block->grid->scheduler, true);
}

static void spoil_shared(struct emu_grid *grid)
{
    uint64_t how = emu_random(grid) % 3;
    uint8_t *shared = grid->block->shared;
    if (how < 2) {
        memset(shared, how == 0 ? 0xff : 0x5a, grid->shared_bytes);
        return;
    }
    for (uint32_t i = 0; i + 8 <= grid->shared_bytes; i += 8) {
        uint64_t noise = emu_random(grid) * UINT64_C(0x9E3779B97F4A7C15);
        memcpy(shared + i, &noise, 8);
    }
}

static bool prepare_thread(struct emu_grid *grid, uint32_t i)
{
    struct emu_block *block = grid->block;
    const uint32_t *size = grid->launch->threads, *count = grid->launch->grid;
    struct emu_thread *t = &block->thread[i];
    *t = {{i % size[0], i / size[0] % size[1], i / size[0] / size[1]},
          {size[0], size[1], size[2]},
          {block->number % count[0], block->number / count[0] % count[1], block->number / count[0] / count[1]},
          {count[0], count[1], count[2]},
          i,
          grid->dynamic,
          block->shared,
          grid->shared_bytes,
          block,
          &block->state[i]};
    t->own->clock = 1;
    t->own->stack_pointer = emu_fiber_prepare(block->rank * EMU_THREADS + i, start, t);
    emu_ready(t);
    return t->own->stack_pointer != nullptr;
}

/* The block as it is when its first thread begins. False without memory. */
static bool prepare_block(struct emu_grid *grid, uint32_t number)
{
    struct emu_block *block = grid->block;
    uint32_t threads = block->threads;
    block->number = number;
    block->live = threads;
    block->thread.resize(threads);
    block->state.assign(threads, emu_thread_state());
    block->warp.assign((threads + EMU_WARP - 1) / EMU_WARP, emu_meeting());
    block->group.assign((threads + EMU_GROUP - 1) / EMU_GROUP, emu_warpgroup());
    block->barrier.clear();
    block->mbarrier.clear();
    block->boxes.clear();
    memset(block->ready, 0, sizeof(block->ready));
    block->ready_count = 0;
    block->base.assign(threads, 0);
    block->agents = 0;
    block->has_clocks = false;
    uint32_t whole = (threads + EMU_GROUP - 1) / EMU_GROUP * EMU_GROUP;
    block->registers_each = std::min<uint32_t>(REGISTERS_MAX, REGISTERS / whole / 8 * 8);
    block->registers_in_use = block->registers_each * threads;
    block->starved_lane = emu_environment()->order == EMU_STARVING ? (int)(emu_random(grid) % EMU_WARP) : -1;
    block->starved_warp = emu_random(grid) % 2 ? (int)(emu_random(grid) % block->warp.size()) : -1;
    spoil_shared(grid);
    emu_race_begin_block(grid);
    for (uint32_t i = 0; i < threads; i++) {
        block->warp[i / EMU_WARP].live |= 1u << i % EMU_WARP;
        if (!prepare_thread(grid, i)) {
            return false;
        }
    }
    return true;
}

static void finish_block(struct emu_grid *grid)
{
    struct emu_block *block = grid->block;
    if (grid->fault) {
        return;
    }
    if (!block->boxes.empty()) {
        emu_stop_grid(grid, EMU_LAUNCH_FAILURE, block->boxes[0].site, block->boxes[0].thread,
                      "the block ends with %zu boxes on their way", block->boxes.size());
    }
    if (block->registers_in_use > REGISTERS) {
        emu_stop_grid(grid, EMU_LAUNCH_FAILURE, nullptr, 0, "the threads take %u registers of %d",
                      block->registers_in_use, REGISTERS);
    }
}

/* In which order the clusters run. */
static std::vector<uint32_t> order_of_clusters(struct emu_grid *grid, uint32_t count)
{
    std::vector<uint32_t> turn(count);
    for (uint32_t i = 0; i < count; i++) {
        turn[i] = emu_environment()->order == EMU_DESCENDING ? count - 1 - i : i;
    }
    if (emu_environment()->order == EMU_RANDOM || emu_environment()->order == EMU_STARVING) {
        for (uint32_t i = count; i > 1; i--) {
            std::swap(turn[i - 1], turn[emu_random(grid) % i]);
        }
    }
    return turn;
}

/* Parameters as the kernel reads them, 16-byte aligned and more (maps), behind them a pattern. */
static char *copy_parameters(const struct emu_kernel *kernel, const struct hostcuda_code_launch *launch, char *to)
{
    for (size_t i = 0; i < kernel->entry.count; i++) {
        memcpy(to + kernel->parameters[i].offset, launch->parameters[i], kernel->parameters[i].bytes);
    }
    return to;
}

/* Room that a thread of the operating system keeps between launches. */
struct room {
    alignas(128) char parameters[4096];
    alignas(1024) uint8_t shared[EMU_CLUSTER][(EMU_SHARED_MAX + EMU_SYSTEM_SHARED + 1024) / 1024 * 1024];
    struct emu_grid grid;
};

/* A cluster of blocks, from the first thread to the last. False without memory. */
static bool run_cluster(struct emu_grid *grid, uint32_t number)
{
    uint32_t blocks = (uint32_t)grid->cluster.size();
    grid->meeting = {};
    for (struct emu_block &block : grid->cluster) {
        grid->block = &block;
        if (!prepare_block(grid, number * blocks + block.rank)) {
            return false;
        }
        for (auto &s : block.state) {
            s.has_waited = !grid->launch->is_overlapped;
        }
    }
    emu_run_cluster(grid);
    for (struct emu_block &block : grid->cluster) {
        grid->block = &block;
        finish_block(grid);
    }
    return true;
}

int emu_grid_run(const struct emu_kernel *kernel, const struct hostcuda_code_launch *launch)
{
    static thread_local std::unique_ptr<struct room> room;
    static std::atomic<uint64_t> launches;
    auto begin = std::chrono::steady_clock::now();
    if (!room) {
        room.reset(new (std::nothrow) struct room);
    }
    if (!room) {
        return 2; /* cudaErrorMemoryAllocation */
    }
    struct emu_grid *grid = &room->grid;
    memset(room->parameters, 0xee, sizeof(room->parameters));
    grid->kernel = kernel;
    grid->launch = launch;
    grid->parameters = copy_parameters(kernel, launch, room->parameters);
    grid->parameter_bytes = sizeof(room->parameters);
    grid->random_state =
        (emu_environment()->seed * UINT64_C(0x9E3779B97F4A7C15) + ++launches * UINT64_C(0xD1B54A32D192ED03)) | 1;
    grid->fault = grid->finding = 0;
    grid->counts = {};
    uint32_t owned = (EMU_SYSTEM_SHARED + (uint32_t)kernel->entry.shared_bytes + 15) / 16 * 16;
    uint32_t most = EMU_SYSTEM_SHARED + EMU_SHARED_MAX + 64;
    uint32_t gap = 16 * (uint32_t)(emu_random(grid) % 4);
    grid->dynamic = launch->shared_bytes ? owned + gap : owned;
    grid->shared_bytes = grid->dynamic + (uint32_t)launch->shared_bytes;
    uint32_t blocks = launch->cluster ? launch->cluster : 1;
    if (blocks > EMU_CLUSTER || launch->grid[0] % blocks) {
        return 1;
    }
    grid->cluster.resize(blocks);
    grid->block = &grid->cluster[0];
    for (uint32_t i = 0; i < blocks; i++) {
        grid->cluster[i].grid = grid;
        grid->cluster[i].rank = i;
        grid->cluster[i].shared = room->shared[i];
        grid->cluster[i].threads = launch->threads[0] * launch->threads[1] * launch->threads[2];
    }
    uint32_t count = launch->grid[0] * launch->grid[1] * launch->grid[2];
    if (grid->shared_bytes > most || grid->block->threads > EMU_THREADS) {
        return 1; /* cudaErrorInvalidValue */
    }
    emu_race_begin_launch(grid, launch->is_overlapped);
    for (uint32_t number : order_of_clusters(grid, count / blocks)) {
        if (!run_cluster(grid, number)) {
            return 2;
        }
        if (grid->fault) {
            break;
        }
    }
    if (emu_environment()->counts) {
        emu_counts_write(grid, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    return grid->fault ? grid->fault : grid->finding;
}

void emu_wait_for_primary(struct emu_thread *T, const struct emu_site *site)
{
    (void)site;
    T->own->has_waited = true;
}

void emu_release_dependents(struct emu_thread *T, const struct emu_site *site)
{
    (void)T;
    (void)site;
}
