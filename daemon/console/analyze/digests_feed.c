/*
 * digests_feed.c: the excerpts of a run, fed: one as it stands, several merged by their clocks, as traces are
 * (analyze_trace.c).
 *
 * The heads come before all else, because each excerpt begins at a time of its own: where a rank comes in is told
 * before any record of another one, so nobody seems to be behind whose records begin later.
 */
#include "daemon/console/analyze/digests.h"

#include "daemon/base/array.h"
#include "daemon/console/console.h"
#include "daemon/feed/merge.h"
#include "daemon/store/trace_file.h"
#include "trace/err.h"

#include <stdlib.h>

struct source {
    const struct digest_section *section;
    roll_trace_reader_t *reader;
    bool in_head, in_trace;
    bool *cut;
};

static int open_next(struct source *s, bool heads)
{
    const struct roll_rdig_view *v = &s->section->view;
    bool head = heads && !s->in_head && !s->in_trace;
    roll_trace_reader_destroy(&s->reader);
    if (s->in_trace) {
        return ROLL_E_NOTFOUND;
    }
    s->in_head = head;
    s->in_trace = !head;
    return head ? roll_trace_reader_view(v->head, v->is.head_bytes, &s->reader)
                : roll_trace_reader_view(v->trace, (size_t)v->is.trace_bytes, &s->reader);
}

/* The next frame. 0; NOTFOUND: there is none; NOMEM. What cannot be read ends the section, and is told. */
static int next_of(struct source *s, bool heads, struct roll_frame *frame)
{
    int err = s->reader ? roll_trace_reader_next(s->reader, frame) : ROLL_E_NOTFOUND;
    while (err == ROLL_E_NOTFOUND) {
        err = open_next(s, heads);
        if (err == ROLL_E_NOTFOUND) {
            return err;
        }
        err = err ? err : roll_trace_reader_next(s->reader, frame);
    }
    if (err && err != ROLL_E_NOMEM) {
        roll_say("%s: %s in the records of %s; everything before it is judged", s->section->path, roll_strerror(err),
                 s->section->view.is.host);
        *s->cut = true;
        s->in_trace = true;
        roll_trace_reader_destroy(&s->reader);
        return ROLL_E_NOTFOUND;
    }
    return err;
}

static int next_with_head(void *ctx, struct roll_frame *frame)
{
    return next_of(ctx, true, frame);
}

static int next_without(void *ctx, struct roll_frame *frame)
{
    return next_of(ctx, false, frame);
}

static int feed_one(struct source *s, bool heads, roll_feed_t *feed, bool *refused)
{
    struct roll_frame frame;
    int err;
    while ((err = next_of(s, heads, &frame)) == 0) {
        err = roll_feed_frame(feed, &frame);
        *refused = *refused || err != 0;
        if (err == ROLL_E_NOMEM) {
            return err;
        }
    }
    return err == ROLL_E_NOTFOUND ? 0 : err;
}

int roll_digests_feed(roll_digests_t *d, const struct digest_section *const *section, size_t n, bool heads,
                      roll_feed_t *feed)
{
    struct source *source = calloc(n + 1, sizeof(*source));
    struct roll_merge_trace *trace = calloc(n + 1, sizeof(*trace));
    int err = source && trace ? 0 : ROLL_E_NOMEM;
    for (size_t i = 0; i < n && !err; i++) {
        source[i] = (struct source){.section = section[i], .cut = d->cut};
        trace[i] = (struct roll_merge_trace){.next = heads ? next_with_head : next_without, .ctx = &source[i]};
    }
    err = err ? err : n == 1 ? feed_one(source, heads, feed, d->cut) : roll_merge_traces(feed, trace, n, d->cut);
    for (size_t i = 0; source && i < n; i++) {
        roll_trace_reader_destroy(&source[i].reader);
    }
    free(source);
    free(trace);
    return err;
}

int roll_digests_keep(roll_digests_t *d, struct roll_verdict_copy *verdict)
{
    int err = ROLL_GROW(d->verdict, d->verdict_room, d->verdicts + 1);
    if (err) {
        roll_verdict_copy_destroy(&verdict);
        return err;
    }
    d->verdict[d->verdicts++] = verdict;
    return 0;
}
