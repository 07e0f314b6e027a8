/*
 * refused_who.c: which ranks were refused at one place of a communicator, and who of them is accused.
 *
 * Several ranks may be refused at one place, for reasons of their own: with another error each, one before and one
 * after a rank died, some of them ended and some about to make the call again. To accuse them all as soon as one of
 * them was found was rejected: a proven verdict then named ranks that made the call again a moment later, and ranks
 * whose error was the echo of another rank's end.
 */
#include "daemon/engine/detect/refused.h"

enum refused_outcome refused_outcome_of(const struct source *s, const struct member *m)
{
    return !source_alive(s) ? ENDED : m && m->gone ? DESTROYED : NOT_AGAIN;
}

struct member *refused_member_in(const struct comm *c, const struct roll_engine *e, const struct source *s)
{
    uint32_t index = c ? source_index(e, s) : NO_SOURCE;
    const struct member *m = index != NO_SOURCE ? comm_member_of(c, index) : NULL;
    return m ? &c->member[m->rank] : NULL;
}

bool refused_is_own(const struct roll_engine *e, const struct source *s, const struct member *m,
                    const struct roll_record *rec)
{
    return !refused_is_from_elsewhere(rec) && !refused_is_echo(e, s, m, rec);
}

bool refused_is_final(const struct roll_engine *e, const struct source *s, const struct member *m)
{
    bool read = e->finishing || source_alive(s) || e->clock - s->proc_ns >= e->config.stall_ns / 5;
    return read && refused_outcome_of(s, m) != NOT_AGAIN;
}

void refused_gather(const struct roll_engine *e, struct refused_case *t, const struct roll_record *waits)
{
    bool coll = roll_op_class(t->rec->op) == ROLL_CLASS_COLL;
    for (uint32_t r = 0; t->comm && coll && r < t->comm->size; r++) {
        const struct member *m = &t->comm->member[r];
        const struct refused_member *own = m->source != NO_SOURCE ? refused_of_member(m) : NULL;
        const struct source *s = own ? e->source[m->source] : NULL;
        bool here = s && s != t->rank && m->next == t->rec->seq && own->coll.rec.seq == t->rec->seq;
        if (!here || !refused_is_awaited(e, m, waits)) {
            continue;
        }
        bool mine = refused_is_own(e, s, m, &own->coll.rec) || !refused_is_own(e, t->rank, t->member, t->rec);
        /* A host that is inside a wait may come back from it, and make the call: nobody knows for how long it waits. */
        bool waits_for_it = t->certainty == ROLL_PROVEN ? !refused_is_final(e, s, m) : s->unheard && source_alive(s);
        (void)roll_rankset_add(!mine ? &t->spared : waits_for_it ? &t->pending : &t->culprits, s->world);
    }
}
