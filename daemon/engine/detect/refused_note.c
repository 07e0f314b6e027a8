/*
 * refused_note.c: a note for ranks that ended after an error, though nobody waits for them: the error says why they
 * ended.
 *
 * A program that gives a wrong argument on all ranks has nobody who waits, and ends on all of them. They are told in
 * one note, as far as they were refused at one place, or in a creation by the same call, and have ended by the time
 * that the first of them is due. A note for each rank was rejected: sixteen thousand notes hide what is said beside
 * them.
 */
#include "daemon/engine/detect/refused.h"

/* The rank ended after an error, for at least so long, and nothing has been told of that. */
static bool has_ended(const struct roll_engine *e, const struct source *s, uint64_t for_ns)
{
    bool ended = s->exit_status != 0 && !source_alive(s) && e->clock - s->proc_ns >= for_ns;
    bool due = ended || (e->finishing && s->exit_status != 0);
    return due && !refused_is_said(s) && refused_last_error(s) && !declined_is_told(s);
}

/* What o was refused is told with what the rank of t was: the collective at the same place. */
static bool is_at_place(const struct refused_case *t, const struct source *o)
{
    const struct roll_record *rec = refused_last_error(o);
    const struct member *m = rec ? source_member(o, rec->comm) : NULL;
    const struct refused_member *own = m && m->comm == t->comm ? refused_of_member(m) : NULL;
    return own && roll_op_class(rec->op) == ROLL_CLASS_COLL && rec->seq == t->rec->seq &&
           roll_seal_ticket(own->coll.rec.seal) == roll_seal_ticket(rec->seal);
}

/* The same of creations by one and the same call. */
static bool is_in_creation(const struct refused_case *t, const struct source *o)
{
    const struct roll_record *rec = refused_last_error(o);
    const struct member *m = rec ? source_member(o, rec->comm) : NULL;
    return rec && rec->op == t->rec->op && rec->result == t->rec->result && rec->count == t->rec->count &&
           (m ? m->comm : NULL) == t->comm;
}

/* It has ended as well: its last records have been read, which is all that is waited for beside another one. */
static void add_other(struct roll_engine *e, struct refused_case *t, struct source *o, bool alike)
{
    if (alike && o != t->rank && has_ended(e, o, e->config.stall_ns / 5) && refused_set_said(o, true)) {
        (void)roll_rankset_add(&t->culprits, o->world);
    }
}

static void tell(struct roll_engine *e, struct source *s)
{
    const struct roll_record *rec = refused_last_error(s);
    struct refused_case t = {.rank = s, .member = source_member(s, rec->comm), .rec = rec, .certainty = ROLL_NOTE};
    enum roll_op_class class = roll_op_class(rec->op);
    t.comm = t.member ? t.member->comm : NULL;
    t.outcome = refused_outcome_of(s, t.member);
    (void)roll_rankset_add(&t.culprits, s->world);
    for (uint32_t r = 0; class == ROLL_CLASS_COLL && t.comm && is_at_place(&t, s) && r < t.comm->size; r++) {
        uint32_t source = t.comm->member[r].source;
        struct source *o = source != NO_SOURCE ? e->source[source] : s;
        add_other(e, &t, o, is_at_place(&t, o));
        e->effort++;
    }
    for (uint32_t i = 0; class == ROLL_CLASS_COMM && i < e->sources; i++) {
        add_other(e, &t, e->source[i], is_in_creation(&t, e->source[i]));
        e->effort++;
    }
    (void)refused_speak(e, &t, 0);
    refused_case_fini(&t);
}

void refused_note_tick(struct roll_engine *e)
{
    for (uint32_t i = 0; (e->ended > 0 || e->finishing) && i < e->sources; i++) {
        struct source *s = e->source[i];
        if (has_ended(e, s, e->config.stall_ns * 2) && refused_set_said(s, true)) {
            tell(e, s);
        }
    }
}
