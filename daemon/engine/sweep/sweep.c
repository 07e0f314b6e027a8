/*
 * sweep.c: which calls are complete, as far as the ranks' calls can tell.
 *
 * A call is ready when everything before it on its stream is complete, and it is complete when it is ready on every
 * member. So the heads of all stream queues are counted as ready, complete calls leave their queues, and the next heads
 * follow, until nothing moves. To do it with each record was rejected: the fast path only appends.
 *
 * A rank whose queues have been looked at moves again only when it makes a call, when a call that it waits in is
 * answered, or when what is judged of a communicator changes; whoever brings that about stirs the rank (source_stir and
 * its like). A sweep looks at stirred ranks only, so its cost follows the records, however far the ranks are apart: to
 * look at all ranks whenever a log is full took minutes where this takes seconds (16,384 ranks, 256 calls apart).
 * Before a stall is judged all ranks are looked at all the same, at most every stall/8.
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
    if (m && entry->index == COLL_ISSUED) {
        match_ready(m, entry->rec.seq);
        entry->index = COLL_READY;
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

/* Takes the calls that are over out of a queue; those before ticket `over` are known to be. True: the queue has moved,
 * so that others may move. */
static bool queue_advance(struct roll_engine *e, struct source *s, struct queue *q, uint64_t over)
{
    bool moved = false;
    while (q->head != 0) {
        struct entry *head = source_entry(s, q->head - 1);
        if (!head) { /* the log has lost it: the call was given up */
            q->head = q->tail = 0;
            break;
        }
        if (source_group_open(s, &head->rec)) {
            break;
        }
        if (s->queues > 1 && q->head - 1 >= over && !q->marked && sweep_turn(s, head, q->head - 1)) {
            break;
        }
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
    for (uint32_t k = 0; k < s->queues; k++) {
        if (wait->op == ROLL_OP_DEVICE_SYNC || k == wait->stream) {
            (void)queue_advance(e, s, &s->queue[k], over);
        }
    }
}

void sweep_done(struct roll_engine *e, struct source *s, const struct roll_record *rec)
{
    uint64_t upto = roll_seal_ticket(rec->seal) + 1;
    s->completes = true;
    /* A stream may have no queue yet: its calls never wait there, like those of no elements. */
    if (source_queue_open(s, rec->stream) == 0) {
        struct queue *q = &s->queue[rec->stream];
        q->done = upto > q->done ? upto : q->done;
        (void)queue_advance(e, s, q, upto);
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

void sweep_stirred(struct roll_engine *e)
{
    for (uint32_t word = 0; e->stirs > 0; word = (word + 1) * 64 < e->sources ? word + 1 : 0) {
        while (e->stirred[word] != 0) {
            uint32_t bit = (uint32_t)__builtin_ctzll(e->stirred[word]);
            e->stirred[word] &= e->stirred[word] - 1;
            e->stirs--;
            while (source_advance(e, e->source[word * 64 + bit])) {
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
