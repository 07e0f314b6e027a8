/*
 * audit.c: librollcall_audit.so, for LD_AUDIT: hands our wrappers to objects that do not look where a preload is.
 *
 * An object opened with RTLD_DEEPBIND binds to its own libraries first: to NCCL past any preload, and to libc's dlsym
 * past our hook. The loader tells an auditor of each binding before it is used, and takes the auditor's answer. The
 * auditor lives in a namespace of its own, with its own libc, so it does nothing but pass the question on to
 * librollcall.so, which is preloaded in the program's namespace; where that library is missing, the auditor changes
 * nothing. docs/INTERPOSER.md ("Why a hook and not an auditor") says why not every process is audited.
 */
#include "interposer/bind/elfsym.h"

#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef void *(*answer_t)(const char *name, void *found, void *from);

static const struct link_map *preloaded;
static answer_t answer;
static bool started;

EXPORT unsigned int la_version(unsigned int version);
EXPORT unsigned int la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie);
EXPORT void la_preinit(uintptr_t *cookie);
EXPORT uintptr_t la_symbind64(ElfW(Sym) * symbol, unsigned int index, uintptr_t *from, uintptr_t *to,
                              unsigned int *flags, const char *name);

/* The functions that we use have not changed since version 1, so the loader's version is taken, up to ours. */
unsigned int la_version(unsigned int version)
{
    return version < LAV_CURRENT ? version : LAV_CURRENT;
}

static bool is_named(const struct link_map *map, const char *start)
{
    const char *base = strrchr(map->l_name, '/');
    base = base != NULL ? base + 1 : map->l_name;
    return strncmp(base, start, strlen(start)) == 0;
}

/* Bindings to NCCL are of interest, from every object except librollcall.so, which needs NCCL itself. */
unsigned int la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie)
{
    *cookie = (uintptr_t)map;
    if (space != LM_ID_BASE) {
        return 0;
    }
    if (is_named(map, "librollcall.so")) {
        preloaded = map;
        return 0;
    }
    return is_named(map, "libnccl") ? LA_FLG_BINDFROM | LA_FLG_BINDTO : LA_FLG_BINDFROM;
}

/* Before this call librollcall.so is not ready to be asked; but no object can have been bound past it either. */
void la_preinit(uintptr_t *cookie)
{
    (void)cookie;
    void *found = preloaded != NULL ? roll_elf_symbol(preloaded, "roll_audit_answer") : NULL;
    memcpy(&answer, &found, sizeof(answer));
    started = true;
}

uintptr_t la_symbind64(ElfW(Sym) * symbol, unsigned int index, uintptr_t *from, uintptr_t *to, unsigned int *flags,
                       const char *name)
{
    (void)index;
    *flags |= LA_SYMB_NOPLTENTER | LA_SYMB_NOPLTEXIT;
    uintptr_t found = symbol->st_value;
    if (!started || answer == NULL || *from == *to || name[0] != 'n') {
        return found;
    }
    return (uintptr_t)answer(name, (void *)found, (void *)*from);
}
