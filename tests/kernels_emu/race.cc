/*
 * race.cc: a cell for each word of memory that a launch touches, with the accesses that may still race (race.h).
 *
 * A cell drops an access when a later one stands for it: a write that covers its bytes, or a read that knows of it and
 * touches the same bytes, because whoever knows of the later one knows of it, too. So most cells hold one or two, and
 * those that many threads read a list. Cells of global memory lie in pages, found by address, and belong to the launch
 * whose number they carry. A table with a fixed number of cells was rejected: it forgets.
 */
#include "tests/kernels_emu/race.h"
#include "tests/kernels_emu/finding.h"

#include <algorithm>
#include <unordered_map>

enum { KEPT = 4, PAGE_WORDS = 1024 };
enum { OF_COPY = 0x8000, OF_PRIMARY = 0xffffffff }; /* who: a cp.async; block: of the kernel before */

struct access {
    const struct emu_site *site;
    uint32_t block, clock;
    uint16_t who;
    uint8_t bytes; /* of the word, a bit each */
    uint8_t how;
};

struct cell {
    uint32_t generation, block; /* of the last access */
    uint32_t count;
    struct access kept[KEPT];
    std::vector<struct access> *more;

    struct access *at(uint32_t i)
    {
        return i < KEPT ? &kept[i] : &(*more)[i - KEPT];
    }
    void remove(uint32_t i)
    {
        *at(i) = *at(count - 1);
        count--;
        if (count >= KEPT) {
            more->pop_back();
        }
    }
    void add(const struct access &a)
    {
        if (count < KEPT) {
            kept[count] = a;
        } else {
            more = more ? more : new std::vector<struct access>;
            more->push_back(a);
        }
        count++;
    }
};

struct page {
    struct cell cells[PAGE_WORDS];
};

static thread_local struct {
    std::unordered_map<uint64_t, struct page *> pages;
    uint64_t last_number;
    struct page *last;
    std::vector<struct cell> shared;
    uint32_t shared_generation, generation, previous;
    bool is_overlapped;
} cells;

static struct cell *global_cell(uint64_t word)
{
    uint64_t number = word / PAGE_WORDS;
    if (!cells.last || cells.last_number != number) {
        struct page *&page = cells.pages[number];
        page = page ? page : new struct page();
        cells.last = page, cells.last_number = number;
    }
    return &cells.last->cells[word % PAGE_WORDS];
}

void emu_race_begin_launch(struct emu_grid *grid, bool is_overlapped)
{
    cells.previous = cells.generation;
    grid->generation = ++cells.generation;
    cells.is_overlapped = is_overlapped;
    cells.shared.resize(std::max(cells.shared.size(), (size_t)grid->shared_bytes / 4 + 1));
}

void emu_race_begin_block(struct emu_grid *grid)
{
    (void)grid;
    cells.shared_generation++;
}

/* What another block, or the kernel before, did: one access for each kind of it. */
static void fold(struct cell *c, uint32_t block)
{
    for (uint32_t i = 0; i < c->count; i++) {
        for (uint32_t j = i + 1; j < c->count;) {
            struct access *a = c->at(i), *b = c->at(j);
            if (a->block != block && b->block != block && a->how == b->how &&
                (a->block == OF_PRIMARY) == (b->block == OF_PRIMARY)) {
                a->bytes |= b->bytes;
                c->remove(j);
            } else {
                j++;
            }
        }
    }
}

/* The cell as the launch and the block find it. */
static void refresh(struct cell *c, uint32_t generation, uint32_t block, bool is_shared)
{
    if (c->generation != generation) {
        if (!is_shared && cells.is_overlapped && c->generation == cells.previous) {
            for (uint32_t i = c->count; i-- > 0;) {
                if (c->at(i)->block == OF_PRIMARY) {
                    c->remove(i); /* of the one before that, which has ended */
                } else {
                    c->at(i)->block = OF_PRIMARY;
                }
            }
            fold(c, block);
        } else {
            c->count = 0;
            if (c->more) {
                c->more->clear();
            }
        }
        c->generation = generation;
        c->block = block;
    } else if (c->block != block) {
        fold(c, block);
        c->block = block;
    }
}

static const char *name_of(int how)
{
    return how & EMU_STRONG ? "an atomic access" : how & EMU_WRITE ? "a write" : "a read";
}

static bool is_known(struct emu_thread *T, const struct access *old, uint32_t who)
{
    if (old->block == OF_PRIMARY) {
        return T->own->has_waited;
    }
    if (old->block != T->block->number) {
        return false;
    }
    return old->who == who || (old->who != OF_COPY && emu_clock_knows(T, old->who, old->clock));
}

static void say_race(struct emu_thread *T, const struct access *old, const struct access *now, bool is_shared)
{
    const char *place = is_shared ? "shared" : "global";
    if (old->block == OF_PRIMARY) {
        emu_found(T, now->site, "race in %s memory: %s before griddepcontrol.wait, and %s of the kernel before, %s:%d",
                  place, name_of(now->how), name_of(old->how), old->site->file, old->site->line);
    } else {
        emu_found(T, now->site, "race in %s memory: %s, and %s at %s:%d (%s)", place, name_of(now->how),
                  name_of(old->how), old->site->file, old->site->line, old->site->instruction);
    }
}

