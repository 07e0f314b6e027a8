/*
 * run_parts.h: the parts of what a report holds of one run (run_json.h): what its ranks did and how they stood
 * (run_ranks.c), why they stand (run_why.c), and the status as the page has it (run_status.c). Each takes from the room
 * that is left, and says in words what it left out (run_room.c). One thread.
 */
#ifndef ROLL_DAEMON_CONSOLE_REPORT_RUN_PARTS_H
#define ROLL_DAEMON_CONSOLE_REPORT_RUN_PARTS_H

#include "daemon/console/report/run_json.h"
#include "daemon/feed/field.h"

#define ROLL_REPORT_BEHIND 64u /* ranks of a list that is there in words as well */
#define ROLL_REPORT_FIRST  16u /* groups of ranks that stand alike, on the first page */

/* run_room.c */

/* What a report leaves out, in words. */
__attribute__((format(printf, 2, 3))) void roll_report_leave_out(json_t *out, const char *format, ...);
/* Drops what is behind the first `most` of a list. */
void roll_report_cut(json_t *array, size_t most);
/* Takes room for a value, or drops it; false: there is no room. */
bool roll_report_take(struct roll_report_room *room, json_t *value);

/* run_why.c: in words why these ranks stand, those that stand alike together. Owned. */
json_t *roll_report_why(roll_engine_t *engine, const struct roll_field_place *place, size_t n,
                        struct roll_report_room *room, json_t *left_out);
/* run_status.c: ROLL_STATUS_SCHEMA, as far as the page asks for it. Owned. */
json_t *roll_report_status(roll_feed_t *feed, const struct roll_verdict_list *part, uint64_t last_ns,
                           struct roll_report_room *room, json_t *left_out);
/* run_ranks.c: what of a run is known of its ranks, into the object. 0, NOMEM. */
int roll_report_ranks(struct roll_job *job, uint32_t run, const struct roll_verdict_list *part,
                      struct roll_lanes *lanes, struct roll_report_room *room, json_t *out, json_t *left_out);

#endif
