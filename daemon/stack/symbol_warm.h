/*
 * symbol_warm.h: reads debug information ahead of the verdict that will show it, on a thread of its own.
 */
#ifndef ROLL_DAEMON_SYMBOL_WARM_H
#define ROLL_DAEMON_SYMBOL_WARM_H

#include "daemon/stack/symbol_file.h"

typedef struct roll_symbol_warm roll_symbol_warm_t;

/* NULL when there is no memory or no thread: then everything is read when it is shown. */
roll_symbol_warm_t *roll_symbol_warm_new(void);
/* Waits for what is being read at the moment; nothing that waits is read any more. The files must still exist. */
void roll_symbol_warm_destroy(roll_symbol_warm_t **warm);
/* Asks for the frames of an address (in the file's own numbering); the file is borrowed. When too much waits already it
 * is left out. */
void roll_symbol_warm_add(roll_symbol_warm_t *warm, struct roll_symbol_file *file, uint64_t address);

#endif
