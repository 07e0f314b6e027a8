/*
 * order_vote.c: in a circle of ranks that wait for each other, who goes another way than all others who can tell?
 *
 * Each rank of the circle waits in a call that the next rank lacks, because the next rank waits in another call first.
 * So each pair of neighbouring calls is a claim of one rank: "this one comes before that one". A rank that belongs to
 * both calls can tell: it has made both, in an order that its tickets show, or one and not the other. A claim that most
 * of these ranks contradict is the mistake. Siblings, the communicators of one split (or of equal label and size), are
 * the same place of the program, and their members vote as well. The vote of a whole communicator was rejected: most of
 * its members know nothing of the smaller one inside it, and outvoted the rank that was right.
 *
 * In this file `a` is the call that the holder of a claim lacks, and `b` the call in which it waits instead.
 */
#include "daemon/engine/judge/judge.h"

#include <string.h>

/* Whether a rank has been at a place. */
enum stand { STAND_UNKNOWN = 0, STAND_NOT, STAND_MADE };

/* A call of the circle, as a place of the program at which other ranks may have been as well. */
struct place {
    enum {
        PLACE_COLL,
        PLACE_MESSAGE,
        PLACE_CREATE /* the creation of a communicator: from a unique id, or by a split of its parent */
    } kind;
    struct comm *comm; /* CREATE: the new communicator, or the parent of the split */
    uint32_t seq;      /* COLL: the number of the call; MESSAGE: collectives that its rank had made here before it;
                          CREATE: number of the split, from 1; 0 = from a unique id */
    uint32_t messages; /* MESSAGE: sends and receives of its rank here since that collective, with those of its group */
    bool whole;        /* CREATE: from a unique id, of every rank of the job: a rank that is no member has not come */
    bool half;    /* COLL: half of the members have made the call, so that siblings without it have had less to do */
    uint64_t sig; /* COLL */
    const struct source *by; /* the rank that waits in the call */
    uint64_t ticket;         /* the ticket of the call, in that rank's log */
};

bool comm_is_sibling(const struct comm *a, const struct comm *b)
{
    bool one_split =
        a->parent_key != 0 && a->parent_key == b->parent_key && a->child == b->child && a->color != b->color;
    bool one_label = a->label[0] != '\0' && a->size == b->size && strcmp(a->label, b->label) == 0;
    return a != b && (one_split || one_label);
}

bool comm_same_call(const struct comm *a, const struct comm *b, uint32_t seq)
{
    bool kept = a->high > seq && b->high > seq && a->high - seq <= a->slot_mask && b->high - seq <= b->slot_mask;
    const struct slot *of_a = comm_slot(a, seq), *of_b = comm_slot(b, seq);
    return kept && of_a->ticket != 0 && of_b->ticket != 0 && of_a->sig == of_b->sig;
}

/* Siblings stand for each other as long as they have done the same. */
int comm_same_past(const struct comm *a, const struct comm *b, uint32_t seq)
{
    int alike = 0;
    for (uint32_t i = 1; i <= 8 && i <= seq; i++) {
        uint32_t at = seq - i;
        bool kept = a->high > at && b->high > at && a->high - at <= a->slot_mask && b->high - at <= b->slot_mask;
        if (!kept || comm_slot(a, at)->ticket == 0 || comm_slot(b, at)->ticket == 0) {
            continue;
        }
        if (comm_slot(a, at)->sig != comm_slot(b, at)->sig) {
            return -1;
        }
        alike++;
    }
    return alike;
}

/* As what this source is asked about a place: as a member of its communicator, or of a sibling; NULL: as neither. */
static const struct member *stand_in(const struct roll_engine *e, uint32_t source, const struct place *p)
{
    const struct source *s = e->source[source];
    const struct member *found = comm_member_of(p->comm, source);
    for (uint32_t i = 0; i < s->members && !found; i++) {
        const struct member *m = s->member[i];
        bool sibling = m && p->kind == PLACE_COLL && comm_is_sibling(m->comm, p->comm);
        found = sibling && comm_same_past(m->comm, p->comm, p->seq) >= 0 ? m : NULL;
    }
    return found;
}

