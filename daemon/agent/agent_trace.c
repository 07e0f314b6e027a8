/*
 * agent_trace.c: reads the agent's rings a second time, and writes what it reads to segments instead of to a root.
 *
 * This reader has cursors of its own, so that the trace does not depend on a root: a root that is slow, away or never
 * there costs no record. Copying the frames that go to the root was rejected for that reason. The clock of the file is
 * the node's own: a TICK behind everything that was read in one turn, so that several nodes' files can be merged
 * (daemon/feed/merge.h). When the processes of a run have been gone for so long that nothing more is to be judged, its
 * clock stops: their rings may lie here for a day, and its trace is not to grow meanwhile.
 */
#include "daemon/agent/agent_trace.h"

#include "daemon/base/array.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/feed/clock.h"
#include "daemon/feed/feed.h"
#include "daemon/store/trace_file.h"
#include "trace/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OVER_NS (60000 * ROLL_MS) /* more than any patience that a job may need after its last process */
#define FRAME   (ROLL_AGENT_BATCH * ROLL_RECORD_BYTES + ROLL_FRAME_HEAD_BYTES + 8192)

/* A (job, restart) on this node. */
struct traced_run {
    char job[ROLL_NAME_BYTES];
    uint32_t restart;
    roll_segments_t *segments; /* NULL: could not be had */
    struct roll_trace_clock clock;
    bool urgent;
    bool over;                           /* its clock stands */
    struct roll_frame_settings settings; /* newest SETTINGS that this agent wrote; zero: none */
};

struct kept {
    const struct roll_agent_ring *ring; /* the agent's reader, which watches the process */
    struct roll_agent_ring *copy;       /* this trace's reader */
    size_t run;
    struct roll_frame_status said; /* newest STATUS in the file; proc_state 0: none */
};

struct roll_agent_trace {
    struct roll_agent_trace_options o;
    struct traced_run *run;
    size_t runs, run_room;
    struct kept *kept;
    size_t used, room;
    uint64_t seq, real_ns, mono_ns; /* the clock of the ticks: it began at the wall clock and goes on evenly */
    uint8_t *batch, *frame;
};

/* Where the reader's frames go. */
struct out {
    struct roll_agent_trace *trace;
    struct traced_run *run;
    struct kept *kept;
    uint64_t now;
};

roll_agent_trace_t *roll_agent_trace_new(const struct roll_agent_trace_options *options)
{
    roll_agent_trace_t *t = calloc(1, sizeof(*t));
    if (!t) {
        return NULL;
    }
    t->o = *options;
    t->batch = malloc(ROLL_AGENT_BATCH * ROLL_RECORD_BYTES);
    t->frame = malloc(FRAME);
    roll_clock_pair(&t->mono_ns, &t->real_ns);
    if (!t->batch || !t->frame) {
        roll_agent_trace_destroy(&t);
    }
    return t;
}

/* frames in */

static void keep(struct roll_agent_trace *t, struct traced_run *run, struct roll_frame_head head, const void *payload,
                 size_t bytes, uint64_t now)
{
    struct roll_frame frame;
    int64_t n = roll_frame_make(&head, payload, bytes, t->frame, FRAME, &frame);
    int err = n < 0 ? (int)n : roll_segments_append(run->segments, &frame, t->frame, (size_t)n, now);
    if (err) {
        roll_log(ROLL_LOG_ERROR, "agent: %s.%u: the trace ends here: %s; watching goes on, what is not kept is counted",
                 run->job, run->restart, roll_strerror(err));
    }
}

