/*
 * waitgraph.c: why nothing goes on: from each call that has been waiting too long to the reason.
 *
 * After the sweep, what is left at the head of a stream queue waits: for members that have not made their call, or for
 * members whose call stands behind another one on its stream. NCCL has no wildcards, so the graph is pure AND: one link
 * that can never be satisfied is enough, and a cycle of such links is a proven deadlock. The nodes are queue heads; a
 * walk from every old head follows the links until it meets a reason: a dead, stopped or finished rank, a rank that is
 * busy or stuck outside NCCL, a communicator whose trouble is already known, or its own tail.
 *
 * A link through a rank whose host is inside a recorded call (a wait, an NCCL call) is hard; one through a rank that
 * merely has been quiet is soft, because that rank may still come. Soft reasons are told only when a run finds no hard
 * one: they are usually its echo.
 */
#include "daemon/engine/judge/judge.h"

#include <stdlib.h>
#include <string.h>

#define PATH_MAX_STEPS 256u
#define FOUND_MAX      1024u /* reasons kept in one run; more than that many causes at once nobody reads */

struct step {
    struct source *source;
    struct queue *queue; /* NULL: the host is inside the call, which stands in no queue */
    uint64_t ticket;
    bool soft; /* the link into this step */
};

/* The creation of a communicator, and who keeps it from ending: one list for all that wait in it, who may be ten
 * thousand. */
struct creation {
    uint32_t splits; /* number of the split on its parent */
    bool done, any;  /* it has been looked into; somebody is absent */
    struct absentee {
        const struct member *member; /* of the parent; NULL: of a communicator that the rank has not defined */
        struct source *source;
    } * absentee;
    uint32_t absentees;
};

struct run {
    struct roll_engine *e;
    struct creation *creation;
    uint32_t creations, creation_room;
    struct step path[PATH_MAX_STEPS];
    uint32_t depth;
    bool alive; /* some process of the job still runs */
    struct block *found;
    uint32_t founds, room;
    uint32_t soft; /* all links are soft while this is not 0 */
};

static void visit_head(struct run *run, struct source *s, struct queue *q, bool soft);
static void visit_call(struct run *run, struct source *s, struct entry *entry);
static bool visit_creation(struct run *run, struct source *t, uint64_t ticket);
static bool visit_left(struct run *run, struct source *t, const struct roll_record *wait, uint64_t upto);

bool waitgraph_old(const struct roll_engine *e, const struct queue *q)
{
    return q->head != 0 && (e->finishing || (e->clock > q->since && e->clock - q->since > e->config.stall_ns));
}

/* Room for one more reason; NULL when there is none. */
static struct block *find(struct run *run, enum block_kind kind)
{
    if (run->founds == run->room) {
        uint32_t room = run->room ? run->room * 2 : 16;
        struct block *found = room <= FOUND_MAX ? realloc(run->found, room * sizeof(*found)) : NULL;
        if (!found) {
            return NULL;
        }
        run->found = found;
        run->room = room;
    }
    struct block *b = &run->found[run->founds++];
    *b = (struct block){.kind = kind};
    return b;
}

/* The end of the path is a reason: `absent`, of which `rank` is one, hold up who waits in the last step. Takes absent.
 */
static void leaf(struct run *run, enum block_kind kind, struct source *rank, struct comm *comm, bool hard,
                 struct roll_rankset *absent)
{
    struct block *b = find(run, kind);
    if (!b) {
        roll_rankset_fini(absent);
        return;
    }
    b->rank = rank;
    b->comm = comm;
    b->hard = hard;
    b->absent = *absent;
    *absent = (struct roll_rankset){0};
    uint32_t skip = run->depth > BLOCK_STEPS ? run->depth - BLOCK_STEPS : 0;
    for (uint32_t i = skip; i < run->depth; i++) {
        b->step[b->steps].rank = run->path[i].source;
        b->step[b->steps++].ticket = run->path[i].ticket;
    }
    if (run->depth > 0) {
        b->waiter = run->path[run->depth - 1].source;
        b->ticket = run->path[run->depth - 1].ticket;
    }
}

static void leaf_one(struct run *run, enum block_kind kind, struct source *rank, struct comm *comm, bool hard)
{
    struct roll_rankset one = {0};
    (void)roll_rankset_add(&one, rank->world);
    leaf(run, kind, rank, comm, hard, &one);
}

/* Those in the circle that poll were still at it when the last of them all had come to its wait: one that had left its
 * loop before that closes none. */
static bool still_polls(const struct run *run, uint32_t from)
{
    uint64_t last = 0;
    bool still = true;
    for (uint32_t i = from; i < run->depth; i++) {
        const struct queue *q = run->path[i].queue;
        last = q && q->since > last ? q->since : last;
    }
    for (uint32_t i = from; i < run->depth; i++) {
        still = still && source_polls_after(run->e, run->path[i].source, last);
    }
    return still;
}

/* The path from `from` on is a circle; the soft mark of its first step is that of the link that closes it. */
static void circle(struct run *run, uint32_t from, struct comm *comm)
{
    struct block *b = find(run, BLOCK_CYCLE);
    if (!b) {
        return;
    }
    if (!still_polls(run, from)) {
        run->founds--;
        return;
    }
    b->rank = run->path[from].source;
    b->comm = comm;
    b->hard = true;
    for (uint32_t i = from; i < run->depth && b->steps < BLOCK_STEPS; i++) {
        b->step[b->steps].rank = run->path[i].source;
        b->step[b->steps++].ticket = run->path[i].ticket;
        b->hard = b->hard && !run->path[i].soft;
    }
    b->waiter = run->path[run->depth - 1].source;
    b->ticket = run->path[run->depth - 1].ticket;
}

