/*
 * pack_model.c: predicts the frames of a trace from those before, so that only what does not repeat is written. Records
 * in frames are coded by pack_record.c.
 *
 * A training job makes the same calls again and again. A value that is as predicted costs a zero in a column of zeros.
 * What is left are the times: their noise is most of the file. Both directions run the same code (pack_coder.h), and
 * nothing is dropped: a frame that the model cannot express is kept as it is.
 *
 * A general compressor over 64-byte records was rejected: it cannot see that a clock that goes on evenly carries no
 * news.
 */
#include "daemon/base/array.h"
#include "daemon/store/pack_inside.h"

#include "trace/err.h"

#include <stdlib.h>
#include <string.h>

#define GRAIN_NS 100000u /* the root rounds the times of its ticks to this */

enum { KIND_RAW, KIND_RECORDS, KIND_RECORDS_GAPS, KIND_UPDATES, KIND_TICK, KIND_TICK_COARSE, KIND_STATUS, KIND_LIMIT };

struct roll_pack_model *roll_pack_model_new(void)
{
    return calloc(1, sizeof(struct roll_pack_model));
}

static void forget_rings(struct roll_pack_model *m)
{
    for (size_t i = 0; i < m->rings; i++) {
        free(m->ring[i].open);
    }
    free(m->ring);
}

void roll_pack_model_destroy(struct roll_pack_model **model)
{
    if (*model) {
        forget_rings(*model);
        free((*model)->scratch);
        free(*model);
        *model = NULL;
    }
}

/* A model that has coded nothing is left alone: its tables are 7 MB that the kernel has not had to provide yet, and who
 * reads the traces of 1,000 nodes has 1,000 of them. */
void roll_pack_model_reset(struct roll_pack_model *m)
{
    if (!m->used) {
        return;
    }
    struct roll_record *scratch = m->scratch;
    size_t room = m->scratch_room;
    forget_rings(m);
    memset(m, 0, sizeof(*m));
    m->scratch = scratch;
    m->scratch_room = room;
}

/* rings */

/* Codes the ring of a frame. NULL when that ring is not followed (writing), or on an error. */
static struct pack_ring *code_ring(struct roll_pack_model *m, struct roll_pack_coder *c, struct roll_frame_head *head)
{
    uint64_t number = m->last, guess = m->last + 1 < m->rings ? m->last + 1 : 0;
    if (!c->reading) {
        for (number = guess; number < m->rings && m->ring[number].epoch != head->stream; number++) {
        }
        for (size_t i = 0; number == m->rings && i < guess; i++) {
            number = m->ring[i].epoch == head->stream ? i : number;
        }
    }
    roll_pack_code_number(c, PACK_FRAME, guess, &number);
    if (number > m->rings || (number == m->rings && number == MAX_RINGS)) {
        roll_pack_fail(c, ROLL_E_CORRUPT);
        return NULL;
    }
    if (number == m->rings) {
        int err = ROLL_GROW(m->ring, m->room, m->rings + 1);
        if (err) {
            roll_pack_fail(c, err);
            return NULL;
        }
        m->ring[m->rings++] = (struct pack_ring){.epoch = head->stream};
        roll_pack_code_bytes(c, PACK_RAW, &m->ring[number].epoch, sizeof(uint64_t));
    }
    m->last = number;
    head->stream = m->ring[number].epoch;
    return &m->ring[number];
}

static bool followed(const struct roll_pack_model *m, uint64_t epoch)
{
    if (m->rings < MAX_RINGS) {
        return true;
    }
    for (size_t i = 0; i < m->rings; i++) {
        if (m->ring[i].epoch == epoch) {
            return true;
        }
    }
    return false;
}

/* Codes a frame's number. Senders number their frames: one sender goes on by one, several do so each on its own. */
static void code_seq(struct roll_pack_model *m, struct roll_pack_coder *c, struct pack_ring *ring, uint64_t *seq)
{
    uint64_t near = m->seq - ring->seq < 1024 ? m->seq : ring->seq;
    roll_pack_code_number(c, PACK_FRAME, near + 1, seq);
    m->seq = ring->seq = *seq;
}

/* frames */

/* Room for the records of one frame, aligned, because a payload may lie at any address. NULL: the coder has failed. */
static struct roll_record *scratch(struct roll_pack_model *m, struct roll_pack_coder *c, size_t count)
{
    int err = ROLL_GROW(m->scratch, m->scratch_room, count);
    if (err) {
        roll_pack_fail(c, err);
    }
    return err ? NULL : m->scratch;
}

