/*
 * waitgraph.c: why nothing goes on: a walk from each call that has waited too long to the reason.
 *
 * After the sweep, a call that is left at the head of a stream queue waits: for members that have not made their call,
 * or for members whose call stands behind another one on its stream. NCCL has no wildcards, so the graph is pure AND:
 * one link that can never be satisfied is enough, and a circle of such links is a proven deadlock. The nodes are queue
 * heads. A walk from every old head follows the links until it meets a reason: a dead, stopped or finished rank, a rank
 * that is busy or stuck outside NCCL, a communicator whose trouble is known already, or a node of its own path.
 *
 * A link is hard when it leads through a rank whose host is inside a recorded call (a wait, an NCCL call). A link
 * through a rank that has merely been quiet is soft, because that rank may still come. Soft reasons are told only when
 * a run finds no hard one: they are usually its echo.
 *
 * To look for circles alone was rejected: most waits end at a rank that waits for nobody.
 *
 * Where walks begin stands in wait_begin.c. The questions that need no link are in wait_rank.c; what processes have
 * left behind is looked for in wait_left.c.
 */
#include "daemon/engine/judge/walk.h"

#include <stdlib.h>
#include <string.h>

static void visit_call(struct walk *walk, struct source *s, struct entry *entry);

/*
 * Follows a host that is inside an NCCL call, or inside the end of a group: such a host waits for its partners to make
 * their calls (connections are set up then), and not for what stands before the call on the stream. False: every
 * partner has made its call. q: the queue in which the first of the calls, that with `ticket`, stands.
 */
static bool visit_issue(struct walk *walk, struct source *t, uint64_t ticket, struct queue *q)
{
    struct entry *first = source_entry(t, ticket);
    bool any = false;
    struct member *m = first ? source_member(t, first->rec.comm) : NULL;
    for (uint32_t i = 0; i < walk->depth; i++) {
        if (walk->path[i].source == t && walk->path[i].ticket == ticket) {
            path_circle(walk, i, m ? m->comm : NULL);
            return true;
        }
    }
    if (!first || walk->depth == PATH_MAX_STEPS) {
        return true;
    }
    uint32_t at = walk->depth++;
    for (struct entry *entry = first; entry; entry = source_chain(t, &ticket)) {
        if (entry != first && !source_same_unit(&first->rec, &entry->rec)) {
            break;
        }
        struct roll_rankset missing = {0};
        uint32_t unknown = waitgraph_missing(walk->e, t, entry, &missing);
        bool waits = unknown + roll_rankset_count(&missing) > 0;
        roll_rankset_fini(&missing);
        any = any || waits;
        walk->path[at] = (struct step){.source = t, .queue = q, .ticket = ticket};
        if (waits) {
            visit_call(walk, t, entry);
        }
    }
    walk->depth = at;
    return any;
}

/* Follows what the thread `caller` of t (0: what each of its threads) waits in. False: no incomplete call explains the
 * wait. */
