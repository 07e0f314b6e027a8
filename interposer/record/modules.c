/*
 * modules.c: defines the loaded objects that call sites lie in, so that addresses can be named when the process is
 * gone.
 *
 * Only objects that a call site touches are defined: a training process maps hundreds. The loader is asked when an
 * address lies in no known object. For words found on the stack it is asked at most a hundred times a second while its
 * answers are no. It is always asked about the caller's own address, whose object may have been loaded a moment ago.
 */
#include "interposer/record/callsite.h"
#include "interposer/record/clock.h"
#include "interposer/record/session.h"

#include <elf.h>
#include <link.h>
#include <string.h>
#include <unistd.h>

#define MODULES    1024u
#define PATH_BYTES 2048u
#define RETRY_NS   10000000u
#define PAGE       4096u

static struct {
    uintptr_t start, end;
} modules[MODULES];
static uint32_t known;
static uint64_t retry_ns;

struct lookup {
    uintptr_t pc;
    bool found;
};

/* The build id among a module's notes, which are mapped. */
static void find_build_id(const struct dl_phdr_info *info, struct roll_def_module *def)
{
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *ph = &info->dlpi_phdr[i];
        if (ph->p_type != PT_NOTE) {
            continue;
        }
        const uint8_t *at = (const uint8_t *)(info->dlpi_addr + ph->p_vaddr);
        size_t left = ph->p_memsz, align = ph->p_align == 8 ? 8 : 4;
        while (left >= sizeof(ElfW(Nhdr))) {
            ElfW(Nhdr) note;
            memcpy(&note, at, sizeof(note));
            size_t name = sizeof(note), desc = (name + note.n_namesz + align - 1) & ~(align - 1);
            size_t whole = (desc + note.n_descsz + align - 1) & ~(align - 1);
            if (desc > left || note.n_descsz > left - desc) {
                break;
            }
            if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && memcmp(at + name, "GNU", 4) == 0) {
                def->build_id_bytes = note.n_descsz < sizeof(def->build_id) ? note.n_descsz : sizeof(def->build_id);
                memcpy(def->build_id, at + desc, def->build_id_bytes);
                return;
            }
            if (whole >= left) {
                break;
            }
            at += whole;
            left -= whole;
        }
    }
}

static void append(const struct dl_phdr_info *info, uintptr_t start, uintptr_t end)
{
    char path[PATH_BYTES];
    struct roll_def_module def = {.start = start, .end = end, .bias = info->dlpi_addr};
    size_t bytes = 0;
    if (info->dlpi_name != NULL && info->dlpi_name[0] != '\0') {
        bytes = strnlen(info->dlpi_name, sizeof(path));
        memcpy(path, info->dlpi_name, bytes);
    } else {
        ssize_t n = readlink("/proc/self/exe", path, sizeof(path));
        bytes = n > 0 ? (size_t)n : 0;
    }
    find_build_id(info, &def);
    def.path_bytes = (uint32_t)bytes;
    roll_def_append(&roll_session->ring, ROLL_DEF_MODULE, known + 1, &def, sizeof(def), path, bytes);
    modules[known].start = start;
    modules[known].end = end;
    known++;
}

static int visit(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    struct lookup *lookup = arg;
    uintptr_t start = UINTPTR_MAX, end = 0;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type == PT_LOAD) {
            uintptr_t low = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            uintptr_t high = low + info->dlpi_phdr[i].p_memsz;
            start = low < start ? low : start;
            end = high > end ? high : end;
        }
    }
    start &= ~(uintptr_t)(PAGE - 1);
    if (lookup->pc < start || lookup->pc >= end) {
        return 0;
    }
    append(info, start, end);
    lookup->found = true;
    return 1;
}

bool roll_module_define(uintptr_t pc, bool guess)
{
    for (uint32_t i = 0; i < known; i++) {
        if (pc >= modules[i].start && pc < modules[i].end) {
            return true;
        }
    }
    uint64_t now = roll_clock_monotonic();
    if (known == MODULES || (guess && now < retry_ns)) {
        return false;
    }
    struct lookup lookup = {.pc = pc};
    dl_iterate_phdr(visit, &lookup);
    if (!lookup.found) {
        retry_ns = now + RETRY_NS;
    }
    return lookup.found;
}
