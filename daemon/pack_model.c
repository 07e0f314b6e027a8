/*
 * pack_model.c: what repeats in a trace, so that only what does not repeat is written.
 *
 * A training job makes the same calls again and again. What a record says besides its times and counters is its signature; three signatures
 * in a row say which comes next, and with it how the counters move, how large the count was the last time and how long the call and the pause
 * before it took. What is as predicted costs a zero in a column of zeros. What is left are the times: their noise is most of the file.
 * Both directions run the same lines (pack_coder.h), and nothing is dropped: a frame that the model has no words for is kept as it is.
 *
 * A general compressor over 64-byte records was rejected: it cannot see that a clock that goes on is news only where it differs from the last step.
 */
#include "daemon/pack_model.h"

#include "trace/err.h"
#include "trace/ring.h"

#include <stdlib.h>
#include <string.h>

#define MAX_RINGS      4096u   /* followed; frames of further ones are kept as they are */
#define MAX_SIGNATURES 65536u  /* listed; further ones are written out each time */
#define SLOTS          131072u /* of the index of signatures: a power of two, at most half full */
#define PLACES         65536u  /* places in the pattern of calls; two that meet only predict each other badly */
#define OPEN           64u     /* calls of one ring that were sent as entered and are remembered */
#define NO_SIGNATURE   MAX_SIGNATURES
#define GRAIN_NS       100000u /* to which the root rounds the times of its ticks */
#define DRIFT          4       /* a prediction of time takes this part of what it missed */

enum { KIND_RAW, KIND_RECORDS, KIND_RECORDS_GAPS, KIND_UPDATES, KIND_TICK, KIND_TICK_COARSE, KIND_STATUS, KIND_LIMIT };

enum {
    MISS_SIGNATURE = 1,
    MISS_COUNT = 2,
    MISS_SEQ = 4,
    MISS_GROUP = 8,
    MISS_STEP = 16,
    MISS_AUX = 32,
    MISS_STATE = 64
};
enum { UPDATE_PLACE = 1, UPDATE_STATE = 2, UPDATE_OTHER = 4 };

struct signature {
    int32_t peer;
    uint16_t comm, stream, callsite, thread, layer, microbatch;
    uint8_t op, dtype, redop, flags, phase, pad[3];
};
_Static_assert(sizeof(struct signature) == 24, "compared as bytes");

/* What was true the last time at a place in the pattern of calls. */
struct place {
    uint64_t count, gap_ns, call_ns, seq_step, group_step, step_step;
    uint16_t aux;
    bool seen;
};

struct open_call {
    struct roll_record rec;
    uint32_t place;
    uint64_t bound_ns; /* what the next call's beginning says about this one's end; 0 = nothing yet */
};

struct ring {
    uint64_t epoch, seq, next_ticket;
    uint32_t history[3]; /* signatures, newest first */
    uint32_t group, step, place, call_ns;
    uint64_t enter_ns;
    struct roll_frame_status status;
    uint64_t status_real_ns; /* of the tick before it */
    struct open_call *open;  /* by ticket, ascending; NULL until there is one */
    unsigned opened;
};

struct roll_pack_model {
    uint64_t seq; /* of the last frame of any ring */
    uint64_t tick_seq, tick_real;
    struct ring *ring; /* in the order of their first frame */
    size_t rings, room;
    size_t last;                 /* the ring of the last frame */
    struct roll_record *scratch; /* records of the frame that is coded */
    size_t scratch_room;
    struct signature signature[MAX_SIGNATURES];
    uint32_t signatures;
    uint32_t slot[SLOTS];  /* number of a signature + 1 */
    uint32_t next[PLACES]; /* by place: the signature that followed, + 1 */
    struct place place[PLACES];
    uint64_t counter[PLACES]; /* last sequence number by ring, communicator, peer and direction */
};

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

void roll_pack_model_reset(struct roll_pack_model *m)
{
    struct roll_record *scratch = m->scratch;
    size_t room = m->scratch_room;
    forget_rings(m);
    memset(m, 0, sizeof *m);
    m->scratch = scratch;
    m->scratch_room = room;
}

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

/* ---- rings ---- */

