/*
 * analyze_trace.c: feeds recorded traces to the feeds of their runs: segments of a series one after the other, several
 * series of one run side by side.
 *
 * A single series is fed as it stands, clock included, and so repeats what its root said. Several (the agents of a
 * job's nodes) are merged by their clocks (daemon/feed/merge.h).
 */
#include "daemon/console/analyze/analyze.h"

#include "daemon/console/console.h"
#include "daemon/feed/merge.h"
#include "daemon/store/segment.h"
#include "daemon/store/trace_ahead.h"
#include "daemon/store/trace_file.h"
#include "trace/err.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The segments of a series that were given, and how far they have been read. */
struct series {
    const struct roll_analyze_file *file; /* borrowed */
    size_t files, at;
    roll_ahead_file_t *reader;
    struct roll_frame frame; /* the next frame; borrows the reader's memory */
    bool ended;
    roll_feed_t *feed; /* feed of the run that the series is about; NULL: the series announces no ring */
};

struct reading {
    roll_analyze_feed_of *feed_of;
    void *ctx;
    bool *cut;
    roll_ahead_t *ahead; /* borrowed; threads that read */
};

/* one series */

static bool follows(const struct roll_analyze_file *a, const struct roll_analyze_file *b)
{
    return b->number == a->number + 1 && b->number > 1;
}

/* Judges the end of a file. A killed writer leaves a torn end, from which the next segment goes on: then nothing is
 * missing. */
static void judge_end(const struct series *s, int err, struct reading *r)
{
    const struct roll_analyze_file *file = &s->file[s->at];
    bool continued = s->at + 1 < s->files && follows(file, file + 1);
    if (err == ROLL_E_NOTFOUND || (err == ROLL_E_SHORT && continued)) {
        return;
    }
    roll_say("%s: %s at offset %zu; everything before it is judged", file->path,
             err == ROLL_E_SHORT ? "cut short" : roll_strerror(err), roll_ahead_offset(s->reader));
    *r->cut = true;
}

/* Opens the segment at s->at. `resume`: the segment before it has been read to its end. */
static int open_file(struct series *s, bool resume, struct reading *r)
{
    return roll_ahead_open(r->ahead, s->file[s->at].path, resume, &s->reader);
}

/* Goes past the segment at s->at, which cannot be opened. A moment ago it could, so its writer has removed it since. */
static void skip_file(struct series *s, int err, struct reading *r)
{
    roll_say("%s: %s", s->file[s->at].path, roll_strerror(err));
    *r->cut = true;
    s->at++;
    s->ended = s->at == s->files;
}

/* Reads the next frame of the series into s->frame, or sets s->ended. Returns NOMEM, else 0. */
static int advance(struct series *s, struct reading *r)
{
    while (!s->ended) {
        int err = s->reader ? roll_ahead_next(s->reader, &s->frame) : ROLL_E_NOTFOUND;
        if (err == 0 || err == ROLL_E_NOMEM) {
            return err;
        }
        bool whole = s->reader && (err == ROLL_E_NOTFOUND || err == ROLL_E_SHORT);
        if (s->reader) {
            judge_end(s, err, r);
            roll_ahead_close(&s->reader);
            s->at++;
        }
        if (s->at == s->files) {
            s->ended = true;
        } else {
            whole = whole && follows(&s->file[s->at - 1], &s->file[s->at]);
            err = open_file(s, whole, r);
            if (err) {
                skip_file(s, err, r);
            }
        }
    }
    return 0;
}

static int begin(struct series *s, struct reading *r)
{
    s->at = 0;
    s->ended = false;
    if (s->file[0].number > 1) {
        roll_say("%s: the segments before it are gone (--trace-limit, --trace-age); what they held counts as lost",
                 s->file[0].path);
    }
    int err = open_file(s, false, r);
    if (err == ROLL_E_NOMEM) {
        return err;
    }
    if (err) {
        skip_file(s, err, r);
    }
    return advance(s, r);
}

/* Finds the run that the series is about, which its first ring or note says. */
static int find_feed(struct series *s, struct reading *r)
{
    bool cut = *r->cut;
    roll_trace_reader_t *reader = NULL;
    struct roll_frame frame;
    for (size_t i = 0; i < s->files && !s->feed; i++) {
        int err = roll_trace_reader_new(s->file[i].path, &reader);
        while (!err && !s->feed && (err = roll_trace_reader_next(reader, &frame)) == 0) {
            if (frame.head.type == ROLL_FRAME_RING || frame.head.type == ROLL_FRAME_NOTE) {
                s->feed = r->feed_of(r->ctx, &frame);
            }
        }
        roll_trace_reader_destroy(&reader);
        if (err == ROLL_E_NOMEM) {
            return err;
        }
    }
    *r->cut = cut;
    return 0;
}

