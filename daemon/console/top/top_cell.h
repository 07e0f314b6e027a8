/*
 * top_cell.h: members of the root's status as the text of a cell: what the files of `rollcall top` share. Whatever is
 * missing, or of another type, is "-". Any thread.
 */
#ifndef ROLL_DAEMON_CONSOLE_TOP_TOP_CELL_H
#define ROLL_DAEMON_CONSOLE_TOP_TOP_CELL_H

#include "daemon/console/text.h"

#include <jansson.h>

#define ROLL_TOP_CELL 96

/* What a communicator of the status is called: its name, else its label, else its key. Borrowed. */
const char *roll_top_comm_name(const json_t *comm);
/* A member as text whatever its type; "-" when it is absent, null, or a negative number. Returns out. */
const char *roll_top_any(const json_t *object, const char *key, char out[ROLL_TOP_CELL]);
/* The same, a number as "1,234". Returns out. */
const char *roll_top_counted(const json_t *object, const char *key, char out[ROLL_TOP_CELL]);
/* Appends a row of the table's columns; an empty cell is "-". 0 or NOMEM. */
int roll_top_row(struct roll_columns *table, char cell[][ROLL_TOP_CELL]);

#endif
