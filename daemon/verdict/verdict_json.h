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

#endif