static bool visit_threads(struct walk *walk, struct source *t, uint16_t caller)
{
    bool any = false;
    for (uint32_t i = 0; i < t->threads; i++) {
        const struct entry *in = t->thread[i].inside ? source_entry(t, t->thread[i].inside - 1) : NULL;
        if (!in || (caller != 0 && t->thread[i].id != caller)) {
            continue;
        }
        enum roll_op_class class = roll_op_class(in->rec.op);
        if (class == ROLL_CLASS_COMM) {
            any = walk_creation(walk, t, t->thread[i].inside - 1) || any;
            continue;
        }
        if (in->rec.op == ROLL_OP_COMM_QUERY && t->init != 0 && t->init_polled) {
            any = walk_creation(walk, t, t->init - 1) || any;
            continue;
        }
        bool covered = false;
        struct host_wait wait = source_wait(walk->e, t, &t->thread[i], &in->rec);
        bool several = class == ROLL_CLASS_POLL && t->thread[i].turns > 1;
        bool sure = !wait.vague && (!several || polls_in_vain(walk, t, &t->thread[i]));
        uint32_t stream = in->rec.stream;
        for (uint32_t k = 0; k < t->queues; k++) {
            struct queue *q = &t->queue[k];
            bool here = class == ROLL_CLASS_GROUP || (k == stream && !(wait.vague && stream == 0));
            here = here || roll_op_has(in->rec.op, ROLL_TRAIT_ALL);
            bool named = in->rec.op == ROLL_OP_STREAM_SYNC || in->rec.op == ROLL_OP_COPY;
            here = here || (named && queue_holds_stream(t, q, stream, t->thread[i].inside));
            if (in->rec.op == ROLL_OP_COMM_QUERY) {
                const struct entry *head = q->head ? source_entry(t, q->head - 1) : NULL;
                here = head && head->rec.comm == in->rec.comm;
            }
            if (!here && q->head != 0 && wait_behind(t, q, t->thread[i].inside) != 0) {
                covered = any = true; /* the stream, or the event, that the host waits for is behind these calls */
                walk_head(walk, t, q, false);
                continue;
            }
            if (q->head == 0 || q->head > wait.upto || !here || !wait.waits) {
                continue;
            }
            covered = true;
            if ((class == ROLL_CLASS_SYNC || class == ROLL_CLASS_POLL) &&
                (sure || source_quiet(walk->e, t, walk->e->config.suspect_ns))) {
                any = true; /* an event whose place is not known may stand before the head of its stream: soft */
                walk_head(walk, t, q, wait.soft);
            } else if (class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P) {
                any = visit_issue(walk, t, t->thread[i].inside - 1, q) || any;
            } else if (class == ROLL_CLASS_GROUP) {
                uint64_t start = queue_group_start(t, q, &in->rec);
                any = (start != 0 && visit_issue(walk, t, start - 1, q)) || any;
            }
        }
        if (!covered) {
            any = left_visit(walk, t, &in->rec, polls_left_upto(walk->e, t, &t->thread[i], &in->rec)) || any;
        }
    }
    return any;
}

/*
 * Follows what the host of t waits in. m: t's place on the communicator that lacks a call of t, or NULL. Where one
 * thread makes all calls of t there, the wait of that thread counts. What other threads wait in need not keep that one
 * from going on, so the links through them are soft.
 */
static bool visit_inside(struct walk *walk, struct source *t, const struct member *m)
{
    uint16_t caller = m && !m->many_callers && t->threads > 1 ? m->caller : 0;
    bool any = visit_threads(walk, t, caller);
    if (!any && caller != 0) {
        walk->soft++;
        any = visit_threads(walk, t, 0);
        walk->soft--;
    }
    return any;
}

/* Follows the incomplete calls of a quiet rank: it probably waits for them in a place that is not recorded (a blocking
 * copy). For those of a group that has not been ended nobody waits: they are not enqueued. False: it has none. */
static bool visit_quiet(struct walk *walk, struct source *t)
{
    bool any = false;
    for (uint32_t k = 0; k < t->queues; k++) {
        const struct entry *head = t->queue[k].head ? source_entry(t, t->queue[k].head - 1) : NULL;
        const struct member *m = head ? source_member(t, head->rec.comm) : NULL;
        if (t->queue[k].head != 0 && !(m && source_beside(t, m)) && !(head && source_group_open(t, &head->rec))) {
            any = true;
            walk_head(walk, t, &t->queue[k], true);
        }
    }
    return any;
}

/*
 * Why this member (m; NULL: not known) has not made its call: t is its process. Returns a reason that ends the walk,
 * with *hard; 0: the walk went on through t, or nothing is known. creation: t is missed in the creation of a
 * communicator, where it does not matter what t has called before.
 */
