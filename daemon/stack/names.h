/*
 * names.h: addresses of many processes turned into names, each place once.
 */
#ifndef ROLL_DAEMON_STACK_NAMES_H
#define ROLL_DAEMON_STACK_NAMES_H

#include "daemon/base/map.h"
#include "daemon/stack/module.h"
#include "daemon/stack/symbol_file.h"

/* A place in a file, which is the same for the same code in all ranks of a node. */
struct roll_place_in_file {
    struct roll_symbol_file *file;   /* NULL: the address lies in no module */
    const char *module;              /* path as the process sees it; "" for none */
    uint64_t address;                /* in the file's numbering; absolute without a module */
    struct roll_symbol_frame *frame; /* innermost first; owned; NULL until asked for */
    size_t frames;
};

struct roll_names {
    struct roll_place_in_file *place;
    size_t used, room;
    struct roll_map index; /* from file and address to the number of the place */
    struct named_file {
        struct roll_symbol_file *file;
        char *module; /* owned */
    } * file;
    size_t files, file_room;
};

/* The number of the place of an address; UINT32_MAX when out of memory. Cheap: nothing is opened. */
uint32_t roll_names_place(struct roll_names *names, const struct roll_target *target, struct roll_module *module,
                          uint64_t address);
/* The frames of a place, innermost first, inlined ones included; at least one. Opens the file on first use. Borrowed
 * until fini.
 */
const struct roll_symbol_frame *roll_names_frames(struct roll_names *names, uint32_t place, size_t *count);
void roll_names_fini(struct roll_names *names);

#endif
