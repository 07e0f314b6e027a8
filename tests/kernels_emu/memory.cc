/*
 * memory.cc: which memory a kernel may touch: the program's device memory, as hostcuda tells of it, and the shared
 * memory and parameters of the launch. Pages protected by the system were rejected: they find what is a page too far,
 * not a byte.
 */
#include "tests/kernels_emu/memory.h"
#include "tests/kernels_emu/finding.h"
#include "tests/kernels_emu/race.h"

#include <atomic>
#include <map>
#include <mutex>

static std::mutex lock;
static std::map<uint64_t, uint64_t> regions; /* end -> start */
static std::atomic<uint64_t> version;

void emu_memory_told(const void *start, size_t bytes, bool is_there)
{
    uint64_t from = (uint64_t)start;
    std::lock_guard<std::mutex> guard(lock);
    version++;
    if (is_there) {
        regions[from + bytes] = from;
        return;
    }
    auto found = regions.upper_bound(from);
    if (found != regions.end() && found->second <= from) {
        regions.erase(found);
    }
}

/* Whether global memory holds all of the bytes. The thread remembers the last places. */
bool emu_memory_has(uint64_t address, uint64_t bytes)
{
    enum { REMEMBERED = 8 };
    static thread_local struct {
        uint64_t from[REMEMBERED], to[REMEMBERED], version;
        unsigned int next;
    } last;
    uint64_t now = version;
    if (last.version != now) {
        memset(&last, 0, sizeof(last));
        last.version = now;
    }
    for (int i = 0; i < REMEMBERED; i++) {
        if (address >= last.from[i] && address + bytes <= last.to[i]) {
            return true;
        }
    }
    std::lock_guard<std::mutex> guard(lock);
    auto found = regions.upper_bound(address);
    if (found == regions.end() || found->second > address || address + bytes > found->first) {
        return false;
    }
    last.from[last.next] = found->second;
    last.to[last.next] = found->first;
    last.next = (last.next + 1) % REMEMBERED;
    return true;
}

static void count(struct emu_counts *c, uint32_t bytes, bool is_shared, int how)
{
    if ((how & EMU_STRONG) && (how & EMU_WRITE) && (how & EMU_READ)) {
        c->global_atomics += is_shared ? 0 : 1;
    } else if (how & EMU_READ) {
        (is_shared ? c->shared_read : c->global_read) += bytes;
    } else {
        (is_shared ? c->shared_written : c->global_written) += bytes;
    }
}

uint64_t emu_at(struct emu_thread *T, uint64_t address, uint32_t bytes, enum emu_space space, int how,
                const struct emu_site *site)
{
    struct emu_grid *grid = T->block->grid;
    bool is_shared = space == EMU_SHARED;
    if (space == EMU_GENERIC && address - T->shared_address() < T->shared_bytes) {
        address -= T->shared_address();
        is_shared = true;
    }
    if (address % bytes != 0) {
        emu_stop(T, EMU_MISALIGNED, site, "misaligned: %u bytes at %s %#llx", bytes, is_shared ? "offset" : "address",
                 (unsigned long long)address);
    }
    if (is_shared) {
        if (address < EMU_SYSTEM_SHARED || address + bytes > T->shared_bytes) {
            emu_stop(T, EMU_ILLEGAL_ADDRESS, site, "out of bounds: shared memory at %lld of %u bytes",
                     (long long)address - EMU_SYSTEM_SHARED, T->shared_bytes - EMU_SYSTEM_SHARED);
        }
    } else if (!(address - (uint64_t)grid->parameters < grid->parameter_bytes) && !emu_memory_has(address, bytes)) {
        emu_stop(T, EMU_ILLEGAL_ADDRESS, site, "out of bounds: %u bytes at %#llx are no memory of the device", bytes,
                 (unsigned long long)address);
    }
    count(&grid->counts, bytes, is_shared, how);
    emu_race_access(T, address, bytes, is_shared, how, site);
    return is_shared ? T->shared_address() + address : address;
}