/* How many sends and receives a member has made, up to ticket `upto`, between its collectives seq - 1 and seq; *ticket:
 * that of the first. */
static uint32_t messages_before(const struct source *s, const struct member *m, uint32_t seq, uint64_t upto,
                                uint64_t *ticket)
{
    uint64_t t = source_log_low(s);
    uint32_t colls = NO_SEQ, count = 0;
    for (; t < s->next && t <= upto; t++) {
        const struct entry *entry = source_entry(s, t);
        if (!entry || source_member(s, entry->rec.comm) != m) {
            continue;
        }
        if (roll_op_class(entry->rec.op) == ROLL_CLASS_COLL && entry->rec.count != 0) {
            colls = entry->rec.seq + 1;
        } else if (roll_op_class(entry->rec.op) == ROLL_CLASS_P2P && (colls == seq || (colls == NO_SEQ && seq == 0))) {
            *ticket = count++ == 0 ? t : *ticket;
        }
    }
    return count;
}

/* This process is missing in the creation of a communicator of all ranks: it is alive, and no other process of its rank
 * has come. */
static bool stays_away(const struct roll_engine *e, uint32_t source, const struct comm *c)
{
    for (uint32_t r = 0; r < c->size; r++) {
        if (c->member[r].source != NO_SOURCE && e->source[c->member[r].source]->world == e->source[source]->world) {
            return false;
        }
    }
    return source_alive(e->source[source]);
}

/* The ticket of the member's split with this number, which the member has made; NO_TICKET: the log does not hold it. */
static uint64_t split_ticket(const struct source *s, const struct member *m, uint32_t number)
{
    uint64_t low = source_log_low(s);
    for (uint64_t t = s->next; t-- > low;) {
        const struct entry *entry = source_entry(s, t);
        bool split = entry && entry->rec.op == ROLL_OP_COMM_SPLIT && source_member(s, entry->rec.comm) == m;
        if (split && entry->rec.aux == number - 1) {
            return t;
        }
    }
    return NO_TICKET;
}

/* Whether this source has been at a place; *ticket: where in its own order of calls. */
static enum stand stand_of(const struct roll_engine *e, uint32_t source, const struct place *p, uint64_t *ticket)
{
    const struct source *s = e->source[source];
    const struct member *m = stand_in(e, source, p);
    if (!m && p->whole && stays_away(e, source, p->comm)) {
        return STAND_NOT;
    }
    if (!m || m->unsure) {
        return STAND_UNKNOWN;
    }
    if (p->kind == PLACE_CREATE && p->seq == 0) { /* from an id */
        *ticket = s->init != 0 ? s->init - 1 : NO_TICKET;
        return STAND_MADE;
    }
    if (p->kind == PLACE_CREATE) {
        *ticket = m->splits >= p->seq ? split_ticket(s, m, p->seq) : NO_TICKET;
        if (m->splits < p->seq) {
            /* Where records were lost since its last split, that of this one may be among them. */
            return m->gaps != m->split_gaps ? STAND_UNKNOWN : STAND_NOT;
        }
        return *ticket == NO_TICKET ? STAND_UNKNOWN : STAND_MADE;
    }
    if (p->kind == PLACE_MESSAGE) {
        uint32_t made = messages_before(s, m, p->seq, UINT64_MAX, ticket);
        return made >= p->messages && made > 0 ? STAND_MADE : STAND_NOT;
    }
    bool beside = m->comm != p->comm && !comm_member_issued(m, p->seq) && !comm_same_call(m->comm, p->comm, p->seq);
    if (beside && (p->half || p->seq == 0 || m->next != p->seq)) {
        return STAND_UNKNOWN; /* a sibling on which nobody has come so far has not shown that it makes the same calls */
    }
    *ticket = comm_member_issued(m, p->seq) ? source_ticket_of(s, m, p->seq) : NO_TICKET;
    if (*ticket == NO_TICKET) {
        return comm_member_issued(m, p->seq) ? STAND_UNKNOWN : STAND_NOT;
    }
    bool alike = m->comm == p->comm || match_signature(&source_entry(s, *ticket)->rec) == p->sig;
    return alike ? STAND_MADE : STAND_UNKNOWN;
}

