/*
 * verdict_json.h: verdicts of a feed as their JSON, for tests that compare them with what a daemon sent.
 */
#ifndef ROLL_TESTS_DAEMON_VERDICT_JSON_H
#define ROLL_TESTS_DAEMON_VERDICT_JSON_H

#include "daemon/verdict/verdict.h"

/* The JSON of a verdict, returned owned; NULL for NULL. Takes the verdict, which is gone when its JSON is read. */
static inline json_t *json_of_verdict(struct roll_verdict_copy *verdict)
{
    json_t *json = verdict ? json_incref(roll_verdict_json(verdict)) : NULL;
    roll_verdict_copy_destroy(&verdict);
    return json;
}

#endif
