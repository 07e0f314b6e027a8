/*
 * sweep.c: which calls are complete, as far as the ranks' calls can tell.
 *
 * A call is ready when everything before it on its stream is complete, and it is complete when it is ready on every
 * member. So the heads of all stream queues are counted as ready, complete calls leave their queues, and the next heads
 * follow, until nothing moves. To do it with each record was rejected: the fast path only appends. Chained calls
 * (struct slot) get complete without a look at their queues, which then let go of all of them in one look.
 *
 * A rank whose queues have been looked at moves again only when it makes a call, when a call that it waits in is
 * answered, or when what is judged of a communicator changes; whoever brings that about stirs the rank (source_stir and
 * its like, which say in which queues: to fetch a queue that cannot move is most of what a look costs). A sweep looks
 * at stirred ranks only, so its cost follows the records, however far the ranks are apart: to look at all ranks
 * whenever a log is full took minutes where this takes seconds (16,384 ranks, 256 calls apart). Before a stall is
 * judged all ranks are looked at all the same, at most once per stall_ns.
 *
 * The time that a device needs is not modelled: a call that could run has run. The reverse is seen: when a host comes
 * back from waiting for a stream, all earlier calls on the stream are over on that rank, whatever other ranks have
 * called (a small message may be buffered, a root need not wait for its receivers, a wait may end with an error).
 *
 * A process that has ended, or that has aborted a communicator, waits for nothing any more. Whether the calls that it
 * had enqueued were done by then is asked only when the host of a peer waits for one of them (judge/wait_left.c),
 * because the records of its peers may merely be late.
 */
#include "daemon/engine/sweep/sweep.h"
#include "daemon/engine/model/budget.h"

#define TURN_LOOK 64u /* calls of another stream that are looked at for one on the same communicator */

struct queue *sweep_turn(struct source *s, const struct entry *entry, uint64_t ticket)
{
    const struct member *m = source_member(s, entry->rec.comm);
    for (uint32_t k = 0; m && m->many_queues && k < s->queues; k++) {
        struct queue *q = &s->queue[k];
        uint64_t at = q->head - 1;
        struct entry *other = q->head ? source_entry(s, at) : NULL;
        for (uint32_t n = 0; other && other != entry && at < ticket && n < TURN_LOOK; n++) {
            if (other->rec.comm == entry->rec.comm && !source_same_unit(&other->rec, &entry->rec) &&
                !entry_complete(s, other)) {
                return q;
            }
            other = source_chain(s, &at);
        }
    }
    return NULL;
}

uint32_t sweep_held(struct source *s, const struct queue *q, struct queue **out)
{
    uint64_t ticket = q->head - 1;
    const struct entry *head = q->head != 0 ? source_entry(s, ticket) : NULL;
    uint32_t n = 0;
    for (const struct entry *entry = head; entry; entry = source_chain(s, &ticket)) {
        if (entry != head && !source_same_unit(&head->rec, &entry->rec)) {
            break;
        }
        uint64_t behind[ROLL_BEHIND_MAX];
        uint32_t calls = source_behind(s, entry, ticket, behind);
        for (uint32_t i = 0; i < calls && n < ROLL_BEHIND_MAX; i++) {
            struct queue *before = source_before(s, behind[i]);
            uint32_t k = 0;
            while (k < n && out[k] != before) {
                k++;
            }
            if (before && before != q && k == n) {
                out[n++] = before;
            }
        }
    }
    return n;
}

bool entry_over(const struct source *s, const struct entry *entry)
{
    const struct member *m = source_member(s, entry->rec.comm);
    if (entry_complete(s, entry)) {
        return true;
    }
    const struct slot *slot = m && lowered_leaf(m, &entry->rec) ? comm_slot(m->comm, entry->rec.seq) : NULL;
    return slot && slot->root_ready && !slot->held;
}

