/*
 * count.cc: what each launch moved and computed, by exact count: a line of JSON a launch, appended to the file that
 * KERNELS_EMU_COUNTS names. README.md says what each number is.
 */
#include "tests/kernels_emu/block.h"

#include <cstdio>
#include <mutex>

void emu_counts_write(const struct emu_grid *grid, double seconds)
{
    static std::mutex lock;
    const struct emu_counts *c = &grid->counts;
    const struct hostcuda_code_launch *l = grid->launch;
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {
        {"global_read_bytes", c->global_read},
        {"global_written_bytes", c->global_written},
        {"global_atomics", c->global_atomics},
        {"touched_read_bytes", c->touched_read},
        {"touched_written_bytes", c->touched_written},
        {"shared_read_bytes", c->shared_read},
        {"shared_written_bytes", c->shared_written},
        {"cp_async_bytes", c->async_copied},
        {"tma_boxes", c->boxes},
        {"tma_bytes", c->box_bytes},
        {"tma_zero_bytes", c->box_zero_bytes},
        {"wgmma_shared_bytes", c->matrix_read},
        {"mma_flop", c->mma_flop},
        {"wgmma_flop", c->wgmma_flop},
    };
    std::string line = "{\"kernel\":\"" + std::string(grid->kernel->entry.name) + "\",\"grid\":[" +
                       std::to_string(l->grid[0]) + "," + std::to_string(l->grid[1]) + "," +
                       std::to_string(l->grid[2]) + "],\"threads\":" + std::to_string(grid->block->threads) +
                       ",\"shared_bytes\":" + std::to_string(grid->shared_bytes);
    for (auto &n : numbers) {
        line += std::string(",\"") + n.name + "\":" + std::to_string(n.value);
    }
    line += ",\"emulated_s\":" + std::to_string(seconds) + "}\n";
    std::lock_guard<std::mutex> guard(lock);
    FILE *file = fopen(emu_environment()->counts, "a");
    if (file) {
        fwrite(line.data(), 1, line.size(), file);
        fclose(file);
    }
}
