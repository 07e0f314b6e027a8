/*
 * cut.c: an excerpt written as two traces: its head, which says where each ring comes in, and what was recorded from
 * there on.
 *
 * The series is read a second time, from the last segment that has to be, and frames go on as they are, without the
 * records that lie before a ring's part: so who judges is given the times, updates and states of processes that a trace
 * gives. What was said before the first record of the excerpt and still holds then comes once, in front of it.
 */
#include "daemon/console/digest/digest.h"

#include "daemon/base/array.h"
#include "daemon/store/pack.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>

#define NOTES_MOST 256u /* notes that go along; an agent makes one for a process */

/* A trace in memory. */
struct sink {
    roll_packer_t *packer;
    uint8_t *raw; /* of one frame; ROLL_FRAME_MAX_BYTES */
    uint8_t *bytes;
    size_t used, room;
};

/* What was said before the first record and still holds. */
struct before {
    struct roll_frame_settings settings;
    bool set;
    struct roll_frame_head tick;
    uint64_t wall;
    struct roll_frame_status *status; /* of each ring; proc_state 0: none */
    struct roll_frame_sight *sight;
    bool *seen;
};

struct cutting {
    const struct roll_taken *taken;
    const struct taken_excerpt *excerpt;
    struct sink sink;
    struct before before;
    struct roll_record *batch; /* records of one frame */
    size_t batch_room;
    uint64_t *reached; /* of each ring: the ticket behind the last one that was read */
    bool begun;
    uint32_t notes;
};

/* writing */

static int append(struct sink *s, const void *bytes, size_t n)
{
    if (s->used + n > ROLL_RDIG_MOST) {
        return ROLL_E_LIMIT;
    }
    int err = ROLL_GROW(s->bytes, s->room, s->used + n);
    if (!err) {
        memcpy(s->bytes + s->used, bytes, n);
        s->used += n;
    }
    return err;
}

static int begin_trace(struct sink *s)
{
    uint8_t head[ROLL_TRACE_HEAD_BYTES];
    s->bytes = NULL;
    s->used = s->room = 0;
    roll_trace_head(head);
    roll_packer_reset(s->packer);
    return append(s, head, sizeof(head));
}

static int pack(struct sink *s)
{
    const uint8_t *out;
    size_t bytes;
    int err = roll_packer_finish(s->packer, false, &out, &bytes);
    return err == ROLL_E_NOTFOUND ? 0 : err ? err : append(s, out, bytes);
}

static int put(struct sink *s, struct roll_frame_head head, const void *payload, size_t bytes)
{
    struct roll_frame frame;
    size_t waiting;
    bool full = false;
    int64_t n = roll_frame_make(&head, payload, bytes, s->raw, ROLL_FRAME_MAX_BYTES, &frame);
    int err = n < 0 ? (int)n : roll_packer_add(s->packer, &frame, s->raw, (size_t)n);
    (void)roll_packer_waiting(s->packer, &waiting, &full);
    return !err && full ? pack(s) : err;
}

static int put_frame(struct sink *s, const struct roll_frame *frame)
{
    return put(s, frame->head, frame->payload, frame->head.payload);
}

/* the head */

static bool knows(const struct taken_ring *r, uint16_t comm)
{
    for (size_t i = 0; i < r->comms; i++) {
        if (r->comm[i].id == comm) {
            return true;
        }
    }
    return false;
}

static int put_places(struct sink *s, const struct taken_ring *r, const struct taken_part *part)
{
    struct roll_frame_place *out = calloc(part->places + 1, sizeof(*out));
    if (!out) {
        return ROLL_E_NOMEM;
    }
    size_t n = 0;
    for (size_t i = 0; i < part->places; i++) {
        const struct roll_fold_place *p = &part->place[i];
        if (knows(r, p->comm)) {
            out[n++] = (struct roll_frame_place){
                .comm = p->comm, .op = p->op, .sure = p->sure, .peer = p->peer, .next = p->next, .made = p->made};
        }
    }
    int err = put(s, (struct roll_frame_head){.type = ROLL_FRAME_PLACE, .stream = r->epoch, .first = part->begin}, out,
                  n * sizeof(*out));
    free(out);
    return err;
}

