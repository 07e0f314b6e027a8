/*
 * verdict_json.h: a verdict as JSON, "rollcall.verdict/1". Field by field: docs/VERDICTS.md.
 */
#ifndef ROLL_DAEMON_VERDICT_VERDICT_JSON_H
#define ROLL_DAEMON_VERDICT_VERDICT_JSON_H

#include "daemon/verdict/verdict.h"

/* The verdict as one JSON object, returned owned; NULL when out of memory. Borrows the copy, which keeps no JSON by
 * this call: roll_verdict_json does. Any one thread at a time. */
json_t *roll_verdict_to_json(const struct roll_verdict_copy *copy);

#endif
