/*
 * refused_creation.c: peers wait inside the creation of a communicator in which NCCL refused the calls of other ranks.
 *
 * Such a call has no place among the collectives of a communicator: the communicator is not there, or not for the rank
 * that was refused. So it is found by the last error of a rank. To wait until the refused rank has ended was rejected:
 * a rank that catches the error lives on, and its peers have no time limit of their own in there.
 *
 * Thousands may wait in one creation, and thousands may have been refused theirs: each tick finds the latter once, and
 * asks one of the former for all that wait with it. A communicator has part in several creations, its own and one for
 * each time that it is split, and some of its members may be inside one of them and some inside another. They are told
 * apart by their numbers: to ask one member of the communicator for all was rejected, for it may wait elsewhere than
 * those whose peer was refused; and a creation that comes after one that was told is told as well.
 */
#include "daemon/base/array.h"
#include "daemon/engine/detect/creation.h"
#include "daemon/engine/detect/refused.h"

static bool creates(const struct roll_record *rec)
{
    return rec->op == ROLL_OP_COMM_INIT || rec->op == ROLL_OP_COMM_SPLIT || rec->op == ROLL_OP_COMM_SHRINK ||
           rec->op == ROLL_OP_COMM_GROW;
}

/* The communicator that this call is to make; NULL: it is not defined. */
static struct comm *made_by(const struct roll_engine *e, const struct source *s, const struct roll_record *rec)
{
    const struct member *m = source_member(s, rec->comm);
    const struct comm *claimed = NULL;
    if (!m && rec->op == ROLL_OP_COMM_INIT && claim_of(e, s, &claimed)) {
        return e->comm[claimed->id];
    }
    return m ? m->comm : NULL;
}

uint32_t creation_split(const struct member *m, const struct roll_record *rec)
{
    const struct refused_member *own = m ? refused_of_member(m) : NULL;
    uint32_t split = m && rec->op == ROLL_OP_COMM_SPLIT ? m->splits : 0;
    return own && split > own->splits ? split - own->splits : split;
}

static uint32_t split_of(const struct source *s, const struct roll_record *rec)
{
    return creation_split(source_member(s, rec->comm), rec);
}

void refused_created(struct source *s)
{
    struct refused_source *own = refused_of_source(s);
    if (own && own->said && own->creation) {
        *own = (struct refused_source){.said = false};
    }
}

/* The refused creation of s is the one in which `waiter` waits by its call `rec`. Without a definition of its own, only
 * a creation by all ranks is recognised. */
static bool same_creation(const struct roll_engine *e, const struct source *s, const struct source *waiter,
                          const struct roll_record *rec, const struct comm *theirs)
{
    const struct roll_record *failed = refused_last_error(s);
    if (!failed || failed->op != rec->op || s == waiter) {
        return false;
    }
    const struct comm *mine = made_by(e, s, failed);
    uint64_t ranks = waiter->info.world_size > 0 ? (uint64_t)waiter->info.world_size : e->sources;
    bool whole = rec->op == ROLL_OP_COMM_INIT && rec->count >= ranks && theirs->seen < theirs->size;
    return mine ? mine == theirs : whole && !refused_member_in(theirs, e, s);
}

/* The sources whose last call was a creation that was refused. Without memory some are left out. */
static void find_failed(struct roll_engine *e, struct refused_engine *own)
{
    own->faileds = 0;
    for (uint32_t i = 0; i < e->sources; i++) {
        const struct roll_record *rec = refused_last_error(e->source[i]);
        if (rec && creates(rec) && ROLL_GROW(own->failed, own->failed_room, own->faileds + 1u) == 0) {
            own->failed[own->faileds++] = i;
        }
    }
    e->effort += e->sources;
}

/* Adds who was refused the creation in which `waiter` waits, and chooses whose story comes first; t->rank stays NULL
 * where nobody was. */
