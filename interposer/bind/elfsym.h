/*
 * elfsym.h: whether a loaded object itself defines a symbol, read from its own tables.
 *
 * dlsym cannot answer that: it also searches the libraries that the object needs, and for an object that came as a
 * dependency it finds nothing at all. The auditor has no other way into the namespace of the program either.
 */
#ifndef ROLL_INTERPOSER_BIND_ELFSYM_H
#define ROLL_INTERPOSER_BIND_ELFSYM_H

#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <string.h>

/* The address that an entry of the object's dynamic table means. The loader has relocated most entries, but not those
 * of a read-only table. */
static inline const void *roll_elf_address(const struct link_map *map, ElfW(Addr) at)
{
    return (const void *)(at < map->l_addr ? map->l_addr + at : at);
}

static inline uint32_t roll_elf_hash(const char *name)
{
    uint32_t hash = 5381;
    for (const unsigned char *at = (const unsigned char *)name; *at != '\0'; at++) {
        hash = hash * 33 + *at;
    }
    return hash;
}

/* The address of the symbol of that name that `map` defines and exports; NULL when there is none. An object without a
 * GNU hash table (today's linkers make none by default) counts as defining nothing. Any thread, as long as the object
 * is loaded. */
static inline void *roll_elf_symbol(const struct link_map *map, const char *name)
{
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const uint32_t *table = NULL;
    for (const ElfW(Dyn) *dyn = map->l_ld; dyn != NULL && dyn->d_tag != DT_NULL; dyn++) {
        if (dyn->d_tag == DT_SYMTAB) {
            symbols = roll_elf_address(map, dyn->d_un.d_ptr);
        } else if (dyn->d_tag == DT_STRTAB) {
            strings = roll_elf_address(map, dyn->d_un.d_ptr);
        } else if (dyn->d_tag == DT_GNU_HASH) {
            table = roll_elf_address(map, dyn->d_un.d_ptr);
        }
    }
    if (symbols == NULL || strings == NULL || table == NULL || table[0] == 0) {
        return NULL;
    }
    uint32_t buckets = table[0], first = table[1], filter_words = table[2], hash = roll_elf_hash(name);
    const uint32_t *bucket = table + 4 + filter_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t *chain = bucket + buckets;
    uint32_t at = bucket[hash % buckets];
    if (at < first) {
        return NULL;
    }
    for (;; at++) {
        uint32_t here = chain[at - first];
        const ElfW(Sym) *symbol = &symbols[at];
        if ((here | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF && symbol->st_value != 0 &&
            strcmp(strings + symbol->st_name, name) == 0) {
            return (void *)(map->l_addr + symbol->st_value);
        }
        if ((here & 1) != 0) {
            return NULL;
        }
    }
}

#endif
