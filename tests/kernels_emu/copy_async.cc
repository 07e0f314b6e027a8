/*
 * copy_async.cc: cp.async, copies of 16 bytes from global into shared memory that a thread starts and waits for by
 * group. They happen as late as they may, when they are waited for: the place holds a pattern until then.
 */
#include "tests/kernels_emu/finding.h"
#include "tests/kernels_emu/memory.h"
#include "tests/kernels_emu/race.h"

enum { ON_ITS_WAY = 0xfb };

void emu_copy_async(struct emu_thread *T, uint64_t offset, uint64_t from, uint32_t most, uint32_t bytes,
                    const struct emu_site *site)
{
    if (most != 16 || bytes > 16 || offset % 16 || from % 16) {
        emu_stop(T, EMU_MISALIGNED, site, "cp.async of %u of %u bytes", bytes, most);
    }
    if (offset + 16 > T->shared_bytes || offset < EMU_SYSTEM_SHARED || (bytes && !emu_memory_has(from, bytes))) {
        emu_stop(T, EMU_ILLEGAL_ADDRESS, site, "out of bounds: cp.async of %u bytes from %#llx to %lld", bytes,
                 (unsigned long long)from, (long long)offset - EMU_SYSTEM_SHARED);
    }
    emu_race_copy(T, offset, 16, false, site);
    if (bytes) {
        emu_race_access(T, from, bytes, false, EMU_READ, site);
    }
    memset(T->shared + offset, ON_ITS_WAY, 16);
    T->own->copies.push_back({(uint32_t)offset, from, bytes, site});
    T->block->grid->counts.async_copied += bytes;
}

void emu_copy_commit(struct emu_thread *T, const struct emu_site *site)
{
    (void)site;
    T->own->copy_groups.push_back(T->own->copies.size());
}

void emu_copy_wait(struct emu_thread *T, uint32_t groups_left, const struct emu_site *site)
{
    (void)site;
    struct emu_thread_state *own = T->own;
    if (own->copy_groups.size() <= groups_left) {
        return;
    }
    size_t groups = own->copy_groups.size() - groups_left, copies = own->copy_groups[groups - 1];
    for (size_t i = 0; i < copies; i++) {
        const struct emu_copy *c = &own->copies[i];
        memset(T->shared + c->to, 0, 16);
        memcpy(T->shared + c->to, (const void *)c->from, c->bytes);
        emu_race_copy(T, c->to, 16, true, c->site);
    }
    own->copies.erase(own->copies.begin(), own->copies.begin() + (ptrdiff_t)copies);
    own->copy_groups.erase(own->copy_groups.begin(), own->copy_groups.begin() + (ptrdiff_t)groups);
    for (size_t &end : own->copy_groups) {
        end -= copies;
    }
}
