/*
 * verdict_json.h: a verdict as JSON, "rollcall.verdict/1". Field by field: docs/VERDICTS.md.
 */
#ifndef ROLL_DAEMON_VERDICT_VERDICT_JSON_H
#define ROLL_DAEMON_VERDICT_VERDICT_JSON_H

#include "daemon/verdict/verdict.h"

/* The verdict as one JSON object, what was attached to it at the end; returned owned; NULL when out of memory. Borrows
 * the copy, which keeps no JSON. Any one thread at a time. */
json_t *roll_verdict_to_json(const struct roll_verdict_copy *copy);
/* The same as text, in one line without its end: terminated, returned owned (free); NULL when out of memory. */
char *roll_verdict_to_text(const struct roll_verdict_copy *copy);

#endif
