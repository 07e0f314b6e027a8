/*
 * analyze.h: recorded traces and rings through the engine, post-mortem.
 *
 * One analysis holds one feed per run (job, restart) that it meets. Not thread-safe.
 */
#ifndef ROLL_DAEMON_CONSOLE_ANALYZE_ANALYZE_H
#define ROLL_DAEMON_CONSOLE_ANALYZE_ANALYZE_H

#include "daemon/console/console.h"
#include "daemon/feed/feed.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* The option of every subcommand that reads traces, and what they have in common before they begin: the options are
 * read, and something is named. As roll_options_read; `wants` says what is to be named. */
#define ROLL_READ_OPTIONS(threads)                                                                                     \
    {                                                                                                                  \
        "jobs", 'j', ROLL_OPT_COUNT, "N",                                                                              \
            "read traces with so many threads (default: one for each processor, at most 8)", &(threads)                \
    }
int roll_read_options(const struct roll_command *cmd, const struct roll_option *options, int argc, char **argv,
                      const char *wants, int *code);

typedef struct roll_analysis roll_analysis_t;

/* policy_fixed: judged as under the policy of `config`, whatever a trace says; else a trace's own policy holds. */
roll_analysis_t *roll_analysis_new(const struct roll_engine_config *config, bool policy_fixed);
/* Only this job is judged (borrowed for the life of the analysis; NULL: all), named as in jobs.h; before the first
 * roll_analysis_add. */
void roll_analysis_job(roll_analysis_t *analysis, const char *job);
/* What was rehearsed of the jobs (borrowed for the life of the analysis); before the first roll_analysis_add. */
void roll_analysis_expect(roll_analysis_t *analysis, const struct roll_expected *expected);
/* So many threads read traces, the caller's own among them; 1 (without a call): no other thread; 0: one for each
 * processor, at most 8. What is said does not depend on it. */
void roll_analysis_threads(roll_analysis_t *analysis, unsigned threads);
/* The number that stands for it: 0 becomes one for each processor, at most 8. */
unsigned roll_analysis_thread_count(unsigned threads);
void roll_analysis_destroy(roll_analysis_t **analysis);

/*
 * Somebody watches all that is fed (borrowed for the life of the analysis); before the first roll_analysis_add. Dumps,
 * reports and digests, which hold no calls as they were made, are then left out with one line each. Nothing more is
 * read once *stop is true.
 */
void roll_analysis_watch(roll_analysis_t *analysis, const struct roll_feed_watch *watch, const bool *stop);
/* What holds no calls as they were made is taken all the same: its verdicts, and what is known of its ranks, are wanted
 * as well. Before the first roll_analysis_add. */
void roll_analysis_take_all(roll_analysis_t *analysis);
/* The feed of run i, from 0 (borrowed); NULL behind the last. */
roll_feed_t *roll_analysis_feed(const roll_analysis_t *analysis, size_t i);

/*
 * Adds a file, or all *.rtrc and *.ring files of a directory and of its direct subdirectories. Each file that cannot be
 * read is counted, and one line on standard error names it. roll_analysis_finish feeds everything. 0, or the error of
 * the path itself.
 */
int roll_analysis_add(roll_analysis_t *analysis, const char *path);
/*
 * Feeds the traces (segments in their order, several series of one run merged by their clocks), then the rings, merged
 * in time order over all ranks, and tells each engine that no more will come, which gives its last verdicts. 0 or
 * NOMEM.
 */
int roll_analysis_finish(roll_analysis_t *analysis);
/* The next verdict of any run, returned owned; NULL when there is none. */
struct roll_verdict_copy *roll_analysis_next(roll_analysis_t *analysis);

struct roll_analysis_summary {
    struct roll_engine_summary engine; /* summed over the runs */
    size_t runs, files, unreadable;
    uint64_t losses[ROLL_LOSS_LIMIT]; /* what the rings counted, by cause */
    uint64_t older;                   /* records that are older than what is recorded, and not lost */
    uint64_t missing;                 /* ranks of which there is no record, and which others have called with */
    size_t unjudged;                  /* jobs of whose dumps nothing could be judged */
    bool cut;                         /* a trace ended inside a frame, or was damaged */
    uint64_t verdicts_lost;           /* verdicts for which there was no memory */
    size_t digests;                   /* files that `rollcall digest` made */
    uint64_t digested;                /* calls that they tell of; the engines have seen the newest ones */
    size_t unreached;                 /* places of which they have no records, and that have to be looked at */
};
void roll_analysis_summary(const roll_analysis_t *analysis, struct roll_analysis_summary *out);

/* The exit code that says what an analysis has found (cmd_analyze.c); lost: verdicts that could not be shown. */
int roll_analysis_exit(const struct roll_analysis_summary *summary, uint64_t lost);

/* One of the runs that were judged. */
struct roll_analysis_run {
    const char *job; /* borrowed */
    uint32_t restart;
    struct roll_engine_summary engine; /* `lost` as in the summary; findings of the engine alone */
    uint64_t losses[ROLL_LOSS_LIMIT];
    uint64_t older, missing;
};
/* Run number i, in the order in which they were met; false: there are no more. */
bool roll_analysis_run(const roll_analysis_t *analysis, size_t i, struct roll_analysis_run *out);
/* Says that the files hold nothing of the job that is meant, and which jobs they hold. */
void roll_analysis_say_none(const roll_analysis_t *analysis);

/* analyze_missing.c: names the ranks of a run of which nothing was given, in one line on standard error. *ranks: how
 * many. 0 or NOMEM. */
int roll_analyze_missing(roll_engine_t *engine, const char *job, uint64_t *ranks);

/*
 * Where the ranks stood when a run ended that has no finding and in which a process died without a word: what each
 * waited for. The records do not tell who died first, so no verdict does; where the ranks stood is what the records do
 * tell. An array (returned owned; NULL without memory) of objects with `job`, `restart`, `rank` and `text`.
 */
json_t *roll_analysis_standing(const roll_analysis_t *analysis);

/* What is to be done about the places that digests do not reach; as roll_digests_unreached. */
json_t *roll_analysis_unreached(const roll_analysis_t *analysis);

/* One trace file: a segment of a series (daemon/store/segment.h), or one that stands alone (number 0, named by its
 * path). */
struct roll_analyze_file {
    char path[PATH_MAX], series[PATH_MAX];
    uint64_t number;
};
/* analyze_copies.c: takes files out that are copies of others among them, in one line each on standard error. 0 or
 * NOMEM. */
int roll_analyze_leave_out_copies(struct roll_analyze_file *file, size_t *n);
/* The feed of the run that a RING or NOTE frame is about, into *out (borrowed). 0; NOTFOUND: that run is not meant;
 * CORRUPT, NOMEM: there is none to be had. */
typedef int roll_analyze_feed_of(void *ctx, const struct roll_frame *frame, roll_feed_t **out);
/* analyze_trace.c: feeds these traces (sorted in place), read by so many threads, until *stop (NULL: to their end).
 * *cut: set when one was cut short or damaged. 0 or NOMEM. */
int roll_analyze_traces(struct roll_analyze_file *file, size_t n, unsigned threads, const bool *stop,
                        roll_analyze_feed_of *feed_of, void *ctx, bool *cut);

#endif
