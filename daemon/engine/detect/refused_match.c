/*
 * refused_match.c: calls of which nothing was enqueued are taken out of what they had been matched with, and are
 * remembered until the rank makes another call in their place.
 *
 * Such a call gives its number back to the next call of the rank. Which calls these are becomes known by the error of
 * the call, by the error at the end of its group, or by a number that comes twice from one thread. The matching itself,
 * with and without the call, is in match/.
 */
#include "daemon/engine/detect/refused.h"

#include <stdlib.h>

bool refused_is_said(const struct source *s)
{
    const struct refused_source *own = refused_of_source(s);
    return own && own->said;
}

bool refused_is_noted(const struct source *s)
{
    const struct refused_source *own = refused_of_source(s);
    return own && own->noted;
}

bool refused_set_said(struct source *s, bool noted)
{
    struct refused_source *own = refused_make_source(s);
    if (own) {
        *own = (struct refused_source){.said = true, .noted = noted};
    }
    return own != NULL;
}

bool refused_is_group_void(const struct roll_record *rec)
{
    return rec->op == ROLL_OP_GROUP_END && (call_failed(rec) || rec->count != 0);
}

static bool is_counted(const struct source *s, const struct entry *entry)
{
    return roll_op_class(entry->rec.op) == ROLL_CLASS_COLL && entry->rec.count != 0 && !refused_call(s, entry);
}

/* The same of the entries before this ticket. */
static struct entry *entry_before(const struct roll_engine *e, const struct member *m, uint32_t seq, uint64_t before,
                                  uint64_t *ticket)
{
    const struct source *s = e->source[m->source];
    uint64_t low = source_log_low(s);
    for (uint64_t t = before; t-- > low;) {
        struct entry *entry = source_entry(s, t);
        if (entry && is_counted(s, entry) && entry->rec.seq == seq && source_member(s, entry->rec.comm) == m) {
            *ticket = t;
            return entry;
        }
    }
    return NULL;
}

struct entry *refused_entry_at(const struct roll_engine *e, const struct member *m, uint32_t seq, uint64_t *ticket)
{
    return entry_before(e, m, seq, e->source[m->source]->next, ticket);
}

/* Matches the calls at a slot anew, without the call of `gone`. */
static void rebuild(struct roll_engine *e, struct comm *c, uint32_t seq, const struct member *gone)
{
    struct slot *s = comm_slot(c, seq);
    s->ticket = 0;
    s->known = false;
    slot_release(e, s);
    for (uint32_t r = 0; r < c->size; r++) {
        struct member *m = &c->member[r];
        uint64_t ticket;
        const struct entry *entry =
            m != gone && m->next > seq && m->from <= seq ? refused_entry_at(e, m, seq, &ticket) : NULL;
        if (entry) {
            (void)match_meet(e, m, s, entry, ticket);
        }
    }
    align_look(e, c, seq);
}

/* Takes out the member's call at its number, which is the newest one there. */
static void take_out(struct roll_engine *e, struct member *m, struct entry *entry, uint64_t ticket)
{
    struct comm *c = m->comm;
    uint32_t seq = entry->rec.seq;
    struct brief *brief = source_brief(e->source[m->source], entry);
    bool was_ready = brief->state == COLL_READY, was_chained = brief->state == COLL_CHAINED;
    if (lowered_op(entry->rec.op)) {
        lowered_note(m, &entry->rec, false);
    }
    brief->state = COLL_REFUSED;
    brief->comm = 0;
    member_stir(m);
    m->next = seq;
    m->group = 0;
    m->thread = NO_THREAD; /* whether the call before this one is in one group with the next call is not known */
    if (seq < c->base || seq >= c->high) {
        return;
    }
    struct slot *s = comm_slot(c, seq);
    s->arrived -= s->arrived > 0;
    s->ready -= was_ready && s->ready > 0;
    s->chained -= was_chained && s->chained > 0;
    s->root_ready = s->root_ready && !lowered_root(m, &entry->rec);
    bool first = s->ticket == ticket + 1 && s->rank == (uint32_t)m->rank;
    if (first || s->variant != 0) {
        rebuild(e, c, seq, m);
        align_withdraw(e, c, seq);
    }
}

/* Of two refused calls, `rec` is kept as the reason rather than `old`. Within one group the reason is the call that
 * NCCL cannot have taken; where none or both are such, it is `rec`, and so in the end the oldest: refused_group shows
 * the calls from the newest to the oldest. */
