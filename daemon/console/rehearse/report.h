/*
 * report.h: a rehearsal's trace as the report has read it. Private to the files of the report: report_trace.c reads,
 * report_names.c says what communicators are called, report.c makes JSON of it.
 */
#ifndef ROLL_DAEMON_CONSOLE_REHEARSE_REPORT_H
#define ROLL_DAEMON_CONSOLE_REHEARSE_REPORT_H

#include "daemon/base/map.h"
#include "daemon/console/rehearse/rehearse.h"
#include "daemon/verdict/verdict_tally.h"

struct count {
    uint64_t calls, bytes;           /* of the whole job */
    uint64_t step_calls, step_bytes; /* of those that belong to a step */
};

/* A communicator as one ring defines it. */
struct local {
    struct roll_def_comm def;
    struct count *op; /* owned; ROLL_OP_LIMIT; NULL while there is no call */
};

struct ring {
    uint64_t stream, next_ticket, defs_offset;
    struct local *comm; /* owned; by id of the definition */
    size_t comms, room;
};

/* Where a communicator is met: a ring, and the ring's own id of it. */
struct met {
    uint32_t ring, id;
};

struct reading {
    roll_feed_t *feed; /* owned */
    struct ring *ring; /* owned */
    size_t rings, room;
    struct roll_map ring_at; /* by stream */
    struct met *met;         /* owned */
    size_t mets, met_room;
    struct roll_map met_at;  /* by key: many */
    struct roll_map view_at; /* by key: the number of the engine's view */
    json_t *verdicts;        /* owned */
    struct roll_tally tally;
    roll_rehearse_order_t *order;          /* owned */
    const struct roll_rehearse_rank *rank; /* borrowed */
    size_t ranks;
    uint32_t first_step, last_step; /* of all ranks; ROLL_STEP_NONE while none was told */
};

/* report_trace.c */

/* Reads the segments of the trace in their order, which is that of their names. 0, NOMEM. */
int roll_report_read(struct reading *r, const char *folder);

/* report_names.c */

/* Tells the engine what the job's Python called its process groups; before the trace is read. 0, NOMEM. */
int roll_report_groups(struct reading *r, const char *notes);
/* Finds where each communicator is met, and which view of the engine is its own; behind the trace. 0, NOMEM. */
int roll_report_meetings(struct reading *r);
/* What people call a communicator: its name, else its role; "" where it has neither. */
const char *roll_report_name(const struct roll_view_comm *view);
/* How the communicator came to be, in words: "CommSplit of world, color 1 at job.c:12 main". */
void roll_report_made(struct reading *r, const struct roll_view_comm *view, char *out, size_t size);

#endif