/* How many collectives a member had made before its call with this ticket. */
static uint32_t colls_before(const struct source *s, const struct member *m, uint64_t ticket)
{
    uint32_t after = 0;
    uint64_t t = ticket + 1 > source_log_low(s) ? ticket + 1 : source_log_low(s);
    for (; t < s->next; t++) {
        const struct entry *at = source_entry(s, t);
        after += at && roll_op_class(at->rec.op) == ROLL_CLASS_COLL && at->rec.count != 0 && !refused_call(s, at) &&
                 source_member(s, at->rec.comm) == m;
    }
    return m->next - after;
}

/* At least half of the members have made this collective. */
static bool half_made(const struct comm *c, uint32_t seq)
{
    uint32_t made = 0;
    for (uint32_t r = 0; r < c->size; r++) {
        made += comm_member_issued(&c->member[r], seq);
    }
    return made * 2 >= c->size;
}

/* The call of a step of the circle, as a place. False: its record is gone. */
static bool place_of(const struct roll_engine *e, const struct block *b, uint32_t step, struct place *out)
{
    const struct source *s = b->step[step].rank;
    const struct entry *entry = source_entry(s, b->step[step].ticket);
    struct member *m = entry ? source_member(s, entry->rec.comm) : NULL;
    if (!m) {
        return false;
    }
    *out = (struct place){
        .comm = m->comm, .kind = PLACE_COLL, .seq = entry->rec.seq, .by = s, .ticket = b->step[step].ticket};
    enum roll_op_class class = roll_op_class(entry->rec.op);
    if (class == ROLL_CLASS_COMM) {
        out->kind = PLACE_CREATE;
        out->seq = entry->rec.op == ROLL_OP_COMM_INIT ? 0 : m->splits;
        out->whole = creation_is_whole(e, s, &entry->rec);
    } else if (class == ROLL_CLASS_P2P) {
        uint64_t first, ticket = b->step[step].ticket, upto = ticket;
        for (const struct entry *at = entry; at && (at == entry || source_same_unit(&entry->rec, &at->rec));) {
            upto = ticket;
            at = source_chain(s, &ticket);
        }
        out->kind = PLACE_MESSAGE;
        out->seq = colls_before(s, m, b->step[step].ticket);
        out->messages = messages_before(s, m, out->seq, upto, &first);
    } else {
        out->sig = match_signature(&entry->rec);
        out->half = half_made(m->comm, entry->rec.seq);
    }
    return true;
}

/* The votes on one claim: b comes before a, or instead of it. */
struct tally {
    uint32_t agree, all;          /* votes for the claim, and all votes */
    uint32_t unsure;              /* members whose records are lost, or who have come to neither of the two calls */
    bool awaited;                 /* one of those who have come to neither is heard, and may come */
    uint32_t never;               /* members of b that know nothing of a and will not come to b */
    uint32_t beside;              /* members of b that know nothing of a and have made b */
    bool absent;                  /* some members of b were never seen: they may be ranks that never come to b */
    struct roll_rankset agreeing; /* the ranks in the job that vote for the claim */
};

static bool is_unsure(uint32_t source, const struct place *p)
{
    const struct member *m = comm_member_of(p->comm, source);
    return m && m->unsure;
}

/* This source has ended, or has left the communicator, without the call of this place: its vote against the call is
 * final. m: what the source is on the communicator; NULL: no member. */
