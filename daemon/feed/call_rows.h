/*
 * call_rows.h: some calls of one rank as JSON (rollcall.calls/1, docs/WEB.md), for who draws them: an agent writes them
 * from its ring, a report from a trace. One thread.
 */
#ifndef ROLL_DAEMON_FEED_CALL_ROWS_H
#define ROLL_DAEMON_FEED_CALL_ROWS_H

#include "trace/def.h"
#include "trace/record.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* One row, for who has the communicators and call sites of the rank from elsewhere, and knows which are there. */
struct roll_call_row {
    const struct roll_record *rec; /* borrowed */
    uint64_t after_ns;             /* from the base of the rows to where it was entered */
    bool comm, site;               /* what it refers to is among those that are told */
    bool done;                     /* its work is known to be complete on the device */
};

/* Whether it is drawn: an observation, what is asked again and again, and what only orders streams are not. */
bool roll_call_is_shown(unsigned op);
/* Returned owned; NULL: no memory. */
json_t *roll_call_row_json(const struct roll_call_row *row);
json_t *roll_call_columns_json(void);

typedef struct roll_call_rows roll_call_rows_t;

/* NULL when out of memory. */
roll_call_rows_t *roll_call_rows_new(void);
void roll_call_rows_destroy(roll_call_rows_t **rows);

/* Takes note of a definition (borrowed) of the rank; only COMM, SOURCE, LINE and CALLSITE matter. 0, NOMEM, LIMIT (an
 * id that no rank gives). */
int roll_call_rows_define(roll_call_rows_t *rows, const struct roll_def *def);
/*
 * Adds a call (borrowed), in the order of the tickets; what is no call is left out (observations, polls, what only
 * orders streams). real_ns: wall clock at which it was entered; done: its work is known to be complete on the device.
 * 0, NOMEM.
 */
int roll_call_rows_add(roll_call_rows_t *rows, const struct roll_record *rec, uint64_t real_ns, bool done);
/* What was added, with the communicators and call sites that it names; returned owned; NULL: no memory. Once. */
json_t *roll_call_rows_json(roll_call_rows_t *rows);

#endif
