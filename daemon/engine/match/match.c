/*
 * match.c: the fast path: the record of a collective meets its slot.
 *
 * What NCCL compares in effect is folded into 64 bits (trace/signature.h), so the common case costs one index, one
 * comparison and one increment. To compare field by field was rejected: it is done only when two signatures differ.
 */
#include "daemon/engine/match/match.h"
#include "trace/signature.h"

#include <stdlib.h>
#include <string.h>

/* No communicator makes so many calls: a higher number comes from a damaged record. */
#define SEQ_MAX (UINT32_MAX - (1u << 24))

uint64_t match_signature(const struct roll_record *rec)
{
    return roll_record_signature(rec);
}

/* The member has made its collectives from m->next up to seq, which is excluded, but their records are not known: they
 * count as made, whatever they were. */
static void skip_unknown(struct member *m, uint32_t seq)
{
    struct comm *c = m->comm;
    uint32_t from = m->next > c->base ? m->next : c->base, upto = seq < c->high ? seq : c->high;
    for (uint32_t i = from; i < upto; i++) {
        comm_slot(c, i)->arrived++;
        comm_slot(c, i)->ready++;
    }
    if (from < upto) { /* else no call has become complete: most members come in before anybody has made one here */
        comm_stir(c);
        c->engine->looks += c->size;
    }
    comm_came_in(m, seq);
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
    return slot_add_variant(e, s, &(struct variant){.sig = sig, .ticket = ticket, .rank = (uint32_t)m->rank});
}

bool match_jump(struct member *m, struct entry *entry)
{
    uint32_t seq = entry->rec.seq;
    if (seq < m->next || seq > SEQ_MAX) {
        source_brief(m->comm->engine->source[m->source], entry)->state =
            COLL_REFUSED;            /* an earlier call has the number: nothing can be said about this one */
        m->group = entry->rec.group; /* but the next call may be in one group with this one */
        m->thread = entry->rec.thread;
        return false;
    }
    skip_unknown(m, seq);
    m->lowered_lost = true;
    m->group = 0;
    m->unsure = true;
    return true;
}

void match_place(struct member *m, uint32_t next, bool sure)
{
    struct comm *c = m->comm;
    if (c->base == c->high &&
        (c->base == 0 || next < c->base)) { /* the window begins where the first member comes in */
        comm_begin_at(c, next);
    }
    skip_unknown(m, next);
    m->next = next;
    m->lowered_lost = true;
    m->unsure = !sure;
}

int match_collective(struct roll_engine *e, const struct member *m, const struct entry *entry, uint64_t ticket,
                     const struct match_how *how, unsigned *met)
{
    struct comm *c = m->comm;
    struct slot *s = comm_slot(c, entry->rec.seq);
    bool fresh = s->ticket == 0;
    uint32_t variants = s->variant;
    s->arrived++;
    int rc = match_meet(e, m, s, entry, ticket);
    *met = s->mixed && s->arrived == c->size ? MATCH_MIXED : 0;
    if (fresh) {
        s->joined = how->joined;
        s->known = how->follows;
    } else if (s->variant != variants) {
        *met |= MATCH_DIFFERS;
    } else if (s->joined != how->joined && s->known && how->follows && s->variant == 0 && !c->group_told && !c->muted) {
        *met |= MATCH_GROUPED;
    }
    return rc;
}

void match_ready(const struct comm *c, uint32_t seq)
{
    if (seq >= c->base && seq < c->high && ++comm_slot(c, seq)->ready == c->size) {
        comm_stir(c);
    }
}
