/*
 * refused_place.c: peers wait at the place of a refused collective: when that is told, and of whom.
 *
 * A wrong argument in a program is refused on every rank that comes there, which may be thousands, and each of them
 * asks the same: has everybody come who will, and has it been told already? So one look at all members of the
 * communicator answers that for all (struct look), looks at large communicators stand some time apart, and where one
 * verdict has accused a rank in this look the rank tells no other one like it. To look at all members for each rank,
 * and to tell a verdict for each that said what the one before had said, was rejected: among 16,384 refused ranks that
 * did not end.
 *
 * A rank that has ended is accused when its last records have been read, because it may have made the call again before
 * it ended. Ranks that end one after the other are told together, as far as they end within a stall.
 */
#include "daemon/engine/detect/refused.h"

/* As between two steps of a disagreement of a large communicator: judge/align.c. */
#define LARGE       256u  /* members */
#define LARGE_PAUSE 4000u /* ns for each member, between two looks */

/* What one look at all members of a communicator finds. */
struct look {
    struct roll_engine *e;
    struct comm *c;
    uint32_t least;              /* the least number at which a member stands that may still call there; */
    uint32_t least_refused;      /* of those whose call there was refused; NO_SEQ: there is none */
    uint32_t seq;                /* the place that is asked about; NO_SEQ: none yet */
    unsigned most;               /* how much a verdict there gains at most by whose story comes first: `worth`, */
    const struct member *best;   /* and the first member by which it does */
    struct roll_rankset told[2]; /* world ranks that were accused there in this look: as suspected, and as proven; owned
                                  */
};

/* Other members have made the collective that this member lacks, and its last collective was refused. */
static bool waited_for(const struct roll_engine *e, const struct comm *c, const struct member *m)
{
    const struct refused_member *r = refused_of_member(m);
    if (!r || !r->coll.open || m->next < c->base || m->next >= c->high) {
        return false;
    }
    const struct slot *slot = comm_slot(c, m->next);
    const struct source *theirs = slot->ticket != 0 ? e->source[c->member[slot->rank].source] : NULL;
    const struct entry *entry = theirs ? source_entry(theirs, slot->ticket - 1) : NULL;
    return slot->ticket != 0 && refused_is_awaited(e, m, entry ? &entry->rec : NULL);
}

/* Its last records may still come, and among them the call. */
static bool is_unread(const struct roll_engine *e, const struct source *s, const struct member *m)
{
    return !source_alive(s) && !refused_is_final(e, s, m);
}

bool refused_any_unread(const struct roll_engine *e, struct comm *c)
{
    struct refused_comm none = {0}, *made = refused_make_comm(c), *own = made ? made : &none;
    if (own->unread_as_of != e->clock + 1) {
        own->unread_as_of = e->clock + 1;
        own->unread = false;
        for (uint32_t r = 0; r < c->size && !own->unread; r++) {
            const struct member *m = &c->member[r];
            const struct refused_member *refused = m->source != NO_SOURCE ? refused_of_member(m) : NULL;
            own->unread = refused && refused->coll.open && is_unread(e, e->source[m->source], m);
            c->engine->effort++;
        }
    }
    return own->unread;
}

static struct look look_at(struct roll_engine *e, struct comm *c)
{
    struct look k = {.e = e, .c = c, .least = NO_SEQ, .least_refused = NO_SEQ, .seq = NO_SEQ};
    for (uint32_t r = 0; r < c->size; r++) {
        const struct member *m = &c->member[r];
        bool ended = m->source != NO_SOURCE && !source_alive(e->source[m->source]);
        if (!ended && !m->gone) {
            uint32_t *least = waited_for(e, c, m) ? &k.least_refused : &k.least;
            *least = m->next < *least ? m->next : *least;
        }
    }
    e->effort += c->size;
    return k;
}

static void look_fini(struct look *k)
{
    roll_rankset_fini(&k->told[0]);
    roll_rankset_fini(&k->told[1]);
}

/* Every other member has come to this place, was refused there too, or has ended or left: there will be no more
 * culprits. */
static bool is_complete(const struct look *k, uint32_t seq)
{
    return k->least > seq && k->least_refused >= seq;
}

/* The device of the rank stands at a call before the refused one: a circle through that call, or whoever it waits for
 * there, is told by the walk (refused_block). */
static bool waits_already(const struct roll_engine *e, const struct member *m)
{
    const struct source *s = e->source[m->source];
    uint64_t refused = roll_seal_ticket(refused_of_member(m)->coll.rec.seal);
    for (uint32_t k = 0; k < s->queues; k++) {
        if (s->queue[k].head != 0 && s->queue[k].head - 1 < refused) {
            return true;
        }
    }
    return false;
}

bool refused_gathers(const struct roll_engine *e, const struct source *s)
{
    const struct roll_record *rec = refused_last_error(s);
    const struct member *m = rec ? source_member(s, rec->comm) : NULL;
    const struct refused_member *own = m ? refused_of_member(m) : NULL;
    bool here = own && own->coll.open && roll_op_class(rec->op) == ROLL_CLASS_COLL;
    bool soon = !e->finishing && !source_alive(s) && e->clock - s->proc_ns < e->config.stall_ns;
    return here && soon && refused_any_unread(e, m->comm);
}

