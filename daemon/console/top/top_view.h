/*
 * top_view.h: turns the root's status into the tables and lines of text that `rollcall top` shows; needs no terminal.
 *
 * Status and verdicts are the root's JSON (rollcall.status/2, rollcall.verdict/1). Members that are missing or of
 * another type are shown as "-", so that an older or newer root can be looked at.
 */
#ifndef ROLL_DAEMON_CONSOLE_TOP_TOP_VIEW_H
#define ROLL_DAEMON_CONSOLE_TOP_TOP_VIEW_H

#include "daemon/console/text.h"

#include <jansson.h>
#include <stdbool.h>

enum roll_top_tab { ROLL_TOP_RANKS, ROLL_TOP_COMMS, ROLL_TOP_VERDICTS, ROLL_TOP_TABS };

/* Puts the ranks of a status into ascending order (the root lists them in the order in which they came), and adds a
 * member "names" by which tables find what a communicator is called. */
void roll_top_sort(json_t *status);

/* Two lines that sum up the run. Each at most `size` bytes, terminated. */
void roll_top_heading(const json_t *status, char first[], char second[], size_t size);

/* The ranks as of now_ns (wall clock). fold: ranks that stand at the same place share one row ("0-2,4"). 0 or NOMEM. */
int roll_top_ranks(const json_t *status, uint64_t now_ns, bool fold, struct roll_columns *out);
/* fold, or more communicators than a screen has room for: families share a row ("512 groups of 8 neighbours"). */
int roll_top_comms(const json_t *status, bool fold, struct roll_columns *out);
/* One row per verdict, the newest last; verdicts is an array. */
int roll_top_verdicts(const json_t *verdicts, struct roll_columns *out);
const char *roll_top_tab_name(enum roll_top_tab tab);

/* Everything as plain text (`--once`). width 0 = as wide as it gets. 0 or ROLL_E_NOMEM, IO. */
int roll_top_print(const json_t *status, const json_t *verdicts, uint64_t now_ns, bool fold, size_t width, FILE *out);

/* "2 of 4 ranks heard, agent of n1 silent for 12.3 s; root late: 4.0 s": which eyes are closed, or were lately; "": all
 * are open. Returns out. */
const char *roll_top_stale(const json_t *status, uint64_t now_ns, char *out, size_t size);
/* "FOUND (proven) call-skipped, rank 3: ..." of the newest finding that stands; else what may become one; "": nothing.
 * Returns out. */
const char *roll_top_found(const json_t *status, const json_t *verdicts, char *out, size_t size);
/* "no record of ranks 8-15 (8 of 16): ..." where the root knows that there are more ranks than it has heard of; ""
 * else. Returns out. */
const char *roll_top_unseen(const json_t *status, char *out, size_t size);

#endif
