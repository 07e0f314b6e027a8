/*
 * verdict_json.h: verdicts of a feed as their JSON, for tests that compare them with what a daemon sent.
 */
#ifndef ROLL_TESTS_DAEMON_VERDICT_JSON_H
#define ROLL_TESTS_DAEMON_VERDICT_JSON_H

#include "daemon/verdict/verdict_json.h"

#include <stdio.h>
#include <stdlib.h>

/* The JSON of a verdict, returned owned; NULL where there is no verdict, and for no other reason: JSON that cannot be
 * made ends the test. Takes the verdict, which is gone when its JSON is read. */
static inline json_t *json_of_verdict(struct roll_verdict_copy *verdict)
{
    json_t *json = verdict ? roll_verdict_to_json(verdict) : NULL;
    if (verdict && !json) {
        fprintf(stderr, "the JSON of verdict %llu cannot be made\n", (unsigned long long)verdict->said.number);
        abort();
    }
    roll_verdict_copy_destroy(&verdict);
    return json;
}

#endif
