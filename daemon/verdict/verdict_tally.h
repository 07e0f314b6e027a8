/*
 * verdict_tally.h: which verdicts still stand. A later one may supersede, confirm or withdraw an earlier one of its
 * run, which is a finding no more.
 */
#ifndef ROLL_DAEMON_VERDICT_VERDICT_TALLY_H
#define ROLL_DAEMON_VERDICT_VERDICT_TALLY_H

#include "daemon/verdict/verdict.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The next four read JSON that another process sent; verdict.h asks the same of typed verdicts. */
/* Number of the earlier verdict that this one supersedes, confirms or withdraws; 0 = none. Any thread, like all below.
 */
uint64_t roll_verdict_json_retires(const json_t *verdict);
/* Whether the verdict was a finding when it was said. */
bool roll_verdict_json_is_finding(const json_t *verdict);
/* The verdict of this list that ends `verdict`; NULL: `verdict` stands. The list holds each run's verdicts in order,
 * and `verdict` itself. Borrowed. */
const json_t *roll_verdict_json_retired_by(const json_t *list, const json_t *verdict);
/* What the verdict that `verdict` ends has become by it, a word of life.def; "ended": it does not say. */
const char *roll_verdict_json_makes(const json_t *verdict);

/*
 * Whether a pushed verdict has not been heard; then notes it. A root that was killed and started again tells its
 * verdicts from the first one on: those of its trace, or, without a trace, what it finds in the rings. `heard` is an
 * object of the caller, empty at first, that holds by job and number what each verdict said.
 */
bool roll_verdict_json_is_new(json_t *heard, const json_t *verdict);

/* Counts findings that stand while verdicts of any number of runs pass by. Zero-initialised is valid. One thread at a
 * time. */
struct roll_tally {
    struct roll_tally_row {
        char *job; /* owned */
        uint32_t restart;
        uint64_t number;
    } * row; /* owned: the findings that stand */
    size_t used, room;
    bool full; /* there was no memory to note a finding: one finding more stands for good */
};
/* Counts one verdict; a verdict that is known already changes nothing. */
void roll_tally_add(struct roll_tally *tally, const struct roll_verdict_copy *verdict);
/* Counts a verdict that another process sent. */
void roll_tally_add_json(struct roll_tally *tally, const json_t *verdict);
/* How many findings stand. */
uint64_t roll_tally_findings(const struct roll_tally *tally);
void roll_tally_fini(struct roll_tally *tally);

#endif