static bool explains_better(const struct roll_engine *e, const struct member *m, const struct roll_record *old,
                            const struct roll_record *rec)
{
    bool same = old->op != ROLL_OP_NONE && source_same_unit(old, rec);
    const struct member *of = same ? source_member(e->source[m->source], old->comm) : NULL;
    return !of || !refused_is_wrong(e, of, old) || refused_is_wrong(e, m, rec);
}

static void remember(struct roll_engine *e, struct member *m, const struct roll_record *rec)
{
    struct refused_member *own = refused_make_member(m);
    if (!own) {
        return;
    }
    m->was_refused = true;
    bool message = roll_op_class(rec->op) == ROLL_CLASS_P2P;
    struct refusal *r = message ? &own->message : &own->coll;
    struct source *s = e->source[m->source];
    if (rec->group != 0 && explains_better(e, m, &s->failed, rec)) {
        /* refused_last, which sees each call as it returns, does not see this error: the end of the group bore it */
        s->failed = *rec;
        s->failed_clock = e->clock;
    }
    if (message && r->open && !explains_better(e, m, &r->rec, rec)) {
        return;
    }
    refused_of_engine(e)->errors = true;
    m->comm->refusals += !message && !r->open;
    *r = (struct refusal){.rec = *rec, .since = e->clock, .open = true};
}

/* A call that rollcall refused is one like any other refused call from now on. */
static void give_up(struct roll_engine *e, struct member *m, struct entry *entry, uint64_t ticket,
                    const struct roll_record *rec)
{
    take_out(e, m, entry, ticket);
    comm_taken_back(e, m->comm, rec->seq);
    remember(e, m, rec);
}

/* The call of the member that rollcall refused is matched no more. */
static void declined_over(struct member *m)
{
    struct refused_member *own = refused_of_member(m);
    struct refused_comm *c = refused_of_comm(m->comm);
    if (c && own->declined.open) {
        c->declined--;
    }
    own->declined.open = false;
}

bool declined_at(const struct member *m, uint32_t seq)
{
    const struct refused_member *own = refused_of_member(m);
    return own && own->declined.open && seq >= own->declined.rec.seq && seq < own->declined_upto;
}

void refused_repeat(struct roll_engine *e, struct member *m, const struct roll_record *rec)
{
    while (m->next > rec->seq) {
        uint64_t ticket; /* the new call is in the log already */
        struct entry *entry = entry_before(e, m, m->next - 1, roll_seal_ticket(rec->seal), &ticket);
        if (!entry || entry->rec.thread != rec->thread || m->next - 1 < m->comm->base) {
            return;
        }
        struct refused_member *own = refused_of_member(m);
        if (own && own->declined.open && own->declined.rec.seq == entry->rec.seq) {
            struct roll_record declined = own->declined.rec;
            declined_over(m);
            give_up(e, m, entry, ticket, &declined);
        } else {
            bool of_group = declined_at(m, entry->rec.seq);
            take_out(e, m, entry, ticket);
            if (of_group) {
                comm_taken_back(e, m->comm, entry->rec.seq);
            }
        }
    }
}

void refused_give_up(struct roll_engine *e, struct member *m)
{
    struct refused_member *own = refused_of_member(m);
    struct roll_record rec = own->declined.rec;
    bool newest = m->next == own->declined_upto;
    declined_over(m);
    while (newest && m->next > rec.seq) {
        uint64_t ticket;
        struct entry *entry = refused_entry_at(e, m, m->next - 1, &ticket);
        if (!entry) {
            return;
        }
        if (entry->rec.seq == rec.seq) {
            give_up(e, m, entry, ticket, &rec);
        } else {
            take_out(e, m, entry, ticket);
            comm_taken_back(e, m->comm, entry->rec.seq);
        }
    }
}

/* The rank was refused a CommSplit: it makes the call again, and that is the same creation (creation_split). */
static void note_split(struct source *s, const struct roll_record *rec)
{
    struct member *m = source_member(s, rec->comm);
    struct refused_member *own = m ? refused_make_member(m) : NULL;
    uint64_t at = roll_seal_ticket(rec->seal) + 1;
    if (own && own->split_at != at) { /* it comes again when the call has returned */
        own->split_at = at;
        own->splits++;
    }
}

