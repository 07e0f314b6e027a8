/*
 * calls_json.h: the calls that were kept of each moment of a run, in the form in which the page's timeline asks for
 * them (rollcall.calls/1, docs/WEB.md). One thread.
 */
#ifndef ROLL_DAEMON_CONSOLE_REPORT_CALLS_JSON_H
#define ROLL_DAEMON_CONSOLE_REPORT_CALLS_JSON_H

#include "daemon/console/report/lanes.h"

#include <jansson.h>
#include <stddef.h>

/*
 * An array of {"number": of the finding, 0: the end, "time_ns", "answers": [{"rank", "host", "calls"}]}, of as many
 * moments as *bytes have room for, which are taken from it; *lost: how many have none. Returned owned; NULL: no memory.
 */
json_t *roll_report_calls_json(const struct roll_job *job, uint32_t run, const struct roll_lanes *lanes, size_t *bytes,
                               size_t *lost);

#endif
