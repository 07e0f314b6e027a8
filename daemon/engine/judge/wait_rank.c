/*
 * wait_rank.c: what a walk of the wait graph asks about one rank, one queue, one call: answers that the records give by
 * themselves, without following anything further.
 *
 * The walk itself (waitgraph.c) is one circle of functions, each of which may lead back to the first. What is no part
 * of that circle stands here. To let these questions follow links as well was rejected: what a rank waits for would
 * then be looked at from several places, and a circle of waits would be met at some of them only.
 */
#include "daemon/engine/judge/walk.h"

/* The head of this queue has waited for stall_ns. */
bool waitgraph_old(const struct roll_engine *e, const struct queue *q)
{
    return q->head != 0 && (e->finishing || (e->clock > q->since && e->clock - q->since > e->config.stall_ns));
}

/* Ticket + 1 of the first call in this queue that belongs to the group which `end` ends; 0: there is none. */
uint64_t queue_group_start(struct source *t, const struct queue *q, const struct roll_record *end)
{
    uint64_t ticket = q->head - 1;
    for (struct entry *entry = q->head ? source_entry(t, ticket) : NULL; entry; entry = source_chain(t, &ticket)) {
        if (source_same_unit(end, &entry->rec)) {
            return ticket + 1;
        }
    }
    return 0;
}

/* A call of this stream before ticket `upto` stands in queue q, which is that of another stream: the streams of its
 * group were joined there. */
bool queue_holds_stream(const struct source *t, const struct queue *q, uint32_t stream, uint64_t upto)
{
    uint64_t ticket = q->head - 1;
    const struct entry *entry = q->head ? source_entry(t, ticket) : NULL;
    for (uint32_t n = 0; entry && ticket < upto && n < 64; n++) {
        if (entry->rec.stream == stream) {
            return true;
        }
        entry = source_chain(t, &ticket);
    }
    return false;
}

/* Of every live member whose process is known it is known what it does: none was left aside either. Else that a member
 * has not made a call says nothing. */
bool comm_is_heard(const struct roll_engine *e, const struct comm *c)
{
    for (uint32_t r = 0; r < c->size; r++) {
        const struct source *s = c->member[r].source == NO_SOURCE ? NULL : e->source[c->member[r].source];
        if (s ? source_is_dark(s) : e->no_rooms > 0) { /* a member that nobody knows may be one that was set aside */
            return false;
        }
    }
    return true;
}

bool comm_has_room(const struct roll_engine *e, const struct comm *c)
{
    return e->no_rooms == 0 || comm_is_heard(e, c);
}

bool rank_has_room(const struct roll_engine *e, const struct source *s)
{
    bool has = true;
    for (uint32_t i = 0; e->no_rooms > 0 && has && i < s->members; i++) {
        has = !s->member[i] || comm_is_heard(e, s->member[i]->comm);
    }
    return has;
}

/* A rank that has aborted the communicator is told only when no other has followed for a while: watchdogs abort rank
 * after rank. */
bool rank_abort_is_due(const struct roll_engine *e, const struct member *m, const struct source *t)
{
    return e->finishing || !source_alive(t) ||
           (e->unheard == 0 && e->calm - m->comm->ended_calm >= e->config.suspect_ns && comm_is_heard(e, m->comm));
}

/* The call with this ticket is the collective #seq on communicator comm_id of its rank. */
static bool is_collective(const struct source *t, const struct brief *brief, uint64_t ticket, uint32_t comm_id,
                          uint32_t seq)
{
    if (brief->comm != 0) {
        return brief->comm == comm_id && brief->seq == seq;
    }
    const struct entry *entry = source_entry(t, ticket);
    return entry && entry->rec.comm == comm_id && entry->rec.seq == seq &&
           roll_op_class(entry->rec.op) == ROLL_CLASS_COLL;
}

/*
 * Ticket + 1 of this call, which is named as for queue_held_behind, in queue q; 0: it does not stand there. *in_head:
 * all calls before it are of the unit of the head. The way goes over the briefs: each member of a collective is asked
 * for a call that may stand hundreds behind the head of its queue, and to read the records of all of them was most of
 * what a walk over thousands of ranks cost. What stands between head and tail of a queue the log holds.
 */
