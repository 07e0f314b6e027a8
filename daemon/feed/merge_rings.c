/*
 * merge_rings.c: the rings that a run left, fed as an agent would have sent them while it ran.
 *
 * Rank after rank would be simpler and is wrong for long runs: the engine keeps a bounded window of operations per
 * communicator, which the first ring would outrun before the second began. So records are merged by wall clock; the
 * feeder still gets each ring's records in ticket order. The ends of the processes come last, as they would have come
 * from an agent.
 */
#include "daemon/feed/merge.h"

#include "daemon/base/proc.h"
#include "daemon/feed/clock.h"
#include "trace/def.h"
#include "trace/err.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define BATCH    512u
#define SLACK_NS 1000000u /* a batch holds the records that are at most this far ahead of the slowest rank */

/* Where the merge stands in one ring. */
struct cursor {
    const struct roll_ring *ring;
    uint64_t epoch, head, next, lost, corrupt;
    int64_t offset_ns; /* wall clock - monotonic */
    struct roll_record rec[BATCH];
    size_t at, n; /* rec[at...n-1] are read and not fed */
};

static int give(const struct roll_merge_sink *sink, struct roll_frame_head head, const void *payload, size_t bytes)
{
    head.payload = (uint32_t)bytes;
    struct roll_frame frame = {.head = head, .payload = payload};
    return sink->frame(sink->ctx, &frame);
}

static int announce(const struct roll_merge_sink *sink, struct cursor *c)
{
    const struct roll_ring_header *h = c->ring->header;
    uint64_t used = atomic_load_explicit(&c->ring->header->defs_used, memory_order_acquire);
    size_t bytes = (size_t)(used < h->defs_bytes ? used : h->defs_bytes), end = 0;
    struct roll_def def;
    int err = give(sink, (struct roll_frame_head){.type = ROLL_FRAME_RING, .stream = c->epoch}, h, sizeof(*h));
    while (end < bytes && roll_def_decode(c->ring->defs, bytes, &end, &def) == 0) {
    }
    if (err == 0 && end > 0) {
        err = give(sink, (struct roll_frame_head){.type = ROLL_FRAME_DEFS, .stream = c->epoch}, c->ring->defs, end);
    }
    return err;
}

/* Records that no agent would have sent are counted, as it counts them. */
static void leave_out_corrupt(struct cursor *c)
{
    size_t keep = 0;
    for (size_t i = 0; i < c->n; i++) {
        if (roll_record_check(&c->rec[i]) == 0) {
            c->rec[keep++] = c->rec[i];
        }
    }
    c->corrupt += c->n - keep;
    c->n = keep;
}

/* Reads more records when all that were read have been fed. False at the end of the ring. */
static bool refill(struct cursor *c)
{
    while (c->at == c->n && c->next < c->head) {
        uint64_t next = c->next;
        c->at = 0;
        c->n = roll_ring_read(c->ring, c->next, c->rec, BATCH, &next, &c->lost);
        c->next = next > c->next ? next : c->next + 1; /* go past a slot that a killed writer left unfinished */
        leave_out_corrupt(c);
    }
    return c->at < c->n;
}

static uint64_t time_of(const struct cursor *c, size_t i)
{
    return c->rec[i].enter_ns + (uint64_t)c->offset_ns;
}

/* Feeds all rings, merged. The engine's clock follows the records: the clock ticks before the next record is fed, so no
 * call looks older than it was. */
static int feed_merged(const struct roll_merge_sink *sink, struct cursor *cursors, size_t n)
{
    uint64_t ticked = 0;
    for (;;) {
        struct cursor *first = NULL;
        for (size_t i = 0; i < n; i++) {
            if (refill(&cursors[i]) &&
                (first == NULL || time_of(&cursors[i], cursors[i].at) < time_of(first, first->at))) {
                first = &cursors[i];
            }
        }
        if (first == NULL) {
            return 0;
        }
        uint64_t begin = time_of(first, first->at), until = begin + SLACK_NS;
        int err = 0;
        if (roll_record_clock_is_due(&ticked, begin)) {
            err = sink->tick(sink->ctx, begin);
        }
        size_t end = first->at + 1;
        while (end < first->n && time_of(first, end) <= until) {
            end++;
        }
        struct roll_frame_head head = {.type = ROLL_FRAME_RECORDS,
                                       .stream = first->epoch,
                                       .first = roll_seal_ticket(first->rec[first->at].seal),
                                       .rec_size = ROLL_RECORD_BYTES,
                                       .count = (uint32_t)(end - first->at)};
        err = err != 0 ? err : give(sink, head, &first->rec[first->at], (end - first->at) * sizeof(first->rec[0]));
        if (err != 0) {
            return err;
        }
        first->at = end;
    }
}