static int send_frame(void *ctx, struct roll_frame_head head, const void *payload, size_t bytes, uint64_t *seq)
{
    struct out *out = ctx;
    struct roll_frame_status status;
    head.seq = *seq = ++out->trace->seq;
    if (head.type == ROLL_FRAME_STATUS) {
        memcpy(&status, payload, sizeof(status));
        if (!roll_feed_status_is_news(&out->kept->said, &status)) {
            return 0;
        }
        out->kept->said = status;
    }
    keep(out->trace, out->run, head, payload, bytes, out->now);
    if (head.type == ROLL_FRAME_STATUS) {
        out->run->urgent |= status.proc_state == ROLL_PROC_FINISHED || status.proc_state == ROLL_PROC_DEAD;
    }
    return 0; /* frames that could not be kept are counted, not tried again */
}

/* rings */

/* Notes what the newest segment of a predecessor holds, which need not be kept again. */
static void catch_up(struct traced_run *run, const char *dir, const char *series)
{
    struct roll_segment_name *list = NULL;
    size_t count = 0;
    roll_trace_reader_t *reader = NULL;
    struct roll_frame frame;
    if (roll_segment_list(dir, series, &list, &count) == 0 && count > 0 &&
        roll_trace_reader_new(list[count - 1].path, &reader) == 0) {
        while (roll_trace_reader_next(reader, &frame) == 0 && roll_segments_note(run->segments, &frame) == 0) {
        }
    }
    roll_trace_reader_destroy(&reader);
    free(list);
}

static void open_run(const struct roll_agent_trace *t, struct traced_run *run)
{
    char series[2 * ROLL_NAME_BYTES + 16], host[ROLL_NAME_BYTES];
    size_t n = 0;
    for (const char *p = t->o.host; *p && n + 1 < sizeof(host); p++) {
        bool plain = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || *p == '-';
        host[n++] = plain ? *p : '_';
    }
    host[n] = '\0';
    snprintf(series, sizeof(series), "%s.%u@%s", run->job, run->restart, host);
    struct roll_segment_options o = {.dir = t->o.dir,
                                     .series = series,
                                     .segment_bytes = t->o.segment_bytes,
                                     .limit_bytes = t->o.limit_bytes,
                                     .age_ns = t->o.age_ns};
    char why[ROLL_SEGMENT_WHY];
    int pid, err = roll_segments_new(&o, &run->segments, &pid);
    if (err) {
        roll_log(ROLL_LOG_ERROR, "agent: %s/%s: %s; this run is watched without a trace", t->o.dir, series,
                 roll_segment_why(err, pid, why));
        return;
    }
    catch_up(run, o.dir, series);
}

/* Finds the run that a RING or NOTE frame is about, and makes it when it is new. Returns its number, or -1. */
static long run_of(struct roll_agent_trace *t, const struct roll_frame *frame)
{
    char job[ROLL_NAME_BYTES];
    uint32_t restart;
    if (roll_feed_run_of(frame, job, &restart) != 0) {
        return -1;
    }
    for (size_t i = 0; i < t->runs; i++) {
        if (t->run[i].restart == restart && strcmp(t->run[i].job, job) == 0) {
            return (long)i;
        }
    }
    if (ROLL_GROW(t->run, t->run_room, t->runs + 1) != 0) {
        return -1;
    }
    struct traced_run *run = &t->run[t->runs];
    *run = (struct traced_run){.restart = restart};
    memcpy(run->job, job, sizeof(job));
    open_run(t, run);
    return (long)t->runs++;
}

/* Starts the reader of a ring where the file ends, as if a root had said so. */
static void begin(struct roll_agent_trace *t, struct kept *k)
{
    struct traced_run *run = &t->run[k->run];
    struct roll_segment_cursor at;
    roll_segments_cursor(run->segments, k->copy->map.header->epoch, &at);
    struct roll_frame_ack ack = {.next_ticket = at.next_ticket, .defs_offset = at.defs_offset};
    struct roll_frame frame = {.head = {.type = ROLL_FRAME_ACK,
                                        .payload = sizeof(ack),
                                        .seq = UINT64_MAX,
                                        .first = at.open_ticket,
                                        .stream = k->copy->map.header->epoch},
                               .payload = (const uint8_t *)&ack};
    struct out out = {t, run, k, roll_mono_ns()};
    struct roll_agent_out to = {send_frame, &out, t->batch};
    roll_agent_ring_pump(k->copy, &to, out.now); /* announces the ring */
    roll_agent_ring_ack(k->copy, &frame);
}

