/*
 * verdict_text.h: a verdict for people, from its JSON, so that every face prints alike.
 */
#ifndef ROLL_DAEMON_VERDICT_VERDICT_TEXT_H
#define ROLL_DAEMON_VERDICT_VERDICT_TEXT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/*
 * Prints one verdict (rollcall.verdict/1, borrowed): header line, evidence of both sides with call sites, who waits,
 * the explanation and the remedy; UTF-8, at most 100 columns where words allow. color: with ANSI colours (the caller
 * knows its terminal). 0, CORRUPT when it is not a verdict, IO when the stream fails. Any thread, as the stream allows.
 */
int roll_verdict_print(FILE *out, const json_t *verdict, bool color);

/*
 * The same where a later verdict is known (retired_by, borrowed) that superseded, confirmed or withdrew this one: one
 * line that says so. NULL: none.
 */
int roll_verdict_print_of(FILE *out, const json_t *verdict, const json_t *retired_by, bool color);

/*
 * Prints one verdict as one line: certainty, code, and the first sentence of its explanation. Meant for notes beside a
 * running job, of which there may be many. Otherwise as roll_verdict_print.
 */
int roll_verdict_print_line(FILE *out, const json_t *verdict, bool color);

#endif
