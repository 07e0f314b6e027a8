/*
 * run_json.h: what a report holds of one run, as the JSON that the web page is told and asks for (docs/WEB.md): the
 * modules of the page draw both. Every list has an end, and what is beyond it is said in words. One thread.
 */
#ifndef ROLL_DAEMON_CONSOLE_REPORT_RUN_JSON_H
#define ROLL_DAEMON_CONSOLE_REPORT_RUN_JSON_H

#include "daemon/console/report/lanes.h"
#include "daemon/console/report/source_lines.h"

#include <jansson.h>

/* What is left of the room that all runs of a report share. */
struct roll_report_room {
    size_t bytes;                /* of verdicts in full, of calls and of paragraphs */
    bool has_source;             /* lines of the job's files are added where they are here */
    struct roll_sources sources; /* which were not */
};

/* The verdicts of one run, in the order in which they were said: pointers are borrowed, the array is owned. */
int roll_report_part(const struct roll_verdict_list *all, const char *job, uint32_t restart,
                     struct roll_verdict_list *out);

/*
 * One run (run: its number; ROLL_JOB_NONE: none, because what found these verdicts knows no job). part: its verdicts.
 * Returned owned; NULL: no memory.
 */
json_t *roll_report_run_json(struct roll_job *job, uint32_t run, const struct roll_verdict_list *part,
                             struct roll_lanes *lanes, struct roll_report_room *room);
/* What could not be judged of all that was read, an array of texts; owned; NULL: no memory. */
json_t *roll_report_unjudged(const struct roll_job *job);

#endif
