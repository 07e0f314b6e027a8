/*
 * verdict_json.h: a verdict as JSON, "rollcall.verdict/1". Field by field: docs/VERDICTS.md.
 */
#ifndef ROLL_DAEMON_VERDICT_JSON_H
#define ROLL_DAEMON_VERDICT_JSON_H

#include "daemon/engine/engine.h"
#include "daemon/stack/symbol.h"

#include <jansson.h>

/* The verdict as one JSON object, returned owned; NULL when out of memory. Borrows all; symbols and engine may be NULL
 * (then without call sites). One thread per table of symbols. */
json_t *roll_verdict_to_json(const struct roll_verdict *verdict, const roll_engine_t *engine, roll_symbols_t *symbols,
                             const char *job, uint32_t restart);

/* A set of ranks as an array of numbers, returned owned; NULL when out of memory. */
json_t *roll_ranks_to_json(const struct roll_rankset *set);

/*
 * A text of another process as a JSON string: names of hosts, programs and communicators may be no UTF-8, and nothing may be lost
 * for that: bytes beyond ASCII become '?' then. Borrows text; returns owned; NULL when out of memory. Any thread.
 */
json_t *roll_text_to_json(const char *text);
/* A set of ranks, folded and whole ("0-3,7"), as a JSON string; owned; NULL when out of memory. Any thread. */
json_t *roll_ranks_text_json(const struct roll_rankset *set);

#endif
