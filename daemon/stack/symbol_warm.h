/*
 * symbol_warm.h: reads debug information ahead of the verdict that will show it, on a thread of its own.
 */
#ifndef ROLL_DAEMON_STACK_SYMBOL_WARM_H
#define ROLL_DAEMON_STACK_SYMBOL_WARM_H

#include "daemon/stack/symbol_file.h"

typedef struct roll_symbol_warm roll_symbol_warm_t;

/* NULL when there is no memory or no thread: debug information is then read when it is first shown. */
roll_symbol_warm_t *roll_symbol_warm_new(void);
/* Waits until the address that is being looked up is done; addresses that still wait are dropped. The files must still
 * exist. */
void roll_symbol_warm_destroy(roll_symbol_warm_t **warm);
/* Asks for the frames of an address (in the file's own numbering); the file is borrowed. When too many addresses wait
 * already, this one is left out. */
void roll_symbol_warm_add(roll_symbol_warm_t *warm, struct roll_symbol_file *file, uint64_t address);

#endif
