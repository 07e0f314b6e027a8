/*
 * module.h: the programs and libraries that are mapped into a process, as its memory shows them: load address, build
 * id, unwind table.
 *
 * Headers are read from memory, not from the files, so the vdso, deleted files and files of another mount namespace are
 * no special cases. Names come from the files (symbol_file.h), checked by build id. One thread.
 */
#ifndef ROLL_DAEMON_STACK_MODULE_H
#define ROLL_DAEMON_STACK_MODULE_H

#include "daemon/stack/target.h"

#define ROLL_BUILD_ID_BYTES 20u

struct roll_module {
    uint64_t start, end; /* first and last address of all its mappings */
    uint64_t bias;       /* address in memory = address in the file + bias */
    const char *path;    /* as in maps; borrowed from the target */
    uint8_t build_id[ROLL_BUILD_ID_BYTES];
    size_t build_id_bytes;
    uint64_t table;      /* address of .eh_frame_hdr in memory; 0 = none that we can use */
    uint64_t table_rows; /* address of its binary search table */
    uint64_t rows;
    void *symbols; /* belongs to names.c; not used here */
};

struct roll_modules {
    struct roll_module *module; /* ascending */
    size_t used, room;
};

/* Finds the modules among all mappings; a mapping that is no ELF file is left out. 0 or NOMEM. Borrows target, which
 * must live as long. */
int roll_modules_read(struct roll_modules *modules, struct roll_target *target);
void roll_modules_fini(struct roll_modules *modules);
/* The module that holds an address; NULL when none does. */
struct roll_module *roll_modules_find(struct roll_modules *modules, uint64_t address);

#endif
