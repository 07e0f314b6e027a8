/*
 * dw_late.c: libdw and libelf, loaded when a command first reads symbols or lines of source. Only the program
 * `rollcall` has this file (late.h).
 *
 * They bring four libraries of compression with them, and cost a third of a millisecond: a tenth of what `analyze`
 * needs for the dumps of a small job. libdw's handle finds the functions of libelf as well, which it needs itself.
 *
 * libelf declares elf_kind as pure, which a function that loads a library is not; nobody calls it before elf_begin.
 */
#include "daemon/console/late.h"

#include <elfutils/libdw.h>
#include <elfutils/libdwfl.h>
#include <gelf.h>

#define ROWS(ROW)                                                                                                      \
    ROW(Dwarf_Attribute *, NULL, dwarf_attr, (Dwarf_Die * die, unsigned name, Dwarf_Attribute *to), (die, name, to))   \
    ROW(Dwarf_Attribute *, NULL, dwarf_attr_integrate, (Dwarf_Die * die, unsigned name, Dwarf_Attribute *to),          \
        (die, name, to))                                                                                               \
    ROW(const char *, NULL, dwarf_diename, (Dwarf_Die * die), (die))                                                   \
    ROW(const char *, NULL, dwarf_filesrc, (Dwarf_Files * file, size_t i, Dwarf_Word * time, Dwarf_Word * length),     \
        (file, i, time, length))                                                                                       \
    ROW(const char *, NULL, dwarf_formstring, (Dwarf_Attribute * attribute), (attribute))                              \
    ROW(int, -1, dwarf_formudata, (Dwarf_Attribute * attribute, Dwarf_Word * to), (attribute, to))                     \
    ROW(int, -1, dwarf_getscopes, (Dwarf_Die * unit, Dwarf_Addr pc, Dwarf_Die * *to), (unit, pc, to))                  \
    ROW(int, -1, dwarf_getscopes_die, (Dwarf_Die * die, Dwarf_Die * *to), (die, to))                                   \
    ROW(Dwarf_Line *, NULL, dwarf_getsrc_die, (Dwarf_Die * unit, Dwarf_Addr at), (unit, at))                           \
    ROW(int, -1, dwarf_getsrcfiles, (Dwarf_Die * unit, Dwarf_Files * *to, size_t * n), (unit, to, n))                  \
    ROW(int, -1, dwarf_haspc, (Dwarf_Die * die, Dwarf_Addr pc), (die, pc))                                             \
    ROW(int, -1, dwarf_lineno, (Dwarf_Line * line, int *to), (line, to))                                               \
    ROW(const char *, NULL, dwarf_linesrc, (Dwarf_Line * line, Dwarf_Word * time, Dwarf_Word * length),                \
        (line, time, length))                                                                                          \
    ROW(int, 0, dwarf_tag, (Dwarf_Die * die), (die))                                                                   \
    ROW(Dwfl *, NULL, dwfl_begin, (const Dwfl_Callbacks *callbacks), (callbacks))                                      \
    ROW(int, -1, dwfl_build_id_find_debuginfo,                                                                         \
        (Dwfl_Module * m, void **data, const char *name, Dwarf_Addr base, const char *file, const char *link,          \
         GElf_Word crc, char **to),                                                                                    \
        (m, data, name, base, file, link, crc, to))                                                                    \
    ROW(Dwarf_Die *, NULL, dwfl_module_addrdie, (Dwfl_Module * m, Dwarf_Addr at, Dwarf_Addr * bias), (m, at, bias))    \
    ROW(const char *, NULL, dwfl_module_addrinfo,                                                                      \
        (Dwfl_Module * m, GElf_Addr at, GElf_Off * off, GElf_Sym * sym, GElf_Word * ndx, Elf * *elf,                   \
         Dwarf_Addr * bias),                                                                                           \
        (m, at, off, sym, ndx, elf, bias))                                                                             \
    ROW(int, -1, dwfl_module_build_id, (Dwfl_Module * m, const unsigned char **to, GElf_Addr *at), (m, to, at))        \
    ROW(Elf *, NULL, dwfl_module_getelf, (Dwfl_Module * m, GElf_Addr * bias), (m, bias))                               \
    ROW(Dwarf_Die *, NULL, dwfl_module_nextcu, (Dwfl_Module * m, Dwarf_Die * last, Dwarf_Addr * bias),                 \
        (m, last, bias))                                                                                               \
    ROW(int, -1, dwfl_offline_section_address,                                                                         \
        (Dwfl_Module * m, void **data, const char *name, Dwarf_Addr base, const char *section, GElf_Word ndx,          \
         const GElf_Shdr *head, Dwarf_Addr *to),                                                                       \
        (m, data, name, base, section, ndx, head, to))                                                                 \
    ROW(int, -1, dwfl_report_end,                                                                                      \
        (Dwfl * d, int (*removed)(Dwfl_Module *, void *, const char *, Dwarf_Addr, void *), void *arg),                \
        (d, removed, arg))                                                                                             \
    ROW(Dwfl_Module *, NULL, dwfl_report_offline, (Dwfl * d, const char *name, const char *file, int fd),              \
        (d, name, file, fd))                                                                                           \
    ROW(Elf *, NULL, elf_begin, (int fd, Elf_Cmd command, Elf *ref), (fd, command, ref))                               \
    ROW(int, 0, elf_end, (Elf * elf), (elf))                                                                           \
    ROW(Elf_Data *, NULL, elf_getdata, (Elf_Scn * section, Elf_Data * data), (section, data))                          \
    ROW(int, -1, elf_getphdrnum, (Elf * elf, size_t * to), (elf, to))                                                  \
    ROW(Elf_Kind, ELF_K_NONE, elf_kind, (Elf * elf), (elf))                                                            \
    ROW(Elf_Scn *, NULL, elf_nextscn, (Elf * elf, Elf_Scn * section), (elf, section))                                  \
    ROW(char *, NULL, elf_strptr, (Elf * elf, size_t ndx, size_t at), (elf, ndx, at))                                  \
    ROW(unsigned, EV_NONE, elf_version, (unsigned version), (version))                                                 \
    ROW(GElf_Dyn *, NULL, gelf_getdyn, (Elf_Data * data, int i, GElf_Dyn *to), (data, i, to))                          \
    ROW(GElf_Ehdr *, NULL, gelf_getehdr, (Elf * elf, GElf_Ehdr * to), (elf, to))                                       \
    ROW(GElf_Phdr *, NULL, gelf_getphdr, (Elf * elf, int i, GElf_Phdr *to), (elf, i, to))                              \
    ROW(GElf_Shdr *, NULL, gelf_getshdr, (Elf_Scn * section, GElf_Shdr * to), (section, to))                           \
    ROW(GElf_Sym *, NULL, gelf_getsym, (Elf_Data * data, int i, GElf_Sym *to), (data, i, to))

#define VOIDS(ROW)                                                                                                     \
    ROW(void, , dwfl_end, (Dwfl * d), (d))                                                                             \
    ROW(void, , dwfl_report_begin, (Dwfl * d), (d))

ROLL_LATE(ROWS, VOIDS, "libdw.so.1", "places in native code have no names")