/* Feeds one frame. One bad payload must not cost the rest of the file: the feed stays usable after it. */
static int feed_frame(struct series *s, struct reading *r)
{
    if (s->frame.head.type == ROLL_FRAME_RING || s->frame.head.type == ROLL_FRAME_NOTE) {
        roll_feed_t *feed = r->feed_of(r->ctx, &s->frame);
        *r->cut = *r->cut || !feed;
        s->feed = feed ? feed : s->feed;
    }
    int err = s->feed ? roll_feed_frame(s->feed, &s->frame) : 0;
    *r->cut = *r->cut || err != 0;
    return err == ROLL_E_NOMEM ? err : 0;
}

static int feed_one(struct series *s, struct reading *r)
{
    int err = begin(s, r);
    while (!err && !s->ended) {
        err = feed_frame(s, r);
        err = err ? err : advance(s, r);
    }
    return err;
}

/* several */

/* The next frame of a series, for the merging. */
struct merged {
    struct series *series;
    struct reading *reading;
    bool begun;
};

static int next_merged(void *ctx, struct roll_frame *frame)
{
    struct merged *m = ctx;
    int err = m->begun ? advance(m->series, m->reading) : begin(m->series, m->reading);
    m->begun = true;
    *frame = m->series->frame;
    return err ? err : m->series->ended ? ROLL_E_NOTFOUND : 0;
}

static int feed_merged(struct series *all, size_t n, roll_feed_t *feed, struct reading *r)
{
    struct roll_merge_trace *trace = calloc(n, sizeof(*trace));
    struct merged *merged = calloc(n, sizeof(*merged));
    size_t used = 0;
    int err = trace && merged ? 0 : ROLL_E_NOMEM;
    for (size_t i = 0; i < n && !err; i++) {
        if (all[i].feed == feed) {
            merged[used] = (struct merged){&all[i], r, false};
            trace[used] = (struct roll_merge_trace){.next = next_merged, .ctx = &merged[used]};
            used++;
        }
    }
    err = err ? err : roll_merge_traces(feed, trace, used, r->cut);
    free(trace);
    free(merged);
    return err;
}

/* all */

static int by_series(const void *a, const void *b)
{
    const struct roll_analyze_file *x = a, *y = b;
    int order = strcmp(x->series, y->series);
    return order ? order : (x->number > y->number) - (x->number < y->number);
}

int roll_analyze_traces(struct roll_analyze_file *file, size_t n, unsigned threads, roll_analyze_feed_of *feed_of,
                        void *ctx, bool *cut)
{
    struct reading reading = {.feed_of = feed_of, .ctx = ctx, .cut = cut};
    struct series *all = calloc(n + 1, sizeof(*all));
    size_t used = 0;
    int err = all ? 0 : ROLL_E_NOMEM;
    if (!err && n > 1) {
        qsort(file, n, sizeof(*file), by_series);
    }
    size_t kept = 0;
    for (size_t i = 0; i < n && !err; i++) {
        bool same = kept > 0 && strcmp(file[i].series, file[kept - 1].series) == 0;
        if (same && file[i].number == file[kept - 1].number) {
            continue; /* the user gave this file twice */
        }
        file[kept] = file[i];
        if (same) {
            all[used - 1].files++;
        } else {
            all[used++] = (struct series){.file = &file[kept], .files = 1};
        }
        kept++;
    }
    for (size_t i = 0; i < used && !err; i++) {
        err = find_feed(&all[i], &reading);
    }
    reading.ahead = err ? NULL : roll_ahead_new(threads, used);
    err = !err && !reading.ahead ? ROLL_E_NOMEM : err;
    for (size_t i = 0; i < used && !err; i++) {
        size_t first = i, same = 0;
        for (size_t k = 0; k < used; k++) {
            bool mate = all[i].feed && all[k].feed == all[i].feed;
            first = mate && k < first ? k : first;
            same += mate;
        }
        if (same < 2) {
            err = feed_one(&all[i], &reading);
        } else if (first == i) {
            err = feed_merged(all, used, all[i].feed, &reading);
        }
    }
    for (size_t i = 0; i < used; i++) {
        roll_ahead_close(&all[i].reader);
    }
    roll_ahead_destroy(&reading.ahead);
    free(all);
    return err;
}
