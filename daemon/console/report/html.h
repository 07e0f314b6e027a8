/*
 * html.h: the file of a report around its data: the page's own modules, style and frame, and the data as an island of
 * JSON. Nothing is fetched, and no text of a job becomes markup or script. One thread.
 */
#ifndef ROLL_DAEMON_CONSOLE_REPORT_HTML_H
#define ROLL_DAEMON_CONSOLE_REPORT_HTML_H

#include <jansson.h>
#include <stdio.h>

/* Text as HTML, also inside of an attribute. */
void roll_html_text(FILE *out, const char *text);
/* A value as JSON that stands inside of a script element: in ASCII, without any of <, > and &. 0, IO. */
int roll_html_json(FILE *out, const json_t *value);

/* The beginning of the file, until where the data begins; title and plain, which is what is seen without scripts, are
 * texts. */
void roll_html_begin(FILE *out, const char *title, const char *plain);
/* What is behind the data. */
void roll_html_end(FILE *out);

#endif