/* The ring of the frame that is coded. NULL when it is not followed (writing) or on an error. */
static struct ring *code_ring(struct roll_pack_model *m, struct roll_pack_coder *c, struct roll_frame_head *head)
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
        if (m->rings == m->room) {
            size_t room = m->room ? 2 * m->room : 16;
            struct ring *grown = realloc(m->ring, room * sizeof *grown);
            if (!grown) {
                roll_pack_fail(c, ROLL_E_NOMEM);
                return NULL;
            }
            m->ring = grown;
            m->room = room;
        }
        m->ring[m->rings++] = (struct ring){.epoch = head->stream};
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

/* Senders number their frames: one sender goes on by one, several do so each on its own. */
static void code_seq(struct roll_pack_model *m, struct roll_pack_coder *c, struct ring *ring, uint64_t *seq)
{
    uint64_t near = m->seq - ring->seq < 1024 ? m->seq : ring->seq;
    roll_pack_code_number(c, PACK_FRAME, near + 1, seq);
    m->seq = ring->seq = *seq;
}

/* ---- signatures ---- */

static struct signature signature_of(const struct roll_record *r)
{
    return (struct signature){.peer = r->peer,
                              .comm = r->comm,
                              .stream = r->stream,
                              .callsite = r->callsite,
                              .thread = r->thread,
                              .layer = r->layer,
                              .microbatch = r->microbatch,
                              .op = r->op,
                              .dtype = r->dtype,
                              .redop = r->redop,
                              .flags = r->flags,
                              .phase = r->phase};
}

static void apply_signature(const struct signature *s, struct roll_record *r)
{
    r->peer = s->peer;
    r->comm = s->comm;
    r->stream = s->stream;
    r->callsite = s->callsite;
    r->thread = s->thread;
    r->layer = s->layer;
    r->microbatch = s->microbatch;
    r->op = s->op;
    r->dtype = s->dtype;
    r->redop = s->redop;
    r->flags = s->flags;
    r->phase = s->phase;
}

static uint64_t hash_signature(const struct signature *s)
{
    uint64_t word[3];
    memcpy(word, s, sizeof word);
    return mix(mix(mix(0, word[0]), word[1]), word[2]);
}

/* Its number, or that of the next to be listed. */
static uint32_t find_signature(const struct roll_pack_model *m, const struct signature *s, size_t *slot)
{
    size_t i = (size_t)(hash_signature(s) >> 32) & (SLOTS - 1);
    while (m->slot[i] != 0 && memcmp(&m->signature[m->slot[i] - 1], s, sizeof *s) != 0) {
        i = (i + 1) & (SLOTS - 1);
    }
    *slot = i;
    return m->slot[i] ? m->slot[i] - 1 : m->signatures;
}

/* The signature `number` was not predicted: writes or reads it, and lists it when it is new. */
static uint32_t code_signature(struct roll_pack_model *m, struct roll_pack_coder *c, uint32_t number,
                               struct signature *s)
{
    uint64_t wide = number;
    roll_pack_code_number(c, PACK_NUMBER, 0, &wide);
    if (wide > m->signatures) {
        roll_pack_fail(c, ROLL_E_CORRUPT);
    }
    if (c->err) {
        return 0;
    }
    if (wide < m->signatures) {
        *s = m->signature[wide];
        return (uint32_t)wide;
    }
    size_t slot;
    roll_pack_code_bytes(c, PACK_RAW, s, sizeof *s);
    if (m->signatures < MAX_SIGNATURES && find_signature(m, s, &slot) == m->signatures) {
        m->signature[m->signatures++] = *s;
        m->slot[slot] = m->signatures;
        return m->signatures - 1;
    }
    return NO_SIGNATURE;
}

/* ---- records ---- */

static uint64_t *counter_of(struct roll_pack_model *m, const struct ring *ring, const struct signature *s)
{
    uint64_t key = mix(mix(ring->epoch, s->comm), s->peer < 0 ? 0 : (uint64_t)s->op << 32 | (uint32_t)s->peer);
    return &m->counter[(key >> 32) & (PLACES - 1)];
}

static bool is_open(const struct ring *ring, uint64_t ticket)
{
    return ring->opened > 0 && roll_seal_ticket(ring->open[ring->opened - 1].rec.seal) == ticket;
}

static void remember_open(struct roll_pack_coder *c, struct ring *ring, const struct roll_record *r, uint32_t place)
{
    if (!ring->open && !(ring->open = malloc(OPEN * sizeof *ring->open))) {
        roll_pack_fail(c, ROLL_E_NOMEM);
        return;
    }
    if (ring->opened == OPEN) { /* the oldest waits for somebody: its end will be written in full */
        memmove(ring->open, ring->open + 1, (OPEN - 1) * sizeof *ring->open);
        ring->opened--;
    }
    ring->open[ring->opened++] = (struct open_call){.rec = *r, .place = place};
}