void roll_agent_trace_add(roll_agent_trace_t *t, const struct roll_agent_ring *ring)
{
    const struct roll_ring_header *h = ring->map.header;
    struct roll_frame announced = {
        .head = {.type = ROLL_FRAME_RING, .payload = ROLL_RING_HEADER_BYTES, .stream = h->epoch},
        .payload = (const uint8_t *)h};
    long run = run_of(t, &announced);
    struct roll_agent_ring *copy = NULL;
    if (run < 0 || !t->run[run].segments) {
        return;
    }
    int err = roll_agent_ring_new(ring->path, &copy);
    err = err ? err : ROLL_GROW(t->kept, t->room, t->used + 1);
    if (err) {
        roll_agent_ring_destroy(&copy);
        roll_log(ROLL_LOG_WARNING, "agent: %s: %s; this ring is not in the trace", ring->path, roll_strerror(err));
        return;
    }
    if (copy->pidfd >= 0) { /* the agent's own reader watches the process */
        close(copy->pidfd);
        copy->pidfd = -1;
    }
    copy->second = true;
    t->kept[t->used] = (struct kept){.ring = ring, .copy = copy, .run = (size_t)run};
    begin(t, &t->kept[t->used++]);
}

static int64_t pump_one(struct roll_agent_trace *t, struct kept *k, uint64_t now)
{
    struct traced_run *run = &t->run[k->run];
    struct out out = {t, run, k, now};
    struct roll_agent_out to = {send_frame, &out, t->batch};
    struct roll_agent_ring *copy = k->copy;
    copy->gone = k->ring->gone;
    copy->foreign = k->ring->foreign;
    copy->stopped = k->ring->stopped;
    copy->gone_ns = k->ring->gone_ns;
    copy->gone_head = k->ring->gone_head;
    copy->starved = k->ring->starved;
    int64_t moved = roll_agent_ring_pump(copy, &to, now);
    copy->acked = copy->sent;
    copy->acked_seq = t->seq;
    run->clock.moved = run->clock.moved || moved > 0;
    return moved;
}

static void tick(struct roll_agent_trace *t, struct traced_run *run, uint64_t now, bool at_once)
{
    if (!run->segments || !roll_trace_clock_is_due(&run->clock, now, at_once)) {
        return;
    }
    struct roll_feed_time time = roll_feed_time_on_grid(t->real_ns + (now - t->mono_ns), roll_real_ns());
    keep(t, run, (struct roll_frame_head){.type = ROLL_FRAME_TICK, .seq = time.engine_ns}, &time.wall_ns,
         sizeof(time.wall_ns), now);
    int err = roll_segments_turn(run->segments, now, at_once || run->urgent);
    if (err) {
        roll_log(ROLL_LOG_ERROR, "agent: %s.%u: the trace ends here: %s; watching goes on, what is not kept is counted",
                 run->job, run->restart, roll_strerror(err));
    }
    run->urgent = false;
}

void roll_agent_trace_settings(roll_agent_trace_t *t, const struct roll_agent_ring *ring,
                               const struct roll_frame_settings *settings, uint64_t now)
{
    for (size_t i = 0; i < t->used; i++) {
        struct traced_run *run = &t->run[t->kept[i].run];
        if (t->kept[i].ring == ring && memcmp(&run->settings, settings, sizeof(*settings)) != 0) {
            run->settings = *settings;
            run->clock.moved = true; /* a tick follows: time goes on with the new patience */
            keep(t, run, (struct roll_frame_head){.type = ROLL_FRAME_SETTINGS}, settings, sizeof(*settings), now);
        }
    }
}

