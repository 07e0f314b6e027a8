/*
 * symbol_file.h: one program or library on disk, and names for addresses in it. Used only inside the symbol table.
 */
#ifndef ROLL_DAEMON_STACK_SYMBOL_FILE_H
#define ROLL_DAEMON_STACK_SYMBOL_FILE_H

#include "daemon/stack/symbol.h"

#include <stdbool.h>

struct roll_symbol_file;

/* Borrows path (not terminated) and build id; the file itself is opened on first use. NULL when out of memory. */
struct roll_symbol_file *roll_symbol_file_new(const char *path, size_t path_bytes, const uint8_t *build_id,
                                              size_t build_id_bytes);
void roll_symbol_file_destroy(struct roll_symbol_file **file);
/* Closes the file until something new is asked of it. What was told stays valid, and is told again without it. Any
 * thread. */
void roll_symbol_file_rest(struct roll_symbol_file *file);
bool roll_symbol_file_is_open(struct roll_symbol_file *file); /* any thread */

/* Opens a regular file; the descriptor is owned. -1: there is no such file, or it is something else. The path comes
 * from a rank: whatever stands in the file's place by now (a FIFO, a device) must not hold us up. */
int roll_symbol_file_open(const char *path);

/* Whether `file` has this path and this build id. */
bool roll_symbol_file_is(const struct roll_symbol_file *file, const char *path, size_t path_bytes,
                         const uint8_t *build_id, size_t build_id_bytes);
const char *roll_symbol_file_path(const struct roll_symbol_file *file);

/* The frames of an address in the file's own numbering, innermost first: functions inlined there, then the function
 * that holds it. At least one when max > 0 (module and offset alone when nothing is known). Strings live as long as
 * file. */
size_t roll_symbol_file_frames(struct roll_symbol_file *file, uint64_t address, struct roll_symbol_frame *out,
                               size_t max);
/* The same where the address has been looked up before; nothing is read, and nobody waited for. 0: it has not been, or
 * somebody looks into the file at this moment. */
size_t roll_symbol_file_known(struct roll_symbol_file *file, uint64_t address, struct roll_symbol_frame *out,
                              size_t max);

#endif
