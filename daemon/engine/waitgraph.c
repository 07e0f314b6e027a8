/*
 * waitgraph.c: why nothing goes on: from each call that has been waiting too long to the reason.
 *
 * After the sweep, what is left at the head of a stream queue waits: for members that have not made their call, or for members whose call stands behind
 * another one on its stream. NCCL has no wildcards, so the graph is pure AND: one link that can never be satisfied is enough, and a cycle of
 * such links is a proven deadlock. The nodes are queue heads; a walk from every old head follows the links until it meets a reason: a dead,
 * stopped or finished rank, a rank that is busy or stuck outside NCCL, a communicator whose trouble is already known, or its own tail.
 *
 * A link through a rank whose host is inside a recorded call (a wait, an NCCL call) is hard; one through a rank that merely has been quiet
 * is soft, because that rank may still come. Soft reasons are told only when a run finds no hard one: they are usually its echo.
 */
#include "daemon/engine/detector.h"

#include <string.h>

#define PATH_MAX_STEPS 256u
#define SOFT_MAX       8u

struct step {
    struct source *source;
    struct queue *queue;
    uint64_t ticket;
    bool soft; /* the link into this step */
};

struct run {
    struct roll_engine *e;
    struct step path[PATH_MAX_STEPS];
    uint32_t depth;
    bool alive;     /* some process of the job still runs */
    bool explained; /* a hard reason, or one that is known already */
    struct block soft[SOFT_MAX];
    uint32_t softs;
    struct roll_rankset waiting;
};

static void visit_head(struct run *run, struct source *s, struct queue *q, bool soft);
static void visit_call(struct run *run, struct source *s, struct entry *entry);

static bool is_old(const struct roll_engine *e, const struct queue *q)
{
    return q->head != 0 && (e->finishing || (e->clock > q->since && e->clock - q->since > e->config.stall_ns));
}

/* Why they wait has been told: when a watchdog ends them now, that is a consequence (detect_process.c). */
static void excuse_waiters(struct roll_engine *e)
{
    for (uint32_t i = 0; i < e->sources; i++) {
        struct source *s = e->source[i];
        for (uint32_t k = 0; k < s->queues; k++) {
            s->excuse = is_old(e, &s->queue[k]) ? s->queue[k].head : s->excuse;
        }
    }
}

static void report(struct run *run, struct block *b)
{
    b->waiting = &run->waiting;
    for (uint32_t i = 0; b->steps == 0 && i < run->depth && i < BLOCK_STEPS; i++) {
        b->step[i].rank = run->path[i].source;
        b->step[i].ticket = run->path[i].ticket;
        b->steps = i + 1 == run->depth || i + 1 == BLOCK_STEPS ? i + 1 : b->steps;
    }
    if (b->kind == BLOCK_BUSY || b->kind == BLOCK_STUCK || (b->kind == BLOCK_CYCLE && !b->hard)) {
        if (run->softs < SOFT_MAX) {
            run->soft[run->softs++] = *b;
        }
        return;
    }
    run->explained = true;
    if (b->kind != BLOCK_KNOWN && detectors_block(run->e, b)) {
        excuse_waiters(run->e);
    }
}

static void leaf(struct run *run, enum block_kind kind, struct source *rank, struct comm *comm, bool hard)
{
    struct block b = {.kind = kind, .rank = rank, .comm = comm, .hard = hard};
    if (run->depth > 0) {
        b.waiter = run->path[run->depth - 1].source;
        b.ticket = run->path[run->depth - 1].ticket;
    }
    report(run, &b);
}

/* Those in the circle that poll were still at it when the last of them all had come to its wait: one that had left its loop before that closes none. */
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
    struct block b = {.kind = BLOCK_CYCLE, .rank = run->path[from].source, .comm = comm, .hard = true};
    for (uint32_t i = from; i < run->depth && b.steps < BLOCK_STEPS; i++) {
        b.step[b.steps].rank = run->path[i].source;
        b.step[b.steps++].ticket = run->path[i].ticket;
        b.hard = b.hard && !run->path[i].soft;
    }
    b.waiter = run->path[run->depth - 1].source;
    b.ticket = run->path[run->depth - 1].ticket;
    if (still_polls(run, from)) {
        report(run, &b);
    }
}