static int put_head(struct cutting *c)
{
    struct sink *s = &c->sink;
    int err = begin_trace(s);
    for (size_t i = 0; i < c->excerpt->parts && !err; i++) {
        const struct taken_ring *r = c->taken->ring[i];
        err = put(s, (struct roll_frame_head){.type = ROLL_FRAME_RING, .stream = r->epoch}, r->header,
                  ROLL_RING_HEADER_BYTES);
        for (size_t k = 0; k < r->chunks && !err; k++) {
            const struct taken_chunk *d = &r->chunk[k];
            err = put(s, (struct roll_frame_head){.type = ROLL_FRAME_DEFS, .stream = r->epoch, .first = d->first},
                      r->defs + d->at, d->bytes);
        }
    }
    for (size_t i = 0; i < c->excerpt->parts && !err; i++) {
        err = put_places(s, c->taken->ring[i], &c->excerpt->part[i]);
    }
    return err ? err : pack(s);
}

/* the records */

static uint32_t number_of(const struct cutting *c, uint64_t epoch)
{
    uint32_t i = roll_map_get(&c->taken->ring_at, epoch);
    return i < c->excerpt->parts ? i : ROLL_MAP_NONE;
}

/* What holds at the first record of the excerpt. */
static int put_before(struct cutting *c)
{
    struct before *b = &c->before;
    int err = 0;
    if (b->set) {
        err = put(&c->sink, (struct roll_frame_head){.type = ROLL_FRAME_SETTINGS}, &b->settings, sizeof(b->settings));
    }
    if (!err && b->tick.type != 0) {
        err = put(&c->sink, b->tick, &b->wall, b->tick.payload < sizeof(b->wall) ? 0 : sizeof(b->wall));
    }
    for (size_t i = 0; i < c->excerpt->parts && !err; i++) {
        struct roll_frame_head head = {.type = ROLL_FRAME_STATUS, .stream = c->taken->ring[i]->epoch};
        if (b->status[i].proc_state != 0) {
            err = put(&c->sink, head, &b->status[i], sizeof(b->status[i]));
        }
        if (b->seen[i] && !err) {
            head.type = ROLL_FRAME_SIGHT;
            err = put(&c->sink, head, &b->sight[i], sizeof(b->sight[i]));
        }
    }
    c->begun = true;
    return err;
}

static void copy_payload(void *to, size_t bytes, const struct roll_frame *frame)
{
    memcpy(to, frame->payload, frame->head.payload < bytes ? frame->head.payload : bytes);
}

/* Notes what a frame before the first record says. */
static int note_before(struct cutting *c, const struct roll_frame *frame)
{
    struct before *b = &c->before;
    uint32_t i = number_of(c, frame->head.stream);
    switch (frame->head.type) {
    case ROLL_FRAME_SETTINGS:
        copy_payload(&b->settings, sizeof(b->settings), frame);
        b->set = true;
        break;
    case ROLL_FRAME_TICK:
        b->tick = frame->head;
        b->tick.payload = frame->head.payload < sizeof(b->wall) ? 0 : sizeof(b->wall);
        copy_payload(&b->wall, sizeof(b->wall), frame);
        break;
    case ROLL_FRAME_STATUS:
        if (i != ROLL_MAP_NONE) {
            copy_payload(&b->status[i], sizeof(b->status[i]), frame);
        }
        break;
    case ROLL_FRAME_SIGHT:
        if (i != ROLL_MAP_NONE) {
            copy_payload(&b->sight[i], sizeof(b->sight[i]), frame);
            b->seen[i] = true;
        }
        break;
    default:
        return c->excerpt->kind == ROLL_RDIG_END && c->notes++ < NOTES_MOST ? put_frame(&c->sink, frame) : 0;
    }
    return 0;
}