/* True when the path comes back to this queue of s, or, without a queue, to this call that its host is inside. */
static bool circle_closed(struct run *run, const struct source *s, const struct queue *q, uint64_t ticket, bool soft,
                          struct comm *comm)
{
    for (uint32_t i = 0; i < run->depth; i++) {
        if (run->path[i].source == s && run->path[i].queue == q && (q || run->path[i].ticket == ticket)) {
            bool was = run->path[i].soft;
            run->path[i].soft = soft;
            circle(run, i, comm);
            run->path[i].soft = was;
            return true;
        }
    }
    return false;
}

static bool anyone_alive(const struct roll_engine *e)
{
    for (uint32_t i = 0; i < e->sources; i++) {
        if (source_alive(e->source[i])) {
            return true;
        }
    }
    return false;
}

/*
 * The host is inside an NCCL call, or the end of a group: it waits for its partners to make theirs (connections are set
 * up then), not for what stands before it on the stream. False when every partner has.
 */
static bool visit_issue(struct run *run, struct source *t, uint64_t ticket, struct queue *q)
{
    struct entry *first = source_entry(t, ticket);
    bool any = false;
    struct member *m = first ? source_member(t, first->rec.comm) : NULL;
    for (uint32_t i = 0; i < run->depth; i++) {
        if (run->path[i].source == t && run->path[i].ticket == ticket) {
            circle(run, i, m ? m->comm : NULL);
            return true;
        }
    }
    if (!first || run->depth == PATH_MAX_STEPS) {
        return true;
    }
    uint32_t at = run->depth++;
    for (struct entry *entry = first; entry; entry = source_chain(t, &ticket)) {
        if (entry != first && !source_same_unit(&first->rec, &entry->rec)) {
            break;
        }
        struct roll_rankset missing = {0};
        uint32_t unknown = waitgraph_missing(run->e, t, entry, &missing);
        bool waits = unknown + roll_rankset_count(&missing) > 0;
        roll_rankset_fini(&missing);
        any = any || waits;
        run->path[at] = (struct step){.source = t, .queue = q, .ticket = ticket};
        if (waits) {
            visit_call(run, t, entry);
        }
    }
    run->depth = at;
    return any;
}

/* The first call of the group that `thread` is ending; 0 or ticket + 1. */
static uint64_t group_start(struct source *t, const struct queue *q, const struct roll_record *end)
{
    uint64_t ticket = q->head - 1;
    for (struct entry *entry = q->head ? source_entry(t, ticket) : NULL; entry; entry = source_chain(t, &ticket)) {
        if (source_same_unit(end, &entry->rec)) {
            return ticket + 1;
        }
    }
    return 0;
}

/* A call of this stream stands in the queue of another: the streams of its group were joined there. */
static bool holds_stream(const struct source *t, const struct queue *q, uint32_t stream, uint64_t upto)
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

/* It does not come to what it lacks: its host is inside a call, or its process has ended. */
static bool is_kept_away(const struct run *run, const struct source *s)
{
    return !source_alive(s) || source_blocked(run->e, s);
}

/* How many members hold a collective up, as far as that matters: 0, 1, 2 for more; 0 where a member that lacks it is
 * not known. */
static uint32_t holders_of(const struct run *run, const struct comm *c, uint32_t seq)
{
    uint32_t holders = 0;
    for (uint32_t r = 0; r < c->size; r++) {
        const struct member *o = &c->member[r];
        const struct source *other = o->source != NO_SOURCE ? run->e->source[o->source] : NULL;
        bool issued = comm_member_issued(o, seq);
        run->e->effort++;
        if (!other && !issued) {
            return 0;
        }
        if (!other || holders == 2) {
            continue;
        }
        run->e->effort += issued ? other->log_mask + 1 : 0;
        uint64_t ticket = issued ? source_ticket_of(other, o, seq) : UINT64_MAX;
        const struct entry *theirs = ticket != UINT64_MAX ? source_entry(other, ticket) : NULL;
        holders += issued ? theirs && theirs->index != COLL_READY : is_kept_away(run, other);
    }
    return holders;
}

/*
 * The head of a queue cannot be over soon: somebody lacks it who is inside a call or has ended, or has it standing
 * behind another one. All members that poll for one collective, who may be ten thousand, ask the same: it is looked at
 * once in a run, and the answer stays in the slot.
 */
static bool is_held_up(const struct run *run, const struct source *s, const struct queue *q)
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
        const struct source *o = lacks && source != NO_SOURCE ? run->e->source[source] : NULL;
        return o && o != s && is_kept_away(run, o);
    }
    if (roll_op_class(head->rec.op) != ROLL_CLASS_COLL) {
        return false;
    }
    struct slot *slot = comm_slot(m->comm, head->rec.seq);
    if (slot->asked != run->e->visit) {
        slot->asked = run->e->visit;
        slot->holders = holders_of(run, m->comm, head->rec.seq) & 3u;
    }
    return slot->holders > (head->index != COLL_READY); /* its own call is not what it waits for */
}

