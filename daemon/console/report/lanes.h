/*
 * lanes.h: the last calls of each process while a trace is read, and how all ranks stood at moments that matter: when a
 * finding was said, and at the end.
 *
 * A ring of the last calls for each process is all that is kept, and copies of a few at each moment: a trace of
 * gigabytes costs what a small one does. Reading the trace a second time around each finding was rejected: it takes as
 * long again, and the engine's view of the ranks at that moment would be gone. One thread.
 */
#ifndef ROLL_DAEMON_CONSOLE_REPORT_LANES_H
#define ROLL_DAEMON_CONSOLE_REPORT_LANES_H

#include "daemon/console/export/job.h"

#include <stdint.h>

#define ROLL_LANE_CALLS   64u /* that are kept of each process: a power of two */
#define ROLL_MOMENT_LANES 12u /* processes that are looked at for one finding */
#define ROLL_MOMENTS_MOST 64u /* findings of all jobs whose moment is kept */

struct roll_lane_call {
    struct roll_record rec;
    uint64_t real_ns;
    uint32_t comm; /* ROLL_JOB_NONE = none */
};

/* The calls of one process, oldest first. */
struct roll_moment_lane {
    uint32_t ring;
    uint32_t calls;
    struct roll_lane_call *call; /* owned */
};

struct roll_moment {
    uint32_t run;
    uint64_t number; /* of the finding; 0: the end of what was recorded */
    uint64_t time_ns;
    char *state; /* owned; a letter for each source of the engine (daemon/feed/field.h) */
    uint32_t states;
    struct roll_moment_lane lane[ROLL_MOMENT_LANES];
    uint32_t lanes;
};

struct roll_lane; /* the last calls of a process */

/* Zero-initialised is empty. */
struct roll_lanes {
    struct roll_lane **lane; /* by number of the ring; owned, as is what follows */
    size_t lane_room;
    struct roll_moment *moment;
    size_t moments, moment_room;
    uint64_t left_out; /* findings whose moment was not kept, because there were too many */
};

void roll_lanes_fini(struct roll_lanes *lanes);
/* Takes note of a call. 0, NOMEM. */
int roll_lanes_call(struct roll_lanes *lanes, const struct roll_job_call *call);
/* Keeps the moment of a finding (borrowed) of a run. 0, NOMEM. */
int roll_lanes_finding(struct roll_lanes *lanes, struct roll_job *job, uint32_t run,
                       const struct roll_verdict_copy *finding);
/* Keeps the end of a run: the calls of ranks that are inside of one, that died, or else of the first ones. waiting,
 * awaited: as of roll_field_place. 0, NOMEM. */
int roll_lanes_end(struct roll_lanes *lanes, struct roll_job *job, uint32_t run, const struct roll_rankset *waiting,
                   const struct roll_rankset *awaited);

#endif
