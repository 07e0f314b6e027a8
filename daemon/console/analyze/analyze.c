/*
 * analyze.c: sorts recorded files into runs and drives one feed per run.
 *
 * Traces and rings of one run may be given together: the feeder drops what it has seen before, so the rings only
 * add what the trace lacks. Files of different runs never meet, because the verdicts of one job must not depend on
 * what else lies in the directory.
 */
#include "daemon/console/analyze/analyze_state.h"

#include "daemon/base/array.h"
#include "daemon/console/console.h"
#include "daemon/feed/merge.h"
#include "trace/err.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS_MOST 8 /* where nothing is said: the engine is one thread, and has no use for more */

int roll_read_options(const struct roll_command *cmd, const struct roll_option *options, int argc, char **argv,
                      const char *wants, int *code)
{
    int first = roll_options_read(cmd, options, false, argc, argv, code);
    if (first == argc) {
        *code = roll_usage(cmd, "%s", wants);
        return -1;
    }
    return first;
}

roll_analysis_t *roll_analysis_new(const struct roll_engine_config *config, bool policy_fixed)
{
    roll_analysis_t *a = calloc(1, sizeof(*a));
    if (a != NULL) {
        a->config = *config;
        a->policy_fixed = policy_fixed;
        a->threads = 1;
    }
    return a;
}

void roll_analysis_job(roll_analysis_t *a, const char *job)
{
    a->jobs.wanted = job;
}

void roll_analysis_say_none(const roll_analysis_t *a)
{
    roll_jobs_say_none(&a->jobs);
}

void roll_analysis_expect(roll_analysis_t *a, const struct roll_expected *expected)
{
    a->expected = expected;
}

void roll_analysis_watch(roll_analysis_t *a, const struct roll_feed_watch *watch, const bool *stop)
{
    a->watch = watch;
    a->stop = stop;
}

void roll_analysis_take_all(roll_analysis_t *a)
{
    a->takes_all = true;
}

roll_feed_t *roll_analysis_feed(const roll_analysis_t *a, size_t i)
{
    return i < a->runs ? a->run[i].feed : NULL;
}

unsigned roll_analysis_thread_count(unsigned threads)
{
    cpu_set_t mine; /* a scheduler may have left fewer processors than the machine has */
    unsigned own = sched_getaffinity(0, sizeof(mine), &mine) == 0 ? (unsigned)CPU_COUNT(&mine) : 1;
    return threads > 0 ? threads : own > THREADS_MOST ? THREADS_MOST : own;
}

void roll_analysis_threads(roll_analysis_t *a, unsigned threads)
{
    a->threads = roll_analysis_thread_count(threads);
}

void roll_analysis_destroy(roll_analysis_t **analysis)
{
    roll_analysis_t *a = *analysis;
    *analysis = NULL;
    if (a == NULL) {
        return;
    }
    for (size_t i = 0; i < a->runs; i++) {
        for (size_t k = 0; k < a->run[i].rings; k++) {
            roll_ring_close(&a->run[i].ring[k]);
        }
        free(a->run[i].ring);
        roll_feed_destroy(&a->run[i].feed);
    }
    roll_reports_destroy(&a->reports);
    roll_digests_destroy(&a->digests);
    roll_jobs_fini(&a->jobs);
    free(a->run);
    free(a->trace);
    roll_dumps_destroy(&a->dumps);
    roll_dump_reader_destroy(&a->reader);
    free(a);
}

/* Gives the run a feed that knows nothing, in the place of the one that it has. */
static bool begin_feed(const roll_analysis_t *a, struct analyzed_run *r)
{
    roll_feed_destroy(&r->feed);
    r->feed = roll_feed_new(&a->config, r->job, r->restart);
    if (r->feed == NULL) {
        return false;
    }
    roll_feed_of_recording(r->feed);
    if (a->policy_fixed) {
        roll_feed_fix_policy(r->feed);
    }
    roll_engine_expect(roll_feed_engine(r->feed), a->expected);
    roll_feed_watch(r->feed, a->watch);
    return true;
}

/* The run of this job and restart, which is made when it is new. 0; NOTFOUND: it is not meant; NOMEM. */
static int run_of(roll_analysis_t *a, const char *job, uint32_t restart, struct analyzed_run **out)
{
    *out = NULL;
    if (!roll_jobs_take(&a->jobs, job, restart)) {
        return ROLL_E_NOTFOUND;
    }
    for (size_t i = 0; i < a->runs; i++) {
        if (a->run[i].restart == restart && strcmp(a->run[i].job, job) == 0) {
            *out = &a->run[i];
            return 0;
        }
    }
    if (ROLL_GROW(a->run, a->run_room, a->runs + 1) != 0) {
        return ROLL_E_NOMEM;
    }
    struct analyzed_run *r = &a->run[a->runs];
    *r = (struct analyzed_run){.restart = restart};
    snprintf(r->job, sizeof(r->job), "%s", job);
    if (!begin_feed(a, r)) {
        return ROLL_E_NOMEM;
    }
    a->runs++;
    *out = r;
    return 0;
}