static bool never_makes(const struct roll_engine *e, uint32_t source, const struct member *m, const struct place *p)
{
    bool over = e->source[source]->proc == ROLL_PROC_FINISHED;
    if (p->kind == PLACE_CREATE && p->seq == 0) {
        return p->whole && !m && over;
    }
    bool lacks = m && !m->unsure && (p->kind == PLACE_COLL ? !comm_member_issued(m, p->seq) : m->splits < p->seq);
    return p->kind != PLACE_MESSAGE && lacks && (m->gone || over);
}

/* This place is a message of which the source is no end: the source knows nothing of it. */
static bool is_bystander(const struct roll_engine *e, uint32_t source, const struct place *p)
{
    uint64_t ticket = p->ticket;
    const struct entry *head = p->kind == PLACE_MESSAGE ? source_entry(p->by, ticket) : NULL;
    for (const struct entry *at = head; at; at = source_chain(p->by, &ticket)) {
        if (at != head && !source_same_unit(&head->rec, &at->rec)) {
            break;
        }
        for (unsigned side = 0; at->pair && side < 2; side++) {
            if (at->pair->comm->member[at->pair->end[side]].source == source) {
                return false;
            }
        }
    }
    return head && e->source[source] != p->by;
}

static bool stands_still(const struct roll_engine *e, const struct source *s)
{
    return source_blocked(e, s) || source_pending(s);
}

/* The oldest calls of s hold a message for `other`, and the host of s stands still: s waits for `other` just as the
 * rank does that waits in the message of the circle. */
static bool waits_in_message_for(const struct roll_engine *e, const struct source *s, const struct source *other)
{
    for (uint32_t k = 0; stands_still(e, s) && k < s->queues; k++) {
        uint64_t ticket = s->queue[k].head - 1;
        const struct entry *head = s->queue[k].head ? source_entry(s, ticket) : NULL;
        uint32_t looked = 0; /* of a large exchange the first calls, because each source is asked in each circle */
        for (const struct entry *at = head; at && looked < 64; at = source_chain(s, &ticket), looked++) {
            if (at != head && !source_same_unit(&head->rec, &at->rec)) {
                break;
            }
            const struct pair *pair = at->pair;
            uint32_t partner = pair ? pair->comm->member[pair->end[!p2p_side(&at->rec)]].source : NO_SOURCE;
            if (partner != NO_SOURCE && e->source[partner] == other) {
                return true;
            }
        }
    }
    return false;
}

/* How many members were never seen. */
static uint32_t unseen(const struct comm *c)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < c->size; r++) {
        count += c->member[r].source == NO_SOURCE;
    }
    return count;
}

/* Counts a source that knows nothing of a: it has made b, it never will, or it may. */
static void count_beside(const struct roll_engine *e, uint32_t source, const struct place *a, const struct place *b,
                         struct tally *out)
{
    uint64_t ticket;
    const struct member *m = comm_member_of(b->comm, source);
    if (never_makes(e, source, m, b)) {
        out->never++;
        return;
    }
    bool made = m && stand_of(e, source, b, &ticket) == STAND_MADE;
    out->beside += made;
    /* Where nobody has come so far on a sibling of a's communicator, the source has nothing to do there, or has left
     * out the same call. */
    bool same = made && a->kind == PLACE_COLL && stand_in(e, source, a);
    out->unsure += same || is_unsure(source, a);
}

/*
 * Counts the votes on the claim of `holder` that b comes before a, or instead of it. Where the holder has made a as
 * well and b is a message, the claim is about the order of the two: ranks without such a message cannot tell.
 */
