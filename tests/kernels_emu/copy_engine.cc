/*
 * copy_engine.cc: boxes of tensors from global into shared memory, and the maps that describe them. A box is asked for
 * at one time and arrives at another, which the scheduler chooses; until then its place holds a pattern that no test
 * expects.
 *
 * Rules are those of the PTX ISA: alignments, zeros outside the tensor, the whole box counted as transferred bytes,
 * 128-byte swizzle by bits of the address. A map in device memory that a kernel has made must be acquired by the thread
 * that uses it. How stale a map that was not acquired is on a GPU is not modelled: that it was not is the finding.
 */
#include "tests/kernels_emu/finding.h"
#include "tests/kernels_emu/layout.h"
#include "tests/kernels_emu/mbarrier.h"
#include "tests/kernels_emu/meet.h"
#include "tests/kernels_emu/memory.h"
#include "tests/kernels_emu/race.h"

#include <algorithm>
#include <mutex>
#include <set>

enum { MAP_BYTES = 128, ON_ITS_WAY = 0xfb, SWIZZLE_128 = 3 };

/* maps that kernels have made */

static std::mutex published_lock;
static std::set<uint64_t> published;

static struct hostcuda_tensor_map *map_in_shared(struct emu_thread *T, uint64_t offset, int how,
                                                 const struct emu_site *site)
{
    struct hostcuda_tensor_map *map = (struct hostcuda_tensor_map *)(T->shared + offset);
    if (offset % MAP_BYTES || offset + MAP_BYTES > T->shared_bytes || map->magic != HOSTCUDA_TENSOR_MAGIC) {
        emu_stop(T, EMU_ILLEGAL_ADDRESS, site, "there is no tensor map at %llu",
                 (unsigned long long)offset - EMU_SYSTEM_SHARED);
    }
    emu_race_access(T, offset, MAP_BYTES, true, how, site);
    return map;
}

void emu_map_set_address(struct emu_thread *T, uint64_t offset, uint64_t address, const struct emu_site *site)
{
    if (address % 16) {
        emu_stop(T, EMU_MISALIGNED, site, "a tensor at %#llx", (unsigned long long)address);
    }
    map_in_shared(T, offset, EMU_WRITE, site)->address = address;
}

void emu_map_set_dim(struct emu_thread *T, uint64_t offset, uint32_t dim, uint32_t value, const struct emu_site *site)
{
    struct hostcuda_tensor_map *map = map_in_shared(T, offset, EMU_WRITE, site);
    if (dim >= map->rank) {
        emu_stop(T, EMU_ILLEGAL_INSTRUCTION, site, "dimension %u of a map of rank %u", dim, map->rank);
    }
    map->dims[dim] = value;
}

void emu_map_publish(struct emu_thread *T, uint64_t to, uint64_t offset, uint32_t bytes, const struct emu_site *site)
{
    if (bytes != MAP_BYTES || to % MAP_BYTES || !emu_memory_has(to, MAP_BYTES)) {
        emu_stop(T, EMU_ILLEGAL_ADDRESS, site, "a map of %u bytes at %#llx", bytes, (unsigned long long)to);
    }
    map_in_shared(T, offset, EMU_READ, site);
    uint64_t *targets = emu_meet(T, ~0u, to, "tensormap.cp_fenceproxy", site, nullptr);
    for (int i = 0; i < EMU_WARP; i++) {
        if (targets[i] != to) {
            emu_stop(T, EMU_ILLEGAL_INSTRUCTION, site, "the lanes of the warp copy maps to different places");
        }
    }
    if (T->number % EMU_WARP == 0) {
        emu_race_access(T, to, MAP_BYTES, false, EMU_WRITE, site);
        memcpy((void *)to, T->shared + offset, MAP_BYTES);
        std::lock_guard<std::mutex> guard(published_lock);
        published.insert(to);
    }
}

void emu_map_acquire(struct emu_thread *T, uint64_t map, uint32_t bytes, const struct emu_site *site)
{
    if (bytes != MAP_BYTES || map % MAP_BYTES) {
        emu_stop(T, EMU_ILLEGAL_INSTRUCTION, site, "%u bytes at %#llx are no map", bytes, (unsigned long long)map);
    }
    T->own->maps.push_back(map);
}

