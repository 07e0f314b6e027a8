/*
 * jobs.h: which of the jobs in the given files are meant (--job of analyze and digest), and how a job is named. One
 * thread.
 *
 * A run is named as its trace is: NAME, or NAME.R for the restart R of it. NAME alone means all its restarts.
 */
#ifndef ROLL_DAEMON_CONSOLE_ANALYZE_JOBS_H
#define ROLL_DAEMON_CONSOLE_ANALYZE_JOBS_H

#include "daemon/console/analyze/series.h"
#include "trace/record.h"
#include "trace/ring.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROLL_JOB_OPTION(wanted)                                                                                        \
    {                                                                                                                  \
        "job", 0, ROLL_OPT_TEXT, "JOB", "only this job of those in the files: NAME, or NAME.R for restart R",          \
            &(wanted)                                                                                                  \
    }

/* Zero-initialised: every job is meant. */
struct roll_jobs {
    const char *wanted; /* borrowed; NULL = all */
    json_t *others;     /* names of the jobs that were passed over, as the members of an object; owned */
};

/* Whether this run is meant; one that is not is noted among the others. */
bool roll_jobs_take(struct roll_jobs *jobs, const char *job, uint32_t restart);
/* Whether a series is of a run that is meant. One that announces no rank is nobody's, and taken. */
bool roll_jobs_take_series(struct roll_jobs *jobs, const struct roll_series *series);
/* Says on standard error that nothing of the wanted job is there, and which jobs are. */
void roll_jobs_say_none(const struct roll_jobs *jobs);
void roll_jobs_fini(struct roll_jobs *jobs);

#define ROLL_JOB_NAME_BYTES (ROLL_NAME_BYTES + 16)
/* "NAME", or "NAME, restart 1". Returns out. */
const char *roll_job_name(const char *job, uint32_t restart, char *out, size_t size);

#endif