static void add_refused(struct roll_engine *e, struct refused_case *t, const struct source *waiter)
{
    const struct refused_engine *own = refused_of_engine(e);
    for (uint32_t i = 0; i < own->faileds; i++) {
        struct source *s = e->source[own->failed[i]];
        const struct roll_record *failed = refused_last_error(s);
        if (same_creation(e, s, waiter, t->waits, t->comm) && !refused_is_echo(e, s, &t->comm->member[0], failed)) {
            bool elsewhere = refused_is_from_elsewhere(failed);
            t->rank = t->rank && elsewhere ? t->rank : s;
            t->rec = refused_last_error(t->rank);
            (void)roll_rankset_add(elsewhere ? &t->spared : &t->culprits, s->world);
        }
    }
    e->effort += own->faileds;
    if (roll_rankset_count(&t->culprits) == 0) { /* no error is the rank's own: nobody is named */
        (void)roll_rankset_copy(&t->culprits, &t->spared);
        roll_rankset_clear(&t->spared);
    }
}

/* The creation that the rank is inside by its call `rec` is the one in which the waiter of t waits. */
static bool waits_there(const struct roll_engine *e, const struct refused_case *t, const struct source *s,
                        const struct roll_record *rec)
{
    return made_by(e, s, rec) == t->comm && split_of(s, rec) == split_of(t->waiter, t->waits);
}

static void tell(struct roll_engine *e, struct refused_case *t)
{
    t->member = source_member(t->rank, t->rec->comm);
    t->outcome = source_alive(t->rank) ? NOT_AGAIN : ENDED;
    t->certainty = refused_is_from_elsewhere(t->rec) ? ROLL_SUSPECTED : ROLL_PROVEN;
    for (uint32_t i = 0; i < e->sources; i++) {
        struct source *s = e->source[i];
        const struct entry *at = s->init ? source_entry(s, s->init - 1) : NULL;
        bool told = roll_rankset_has(&t->culprits, s->world) || roll_rankset_has(&t->spared, s->world);
        if (told && refused_set_said(s, refused_is_noted(s))) {
            refused_of_source(s)->creation = true;
        }
        if (at && !told && waits_there(e, t, s, &at->rec)) {
            (void)roll_rankset_add(&t->waiting, s->world);
        }
    }
    (void)refused_speak(e, t, 0);
}

static bool was_looked_at(const struct roll_engine *e, const struct comm *c, uint32_t split)
{
    const struct refused_comm *own = refused_of_comm(c);
    bool looked = false;
    for (unsigned i = 0; own && i < 2; i++) {
        looked = looked || (own->created_ns[i] == e->clock + 1 && own->created[i] == split);
    }
    return looked;
}

/* Of a communicator the two newest are noted: its members are hardly ever inside more of them at once. */
static void note_look(const struct roll_engine *e, struct comm *c, uint32_t split)
{
    struct refused_comm *own = refused_make_comm(c);
    if (own) {
        own->created_ns[1] = own->created_ns[0];
        own->created[1] = own->created[0];
        own->created_ns[0] = e->clock + 1;
        own->created[0] = split;
    }
}

/* `waiter` may wait inside a creation that others were refused. One of those who wait there is looked at for all. */
static void look_at(struct roll_engine *e, struct source *waiter)
{
    const struct entry *inside = waiter->init ? source_entry(waiter, waiter->init - 1) : NULL;
    struct comm *c = inside ? made_by(e, waiter, &inside->rec) : NULL;
    uint32_t split = c ? split_of(waiter, &inside->rec) : 0;
    if (!c || creation_is_told(c, split) || !creates(&inside->rec) || was_looked_at(e, c, split) ||
        e->clock - waiter->init_since < e->config.stall_ns / 5) {
        return;
    }
    note_look(e, c, split);
    struct refused_case t = {.waiter = waiter, .waits = &inside->rec, .comm = c};
    add_refused(e, &t, waiter);
    if (t.rank && refused_make_source(t.rank) && creation_set_told(c, split)) {
        tell(e, &t);
    }
    refused_case_fini(&t);
}

void refused_creation_tick(struct roll_engine *e)
{
    find_failed(e, refused_of_engine(e));
    for (uint32_t i = 0; refused_of_engine(e)->faileds > 0 && i < e->sources; i++) {
        look_at(e, e->source[i]);
    }
}