static void drift(uint64_t *predicted, uint64_t value, bool seen)
{
    int64_t off = (int64_t)(value - *predicted);
    *predicted = seen ? *predicted + (uint64_t)(off / DRIFT) : value;
}

/* When the call was entered: after the call before it, whose end may not be known yet. */
static void code_enter(struct roll_pack_model *m, struct roll_pack_coder *c, struct ring *ring, struct place *p,
                       struct roll_record *r)
{
    bool before_open = is_open(ring, ring->next_ticket - 1);
    uint64_t call = before_open ? m->place[ring->place].call_ns : ring->call_ns;
    uint64_t wide = r->enter_ns;
    roll_pack_code_number(c, PACK_GAP, ring->enter_ns + call + p->gap_ns, &wide);
    r->enter_ns = wide;
    uint64_t passed = wide - ring->enter_ns;
    if (before_open) {
        ring->open[ring->opened - 1].bound_ns = (int64_t)(passed - p->gap_ns) > 0 ? passed - p->gap_ns : 0;
    } else {
        drift(&p->gap_ns, passed - call, p->seen);
    }
}

static void code_duration(struct roll_pack_coder *c, uint64_t predicted, struct place *p, struct roll_record *r)
{
    uint64_t wide = r->call_ns;
    roll_pack_code_number(c, PACK_CALL, predicted, &wide);
    r->call_ns = (uint32_t)wide;
    if (roll_seal_state(r->seal) != ROLL_STATE_ENTERED) {
        drift(&p->call_ns, r->call_ns, p->seen);
    }
}

/* State and result; *state is the low byte of the seal. */
static void code_state(struct roll_pack_coder *c, uint8_t *state, uint8_t *result)
{
    uint64_t wide = *state;
    roll_pack_code_number(c, PACK_NUMBER, ROLL_STATE_ENTERED, &wide);
    *state = (uint8_t)wide;
    wide = *result;
    roll_pack_code_number(c, PACK_NUMBER, 0, &wide);
    *result = (uint8_t)wide;
}

static uint64_t code_missed(struct roll_pack_coder *c, uint8_t miss, uint8_t bit, uint64_t predicted, uint64_t value)
{
    if (!(miss & bit)) {
        return predicted;
    }
    roll_pack_code_number(c, PACK_NUMBER, predicted, &value);
    return value;
}

struct prediction {
    uint64_t count, seq, group, step, aux;
};

static struct prediction predict(const struct ring *ring, const struct place *p, uint64_t counter)
{
    return (struct prediction){.count = p->count,
                               .seq = (uint32_t)(counter + p->seq_step),
                               .group = (uint32_t)(ring->group + p->group_step),
                               .step = (uint32_t)(ring->step + p->step_step),
                               .aux = p->aux};
}

static uint8_t missed(const struct roll_record *r, const struct prediction *as, bool plain)
{
    return (uint8_t)((r->count != as->count ? MISS_COUNT : 0) | (r->seq != as->seq ? MISS_SEQ : 0) |
                     (r->group != as->group ? MISS_GROUP : 0) | (r->step != as->step ? MISS_STEP : 0) |
                     (r->aux != as->aux ? MISS_AUX : 0) | (plain ? 0 : MISS_STATE));
}

static uint32_t place_of(const struct ring *ring, uint64_t signature)
{
    uint64_t h = mix(mix(mix(ring->epoch, ring->history[0]), ring->history[1]), ring->history[2]);
    return (uint32_t)(mix(h, signature) >> 32) & (PLACES - 1);
}

