/*
 * refused_declined.c: calls that rollcall itself refused in the rank (ROLLCALL_ON_MISMATCH), because they did not fit
 * what another rank had called at the same place.
 *
 * Nothing of such a call was enqueued, but what is wrong is the disagreement, and who is wrong is a matter of the vote:
 * the rank that comes later is refused, and that may be anybody. So the call stays matched as if it had been made, and
 * the disagreement is judged like any other (judge/align.c). To tell it as a refused call was rejected: where the rank
 * that is wrong comes first, all the others are refused, and were named.
 *
 * The rank may make another call in its place, which ends this (refused_repeat). Where the records show no
 * disagreement, because those of the other rank were lost, the call is told like one that NCCL refused.
 */
#include "daemon/engine/detect/refused.h"

/* The members disagree at this place, or that has been told. */
static bool is_disputed(const struct comm *c, uint32_t seq)
{
    bool here = seq >= c->base && seq < c->high;
    return comm_silent_at(c, seq) || (here && (comm_slot(c, seq)->variant != 0 || comm_slot(c, seq)->judged));
}

void declined_among(const struct roll_engine *e, const struct comm *c, uint32_t seq, const struct roll_rankset *ranks,
                    struct roll_rankset *out)
{
    for (uint32_t r = 0; refused_of_engine(e)->declined && r < c->size; r++) {
        uint32_t world = comm_world(e, c, r);
        const struct member *m = &c->member[r];
        c->engine->effort++;
        if (world == NO_SOURCE || !roll_rankset_has(ranks, world)) {
            continue;
        }
        /* A call that has just come is looked at before it is noted here. */
        uint64_t ticket = source_ticket_of(e->source[m->source], m, seq);
        const struct entry *made = ticket != NO_TICKET ? source_entry(e->source[m->source], ticket) : NULL;
        if (declined_at(m, seq) || (made && call_declined(&made->rec))) {
            (void)roll_rankset_add(out, world);
        }
    }
}

bool declined_is_told(const struct source *s)
{
    for (uint32_t i = 0; i < s->members; i++) {
        const struct member *m = s->member[i];
        const struct refused_member *own = m ? refused_of_member(m) : NULL;
        bool open = own && own->declined.open;
        for (uint32_t seq = open ? own->declined.rec.seq : 0; open && seq < own->declined_upto; seq++) {
            if (is_disputed(m->comm, seq)) {
                return true;
            }
        }
    }
    return false;
}

void refused_mute_groups(struct roll_engine *e, const struct comm *c)
{
    for (uint32_t r = 0; r < c->size; r++) {
        const struct member *m = &c->member[r];
        const struct refused_member *own = m->source != NO_SOURCE ? refused_of_member(m) : NULL;
        const struct source *s =
            own && own->declined.open && own->declined.rec.group != 0 ? e->source[m->source] : NULL;
        for (uint32_t i = 0; s && i < s->members; i++) {
            const struct refused_member *beside = s->member[i] ? refused_of_member(s->member[i]) : NULL;
            if (beside && beside->declined.open && source_same_unit(&beside->declined.rec, &own->declined.rec)) {
                comm_mute(e, s->member[i]->comm, beside->declined.rec.seq);
                comm_explained(e, s->member[i]->comm);
            }
        }
    }
}

void declined_tick(struct roll_engine *e, struct comm *c)
{
    const struct refused_comm *any = refused_of_comm(c);
    for (uint32_t r = 0; any && any->declined > 0 && r < c->size; r++) {
        struct member *m = &c->member[r];
        struct refused_member *own = m->source != NO_SOURCE ? refused_of_member(m) : NULL;
        bool due =
            own && own->declined.open && (e->finishing || e->clock - own->declined.since >= e->config.suspect_ns);
        if (due && !declined_is_told(e->source[m->source])) {
            refused_give_up(e, m);
        }
    }
}
