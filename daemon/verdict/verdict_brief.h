/*
 * verdict_brief.h: verdicts in short, as the web page and reports list them: the newest findings, and who waits for
 * whom as those that stand say. Members: docs/WEB.md, "For programs". Any one thread at a time.
 */
#ifndef ROLL_DAEMON_VERDICT_VERDICT_BRIEF_H
#define ROLL_DAEMON_VERDICT_VERDICT_BRIEF_H

#include "daemon/verdict/verdict.h"

/* The ranks of whom a finding that stands says that they wait are added to *waiting: they may all have arrived at a
 * call that cannot complete. */
void roll_verdict_waiting(const struct roll_verdict_list *list, struct roll_rankset *waiting);
/* The ranks of whom a finding that stands says that they are in their own code, waited for, are added to *awaited. */
void roll_verdict_awaited(const struct roll_verdict_list *list, struct roll_rankset *awaited);
/* {"verdicts": how many there are, "findings": [in short, the newest first, at most `most`]}; owned; NULL: no memory.
 */
json_t *roll_verdict_briefs_json(const struct roll_verdict_list *list, size_t most);
/* Who waits for whom, an array of at most `most`; owned; NULL: no memory. */
json_t *roll_verdict_waits_json(const struct roll_verdict_list *list, size_t most);

#endif