/* The slot or node of this call counts it as ready. */
static void entry_ready(struct roll_engine *e, const struct source *s, struct entry *entry)
{
    if (roll_op_class(entry->rec.op) == ROLL_CLASS_P2P) {
        p2p_ready(entry);
        return;
    }
    struct member *m = source_member(s, entry->rec.comm);
    struct brief *brief = source_brief(s, entry);
    if (m && entry->rec.seq >= m->comm->base && (brief->state == COLL_ISSUED || brief->state == COLL_CHAINED)) {
        comm_slot(m->comm, entry->rec.seq)->chained -= brief->state == COLL_CHAINED;
        match_ready(m->comm, entry->rec.seq);
        brief->state = COLL_READY;
        if (lowered_root(m, &entry->rec) && entry->rec.seq >= m->comm->base && entry->rec.seq < m->comm->high) {
            comm_slot(m->comm, entry->rec.seq)->root_ready = true;
            comm_stir(m->comm);
        }
        if (entry->rec.seq == m->comm->base) {
            comm_advance(e, m->comm);
        }
    }
}

/* Counts the head of a queue and the rest of its group as ready. True: all of them are over on their rank. *last: the
 * ticket of the last of them. */
static bool unit_done(struct roll_engine *e, const struct source *s, struct queue *q, uint64_t *last)
{
    uint64_t ticket = q->head - 1;
    struct entry *head = source_entry(s, ticket);
    bool done = true;
    for (struct entry *entry = head; entry; entry = source_chain(s, &ticket)) {
        if (entry != head && !source_same_unit(&head->rec, &entry->rec)) {
            break;
        }
        *last = ticket;
        if (!q->marked) {
            entry_ready(e, s, entry);
        }
        done = done && entry_over(s, entry);
    }
    q->marked = true;
    return done;
}

/* Counts the head of a queue, which is of the common kind, as ready, if it has not been before. True: it was not. */
static bool brief_ready(struct roll_engine *e, struct comm *c, struct queue *q, struct brief *brief)
{
    if (q->marked) {
        return false;
    }
    q->marked = true;
    if (brief->state == COLL_ISSUED || brief->state == COLL_CHAINED) {
        comm_slot(c, brief->seq)->chained -= brief->state == COLL_CHAINED;
        match_ready(c, brief->seq);
        brief->state = COLL_READY;
        if (brief->seq == c->base) {
            comm_advance(e, c);
        }
    }
    return true;
}

/*
 * What queue_advance does, for calls of the common kind, which are units of their own and complete for all members or
 * for none: without a look at their records, which by now are in no cache. True: the queue has come to a call that
 * wants such a look. Where queues of the rank wait for each other, or somebody has aborted, all calls do.
 */
static bool queue_skip(struct roll_engine *e, const struct source *s, struct queue *q, uint64_t over, bool *moved)
{
    if (s->crosses || e->aborts > 0 || s->fog != 0 || !source_alive(s)) {
        return true;
    }
    while (q->head != 0) {
        struct brief *brief = source_brief_at(s, q->head - 1);
        struct comm *c = brief ? source_comm(s, brief->comm) : NULL;
        if (!c || (brief->next == 0 && q->head != q->tail)) {
            return true;
        }
        if (brief->seq >= c->base) {
            *moved = brief_ready(e, c, q, brief) || *moved;
            if (q->head - 1 >= over && !comm_complete(c, brief->seq)) {
                return false;
            }
        }
        q->head = brief->next != 0 ? q->head + brief->next : 0;
        q->tail = q->head != 0 ? q->tail : 0;
        q->marked = false;
        q->since = e->clock;
        *moved = true;
    }
    return false;
}

/* Takes the calls that are over out of a queue; those before ticket `over` are known to be. True: the queue has moved,
 * so that others may move. */