static int put_records(struct cutting *c, const struct roll_frame *frame)
{
    uint32_t i = number_of(c, frame->head.stream), n = 0;
    if (i == ROLL_MAP_NONE) {
        return 0;
    }
    const struct taken_part *part = &c->excerpt->part[i];
    int err = ROLL_GROW(c->batch, c->batch_room, (size_t)frame->head.count + 1);
    for (uint32_t k = 0; k < frame->head.count && !err; k++) {
        roll_frame_record(frame, k, &c->batch[n]);
        uint64_t ticket = roll_seal_ticket(c->batch[n].seal);
        bool is_new = frame->head.type == ROLL_FRAME_RECORDS && ticket >= c->reached[i];
        c->reached[i] = is_new ? ticket + 1 : c->reached[i];
        n += ticket >= part->begin && ticket < part->end;
    }
    if (n == 0 || err) {
        return err;
    }
    struct roll_frame_head head = frame->head;
    head.count = n;
    head.rec_size = ROLL_RECORD_BYTES;
    head.first = head.type == ROLL_FRAME_RECORDS ? roll_seal_ticket(c->batch[0].seal) : head.first;
    err = c->begun ? 0 : put_before(c);
    return err ? err : put(&c->sink, head, c->batch, n * sizeof(*c->batch));
}

static int cut_frame(struct cutting *c, const struct roll_frame *frame)
{
    if (c->excerpt->whole) {
        return put_frame(&c->sink, frame);
    }
    switch (frame->head.type) {
    case ROLL_FRAME_RECORDS:
    case ROLL_FRAME_UPDATES:
        return put_records(c, frame);
    case ROLL_FRAME_NOTE:
        return note_before(c, frame);
    case ROLL_FRAME_SETTINGS:
    case ROLL_FRAME_TICK:
    case ROLL_FRAME_STATUS:
    case ROLL_FRAME_SIGHT:
        return c->begun ? put_frame(&c->sink, frame) : note_before(c, frame);
    default: /* rings and definitions are in the head */
        return 0;
    }
}

/* Of a place nothing is read behind its records. */
static bool is_over(const struct cutting *c)
{
    bool over = c->excerpt->kind == ROLL_RDIG_PLACE;
    for (size_t i = 0; i < c->excerpt->parts && over; i++) {
        over = c->reached[i] >= c->excerpt->part[i].end;
    }
    return over;
}

static int put_trace(struct cutting *c, struct roll_series *s)
{
    int err = begin_trace(&c->sink);
    err = err ? err : roll_series_begin(s, c->excerpt->segment);
    while (!err && !s->ended && !is_over(c)) {
        err = cut_frame(c, &s->frame);
        err = err ? err : roll_series_advance(s);
    }
    if (!err && !c->begun && !c->excerpt->whole) { /* no record at all */
        err = put_before(c);
    }
    roll_series_end(s);
    return err ? err : pack(&c->sink);
}

int roll_cut(const struct roll_taken *taken, const struct taken_excerpt *excerpt, struct roll_series *s,
             struct roll_cut *out)
{
    size_t n = excerpt->parts + 1;
    struct cutting c = {.taken = taken, .excerpt = excerpt};
    c.sink.packer = roll_packer_new();
    c.sink.raw = malloc(ROLL_FRAME_MAX_BYTES);
    c.before.status = calloc(n, sizeof(*c.before.status));
    c.before.sight = calloc(n, sizeof(*c.before.sight));
    c.before.seen = calloc(n, sizeof(*c.before.seen));
    c.reached = calloc(n, sizeof(*c.reached));
    bool memory = c.sink.packer && c.sink.raw && c.before.status && c.before.sight && c.before.seen && c.reached;
    int err = memory ? put_head(&c) : ROLL_E_NOMEM;
    *out = (struct roll_cut){.head = c.sink.bytes, .head_bytes = c.sink.used};
    if (!err) {
        err = put_trace(&c, s);
        out->trace = c.sink.bytes;
        out->trace_bytes = c.sink.used;
    }
    roll_packer_destroy(&c.sink.packer);
    free(c.sink.raw);
    free(c.before.status);
    free(c.before.sight);
    free(c.before.seen);
    free(c.reached);
    free(c.batch);
    return err;
}