static void compare(struct emu_thread *T, struct access *old, const struct access *now, bool is_shared)
{
    bool writes = (old->how | now->how) & EMU_WRITE;
    if (!(old->bytes & now->bytes) || !writes) {
        return;
    }
    if (((old->how | now->how) & EMU_CONSTANT) && old->block != OF_PRIMARY) {
        emu_found(T, now->site, "%s:%d and this touch the same memory, and one of them is a load through the "
                  "read-only cache (ld.global.nc)", old->site->file, old->site->line);
        return;
    }
    bool both_strong = (old->how & EMU_STRONG) && (now->how & EMU_STRONG);
    if (!both_strong && !is_known(T, old, now->who)) {
        say_race(T, old, now, is_shared);
    }
    /* The matrix unit sees a thread's store once that thread, or the one that starts it, has fenced. */
    bool is_agent = now->who >= T->block->threads && now->who != OF_COPY;
    if (is_agent && !(now->how & EMU_WRITE) && old->who < T->block->threads && (old->how & EMU_WRITE) &&
        T->block->state[old->who].fenced < old->clock &&
        (T->own->known_fenced.empty() || T->own->known_fenced[old->who] < old->clock)) {
        emu_found(T, now->site, "no fence.proxy.async between the store of %s:%d and this", old->site->file,
                  old->site->line);
    }
}

/* Whether `now` stands for `old` from here on. */
static bool replaces(struct emu_thread *T, const struct access *old, const struct access *now)
{
    if (old->block != T->block->number) {
        return false;
    }
    if (!(now->how & EMU_WRITE) && (old->how & EMU_WRITE)) {
        return false;
    }
    if ((old->how & EMU_CONSTANT) != (now->how & EMU_CONSTANT)) {
        return false;
    }
    if ((now->how & EMU_WRITE) && !(now->how & EMU_STRONG)) {
        return true;
    }
    return (now->how & EMU_STRONG) == (old->how & EMU_STRONG) && is_known(T, old, now->who);
}

static void count_first(struct emu_thread *T, struct cell *c, const struct access *now)
{
    uint8_t read = 0, written = 0;
    for (uint32_t i = 0; i < c->count; i++) {
        if (c->at(i)->block != OF_PRIMARY) {
            read |= c->at(i)->how & EMU_READ ? c->at(i)->bytes : 0;
            written |= c->at(i)->how & EMU_WRITE ? c->at(i)->bytes : 0;
        }
    }
    struct emu_counts *counts = &T->block->grid->counts;
    if (now->how & EMU_READ) { /* what the launch itself wrote before is no read from afar */
        counts->touched_read += (uint64_t)__builtin_popcount(now->bytes & ~(read | written));
    }
    if (now->how & EMU_WRITE) {
        counts->touched_written += (uint64_t)__builtin_popcount(now->bytes & ~written);
    }
}

static void touch(struct emu_thread *T, struct cell *c, const struct access *now, bool is_shared)
{
    refresh(c, is_shared ? cells.shared_generation : cells.generation, T->block->number, is_shared);
    if (!is_shared) {
        count_first(T, c, now);
    }
    for (uint32_t i = 0; i < c->count;) {
        struct access *old = c->at(i);
        compare(T, old, now, is_shared);
        if (replaces(T, old, now)) {
            old->bytes &= (uint8_t)~now->bytes;
        }
        if (old->bytes == 0) {
            c->remove(i);
        } else {
            i++;
        }
    }
    c->add(*now);
}

static void walk(struct emu_thread *T, uint64_t address, uint32_t bytes, bool is_shared, struct access now)
{
    uint64_t end = address + bytes;
    for (uint64_t word = address / 4; word * 4 < end; word++) {
        uint32_t from = word * 4 < address ? (uint32_t)(address - word * 4) : 0;
        uint32_t to = end < word * 4 + 4 ? (uint32_t)(end - word * 4) : 4;
        now.bytes = (uint8_t)((1u << to) - (1u << from));
        touch(T, is_shared ? &cells.shared[word] : global_cell(word), &now, is_shared);
    }
}

void emu_race_access(struct emu_thread *T, uint64_t address, uint32_t bytes, bool is_shared, int how,
                     const struct emu_site *site)
{
    if (emu_environment()->checks_races) {
        walk(T, address, bytes, is_shared,
             {site, T->block->number, T->own->clock, (uint16_t)T->number, 0, (uint8_t)how});
    }
}

void emu_race_agent(struct emu_thread *T, uint32_t agent, uint32_t clock, uint64_t offset, uint32_t bytes, int how,
                    const struct emu_site *site)
{
    if (emu_environment()->checks_races) {
        walk(T, offset, bytes, true,
             {site, T->block->number, clock, (uint16_t)(T->block->threads + agent), 0, (uint8_t)how});
    }
}

void emu_race_copy(struct emu_thread *T, uint64_t offset, uint32_t bytes, bool is_done, const struct emu_site *site)
{
    if (!emu_environment()->checks_races) {
        return;
    }
    struct access now = {site, T->block->number, T->own->clock, (uint16_t)T->number, 0, EMU_WRITE};
    if (!is_done) {
        walk(T, offset, bytes, true, now); /* it must not touch what is still in use */
        now.who = OF_COPY;
    }
    for (uint64_t word = offset / 4; word < (offset + bytes) / 4; word++) {
        struct cell *c = &cells.shared[word];
        refresh(c, cells.shared_generation, T->block->number, true);
        for (uint32_t i = c->count; i-- > 0;) {
            if (is_done ? c->at(i)->who == OF_COPY : true) {
                c->remove(i); /* who touched the bytes meanwhile has been found, and stays */
            }
        }
        now.bytes = 15;
        c->add(now);
    }
}
