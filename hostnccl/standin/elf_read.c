/*
 * elf_read.c: reads what a shared object wants and has: names of libraries, undefined symbols with their versions,
 * defined symbols. The file is whatever lies in a folder, so every offset is checked against its size, and every
 * string must end inside its table. Section headers are used, because the length of the table of symbols stands
 * nowhere else; a library that was stripped of them is not read.
 */
#include "hostnccl/standin/standin.h"

#include <elf.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__x86_64__)
#define MACHINE EM_X86_64
#elif defined(__aarch64__)
#define MACHINE EM_AARCH64
#else
#error "the stand-ins are written for x86-64 and AArch64"
#endif

enum { HIDDEN = 0x8000, VERSIONS_MAX = 4096 };

/* A file, and what is found in it. */
struct object {
    const char *bytes;
    uint64_t size;
    struct version {
        const char *name, *file;
    } * versions; /* VERSIONS_MAX, by their number */
};

/* The bytes of a table; NULL when they do not all lie in the file. */
static const void *at(const struct object *o, uint64_t offset, uint64_t size)
{
    return offset <= o->size && size <= o->size - offset ? o->bytes + offset : NULL;
}

/* The string at an offset of a table of strings; NULL when it does not end inside the table. */
static const char *string(const struct object *o, const Elf64_Shdr *strings, uint64_t offset)
{
    const char *table = at(o, strings->sh_offset, strings->sh_size);
    return table && offset < strings->sh_size && memchr(table + offset, 0, strings->sh_size - offset) ? table + offset
                                                                                                      : NULL;
}

/* Copies the header of a section; -1 when there is none of that number. */
static int section(const struct object *o, const Elf64_Ehdr *head, uint64_t number, Elf64_Shdr *out)
{
    const void *from = number < head->e_shnum ? at(o, head->e_shoff + number * sizeof(*out), sizeof(*out)) : NULL;
    if (!from) {
        return -1;
    }
    memcpy(out, from, sizeof(*out));
    return 0;
}

/* The names of versions: one entry for each library, a list of versions behind each. */
static void read_versions(const struct object *o, const Elf64_Shdr *table, const Elf64_Shdr *strings)
{
    uint64_t place = table->sh_offset;
    for (uint32_t i = 0; i < table->sh_info; i++) {
        Elf64_Verneed need;
        const void *from = at(o, place, sizeof(need));
        if (!from) {
            return;
        }
        memcpy(&need, from, sizeof(need));
        uint64_t entry = place + need.vn_aux;
        for (uint32_t k = 0; k < need.vn_cnt; k++) {
            Elf64_Vernaux one;
            if (!(from = at(o, entry, sizeof(one)))) {
                return;
            }
            memcpy(&one, from, sizeof(one));
            unsigned int number = one.vna_other & ~(unsigned int)HIDDEN;
            if (number < VERSIONS_MAX) {
                o->versions[number] =
                    (struct version){string(o, strings, one.vna_name), string(o, strings, need.vn_file)};
            }
            entry += one.vna_next;
        }
        place += need.vn_next;
    }
}

static void read_symbols(const struct object *o, const Elf64_Shdr *table, const Elf64_Shdr *strings,
                         const Elf64_Shdr *numbers, fact_fn *tell, void *context)
{
    for (uint64_t i = 1; i < table->sh_size / sizeof(Elf64_Sym); i++) {
        Elf64_Sym symbol;
        const void *from = at(o, table->sh_offset + i * sizeof(symbol), sizeof(symbol));
        if (!from) {
            return;
        }
        memcpy(&symbol, from, sizeof(symbol));
        const char *name = string(o, strings, symbol.st_name);
        if (!name || !*name || ELF64_ST_BIND(symbol.st_info) == STB_LOCAL) {
            continue;
        }
        uint16_t number = 0;
        from = numbers->sh_type ? at(o, numbers->sh_offset + i * sizeof(number), sizeof(number)) : NULL;
        if (from) {
            memcpy(&number, from, sizeof(number));
            number &= (uint16_t)~HIDDEN;
        }
        struct version none = {NULL, NULL};
        struct version version = number < VERSIONS_MAX ? o->versions[number] : none;
        if (symbol.st_shndx == SHN_UNDEF) {
            bool is_weak = ELF64_ST_BIND(symbol.st_info) == STB_WEAK;
            tell(context, is_weak ? FACT_ASKS : FACT_WANTS, name, version.name && version.file ? version.name : NULL,
                 version.name ? version.file : NULL);
        } else {
            tell(context, FACT_DEFINES, name, NULL, NULL);
        }
    }
}

static void read_needed(const struct object *o, const Elf64_Shdr *table, const Elf64_Shdr *strings, fact_fn *tell,
                        void *context)
{
    for (uint64_t i = 0; i < table->sh_size / sizeof(Elf64_Dyn); i++) {
        Elf64_Dyn entry;
        const void *from = at(o, table->sh_offset + i * sizeof(entry), sizeof(entry));
        if (!from) {
            return;
        }
        memcpy(&entry, from, sizeof(entry));
        const char *name = entry.d_tag == DT_NEEDED ? string(o, strings, entry.d_un.d_val) : NULL;
        if (name) {
            tell(context, FACT_NEEDS, name, NULL, NULL);
        }
    }
}

static int read_object(const struct object *o, fact_fn *tell, void *context)
{
    Elf64_Ehdr head;
    Elf64_Shdr one, strings, symbols = {0}, numbers = {0};
    if (o->size < sizeof(head)) {
        return -1;
    }
    memcpy(&head, o->bytes, sizeof(head));
    if (memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_ident[EI_CLASS] != ELFCLASS64 ||
        head.e_ident[EI_DATA] != ELFDATA2LSB || head.e_machine != MACHINE || head.e_type != ET_DYN ||
        head.e_shentsize != sizeof(one)) {
        return -1;
    }
    for (uint64_t i = 0; !section(o, &head, i, &one); i++) {
        if (one.sh_type == SHT_DYNSYM) {
            symbols = one;
        } else if (one.sh_type == SHT_GNU_versym) {
            numbers = one;
        } else if (one.sh_type == SHT_GNU_verneed && !section(o, &head, one.sh_link, &strings)) {
            read_versions(o, &one, &strings);
        } else if (one.sh_type == SHT_DYNAMIC && !section(o, &head, one.sh_link, &strings)) {
            read_needed(o, &one, &strings, tell, context);
        }
    }
    if (!symbols.sh_type || section(o, &head, symbols.sh_link, &strings)) {
        return -1;
    }
    read_symbols(o, &symbols, &strings, &numbers, tell, context);
    return 0;
}

int library_read(const char *path, fact_fn *tell, void *context)
{
    struct stat about;
    struct object object = {0};
    void *map = MAP_FAILED;
    int rc = -1;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return -1;
    }
    if (!fstat(file, &about) && about.st_size > 0) {
        map = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    }
    close(file);
    if (map == MAP_FAILED) {
        return -1;
    }
    object.bytes = map;
    object.size = (uint64_t)about.st_size;
    object.versions = calloc(VERSIONS_MAX, sizeof(*object.versions));
    if (object.versions) {
        rc = read_object(&object, tell, context);
    }
    free(object.versions);
    munmap(map, (size_t)about.st_size);
    return rc;
}