static void count_votes(const struct roll_engine *e, const struct place *a, const struct place *b,
                        const struct source *holder, struct tally *out)
{
    uint64_t made;
    bool from_id = b->kind == PLACE_CREATE && b->seq == 0;
    bool order = b->kind == PLACE_MESSAGE && stand_of(e, source_index(e, holder), a, &made) == STAND_MADE;
    uint32_t unseen_a = unseen(a->comm), unseen_b = unseen(b->comm);
    /* Of a communicator that is made from a unique id, only the members that have come are known. */
    out->unsure += b->whole && unseen_a < unseen_b ? unseen_a : unseen_b;
    out->absent = out->absent || (!b->whole && unseen_b > 0);
    out->awaited = out->awaited || (unseen_a > 0 && unseen_b > 0);
    for (uint32_t i = 0; i < e->sources; i++) {
        uint64_t at = NO_TICKET, bt = NO_TICKET;
        enum stand sa = stand_of(e, i, a, &at);
        if (!sa) {
            count_beside(e, i, a, b, out);
            continue;
        }
        enum stand sb = stand_of(e, i, b, &bt);
        /*
         * All ranks come to a communicator that is made from a unique id, whatever messages they make. But that they
         * come says nothing against a rank that waits in a message before: the partner may have left out the other end.
         */
        bool beside_a = is_bystander(e, i, a), beside_b = is_bystander(e, i, b);
        sa = beside_a && from_id ? STAND_NOT : sa;
        bool both = sa == STAND_MADE && sb == STAND_MADE, none = sa == STAND_NOT && sb == STAND_NOT;
        bool comes = none && source_alive(e->source[i]) && !stands_still(e, e->source[i]);
        out->unsure += (!sb && is_unsure(i, b)) || comes;
        out->awaited = out->awaited || (comes && !e->source[i]->unheard);
        if (beside_a && !from_id) { /* the source counts as no member of a: only what it says of b matters */
            bool never = never_makes(e, i, comm_member_of(b->comm, i), b);
            out->never += never;
            out->beside += !never && sb == STAND_MADE;
            out->all +=
                !never && b->kind == PLACE_COLL && sb == STAND_NOT && waits_in_message_for(e, e->source[i], holder);
        }
        bool lacks_split = a->kind == PLACE_CREATE && sa == STAND_NOT && sb == STAND_MADE;
        if (!sb || none || (both && at == bt) || (order && !both) || (!from_id && beside_a) ||
            (beside_b && !lacks_split)) {
            continue;
        }
        bool agrees = both ? bt < at : sb == STAND_MADE;
        out->all++;
        out->agree += agrees;
        bool end = a->kind != PLACE_MESSAGE || e->source[i] == holder; /* only its partner can lack a message */
        if (agrees && end && (comm_member_of(a->comm, i) || comm_member_of(b->comm, i))) {
            (void)roll_rankset_add(&out->agreeing, e->source[i]->world);
        }
    }
}

/* How many members have come to a collective or a creation, stand still without it, and will never come. */
static void count_camps(const struct roll_engine *e, const struct place *p, uint32_t *made, uint32_t *still,
                        uint32_t *never)
{
    *made = *still = *never = 0;
    for (uint32_t r = 0; r < p->comm->size; r++) {
        const struct member *m = &p->comm->member[r];
        bool come = p->kind == PLACE_CREATE ? m->splits >= p->seq : comm_member_issued(m, p->seq);
        bool known = m->source != NO_SOURCE && !come;
        *made += come && (p->kind == PLACE_COLL || m->source != NO_SOURCE);
        *still += known && stands_still(e, e->source[m->source]);
        *never += known && never_makes(e, m->source, m, p);
    }
    /* Of a communicator that is made from a unique id, the ranks that have not come are no members yet. */
    for (uint32_t i = 0; p->whole && i < e->sources; i++) {
        *still += e->source[i]->inits < p->by->inits && stands_still(e, e->source[i]);
        *never += e->source[i]->inits < p->by->inits && e->source[i]->proc == ROLL_PROC_FINISHED;
    }
}

