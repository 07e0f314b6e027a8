/*
 * text.h: plain text and JSON for people and scripts: aligned columns, times, counts.
 */
#ifndef ROLL_DAEMON_CONSOLE_TEXT_H
#define ROLL_DAEMON_CONSOLE_TEXT_H

#include "trace/ring.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define ROLL_COLUMNS_MAX 16
#define ROLL_TIME_BYTES  40

/* A table under construction: rows of cells; widths follow from the cells. Zero-initialised is empty. */
struct roll_columns {
    size_t columns;
    size_t used, room; /* cells */
    char **cell;       /* owned, row by row; the first row is the heading */
    uint32_t right;    /* bit i: column i is aligned to the right */
    uint32_t hide;     /* bit i: column i is not shown, because no row has anything in it */
    uint8_t drop[6];   /* columns that are left out, one after the other, while the table is too wide (index + 1) */
    size_t shrink;     /* the column that shrinks where that is not enough (index + 1; 0 = none) */
    size_t then;       /* and the one that shrinks when that one can no more (likewise) */
};

/* Appends one row of `columns` cells (copied). 0 or ROLL_E_NOMEM. */
int roll_columns_row(struct roll_columns *table, const char *const *cells);
/* Line i (0 = heading) into out, at most size bytes and `width` terminal columns (0 = any). Returns the length. */
size_t roll_columns_line(const struct roll_columns *table, size_t i, size_t width, char *out, size_t size);
size_t roll_columns_rows(const struct roll_columns *table); /* heading included */
int roll_columns_print(const struct roll_columns *table, size_t width, FILE *out);
void roll_columns_fini(struct roll_columns *table);

/* "2026-11-20T13:01:02.123456789Z". Returns out. */
const char *roll_time_text(uint64_t real_ns, char out[ROLL_TIME_BYTES]);
/* "1.2 ms", "3.4 s", "2 min", for ages and durations. Returns out. */
const char *roll_span_text(uint64_t ns, char *out, size_t size);
/* "1,234,567". Returns out. */
const char *roll_count_text(uint64_t n, char *out, size_t size);
/* A mean: "2.5", and from a thousand on "1,234". Returns out. */
const char *roll_mean_text(double n, char *out, size_t size);
/* "1 finding", "2 findings". Returns out. */
const char *roll_plural(uint64_t n, const char *one, const char *many, char *out, size_t size);

/* The figures of a job for the last line of `run` and `analyze`: "4 ranks, 123 calls on 1 communicator: 1 finding,
 * nothing lost"; causes by which something was not recorded follow: "not recorded: 1,317 defs_full and 2 signal". */
struct roll_summary {
    uint64_t ranks,
        of_ranks; /* of_ranks: how many ranks there are, when that is known and some of them recorded nothing; else 0 */
    uint64_t calls, comms, findings, lost, incomplete;
    uint64_t older;                       /* calls that were made before what is recorded begins */
    uint64_t unrecorded[ROLL_LOSS_LIMIT]; /* by enum roll_loss: what no record tells of */
    struct {
        uint64_t calls; /* that returned an error; of the first of them: */
        uint64_t rank;
        char op[32], result[32]; /* as they are printed */
    } failed;
    bool digests; /* the calls were compared by digests, and `comms` are those of records that were looked at */
};
#define ROLL_SUMMARY_TEXT 768 /* bytes that hold the sentence */
/* Reads what a root says of this. Borrows object. */
void roll_summary_unrecorded(const json_t *object, struct roll_summary *out);
/* So many calls returned an error, first this operation of this rank with this result (copied). */
void roll_summary_failed(struct roll_summary *out, uint64_t calls, uint64_t rank, const char *op, const char *result);
/* The same, for `out` of a root's summary and what analyze prints: causes that are not 0. Returns owned. */
json_t *roll_summary_unrecorded_json(const struct roll_summary *summary);
/* The sentence, without a full stop and a new line. Returns out. */
const char *roll_summary_text(const struct roll_summary *summary, char *out, size_t size);
/* Says what a run did (daemon/feed/seen.h; NULL: nothing is known), in few lines on standard error. Borrowed. */
void roll_seen_say(const json_t *seen);
/* Prints a text as one line, without what would steer a terminal; on a terminal that is too narrow for it broken
 * between words. */
void roll_line_print(const char *text, FILE *out);
uint64_t roll_now_real_ns(void);

/* One JSON object as one line. 0 or ROLL_E_IO. Borrows object. */
int roll_json_line(const json_t *object, FILE *out);
/* Members of an object with a default, for data that came from elsewhere; strings are borrowed from the object. */
const char *roll_json_text(const json_t *object, const char *key, const char *otherwise);
int64_t roll_json_int(const json_t *object, const char *key, int64_t otherwise);
/* For which ranks a row of a status waits, folded; and how many operations it has issued that are incomplete. Also of
 * rows of older roots, in which these members have other names (docs/FRAME.md, rollcall.status/1). */
const char *roll_row_awaits(const json_t *row, const char *otherwise);
int64_t roll_row_pending(const json_t *row);

#endif
