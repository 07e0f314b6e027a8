/*
 * verdict_markdown.h: a verdict as Markdown for a ticket, the same text as "Copy as Markdown" of the web page
 * (dashboards/web/js/markdown.js); a test compares the two. Any thread, as the stream allows.
 */
#ifndef ROLL_DAEMON_VERDICT_VERDICT_MARKDOWN_H
#define ROLL_DAEMON_VERDICT_VERDICT_MARKDOWN_H

#include <jansson.h>
#include <stdio.h>

/* Writes text (NULL: nothing) so that Markdown and HTML take none of it for their own: on one line, with a backslash
 * before each character that either of them reads. */
void roll_markdown_plain(FILE *out, const char *text);
/* Writes one verdict (rollcall.verdict/1, borrowed; its frames may have a `context`, the lines around them, {"first":
 * number of the first one, "texts"}). 0, NOMEM, CORRUPT when it is not a verdict, IO when the stream fails. */
int roll_verdict_markdown(FILE *out, const json_t *verdict);

#endif