static bool queue_advance(struct roll_engine *e, struct source *s, struct queue *q, uint64_t over)
{
    bool moved = false;
    while (q->head != 0) {
        if (!queue_skip(e, s, q, over, &moved)) {
            break;
        }
        struct entry *head = source_entry(s, q->head - 1);
        if (!head) { /* the log has lost it: the call was given up */
            q->head = q->tail = 0;
            break;
        }
        bool open = source_group_open(s, &head->rec);
        if (q->grouped && !open) {
            q->since = e->clock; /* it waits from the end of its group on */
        }
        q->grouped = open;
        if (open || (s->fog != 0 && q->head > s->fog && q->head - 1 >= over)) {
            break;
        }
        if (s->queues > 1 && q->head - 1 >= over && !q->marked && sweep_turn(s, head, q->head - 1)) {
            break;
        }
        struct queue *before[ROLL_BEHIND_MAX];
        if (s->crosses && q->head - 1 >= over && !q->marked && sweep_held(s, q, before) > 0) {
            q->since = e->clock; /* it waits for its members from the moment at which it may run */
            break;
        }
        source_ask(s, q->head + 7); /* calls of one stream lie some entries apart */
        source_ask(s, q->head + 9);
        bool fresh = !q->marked;
        uint64_t last = 0;
        bool done = unit_done(e, s, q, &last);
        moved = moved || fresh || done;
        if (!done && last >= over) {
            break;
        }
        struct entry *next = source_chain(s, &last);
        q->head = next ? last + 1 : 0;
        q->tail = next ? q->tail : 0;
        q->marked = false;
        q->since = e->clock;
    }
    return moved;
}

void sweep_waited(struct roll_engine *e, struct source *s, const struct roll_record *wait)
{
    uint64_t over = roll_seal_ticket(wait->seal);
    budget_fog_lifts(s, wait->op == ROLL_OP_DEVICE_SYNC ? ALL_QUEUES : wait->stream, over);
    for (uint32_t k = 0; k < s->queues; k++) {
        if (wait->op == ROLL_OP_DEVICE_SYNC || k == wait->stream) {
            (void)queue_advance(e, s, &s->queue[k], over);
        }
    }
    if (s->crosses) { /* calls that are taken out here, complete or not, may let other queues move */
        source_stir(e, s->number);
    }
    const struct entry *entry = source_entry(s, over);
    uint64_t behind[ROLL_BEHIND_MAX];
    uint32_t calls = entry ? source_behind(s, entry, over, behind) : 0;
    for (uint32_t i = 0; i < calls; i++) {
        struct queue *before = source_before(s, behind[i]);
        if (before) {
            (void)queue_advance(e, s, before, behind[i] + 1);
        }
    }
}

void sweep_done(struct roll_engine *e, struct source *s, const struct roll_record *rec)
{
    uint64_t upto = roll_seal_ticket(rec->seal) + 1;
    s->completes = true;
    budget_fog_lifts(s, rec->stream, upto);
    /* A stream may have no queue yet: its calls never wait there, like those of no elements. */
    if (source_queue_open(s, rec->stream) == 0) {
        struct queue *q = &s->queue[rec->stream];
        q->done = upto > q->done ? upto : q->done;
        (void)queue_advance(e, s, q, upto);
        if (s->crosses) {
            source_stir(e, s->number);
        }
    }
}

/* Takes the complete calls out of all queues of a source. True: some queue has moved. */
static bool source_advance(struct roll_engine *e, struct source *s)
{
    bool moved = false;
    for (uint32_t k = 0; k < s->queues; k++) {
        moved = (s->queue[k].head != 0 && queue_advance(e, s, &s->queue[k], 0)) || moved;
    }
    return moved;
}

/* The same for some queues (queue_bit). One that moves may let others move, where the calls of a communicator stand in
 * several. */