static void circle_closed(struct run *run, const struct source *s, const struct queue *q, bool soft, struct comm *comm)
{
    for (uint32_t i = 0; i < run->depth; i++) {
        if (run->path[i].source == s && run->path[i].queue == q) {
            bool was = run->path[i].soft;
            run->path[i].soft = soft;
            circle(run, i, comm);
            run->path[i].soft = was;
            return;
        }
    }
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
 * The host is inside an NCCL call, or the end of a group: it waits for its partners to make theirs (connections are set up then), not for
 * what stands before it on the stream. False when every partner has.
 */
static bool visit_issue(struct run *run, struct source *t, uint64_t ticket, struct queue *q)
{
    struct entry *first = source_entry(t, ticket);
    bool any = false;
    for (uint32_t i = 0; i < run->depth; i++) {
        if (run->path[i].source == t && run->path[i].ticket == ticket) {
            circle(run, i, NULL);
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

/* Follows what the host of `t` is waiting in; false when no incomplete call explains it. */
static bool visit_inside(struct run *run, struct source *t)
{
    bool any = false;
    for (uint32_t i = 0; i < t->threads; i++) {
        const struct entry *in = t->thread[i].inside ? source_entry(t, t->thread[i].inside - 1) : NULL;
        if (!in) {
            continue;
        }
        enum roll_op_class class = roll_op_class(in->rec.op);
        struct host_wait wait = source_wait(run->e, t, &t->thread[i], &in->rec);
        uint32_t stream = class == ROLL_CLASS_GROUP ? t->thread[i].stream : in->rec.stream;
        for (uint32_t k = 0; k < t->queues; k++) {
            struct queue *q = &t->queue[k];
            bool here = (k == stream && !(wait.vague && stream == 0)) || in->rec.op == ROLL_OP_DEVICE_SYNC;
            if (in->rec.op == ROLL_OP_COMM_QUERY) {
                const struct entry *head = q->head ? source_entry(t, q->head - 1) : NULL;
                here = head && head->rec.comm == in->rec.comm;
            }
            if (q->head == 0 || q->head > wait.upto || !here || !wait.waits) {
                continue;
            }
            if ((class == ROLL_CLASS_SYNC || class == ROLL_CLASS_POLL) &&
                (!wait.vague || source_quiet(run->e, t, run->e->config.suspect_ns))) {
                any = true; /* an event of which no more is known may stand before the head of its stream: soft */
                visit_head(run, t, q, wait.soft);
            } else if (class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P) {
                any = visit_issue(run, t, t->thread[i].inside - 1, q) || any;
            } else if (class == ROLL_CLASS_GROUP) {
                uint64_t start = group_start(t, q, &in->rec);
                any = (start != 0 && visit_issue(run, t, start - 1, q)) || any;
            }
        }
    }
    return any;
}

/* A quiet rank with incomplete calls is probably waiting for them somewhere that is not recorded (a blocking copy). */
static bool visit_quiet(struct run *run, struct source *t)
{
    bool any = false;
    for (uint32_t k = 0; k < t->queues; k++) {
        if (t->queue[k].head != 0) {
            any = true;
            visit_head(run, t, &t->queue[k], true);
        }
    }
    return any;
}

/* The call waited for belongs to the backward of an MoE layer, and the rank has reported that it is beyond that backward. */
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

static void visit_rank(struct run *run, struct member *m, struct comm *c)
{
    const struct roll_engine *e = run->e;
    if (m->source == NO_SOURCE) {
        return; /* nothing is known about it: nothing is said */
    }
    struct source *t = e->source[m->source];
    if (t->proc == ROLL_PROC_DEAD && run->alive) {
        leaf(run, BLOCK_DEAD, t, c, true);
    } else if (m->unsure) {
        return; /* it may have made the call: the record is lost */
    } else if (m->gone) {
        leaf(run, BLOCK_GONE, t, c, true);
    } else if (t->proc == ROLL_PROC_FINISHED) {
        leaf(run, BLOCK_FINISHED, t, c, true);
    } else if (t->proc == ROLL_PROC_STOPPED) {
        leaf(run, BLOCK_STOPPED, t, c, true);
    } else if (has_passed(run, t)) {
        leaf(run, BLOCK_PASSED, t, c, source_blocked(e, t) && !source_polls(t));
    } else if (t->unheard &&
               source_alive(t)) { /* it still waits if what it waits for has not come; else nobody knows */
        if (!source_blocked(e, t) || !visit_inside(run, t)) {
            leaf(run, BLOCK_UNHEARD, t, c, false);
        }
    } else if (source_blocked(e, t)) {
        bool quiet = source_alive(t) && e->unheard == 0 && source_quiet(e, t, e->config.suspect_ns);
        if (!visit_inside(run, t) && (source_explained(t) || quiet)) {
            leaf(run, source_explained(t) ? BLOCK_KNOWN : BLOCK_STUCK, t, c, false);
        }
    } else if (source_quiet(e, t, e->config.suspect_ns) && source_alive(t)) {
        if (!visit_quiet(run, t)) {
            leaf(run, source_explained(t) ? BLOCK_KNOWN : BLOCK_BUSY, t, c, false);
        }
    }
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
                return in_head && !source_group_open(t, &entry->rec) ? NULL : q;
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
    for (uint32_t r = 0; r < c->size; r++) {
        if (!comm_member_issued(&c->member[r], seq)) {
            missing = true;
            visit_rank(run, &c->member[r], c);
        }
    }
    for (uint32_t r = 0; !missing && r < c->size; r++) {
        visit_behind(run, &c->member[r], c, seq, 0);
    }
    slot->visit = mark;
}

static void visit_call(struct run *run, struct source *s, struct entry *entry)
{
    struct member *m = source_member(s, entry->rec.comm);
    if (!m || entry_complete(s, entry)) {
        return;
    }
    struct comm *c = m->comm;
    if (c->blame.cause != 0) {
        leaf(run, BLOCK_BLAMED, s, c, true);
    } else if (c->muted) {
        leaf(run, BLOCK_KNOWN, s, c, true);
    } else if (roll_op_class(entry->rec.op) == ROLL_CLASS_COLL) {
        if (comm_slot(c, entry->rec.seq)->held) {
            leaf(run, BLOCK_KNOWN, s, c, true); /* a disagreement that align.c is about to judge */
        } else {
            visit_collective(run, entry, c);
        }
    } else if (entry->pair && entry->pair->said) {
        leaf(run, BLOCK_KNOWN, s, c, true); /* two calls that differ: detect_alltoallv.c is about to judge them */
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
    uint32_t mark = run->e->visit * 2;
    uint64_t ticket = q->head - 1;
    struct entry *head = source_entry(s, ticket);
    if (!head || q->visit == mark || run->depth == PATH_MAX_STEPS) {
        return;
    }
    struct member *m = source_member(s, head->rec.comm);
    if (q->visit == mark + 1) {
        circle_closed(run, s, q, soft, m ? m->comm : NULL);
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

static bool anything_old(struct run *run)
{
    struct roll_engine *e = run->e;
    bool any = false;
    for (uint32_t i = 0; i < e->sources; i++) {
        struct source *s = e->source[i];
        bool waits = false;
        for (uint32_t k = 0; k < s->queues && !waits; k++) {
            waits = is_old(e, &s->queue[k]);
        }
        if (waits) {
            any = true;
            (void)roll_rankset_add(&run->waiting, s->world);
        }
    }
    return any;
}

void waitgraph_run(struct roll_engine *e)
{
    if (e->dirty) {
        sweep(e);
    }
    if (!e->finishing && e->clock - e->stall_run_ns < e->config.stall_ns / 8) {
        return;
    }
    struct run run = {.e = e, .alive = anyone_alive(e)};
    if (anything_old(&run)) {
        e->stall_run_ns = e->clock;
        e->visit++;
        for (uint32_t i = 0; i < e->sources; i++) {
            struct source *s = e->source[i];
            for (uint32_t k = 0; k < s->queues; k++) {
                if (is_old(e, &s->queue[k])) {
                    visit_head(&run, s, &s->queue[k], false);
                }
            }
        }
        for (uint32_t i = 0; i < run.softs && !run.explained && !e->finishing; i++) {
            if (detectors_block(e, &run.soft[i])) {
                excuse_waiters(e);
            }
        }
    }
    roll_rankset_fini(&run.waiting);
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
