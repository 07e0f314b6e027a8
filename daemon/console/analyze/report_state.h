/*
 * report_state.h: what the files of the reports of NCCL's own tools share: analyze_report.c reads,
 * with report_read_ras.c and report_read_inspector.c; report_judge.c judges, with report_ras.c and report_inspector.c,
 * whose verdicts report_say.c says.
 */
#ifndef ROLL_DAEMON_CONSOLE_ANALYZE_REPORT_STATE_H
#define ROLL_DAEMON_CONSOLE_ANALYZE_REPORT_STATE_H

#include "daemon/console/analyze/analyze_report.h"

#include "daemon/base/map.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#define ROLL_REPORT_OTHERS UINT32_MAX /* the "rank" that stands for those whom the text of a report does not name */

struct roll_report_name {
    char text[64];
    uint32_t size; /* of a communicator */
};
struct roll_report_names {
    struct roll_report_name *at; /* owned */
    size_t used, room;
    struct roll_map place; /* by a hash of the text */
};

struct roll_reports {
    struct roll_report_comm *comm; /* of RAS, in the order in which they were read; owned */
    size_t comms, comm_room;
    struct roll_report_call *call; /* of Inspector; owned */
    size_t calls, call_room;
    struct roll_report_names inspected, functions;
    uint64_t time; /* of the report that is being read, in seconds */
    size_t files;
    uint64_t told_ranks, told_comms;      /* by the tables of RAS texts */
    const struct roll_report_comm *world; /* among `comm`; NULL = none */
    struct roll_map world_at;             /* by a hash of a process: its rank there */
    struct roll_verdict_list verdicts;    /* owned, but for those that were given out */
    size_t given;
    uint64_t findings;
};

#define ROLL_REPORT_RANKS_MOST (1u << 17)
#define ROLL_REPORT_COMMS_MOST (1u << 20)

/* A number that is not negative. */
static inline uint64_t roll_report_number(const json_t *object, const char *key, uint64_t otherwise)
{
    const json_t *v = json_object_get(object, key);
    return json_is_integer(v) && json_integer_value(v) >= 0 ? (uint64_t)json_integer_value(v) : otherwise;
}

/* report_read_ras.c: each 0, NOMEM, CORRUPT or SHORT, with what is wrong in `why` */

/* "AllReduce": the function that RAS counts at this place. */
const char *roll_report_function(unsigned i);
int roll_report_read_ras_json(roll_reports_t *r, const json_t *root, char *why, size_t size);
int roll_report_read_ras_text(roll_reports_t *r, char *text, char *why, size_t size); /* writes into text */

/* report_read_inspector.c: likewise */
int roll_report_read_inspector(roll_reports_t *r, const char *text, size_t bytes, char *why, size_t size);

/* report_say.c */

struct roll_verdict roll_report_begin(enum roll_verdict_code code, enum roll_certainty certainty);
/* Adds the verdict with these words, and takes its sets of ranks, also after an error. 0, NOMEM. */
int roll_report_say(roll_reports_t *r, struct roll_verdict *v, const char *job, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Names the communicator of a verdict by its id in the report; size 0: not told. */
void roll_report_name_comm(struct roll_verdict *v, const char *id, uint32_t size);

struct roll_report_value {
    uint64_t value;
    uint32_t weight;
};
/* The value that most have, and how many; the values are sorted in place. */
uint64_t roll_report_most_common(struct roll_report_value *value, size_t n, uint32_t *of);

/* report_ras.c: all communicators of all reports. 0, NOMEM. */
int roll_reports_judge_ras(roll_reports_t *r);
/* report_inspector.c: the calls (n > 0) of one communicator, in their order. 0, NOMEM. */
int roll_reports_judge_inspected(roll_reports_t *r, const struct roll_report_call *call, size_t n);

#endif