static void code_record(struct roll_pack_model *m, struct roll_pack_coder *c, struct ring *ring, uint64_t ticket,
                        struct roll_record *r)
{
    uint32_t *next = &m->next[place_of(ring, UINT64_MAX)];
    uint32_t number = *next ? *next - 1 : NO_SIGNATURE;
    struct signature s = {0};
    uint8_t miss = 0, state = (uint8_t)r->seal;
    size_t slot;
    if (!c->reading) {
        s = signature_of(r);
        uint32_t mine = find_signature(m, &s, &slot);
        bool known = *next && mine == number && mine < m->signatures;
        miss = known ? 0 : MISS_SIGNATURE;
        uint32_t listed = mine < m->signatures ? mine : (m->signatures < MAX_SIGNATURES ? m->signatures : NO_SIGNATURE);
        const struct place *p = &m->place[place_of(ring, listed)];
        struct prediction as = predict(ring, p, *counter_of(m, ring, &s));
        miss |= missed(r, &as, state == ROLL_STATE_RETURNED && r->result == 0);
        number = mine;
    }
    roll_pack_code_byte(c, PACK_MISS, &miss);
    if (miss & MISS_SIGNATURE) {
        number = code_signature(m, c, number, &s);
    } else if (number >= m->signatures) {
        roll_pack_fail(c, ROLL_E_CORRUPT);
    } else {
        s = m->signature[number];
    }
    if (c->err) {
        return;
    }
    uint32_t place = place_of(ring, number);
    struct place *p = &m->place[place];
    uint64_t *counter = counter_of(m, ring, &s);
    struct prediction as = predict(ring, p, *counter);
    if (c->reading) {
        memset(r, 0, sizeof *r);
        apply_signature(&s, r);
        state = ROLL_STATE_RETURNED;
    }
    r->count = code_missed(c, miss, MISS_COUNT, as.count, r->count);
    r->seq = (uint32_t)code_missed(c, miss, MISS_SEQ, as.seq, r->seq);
    r->group = (uint32_t)code_missed(c, miss, MISS_GROUP, as.group, r->group);
    r->step = (uint32_t)code_missed(c, miss, MISS_STEP, as.step, r->step);
    r->aux = (uint16_t)code_missed(c, miss, MISS_AUX, as.aux, r->aux);
    if (miss & MISS_STATE) {
        code_state(c, &state, &r->result);
    }
    r->seal = roll_seal(ticket, (enum roll_state)state);
    code_enter(m, c, ring, p, r);
    bool entered = state == ROLL_STATE_ENTERED;
    code_duration(c, entered ? 0 : p->call_ns, p, r);
    p->count = r->count;
    p->aux = r->aux;
    p->seq_step = r->seq - *counter;
    p->group_step = (uint64_t)r->group - ring->group;
    p->step_step = (uint64_t)r->step - ring->step;
    p->seen = p->seen || !entered;
    *counter = r->seq;
    *next = number + 1;
    ring->group = r->group;
    ring->step = r->step;
    ring->enter_ns = r->enter_ns;
    ring->call_ns = r->call_ns;
    ring->place = place;
    ring->next_ticket = ticket + 1;
    ring->history[2] = ring->history[1];
    ring->history[1] = ring->history[0];
    ring->history[0] = number;
    if (entered) {
        remember_open(c, ring, r, place);
    }
}

static unsigned find_open(const struct ring *ring, uint64_t ticket)
{
    unsigned i = 0;
    while (i < ring->opened && roll_seal_ticket(ring->open[i].rec.seal) != ticket) {
        i++;
    }
    return i;
}

static bool differs_otherwise(const struct roll_record *a, const struct roll_record *b)
{
    struct roll_record same = *b;
    same.seal = a->seal;
    same.call_ns = a->call_ns;
    same.result = a->result;
    return memcmp(a, &same, sizeof same) != 0;
}