static void source_advance_some(struct roll_engine *e, struct source *s, uint32_t queues)
{
    bool moved = false;
    for (uint32_t rest = queues; rest != 0; rest &= rest - 1) {
        uint32_t k = (uint32_t)__builtin_ctz(rest), end = k < 31 ? k + 1 : s->queues;
        for (; k < end && k < s->queues; k++) {
            moved = (s->queue[k].head != 0 && queue_advance(e, s, &s->queue[k], 0)) || moved;
        }
    }
    while (moved && s->crosses) {
        moved = source_advance(e, s);
    }
}

/* Memory is asked for three times before a rank's turn, this many ranks apart: each time needs what the last one read.
 */
#define AHEAD 4u

/* Asks for what the sweep will need of a source that is `ahead` ranks away from its turn. */
ASKS_MEMORY void ask_ahead(const struct roll_engine *e, uint32_t source, uint32_t ahead)
{
    const struct source *s = e->source[source];
    if (ahead >= 3 * AHEAD) {
        __builtin_prefetch(s);
        __builtin_prefetch((const char *)s + 64);
        return;
    }
    uint32_t queues = e->stirred_queues[source], k = queues == 0 ? 0 : (uint32_t)__builtin_ctz(queues);
    if (k >= s->queues) {
        return;
    }
    const struct queue *q = &s->queue[k];
    if (ahead >= 2 * AHEAD) {
        __builtin_prefetch(q);
        __builtin_prefetch(s->comm);
        __builtin_prefetch(s->log);
        return;
    }
    if (q->head == 0) {
        return;
    }
    const struct brief *brief = source_brief_at(s, q->head - 1);
    if (!brief) {
        return;
    }
    if (ahead >= AHEAD) {
        __builtin_prefetch(brief, 1);
        __builtin_prefetch((const char *)brief + CACHE_LINE, 1);
    } else if (brief->comm != 0) {
        __builtin_prefetch(source_comm(s, brief->comm));
    } else {
        source_ask(s, q->head - 1);
    }
}

#define TURNS 512u /* stirred sources that are taken up at once: with fewer there is nobody to ask ahead for */

/* Takes up stirred sources from this word of bits on, round by round, into source[TURNS + 64]. *word: where to go on.
 * Returns how many. */
static uint32_t take_up(struct roll_engine *e, uint32_t *word, uint32_t *source)
{
    uint32_t n = 0, words = (e->sources + 63) / 64;
    for (uint32_t k = 0; k < words && n < TURNS && e->stirs > 0; k++) {
        uint64_t rest = e->stirred[*word];
        e->stirred[*word] = 0;
        e->stirs -= (uint32_t)__builtin_popcountll(rest);
        for (; rest != 0; rest &= rest - 1) {
            source[n++] = *word * 64 + (uint32_t)__builtin_ctzll(rest);
        }
        *word = *word + 1 < words ? *word + 1 : 0;
    }
    return n;
}

void sweep_stirred(struct roll_engine *e)
{
    uint32_t source[TURNS + 64], word = 0;
    while (e->stirs > 0) {
        uint32_t n = take_up(e, &word, source);
        e->looks += n;
        for (uint32_t i = 0; i < n + 3 * AHEAD; i++) {
            for (uint32_t ahead = 3 * AHEAD; ahead > 0; ahead -= AHEAD) {
                if (i >= 3 * AHEAD - ahead && i - (3 * AHEAD - ahead) < n) {
                    ask_ahead(e, source[i - (3 * AHEAD - ahead)], ahead);
                }
            }
            if (i >= 3 * AHEAD) {
                uint32_t at = source[i - 3 * AHEAD], queues = e->stirred_queues[at];
                e->stirred_queues[at] = 0;
                source_advance_some(e, e->source[at], queues);
            }
        }
    }
}

void sweep(struct roll_engine *e)
{
    bool moved = true;
    while (moved) {
        moved = false;
        e->looks += e->sources;
        for (uint32_t i = 0; i < e->sources; i++) {
            moved = source_advance(e, e->source[i]) || moved;
        }
    }
    sweep_stirred(e); /* empties the list */
    e->dirty = false;
}
