/* module.c: reads ELF program headers in another process's memory. Every length comes from a process that may be
 * broken, so all are bounded. */
#include "daemon/stack/module.h"

#include "daemon/base/array.h"
#include "trace/err.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_MASK  (~(uint64_t)4095)
#define HEADERS    64   /* program headers looked at */
#define NOTE_BYTES 1024 /* bytes of a note segment looked at */
#define ROWS_MAX   (1u << 24)

static void read_build_id(const struct roll_target *t, struct roll_module *m, uint64_t at, uint64_t bytes)
{
    uint8_t note[NOTE_BYTES];
    size_t have = bytes < sizeof(note) ? (size_t)bytes : sizeof(note);
    if (!roll_target_read(t, at, note, have)) {
        return;
    }
    for (size_t i = 0; i + sizeof(Elf64_Nhdr) <= have;) {
        Elf64_Nhdr head;
        memcpy(&head, note + i, sizeof(head));
        size_t name = i + sizeof(head), desc = name + (((size_t)head.n_namesz + 3) & ~(size_t)3);
        size_t next = desc + (((size_t)head.n_descsz + 3) & ~(size_t)3);
        if (next > have || next <= i) {
            return;
        }
        if (head.n_type == NT_GNU_BUILD_ID && head.n_namesz == 4 && memcmp(note + name, "GNU", 4) == 0) {
            m->build_id_bytes = head.n_descsz < ROLL_BUILD_ID_BYTES ? head.n_descsz : ROLL_BUILD_ID_BYTES;
            memcpy(m->build_id, note + desc, m->build_id_bytes);
            return;
        }
        i = next;
    }
}

/* Reads the header of .eh_frame_hdr, in the one form that linkers write: a table of 32-bit offsets from its own
 * beginning. */
static void read_table(const struct roll_target *t, struct roll_module *m, uint64_t at)
{
    uint8_t head[12];
    uint32_t rows;
    if (!roll_target_read(t, at, head, sizeof(head)) || head[0] != 1 || head[2] != 0x03 || head[3] != 0x3b) {
        return;
    }
    bool short_pointer = (head[1] & 0x0f) == 0x0b || (head[1] & 0x0f) == 0x03; /* sdata4, udata4 */
    memcpy(&rows, head + 8, sizeof(rows));
    if (short_pointer && rows > 0 && rows < ROWS_MAX) {
        m->table = at;
        m->table_rows = at + sizeof(head);
        m->rows = rows;
    }
}

/* Fills a module whose first page is mapped at `start`. False: no ELF file of this machine's kind. */
static bool read_module(const struct roll_target *t, uint64_t start, struct roll_module *m)
{
    Elf64_Ehdr elf;
    Elf64_Phdr ph[HEADERS];
    if (!roll_target_read(t, start, &elf, sizeof(elf)) || memcmp(elf.e_ident, ELFMAG, SELFMAG) != 0 ||
        elf.e_ident[EI_CLASS] != ELFCLASS64 || elf.e_phentsize != sizeof(ph[0]) || elf.e_phnum == 0 ||
        elf.e_phnum > HEADERS || !roll_target_read(t, start + elf.e_phoff, ph, elf.e_phnum * sizeof(ph[0]))) {
        return false;
    }
    uint64_t low = UINT64_MAX, high = 0;
    for (unsigned i = 0; i < elf.e_phnum; i++) {
        if (ph[i].p_type == PT_LOAD) {
            low = ph[i].p_vaddr < low ? ph[i].p_vaddr : low;
            high = ph[i].p_vaddr + ph[i].p_memsz > high ? ph[i].p_vaddr + ph[i].p_memsz : high;
        }
    }
    if (low >= high || high - low > UINT64_C(1) << 40) {
        return false;
    }
    m->start = start;
    m->bias = start - (low & PAGE_MASK);
    m->end = start + (high - (low & PAGE_MASK));
    for (unsigned i = 0; i < elf.e_phnum; i++) {
        if (ph[i].p_type == PT_NOTE && m->build_id_bytes == 0) {
            read_build_id(t, m, m->bias + ph[i].p_vaddr, ph[i].p_memsz);
        } else if (ph[i].p_type == PT_GNU_EH_FRAME) {
            read_table(t, m, m->bias + ph[i].p_vaddr);
        }
    }
    return true;
}

int roll_modules_read(struct roll_modules *modules, struct roll_target *t)
{
    for (size_t i = 0; i < t->maps; i++) {
        const struct roll_mapping *map = &t->map[i];
        struct roll_module m = {.path = map->path};
        bool file = map->path[0] == '/' || strcmp(map->path, "[vdso]") == 0;
        if (!file || map->offset != 0 || !read_module(t, map->start, &m)) {
            continue;
        }
        if (modules->used > 0 && m.start < modules->module[modules->used - 1].end) {
            continue; /* the file is mapped a second time, inside the module */
        }
        int err = ROLL_GROW(modules->module, modules->room, modules->used + 1);
        if (err) {
            return err;
        }
        modules->module[modules->used++] = m;
    }
    return 0;
}

void roll_modules_fini(struct roll_modules *modules)
{
    free(modules->module);
    *modules = (struct roll_modules){0};
}

struct roll_module *roll_modules_find(struct roll_modules *modules, uint64_t address)
{
    size_t low = 0, high = modules->used;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (address >= modules->module[mid].end) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low < modules->used && address >= modules->module[low].start ? &modules->module[low] : NULL;
}