static bool must_be_acquired(const struct emu_thread *T, uint64_t map)
{
    std::lock_guard<std::mutex> guard(published_lock);
    return published.count(map) && std::find(T->own->maps.begin(), T->own->maps.end(), map) == T->own->maps.end();
}

/* boxes */

void emu_copy_box(struct emu_thread *T, uint64_t offset, uint64_t map, int32_t x, int32_t y, uint64_t barrier,
                  const struct emu_site *site)
{
    emu_copy_box_to(T, offset, map, x, y, barrier, 1u << T->block->rank, site);
}

/* The box is on its way to one block, whose own mbarrier will count it. */
static void send_box(struct emu_thread *T, struct emu_block *to, const struct emu_box &box, const struct emu_site *site)
{
    auto bar = to->mbarrier.find(box.barrier);
    if (to->live == 0 || bar == to->mbarrier.end()) {
        emu_stop(T, EMU_ILLEGAL_ADDRESS, site,
                 to->live ? "block %u of the cluster has no mbarrier there yet" : "block %u of the cluster has ended",
                 to->rank);
    }
    if (!bar->second.is_known_to_engine) {
        emu_found(T, site, "the mbarrier was initialised without a fence that makes it known to the copy engine");
    }
    if (to == T->block) {
        uint32_t agent = bar->second.agent;
        emu_race_agent(T, agent, to->agent_clock[agent], box.to, box.bytes, EMU_WRITE, site);
    }
    memset(to->shared + box.to, ON_ITS_WAY, box.bytes);
    to->boxes.push_back(box);
}

void emu_copy_box_to(struct emu_thread *T, uint64_t offset, uint64_t map, int32_t x, int32_t y, uint64_t barrier,
                     uint32_t blocks, const struct emu_site *site)
{
    struct emu_grid *grid = T->block->grid;
    if (blocks == 0 || blocks >> grid->cluster.size()) {
        emu_stop(T, EMU_ILLEGAL_INSTRUCTION, site, "a copy for the blocks %#x of a cluster of %zu", blocks,
                 grid->cluster.size());
    }
    struct emu_box box = {};
    bool is_parameter = map - (uint64_t)grid->parameters < grid->parameter_bytes;
    if (map % 64 || (!is_parameter && !emu_memory_has(map, MAP_BYTES))) {
        emu_stop(T, EMU_ILLEGAL_ADDRESS, site, "a tensor map at %#llx", (unsigned long long)map);
    }
    memcpy(&box.map, (const void *)map, sizeof(box.map));
    const struct hostcuda_tensor_map *m = &box.map;
    if (m->magic != HOSTCUDA_TENSOR_MAGIC || m->rank != 2 || m->interleave || m->fill_nan || m->steps[0] != 1 ||
        m->steps[1] != 1 || (m->swizzle && m->swizzle != SWIZZLE_128)) {
        emu_stop(T, EMU_ILLEGAL_INSTRUCTION, site, "the map is none that the emulator has a model of");
    }
    if (!is_parameter && must_be_acquired(T, map)) {
        emu_found(T, site,
                  "the map was made by a kernel, and this thread has not acquired it "
                  "(fence.proxy.tensormap)");
    }
    box.to = (uint32_t)offset, box.barrier = (uint32_t)barrier, box.x = x, box.y = y;
    box.bytes = (uint32_t)m->box[0] * m->box[1] * m->element_bytes;
    box.site = site, box.thread = T->number;
    if (offset % (m->swizzle ? 1024 : 128) || offset + box.bytes > T->shared_bytes || offset < EMU_SYSTEM_SHARED) {
        emu_stop(T, EMU_MISALIGNED, site, "a box of %u bytes at offset %lld of %u", box.bytes,
                 (long long)offset - EMU_SYSTEM_SHARED, T->shared_bytes - EMU_SYSTEM_SHARED);
    }
    emu_mbarrier_at(T, barrier, site);
    if (!is_parameter) {
        emu_race_access(T, map, MAP_BYTES, false, EMU_READ, site);
    }
    box.is_first = true;
    for (struct emu_block &to : grid->cluster) {
        if (blocks >> to.rank & 1) {
            send_box(T, &to, box, site);
            box.is_first = false; /* it is read once */
        }
    }
    grid->counts.boxes++;
}