/* A record that was sent as entered comes once more. */
static void code_update(struct roll_pack_model *m, struct roll_pack_coder *c, struct ring *ring, struct roll_record *r)
{
    uint8_t miss = 0, state = ROLL_STATE_RETURNED;
    uint64_t at = 0;
    if (!c->reading) {
        state = (uint8_t)r->seal;
        at = find_open(ring, roll_seal_ticket(r->seal));
        bool other = at == ring->opened || differs_otherwise(&ring->open[at].rec, r);
        miss = (uint8_t)((at ? UPDATE_PLACE : 0) | (state != ROLL_STATE_RETURNED || r->result ? UPDATE_STATE : 0) |
                         (other ? UPDATE_OTHER : 0));
    }
    roll_pack_code_byte(c, PACK_MISS, &miss);
    if (miss & UPDATE_OTHER) {
        roll_pack_code_bytes(c, PACK_RAW, r, sizeof *r);
        if (c->err) {
            return;
        }
        at = find_open(ring, roll_seal_ticket(r->seal));
    } else {
        if (miss & UPDATE_PLACE) {
            roll_pack_code_number(c, PACK_NUMBER, 0, &at);
        }
        if (at >= ring->opened) {
            roll_pack_fail(c, ROLL_E_CORRUPT);
            return;
        }
        const struct open_call *open = &ring->open[at];
        struct place *p = &m->place[open->place];
        if (c->reading) {
            *r = open->rec;
            r->result = 0;
        }
        if (miss & UPDATE_STATE) {
            code_state(c, &state, &r->result);
        }
        r->seal = roll_seal(roll_seal_ticket(open->rec.seal), (enum roll_state)state);
        code_duration(c, open->bound_ns ? open->bound_ns : p->call_ns, p, r);
        p->seen = true;
    }
    if (at < ring->opened) {
        bool newest = at + 1 == ring->opened && roll_seal_ticket(r->seal) + 1 == ring->next_ticket;
        ring->call_ns = newest ? r->call_ns : ring->call_ns;
        memmove(ring->open + at, ring->open + at + 1, (ring->opened - at - 1) * sizeof *ring->open);
        ring->opened--;
    }
}

/* ---- frames ---- */

/* Room for the records of one frame, aligned; a payload lies anywhere. NULL: the coder has failed. */
static struct roll_record *scratch(struct roll_pack_model *m, struct roll_pack_coder *c, size_t count)
{
    if (count > m->scratch_room) {
        struct roll_record *grown = realloc(m->scratch, count * sizeof *grown);
        if (!grown) {
            roll_pack_fail(c, ROLL_E_NOMEM);
            return NULL;
        }
        m->scratch = grown;
        m->scratch_room = count;
    }
    return m->scratch;
}

/* The records are in m->scratch when they have been read, and are taken from `payload` when they are written. `most`: of a reader. */
static void code_record_frame(struct roll_pack_model *m, struct roll_pack_coder *c, uint8_t kind,
                              struct roll_frame_head *head, const void *payload, size_t most)
{
    struct ring *ring = code_ring(m, c, head);
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
        memset(recs, 0, count * sizeof *recs);
    } else {
        memcpy(recs, payload, count * sizeof *recs);
    }
    head->count = (uint32_t)count;
    if (kind == KIND_UPDATES) {
        for (size_t i = 0; i < count && !c->err; i++) {
            code_update(m, c, ring, &recs[i]);
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
        code_record(m, c, ring, ticket, &recs[i]);
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
    struct ring *ring = code_ring(m, c, head);
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
    uint64_t other = !c->reading && memcmp(&as, status, sizeof as) != 0;
    roll_pack_code_number(c, PACK_STATE, 0, &other);
    if (other) {
        roll_pack_code_bytes(c, PACK_RAW, status, sizeof *status);
    } else {
        *status = as;
    }
    ring->status = *status;
    ring->status_real_ns = m->tick_real;
}

static bool plain_head(const struct roll_frame_head *h)
{
    return h->flags == 0 && h->reserved == 0 && h->hdr_len == ROLL_FRAME_HEAD_BYTES && h->minor == ROLL_FRAME_MINOR;
}

/* How a frame is written; RAW when anything about it is not as our own writers make it. */
static uint8_t kind_of(const struct roll_pack_model *m, const struct roll_frame *frame)
{
    const struct roll_frame_head *h = &frame->head;
    if (!plain_head(h)) {
        return KIND_RAW;
    }
    if (h->type == ROLL_FRAME_TICK && h->payload == sizeof(uint64_t) && h->stream == 0) {
        uint64_t real;
        memcpy(&real, frame->payload, sizeof real);
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
    roll_pack_code_byte(c, PACK_KIND, &kind);
    switch (kind) {
    case KIND_TICK:
    case KIND_TICK_COARSE:
        memcpy(&real, frame->payload, sizeof real);
        code_tick(m, c, kind, &head, &real);
        break;
    case KIND_STATUS:
        memcpy(&status, frame->payload, sizeof status);
        code_status(m, c, &head, &status);
        break;
    case KIND_RAW:
        code_raw(c, (uint8_t *)(uintptr_t)raw, &n, bytes); /* writing only reads it */
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
        n = sizeof real;
        break;
    case KIND_STATUS:
        code_status(m, c, &head, &status);
        head.type = ROLL_FRAME_STATUS;
        payload = &status;
        n = sizeof status;
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
