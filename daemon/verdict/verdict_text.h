/*
 * verdict_text.h: a verdict for people, from its JSON, so that every face prints alike.
 */
#ifndef ROLL_DAEMON_VERDICT_VERDICT_TEXT_H
#define ROLL_DAEMON_VERDICT_VERDICT_TEXT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* How verdicts are printed, or'ed. */
enum roll_verdict_style {
    ROLL_VERDICT_PLAIN = 0,
    ROLL_VERDICT_COLOR = 1,  /* with ANSI colours: the caller knows its terminal */
    ROLL_VERDICT_FRAMES = 2, /* every frame of each call site: those of libraries and of native code as well */
    ROLL_VERDICT_NUMBER = 4  /* with its number, by which other texts name it */
};
/* Or'ed to the style: at most so many columns, from ROLL_VERDICT_LEAST on; without it 100. */
#define ROLL_VERDICT_COLUMNS(n) ((unsigned)(n) << 8)
#define ROLL_VERDICT_LEAST      40u

/*
 * Prints one verdict (rollcall.verdict/1, borrowed): header line, evidence of both sides with call sites, who waits,
 * the explanation and the remedy; UTF-8, at most 100 columns (or as the style says) where words allow. 0, CORRUPT when
 * it is not a verdict, IO when the stream fails. Any thread, as the stream allows.
 */
int roll_verdict_print(FILE *out, const json_t *verdict, unsigned style);

/*
 * The same where a later verdict is known (retired_by, borrowed) that superseded, confirmed or withdrew this one: one
 * line that says so. NULL: none.
 */
int roll_verdict_print_of(FILE *out, const json_t *verdict, const json_t *retired_by, unsigned style);

/*
 * Prints one verdict as one line: certainty, code, and the first sentence of its explanation. Meant for notes beside a
 * running job, of which there may be many. Where the style says how many columns there are, what does not fit goes on
 * below itself; without that the line has any width. Otherwise as roll_verdict_print.
 */
int roll_verdict_print_line(FILE *out, const json_t *verdict, unsigned style);

#endif
