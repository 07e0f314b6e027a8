/*
 * jobs.c: which of the jobs in the given files are meant.
 *
 * Files are sorted by what they hold and not by their names, so a job is chosen there as well: a pattern of file names
 * was rejected, because names of rings and of traces that were collected are anything.
 */
#include "daemon/console/analyze/jobs.h"

#include "daemon/console/console.h"
#include "daemon/feed/feed.h"
#include "daemon/store/trace_file.h"

#include <stdio.h>
#include <string.h>

#define NAMED_MOST 8 /* of the jobs that are there instead */

bool roll_jobs_take(struct roll_jobs *jobs, const char *job, uint32_t restart)
{
    char one[ROLL_JOB_NAME_BYTES];
    snprintf(one, sizeof(one), "%s.%u", job, restart);
    if (!jobs->wanted || strcmp(jobs->wanted, job) == 0 || strcmp(jobs->wanted, one) == 0) {
        return true;
    }
    jobs->others = jobs->others ? jobs->others : json_object();
    (void)json_object_set_new_nocheck(jobs->others, one, json_true()); /* without memory a name is missing in a line */
    return false;
}

bool roll_jobs_take_series(struct roll_jobs *jobs, const struct roll_series *series)
{
    char job[ROLL_NAME_BYTES];
    uint32_t restart;
    bool known = false, meant = true;
    for (size_t i = 0; i < series->files && !known && jobs->wanted; i++) {
        roll_trace_reader_t *reader = NULL;
        struct roll_frame frame;
        int err = roll_trace_reader_new(series->file[i].path, &reader);
        while (!err && !known && (err = roll_trace_reader_next(reader, &frame)) == 0) {
            known = frame.head.type == ROLL_FRAME_RING && roll_feed_run_of(&frame, job, &restart) == 0;
        }
        meant = known ? roll_jobs_take(jobs, job, restart) : meant;
        roll_trace_reader_destroy(&reader);
    }
    return meant;
}

void roll_jobs_say_none(const struct roll_jobs *jobs)
{
    char text[NAMED_MOST * (ROLL_JOB_NAME_BYTES + 2) + 1] = "";
    const char *name;
    json_t *value;
    size_t n = 0, used = 0;
    json_object_foreach(jobs->others, name, value)
    {
        if (n++ < NAMED_MOST) {
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", used > 0 ? ", " : "", name);
        }
    }
    if (n > NAMED_MOST) {
        roll_say("no record of job %s in the given places; they hold %s and %zu more", jobs->wanted, text,
                 n - NAMED_MOST);
    } else {
        roll_say("no record of job %s in the given places%s%s", jobs->wanted, n > 0 ? "; they hold " : "", text);
    }
}

void roll_jobs_fini(struct roll_jobs *jobs)
{
    json_decref(jobs->others);
    *jobs = (struct roll_jobs){.wanted = NULL};
}

const char *roll_job_name(const char *job, uint32_t restart, char *out, size_t size)
{
    int n = snprintf(out, size, "%s", job);
    if (restart > 0 && n > 0 && (size_t)n < size) {
        snprintf(out + n, size - (size_t)n, ", restart %u", restart);
    }
    return out;
}
