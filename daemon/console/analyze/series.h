/*
 * series.h: the segments of a recorded series (daemon/store/segment.h), read one after the other as one trace; and all
 * series among given files. For who judges traces and who digests them. One thread.
 */
#ifndef ROLL_DAEMON_CONSOLE_ANALYZE_SERIES_H
#define ROLL_DAEMON_CONSOLE_ANALYZE_SERIES_H

#include "daemon/console/analyze/analyze.h"
#include "daemon/store/trace_ahead.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How much of all files has been read: a line on standard error each second, where that is a terminal. */
struct roll_reading {
    uint64_t total, before; /* bytes of all files; of those that have been read to their end */
    uint64_t shown_ns;
    uint32_t frames;
    bool shows, shown; /* there is somebody to show it to; a line stands there */
    bool told;         /* that reading was interrupted has been said */
    const bool *stop;  /* nothing more is read once it is true; borrowed; NULL = none */
};
/* Begins to read these files. may_end: the first SIGINT ends reading, and what was read until then is judged; the
 * second one ends the program. */
void roll_reading_begin(struct roll_reading *reading, const struct roll_analyze_file *file, size_t n, bool may_end);
/* Takes the line away, and SIGINT ends the program again. */
void roll_reading_end(struct roll_reading *reading);

struct roll_series {
    const struct roll_analyze_file *file; /* the segments, ascending; borrowed */
    size_t files, at;                     /* `at`: the one that is read */
    roll_ahead_t *ahead;                  /* borrowed; threads that read */
    struct roll_reading *reading;         /* borrowed */
    bool *cut;                            /* set when something is missing or damaged; borrowed */
    bool quiet;                           /* what is missing has been said before */
    roll_ahead_file_t *reader;
    struct roll_frame frame; /* the next frame; borrows the reader's memory */
    bool ended;
};

/* Sorts files in place, leaves out those that were given twice, and makes series of them. *all: returned owned, to be
 * freed; *n: how many; *files: how many are left. 0 or NOMEM. */
int roll_series_of(struct roll_analyze_file *file, size_t *files, struct roll_series **all, size_t *n);
/* Begins to read at segment `at`: `frame` is the first one, or `ended` is set. 0 or NOMEM. */
int roll_series_begin(struct roll_series *series, size_t at);
/* Reads the next frame of the series into `frame`, or sets `ended`. 0 or NOMEM. */
int roll_series_advance(struct roll_series *series);
void roll_series_end(struct roll_series *series);

#endif