static uint64_t queue_place(const struct source *t, const struct queue *q, uint32_t comm_id, uint32_t seq,
                            uint64_t p2p_ticket, bool *in_head)
{
    uint64_t ticket = q->head - 1;
    const struct entry *head = q->head ? source_entry(t, ticket) : NULL;
    const struct brief *brief = head ? source_brief(t, head) : NULL;
    *in_head = true;
    while (brief && (p2p_ticket == 0 || ticket < p2p_ticket)) {
        if (p2p_ticket ? ticket + 1 == p2p_ticket : is_collective(t, brief, ticket, comm_id, seq)) {
            return ticket + 1;
        }
        const struct entry *far = brief->next == 0 ? source_entry(t, ticket) : NULL;
        uint32_t next = far ? far->next : brief->next;
        ticket += next;
        brief = next != 0 && ticket < t->next ? source_brief_at(t, ticket) : NULL;
        if (brief && *in_head) {
            const struct entry *entry = head->rec.group != 0 ? source_entry(t, ticket) : NULL;
            *in_head = entry && source_same_unit(&head->rec, &entry->rec);
        }
    }
    return 0;
}

/* What queue_held_behind says if the call stands in queue q. *there: it does. */
static struct queue *held_in(struct source *t, struct queue *q, uint32_t comm_id, uint32_t seq, uint64_t p2p_ticket,
                             bool *there)
{
    bool in_head;
    uint64_t at = queue_place(t, q, comm_id, seq, p2p_ticket, &in_head);
    struct entry *entry = at ? source_entry(t, at - 1) : NULL;
    struct queue *before[ROLL_BEHIND_MAX];
    *there = entry != NULL;
    if (!entry) {
        return NULL;
    }
    bool behind = !in_head || source_group_open(t, &entry->rec) || sweep_held(t, q, before) > 0;
    return behind ? q : sweep_turn(t, entry, at - 1);
}

/* The queue of t that holds this call behind its head, or whose head stands behind calls of other streams; NULL: the
 * call may run, or was not found. p2p_ticket:
 * ticket + 1 of a message; 0: it is the collective #seq on t's communicator comm_id. */
struct queue *queue_held_behind(struct source *t, uint32_t comm_id, uint32_t seq, uint64_t p2p_ticket)
{
    /* As a rule all calls on a communicator stand in one queue. */
    const struct member *m = p2p_ticket == 0 ? source_member(t, comm_id) : NULL;
    uint32_t own = m && !m->many_queues && m->queue != 0 ? m->queue - 1 : UINT32_MAX;
    bool there = false;
    struct queue *q = own < t->queues ? held_in(t, &t->queue[own], comm_id, seq, 0, &there) : NULL;
    for (uint32_t k = 0; k < t->queues && !there; k++) {
        q = k != own ? held_in(t, &t->queue[k], comm_id, seq, p2p_ticket, &there) : NULL;
    }
    return q;
}

/* The host that stands in this wait (inside: ticket + 1 of it) waits for calls of queue q by events: ticket + 1 of the
 * last of them; 0: for none. */
uint64_t wait_behind(struct source *s, const struct queue *q, uint64_t inside)
{
    const struct entry *wait = source_entry(s, inside - 1);
    uint64_t behind[ROLL_BEHIND_MAX], upto = 0;
    bool host = wait && roll_op_class(wait->rec.op) == ROLL_CLASS_SYNC;
    uint32_t calls = host ? source_behind(s, wait, inside - 1, behind) : 0;
    for (uint32_t i = 0; i < calls; i++) {
        upto = source_before(s, behind[i]) == q && behind[i] + 1 > upto ? behind[i] + 1 : upto;
    }
    return upto;
}

/* Calls before this wait are not complete, so that the queues of s tell why it waits. inside: ticket + 1 of the wait.
 */