void roll_agent_trace_note(roll_agent_trace_t *t, const char *text, uint64_t now)
{
    struct roll_frame frame = {.head = {.type = ROLL_FRAME_NOTE, .payload = (uint32_t)strlen(text)},
                               .payload = (const uint8_t *)text};
    long at = run_of(t, &frame);
    struct traced_run *run = at >= 0 ? &t->run[at] : NULL;
    if (run && run->segments) {
        frame.head.seq = ++t->seq;
        keep(t, run, frame.head, text, frame.head.payload, now);
        tick(t, run, now, true); /* there may be no ring that makes the clock go on */
    }
}

/* Whether any ring of the run is still read. A run without one is written out and needs no clock. */
static bool in_use(const struct roll_agent_trace *t, size_t run)
{
    for (size_t i = 0; i < t->used; i++) {
        if (t->kept[i].run == run) {
            return true;
        }
    }
    return false;
}

/* Whether all processes of the run have been gone for long. */
static bool is_over(const struct roll_agent_trace *t, size_t run, uint64_t now)
{
    for (size_t i = 0; i < t->used; i++) {
        const struct roll_agent_ring *ring = t->kept[i].ring;
        if (t->kept[i].run == run && (!ring->gone || now <= ring->gone_ns + OVER_NS)) {
            return false;
        }
    }
    return true;
}

bool roll_agent_trace_pump(roll_agent_trace_t *t, uint64_t now)
{
    bool more = false;
    for (size_t i = 0; i < t->used; i++) {
        more = pump_one(t, &t->kept[i], now) >= ROLL_AGENT_BATCH || more;
    }
    for (size_t i = 0; i < t->runs; i++) {
        bool was_over = t->run[i].over;
        t->run[i].over = is_over(t, i, now);
        if (in_use(t, i) && !(was_over && t->run[i].over && !t->run[i].clock.moved)) {
            tick(t, &t->run[i], now, t->run[i].over); /* the last one writes out what there is */
        }
    }
    return more;
}

/* Keeps everything that the ring holds, the end of its process included. */
static void pump_rest(struct roll_agent_trace *t, struct kept *k, uint64_t now)
{
    k->copy->drain_status = true;
    k->copy->drain_head = roll_agent_ring_head(k->copy);
    while (pump_one(t, k, now) > 0) {
    }
}

void roll_agent_trace_drop(roll_agent_trace_t *t, const struct roll_agent_ring *ring, uint64_t now)
{
    for (size_t i = 0; i < t->used; i++) {
        struct kept *k = &t->kept[i];
        if (k->ring == ring) {
            size_t run = k->run;
            pump_rest(t, k, now);
            tick(t, &t->run[run], now, true);
            roll_agent_ring_destroy(&k->copy);
            *k = t->kept[--t->used];
            return;
        }
    }
}

void roll_agent_trace_destroy(roll_agent_trace_t **trace)
{
    roll_agent_trace_t *t = *trace;
    if (!t) {
        return;
    }
    uint64_t now = roll_mono_ns();
    for (size_t i = 0; i < t->used; i++) {
        pump_rest(t, &t->kept[i], now);
    }
    for (size_t i = 0; i < t->runs; i++) {
        if (in_use(t, i)) {
            tick(t, &t->run[i], now, true);
        }
        struct roll_segment_count count = {0};
        if (t->run[i].segments) {
            roll_segments_count(t->run[i].segments, &count);
        }
        if (count.lost > 0) {
            roll_log(ROLL_LOG_WARNING, "agent: %s.%u: %llu records are not in the trace", t->run[i].job,
                     t->run[i].restart, (unsigned long long)count.lost);
        }
        roll_segments_destroy(&t->run[i].segments);
    }
    for (size_t i = 0; i < t->used; i++) {
        roll_agent_ring_destroy(&t->kept[i].copy);
    }
    free(t->kept);
    free(t->run);
    free(t->batch);
    free(t->frame);
    free(t);
    *trace = NULL;
}