/*
 * A host that polls several things by turns may need one of them or all: it stays only where none of them can become
 * ready. Each is a stream or a communicator with an incomplete call that is held up; all of them must have been named
 * by the words of the loop.
 */
static bool polls_in_vain(const struct run *run, const struct source *s, const struct thread *t)
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
            all = head && here && !(event && q->head >= p->count) && is_held_up(run, s, q);
        }
    }
    return all;
}

/*
 * What this wait is for may have been taken along by a process that has ended (visit_left): a wait, or a loop of polls
 * about one thing whose place among the calls is known. The number of calls before it that it is for; 0: none.
 */
static uint64_t left_upto(const struct roll_engine *e, const struct source *s, const struct thread *t,
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

/* Follows what these threads of `t` wait in (0: all of them); false when no incomplete call explains it. */
static bool visit_threads(struct run *run, struct source *t, uint16_t caller)
{
    bool any = false;
    for (uint32_t i = 0; i < t->threads; i++) {
        const struct entry *in = t->thread[i].inside ? source_entry(t, t->thread[i].inside - 1) : NULL;
        if (!in || (caller != 0 && t->thread[i].id != caller)) {
            continue;
        }
        enum roll_op_class class = roll_op_class(in->rec.op);
        if (class == ROLL_CLASS_COMM) {
            any = visit_creation(run, t, t->thread[i].inside - 1) || any;
            continue;
        }
        if (in->rec.op == ROLL_OP_COMM_QUERY && t->init != 0 && t->init_polled) {
            any = visit_creation(run, t, t->init - 1) || any;
            continue;
        }
        bool covered = false;
        struct host_wait wait = source_wait(run->e, t, &t->thread[i], &in->rec);
        bool several = class == ROLL_CLASS_POLL && t->thread[i].turns > 1;
        bool sure = !wait.vague && (!several || polls_in_vain(run, t, &t->thread[i]));
        uint32_t stream = in->rec.stream;
        for (uint32_t k = 0; k < t->queues; k++) {
            struct queue *q = &t->queue[k];
            bool here = class == ROLL_CLASS_GROUP || (k == stream && !(wait.vague && stream == 0));
            here = here || in->rec.op == ROLL_OP_DEVICE_SYNC;
            here = here || (in->rec.op == ROLL_OP_STREAM_SYNC && holds_stream(t, q, stream, t->thread[i].inside));
            if (in->rec.op == ROLL_OP_COMM_QUERY) {
                const struct entry *head = q->head ? source_entry(t, q->head - 1) : NULL;
                here = head && head->rec.comm == in->rec.comm;
            }
            if (q->head == 0 || q->head > wait.upto || !here || !wait.waits) {
                continue;
            }
            covered = true;
            if ((class == ROLL_CLASS_SYNC || class == ROLL_CLASS_POLL) &&
                (sure || source_quiet(run->e, t, run->e->config.suspect_ns))) {
                any = true; /* an event of which no more is known may stand before the head of its stream: soft */
                visit_head(run, t, q, wait.soft);
            } else if (class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P) {
                any = visit_issue(run, t, t->thread[i].inside - 1, q) || any;
            } else if (class == ROLL_CLASS_GROUP) {
                uint64_t start = group_start(t, q, &in->rec);
                any = (start != 0 && visit_issue(run, t, start - 1, q)) || any;
            }
        }
        if (!covered) {
            any = visit_left(run, t, &in->rec, left_upto(run->e, t, &t->thread[i], &in->rec)) || any;
        }
    }
    return any;
}

/*
 * Follows what the host of `t` is waiting in. m: the communicator that misses a call of it, where that is why it is
 * asked; then the thread counts that makes all its calls there. What other threads wait in need not keep that one from
 * going on: such links are soft.
 */
static bool visit_inside(struct run *run, struct source *t, const struct member *m)
{
    uint16_t caller = m && !m->many_callers && t->threads > 1 ? m->caller : 0;
    bool any = visit_threads(run, t, caller);
    if (!any && caller != 0) {
        run->soft++;
        any = visit_threads(run, t, 0);
        run->soft--;
    }
    return any;
}

/* A quiet rank with incomplete calls is probably waiting for them somewhere that is not recorded (a blocking copy). */
static bool visit_quiet(struct run *run, struct source *t)
{
    bool any = false;
    for (uint32_t k = 0; k < t->queues; k++) {
        const struct entry *head = t->queue[k].head ? source_entry(t, t->queue[k].head - 1) : NULL;
        const struct member *m = head ? source_member(t, head->rec.comm) : NULL;
        if (t->queue[k].head != 0 && !(m && source_beside(t, m))) {
            any = true;
            visit_head(run, t, &t->queue[k], true);
        }
    }
    return any;
}

/* The call waited for belongs to the backward of an MoE layer, and the rank has reported that it is beyond that
 * backward. */
static bool has_passed(const struct run *run, const struct source *t)
{
    const struct step *at = run->depth ? &run->path[run->depth - 1] : NULL;
    const struct entry *entry = at ? source_entry(at->source, at->ticket) : NULL;
    if (!entry || entry->rec.phase != ROLL_PHASE_BACKWARD || entry->rec.layer == ROLL_LAYER_NONE ||
        entry->rec.step == ROLL_STEP_NONE || t->step == ROLL_STEP_NONE) {
        return false;
    }
    bool after = t->phase == ROLL_PHASE_REDUCE || t->phase == ROLL_PHASE_OPTIMIZER;
    return t->step > entry->rec.step || (t->step == entry->rec.step && after);
}

/*
 * Other threads of the rank could go on, but the one that has made all its calls here is inside another call, and
 * nothing has come from the rank for a while: probably that is why. Which thread would have made the call is not known,
 * so such a link is soft.
 */
static bool thread_blocked(const struct roll_engine *e, const struct member *m, const struct source *t)
{
    if (!m || m->caller == 0 || m->many_callers || source_blocked(e, t) || !source_quiet(e, t, e->config.stall_ns)) {
        return false;
    }
    for (uint32_t i = 0; i < t->threads; i++) {
        if (t->thread[i].id == m->caller) {
            return t->thread[i].inside != 0 && !t->thread[i].polls;
        }
    }
    return false;
}

/* Its own host has seen that its call with this ticket is over: it came back from a wait that covers it, or the device
 * has said so. */
static bool seen_over(const struct source *s, uint64_t ticket)
{
    const struct entry *call = source_entry(s, ticket);
    if (!call || roll_seal_state(call->rec.seal) == ROLL_STATE_COMPLETE) {
        return true; /* or so long ago that its record is gone */
    }
    bool issued =
        call->rec.group == 0; /* what a group holds, its end enqueues: a wait of another thread may be older */
    for (uint64_t t = ticket + 1; t < s->next; t++) {
        const struct entry *entry = source_entry(s, t);
        issued = issued || (entry && entry->rec.op == ROLL_OP_GROUP_END && source_same_unit(&entry->rec, &call->rec));
        bool wait =
            entry && (issued || entry->rec.thread == call->rec.thread) &&
            (entry->rec.op == ROLL_OP_DEVICE_SYNC ||
             (entry->rec.op == ROLL_OP_STREAM_SYNC && entry->rec.stream == call->rec.stream && call->rec.stream != 0));
        if (wait && roll_seal_state(entry->rec.seal) >= ROLL_STATE_RETURNED && entry->rec.result == 0) {
            return true;
        }
    }
    return false;
}

/*
 * The waiter has made this call in one group with the one before it, which t has made as the last of a group that has
 * ended, and its host waits behind it. NCCL sorts what a group holds: where one side has more of it, other calls meet,
 * and neither group gets done.
 */
static bool is_short(const struct run *run, const struct member *m, const struct source *t)
{
    const struct step *at = run->depth ? &run->path[run->depth - 1] : NULL;
    const struct entry *waits = at ? source_entry(at->source, at->ticket) : NULL;
    const struct member *w = waits ? source_member(at->source, waits->rec.comm) : NULL;
    if (!w || !m || w->comm != m->comm || roll_op_class(waits->rec.op) != ROLL_CLASS_COLL || waits->rec.group == 0 ||
        m->group == 0 || m->next == 0 || m->next > waits->rec.seq) {
        return false;
    }
    uint64_t before = source_ticket_of(at->source, w, m->next - 1), own = source_ticket_of(t, m, m->next - 1);
    const struct entry *theirs = before == UINT64_MAX ? NULL : source_entry(at->source, before);
    const struct entry *mine = own == UINT64_MAX ? NULL : source_entry(t, own);
    return theirs && mine && source_same_unit(&theirs->rec, &waits->rec) && mine->rec.group != 0 &&
           !source_group_open(t, &mine->rec) && !seen_over(t, own) && source_quiet(run->e, t, run->e->config.stall_ns);
}

/*
 * Why this member has not made the call. A reason that ends the walk is returned, *hard with it; 0: it was walked
 * through, or nothing is known. Creations of communicators (creation) ask about the process only: what its past calls
 * were does not matter there.
 */
static enum block_kind absence(struct run *run, const struct member *m, struct source *t, bool creation, bool *hard)
{
    const struct roll_engine *e = run->e;
    *hard = true;
    if (t->proc == ROLL_PROC_DEAD && run->alive) {
        return BLOCK_DEAD;
    }
    if (m && m->unsure) {
        return 0; /* it may have made the call: the record is lost */
    }
    if (m && m->ended != 0) {
        /* Watchdogs abort rank after rank: who has, is asked about only when no other has followed for a while. */
        bool due = e->finishing || !source_alive(t) ||
                   (e->unheard == 0 && e->calm - m->comm->ended_calm >= e->config.suspect_ns);
        return due ? BLOCK_ABORTED : 0;
    }
    if (m && m->gone) {
        return BLOCK_GONE;
    }
    if (t->proc == ROLL_PROC_FINISHED) {
        return BLOCK_FINISHED;
    }
    if (t->proc == ROLL_PROC_STOPPED) {
        return BLOCK_STOPPED;
    }
    if (!creation && has_passed(run, t)) {
        *hard = source_blocked(run->e, t) && !source_polls(t);
        return BLOCK_PASSED;
    }
    *hard = false;
    if (t->unheard && source_alive(t)) { /* it still waits if what it waits for has not come; else nobody knows */
        return source_blocked(run->e, t) && visit_inside(run, t, m) ? 0 : BLOCK_UNHEARD;
    }
    enum block_kind known = source_explained(t) ? BLOCK_KNOWN : 0;
    if (thread_blocked(e, m, t)) {
        run->soft++;
        bool any = visit_inside(run, t, m);
        run->soft--;
        return any ? 0 : known ? known : is_short(run, m, t) ? BLOCK_SHORT : 0;
    }
    if (t->init != 0 && !source_blocked(e, t) && source_quiet(e, t, e->config.suspect_ns)) {
        run->soft++; /* another of its threads may still come */
        bool any = visit_creation(run, t, t->init - 1);
        run->soft--;
        return any ? 0 : known;
    }
    if (creation && !source_blocked(e, t)) {
        return known; /* who is only late, detect_init.c waits for */
    }
    if (source_blocked(run->e, t)) {
        bool quiet = source_alive(t) && e->unheard == 0 && source_quiet(e, t, e->config.suspect_ns);
        if (visit_inside(run, t, m)) {
            return 0;
        }
        return known                      ? known
               : creation || t->init != 0 ? 0
               : is_short(run, m, t)      ? BLOCK_SHORT
               : quiet                    ? BLOCK_STUCK
                                          : 0;
    }
    if (source_quiet(e, t, e->config.suspect_ns) && source_alive(t)) {
        return visit_quiet(run, t) ? 0 : known ? known : t->init == 0 ? BLOCK_BUSY : 0;
    }
    return 0;
}

/* Those who are absent for one kind of reason are told together. */
struct absences {
    struct {
        struct roll_rankset ranks;
        struct source *first;
        bool hard;
    } of[BLOCK_KINDS];
};

static void absent(struct run *run, struct absences *a, const struct member *m, struct source *t, bool creation)
{
    bool hard;
    enum block_kind kind = absence(run, m, t, creation, &hard);
    if (kind != 0) {
        (void)roll_rankset_add(&a->of[kind].ranks, t->world);
        a->of[kind].first = a->of[kind].first ? a->of[kind].first : t;
        a->of[kind].hard = hard;
    }
}

static void absences_told(struct run *run, struct absences *a, struct comm *c)
{
    for (unsigned kind = 0; kind < BLOCK_KINDS; kind++) {
        if (a->of[kind].first) {
            leaf(run, kind, a->of[kind].first, c, a->of[kind].hard, &a->of[kind].ranks);
        }
    }
}

static void visit_rank(struct run *run, const struct member *m, struct comm *c)
{
    struct absences a = {0};
    if (m->source != NO_SOURCE) { /* nothing is known about others: nothing is said */
        absent(run, &a, m, run->e->source[m->source], false);
        absences_told(run, &a, c);
    }
}

static bool absentee_add(struct creation *c, uint32_t *room, const struct member *m, struct source *s)
{
    if (c->absentees == *room) {
        uint32_t more = *room ? *room * 2 : 16;
        struct absentee *list = realloc(c->absentee, more * sizeof(*list));
        if (!list) {
            return false;
        }
        c->absentee = list;
        *room = more;
    }
    c->absentee[c->absentees++] = (struct absentee){.member = m, .source = s};
    return true;
}

/* The communicator holds every rank of the job. */
bool creation_is_whole(const struct roll_engine *e, const struct source *s, const struct roll_record *rec)
{
    uint64_t ranks = s->info.world_size > 0 ? (uint64_t)s->info.world_size : e->sources;
    return rec->op == ROLL_OP_COMM_INIT && rec->count >= ranks;
}

/* Members of the parent that have made fewer splits; of a communicator of the whole job, whoever has not defined it. */
static void absentees_find(struct run *run, struct creation *c, const struct source *t, const struct member *m,
                           const struct roll_record *rec)
{
    const struct roll_engine *e = run->e;
    bool init = rec->op == ROLL_OP_COMM_INIT, fits = true;
    uint32_t room = 0;
    for (uint32_t r = 0; r < m->comm->size && fits; r++) {
        const struct member *o = &m->comm->member[r];
        struct source *other = o->source == NO_SOURCE ? NULL : e->source[o->source];
        if (other && init) {
            other->defined = e->visit;
        } else if (other && o->splits < m->splits && o->gaps == o->split_gaps && other->proc != ROLL_PROC_FINISHED &&
                   !o->gone && o->ended == 0) { /* where records are lost, that of this split may be among them */
            fits = absentee_add(c, &room, o, other);
        }
    }
    for (uint32_t i = 0; init && fits && i < e->sources && creation_is_whole(e, t, rec); i++) {
        struct source *other = e->source[i];
        if (source_alive(other) && other->defined != e->visit) {
            fits = absentee_add(c, &room, NULL, other);
        }
    }
}

/* Index of the creation that t waits in; UINT32_MAX: no memory. */
static uint32_t creation_find(struct run *run, const struct source *t, const struct member *m,
                              const struct roll_record *rec)
{
    struct comm *c = m->comm;
    if (c->visit == run->e->visit && run->creation[c->creation].splits == m->splits) {
        return c->creation;
    }
    if (run->creations == run->creation_room) {
        uint32_t room = run->creation_room ? run->creation_room * 2 : 16;
        struct creation *table = realloc(run->creation, room * sizeof(*table));
        if (!table) {
            return UINT32_MAX;
        }
        run->creation = table;
        run->creation_room = room;
    }
    c->visit = run->e->visit;
    c->creation = run->creations++;
    run->creation[c->creation] = (struct creation){.splits = m->splits};
    absentees_find(run, &run->creation[c->creation], t, m, rec);
    return c->creation;
}

/*
 * The host is inside the creation of a communicator, which needs all members of the parent (or of the communicator
 * itself). Dead and ended ones are told by detect_init.c, which also knows those of whom nothing has been seen. False
 * when nothing is known that it could wait for.
 */
static bool visit_creation(struct run *run, struct source *t, uint64_t ticket)
{
    struct entry *entry = source_entry(t, ticket);
    struct member *m = entry ? source_member(t, entry->rec.comm) : NULL;
    if (!m || (entry->rec.op != ROLL_OP_COMM_INIT && entry->rec.op != ROLL_OP_COMM_SPLIT)) {
        return false;
    }
    if (circle_closed(run, t, NULL, ticket, run->soft > 0, m->comm) || run->depth == PATH_MAX_STEPS) {
        return true;
    }
    if (t->visit == run->e->visit) {
        return true;
    }
    t->visit = run->e->visit;
    uint32_t at = creation_find(run, t, m, &entry->rec);
    if (at == UINT32_MAX) {
        return false;
    }
    if (run->creation[at].done) {
        return run->creation[at].any;
    }
    struct absences a = {0};
    run->path[run->depth++] = (struct step){.source = t, .ticket = ticket, .soft = run->soft > 0};
    for (uint32_t i = 0; i < run->creation[at].absentees; i++) {
        struct absentee one = run->creation[at].absentee[i]; /* a copy: the table may grow while the walk goes on */
        absent(run, &a, one.member, one.source, true);
    }
    absences_told(run, &a, m->comm);
    run->depth--;
    run->creation[at].done = true;
    run->creation[at].any = run->creation[at].absentees > 0;
    return run->creation[at].any;
}

/* Ticket of the other side's call that answers this one of t, or of its last one to t where that is not known;
 * UINT64_MAX: none. */
static uint64_t other_side(const struct source *o, const struct member *om, const struct member *tm,
                           const struct roll_record *rec)
{
    if (roll_op_class(rec->op) == ROLL_CLASS_COLL) {
        return comm_member_issued(om, rec->seq) ? source_ticket_of(o, om, rec->seq) : UINT64_MAX;
    }
    for (uint64_t n = 0, t = o->next; n <= o->log_mask && t-- > 0; n++) {
        const struct entry *entry = source_entry(o, t);
        if (entry && roll_op_class(entry->rec.op) == ROLL_CLASS_P2P && entry->rec.op != rec->op &&
            source_member(o, entry->rec.comm) == om && entry->rec.peer == tm->rank && entry->rec.seq >= rec->seq) {
            return t;
        }
    }
    return UINT64_MAX;
}

/* Waits that have come back, met on the way back through the calls of a thread: what they cover is over. */
struct came_back {
    uint64_t streams, comms; /* by number; communicators because they keep their order on whatever streams */
    uint64_t foreign; /* streams on which no call has been met since: they may have waited for others by events */
};

/* The entry is a wait that has come back, or a poll that found its stream done. False: it covers all that stands
 * before. */
static bool came_back(struct came_back *b, const struct roll_record *rec)
{
    bool wait = roll_op_class(rec->op) == ROLL_CLASS_SYNC;
    bool done = rec->op == ROLL_OP_STREAM_QUERY && roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED;
    if ((!wait && !done) || rec->result != 0) {
        return true;
    }
    bool one = rec->op != ROLL_OP_DEVICE_SYNC && rec->stream > 0 && rec->stream < 64;
    b->streams |= one ? 1ull << rec->stream : 0;
    b->foreign |= one ? 1ull << rec->stream : 0;
    return one;
}

/* A call that is over for such a wait; what a group holds may be on any of its streams. */
static bool is_covered(struct came_back *b, const struct roll_record *rec)
{
    bool small = rec->stream < 64 && rec->comm < 64;
    bool own = b->streams != 0 && (!small || rec->group != 0 || (b->streams & 1ull << rec->stream) != 0 ||
                                   (b->comms & 1ull << rec->comm) != 0);
    b->comms |= own && small ? 1ull << rec->comm : 0;
    b->foreign &= small ? ~(1ull << rec->stream) : UINT64_MAX;
    return own || b->foreign != 0;
}

/*
 * All that the host waits for has been called by everybody. But a process that has ended takes along what it had only
 * enqueued: the calls that t waits for are looked at backwards, up to what waits that came back cover, for one whose
 * other side has left it behind.
 */
static bool visit_left(struct run *run, struct source *t, const struct roll_record *wait, uint64_t upto)
{
    struct came_back back = {0};
    bool any = false, device = wait->op == ROLL_OP_DEVICE_SYNC;
    uint64_t floor = upto > t->log_mask ? upto - t->log_mask : 0;
    for (uint64_t ticket = upto; run->e->ended + run->e->aborts > 0 && !any && ticket-- > floor;) {
        const struct entry *entry = source_entry(t, ticket);
        if (!entry || entry->rec.thread != wait->thread) {
            continue;
        }
        if (!came_back(&back, &entry->rec)) {
            break;
        }
        enum roll_op_class class = roll_op_class(entry->rec.op);
        bool call = (class == ROLL_CLASS_COLL && entry->rec.count != 0 && entry->index != COLL_REFUSED) ||
                    (class == ROLL_CLASS_P2P && entry->pair);
        bool here = device || entry->rec.stream == wait->stream;
        bool waits = call && (entry->rec.flags & ROLL_FLAG_CAPTURED) == 0 && !is_covered(&back, &entry->rec) && here;
        struct member *m = waits ? source_member(t, entry->rec.comm) : NULL;
        if (!m || m->comm->muted || run->depth == PATH_MAX_STEPS) {
            continue;
        }
        struct absences a = {0};
        for (uint32_t r = 0; r < m->comm->size; r++) {
            const struct member *o = &m->comm->member[r];
            struct source *other = o->source == NO_SOURCE ? NULL : run->e->source[o->source];
            if (!other || other == t || (class == ROLL_CLASS_P2P && entry->rec.peer != (int32_t)r) ||
                (source_alive(other) && o->ended == 0) || o->unsure || (other->proc == ROLL_PROC_DEAD && !run->alive)) {
                continue;
            }
            uint64_t answer = other_side(other, o, m, &entry->rec);
            if (answer == UINT64_MAX || seen_over(other, answer)) {
                continue;
            }
            bool hard;
            enum block_kind kind = other->proc == ROLL_PROC_DEAD ? BLOCK_DEAD
                                   : o->ended != 0               ? absence(run, o, other, false, &hard)
                                                                 : BLOCK_LEFT;
            if (kind == 0) {
                continue;
            }
            (void)roll_rankset_add(&a.of[kind].ranks, other->world);
            a.of[kind].first = other;
            a.of[kind].hard = true;
            any = true;
        }
        run->path[run->depth++] = (struct step){.source = t, .ticket = ticket};
        absences_told(run, &a, m->comm);
        run->depth--;
    }
    return any;
}

/* The queue of t that holds this call behind its head; NULL when it is at the head, or not found. */
static struct queue *held_behind(struct source *t, uint32_t comm_id, uint32_t seq, uint64_t p2p_ticket)
{
    for (uint32_t k = 0; k < t->queues; k++) {
        struct queue *q = &t->queue[k];
        uint64_t ticket = q->head - 1;
        const struct entry *head = q->head ? source_entry(t, ticket) : NULL;
        bool in_head = true;
        for (struct entry *entry = source_entry(t, ticket); head && entry; entry = source_chain(t, &ticket)) {
            in_head = in_head && (entry == head || source_same_unit(&head->rec, &entry->rec));
            bool here = p2p_ticket ? ticket + 1 == p2p_ticket
                                   : entry->rec.comm == comm_id && entry->rec.seq == seq &&
                                         roll_op_class(entry->rec.op) == ROLL_CLASS_COLL;
            if (here) {
                return !in_head || source_group_open(t, &entry->rec) ? q : sweep_turn(t, entry, ticket);
            }
        }
    }
    return NULL;
}

static uint32_t local_id(const struct source *s, const struct member *m)
{
    for (uint32_t i = 1; i < s->members; i++) {
        if (s->member[i] == m) {
            return i;
        }
    }
    return 0;
}

static void visit_behind(struct run *run, struct member *m, struct comm *c, uint32_t seq, uint64_t p2p_ticket)
{
    if (m->source == NO_SOURCE) {
        return;
    }
    struct source *t = run->e->source[m->source];
    struct queue *q = held_behind(t, local_id(t, m), seq, p2p_ticket);
    if (!q) {
        return;
    }
    const struct entry *head = source_entry(t, q->head - 1);
    if (head && source_group_open(t, &head->rec)) {
        visit_rank(run, m, c); /* its group has not been ended: nothing of it is issued */
    } else {
        visit_head(run, t, q, false);
    }
}

static void visit_collective(struct run *run, const struct entry *entry, struct comm *c)
{
    uint32_t seq = entry->rec.seq, mark = run->e->visit * 2;
    struct slot *slot = comm_slot(c, seq);
    if (slot->visit == mark) {
        return;
    }
    slot->visit = mark + 1;
    bool missing = false;
    struct absences a = {0};
    for (uint32_t r = 0; r < c->size; r++) {
        const struct member *m = &c->member[r];
        if (!comm_member_issued(m, seq)) {
            missing = true;
            if (m->source != NO_SOURCE) { /* nothing is known about others: nothing is said */
                absent(run, &a, m, run->e->source[m->source], false);
            }
        }
    }
    absences_told(run, &a, c);
    for (uint32_t r = 0; !missing && r < c->size; r++) {
        visit_behind(run, &c->member[r], c, seq, 0);
    }
    slot->visit = mark;
}

/* A Gather or Scatter of a member that is not its root waits for the root alone; where that one does not come, all who
 * do not are meant. */
static void visit_leaf(struct run *run, const struct entry *entry, struct comm *c)
{
    uint32_t root = (uint32_t)entry->rec.peer;
    if (root < c->size && comm_member_issued(&c->member[root], entry->rec.seq)) {
        visit_behind(run, &c->member[root], c, entry->rec.seq, 0);
    } else {
        visit_collective(run, entry, c);
    }
}

static void visit_call(struct run *run, struct source *s, struct entry *entry)
{
    struct member *m = source_member(s, entry->rec.comm);
    if (!m || entry_over(s, entry)) {
        return;
    }
    struct comm *c = m->comm;
    if (c->blame.cause != 0) {
        leaf_one(run, BLOCK_BLAMED, s, c, true);
    } else if (c->muted) {
        leaf_one(run, BLOCK_KNOWN, s, c, true);
    } else if (roll_op_class(entry->rec.op) == ROLL_CLASS_COLL) {
        if (comm_slot(c, entry->rec.seq)->held) {
            leaf_one(run, BLOCK_KNOWN, s, c, true); /* a disagreement that align.c is about to judge */
        } else if (lowered_leaf(m, &entry->rec)) {
            visit_leaf(run, entry, c);
        } else {
            visit_collective(run, entry, c);
        }
    } else if (entry->pair && entry->pair->said) {
        leaf_one(run, BLOCK_KNOWN, s, c, true); /* two calls that differ: detect_alltoallv.c is about to judge them */
    } else if (entry->pair) {
        unsigned other = !p2p_side(&entry->rec);
        struct node *n = p2p_node(entry->pair, entry->index);
        struct member *peer = &c->member[entry->pair->end[other]];
        if (n->have & 1u << other) {
            visit_behind(run, peer, c, 0, n->ticket[other] + 1);
        } else if (p2p_known(entry->pair, other)) { /* else it may have made it: the record is lost */
            visit_rank(run, peer, c);
        }
    }
}

static void visit_head(struct run *run, struct source *s, struct queue *q, bool soft)
{
    soft = soft || run->soft > 0;
    uint32_t mark = run->e->visit * 2;
    uint64_t ticket = q->head - 1;
    struct entry *head = source_entry(s, ticket);
    if (!head || q->visit == mark || run->depth == PATH_MAX_STEPS) {
        return;
    }
    struct member *m = source_member(s, head->rec.comm);
    if (q->visit == mark + 1) {
        (void)circle_closed(run, s, q, ticket, soft, m ? m->comm : NULL);
        return;
    }
    q->visit = mark + 1;
    uint32_t at = run->depth++;
    for (struct entry *entry = head; entry; entry = source_chain(s, &ticket)) {
        if (entry != head && !source_same_unit(&head->rec, &entry->rec)) {
            break;
        }
        run->path[at] = (struct step){.source = s, .queue = q, .ticket = ticket, .soft = soft};
        visit_call(run, s, entry);
    }
    run->depth = at;
    q->visit = mark;
}

/* Calls before this wait are not complete: the queues tell why. */
static bool waits_for_queue(const struct source *s, const struct roll_record *wait, uint64_t inside)
{
    for (uint32_t k = 0; k < s->queues; k++) {
        const struct queue *q = &s->queue[k];
        bool here = wait->op == ROLL_OP_DEVICE_SYNC || k == wait->stream || holds_stream(s, q, wait->stream, inside);
        if (q->head != 0 && q->head <= inside && here) {
            return true;
        }
    }
    return false;
}

/* The host of s has been inside a creation, or a wait that no incomplete call explains, for long enough to be asked
 * why. */
static bool visit_host(struct run *run, struct source *s)
{
    const struct roll_engine *e = run->e;
    bool any = false;
    for (uint32_t i = 0; i < s->threads; i++) {
        const struct thread *t = &s->thread[i];
        const struct entry *in = t->inside ? source_entry(s, t->inside - 1) : NULL;
        enum roll_op_class class = in ? roll_op_class(in->rec.op) : ROLL_CLASS_SYNC;
        /* What was left behind is asked about last: a call that has a partner missing says more. */
        uint64_t patience =
            e->config.stall_ns * (class == ROLL_CLASS_COMM ? 1 : 3) / (class == ROLL_CLASS_COMM ? 1 : 2);
        if (!in || (!e->finishing && (e->clock <= t->since || e->clock - t->since <= patience))) {
            continue;
        }
        if (class == ROLL_CLASS_COMM) {
            any = visit_creation(run, s, t->inside - 1) || any;
        } else if (!waits_for_queue(s, &in->rec, t->inside)) {
            any = visit_left(run, s, &in->rec, left_upto(e, s, t, &in->rec)) || any;
        }
    }
    return any;
}

void waitgraph_run(struct roll_engine *e)
{
    if (e->dirty) {
        sweep(e);
    }
    doubts_look(e);
    if (!e->finishing && e->clock - e->stall_run_ns < e->config.stall_ns / 8) {
        return;
    }
    struct run run = {.e = e, .alive = anyone_alive(e)};
    bool any = false;
    e->visit++;
    for (uint32_t i = 0; i < e->sources; i++) {
        struct source *s = e->source[i];
        for (uint32_t k = 0; k < s->queues && (source_alive(s) || !run.alive); k++) {
            if (waitgraph_old(e, &s->queue[k])) {
                any = true;
                visit_head(&run, s, &s->queue[k], false);
            }
        }
        any = (source_alive(s) && visit_host(&run, s)) || any;
    }
    if (any) {
        e->stall_run_ns = e->clock;
        waits_judge(e, run.found, run.founds);
    }
    for (uint32_t i = 0; i < run.founds; i++) {
        roll_rankset_fini(&run.found[i].absent);
    }
    free(run.found);
    for (uint32_t i = 0; i < run.creations; i++) {
        free(run.creation[i].absentee);
    }
    free(run.creation);
}

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