/* Codes the records of a frame. A reader leaves them in m->scratch, a writer takes them from `payload`. `most`: how
 * many a reader accepts. */
static void code_record_frame(struct roll_pack_model *m, struct roll_pack_coder *c, uint8_t kind,
                              struct roll_frame_head *head, const void *payload, size_t most)
{
    struct pack_ring *ring = code_ring(m, c, head);
    uint64_t count = head->count;
    if (!ring) {
        return;
    }
    code_seq(m, c, ring, &head->seq);
    roll_pack_code_number(c, PACK_FRAME, 1, &count);
    if (!c->err && (count > most || count == 0)) {
        roll_pack_fail(c, ROLL_E_LIMIT);
    }
    struct roll_record *recs = c->err ? NULL : scratch(m, c, count);
    if (!recs) {
        return;
    }
    if (c->reading) {
        memset(recs, 0, count * sizeof(*recs));
    } else {
        memcpy(recs, payload, count * sizeof(*recs));
    }
    head->count = (uint32_t)count;
    if (kind == KIND_UPDATES) {
        for (size_t i = 0; i < count && !c->err; i++) {
            roll_pack_code_update(m, c, ring, &recs[i]);
        }
        head->first = count && !c->err ? roll_seal_ticket(recs[0].seal) : 0;
        return;
    }
    roll_pack_code_number(c, PACK_FRAME, ring->next_ticket, &head->first);
    uint64_t ticket = head->first;
    for (size_t i = 0; i < count && !c->err; i++, ticket++) {
        if (kind == KIND_RECORDS_GAPS) {
            uint64_t predicted = ticket;
            ticket = c->reading ? ticket : roll_seal_ticket(recs[i].seal);
            roll_pack_code_number(c, PACK_FRAME, predicted, &ticket);
        }
        roll_pack_code_record(m, c, ring, ticket, &recs[i]);
    }
}

static void code_tick(struct roll_pack_model *m, struct roll_pack_coder *c, uint8_t kind, struct roll_frame_head *head,
                      uint64_t *real_ns)
{
    uint64_t grain = kind == KIND_TICK_COARSE ? GRAIN_NS : 1;
    uint64_t seq = head->seq / grain, real = *real_ns / grain, seq0 = m->tick_seq / grain, real0 = m->tick_real / grain;
    roll_pack_code_number(c, PACK_STATE, seq0, &seq);
    roll_pack_code_number(c, PACK_STATE, real0 + (seq - seq0), &real);
    roll_pack_code_number(c, PACK_STATE, 0, &head->first);
    m->tick_seq = head->seq = seq * grain;
    m->tick_real = *real_ns = real * grain;
}

static void code_status(struct roll_pack_model *m, struct roll_pack_coder *c, struct roll_frame_head *head,
                        struct roll_frame_status *status)
{
    struct pack_ring *ring = code_ring(m, c, head);
    if (!ring) {
        return;
    }
    code_seq(m, c, ring, &head->seq);
    const struct roll_frame_status *last = &ring->status;
    uint64_t mono = status->clock_mono_ns, real = status->clock_real_ns, passed = m->tick_real - ring->status_real_ns;
    roll_pack_code_number(c, PACK_STATE, last->clock_mono_ns + passed, &mono);
    roll_pack_code_number(c, PACK_STATE, last->clock_real_ns + (mono - last->clock_mono_ns), &real);
    struct roll_frame_status as = *last;
    as.head = ring->next_ticket;
    as.clock_mono_ns = mono;
    as.clock_real_ns = real;
    uint64_t other = !c->reading && memcmp(&as, status, sizeof(as)) != 0;
    roll_pack_code_number(c, PACK_STATE, 0, &other);
    if (other) {
        roll_pack_code_bytes(c, PACK_RAW, status, sizeof(*status));
    } else {
        *status = as;
    }
    ring->status = *status;
    ring->status_real_ns = m->tick_real;
}

static bool plain_head(const struct roll_frame_head *h)
{
    return h->flags == 0 && h->reserved == 0 && h->hdr_len == ROLL_FRAME_HEAD_BYTES && h->minor == roll_frame_minor(h);
}

