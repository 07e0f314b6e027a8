/*
 * analyze_trace.c: feeds recorded traces to the feeds of their runs: segments of a series one after the other, several
 * series of one run side by side.
 *
 * A single series is fed as it stands, clock included, and so repeats what its root said. Several (the agents of a
 * job's nodes) are merged by their clocks (daemon/feed/merge.h).
 */
#include "daemon/console/analyze/series.h"

#include "daemon/console/console.h"
#include "daemon/feed/merge.h"
#include "daemon/store/trace_file.h"
#include "trace/err.h"

#include <stdlib.h>

/* The segments of a series that were given. */
struct series {
    struct roll_series in;
    roll_feed_t *feed; /* feed of the run that the series is about; NULL: the series announces no ring */
    bool other;        /* it is about a run that is not meant */
    bool cut;          /* then what is missing in it concerns nobody */
};

struct feeding {
    roll_analyze_feed_of *feed_of;
    void *ctx;
    bool *cut;
};

/* one series */

/* Finds the run that the series is about, which its first ring or note says. */
static int find_feed(struct series *s, struct feeding *r)
{
    bool cut = *r->cut;
    roll_trace_reader_t *reader = NULL;
    struct roll_frame frame;
    for (size_t i = 0; i < s->in.files && !s->feed && !s->other; i++) {
        int err = roll_trace_reader_new(s->in.file[i].path, &reader);
        if (err && err != ROLL_E_NOMEM) {
            /* It could be opened a moment ago. What stands before its first ring is not fed without its run. */
            roll_say("%s: %s; what it begins with is not judged", s->in.file[i].path, roll_strerror(err));
            cut = true;
        }
        while (!err && !s->feed && !s->other && (err = roll_trace_reader_next(reader, &frame)) == 0) {
            if (frame.head.type == ROLL_FRAME_RING || frame.head.type == ROLL_FRAME_NOTE) {
                s->other = r->feed_of(r->ctx, &frame, &s->feed) == ROLL_E_NOTFOUND;
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
static int feed_frame(struct series *s, struct feeding *r)
{
    if (s->in.frame.head.type == ROLL_FRAME_RING || s->in.frame.head.type == ROLL_FRAME_NOTE) {
        roll_feed_t *feed = NULL;
        int err = r->feed_of(r->ctx, &s->in.frame, &feed);
        *r->cut = *r->cut || (err && err != ROLL_E_NOTFOUND);
        s->feed = feed || err == ROLL_E_NOTFOUND ? feed : s->feed;
    }
    int err = s->feed ? roll_feed_frame(s->feed, &s->in.frame) : 0;
    *r->cut = *r->cut || err != 0;
    return err == ROLL_E_NOMEM ? err : 0;
}

static int feed_one(struct series *s, struct feeding *r)
{
    int err = roll_series_begin(&s->in, 0);
    while (!err && !s->in.ended) {
        err = feed_frame(s, r);
        err = err ? err : roll_series_advance(&s->in);
    }
    return err;
}

/* several */

/* The next frame of a series, for the merging. */
struct merged {
    struct roll_series *series; /* borrowed */
    bool begun;
};

static int next_merged(void *ctx, struct roll_frame *frame)
{
    struct merged *m = ctx;
    int err = m->begun ? roll_series_advance(m->series) : roll_series_begin(m->series, 0);
    m->begun = true;
    *frame = m->series->frame;
    return err ? err : m->series->ended ? ROLL_E_NOTFOUND : 0;
}

static int feed_merged(struct series *all, size_t n, roll_feed_t *feed, struct feeding *r)
{
    struct roll_merge_trace *trace = calloc(n, sizeof(*trace));
    struct merged *merged = calloc(n, sizeof(*merged));
    size_t used = 0;
    int err = trace && merged ? 0 : ROLL_E_NOMEM;
    for (size_t i = 0; i < n && !err; i++) {
        if (all[i].feed == feed) {
            merged[used] = (struct merged){&all[i].in, false};
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

static int feed_all(struct series *all, size_t used, struct feeding *feeding)
{
    int err = 0;
    for (size_t i = 0; i < used && !err; i++) {
        size_t first = i, same = 0;
        for (size_t k = 0; k < used; k++) {
            bool mate = all[i].feed && all[k].feed == all[i].feed;
            first = mate && k < first ? k : first;
            same += mate;
        }
        if (same < 2) {
            err = feed_one(&all[i], feeding);
        } else if (first == i) {
            err = feed_merged(all, used, all[i].feed, feeding);
        }
    }
    return err;
}

int roll_analyze_traces(struct roll_analyze_file *file, size_t n, unsigned threads, const bool *stop,
                        roll_analyze_feed_of *feed_of, void *ctx, bool *cut)
{
    struct feeding feeding = {.feed_of = feed_of, .ctx = ctx, .cut = cut};
    struct roll_reading reading;
    struct roll_series *list = NULL;
    struct series *all = NULL;
    size_t used = 0;
    int err = roll_series_of(file, &n, &list, &used);
    if (err) {
        return err;
    }
    roll_reading_begin(&reading, file, n, stop == NULL); /* who watches writes what is read, and half of it is none */
    reading.stop = stop;
    roll_ahead_t *ahead = roll_ahead_new(threads, used);
    all = calloc(used + 1, sizeof(*all));
    err = ahead && all ? 0 : ROLL_E_NOMEM;
    for (size_t i = 0; i < used && !err; i++) {
        all[i].in = list[i];
        all[i].in.ahead = ahead;
        all[i].in.reading = &reading;
        all[i].in.cut = cut;
        err = find_feed(&all[i], &feeding);
        all[i].in.cut = all[i].other ? &all[i].cut : cut;
    }
    err = err ? err : feed_all(all, used, &feeding);
    for (size_t i = 0; all && i < used; i++) {
        roll_series_end(&all[i].in);
    }
    roll_ahead_destroy(&ahead);
    roll_reading_end(&reading);
    free(all);
    free(list);
    return err;
}