bool rank_waits_for_queue(struct source *s, const struct roll_record *wait, uint64_t inside)
{
    for (uint32_t k = 0; k < s->queues; k++) {
        const struct queue *q = &s->queue[k];
        bool here = roll_op_has(wait->op, ROLL_TRAIT_ALL) || k == wait->stream ||
                    queue_holds_stream(s, q, wait->stream, inside) || wait_behind(s, q, inside) != 0;
        if (q->head != 0 && q->head <= inside && here) {
            return true;
        }
    }
    return false;
}

/*
 * Where the job goes back to an earlier step (from a checkpoint), a rank that has not gone back yet has a later step,
 * and is behind. Ranks that are known from their first record on have gone back equally often. Of a process that took
 * the place of another one, or whose first records are not known, that says nothing: what t tells of its step counts if
 * it was told after the waiter went back, or began.
 */
static bool has_gone_back(const struct source *waiter, const struct source *t)
{
    bool counted = waiter->generation == 0 && t->generation == 0 && !waiter->late && !t->late;
    return counted ? t->went_back == waiter->went_back : t->step_wall > waiter->again_wall;
}

/* The call at the end of the path belongs to the backward of an MoE layer, and t has reported that it is beyond that
 * backward: it will not make the call. */
bool rank_has_passed(const struct walk *walk, const struct source *t)
{
    const struct step *at = walk->depth ? &walk->path[walk->depth - 1] : NULL;
    const struct entry *entry = at ? source_entry(at->source, at->ticket) : NULL;
    if (!entry || entry->rec.phase != ROLL_PHASE_BACKWARD || entry->rec.layer == ROLL_LAYER_NONE ||
        entry->rec.step == ROLL_STEP_NONE || t->step == ROLL_STEP_NONE || !has_gone_back(at->source, t)) {
        return false;
    }
    bool after = t->phase == ROLL_PHASE_REDUCE || t->phase == ROLL_PHASE_OPTIMIZER;
    return t->step > entry->rec.step || (t->step == entry->rec.step && after);
}

/*
 * Other threads of t could go on, but the thread that has made all calls of t on the communicator of m is inside
 * another call, or the threads of t hand over to each other and the one whose turn it is is inside a call; and nothing
 * has come from t for a while: probably that is why t has not made its call. Which thread would have made it is not
 * known, so such a link is soft.
 */
bool rank_thread_blocked(const struct roll_engine *e, const struct member *m, const struct source *t)
{
    if (source_blocked(e, t) || !source_quiet(e, t, e->config.stall_ns)) {
        return false;
    }
    if (source_hands_over(t)) {
        return true;
    }
    if (!m || m->caller == 0 || m->many_callers) {
        return false;
    }
    for (uint32_t i = 0; i < t->threads; i++) {
        if (t->thread[i].id == m->caller) {
            return t->thread[i].inside != 0 && !t->thread[i].polls;
        }
    }
    return false;
}

/* The record, which stands behind a call of its process, shows that the call is over: a wait of the host that covers
 * the call has come back, the device has completed what stands behind it on its stream, or the
 * communicator was given up in good order, which waits for its calls. issued: the device has the call. */
static bool shows_over(const struct roll_record *rec, const struct roll_record *call, bool issued)
{
    bool same = rec->stream == call->stream && call->stream != 0;
    switch (roll_op_class(rec->op)) {
    case ROLL_CLASS_SYNC:
        return (issued || rec->thread == call->thread) &&
               (rec->op == ROLL_OP_DEVICE_SYNC || (rec->op == ROLL_OP_STREAM_SYNC && same)) &&
               roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED && rec->result == 0;
    case ROLL_CLASS_COMM:
        return issued && (rec->op == ROLL_OP_COMM_DESTROY || rec->op == ROLL_OP_COMM_FINALIZE) &&
               rec->comm == call->comm && roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED && rec->result == 0;
    case ROLL_CLASS_COLL:
    case ROLL_CLASS_P2P:
    case ROLL_CLASS_GROUP: /* calls of one group keep no order, and its end tells of one of its streams only */
        return issued && same && !source_same_unit(rec, call) && roll_seal_state(rec->seal) == ROLL_STATE_COMPLETE &&
               !call_failed(rec);
    default:
        return false;
    }
}

