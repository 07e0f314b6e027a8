/*
 * merge.c: see merge.h. Traces of several agents, side by side.
 *
 * Each agent's ticks carry its wall clock, so the oldest frame of all is the next. Feeding one trace after the other
 * was rejected: the engine would see one node's whole life before the other's first call.
 */
#include "daemon/feed/merge.h"

#include "daemon/base/array.h"
#include "daemon/feed/clock.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>

static uint64_t tick_time(const struct roll_frame *frame)
{
    uint64_t real = 0;
    if (frame->head.payload >= sizeof(real)) {
        memcpy(&real, frame->payload, sizeof(real));
    }
    return real ? real : frame->head.seq;
}

/* Reads the next frame, or sets ended. 0 or NOMEM. */
static int advance(struct roll_merge_trace *t)
{
    int err = t->next(t->ctx, &t->frame);
    t->ended = err == ROLL_E_NOTFOUND;
    return t->ended ? 0 : err;
}

static int note_ring(struct roll_merge_trace *t)
{
    int err = ROLL_GROW(t->epoch, t->room, t->epochs + 1);
    if (!err) {
        t->epoch[t->epochs++] = t->frame.head.stream;
    }
    return err;
}

static bool any_runs(const struct roll_merge_trace *t, const roll_feed_t *feed)
{
    struct roll_feed_stream view;
    for (size_t i = 0; i < t->epochs; i++) {
        if (roll_feed_find(feed, t->epoch[i], &view) &&
            (view.proc == ROLL_PROC_RUNNING || view.proc == ROLL_PROC_STOPPED)) {
            return true;
        }
    }
    return false;
}

/* The trace whose next frame is the oldest; NULL when all have ended. */
static struct roll_merge_trace *oldest(struct roll_merge_trace *trace, size_t n)
{
    struct roll_merge_trace *found = NULL;
    uint64_t best = 0;
    for (size_t i = 0; i < n; i++) {
        struct roll_merge_trace *t = &trace[i];
        uint64_t time = t->ended || t->frame.head.type != ROLL_FRAME_TICK ? t->time_ns : tick_time(&t->frame);
        if (!t->ended && (!found || time < best)) {
            found = t;
            best = time;
        }
    }
    return found;
}

/* Lets time pass as far as all traces have come. part: room for n. */
static int pass_time(const struct roll_merge_trace *trace, size_t n, roll_feed_t *feed, struct roll_merge_part *part,
                     uint64_t *clock)
{
    for (size_t i = 0; i < n; i++) {
        part[i] = (struct roll_merge_part){.time_ns = trace[i].time_ns,
                                           .ended = trace[i].ended,
                                           .any_runs = trace[i].ended && any_runs(&trace[i], feed)};
    }
    if (!roll_merge_clock_pass(clock, part, n)) {
        return 0;
    }
    roll_feed_stamp(feed, *clock);
    return roll_feed_tick(feed, *clock);
}

/* Feeds the next frame of one trace. 0 or NOMEM. */
static int feed_frame(struct roll_merge_trace *t, roll_feed_t *feed, bool *refused)
{
    int err = t->frame.head.type == ROLL_FRAME_RING ? note_ring(t) : 0;
    err = err ? err : roll_feed_frame(feed, &t->frame);
    *refused = *refused || err != 0;
    return err == ROLL_E_NOMEM ? err : 0;
}

int roll_merge_traces(roll_feed_t *feed, struct roll_merge_trace *trace, size_t n, bool *refused)
{
    struct roll_merge_part *part = calloc(n + 1, sizeof(*part));
    uint64_t clock = 0;
    int err = part ? 0 : ROLL_E_NOMEM;
    for (size_t i = 0; i < n && !err; i++) {
        err = advance(&trace[i]);
    }
    for (struct roll_merge_trace *t; !err && (t = oldest(trace, n)) != NULL;) {
        if (t->frame.head.type == ROLL_FRAME_TICK) {
            t->time_ns = tick_time(&t->frame);
            err = pass_time(trace, n, feed, part, &clock);
        } else {
            err = feed_frame(t, feed, refused);
        }
        err = err ? err : advance(t);
    }
    for (size_t i = 0; i < n; i++) {
        free(trace[i].epoch);
        trace[i].epoch = NULL;
        trace[i].epochs = trace[i].room = 0;
    }
    free(part);
    return err;
}
