/*
 * wait_polls.c: a host that polls: is what it polls for held up, so that the host stays in its loop?
 *
 * To follow every loop of polls was rejected: a host that polls several things leaves its loop with the first that gets
 * ready, so a loop is followed only where none of them can.
 */
#include "daemon/engine/judge/walk.h"

/* This rank does not come to a call that it has not made: its host is inside another call, or its process has ended. */
static bool is_kept_away(const struct walk *walk, const struct source *s)
{
    return !source_alive(s) || source_blocked(walk->e, s);
}

/* How many members hold a collective up: 0, 1, or 2 for more. 0 as well where a member has not made the collective and
 * was never seen. */
static uint32_t holders_of(const struct walk *walk, const struct comm *c, uint32_t seq)
{
    uint32_t holders = 0;
    for (uint32_t r = 0; r < c->size; r++) {
        const struct member *o = &c->member[r];
        const struct source *other = o->source != NO_SOURCE ? walk->e->source[o->source] : NULL;
        bool issued = comm_member_issued(o, seq);
        walk->e->effort++;
        if (!other && !issued) {
            return 0;
        }
        if (!other || holders == 2) {
            continue;
        }
        walk->e->effort += issued ? other->log_mask + 1 : 0;
        uint64_t ticket = issued ? source_ticket_of(other, o, seq) : NO_TICKET;
        const struct entry *theirs = ticket != NO_TICKET ? source_entry(other, ticket) : NULL;
        holders += issued ? theirs && source_state(other, theirs) != COLL_READY : is_kept_away(walk, other);
    }
    return holders;
}

/*
 * The head of a queue cannot be over soon: a member that has not made its call is inside another one or has ended, or
 * the member's call stands behind another one on its stream. All members that poll for one collective, who may be ten
 * thousand, ask the same: the answer is found once in a run, and stays in the slot.
 */
static bool is_held_up(const struct walk *walk, const struct source *s, const struct queue *q)
{
    const struct entry *head = source_entry(s, q->head - 1);
    const struct member *m = head ? source_member(s, head->rec.comm) : NULL;
    if (!m) {
        return false;
    }
    if (head->pair) {
        unsigned other = !p2p_side(&head->rec);
        uint32_t source = m->comm->member[head->pair->end[other]].source;
        bool lacks = !(p2p_node(head->pair, head->index)->have & 1u << other) && p2p_known(head->pair, other);
        const struct source *o = lacks && source != NO_SOURCE ? walk->e->source[source] : NULL;
        return o && o != s && is_kept_away(walk, o);
    }
    if (roll_op_class(head->rec.op) != ROLL_CLASS_COLL) {
        return false;
    }
    struct slot *slot = comm_slot(m->comm, head->rec.seq);
    if (slot->asked != walk->e->visit) {
        slot->asked = walk->e->visit;
        slot->holders = holders_of(walk, m->comm, head->rec.seq) & 3u;
    }
    return slot->holders >
           (source_state(s, head) != COLL_READY); /* the rank's own call does not count among the holders */
}

/*
 * A host that polls several things by turns may need one of them or all. It stays in its loop for certain only where
 * none of them can become ready: each is a stream or a communicator with an incomplete call that is held up, and the
 * records of the loop have named all of them.
 */
bool polls_in_vain(const struct walk *walk, const struct source *s, const struct thread *t)
{
    bool all = t->named == t->turns;
    for (uint32_t i = 0; all && i < t->named; i++) {
        const struct polled *p = &t->thing[i];
        bool event = p->op == ROLL_OP_EVENT_QUERY, vague = event && (p->count == 0 || s->threads > 1);
        all = false;
        for (uint32_t k = 0; !all && !vague && k < s->queues; k++) {
            const struct queue *q = &s->queue[k];
            const struct entry *head = q->head ? source_entry(s, q->head - 1) : NULL;
            bool here = p->op == ROLL_OP_COMM_QUERY ? head && head->rec.comm == p->comm : k == p->stream;
            all = head && here && !(event && q->head >= p->count) && is_held_up(walk, s, q);
        }
    }
    return all;
}

/*
 * A process that has ended may have taken along what the thread t of s waits for inside `in` (wait_left.c). That is
 * asked for a wait, and for a loop of polls about one thing whose place among the calls is known. Returns the ticket
 * before which those calls stand; 0: it is not to be asked.
 */
uint64_t polls_left_upto(const struct roll_engine *e, const struct source *s, const struct thread *t,
                         const struct roll_record *in)
{
    struct host_wait wait = source_wait(e, s, t, in);
    bool event = in->op == ROLL_OP_EVENT_SYNC || in->op == ROLL_OP_EVENT_QUERY;
    bool polls = (in->op == ROLL_OP_STREAM_QUERY || in->op == ROLL_OP_EVENT_QUERY) && t->turns <= 1 && !wait.vague;
    if (roll_op_class(in->op) != ROLL_CLASS_SYNC && !(polls && wait.waits)) {
        return 0;
    }
    return event && !wait.vague ? wait.upto : t->inside - 1;
}
