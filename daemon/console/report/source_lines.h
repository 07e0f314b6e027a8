/*
 * source_lines.h: the lines around the places in the job's own code that a verdict names, out of the files of the
 * machine that makes a report.
 *
 * A file of that name may be another one here, or the file may have changed since, and a trace may name any file to
 * have it sent to whoever gets the report: so lines are taken only from files of Python, and only where the line itself
 * says what the agent of the rank's node read there when the call was recorded. One thread.
 */
#ifndef ROLL_DAEMON_CONSOLE_REPORT_SOURCE_LINES_H
#define ROLL_DAEMON_CONSOLE_REPORT_SOURCE_LINES_H

#include <jansson.h>
#include <stdbool.h>

#define ROLL_SOURCE_AROUND 3u /* lines before and behind */

/* Whether there were lines that are not shown, and why: a trace is often read on a machine that has no checkout. */
struct roll_sources {
    bool absent; /* the file is not here, or cannot be read */
    bool other;  /* the file here is another one, or has changed since */
};

/* Says so in one line each, added to a list of texts (borrowed). */
void roll_sources_say(const struct roll_sources *sources, json_t *texts);

/* Adds `context` {"first": number of the first line, "texts": [...]} to the frames of a verdict (rollcall.verdict/1)
 * whose file is here as it was, and notes of which it is not. */
void roll_source_lines_add(json_t *verdict, struct roll_sources *sources);

#endif