void refused_last(struct roll_engine *e, struct source *s, const struct roll_record *rec)
{
    bool leaves = rec->op == ROLL_OP_COMM_DESTROY || rec->op == ROLL_OP_COMM_ABORT || rec->op == ROLL_OP_COMM_FINALIZE;
    if (leaves) {
        return; /* a rank that destroys or aborts after an error is cleaning up */
    }
    s->failed.op = ROLL_OP_NONE;
    if (call_failed(rec)) {
        struct refused_engine *own = refused_of_engine(e);
        s->failed = *rec;
        s->failed_clock = e->clock;
        if (rec->op == ROLL_OP_COMM_SPLIT) {
            note_split(s, rec);
        }
        own->errors = true;
        own->declined = own->declined || call_declined(rec);
    }
}

bool refused_is_alike(const struct roll_record *a, const struct roll_record *b)
{
    return a->op == b->op && a->count == b->count && (a->dtype == b->dtype || a->dtype >= ROLL_DTYPE_LIMIT);
}

/* The thread of b waited, or made another call, between a and b. A rank that makes a refused call again does it at
 * once, as a rule. */
static bool did_between(const struct roll_engine *e, const struct member *m, const struct roll_record *a,
                        const struct roll_record *b)
{
    enum { LOOKED_AT = 256 };
    const struct source *s = e->source[m->source];
    uint64_t first = roll_seal_ticket(a->seal) + 1, last = roll_seal_ticket(b->seal);
    first = last > LOOKED_AT && last - LOOKED_AT > first ? last - LOOKED_AT : first;
    for (uint64_t t = first; t < last; t++) {
        const struct entry *at = source_entry(s, t);
        enum roll_op_class class = at ? roll_op_class(at->rec.op) : ROLL_CLASS_NONE;
        bool work = class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P || class == ROLL_CLASS_SYNC;
        bool refused = at && (call_failed(&at->rec) || refused_call(s, at) || source_same_unit(&at->rec, a));
        if (work && !refused && at->rec.thread == b->thread && !source_same_unit(&at->rec, b)) {
            return true;
        }
    }
    return false;
}

bool refused_is_awaited(const struct roll_engine *e, const struct member *m, const struct roll_record *waits)
{
    const struct refused_member *own = refused_of_member(m);
    const struct roll_record *rec = own ? &own->coll.rec : NULL;
    if (!own || !own->coll.open) {
        return false;
    }
    for (uint32_t i = 0; i < ZEROS_MAX && i < m->zeros && (!waits || !refused_is_alike(rec, waits)); i++) {
        const struct entry *zero =
            m->zero[i].seq == rec->seq ? source_entry(e->source[m->source], m->zero[i].ticket) : NULL;
        if (zero && m->zero[i].ticket > roll_seal_ticket(rec->seal) && zero->rec.op == rec->op &&
            zero->rec.thread == rec->thread && !did_between(e, m, rec, &zero->rec)) {
            return false;
        }
    }
    return true;
}

void refused_over(const struct roll_engine *e, struct member *m, const struct roll_record *rec)
{
    struct refused_member *r = refused_of_member(m);
    if (r && roll_op_class(rec->op) == ROLL_CLASS_P2P) {
        /* A message to another peer and of another size is not the refused message made again. */
        bool again = r->message.rec.op == rec->op &&
                     (refused_is_alike(&r->message.rec, rec) || r->message.rec.peer == rec->peer);
        bool next = r->message.open && again;
        r->message.open = r->message.open && !next;
        r->message.passed_over = next ? did_between(e, m, &r->message.rec, rec) : r->message.passed_over;
    } else if (r && r->coll.open) {
        r->coll.left_out = refused_is_awaited(e, m, rec) && !refused_is_alike(&r->coll.rec, rec);
        r->coll.passed_over = !r->coll.left_out && did_between(e, m, &r->coll.rec, rec);
        r->coll.open = false;
        bool again = !r->coll.left_out && !r->coll.passed_over;
        struct refused_source *own = refused_of_source(e->source[m->source]);
        if (own && again) {
            own->said = false; /* the call was made again: the rank goes on */
        }
        m->comm->refusals--;
    }
}

