/*
 * segment_state.c: keeps what a segment has to repeat so that it can be read alone: ring headers, definitions, the
 * state of each process, the calls that have not returned, and the last call on each communicator.
 *
 * The calls matter when a job hangs and its trace goes on ageing: without them the last segment would hold a clock and
 * nothing else. The whole state is small beside a segment. Copying it from the segment before was rejected: that file
 * may be gone or damaged.
 */
#include "daemon/base/array.h"
#include "daemon/store/segment.h"

#include "trace/def.h"
#include "trace/err.h"
#include "trace/op.h"
#include "trace/ring.h"

#include <stdlib.h>
#include <string.h>

#define PIECE     (60u * 1024u) /* bytes of definitions in one frame */
#define MAX_COMMS 1024u         /* communicators of one ring whose last call is kept */
#define MAX_OPEN  1024u         /* calls of one ring that are kept because they have not returned */
#define BATCH     512u

struct ring {
    uint64_t epoch;
    uint8_t header[ROLL_RING_HEADER_BYTES];
    bool announced, told;
    uint64_t next_ticket;
    struct roll_frame_status status;
    struct roll_frame_sight sight; /* repeated unless it says that all is well */
    uint8_t *defs;
    size_t defs_used, defs_room;
    size_t *end; /* ends of the pieces, each of which holds whole entries */
    size_t ends, end_room;
    struct roll_record *open; /* by ticket, ascending */
    size_t opened, open_room;
    struct roll_record *last; /* one per communicator */
    size_t lasts, last_room;
};

struct roll_segment_state {
    struct ring *ring;
    size_t rings, room;
    size_t recent;
    uint64_t tick_seq, tick_real;
    bool ticked;
    struct roll_frame_settings settings; /* stall_ns 0: none were told */
};

struct roll_segment_state *roll_segment_state_new(void)
{
    return calloc(1, sizeof(struct roll_segment_state));
}

void roll_segment_state_destroy(struct roll_segment_state **pointer)
{
    struct roll_segment_state *s = *pointer;
    if (!s) {
        return;
    }
    for (size_t i = 0; i < s->rings; i++) {
        free(s->ring[i].defs);
        free(s->ring[i].end);
        free(s->ring[i].open);
        free(s->ring[i].last);
    }
    free(s->ring);
    free(s);
    *pointer = NULL;
}

static struct ring *ring_of(struct roll_segment_state *s, uint64_t epoch)
{
    for (size_t i = 0; i < s->rings; i++) { /* the search begins at the last ring: frames of one ring, or of the next
                                               one, often follow each other */
        size_t k = s->recent + i < s->rings ? s->recent + i : s->recent + i - s->rings;
        if (s->ring[k].epoch == epoch) {
            s->recent = k;
            return &s->ring[k];
        }
    }
    return NULL;
}

static int note_ring(struct roll_segment_state *s, const struct roll_frame *frame)
{
    struct ring *r = ring_of(s, frame->head.stream);
    if (r) {
        r->sight = (struct roll_frame_sight){.heard = 1};
    }
    if (frame->head.payload < ROLL_RING_HEADER_BYTES || (r && r->announced)) {
        return 0;
    }
    if (ROLL_GROW(s->ring, s->room, s->rings + 1) != 0) {
        return ROLL_E_NOMEM;
    }
    r = &s->ring[s->rings++];
    *r = (struct ring){.epoch = frame->head.stream, .announced = true, .sight.heard = 1};
    memcpy(r->header, frame->payload, sizeof(r->header));
    return 0;
}

static int note_defs(struct ring *r, const struct roll_frame *frame)
{
    uint64_t first = frame->head.first, n = frame->head.payload;
    if (first > r->defs_used || first + n <= r->defs_used || first + n > ROLL_RING_MAX_DEFS_BYTES) {
        return 0; /* the entry is known or stands behind a gap, and the feeder takes neither */
    }
    size_t skip = (size_t)(r->defs_used - first), more = (size_t)n - skip;
    if (ROLL_GROW(r->defs, r->defs_room, r->defs_used + more) != 0 ||
        ROLL_GROW(r->end, r->end_room, r->ends + 1) != 0) {
        return ROLL_E_NOMEM;
    }
    memcpy(r->defs + r->defs_used, frame->payload + skip, more);
    r->defs_used += more;
    size_t begin = r->ends > 1 ? r->end[r->ends - 2] : 0;
    if (r->ends > 0 && r->defs_used - begin <= PIECE) {
        r->end[r->ends - 1] = r->defs_used;
    } else {
        r->end[r->ends++] = r->defs_used;
    }
    return 0;
}