static enum block_kind absence(struct walk *walk, const struct member *m, struct source *t, bool creation, bool *hard)
{
    const struct roll_engine *e = walk->e;
    *hard = true;
    if (t->proc == ROLL_PROC_DEAD && walk->alive) {
        return BLOCK_DEAD;
    }
    if (t->no_room) { /* t may have made the call, and there was no room for it: nothing that t has told explains why
                         others wait. That it is stopped its agent tells. */
        return t->proc == ROLL_PROC_STOPPED ? BLOCK_STOPPED : BLOCK_UNHEARD;
    }
    if (m && m->unsure) {
        return 0; /* t may have made the call, and the record be lost */
    }
    if (m && m->ended != 0) {
        return rank_abort_is_due(e, m, t) ? BLOCK_ABORTED : 0;
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
    if (!creation && rank_has_passed(walk, t)) {
        *hard = source_blocked(walk->e, t) && !source_polls(t);
        return BLOCK_PASSED;
    }
    *hard = false;
    if (t->unheard && source_alive(t)) { /* t still waits if what it waits for has not come; else nobody knows */
        return source_blocked(walk->e, t) && visit_inside(walk, t, m) ? 0 : BLOCK_UNHEARD;
    }
    enum block_kind known = e->muted_comms > 0 && source_explained(t) ? BLOCK_KNOWN : 0;
    if (rank_thread_blocked(e, m, t)) {
        walk->soft++;
        bool any = visit_inside(walk, t, m);
        walk->soft--;
        return any ? 0 : known ? known : rank_is_short(walk, m, t) ? BLOCK_SHORT : 0;
    }
    if (t->init != 0 && !source_blocked(e, t) && source_quiet(e, t, e->config.suspect_ns)) {
        walk->soft++; /* another thread of t may still make the call */
        bool any = walk_creation(walk, t, t->init - 1);
        walk->soft--;
        return any ? 0 : known;
    }
    if (creation && !source_blocked(e, t)) {
        return known; /* t may only be late: detect_init.c waits for it */
    }
    if (source_blocked(walk->e, t)) {
        bool quiet =
            source_alive(t) && e->unheard == 0 && rank_has_room(e, t) && source_quiet(e, t, e->config.suspect_ns);
        if (visit_inside(walk, t, m)) {
            return 0;
        }
        return known                       ? known
               : creation || t->init != 0  ? 0
               : rank_is_short(walk, m, t) ? BLOCK_SHORT
               : quiet                     ? BLOCK_STUCK
                                           : 0;
    }
    if (source_quiet(e, t, e->config.suspect_ns) && source_alive(t)) {
        return visit_quiet(walk, t) ? 0 : known ? known : t->init == 0 ? BLOCK_BUSY : 0;
    }
    return 0;
}

/* Asks why t is absent, and adds it to those who are absent for the same kind of reason. */
static void absent(struct walk *walk, struct absences *a, const struct member *m, struct source *t, bool creation)
{
    bool hard;
    walk->e->walk_work++;
    enum block_kind kind = absence(walk, m, t, creation, &hard);
    if (kind != 0) {
        (void)roll_rankset_add(&a->of[kind].ranks, t->world);
        a->of[kind].hard = hard && (a->of[kind].hard || !a->of[kind].one); /* one verdict names them all */
        a->of[kind].one = a->of[kind].one ? a->of[kind].one : t;
    }
}

/* Asks why the member m of c has not made its call. */
static void visit_rank(struct walk *walk, const struct member *m, struct comm *c)
{
    struct absences a = {0};
    if (m->source != NO_SOURCE) { /* of a member that was never seen nothing is known, and nothing is said */
        absent(walk, &a, m, walk->e->source[m->source], false);
        absences_told(walk, &a, c);
    }
}

/*
 * Follows a host that is inside the creation of a communicator, which needs all members of the parent (or of the
 * communicator itself). Members that are dead or have ended are told by detect_init.c, which also knows those of whom
 * nothing has been seen. False: nothing is known for which the host could wait.
 */
bool walk_creation(struct walk *walk, struct source *t, uint64_t ticket)
{
    struct entry *entry = source_entry(t, ticket);
    struct member *m = entry ? source_member(t, entry->rec.comm) : NULL;
    if (!m || (entry->rec.op != ROLL_OP_COMM_INIT && entry->rec.op != ROLL_OP_COMM_SPLIT)) {
        return false;
    }
    if (path_closes(walk, t, NULL, ticket, walk->soft > 0, m->comm) || walk->depth == PATH_MAX_STEPS) {
        return true;
    }
    if (t->visit == walk->e->visit) {
        return true;
    }
    t->visit = walk->e->visit;
    uint32_t at = creation_find(walk, t, m, &entry->rec);
    if (at == UINT32_MAX) {
        return false;
    }
    if (walk->creation[at].done) {
        return walk->creation[at].any;
    }
    struct absences a = {0};
    walk->path[walk->depth++] = (struct step){.source = t, .ticket = ticket, .soft = walk->soft > 0};
    for (uint32_t i = 0; i < walk->creation[at].absentees; i++) {
        struct absentee one = walk->creation[at].absentee[i]; /* a copy, because the walk may make the table grow */
        absent(walk, &a, one.member, one.source, true);
    }
    absences_told(walk, &a, m->comm);
    walk->depth--;
    walk->creation[at].done = true;
    walk->creation[at].any = walk->creation[at].absentees > 0;
    return walk->creation[at].any;
}

/* The member has made its call, but other calls stand before it on its stream: follows the head of that queue. Returns
 * whether there is more to follow for whoever comes here on another path: a circle that closes at that head, or a group
 * that is open. */
static bool visit_behind(struct walk *walk, struct member *m, struct comm *c, uint32_t seq, uint64_t p2p_ticket)
{
    if (m->source == NO_SOURCE) {
        return false;
    }
    struct source *t = walk->e->source[m->source];
    walk->e->walk_work++;
    struct queue *q = queue_held_behind(t, rank_comm_id(t, m), seq, p2p_ticket);
    if (!q) {
        return false;
    }
    const struct entry *head = source_entry(t, q->head - 1);
    if (head && source_group_open(t, &head->rec)) {
        visit_rank(walk, m, c); /* the group of the head has not been ended, so nothing of the group is issued */
        return true;
    }
    walk_head(walk, t, q, false);
    return q->visit != walk->e->visit * 2;
}

static void visit_missing(struct walk *walk, const struct collective *at)
{
    struct absences a = {0};
    for (uint32_t i = 0; i < at->used; i++) {
        const struct member *m = &at->comm->member[at->list[i]];
        if (m->source != NO_SOURCE) { /* of a member that was never seen nothing is known, and nothing is said */
            absent(walk, &a, m, walk->e->source[m->source], false);
        }
    }
    absences_told(walk, &a, at->comm);
}

/*
 * Follows the members that have not made this collective; where all have, those whose call stands behind others. The
 * walk may come here again, on a longer path, as often as there are members that wait here: what is followed then says
 * wait_members.c.
 */
static void follow_members(struct walk *walk, struct collective *at)
{
    if (at->is_missing) {
        visit_missing(walk, at);
        return;
    }
    for (uint32_t r = 0; walk->depth < PATH_MAX_STEPS && members_next(at, &r); r++) {
        if (!visit_behind(walk, &at->comm->member[r], at->comm, at->seq, 0)) {
            members_done(at, r);
        }
    }
}

static void visit_collective(struct walk *walk, const struct entry *entry, struct comm *c)
{
    uint32_t seq = entry->rec.seq, mark = walk->e->visit * 2;
    struct slot *slot = comm_slot(c, seq);
    struct collective *again = slot->visit == mark + 1 ? walk->collective : NULL;
    while (again && (again->comm != c || again->seq != seq)) {
        again = again->up;
    }
    if (again) {
        follow_members(walk, again);
    } else if (slot->visit != mark) {
        struct collective first = {.comm = c, .seq = seq, .up = walk->collective};
        slot->visit = mark + 1;
        walk->collective = &first;
        if (members_begin(&first)) {
            follow_members(walk, &first);
        }
        walk->collective = first.up;
        slot->visit = mark;
        free(first.list);
    }
}

/* Follows a Gather or Scatter of a member that is not its root: the member waits for the root alone. Where the root has
 * not come, all members that have not come are named. */
static void visit_leaf(struct walk *walk, const struct entry *entry, struct comm *c)
{
    uint32_t root = (uint32_t)entry->rec.peer;
    if (root < c->size && comm_member_issued(&c->member[root], entry->rec.seq)) {
        (void)visit_behind(walk, &c->member[root], c, entry->rec.seq, 0);
    } else {
        visit_collective(walk, entry, c);
    }
}

/* Follows one call of s that is not over to those for whom it waits. */
static void visit_call(struct walk *walk, struct source *s, struct entry *entry)
{
    struct member *m = source_member(s, entry->rec.comm);
    if (!m || entry_over(s, entry)) {
        return;
    }
    struct comm *c = m->comm;
    if (c->blamed) {
        path_leaf_one(walk, BLOCK_BLAMED, s, c, true);
    } else if (c->muted) {
        path_leaf_one(walk, BLOCK_KNOWN, s, c, true);
    } else if (roll_op_class(entry->rec.op) == ROLL_CLASS_COLL) {
        if (comm_slot(c, entry->rec.seq)->held) {
            path_leaf_one(walk, BLOCK_KNOWN, s, c, true); /* a disagreement that align.c is about to judge */
        } else if (lowered_leaf(m, &entry->rec)) {
            visit_leaf(walk, entry, c);
        } else {
            visit_collective(walk, entry, c);
        }
    } else if (entry->pair && entry->pair->said) {
        path_leaf_one(walk, BLOCK_KNOWN, s, c,
                      true); /* the two sides differ, which detect_alltoallv.c is about to judge */
    } else if (entry->pair) {
        unsigned other = !p2p_side(&entry->rec);
        struct node *n = p2p_node(entry->pair, entry->index);
        struct member *peer = &c->member[entry->pair->end[other]];
        if (n->have & 1u << other) {
            (void)visit_behind(walk, peer, c, 0, n->ticket[other] + 1);
        } else if (p2p_known(entry->pair, other)) { /* else the peer may have made its side, and the record be lost */
            visit_rank(walk, peer, c);
        }
    }
}

void walk_head(struct walk *walk, struct source *s, struct queue *q, bool soft)
{
    soft = soft || walk->soft > 0;
    uint32_t mark = walk->e->visit * 2;
    uint64_t ticket = q->head - 1;
    struct entry *head = source_entry(s, ticket);
    if (!head || q->visit == mark || walk->depth == PATH_MAX_STEPS) {
        return;
    }
    struct member *m = source_member(s, head->rec.comm);
    if (q->visit == mark + 1) {
        (void)path_closes(walk, s, q, ticket, soft, m ? m->comm : NULL);
        return;
    }
    struct queue *before[ROLL_BEHIND_MAX];
    uint32_t held = sweep_held(s, q, before);
    if (held > 0) {
        /* It waits for what stands before it by events, and not yet for its members. It is no step of the path, and is
         * marked afterwards, because the path may come here again and go on to one of its steps. */
        walk->held++;
        for (uint32_t i = 0; i < held && walk->held <= HELD_MAX; i++) {
            walk_head(walk, s, before[i], soft);
        }
        walk->held--;
        q->visit = mark;
        return;
    }
    q->visit = mark + 1;
    uint32_t at = walk->depth++;
    for (struct entry *entry = head; entry; entry = source_chain(s, &ticket)) {
        if (entry != head && !source_same_unit(&head->rec, &entry->rec)) {
            break;
        }
        walk->path[at] = (struct step){.source = s, .queue = q, .ticket = ticket, .soft = soft};
        visit_call(walk, s, entry);
    }
    walk->depth = at;
    q->visit = mark;
}