/*
 * The vote on these two calls can say something. It cannot where b is a message and as many members stand still without
 * collective a as have made it: they may be right. Nor can it where a is a message and as many members are in b, a
 * collective or a creation, as stay away from it: the message has two ends, and tells nothing about the other members.
 */
static bool is_called_for(const struct roll_engine *e, const struct place *a, const struct place *b)
{
    uint32_t made, still, never;
    if (a->kind == PLACE_COLL && b->kind == PLACE_MESSAGE) {
        count_camps(e, a, &made, &still, &never);
        return still == 0 || made > still;
    }
    if (a->kind == PLACE_MESSAGE && b->kind != PLACE_MESSAGE) {
        count_camps(e, b, &made, &still, &never);
        return made < still + never;
    }
    return true;
}

/*
 * Where b stands on a communicator that was made by a split of a's communicator, b comes after that split, of which all
 * members of the parent know: the votes on the split are counted in its place. False: b stands elsewhere, or these
 * votes do not contradict the claim.
 */
static bool count_creation(const struct roll_engine *e, const struct place *a, const struct place *b,
                           const struct source *holder, struct tally *out)
{
    const struct comm *made = b->comm;
    if (a->kind != PLACE_COLL || b->kind == PLACE_CREATE || made->parent_key != a->comm->key ||
        made->origin != ROLL_COMM_SPLIT) {
        return false;
    }
    struct place split = {.comm = a->comm, .kind = PLACE_CREATE, .seq = made->child + 1};
    count_votes(e, a, &split, holder, out);
    if (out->all > 0 && out->agree * 2 < out->all) {
        return true;
    }
    roll_rankset_fini(&out->agreeing);
    *out = (struct tally){.agree = 0};
    return false;
}

bool order_vote(const struct roll_engine *e, const struct block *b, struct roll_rankset *odd, uint32_t *at,
                bool *awaits)
{
    uint32_t best_agree = 1, best_all = 2; /* less than half */
    bool tie = false, found = false;
    for (uint32_t i = 0; i < b->steps && b->steps < BLOCK_STEPS; i++) {
        struct place one, two;
        struct tally t = {.agree = 0};
        const struct source *holder = b->step[(i + 1) % b->steps].rank;
        if (!place_of(e, b, i, &one) || !place_of(e, b, (i + 1) % b->steps, &two) ||
            (one.kind == PLACE_MESSAGE && two.kind == PLACE_MESSAGE) || !is_called_for(e, &one, &two)) {
            continue;
        }
        if (!count_creation(e, &one, &two, holder, &t)) {
            count_votes(e, &one, &two, holder, &t);
        }
        *awaits = *awaits || t.awaited;
        /* The claim is the holder's own, so the holder has to be among those who vote for it. A message has one
         * partner, so one rank alone can lack it. */
        bool alone = one.kind != PLACE_MESSAGE || roll_rankset_count(&t.agreeing) == 1;
        if (!roll_rankset_has(&t.agreeing, holder->world) || !alone) {
            roll_rankset_fini(&t.agreeing);
            continue;
        }
        bool doubted = t.never > 0 || t.absent;
        t.agree += t.unsure + (doubted ? t.beside : 0); /* these might have voted for the claim as well */
        t.all += t.unsure + (doubted ? t.never + t.beside : 0);
        uint64_t mine = (uint64_t)t.agree * best_all, best = (uint64_t)best_agree * t.all;
        if (t.all > 0 && mine < best) {
            roll_rankset_fini(odd);
            *odd = t.agreeing;
            *at = i;
            best_agree = t.agree;
            best_all = t.all;
            found = true;
            tie = false;
            continue;
        }
        tie = tie || (found && t.all > 0 && mine == best && !roll_rankset_equal(odd, &t.agreeing));
        roll_rankset_fini(&t.agreeing);
    }
    if (!found || tie || roll_rankset_count(odd) == 0) {
        roll_rankset_fini(odd);
        return false;
    }
    return true;
}