/* It is known of the call of s with this ticket that it is over. */
bool rank_seen_over(const struct source *s, uint64_t ticket)
{
    const struct entry *call = source_entry(s, ticket);
    if (!call || roll_seal_state(call->rec.seal) == ROLL_STATE_COMPLETE) {
        return true; /* the device has completed it, or it is so old that its record is gone */
    }
    /* The end of a group enqueues what the group holds: until then a wait of another thread does not cover the call. */
    bool issued = call->rec.group == 0;
    for (uint64_t t = ticket + 1; t < s->next; t++) {
        const struct entry *entry = source_entry(s, t);
        issued = issued || (entry && entry->rec.op == ROLL_OP_GROUP_END && source_same_unit(&entry->rec, &call->rec));
        if (entry && shows_over(&entry->rec, &call->rec, issued)) {
            return true;
        }
    }
    return false;
}

/*
 * The group of t held fewer calls than that of the waiter at the end of the path. The waiter has made its call in one
 * group with the call before it; t has made that call before as the last of a group, has ended the group, and its host
 * waits. NCCL sorts the calls of a group: where the group of one side holds more, other calls meet, and neither group
 * gets done.
 */
bool rank_is_short(const struct walk *walk, const struct member *m, const struct source *t)
{
    const struct step *at = walk->depth ? &walk->path[walk->depth - 1] : NULL;
    const struct entry *waits = at ? source_entry(at->source, at->ticket) : NULL;
    const struct member *w = waits ? source_member(at->source, waits->rec.comm) : NULL;
    if (!w || !m || w->comm != m->comm || roll_op_class(waits->rec.op) != ROLL_CLASS_COLL || waits->rec.group == 0 ||
        m->group == 0 || m->next == 0 || m->next > waits->rec.seq) {
        return false;
    }
    uint64_t before = source_ticket_of(at->source, w, m->next - 1), own = source_ticket_of(t, m, m->next - 1);
    const struct entry *theirs = before == NO_TICKET ? NULL : source_entry(at->source, before);
    const struct entry *mine = own == NO_TICKET ? NULL : source_entry(t, own);
    return theirs && mine && source_same_unit(&theirs->rec, &waits->rec) && mine->rec.group != 0 &&
           !source_group_open(t, &mine->rec) && !rank_seen_over(t, own) &&
           source_quiet(walk->e, t, walk->e->config.stall_ns);
}

/* The small id by which a source knows the communicator of its member m; 0: none. */
uint32_t rank_comm_id(const struct source *s, const struct member *m)
{
    for (uint32_t i = 1; i < s->members; i++) {
        if (s->member[i] == m) {
            return i;
        }
    }
    return 0;
}

/* The members whose side of this call has not come: their ranks in the job are added to *out; returns how many more
 * have never been seen. */
uint32_t waitgraph_missing(const struct roll_engine *e, const struct source *s, const struct entry *entry,
                           struct roll_rankset *out)
{
    struct member *m = source_member(s, entry->rec.comm);
    uint32_t unknown = 0;
    if (!m) {
        return 0;
    }
    if (roll_op_class(entry->rec.op) == ROLL_CLASS_P2P) {
        unsigned other = !p2p_side(&entry->rec);
        if (entry->pair && !(p2p_node(entry->pair, entry->index)->have & 1u << other)) {
            uint32_t world =
                p2p_known(entry->pair, other) ? comm_world(e, m->comm, entry->pair->end[other]) : NO_SOURCE;
            unknown += world == NO_SOURCE;
            if (world != NO_SOURCE) {
                (void)roll_rankset_add(out, world);
            }
        }
        return unknown;
    }
    for (uint32_t r = 0; r < m->comm->size; r++) {
        if (!comm_member_issued(&m->comm->member[r], entry->rec.seq)) {
            uint32_t world = comm_world(e, m->comm, r);
            unknown += world == NO_SOURCE;
            if (world != NO_SOURCE) {
                (void)roll_rankset_add(out, world);
            }
        }
    }
    return unknown;
}
