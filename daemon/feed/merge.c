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

/*
 * Traces that have not ended, the least key first, and of equal keys the first trace. A job of 2,048 nodes has as many
 * traces, and each frame and each tick asks for the least of them: to look at all of them each time was rejected.
 */
struct heap {
    uint32_t *at; /* numbers of traces; owned */
    uint32_t *where;
    uint64_t *key; /* of each trace */
    size_t n;
};

static void heap_fini(struct heap *h)
{
    free(h->at);
    free(h->where);
    free(h->key);
}

static bool less(const struct heap *h, size_t a, size_t b)
{
    uint32_t x = h->at[a], y = h->at[b];
    return h->key[x] != h->key[y] ? h->key[x] < h->key[y] : x < y;
}

static void swap(struct heap *h, size_t a, size_t b)
{
    uint32_t x = h->at[a], y = h->at[b];
    h->at[a] = y;
    h->at[b] = x;
    h->where[y] = (uint32_t)a;
    h->where[x] = (uint32_t)b;
}

static void settle(struct heap *h, size_t i)
{
    while (i > 0 && less(h, i, (i - 1) / 2)) {
        swap(h, i, (i - 1) / 2);
        i = (i - 1) / 2;
    }
    for (size_t child; (child = 2 * i + 1) < h->n; i = child) {
        child += child + 1 < h->n && less(h, child + 1, child);
        if (!less(h, child, i)) {
            return;
        }
        swap(h, i, child);
    }
}

static int heap_init(struct heap *h, size_t room)
{
    *h = (struct heap){.at = calloc(room, sizeof(*h->at)),
                       .where = calloc(room, sizeof(*h->where)),
                       .key = calloc(room, sizeof(*h->key))};
    return h->at && h->where && h->key ? 0 : ROLL_E_NOMEM;
}

static void heap_add(struct heap *h, uint32_t trace, uint64_t key)
{
    h->at[h->n] = trace;
    h->where[trace] = (uint32_t)h->n;
    h->key[trace] = key;
    settle(h, h->n++);
}

static void heap_move(struct heap *h, uint32_t trace, uint64_t key)
{
    h->key[trace] = key;
    settle(h, h->where[trace]);
}

static void heap_take(struct heap *h, uint32_t trace)
{
    size_t i = h->where[trace];
    swap(h, i, --h->n);
    if (i < h->n) {
        settle(h, i);
    }
}

/* All traces of a run. */
struct merging {
    struct roll_merge_trace *trace;
    size_t n;
    struct heap frames;           /* by the time of their next frame */
    struct heap ticks;            /* by the time of their last tick */
    struct roll_merge_part *part; /* of the trace that is behind, and of those that have ended; room for n + 1 */
    uint64_t clock;
    roll_feed_t *feed;
};

/* When the next frame of a trace was written. */
static uint64_t frame_time(const struct roll_merge_trace *t)
{
    return t->frame.head.type == ROLL_FRAME_TICK ? tick_time(&t->frame) : t->time_ns;
}

/* Lets time pass as far as all traces have come. */
static int pass_time(struct merging *m)
{
    size_t parts = 0;
    for (size_t i = 0; i < m->n && m->ticks.n < m->n; i++) {
        if (m->trace[i].ended) {
            m->part[parts] = (struct roll_merge_part){.ended = true, .any_runs = any_runs(&m->trace[i], m->feed)};
            if (m->part[parts++].any_runs) {
                break;
            }
        }
    }
    if (m->ticks.n > 0) {
        m->part[parts++] = (struct roll_merge_part){.time_ns = m->trace[m->ticks.at[0]].time_ns};
    }
    if (!roll_merge_clock_pass(&m->clock, m->part, parts)) {
        return 0;
    }
    roll_feed_stamp(m->feed, m->clock);
    return roll_feed_tick(m->feed, m->clock);
}

/* Feeds the next frame of one trace. 0 or NOMEM. */
static int feed_frame(struct roll_merge_trace *t, roll_feed_t *feed, bool *refused)
{
    int err = t->frame.head.type == ROLL_FRAME_RING ? note_ring(t) : 0;
    err = err ? err : roll_feed_frame(feed, &t->frame);
    *refused = *refused || err != 0;
    return err == ROLL_E_NOMEM ? err : 0;
}

/* Feeds the oldest frame of all. 0 or NOMEM. */
static int feed_oldest(struct merging *m, bool *refused)
{
    uint32_t i = m->frames.at[0];
    struct roll_merge_trace *t = &m->trace[i];
    int err;
    if (t->frame.head.type == ROLL_FRAME_TICK) {
        t->time_ns = tick_time(&t->frame);
        heap_move(&m->ticks, i, t->time_ns);
        err = pass_time(m);
    } else {
        err = feed_frame(t, m->feed, refused);
    }
    err = err ? err : advance(t);
    if (t->ended) {
        heap_take(&m->frames, i);
        heap_take(&m->ticks, i);
    } else if (!err) {
        heap_move(&m->frames, i, frame_time(t));
    }
    return err;
}

int roll_merge_traces(roll_feed_t *feed, struct roll_merge_trace *trace, size_t n, bool *refused)
{
    struct merging m = {.trace = trace, .n = n, .feed = feed, .part = calloc(n + 1, sizeof(*m.part))};
    int frames = heap_init(&m.frames, n + 1), ticks = heap_init(&m.ticks, n + 1);
    int err = m.part && !frames && !ticks && n < UINT32_MAX ? 0 : ROLL_E_NOMEM;
    for (size_t i = 0; i < n && !err; i++) {
        err = advance(&trace[i]);
        if (!err && !trace[i].ended) {
            heap_add(&m.frames, (uint32_t)i, frame_time(&trace[i]));
            heap_add(&m.ticks, (uint32_t)i, trace[i].time_ns);
        }
    }
    while (!err && m.frames.n > 0) {
        err = feed_oldest(&m, refused);
    }
    for (size_t i = 0; i < n; i++) {
        free(trace[i].epoch);
        trace[i].epoch = NULL;
        trace[i].epochs = trace[i].room = 0;
    }
    heap_fini(&m.frames);
    heap_fini(&m.ticks);
    free(m.part);
    return err;
}
