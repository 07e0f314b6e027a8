/*
 * analyze.h: recorded traces and rings through the engine, post-mortem.
 *
 * One analysis holds one feed per run (job, restart) that it meets. Not thread-safe.
 */
#ifndef ROLL_CONSOLE_ANALYZE_H
#define ROLL_CONSOLE_ANALYZE_H

#include "daemon/feed.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct roll_analysis roll_analysis_t;

roll_analysis_t *roll_analysis_new(const struct roll_engine_config *config);
void roll_analysis_destroy(roll_analysis_t **analysis);

/*
 * Adds a file, or all *.rtrc and *.ring files of a directory and of its direct subdirectories. Each file that cannot be
 * read is said in one line and counted. Traces are fed at once, rings are kept until roll_analysis_finish.
 * 0, or what was wrong with the path.
 */
int roll_analysis_add(roll_analysis_t *analysis, const char *path);
/* Feeds the rings, merged in time order over all ranks, and lets each engine say its last word. 0 or NOMEM. */
int roll_analysis_finish(roll_analysis_t *analysis);
/* The next verdict of any run, returned owned; NULL when there is none. */
json_t *roll_analysis_next(roll_analysis_t *analysis);

struct roll_analysis_summary {
    struct roll_engine_summary engine; /* summed over the runs */
    size_t runs, files, unreadable;
    bool cut; /* a trace ended inside a frame, or was damaged */
};
void roll_analysis_summary(const roll_analysis_t *analysis, struct roll_analysis_summary *out);

/* analyze_rings.c: feeds these rings (borrowed) of one run, merged in time order. 0 or an error of the feed. */
int roll_analyze_rings(roll_feed_t *feed, const struct roll_ring *ring, size_t n);

#endif