static bool is_due(const struct look *k, const struct member *m)
{
    const struct roll_engine *e = k->e;
    const struct source *s = e->source[m->source];
    uint64_t age = e->clock - refused_of_member(m)->coll.since, stall = e->config.stall_ns;
    bool over = m->gone || !source_alive(s), complete = is_complete(k, m->next);
    uint64_t patience = over && complete ? stall / 5 : complete && source_blocked(e, s) ? stall : stall * 2;
    if (is_unread(e, s, m) || refused_gathers(e, s)) {
        return false;
    }
    if ((s->unheard || !comm_has_room(e, m->comm)) && !over) {
        return e->finishing; /* the rank may have made the call again, and nobody has heard of it; or it has not come
                                there, because it waits for a rank that was set aside */
    }
    if (e->no_rooms > 0 && !over) { /* elsewhere a rank was set aside: only suspected in any case, and later */
        return e->finishing || age >= e->config.suspect_ns * 2;
    }
    if (!over && !source_blocked(e, s) && waits_already(e, m)) {
        return e->finishing; /* the host may wait for the device in a call that is not recorded, such as a copy */
    }
    return e->finishing || age >= e->config.suspect_ns || (age >= patience && (over || source_blocked(e, s)));
}

/* How much a verdict about the place gains where this member's story comes first: one whose error is its own says why,
 * and one that cannot make the call any more proves it. 0: the member does not lack the call. */
static unsigned worth(const struct look *k, const struct member *m)
{
    if (m->next != k->seq || !waited_for(k->e, k->c, m)) {
        return 0;
    }
    const struct source *s = k->e->source[m->source];
    bool own = refused_is_own(k->e, s, m, &refused_of_member(m)->coll.rec);
    return 1u + 2u * own + refused_is_final(k->e, s, m);
}

/* Of those who were refused at the place of m the one whose story comes first: m, unless another one is worth more. */
static const struct member *first_story(struct look *k, const struct member *m)
{
    if (k->seq != m->next) {
        roll_rankset_clear(&k->told[0]);
        roll_rankset_clear(&k->told[1]);
        k->seq = m->next;
        k->most = 0;
        for (uint32_t r = 0; r < k->c->size && k->most < 4; r++) {
            unsigned one = worth(k, &k->c->member[r]);
            k->best = one > k->most ? &k->c->member[r] : k->best;
            k->most = one > k->most ? one : k->most;
        }
        k->e->effort += k->c->size;
    }
    return worth(k, m) < k->most ? k->best : m;
}

/* The peers wait at the place of this member's refused call: that is due to be told. */
static void tell_place(struct look *k, const struct member *m)
{
    struct roll_engine *e = k->e;
    struct comm *c = k->c;
    uint32_t seq = m->next;
    const struct slot *slot = comm_slot(c, seq);
    const struct source *theirs = e->source[c->member[slot->rank].source];
    const struct entry *other = source_entry(theirs, slot->ticket - 1);
    struct source *s = e->source[m->source];
    struct refused_case t = {.rank = s, .member = m, .rec = &refused_of_member(m)->coll.rec, .comm = c};
    t.outcome = refused_outcome_of(s, m);
    t.certainty = t.outcome == NOT_AGAIN || refused_is_from_elsewhere(t.rec) ? ROLL_SUSPECTED : ROLL_PROVEN;
    struct roll_rankset *told = &k->told[t.certainty == ROLL_PROVEN];
    if (roll_rankset_has(told, s->world)) {
        return; /* with another rank, and with the same others: whoever has the same worth accuses the same ranks */
    }
    (void)roll_rankset_add(&t.culprits, s->world);
    refused_gather(e, &t, other ? &other->rec : NULL);
    for (uint32_t r = 0; r < c->size; r++) {
        uint32_t world = comm_world(e, c, r);
        if (world != NO_SOURCE && c->member[r].next > seq) {
            (void)roll_rankset_add(&t.waiting, world);
        }
    }
    e->effort += c->size;
    t.waiter = other ? theirs : NULL;
    t.waits = other ? &other->rec : NULL;
    refused_tell_once(e, &t);
    (void)roll_rankset_union(told, &t.culprits);
    refused_case_fini(&t);
}

/* A proven verdict about this place has said that the call of this rank may still be made again, and so it may. */
static bool is_left_open(const struct roll_engine *e, const struct member *m)
{
    const struct told *told = say_told(e, refused_told_at(e, m->comm, m->next));
    return told && told->certainty == ROLL_PROVEN && refused_outcome_of(e->source[m->source], m) == NOT_AGAIN;
}

static void see_to(struct look *k, const struct member *m)
{
    struct roll_engine *e = k->e;
    struct source *s = e->source[m->source];
    struct refusal *refusal = &refused_of_member(m)->coll;
    bool final = refused_is_final(e, s, m);
    bool told = refusal->told && (refusal->settled || !final); /* what was suspected may be proven by now */
    if (told || is_left_open(e, m) || !is_due(k, m)) {
        return;
    }
    if (k->c->muted && refused_told_at(e, k->c, m->next) == 0) {
        /* The communicator is muted for another cause; a verdict about this very place may still be superseded. */
        return;
    }
    const struct member *first = first_story(k, m);
    if (is_unread(e, e->source[first->source], first)) {
        return;
    }
    refusal->told = true;
    refusal->settled = final;
    if (!refused_is_echo(e, s, m, &refusal->rec)) {
        tell_place(k, first);
    }
}

void refused_place_tick(struct roll_engine *e, struct comm *c)
{
    struct refused_comm *own = c->refusals > 0 ? refused_make_comm(c) : NULL;
    bool soon = own && c->size >= LARGE && !e->finishing && own->looked_ns != 0 &&
                e->clock - own->looked_ns < (uint64_t)c->size * LARGE_PAUSE;
    if (c->refusals == 0 || c->aborted || c->overflow || soon) {
        return;
    }
    if (own) {
        own->looked_ns = e->clock;
    }
    struct look k = look_at(e, c);
    for (uint32_t r = 0; c->refusals > 0 && !c->aborted && !c->overflow && r < c->size; r++) {
        if (waited_for(e, c, &c->member[r])) {
            see_to(&k, &c->member[r]);
        }
    }
    look_fini(&k);
}
