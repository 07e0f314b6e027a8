/*
 * match.c: the fast path: one collective record meets its slot.
 *
 * What NCCL compares in effect is folded into 64 bits (trace/signature.h), so the common case costs one index, one
 * comparison and one increment. Field-by-field comparison happens only after a difference.
 */
#include "daemon/engine/match/match.h"
#include "daemon/engine/detect/detector.h"
#include "trace/signature.h"

#include <stdlib.h>
#include <string.h>

/* No communicator lives so long; a number beyond comes from a damaged record. */
#define SEQ_MAX (UINT32_MAX - (1u << 24))

uint64_t match_signature(const struct roll_record *rec)
{
    struct roll_signed_call call = {.count = rec->count,
                                    .peer = rec->peer,
                                    .op = rec->op,
                                    .dtype = rec->dtype,
                                    .redop = rec->redop,
                                    .flags = rec->flags};
    return roll_signature(&call);
}

static uint32_t variant_new(struct roll_engine *e)
{
    uint32_t at = e->variant_free;
    if (at != 0) {
        e->variant_free = e->variant[at - 1].next;
        return at;
    }
    if (e->variants == e->variant_room) {
        uint32_t room = e->variant_room ? e->variant_room * 2 : 64;
        struct variant *table = realloc(e->variant, room * sizeof(*table));
        if (!table) {
            return 0;
        }
        e->variant = table;
        e->variant_room = room;
    }
    return ++e->variants;
}

void match_release(struct roll_engine *e, struct comm *c, struct slot *s)
{
    (void)c;
    while (s->variant != 0) {
        uint32_t at = s->variant;
        s->variant = e->variant[at - 1].next;
        e->variant[at - 1].next = e->variant_free;
        e->variant_free = at;
    }
}

/* Collectives in [m->next, seq) were made but are not known: they count as made, whatever they were. */
static void skip_unknown(struct member *m, uint32_t seq)
{
    struct comm *c = m->comm;
    uint32_t from = m->next > c->base ? m->next : c->base;
    for (uint32_t i = from; i < seq && i < c->high; i++) {
        comm_slot(c, i)->arrived++;
        comm_slot(c, i)->ready++;
    }
    m->from = seq;
    if (seq > c->max_from) {
        c->max_from = seq;
    }
}

int match_meet(struct roll_engine *e, const struct member *m, struct slot *s, const struct entry *entry,
               uint64_t ticket)
{
    uint64_t sig = match_signature(&entry->rec);
    if (s->ticket == 0) {
        s->sig = sig;
        s->ticket = ticket + 1;
        s->rank = (uint32_t)m->rank;
        s->dtype = entry->rec.dtype;
        return 0;
    }
    if (s->sig == sig) {
        if (s->dtype != entry->rec.dtype) {
            s->mixed = true;
        }
        return 0;
    }
    uint32_t at = variant_new(e);
    if (at == 0) {
        return ROLL_E_NOMEM;
    }
    e->variant[at - 1] = (struct variant){.sig = sig, .ticket = ticket, .rank = (uint32_t)m->rank, .next = s->variant};
    s->variant = at;
    return 0;
}

void match_open(struct roll_engine *e, struct comm *c, uint32_t seq)
{
    if (comm_slot(c, seq)->variant != 0 && !comm_silent_at(c, seq) && !c->overflow &&
        (c->held == NO_SEQ || seq < c->held)) {
        align_open(e, c, seq);
    }
}

/* The same call, but one rank has it in one group with the call before, and the other has not. */
static void group_differs(struct roll_engine *e, struct member *m, const struct slot *s, uint32_t seq, uint64_t ticket)
{
    struct comm *c = m->comm;
    struct finding f = {.comm = c, .seq = seq, .kind = ALIGN_GROUP, .length = 1, .tie = true};
    c->group_told = true;
    f.minor_source = e->source[m->source];
    f.minor_ticket = ticket;
    f.major_source = e->source[c->member[s->rank].source];
    f.major_ticket = s->ticket - 1;
    (void)roll_rankset_add(&f.minor, f.minor_source->world);
    (void)roll_rankset_add(&f.major, f.major_source->world);
    (void)detectors_disagree(e, &f);
    roll_rankset_fini(&f.minor);
    roll_rankset_fini(&f.major);
}

static void remember_zero(struct member *m, const struct roll_record *rec, uint64_t ticket)
{
    struct roll_record as_one = *rec;
    as_one.count = 1;
    uint32_t at = m->zeros++ % ZEROS_MAX;
    m->zero[at].sig = match_signature(&as_one);
    m->zero[at].ticket = ticket;
    m->zero[at].seq = rec->seq;
}

int match_collective(struct roll_engine *e, struct member *m, struct entry *entry, uint64_t ticket)
{
    struct comm *c = m->comm;
    uint32_t seq = entry->rec.seq;
    int rc = 0;
    if (entry->rec.count == 0) {
        remember_zero(m, &entry->rec, ticket);
        return 0;
    }
    if (seq < m->next) {
        refused_repeat(e, m, &entry->rec);
    }
    if (seq != m->next) {
        if (seq < m->next || seq > SEQ_MAX) {
            entry->index = COLL_REFUSED; /* a number that was taken already: nothing can be said about this call */
            m->group = entry->rec.group; /* but the next one may be in one group with it */
            m->thread = entry->rec.thread;
            return 0;
        }
        skip_unknown(m, seq);
        m->lowered_lost = true;
        m->group = 0;
        m->unsure = true;
    }
    bool joined = entry->rec.group != 0 && entry->rec.group == m->group;
    bool follows = seq == m->next && !m->unsure && m->thread == entry->rec.thread; /* groups are a thread's own */
    m->next = seq + 1;
    m->unsure = false;
    m->group = entry->rec.group;
    m->thread = entry->rec.thread;
    if (m->refusal) {
        refused_over(e, m, &entry->rec);
    }
    if (seq < c->base) {
        return 0;
    }
    if (seq >= c->high) {
        rc = comm_reach(e, c, seq);
        if (rc != 0) {
            return rc;
        }
    }
    struct slot *s = comm_slot(c, seq);
    bool fresh = s->ticket == 0;
    uint32_t variants = s->variant;
    s->arrived++;
    rc = match_meet(e, m, s, entry, ticket);
    if (fresh) {
        s->joined = joined;
        s->known = follows;
    } else if (s->variant != variants) {
        match_open(e, c, seq);
    } else if (s->joined != joined && s->known && follows && s->variant == 0 && !c->group_told && !c->muted) {
        group_differs(e, m, s, seq, ticket);
    }
    if (s->mixed && s->arrived == c->size) {
        dtype_note(e, c, seq);
    }
    if (c->held != NO_SEQ && rc == 0) {
        align_arrived(e, m, entry);
    }
    return rc;
}

void match_ready(struct member *m, uint32_t seq)
{
    struct comm *c = m->comm;
    if (seq >= c->base && seq < c->high) {
        comm_slot(c, seq)->ready++;
    }
}
