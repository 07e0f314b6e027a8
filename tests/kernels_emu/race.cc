/*
 * race.cc: a cell for each 16 bytes of memory that a launch touches, with the accesses that may still race (race.h),
 * and which of the bytes each has touched. Most memory is touched 16 bytes at a time, and cells that lie close together
 * are fast.
 *
 * A cell drops an access when a later one stands for it: a write that covers its bytes, or a read that knows of it and
 * touches the same bytes, because whoever knows of the later one knows of it, too. A read is only compared with writes,
 * and appended; a list of readers is tidied when it has doubled, so that what a whole block reads costs each
 * thread the same. Cells of global memory lie in pages, found by address, and belong to the launch whose number they
 * carry. A table with a fixed number of cells was rejected: it forgets.
 */
#include "tests/kernels_emu/race.h"
#include "tests/kernels_emu/finding.h"

#include <algorithm>
#include <unordered_map>

enum { KEPT = 4, TIDY_FROM = 8, GRAIN = 16, PAGE_CELLS = 256, HOWS = 16 };
enum { OF_COPY = 0x8000, OF_PRIMARY = 0xffffffff }; /* who: a cp.async; block: of the kernel before */

struct access {
    const struct emu_site *site;
    uint32_t block, clock;
    uint16_t who;
    uint16_t bytes; /* of the cell, a bit each */
    uint8_t how;
};

struct list {
    uint32_t count;
    struct access kept[KEPT];
    std::vector<struct access> *more;

    struct access *at(uint32_t i)
    {
        return i < KEPT ? &kept[i] : &(*more)[i - KEPT];
    }
    /* The last one takes its place. */
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
    void clear()
    {
        count = 0;
        if (more) {
            more->clear();
        }
    }
};

struct cell {
    uint32_t generation, block; /* of the last access */
    uint32_t tidy_at;           /* readers */
    uint16_t read, written;     /* bytes, by the launch */
    struct list writes, reads;
};

struct page {
    struct cell cells[PAGE_CELLS];
};

/* Kept from launch to launch, because the cells are many. */
struct emu_cells {
    std::unordered_map<uint64_t, struct page *> pages;
    uint64_t last_number;
    struct page *last;
    std::vector<struct cell> shared;
    uint32_t shared_generation, generation, previous;
    bool is_overlapped;
};

static struct cell *global_cell(struct emu_cells *cells, uint64_t piece)
{
    uint64_t number = piece / PAGE_CELLS;
    if (!cells->last || cells->last_number != number) {
        struct page *&page = cells->pages[number];
        page = page ? page : new struct page();
        cells->last = page, cells->last_number = number;
    }
    return &cells->last->cells[piece % PAGE_CELLS];
}

void emu_race_begin_launch(struct emu_grid *grid, bool is_overlapped)
{
    static thread_local struct emu_cells *own; /* never freed: its stream's thread lives as long as the process */
    own = own ? own : new struct emu_cells();
    own->previous = own->generation++;
    own->is_overlapped = is_overlapped;
    own->shared.resize(std::max(own->shared.size(), (size_t)grid->shared_bytes / GRAIN + 1));
    grid->cells = own;
    grid->checks_races = emu_environment()->checks_races;
}

void emu_race_begin_block(struct emu_grid *grid)
{
    grid->cells->shared_generation++;
}

/* What other blocks, or the kernel before, did: one access for each kind of it, with the bytes of all. */
static void fold(struct list *l, uint32_t block)
{
    struct access found[2][HOWS];
    bool has[2][HOWS] = {{false}};
    for (uint32_t i = l->count; i-- > 0;) {
        const struct access a = *l->at(i);
        if (a.block == block) {
            continue;
        }
        bool is_primary = a.block == OF_PRIMARY;
        struct access *f = &found[is_primary][a.how % HOWS];
        uint16_t bytes = has[is_primary][a.how % HOWS] ? f->bytes : 0;
        *f = a;
        f->bytes |= bytes;
        has[is_primary][a.how % HOWS] = true;
        l->remove(i);
    }
    for (int i = 0; i < 2 * HOWS; i++) {
        if (has[i / HOWS][i % HOWS]) {
            l->add(found[i / HOWS][i % HOWS]);
        }
    }
}