/* The kind by which a frame is written; RAW when anything in the frame is not as our own writers make it. */
static uint8_t kind_of(const struct roll_pack_model *m, const struct roll_frame *frame)
{
    const struct roll_frame_head *h = &frame->head;
    if (!plain_head(h)) {
        return KIND_RAW;
    }
    if (h->type == ROLL_FRAME_TICK && h->payload == sizeof(uint64_t) && h->stream == 0) {
        uint64_t real;
        memcpy(&real, frame->payload, sizeof(real));
        return h->seq % GRAIN_NS == 0 && real % GRAIN_NS == 0 && m->tick_seq % GRAIN_NS == 0 &&
                       m->tick_real % GRAIN_NS == 0
                   ? KIND_TICK_COARSE
                   : KIND_TICK;
    }
    if (!followed(m, h->stream)) {
        return KIND_RAW;
    }
    if (h->type == ROLL_FRAME_STATUS && h->payload == sizeof(struct roll_frame_status) && h->first == 0) {
        return KIND_STATUS;
    }
    bool updates = h->type == ROLL_FRAME_UPDATES;
    if ((!updates && h->type != ROLL_FRAME_RECORDS) || h->rec_size != ROLL_RECORD_BYTES || h->count == 0) {
        return KIND_RAW;
    }
    struct roll_record first, last;
    roll_frame_record(frame, 0, &first);
    roll_frame_record(frame, h->count - 1, &last);
    if (updates) {
        return h->first == roll_seal_ticket(first.seal) ? KIND_UPDATES : KIND_RAW;
    }
    return roll_seal_ticket(last.seal) - h->first == h->count - 1 ? KIND_RECORDS : KIND_RECORDS_GAPS;
}

static void code_raw(struct roll_pack_coder *c, uint8_t *bytes, uint64_t *n, size_t room)
{
    roll_pack_code_number(c, PACK_FRAME, 0, n);
    if (!c->err && *n > room) {
        roll_pack_fail(c, ROLL_E_LIMIT);
    }
    if (!c->err) {
        roll_pack_code_bytes(c, PACK_RAW, bytes, *n);
    }
}

void roll_pack_write(struct roll_pack_model *m, struct roll_pack_coder *c, const struct roll_frame *frame,
                     const void *raw, size_t bytes)
{
    struct roll_frame_head head = frame->head;
    uint8_t kind = kind_of(m, frame);
    uint64_t n = bytes, real;
    struct roll_frame_status status;
    m->used = true;
    roll_pack_code_byte(c, PACK_KIND, &kind);
    switch (kind) {
    case KIND_TICK:
    case KIND_TICK_COARSE:
        memcpy(&real, frame->payload, sizeof(real));
        code_tick(m, c, kind, &head, &real);
        break;
    case KIND_STATUS:
        memcpy(&status, frame->payload, sizeof(status));
        code_status(m, c, &head, &status);
        break;
    case KIND_RAW:
        code_raw(c, (uint8_t *)(uintptr_t)raw, &n, bytes); /* a writing coder only reads `raw` */
        break;
    default:
        code_record_frame(m, c, kind, &head, frame->payload, head.count);
        break;
    }
}

int64_t roll_pack_read(struct roll_pack_model *m, struct roll_pack_coder *c, uint8_t *out, size_t out_bytes)
{
    struct roll_frame_head head = {0};
    struct roll_frame_status status = {0};
    uint8_t kind = KIND_RAW;
    uint64_t n = 0, real = 0;
    if (out_bytes < ROLL_FRAME_HEAD_BYTES) {
        return ROLL_E_LIMIT;
    }
    size_t room = out_bytes - ROLL_FRAME_HEAD_BYTES;
    const void *payload = NULL;
    m->used = true;
    roll_pack_code_byte(c, PACK_KIND, &kind);
    if (kind >= KIND_LIMIT) {
        roll_pack_fail(c, ROLL_E_CORRUPT);
    }
    if (c->err) {
        return c->err;
    }
    switch (kind) {
    case KIND_TICK:
    case KIND_TICK_COARSE:
        code_tick(m, c, kind, &head, &real);
        head.type = ROLL_FRAME_TICK;
        payload = &real;
        n = sizeof(real);
        break;
    case KIND_STATUS:
        code_status(m, c, &head, &status);
        head.type = ROLL_FRAME_STATUS;
        payload = &status;
        n = sizeof(status);
        break;
    case KIND_RAW:
        code_raw(c, out, &n, out_bytes);
        return c->err ? c->err : (int64_t)n;
    default:
        head.type = kind == KIND_UPDATES ? ROLL_FRAME_UPDATES : ROLL_FRAME_RECORDS;
        code_record_frame(m, c, kind, &head, NULL, room / ROLL_RECORD_BYTES);
        payload = m->scratch;
        n = (uint64_t)head.count * ROLL_RECORD_BYTES;
        break;
    }
    if (c->err) {
        return c->err;
    }
    int64_t wrote = roll_frame_encode(&head, payload, n, out, out_bytes);
    return wrote == ROLL_E_SIZE ? ROLL_E_LIMIT : wrote;
}
