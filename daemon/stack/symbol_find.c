/* symbol_find.c: libelf over the symbol tables of one file. */
#include "daemon/stack/symbol_find.h"

#include "daemon/stack/symbol_file.h"

#include <gelf.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

static Elf *open_elf(const struct roll_target *t, const struct roll_module *m, int *fd)
{
    char path[PATH_MAX + 64];
    elf_version(EV_CURRENT);
    *fd = roll_symbol_file_open(roll_target_path(t, m->path, path, sizeof(path)));
    Elf *elf = *fd >= 0 ? elf_begin(*fd, ELF_C_READ_MMAP, NULL) : NULL;
    if (!elf && *fd >= 0) {
        close(*fd);
    }
    return elf;
}

static size_t look(Elf *elf, Elf_Scn *section, const GElf_Shdr *head, const struct roll_module *m,
                   const char *const *names, uint64_t *out, size_t n)
{
    Elf_Data *data = elf_getdata(section, NULL);
    size_t count = head->sh_entsize ? head->sh_size / head->sh_entsize : 0, found = 0;
    GElf_Sym symbol;
    for (size_t i = 0; data && i < count && gelf_getsym(data, (int)i, &symbol); i++) {
        const char *name = symbol.st_value ? elf_strptr(elf, head->sh_link, symbol.st_name) : NULL;
        for (size_t k = 0; name && k < n; k++) {
            if (out[k] == 0 && strcmp(name, names[k]) == 0) {
                out[k] = symbol.st_value + m->bias;
                found++;
            }
        }
    }
    return found;
}

bool roll_symbol_find(const struct roll_target *t, const struct roll_module *m, const char *const *names, uint64_t *out,
                      size_t n)
{
    static const GElf_Word kinds[] = {SHT_DYNSYM, SHT_SYMTAB};
    int fd;
    memset(out, 0, n * sizeof(*out));
    Elf *elf = open_elf(t, m, &fd);
    if (!elf) {
        return false;
    }
    size_t found = 0;
    for (size_t k = 0; k < 2 && found < n; k++) {
        Elf_Scn *section = NULL;
        GElf_Shdr head;
        while (found < n && (section = elf_nextscn(elf, section)) != NULL) {
            if (gelf_getshdr(section, &head) && head.sh_type == kinds[k]) {
                found += look(elf, section, &head, m, names, out, n);
            }
        }
    }
    elf_end(elf);
    close(fd);
    return true;
}

uint64_t roll_section_find(const struct roll_target *t, const struct roll_module *m, const char *name)
{
    int fd;
    size_t strings;
    uint64_t found = 0;
    Elf *elf = open_elf(t, m, &fd);
    if (!elf) {
        return 0;
    }
    Elf_Scn *section = NULL;
    GElf_Shdr head;
    while (elf_getshdrstrndx(elf, &strings) == 0 && !found && (section = elf_nextscn(elf, section)) != NULL) {
        const char *title = gelf_getshdr(section, &head) ? elf_strptr(elf, strings, head.sh_name) : NULL;
        if (title && strcmp(title, name) == 0) {
            found = head.sh_addr + m->bias;
        }
    }
    elf_end(elf);
    close(fd);
    return found;
}
