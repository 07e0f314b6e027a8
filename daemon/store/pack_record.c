/*
 * pack_record.c: predicts the fields of a record, and codes those that were not predicted.
 *
 * The signature of a record is everything except its times and counters. Three signatures in a row predict which comes
 * next, how the counters move, how large the count is, and how long the call and the pause before it take. A longer
 * history was rejected: three calls tell one layer from the next, and a longer history makes every change of the
 * pattern cost more.
 */
#include "daemon/store/pack_inside.h"

#include "trace/err.h"

#include <stdlib.h>
#include <string.h>

#define NO_SIGNATURE MAX_SIGNATURES
#define DRIFT        4 /* a predicted time moves by this part of its error */

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

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

/* signatures */

static struct pack_signature signature_of(const struct roll_record *r)
{
    return (struct pack_signature){.peer = r->peer,
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

static void apply_signature(const struct pack_signature *s, struct roll_record *r)
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

static uint64_t hash_signature(const struct pack_signature *s)
{
    uint64_t word[3];
    memcpy(word, s, sizeof(word));
    return mix(mix(mix(0, word[0]), word[1]), word[2]);
}

/* The number of a signature, or the number that the next listed one gets. */
static uint32_t find_signature(const struct roll_pack_model *m, const struct pack_signature *s, size_t *slot)
{
    size_t i = (size_t)(hash_signature(s) >> 32) & (SLOTS - 1);
    while (m->slot[i] != 0 && memcmp(&m->signature[m->slot[i] - 1], s, sizeof(*s)) != 0) {
        i = (i + 1) & (SLOTS - 1);
    }
    *slot = i;
    return m->slot[i] ? m->slot[i] - 1 : m->signatures;
}

/* Codes the signature `number`, which was not predicted, and lists it when it is new. */
static uint32_t code_signature(struct roll_pack_model *m, struct roll_pack_coder *c, uint32_t number,
                               struct pack_signature *s)
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
    roll_pack_code_bytes(c, PACK_RAW, s, sizeof(*s));
    if (m->signatures < MAX_SIGNATURES && find_signature(m, s, &slot) == m->signatures) {
        m->signature[m->signatures++] = *s;
        m->slot[slot] = m->signatures;
        return m->signatures - 1;
    }
    return NO_SIGNATURE;
}

/* records */

static uint64_t *counter_of(struct roll_pack_model *m, const struct pack_ring *ring, const struct pack_signature *s)
{
    uint64_t key = mix(mix(ring->epoch, s->comm), s->peer < 0 ? 0 : (uint64_t)s->op << 32 | (uint32_t)s->peer);
    return &m->counter[(key >> 32) & (PLACES - 1)];
}

static bool is_open(const struct pack_ring *ring, uint64_t ticket)
{
    return ring->opened > 0 && roll_seal_ticket(ring->open[ring->opened - 1].rec.seal) == ticket;
}

static void remember_open(struct roll_pack_coder *c, struct pack_ring *ring, const struct roll_record *r,
                          uint32_t place)
{
    if (!ring->open && !(ring->open = malloc(OPEN * sizeof(*ring->open)))) {
        roll_pack_fail(c, ROLL_E_NOMEM);
        return;
    }
    if (ring->opened == OPEN) { /* the oldest open call waits for long; its update will be written in full */
        memmove(ring->open, ring->open + 1, (OPEN - 1) * sizeof(*ring->open));
        ring->opened--;
    }
    ring->open[ring->opened++] = (struct pack_open_call){.rec = *r, .place = place};
}

static void drift(uint64_t *predicted, uint64_t value, bool seen)
{
    int64_t off = (int64_t)(value - *predicted);
    *predicted = seen ? *predicted + (uint64_t)(off / DRIFT) : value;
}

/* Codes when the call was entered. That is predicted from the end of the call before, which may not be known yet. */
static void code_enter(struct roll_pack_model *m, struct roll_pack_coder *c, struct pack_ring *ring,
                       struct pack_place *p, struct roll_record *r)
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

static void code_duration(struct roll_pack_coder *c, uint64_t predicted, struct pack_place *p, struct roll_record *r)
{
    uint64_t wide = r->call_ns;
    roll_pack_code_number(c, PACK_CALL, predicted, &wide);
    r->call_ns = (uint32_t)wide;
    if (roll_seal_state(r->seal) != ROLL_STATE_ENTERED) {
        drift(&p->call_ns, r->call_ns, p->seen);
    }
}

/* Codes state and result; *state is the low byte of the seal. */
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

static struct prediction predict(const struct pack_ring *ring, const struct pack_place *p, uint64_t counter)
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

static uint32_t place_of(const struct pack_ring *ring, uint64_t signature)
{
    uint64_t h = mix(mix(mix(ring->epoch, ring->history[0]), ring->history[1]), ring->history[2]);
    return (uint32_t)(mix(h, signature) >> 32) & (PLACES - 1);
}

void roll_pack_code_record(struct roll_pack_model *m, struct roll_pack_coder *c, struct pack_ring *ring,
                           uint64_t ticket, struct roll_record *r)
{
    uint32_t *next = &m->next[place_of(ring, UINT64_MAX)];
    uint32_t number = *next ? *next - 1 : NO_SIGNATURE;
    struct pack_signature s = {0};
    uint8_t miss = 0, state = (uint8_t)r->seal;
    size_t slot;
    if (!c->reading) {
        s = signature_of(r);
        uint32_t mine = find_signature(m, &s, &slot);
        bool known = *next && mine == number && mine < m->signatures;
        miss = known ? 0 : MISS_SIGNATURE;
        uint32_t listed = mine < m->signatures ? mine : (m->signatures < MAX_SIGNATURES ? m->signatures : NO_SIGNATURE);
        const struct pack_place *p = &m->place[place_of(ring, listed)];
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
    struct pack_place *p = &m->place[place];
    uint64_t *counter = counter_of(m, ring, &s);
    struct prediction as = predict(ring, p, *counter);
    if (c->reading) {
        memset(r, 0, sizeof(*r));
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

static unsigned find_open(const struct pack_ring *ring, uint64_t ticket)
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
    return memcmp(a, &same, sizeof(same)) != 0;
}

/* Codes an update: a record that was sent as entered comes once more. */
void roll_pack_code_update(struct roll_pack_model *m, struct roll_pack_coder *c, struct pack_ring *ring,
                           struct roll_record *r)
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
        roll_pack_code_bytes(c, PACK_RAW, r, sizeof(*r));
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
        const struct pack_open_call *open = &ring->open[at];
        struct pack_place *p = &m->place[open->place];
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
        memmove(ring->open + at, ring->open + at + 1, (ring->opened - at - 1) * sizeof(*ring->open));
        ring->opened--;
    }
}
