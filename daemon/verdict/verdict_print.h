/*
 * verdict_print.h: how a verdict is laid out for people: one gutter, then content, in colours where the terminal has
 * some. Private to verdict_text.c, verdict_line.c, verdict_calls.c, verdict_sides.c and verdict_print.c. Any thread, as
 * the stream allows.
 */
#ifndef ROLL_DAEMON_VERDICT_VERDICT_PRINT_H
#define ROLL_DAEMON_VERDICT_VERDICT_PRINT_H

#include "daemon/base/colour.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define ROLL_PRINT_GUTTER  10
#define ROLL_PRINT_COLUMNS 100

struct roll_printer {
    FILE *out;
    bool color, frames; /* with colours; with every frame of a call site */
    size_t columns;     /* a line has no more, where words allow */
};

/* A line that is composed before it is printed; what does not fit is cut. Zero-initialised is empty. */
struct roll_line {
    char bytes[512];
    size_t used;
};

void roll_line_add(struct roll_line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Members of JSON that another process sent: "" or false where there is none. Borrowed from the object. */
const char *roll_member_text(const json_t *object, const char *name);
bool roll_member_number(const json_t *object, const char *name, int64_t *out);

/* verdict_print.c */
struct roll_printer roll_printer_of(FILE *out, unsigned style);           /* enum roll_verdict_style, and columns */
void roll_printer_paint(const struct roll_printer *p, const char *style); /* one of the styles above */
/* Prints text of another process, without what would steer a terminal. */
void roll_printer_put(const struct roll_printer *p, const char *text);
void roll_printer_pad(const struct roll_printer *p, size_t from, size_t to); /* blanks from one column to another */
/* Begins a line: the label in the gutter. A label that is too wide takes a line of its own. */
void roll_printer_gutter(const struct roll_printer *p, const char *label, const char *style);
/* Prints a paragraph between the gutter and the last column. */
void roll_printer_wrap(const struct roll_printer *p, const char *text);
/* "rank 3", "ranks 0-2,4", or "" for nobody. Long sets are cut; the line of those who wait says how many. */
void roll_printer_ranks(char out[64], const char *text);

/* verdict_calls.c: adds what the side called that the verdict's evidence has at this place; `mark`: from where to where
 * the field stands in it in which the sides differ. */
void roll_describe_side(const json_t *verdict, size_t index, const char *field, struct roll_line *text, size_t mark[2]);

/* verdict_sides.c */
/* Prints the evidence of a verdict: what each side called, and from where. */
void roll_printer_evidence(const struct roll_printer *p, const json_t *verdict);
/* The frames of a call site that say where the call was made: the user's lines of Python; else those at which the main
 * thread stood; else Python's, of libraries; else the native ones. All, where the printer shows every frame. Returned
 * owned. */
json_t *roll_printer_telling(const struct roll_printer *p, const json_t *frames);

#endif
