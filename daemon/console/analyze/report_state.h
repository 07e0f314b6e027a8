/*
 * report_state.h: what the files of the reports of NCCL's own tools share: analyze_report.c reads, report_judge.c
 * judges.
 */
#ifndef ROLL_DAEMON_CONSOLE_ANALYZE_REPORT_STATE_H
#define ROLL_DAEMON_CONSOLE_ANALYZE_REPORT_STATE_H

#include "daemon/console/analyze/analyze_report.h"

#include "daemon/base/map.h"

#include <jansson.h>

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

/* "AllReduce": the function that RAS counts at this place. */
const char *roll_report_function(unsigned i);

#endif