/* Bytes of a row of the box, whose first lies at `at` before swizzle: pieces of 16 bytes stay together. */
static void put_row(struct emu_block *block, uint32_t at, bool is_swizzled, const uint8_t *from, uint32_t bytes)
{
    while (bytes) {
        uint32_t piece = 16 - at % 16;
        piece = piece < bytes ? piece : bytes;
        uint8_t *to = block->shared + (is_swizzled ? emu_swizzle_128(at) : at);
        if (from) {
            memcpy(to, from, piece);
            from += piece;
        } else {
            memset(to, 0, piece);
        }
        at += piece, bytes -= piece;
    }
}

/* One row of the box, and whether its bytes are memory: zeros, what the tensor has, zeros. */
static bool land_row(struct emu_grid *grid, const struct emu_box *box, uint32_t row)
{
    const struct hostcuda_tensor_map *m = &box->map;
    uint32_t size = m->element_bytes, bytes = m->box[0] * size, at = box->to + row * bytes;
    int64_t y = (int64_t)box->y + row, width = m->dims[0] ? m->dims[0] : INT64_C(1) << 32;
    int64_t begin = 0, end = 0;     /* of the box's elements, which the tensor has */
    if (y >= 0 && y < m->dims[1]) { /* a replaced height of 0 is empty */
        begin = std::min<int64_t>(std::max<int64_t>(-(int64_t)box->x, 0), m->box[0]);
        end = std::min<int64_t>(std::max<int64_t>(width - box->x, begin), m->box[0]);
    }
    uint32_t before = (uint32_t)begin * size, inside = (uint32_t)(end - begin) * size;
    uint64_t from = m->address + (uint64_t)y * m->strides[0] + (uint64_t)(box->x + begin) * size;
    if (inside && !emu_memory_has(from, inside)) {
        return false;
    }
    put_row(grid->block, at, m->swizzle != 0, nullptr, before);
    put_row(grid->block, at + before, m->swizzle != 0, (const uint8_t *)from, inside);
    put_row(grid->block, at + before + inside, m->swizzle != 0, nullptr, bytes - before - inside);
    grid->counts.box_bytes += box->is_first ? inside : 0;
    grid->counts.box_zero_bytes += box->is_first ? bytes - inside : 0;
    return true;
}

void emu_box_land(struct emu_grid *grid, size_t index)
{
    struct emu_block *block = grid->block;
    struct emu_box box = block->boxes[index];
    block->boxes.erase(block->boxes.begin() + (ptrdiff_t)index);
    struct emu_mbarrier_state *m = &block->mbarrier[box.barrier];
    for (uint32_t row = 0; row < box.map.box[1]; row++) {
        if (!land_row(grid, &box, row)) {
            emu_stop_grid(grid, EMU_ILLEGAL_ADDRESS, box.site, box.thread,
                          "out of bounds: row %lld of the tensor, of %u rows of %u elements at %#llx, is no memory of "
                          "the device",
                          (long long)box.y + row, box.map.dims[1], box.map.dims[0],
                          (unsigned long long)box.map.address);
            return;
        }
    }
    m->bytes -= box.bytes;
    if (m->bytes < 0 && grid->cluster.size() == 1) { /* PTX allows it within a phase; a cluster's blocks rely on it */
        emu_stop_grid(grid, EMU_LAUNCH_FAILURE, box.site, box.thread,
                      "more bytes arrive than the mbarrier was told of");
        return;
    }
    m->seen[block->threads + m->agent] = block->agent_clock[m->agent]++;
    emu_mbarrier_settle(block, m);
}

/* registers */

void emu_set_registers(struct emu_thread *T, bool is_more, uint32_t count, const struct emu_site *site)
{
    struct emu_block *block = T->block;
    if (count % 8 || count < 24 || count > 256) {
        emu_stop(T, EMU_ILLEGAL_INSTRUCTION, site, "%u registers", count);
    }
    if (is_more ? count < block->registers_each : count > block->registers_each) {
        emu_found(T, site, "the thread has %u registers already", block->registers_each);
    }
    block->registers_in_use += count - block->registers_each;
}
