/*
 * symbol_find.h: addresses of named symbols of a mapped module, from its file.
 */
#ifndef ROLL_DAEMON_STACK_SYMBOL_FIND_H
#define ROLL_DAEMON_STACK_SYMBOL_FIND_H

#include "daemon/stack/module.h"

/* For each name its address in the target's memory, 0 when the file has no such symbol. False when the file cannot be
 * read. */
bool roll_symbol_find(const struct roll_target *target, const struct roll_module *module, const char *const *names,
                      uint64_t *out, size_t n);
/* The address of a section; 0 when there is none. */
uint64_t roll_section_find(const struct roll_target *target, const struct roll_module *module, const char *name);

#endif
