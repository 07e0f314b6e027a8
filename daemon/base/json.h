/*
 * json.h: texts and sets of ranks as JSON, for every part of the daemon that answers in JSON.
 */
#ifndef ROLL_DAEMON_BASE_JSON_H
#define ROLL_DAEMON_BASE_JSON_H

#include "trace/rankset.h"

#include <jansson.h>

/* What a root's answer to "status" is, and what consoles and reports make after it: docs/FRAME.md. */
#define ROLL_STATUS_SCHEMA "rollcall.status/2"

/* A set of ranks as an array of numbers, returned owned; NULL when out of memory. */
json_t *roll_ranks_to_json(const struct roll_rankset *set);

/*
 * A text of another process as a JSON string: Names of hosts, programs and communicators may not be valid UTF-8, and an
 * answer must not be lost for that: bytes beyond ASCII then become '?'. Borrows text; returns owned; NULL when out of
 * memory. Any thread.
 */
json_t *roll_text_to_json(const char *text);
/* A set of ranks, folded and whole ("0-3,7"), as a JSON string; owned; NULL when out of memory. Any thread. */
json_t *roll_ranks_text_json(const struct roll_rankset *set);

/* The words of a message of JSON that says what is wrong, {"error": WORDS}, or what came instead, cut to the size. Any
 * thread; returns out. */
const char *roll_error_of_json(const void *bytes, size_t count, char *out, size_t size);

#endif
