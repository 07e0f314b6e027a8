/*
 * refuse.h: a test refuses what one shared library asks for, on the thread that says so: from its n-th request on, or
 * that request alone. Included by one file of a program.
 *
 * The library's own table of functions is changed, in which its malloc and calloc stand. A malloc of the program's
 * would be everybody's, and under a sanitizer is called before the sanitizer has begun; fail_nth.so, which is for whole
 * programs, knows neither threads nor a library by itself.
 */
#ifndef ROLL_TESTS_FAULTS_REFUSE_H
#define ROLL_TESTS_FAULTS_REFUSE_H

#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct refusing {
    bool counts;
    int64_t from;  /* the number of the first request that is refused, from 0; -1: none is */
    bool once;     /* that one alone */
    int64_t asked; /* requests so far */
};

static _Thread_local struct refusing refusing;

static inline void refuse_begin(int64_t from, bool once)
{
    refusing = (struct refusing){.counts = true, .from = from, .once = once};
}

static inline void refuse_end(void)
{
    refusing.counts = false;
}

/* Counts a request: whether it is refused. */
static inline bool refuse_now(void)
{
    struct refusing *r = &refusing;
    int64_t number = r->asked;
    r->asked += r->counts;
    return r->counts && r->from >= 0 && (r->once ? number == r->from : number >= r->from);
}

/* What the loader has of a library: the relocations of its calls, and the names in them. */
struct refuse_tables {
    const ElfW(Rela) * rela[2];
    size_t bytes[2];
    const ElfW(Sym) * symbols;
    const char *names;
};

static inline struct refuse_tables refuse_tables_of(const struct link_map *library)
{
    struct refuse_tables t = {.names = NULL};
    for (const ElfW(Dyn) *d = library->l_ld; d->d_tag != DT_NULL; d++) {
        const void *at = (const void *)d->d_un.d_ptr;
        t.rela[0] = d->d_tag == DT_JMPREL ? at : t.rela[0];
        t.rela[1] = d->d_tag == DT_RELA ? at : t.rela[1];
        t.bytes[0] = d->d_tag == DT_PLTRELSZ ? d->d_un.d_val : t.bytes[0];
        t.bytes[1] = d->d_tag == DT_RELASZ ? d->d_un.d_val : t.bytes[1];
        t.symbols = d->d_tag == DT_SYMTAB ? at : t.symbols;
        t.names = d->d_tag == DT_STRTAB ? at : t.names;
    }
    return t;
}

/* From now on the library that has the function `in` calls `instead` where it calls `name`. */
static inline void refuse_redirect(const char *in, const char *name, void *instead)
{
    struct link_map *library = NULL;
    Dl_info where;
    void *function = dlsym(RTLD_DEFAULT, in);
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    size_t found = 0;
    if (function == NULL || dladdr1(function, &where, (void **)&library, RTLD_DL_LINKMAP) == 0) {
        abort();
    }
    struct refuse_tables t = refuse_tables_of(library);
    for (int i = 0; i < 2; i++) {
        for (size_t r = 0; r < t.bytes[i] / sizeof(*t.rela[i]); r++) {
            size_t symbol = ELF64_R_SYM(t.rela[i][r].r_info);
            if (symbol != 0 && strcmp(t.names + t.symbols[symbol].st_name, name) == 0) {
                void **slot = (void **)(library->l_addr + t.rela[i][r].r_offset);
                if (mprotect((void *)((uintptr_t)slot / page * page), page, PROT_READ | PROT_WRITE) != 0) {
                    abort();
                }
                *slot = instead;
                found++;
            }
        }
    }
    if (found == 0) { /* it would refuse nothing */
        abort();
    }
}

static inline void *refuse_malloc(size_t bytes)
{
    return refuse_now() ? NULL : malloc(bytes);
}

static inline void *refuse_calloc(size_t count, size_t bytes)
{
    return refuse_now() ? NULL : calloc(count, bytes);
}

/* The requests of the library that has the function `in` are counted, and refused, from now on. */
static inline void refuse_in(const char *in)
{
    refuse_redirect(in, "malloc", (void *)(uintptr_t)refuse_malloc);
    refuse_redirect(in, "calloc", (void *)(uintptr_t)refuse_calloc);
}

#endif