static size_t find_open(const struct ring *r, uint64_t ticket)
{
    size_t lo = 0, hi = r->opened;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (roll_seal_ticket(r->open[mid].seal) < ticket) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

/* Keeps the newest call on each communicator; only single calls, because a part of a group means nothing without the
 * rest. */
static int note_last(struct ring *r, const struct roll_record *rec)
{
    if (rec->comm == 0 || roll_op_class(rec->op) != ROLL_CLASS_COLL ||
        (rec->flags & (ROLL_FLAG_IN_GROUP | ROLL_FLAG_CAPTURED)) != 0) {
        return 0;
    }
    size_t i = 0;
    while (i < r->lasts && r->last[i].comm != rec->comm) {
        i++;
    }
    if (i == r->lasts) {
        if (i == MAX_COMMS) {
            return 0;
        }
        if (ROLL_GROW(r->last, r->last_room, r->lasts + 1) != 0) {
            return ROLL_E_NOMEM;
        }
        r->lasts++;
    }
    r->last[i] = *rec;
    return 0;
}

static int note_record(struct ring *r, const struct roll_record *rec)
{
    uint64_t ticket = roll_seal_ticket(rec->seal);
    size_t at = find_open(r, ticket);
    r->next_ticket = ticket >= r->next_ticket ? ticket + 1 : r->next_ticket;
    bool known = at < r->opened && roll_seal_ticket(r->open[at].seal) == ticket;
    if (roll_seal_state(rec->seal) != ROLL_STATE_ENTERED) {
        if (known) {
            memmove(r->open + at, r->open + at + 1, (r->opened - at - 1) * sizeof(*r->open));
            r->opened--;
        }
        return note_last(r, rec);
    }
    if (known) {
        return 0;
    }
    if (r->opened == MAX_OPEN) {
        memmove(r->open, r->open + 1, (r->opened - 1) * sizeof(*r->open));
        r->opened--;
        at -= at > 0;
    }
    if (ROLL_GROW(r->open, r->open_room, r->opened + 1) != 0) {
        return ROLL_E_NOMEM;
    }
    memmove(r->open + at + 1, r->open + at, (r->opened - at) * sizeof(*r->open));
    r->open[at] = *rec;
    r->opened++;
    return 0;
}

void roll_segment_state_cursor(const struct roll_segment_state *s, uint64_t epoch, struct roll_segment_cursor *out)
{
    *out = (struct roll_segment_cursor){0};
    for (size_t i = 0; i < s->rings; i++) {
        const struct ring *r = &s->ring[i];
        if (r->epoch == epoch) {
            out->next_ticket = r->next_ticket;
            out->defs_offset = r->defs_used;
            out->open_ticket = r->opened ? roll_seal_ticket(r->open[0].seal) : r->next_ticket;
        }
    }
}

int roll_segment_state_note(struct roll_segment_state *s, const struct roll_frame *frame)
{
    const struct roll_frame_head *h = &frame->head;
    if (h->type == ROLL_FRAME_TICK) {
        s->ticked = true;
        s->tick_seq = h->seq;
        if (h->payload >= sizeof(s->tick_real)) {
            memcpy(&s->tick_real, frame->payload, sizeof(s->tick_real));
        }
        return 0;
    }
    if (h->type == ROLL_FRAME_SETTINGS) {
        memcpy(&s->settings, frame->payload, sizeof(s->settings));
        return 0;
    }
    if (h->type == ROLL_FRAME_RING) {
        return note_ring(s, frame);
    }
    bool sight = h->type == ROLL_FRAME_SIGHT;
    struct ring *r =
        sight || (h->type >= ROLL_FRAME_DEFS && h->type <= ROLL_FRAME_STATUS) ? ring_of(s, h->stream) : NULL;
    if (!r) {
        return 0;
    }
    r->sight.heard = 1;
    if (sight) {
        memcpy(&r->sight, frame->payload, sizeof(r->sight));
        return 0;
    }
    if (h->type == ROLL_FRAME_DEFS) {
        return note_defs(r, frame);
    }
    if (h->type == ROLL_FRAME_STATUS) {
        memcpy(&r->status, frame->payload, sizeof(r->status));
        r->told = true;
        return 0;
    }
    int err = 0;
    for (uint32_t i = 0; i < h->count && !err; i++) {
        struct roll_record rec;
        roll_frame_record(frame, i, &rec);
        err = note_record(r, &rec);
    }
    return err;
}

static int by_ticket(const void *a, const void *b)
{
    uint64_t x = ((const struct roll_record *)a)->seal, y = ((const struct roll_record *)b)->seal;
    return (x > y) - (x < y);
}

/* Repeats the calls that have not returned and the last call on each communicator, in the order in which they were
 * made. */
static int repeat_records(const struct ring *r,
                          int (*give)(void *, const struct roll_frame_head *, const void *, size_t), void *ctx)
{
    size_t n = r->opened + r->lasts;
    struct roll_record *all = n ? malloc(n * sizeof(*all)) : NULL;
    if (n == 0 || !all) {
        return n ? ROLL_E_NOMEM : 0;
    }
    if (r->opened) {
        memcpy(all, r->open, r->opened * sizeof(*all));
    }
    if (r->lasts) {
        memcpy(all + r->opened, r->last, r->lasts * sizeof(*all));
    }
    qsort(all, n, sizeof(*all), by_ticket);
    int err = 0;
    for (size_t i = 0; i < n && !err; i += BATCH) {
        size_t use = n - i < BATCH ? n - i : BATCH;
        struct roll_frame_head head = {.type = ROLL_FRAME_RECORDS,
                                       .stream = r->epoch,
                                       .first = roll_seal_ticket(all[i].seal),
                                       .rec_size = ROLL_RECORD_BYTES,
                                       .count = (uint32_t)use};
        err = give(ctx, &head, all + i, use * sizeof(*all));
    }
    free(all);
    return err;
}

int roll_segment_state_repeat(const struct roll_segment_state *s,
                              int (*give)(void *, const struct roll_frame_head *, const void *, size_t), void *ctx)
{
    int err = 0;
    if (s->settings.stall_ns) {
        struct roll_frame_head head = {.type = ROLL_FRAME_SETTINGS};
        err = give(ctx, &head, &s->settings, sizeof(s->settings));
    }
    if (s->ticked && !err) {
        struct roll_frame_head head = {.type = ROLL_FRAME_TICK, .seq = s->tick_seq};
        err = give(ctx, &head, &s->tick_real, sizeof(s->tick_real));
    }
    for (size_t i = 0; i < s->rings && !err; i++) {
        const struct ring *r = &s->ring[i];
        struct roll_frame_head head = {.type = ROLL_FRAME_RING, .stream = r->epoch};
        err = give(ctx, &head, r->header, sizeof(r->header));
        head.type = ROLL_FRAME_DEFS;
        for (size_t k = 0; k < r->ends && !err; k++) {
            head.first = k ? r->end[k - 1] : 0;
            err = give(ctx, &head, r->defs + head.first, r->end[k] - (size_t)head.first);
        }
    }
    for (size_t i = 0; i < s->rings && !err; i++) {
        err = repeat_records(&s->ring[i], give, ctx);
    }
    for (size_t i = 0; i < s->rings && !err; i++) {
        struct roll_frame_head head = {.type = ROLL_FRAME_STATUS, .stream = s->ring[i].epoch};
        err = s->ring[i].told ? give(ctx, &head, &s->ring[i].status, sizeof(s->ring[i].status)) : 0;
        head.type = ROLL_FRAME_SIGHT;
        if (!err && (s->ring[i].sight.starved > 0 || s->ring[i].sight.heard == 0)) {
            err = give(ctx, &head, &s->ring[i].sight, sizeof(s->ring[i].sight));
        }
    }
    return err;
}
