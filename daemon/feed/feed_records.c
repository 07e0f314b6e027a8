/*
 * feed_records.c: the records of one ring: what is new, what is known, what is lost.
 *
 * A record's ticket says exactly what has been seen, so a sender that repeats itself after a reconnect costs nothing,
 * and a hole in the tickets is a loss, not a guess.
 */
#include "daemon/feed/feed_state.h"

#include "daemon/base/array.h"
#include "trace/err.h"

#include <string.h>

#define MAX_OPEN      65536u  /* calls of one ring that are inside NCCL: more than a process has threads */
#define CLOCK_STEP_NS 1000000 /* smaller changes of a clock pair are noise of reading two clocks */

/* Position of the ticket in the open list, or where it would be. */
static size_t open_find(const struct roll_stream *s, uint64_t ticket)
{
    size_t lo = 0, hi = s->open_used;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (s->open[mid] < ticket) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

static int open_add(struct roll_stream *s, uint64_t ticket)
{
    int err = ROLL_GROW(s->open, s->open_room, s->open_used + 1);
    if (err) {
        return err;
    }
    if (s->open_used ==
        MAX_OPEN) { /* the sender is hostile or broken: the oldest ticket is forgotten, and its call stays "entered" */
        memmove(s->open, s->open + 1, (s->open_used - 1) * sizeof(*s->open));
        s->open_used--;
    }
    s->open[s->open_used++] = ticket;
    return 0;
}

/* Takes the ticket off the list. False when the ticket was not open: then the record brings no news. */
static bool open_take(struct roll_stream *s, uint64_t ticket)
{
    size_t i = open_find(s, ticket);
    if (i == s->open_used || s->open[i] != ticket) {
        return false;
    }
    memmove(s->open + i, s->open + i + 1, (s->open_used - i - 1) * sizeof(*s->open));
    s->open_used--;
    return true;
}

static void lost(roll_feed_t *feed, struct roll_stream *s, uint64_t upto)
{
    uint64_t count = upto - s->view.next_ticket;
    uint64_t *kind = feed->recorded && !s->begun ? &s->view.older : &s->view.lost;
    *kind += count;
    roll_engine_lost(feed->engine, s->view.source, s->view.next_ticket, count);
    s->view.next_ticket = upto;
}

static int flush(roll_feed_t *feed, struct roll_stream *s, size_t *n)
{
    int err = *n ? roll_engine_feed(feed->engine, s->view.source, feed->batch, *n) : 0;
    *n = 0;
    return err;
}

static void tell(roll_feed_t *feed, const struct roll_stream *s, const struct roll_record *rec,
                 enum roll_feed_news news)
{
    if (feed->watch) {
        feed->watch->record(feed->watch->ctx, feed, &s->view, rec, rec->enter_ns + (uint64_t)s->clock_offset, news);
    }
}

/* Takes RECORDS and UPDATES alike: a ticket that was fed before counts as an update in both; a new ticket counts in
 * RECORDS only. */
int roll_feed_take_records(roll_feed_t *feed, struct roll_stream *s, const struct roll_frame *frame)
{
    bool updates = frame->head.type == ROLL_FRAME_UPDATES;
    size_t n = 0;
    int err = 0;
    uint64_t expect = updates ? 0 : frame->head.first;
    for (uint32_t i = 0; i < frame->head.count && !err; i++) {
        struct roll_record *rec = &feed->batch[n];
        roll_frame_record(frame, i, rec);
        uint64_t ticket = roll_seal_ticket(rec->seal);
        bool entered = roll_seal_state(rec->seal) == ROLL_STATE_ENTERED;
        if (roll_seal_state(rec->seal) == ROLL_STATE_EMPTY || ticket < expect) {
            err = ROLL_E_CORRUPT; /* the records are not in ticket order */
            break;
        }
        expect = ticket + 1;
        if (ticket < s->view.next_ticket) {
            /* The completion of a call on the device is news after the call's return, too, and does no harm when it
             * comes twice. */
            bool complete = roll_seal_state(rec->seal) == ROLL_STATE_COMPLETE;
            bool was_open = !entered && open_take(s, ticket);
            if (!was_open && (entered || !complete)) {
                s->view.duplicates++;
                continue;
            }
            tell(feed, s, rec, was_open ? ROLL_FEED_RETURNED : ROLL_FEED_COMPLETED);
        } else if (updates) {
            continue; /* this updates a record that was lost on the way here */
        } else {
            if (ticket > s->view.next_ticket) {
                err = flush(feed, s, &n);
                feed->batch[0] = *rec;
                lost(feed, s, ticket);
                rec = &feed->batch[0];
            }
            s->view.next_ticket = ticket + 1;
            s->view.fed++;
            s->begun = s->begun || (frame->head.flags & ROLL_RECORDS_REPEATED) == 0;
            if (entered && !err) {
                err = open_add(s, ticket);
            }
            tell(feed, s, rec, ROLL_FEED_FIRST);
        }
        if (!err && ++n == ROLL_FEED_BATCH) {
            err = flush(feed, s, &n);
        }
    }
    int last = flush(feed, s, &n);
    return err ? err : last;
}

/*
 * A ring of which only the newest records come: the engine is told where the rank stands before the first of them, and
 * what lies before counts as made. Behind the ring's first record such a word has no meaning any more, and is ignored:
 * an agent that begins its conversation anew sends it again.
 */
int roll_feed_take_place(roll_feed_t *feed, struct roll_stream *s, const struct roll_frame *frame)
{
    int err = 0;
    if (frame->head.payload % sizeof(struct roll_frame_place) != 0) {
        return ROLL_E_SIZE;
    }
    if (s->view.next_ticket != 0) {
        return 0;
    }
    for (size_t at = 0; at < frame->head.payload && err != ROLL_E_NOMEM; at += sizeof(struct roll_frame_place)) {
        struct roll_frame_place p;
        int one;
        memcpy(&p, frame->payload + at, sizeof(p));
        if (p.op == ROLL_OP_SEND || p.op == ROLL_OP_RECV) {
            one = roll_engine_place_made(feed->engine, s->view.source, p.comm, (enum roll_op)p.op, p.peer, p.next,
                                         p.sure ? p.made : UINT32_MAX);
        } else if (p.op != ROLL_OP_NONE) {
            one = ROLL_E_CORRUPT;
        } else if (frame->head.first == 0) {
            one = 0; /* all of the ring comes: its collectives are counted from their beginning */
        } else {
            one = roll_engine_place(feed->engine, s->view.source, p.comm, p.next, p.sure != 0);
            one = one ? one : roll_engine_place_splits(feed->engine, s->view.source, p.comm, p.made);
        }
        err = err || one == ROLL_E_LIMIT ? err : one; /* a refusal is counted, and told by a note */
    }
    s->view.next_ticket = frame->head.first;
    return err;
}

/* The ring's count of calls was damaged. 0: the sender does not tell it. */
static bool goes_back(const struct roll_frame_status *before, const struct roll_frame_status *now)
{
    return now->head != 0 && now->head < before->head;
}

/*
 * The clock of a node was set: do its records follow? Where that brings them nearer to the wall clock of who feeds. A
 * node whose clock was set wrong keeps its old one: nobody calls in the time to come, and what the engine holds for
 * over would be so only there.
 */
static bool follows(const roll_feed_t *feed, const struct roll_frame_status *status, int64_t before, int64_t after)
{
    uint64_t now = feed->stamp_ns, was = status->clock_mono_ns + (uint64_t)before,
             is = status->clock_mono_ns + (uint64_t)after;
    return now == 0 || (is > now ? is - now : now - is) < (was > now ? was - now : now - was);
}

static uint64_t add(uint64_t a, uint64_t b)
{
    return a + b < a ? UINT64_MAX : a + b;
}

/*
 * What the ring counts by now, by cause. Its agent counts what it finds written over, once in the ring's life. What an
 * agent had sent and nobody got, and what a reader before this one had, it does not count: the rest of what is missing
 * here was dropped on its way to this reader, which is not so of what is older than a recording. A STATUS comes behind
 * the records that it speaks of, so what is counted late does not look like that. A frame in which a reader says what
 * it lacks was rejected: an agent can do nothing about it, and readers of a ring may lack different records.
 */
static void take_losses(struct roll_stream *s, const struct roll_frame_status *status)
{
    const uint64_t *losses = status->losses;
    uint64_t counted = add(add(losses[ROLL_LOSS_OVERRUN], losses[ROLL_LOSS_WIRE]), losses[ROLL_LOSS_CORRUPT]);
    uint64_t dropped = s->view.lost > counted ? s->view.lost - counted : 0;
    s->dropped = dropped > s->dropped ? dropped : s->dropped; /* a counter never falls */
    memcpy(s->view.losses, losses, sizeof(s->view.losses));
    s->view.losses[ROLL_LOSS_WIRE] = add(losses[ROLL_LOSS_WIRE], s->dropped);
}

int roll_feed_take_status(roll_feed_t *feed, struct roll_stream *s, const struct roll_frame *frame)
{
    struct roll_frame_status status;
    if (frame->head.payload < sizeof(status)) {
        return ROLL_E_SIZE;
    }
    memcpy(&status, frame->payload, sizeof(status));
    if (status.proc_state < ROLL_PROC_RUNNING || status.proc_state > ROLL_PROC_DEAD) {
        return ROLL_E_CORRUPT;
    }
    if (goes_back(&s->status, &status) && status.head < s->view.next_ticket) {
        lost(feed, s, s->view.next_ticket + 1); /* calls go on, and no record of them will come */
    }
    s->status = status;
    int64_t offset = (int64_t)(status.clock_real_ns - status.clock_mono_ns);
    int64_t step = (int64_t)((uint64_t)offset - (uint64_t)s->clock_offset);
    if ((step > CLOCK_STEP_NS || step < -CLOCK_STEP_NS) && follows(feed, &status, s->clock_offset, offset)) {
        s->clock_offset = offset;
        (void)roll_engine_clock_set(feed->engine, s->view.source, offset, status.clock_mono_ns);
    }
    enum roll_proc_state proc = (enum roll_proc_state)status.proc_state;
    bool gone = proc == ROLL_PROC_FINISHED || proc == ROLL_PROC_DEAD;
    if (gone && status.head > s->view.next_ticket) { /* records that a dead process left unsealed will never come */
        lost(feed, s, status.head);
    }
    take_losses(s, &status);
    if (proc == s->view.proc && status.exit_status == s->view.exit_status) {
        return 0;
    }
    s->view.proc = proc;
    s->view.exit_status = status.exit_status;
    return roll_engine_process(feed->engine, s->view.source, proc, status.exit_status);
}

bool roll_feed_status(const roll_feed_t *feed, uint64_t stream, struct roll_frame_status *out)
{
    const struct roll_stream *s = roll_feed_stream_of(feed, stream);
    if (!s || s->status.proc_state == 0) {
        return false;
    }
    *out = s->status;
    return true;
}

static int64_t offset_of(const struct roll_frame_status *s)
{
    return (int64_t)(s->clock_real_ns - s->clock_mono_ns);
}

bool roll_feed_status_is_news(const struct roll_frame_status *before, const struct roll_frame_status *now)
{
    int64_t step = (int64_t)((uint64_t)offset_of(now) - (uint64_t)offset_of(before));
    bool gone = now->proc_state == ROLL_PROC_FINISHED || now->proc_state == ROLL_PROC_DEAD;
    return gone || goes_back(before, now) || now->proc_state != before->proc_state ||
           now->exit_status != before->exit_status || memcmp(now->losses, before->losses, sizeof(now->losses)) != 0 ||
           step > CLOCK_STEP_NS || step < -CLOCK_STEP_NS;
}

bool roll_feed_is_news(const roll_feed_t *feed, const struct roll_frame *frame)
{
    struct roll_frame_status status;
    bool known = frame->head.type == ROLL_FRAME_STATUS && frame->head.payload >= sizeof(status) && feed->used > 0;
    const struct roll_stream *s = known ? roll_feed_stream_of(feed, frame->head.stream) : NULL;
    if (!s || !s->view.heard) { /* any frame about a ring whose agent was not heard is news */
        return true;
    }
    memcpy(&status, frame->payload, sizeof(status));
    return roll_feed_status_is_news(&s->status, &status);
}