int roll_analyze_run_of_frame(roll_analysis_t *a, const struct roll_frame *frame, struct analyzed_run **out)
{
    char job[ROLL_NAME_BYTES];
    uint32_t restart = 0;
    *out = NULL;
    return roll_feed_run_of(frame, job, &restart) == 0 ? run_of(a, job, restart, out) : ROLL_E_CORRUPT;
}

static int feed_of_frame(void *ctx, const struct roll_frame *frame, roll_feed_t **out)
{
    struct analyzed_run *run;
    int err = roll_analyze_run_of_frame(ctx, frame, &run);
    *out = run != NULL ? run->feed : NULL;
    return err;
}

static void say_line(void *ctx, const char *line)
{
    (void)ctx;
    roll_say("%s", line);
}

/* What stands for the restart of a job of the dumps, so that it is told apart from every other job of that name. */
static uint32_t number_of_dumps(const roll_analysis_t *a, size_t job)
{
    const char *name = roll_dumps_job(a->dumps, job);
    uint32_t number = 0;
    for (size_t i = 0; i < a->runs; i++) {
        bool same = !a->run[i].dumped && strcmp(a->run[i].job, name) == 0;
        number = same && a->run[i].restart >= number ? a->run[i].restart + 1 : number;
    }
    for (size_t i = 0; i < job; i++) {
        number += strcmp(roll_dumps_job(a->dumps, i), name) == 0;
    }
    return number;
}

/* Each job of the dumps becomes a run. Jobs whose folders have one name are told apart by a number. */
static int feed_dumps(roll_analysis_t *a)
{
    size_t jobs = a->dumps != NULL ? roll_dumps_jobs(a->dumps) : 0;
    int err = 0;
    if (jobs > 1) {
        roll_say("the dumps are of %zu jobs, which are judged one by one", jobs);
    }
    for (size_t j = 0; j < jobs && err == 0; j++) {
        struct analyzed_run *run;
        err = run_of(a, roll_dumps_job(a->dumps, j), number_of_dumps(a, j), &run);
        if (err == ROLL_E_NOTFOUND) {
            err = 0;
            continue;
        }
        if (run != NULL) {
            run->dumped = true;
        }
        err = err != 0 ? err : roll_dumps_feed(a->dumps, j, run->feed, say_line, NULL);
        bool refused = err != 0 && err != ROLL_E_NOMEM;
        a->unjudged += refused || roll_dumps_unusable(a->dumps, j);
        if (refused) { /* the other jobs are judged all the same */
            roll_say("%s: nothing could be judged: %s", roll_dumps_job(a->dumps, j), roll_strerror(err));
            err = 0;
        }
    }
    return err;
}

static int feed_of_digests(void *ctx, const char *job, uint32_t restart, bool anew, bool *traced, roll_feed_t **out)
{
    roll_analysis_t *a = ctx;
    struct analyzed_run *run;
    int err = run_of(a, job, restart, &run);
    err = err == 0 && anew && !begin_feed(a, run) ? ROLL_E_NOMEM : err;
    if (err != 0) {
        return err;
    }
    struct roll_feed_stream s;
    *traced = roll_feed_stream(run->feed, 0, &s);
    *out = run->feed;
    return 0;
}

int roll_analysis_finish(roll_analysis_t *a)
{
    int err = roll_analyze_leave_out_copies(a->trace, &a->traces);
    err = err != 0 ? err : roll_analyze_traces(a->trace, a->traces, a->threads, a->stop, feed_of_frame, a, &a->cut);
    err = err != 0 ? err : feed_dumps(a);
    if (err == 0 && a->digests != NULL) {
        err = roll_digests_judge(a->digests, feed_of_digests, a, &a->cut);
    }
    for (size_t i = 0; i < a->runs && err == 0; i++) {
        if (a->run[i].rings > 0) {
            err = roll_merge_rings(a->run[i].feed, a->run[i].ring, a->run[i].rings);
        }
        if (err == 0) {
            err = roll_feed_finish(a->run[i].feed);
        }
        bool stopped = a->stop && *a->stop; /* who is not there may only not have been read */
        if (err == 0 && !a->run[i].dumped && !stopped) {
            err = roll_analyze_missing(roll_feed_engine(a->run[i].feed), a->run[i].job, &a->run[i].missing);
        }
    }
    if (a->reports != NULL && a->jobs.wanted != NULL) {
        roll_say("reports of NCCL's own tools do not name their job: they are left out, because --job was given");
        roll_reports_destroy(&a->reports);
    }
    return err == 0 && a->reports != NULL ? roll_reports_judge(a->reports) : err;
}
