/*
 * feed_ring.c: feeds a whole ring, as a file or a copy holds it, without an agent: post-mortem.
 *
 * It makes the frames that an agent would have sent and gives them to the feeder, so that nothing is decided in a
 * second place.
 */
#include "daemon/feed/feed.h"

#include "trace/def.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>

#define BATCH 960u /* records in one frame, below 64 KiB as an agent sends them */

static int give(roll_feed_t *feed, struct roll_frame_head head, const void *payload, size_t bytes)
{
    head.payload = (uint32_t)bytes;
    struct roll_frame frame = {.head = head, .payload = payload};
    return roll_feed_frame(feed, &frame);
}

static int give_defs(roll_feed_t *feed, const struct roll_ring *ring, uint64_t epoch)
{
    uint64_t used = atomic_load_explicit(&ring->header->defs_used, memory_order_acquire);
    size_t bytes = (size_t)(used < ring->defs_bytes ? used : ring->defs_bytes);
    size_t end = 0;
    struct roll_def def;
    while (end < bytes && roll_def_decode(ring->defs, bytes, &end, &def) == 0) {
    }
    return end == 0 ? 0
                    : give(feed, (struct roll_frame_head){.type = ROLL_FRAME_DEFS, .stream = epoch}, ring->defs, end);
}

/* All records, over the holes that a killed writer left. */
static int give_records(roll_feed_t *feed, const struct roll_ring *ring, uint64_t epoch, uint64_t head)
{
    struct roll_record *recs = malloc(BATCH * sizeof(*recs));
    if (!recs) {
        return ROLL_E_NOMEM;
    }
    int err = 0;
    uint64_t at = 0, lost = 0;
    while (at < head && !err) {
        uint64_t next = at;
        size_t n = roll_ring_read(ring, at, recs, BATCH, &next, &lost);
        if (n > 0) {
            err = give(feed,
                       (struct roll_frame_head){.type = ROLL_FRAME_RECORDS,
                                                .stream = epoch,
                                                .first = roll_seal_ticket(recs[0].seal),
                                                .rec_size = ROLL_RECORD_BYTES,
                                                .count = (uint32_t)n},
                       recs, n * sizeof(*recs));
        }
        at = next > at ? next : at + 1;
    }
    free(recs);
    return err;
}

int roll_feed_ring(roll_feed_t *feed, const struct roll_ring *ring, enum roll_proc_state proc, int32_t exit_status)
{
    const struct roll_ring_header *h = ring->header;
    uint64_t head = atomic_load_explicit(&h->head, memory_order_acquire);
    int err = give(feed, (struct roll_frame_head){.type = ROLL_FRAME_RING, .stream = h->epoch}, h, sizeof(*h));
    if (!err) {
        err = give_defs(feed, ring, h->epoch);
    }
    if (!err) {
        err = give_records(feed, ring, h->epoch, head);
    }
    if (err) {
        return err;
    }
    struct roll_frame_status status = {.head = head,
                                       .defs_used = atomic_load(&h->defs_used),
                                       .clock_mono_ns = atomic_load(&h->clock_mono_ns),
                                       .clock_real_ns = atomic_load(&h->clock_real_ns),
                                       .finish_ns = atomic_load(&h->finish_ns),
                                       .proc_state = proc,
                                       .exit_status = exit_status};
    for (unsigned i = 0; i < ROLL_LOSS_LIMIT; i++) {
        status.losses[i] = atomic_load(&h->losses[i]);
    }
    return give(feed, (struct roll_frame_head){.type = ROLL_FRAME_STATUS, .stream = h->epoch}, &status, sizeof(status));
}