/* Whether this very process is still there. Another process may have its number now, so the start time is compared. */
static bool lives(uint32_t pid, uint64_t start_ticks)
{
    struct roll_proc_stat stat;
    return roll_proc_stat((pid_t)pid, 0, &stat) == 0 && stat.start_ticks == start_ticks;
}

static enum roll_proc_state state_here(struct roll_ring_header *h, int32_t exit_status)
{
    if (atomic_load(&h->state) == ROLL_RING_FINISHED) {
        return ROLL_PROC_FINISHED;
    }
    bool alive = (exit_status & ~ROLL_EXIT_ASKED) == ROLL_EXIT_UNKNOWN && lives(h->pid, h->start_ticks);
    return alive ? ROLL_PROC_RUNNING : ROLL_PROC_DEAD;
}

static int tell_end(const struct roll_merge_sink *sink, const struct cursor *c, enum roll_proc_state seen)
{
    struct roll_ring_header *h = c->ring->header;
    int32_t exit_status = atomic_load(&h->exit_status);
    enum roll_proc_state proc = seen != 0 ? seen : state_here(h, exit_status);
    struct roll_frame_status status = {.head = c->head,
                                       .defs_used = atomic_load(&h->defs_used),
                                       .clock_mono_ns = atomic_load(&h->clock_mono_ns),
                                       .clock_real_ns = atomic_load(&h->clock_real_ns),
                                       .finish_ns = atomic_load(&h->finish_ns),
                                       .proc_state = proc,
                                       .exit_status = exit_status};
    for (unsigned i = 0; i < ROLL_LOSS_LIMIT; i++) {
        status.losses[i] = atomic_load(&h->losses[i]);
    }
    /* An agent may have counted some of them already. */
    status.losses[ROLL_LOSS_CORRUPT] =
        c->corrupt > status.losses[ROLL_LOSS_CORRUPT] ? c->corrupt : status.losses[ROLL_LOSS_CORRUPT];
    return give(sink, (struct roll_frame_head){.type = ROLL_FRAME_STATUS, .stream = c->epoch}, &status, sizeof(status));
}

int roll_merge_rings_into(const struct roll_merge_sink *sink, const struct roll_ring *ring,
                          const enum roll_proc_state *proc, size_t n)
{
    struct cursor *cursors = calloc(n, sizeof(*cursors));
    int err = cursors == NULL ? ROLL_E_NOMEM : 0;
    for (size_t i = 0; i < n && err == 0; i++) {
        struct roll_ring_header *h = ring[i].header;
        cursors[i].ring = &ring[i];
        cursors[i].epoch = h->epoch;
        cursors[i].head = roll_ring_head(&ring[i]);
        cursors[i].offset_ns = (int64_t)(atomic_load(&h->clock_real_ns) - atomic_load(&h->clock_mono_ns));
        err = announce(sink, &cursors[i]);
    }
    if (err == 0) {
        err = feed_merged(sink, cursors, n);
    }
    for (size_t i = 0; i < n && err == 0; i++) {
        err = tell_end(sink, &cursors[i], proc != NULL ? proc[i] : 0);
    }
    free(cursors);
    return err;
}

static int feed_frame(void *ctx, const struct roll_frame *frame)
{
    return roll_feed_frame(ctx, frame);
}

static int feed_tick(void *ctx, uint64_t time_ns)
{
    return roll_feed_tick(ctx, time_ns);
}

int roll_merge_rings(roll_feed_t *feed, const struct roll_ring *ring, size_t n)
{
    const struct roll_merge_sink sink = {feed_frame, feed_tick, feed};
    return roll_merge_rings_into(&sink, ring, NULL, n);
}