/* The list of a launch that has ended, for one that overlaps it. */
static void hand_on(struct list *l, uint32_t block)
{
    for (uint32_t i = l->count; i-- > 0;) {
        if (l->at(i)->block == OF_PRIMARY) {
            l->remove(i); /* of the one before that, which has ended */
        } else {
            l->at(i)->block = OF_PRIMARY;
        }
    }
    fold(l, block);
}

/* The cell as the launch and the block find it. */
static void renew(const struct emu_cells *cells, struct cell *c, uint32_t generation, uint32_t block, bool is_shared)
{
    if (c->generation != generation) {
        if (!is_shared && cells->is_overlapped && c->generation == cells->previous) {
            hand_on(&c->writes, block);
            hand_on(&c->reads, block);
        } else {
            c->writes.clear();
            c->reads.clear();
        }
        c->generation = generation;
        c->block = block;
        c->tidy_at = TIDY_FROM;
        c->read = c->written = 0;
    } else if (c->block != block) {
        fold(&c->writes, block);
        fold(&c->reads, block);
        c->block = block;
        c->tidy_at = TIDY_FROM;
    }
}

static inline void refresh(const struct emu_cells *cells, struct cell *c, uint32_t generation, uint32_t block,
                           bool is_shared)
{
    if (c->generation != generation || c->block != block) {
        renew(cells, c, generation, block, is_shared);
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
        emu_found(T, now->site,
                  "%s:%d and this touch the same memory, and one of them is a load through the "
                  "read-only cache (ld.global.nc)",
                  old->site->file, old->site->line);
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

/* Whether the write `now` stands for `old` from here on. */
static bool replaces(struct emu_thread *T, const struct access *old, const struct access *now)
{
    if (old->block != T->block->number || ((old->how | now->how) & EMU_CONSTANT)) {
        return false;
    }
    return !(now->how & EMU_STRONG) || ((old->how & EMU_STRONG) && is_known(T, old, now->who));
}

static void compare_all(struct emu_thread *T, struct list *l, const struct access *now, bool is_shared)
{
    for (uint32_t i = l->count; i-- > 0;) {
        struct access *old = l->at(i);
        compare(T, old, now, is_shared);
        if ((now->how & EMU_WRITE) && replaces(T, old, now)) {
            old->bytes &= (uint16_t)~now->bytes;
            if (old->bytes == 0) {
                l->remove(i);
            }
        }
    }
}

/* Readers that a later read stands for go: of the same thread, or known to `now`'s. */
static void tidy(struct emu_thread *T, struct cell *c, const struct access *now)
{
    static thread_local uint32_t round, rounds[2 * OF_COPY];
    static thread_local uint16_t covered[2 * OF_COPY];
    round++;
    for (uint32_t i = c->reads.count; i-- > 0;) {
        struct access *old = c->reads.at(i);
        if (old->block != T->block->number || old->how != now->how) {
            continue;
        }
        bool is_repeated = rounds[old->who] == round && !(old->bytes & ~covered[old->who]);
        if (is_repeated || (!(old->bytes & ~now->bytes) && is_known(T, old, now->who))) {
            c->reads.remove(i);
            continue;
        }
        covered[old->who] = rounds[old->who] == round ? covered[old->who] | old->bytes : old->bytes;
        rounds[old->who] = round;
    }
    c->tidy_at = std::max<uint32_t>(TIDY_FROM, 2 * c->reads.count);
}

static void add_read(struct emu_thread *T, struct cell *c, const struct access *now)
{
    if (c->reads.count) {
        struct access *last = c->reads.at(c->reads.count - 1);
        if (last->who == now->who && last->block == now->block && last->how == now->how && last->bytes == now->bytes) {
            *last = *now;
            return;
        }
    }
    if (c->reads.count >= c->tidy_at) {
        tidy(T, c, now);
    }
    c->reads.add(*now);
}

/* What the launch itself wrote before is no read from afar. */
static void count_first(struct emu_thread *T, struct cell *c, const struct access *now)
{
    struct emu_counts *counts = &T->block->grid->counts;
    if (now->how & EMU_READ) {
        counts->touched_read += (uint64_t)__builtin_popcount(now->bytes & ~(c->read | c->written));
        c->read |= now->bytes;
    }
    if (now->how & EMU_WRITE) {
        counts->touched_written += (uint64_t)__builtin_popcount(now->bytes & ~c->written);
        c->written |= now->bytes;
    }
}

static inline void touch(struct emu_thread *T, const struct emu_cells *cells, struct cell *c, const struct access *now,
                         bool is_shared)
{
    refresh(cells, c, is_shared ? cells->shared_generation : cells->generation, T->block->number, is_shared);
    if (!is_shared) {
        count_first(T, c, now);
    }
    if (c->writes.count) {
        compare_all(T, &c->writes, now, is_shared);
    }
    if (now->how & EMU_WRITE) {
        compare_all(T, &c->reads, now, is_shared);
        c->writes.add(*now);
    } else {
        add_read(T, c, now);
    }
}

static void walk(struct emu_thread *T, uint64_t address, uint32_t bytes, bool is_shared, struct access now)
{
    struct emu_grid *grid = T->block->grid;
    struct emu_cells *cells = grid->cells;
    if (is_shared && grid->cluster.size() > 1) {
        return; /* race.h */
    }
    uint64_t end = address + bytes;
    for (uint64_t at = address / GRAIN; at * GRAIN < end; at++) {
        uint32_t from = at * GRAIN < address ? (uint32_t)(address - at * GRAIN) : 0;
        uint32_t to = end < at * GRAIN + GRAIN ? (uint32_t)(end - at * GRAIN) : (uint32_t)GRAIN;
        now.bytes = (uint16_t)((1u << to) - (1u << from));
        touch(T, cells, is_shared ? &cells->shared[at] : global_cell(cells, at), &now, is_shared);
    }
}

void emu_race_access(struct emu_thread *T, uint64_t address, uint32_t bytes, bool is_shared, int how,
                     const struct emu_site *site)
{
    if (T->block->grid->checks_races) {
        walk(T, address, bytes, is_shared,
             {site, T->block->number, T->own->clock, (uint16_t)T->number, 0, (uint8_t)how});
    }
}

void emu_race_agent(struct emu_thread *T, uint32_t agent, uint32_t clock, uint64_t offset, uint32_t bytes, int how,
                    const struct emu_site *site)
{
    if (T->block->grid->checks_races) {
        walk(T, offset, bytes, true,
             {site, T->block->number, clock, (uint16_t)(T->block->threads + agent), 0, (uint8_t)how});
    }
}

void emu_race_copy(struct emu_thread *T, uint64_t offset, uint32_t bytes, bool is_done, const struct emu_site *site)
{
    struct emu_cells *cells = T->block->grid->cells;
    if (!T->block->grid->checks_races) {
        return;
    }
    struct access now = {site, T->block->number, T->own->clock, (uint16_t)T->number, 0, EMU_WRITE};
    if (!is_done) {
        walk(T, offset, bytes, true, now); /* it must not touch what is still in use */
        now.who = OF_COPY;
    }
    for (uint64_t at = offset / GRAIN; at < (offset + bytes) / GRAIN; at++) { /* whole cells */
        struct cell *c = &cells->shared[at];
        refresh(cells, c, cells->shared_generation, T->block->number, true);
        for (uint32_t i = c->writes.count; i-- > 0;) {
            if (!is_done || c->writes.at(i)->who == OF_COPY) {
                c->writes.remove(i); /* who touched the bytes meanwhile has been found, and stays */
            }
        }
        now.bytes = 0xffff;
        c->writes.add(now);
    }
}