void refused_lost(struct roll_engine *e, uint32_t source, uint64_t count)
{
    struct source *s = e->source[source];
    (void)count;
    s->failed.op = ROLL_OP_NONE;
    struct member *m;
    for (size_t i = 0; (m = source_touched(s, &i)) != NULL;) {
        struct refused_member *r = refused_of_member(m);
        if (r) {
            m->comm->refusals -= r->coll.open;
            declined_over(m);
            *r = (struct refused_member){.coll = {.open = false}};
        }
    }
}

void refused_renew(const struct roll_engine *e, struct source *s)
{
    for (uint32_t i = 0; i < s->members; i++) {
        struct refused_member *r = s->member[i] ? refused_of_member(s->member[i]) : NULL;
        if (r) {
            r->coll.since = e->clock;
        }
    }
}

void refused_fresh(struct roll_engine *e, struct member *m, struct entry *entry)
{
    if (roll_op_class(entry->rec.op) == ROLL_CLASS_P2P) {
        remember(e, m, &entry->rec);
        return;
    }
    refused_repeat(e, m, &entry->rec);
    source_brief(e->source[m->source], entry)->state = COLL_REFUSED;
    if (entry->rec.count != 0 && entry->rec.seq == m->next) {
        remember(e, m, &entry->rec);
    }
}

void refused_declined(struct roll_engine *e, struct member *m, const struct roll_record *rec)
{
    struct refused_member *own = refused_make_member(m);
    struct refused_comm *c = own ? refused_make_comm(m->comm) : NULL;
    if (c) {
        m->was_refused = true;
        refused_of_engine(e)->errors = refused_of_engine(e)->declined = true;
        c->declined += !own->declined.open;
        /* The calls of a group come from the newest to the oldest. */
        bool before =
            own->declined.open && source_same_unit(&own->declined.rec, rec) && rec->seq + 1 == own->declined.rec.seq;
        own->declined_upto = before ? own->declined_upto : rec->seq + 1;
        own->declined = (struct refusal){.rec = *rec, .since = e->clock, .open = true};
    }
}

void refused_late(struct roll_engine *e, struct source *s, struct entry *entry, uint64_t ticket)
{
    struct member *m = source_member(s, entry->rec.comm);
    if (!m) {
        return;
    }
    bool message = roll_op_class(entry->rec.op) == ROLL_CLASS_P2P;
    bool newest = is_counted(s, entry) && entry->rec.seq + 1 == m->next;
    if (call_declined(&entry->rec) && !message) {
        if (newest) { /* else the call that was made in its place came first, and has taken it out */
            refused_declined(e, m, &entry->rec);
        }
        return;
    }
    if (message) {
        p2p_refused(e, m, entry);
        if (call_failed(&entry->rec)) {
            remember(e, m, &entry->rec);
        }
        return;
    }
    if (!newest) {
        return; /* the call was made again meanwhile, or this version of NCCL does not give the number back */
    }
    take_out(e, m, entry, ticket);
    if (call_failed(&entry->rec)) {
        remember(e, m, &entry->rec);
    }
}

void refused_group(struct roll_engine *e, struct source *s, const struct roll_record *end, uint64_t ticket)
{
    const struct roll_record *why = call_failed(end) ? end : NULL;
    uint64_t low = source_log_low(s);
    for (uint32_t left = end->aux; left > 0 && ticket-- > low;) {
        struct entry *entry = source_entry(s, ticket);
        if (!entry || !source_same_unit(&entry->rec, end) || entry->rec.op == ROLL_OP_GROUP_END) {
            continue;
        }
        left--;
        struct member *m = source_member(s, entry->rec.comm);
        if (m && call_declined(end) && is_counted(s, entry)) {
            struct roll_record rec = entry->rec;
            rec.result = end->result;
            rec.seal = roll_seal(roll_seal_ticket(rec.seal), ROLL_STATE_RETURNED);
            refused_declined(e, m, &rec);
            entry->rec = rec; /* its own result is that of a call that was put into the group */
            continue;
        }
        refused_late(e, s, entry, ticket);
        bool message = roll_op_class(entry->rec.op) == ROLL_CLASS_P2P;
        bool mine = m && (message || (refused_call(s, entry) && entry->rec.count != 0));
        /* All calls of the group are shown, and the oldest last: in that one the peers wait first. */
        if (why && mine) {
            struct roll_record rec = entry->rec;
            rec.result = call_failed(&rec) ? rec.result : why->result;
            rec.seal = roll_seal(roll_seal_ticket(rec.seal), ROLL_STATE_RETURNED);
            remember(e, m, &rec);
        }
    }
}
