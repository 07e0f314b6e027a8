/*
 * stuck_trouble.c: whether another trouble that the records show may be why all members stand in a call.
 *
 * Each of these may hold up calls that look complete: a rank that has died or is stopped, lost records, and a
 * communicator that is muted, that some members have aborted, or that is judged no more. Such trouble holds up only the
 * ranks that depend on it. A rank depends on the calls that it is not known to have left: on their communicators, on
 * the members of these, and on what those members depend on in turn. A call explains nothing any more when the host has
 * returned from a wait for it, so trouble ends with the first wait that covers it. A wait for one stream leaves the
 * calls on other streams open. Calls more than SCAN_MAX records back are taken for over.
 *
 * One flag for the whole job was rejected: a single lost record, or a rank that died elsewhere, would then silence a
 * run for days. The search is made only when a call has been found in which all stand, and only where there is some
 * trouble. When the bound on log entries is met, the answer is yes.
 */
#include "daemon/engine/detect/stuck.h"

#include <stdlib.h>

#define SCAN_MAX    512u /* newest records of a rank that are looked at */
#define STREAMS_MAX 32u

/* The search through what the ranks of *k depend on. */
struct search {
    struct stuck *k;
    uint32_t *todo; /* indices of sources, in the order in which they were found */
    uint32_t todos, done;
    bool *source, *comm; /* the source or communicator with this index is depended on */
};

/* what a host has returned from a wait for */

/* Streams for which the host has returned from a wait, and the ticket before which each wait covers the calls of its
 * stream. */
struct covered {
    uint32_t streams;
    struct {
        uint16_t stream;
        uint64_t upto;
    } of[STREAMS_MAX];
};

static bool is_covered(const struct covered *w, uint16_t stream, uint64_t ticket)
{
    for (uint32_t i = 0; i < w->streams; i++) {
        if (w->of[i].stream == stream && ticket < w->of[i].upto) {
            return true;
        }
    }
    return false;
}

static void cover(struct covered *w, const struct roll_record *wait)
{
    bool event = wait->op == ROLL_OP_EVENT_SYNC || wait->op == ROLL_OP_EVENT_QUERY;
    uint64_t upto = event && wait->count != 0 ? wait->count - 1 : roll_seal_ticket(wait->seal);
    if (wait->stream != 0 && (!event || wait->count != 0) && !is_covered(w, wait->stream, upto - 1) &&
        w->streams < STREAMS_MAX) {
        w->of[w->streams].stream = wait->stream;
        w->of[w->streams++].upto = upto;
    }
}

static bool is_good_wait(const struct roll_record *rec)
{
    enum roll_op_class class = roll_op_class(rec->op);
    return (class == ROLL_CLASS_SYNC || class == ROLL_CLASS_POLL) && rec->op != ROLL_OP_COMM_QUERY &&
           !roll_op_has(rec->op, ROLL_TRAIT_MAY) && roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED &&
           rec->result == 0;
}

/*
 * The member had left all its calls on the communicator when it aborted: its host had returned from waits for them.
 * Such an abort leaves nothing undone, though a root or a member that came later may still be in those calls.
 */
static bool had_left(struct stuck *k, const struct member *m)
{
    const struct source *s = m->source == NO_SOURCE || m->unsure ? NULL : k->e->source[m->source];
    struct covered w = {.streams = 0};
    uint64_t ticket = s ? s->next : 0, floor = ticket > SCAN_MAX ? ticket - SCAN_MAX : 0;
    bool before = false; /* the scan has passed the abort; waits that returned after the abort say nothing */
    if (!s || s->lost > 0) {
        return false;
    }
    while (ticket-- > floor && spend(&k->work)) {
        const struct entry *entry = source_entry(s, ticket);
        if (!entry) {
            return false;
        }
        bool own = entry->rec.comm != 0 && source_member(s, entry->rec.comm) == m;
        before = before || (own && (entry->rec.op == ROLL_OP_COMM_ABORT || entry->rec.op == ROLL_OP_COMM_REVOKE));
        if (before && is_good_wait(&entry->rec)) {
            if (entry->rec.op == ROLL_OP_DEVICE_SYNC) {
                return true;
            }
            cover(&w, &entry->rec);
        } else if (own && stuck_is_call(&entry->rec) && !refused_call(s, entry)) {
            bool covered = is_covered(&w, entry->rec.stream, ticket);
            if (!covered || !m->many_queues) {
                return covered; /* what stands before this call on its stream is over as well */
            }
        }
    }
    return before && floor == 0 && k->work > 0;
}

/* whether there is any trouble */

/*
 * Some members have aborted the communicator, and others have not. On the communicator of the call under examination
 * (k; NULL: there is none) a member that had left all its calls before it aborted does not count: the verdict says that
 * it has aborted since.
 */
static bool is_half_aborted(struct stuck *k, const struct comm *c)
{
    bool ended = false, left = false, own = k && k->comm == c;
    for (uint32_t r = 0; r < c->size; r++) {
        const struct member *m = &c->member[r];
        ended = ended || (m->ended != 0 && !(own && had_left(k, m)));
        left = left || (m->source != NO_SOURCE && m->ended == 0 && !m->gone);
    }
    return (ended || c->aborted) && left;
}

/* A disagreement on the communicator is being judged, and may hang the job. One that has been told and hangs nothing
 * may go on being judged for as long as it occurs again, and does not count. */
static bool is_disputed(const struct comm *c)
{
    return c->held != NO_SEQ && c->held >= c->base && c->held < c->high && comm_slot(c, c->held)->held;
}

static bool comm_may_be_troubled(struct stuck *k, const struct roll_engine *e, const struct comm *c)
{
    return (c->overflow && !c->aborted) || c->blamed || c->refusals > 0 || c->muted || is_disputed(c) ||
           ((e->aborts > 0 || c->aborted) && is_half_aborted(k, c));
}

static bool comm_is_troubled(struct stuck *k, const struct comm *c)
{
    return comm_may_be_troubled(k, k->e, c);
}

static bool is_down(const struct source *s)
{
    return s->proc == ROLL_PROC_DEAD || s->proc == ROLL_PROC_STOPPED;
}

/* The finding stands, and was made while the ranks waited or within suspect_ns before. */
static bool is_recent(const struct stuck *k, const struct found *f)
{
    return f->number != 0 && f->clock + k->e->config.suspect_ns >= k->first_since && say_stands(k->e, f->number);
}

uint64_t stuck_found_by(const struct stuck *k, uint32_t source)
{
    const struct roll_engine *e = k->e;
    for (uint32_t i = 0; i < FOUND_KEPT; i++) {
        const struct found *f = &e->found[i];
        bool found = is_recent(k, f) && roll_rankset_has(&f->ranks, e->source[source]->world);
        for (uint32_t n = 0; is_recent(k, f) && n <= ROLL_VERDICT_SIDES && !found; n++) {
            const struct comm *c = f->comm_key[n] != 0 ? comm_find(e, f->comm_key[n]) : NULL;
            found = c && comm_member_of(c, source);
        }
        if (found) {
            return f->number;
        }
    }
    return 0;
}

static bool is_any(const struct stuck *k)
{
    const struct roll_engine *e = k->e;
    bool any = e->lost > 0 || (!k->comm && stuck_of_engine(e)->said > 0);
    for (uint32_t i = 0; i < FOUND_KEPT && !any; i++) {
        any = is_recent(k, &e->found[i]);
    }
    for (uint32_t i = 0; i < e->sources && !any; i++) {
        any = is_down(e->source[i]);
    }
    for (uint32_t i = 0; i < e->comms && !any; i++) {
        any = comm_may_be_troubled(NULL, e, e->comm[i]);
    }
    return any;
}

/* what the ranks depend on */

static void need_source(struct search *x, uint32_t index)
{
    if (index != NO_SOURCE && !x->source[index]) {
        x->source[index] = true;
        x->todo[x->todos++] = index;
    }
}

static void need_comm(struct search *x, const struct comm *c)
{
    if (!x->comm[c->id]) {
        x->comm[c->id] = true;
        for (uint32_t r = 0; r < c->size; r++) {
            need_source(x, c->member[r].source);
        }
    }
}

/* own: what the device has completed of another stream says nothing about the streams of a group, and the end of a
 * communicator may be what the rank is inside. */
static bool is_over(const struct source *s, const struct covered *w, const struct entry *entry, uint64_t ticket,
                    bool own)
{
    const struct roll_record *rec = &entry->rec;
    const struct member *m = source_member(s, rec->comm);
    bool over = !m || m->ended != 0 || (m->gone && !own) || roll_seal_state(rec->seal) == ROLL_STATE_COMPLETE ||
                is_covered(w, rec->stream, ticket);
    for (uint32_t i = 0; s->completes && !over && i < s->queues; i++) {
        over = (i == rec->stream || (rec->group != 0 && !own)) && s->queue[i].done > ticket;
    }
    return over;
}

/* The lost records of s do not matter any more: its host has returned from waits for all streams on which it makes
 * calls, or the loss lies SCAN_MAX records back. */
static bool loss_is_over(const struct source *s, const struct covered *w, bool any)
{
    bool all = any;
    for (uint32_t i = 0; i < s->members && all; i++) {
        const struct member *m = s->member[i];
        bool plain = m && m->queue != 0 && m->queue - 1 <= UINT16_MAX && !m->many_queues;
        all = !m || m->queue == 0 || (plain && is_covered(w, (uint16_t)(m->queue - 1), s->gap_ticket));
    }
    return all || (any && s->next - s->gap_ticket >= SCAN_MAX);
}

/* Polls go on while a job hangs, and at some time no call of before is left in the log. A trouble that was told and
 * that the rank has not got past may hold up what stands behind it. */
static void need_forgotten(struct search *x, const struct source *s)
{
    for (uint32_t i = 0; i < s->members; i++) {
        const struct member *m = s->member[i];
        if (m && m->comm->muted && !m->passed && !m->gone && m->ended == 0 && !source_beside(s, m)) {
            need_comm(x, m->comm);
        }
    }
}

/* Adds what s depends on: the communicators and peers of the calls that it is not known to have left. False: s is in
 * trouble itself. */
static bool look_at_source(struct search *x, const struct source *s)
{
    struct covered w = {.streams = 0};
    bool any = false; /* some wait has returned after the loss */
    if (is_down(s)) {
        return false;
    }
    uint64_t ticket = stuck_newest(x->k, s, s->next), floor = ticket > SCAN_MAX ? ticket - SCAN_MAX : 0;
    bool everything = false, forgets = floor < source_log_low(s);
    floor = forgets ? source_log_low(s) : floor;
    while (ticket-- > floor && spend(&x->k->work)) {
        const struct entry *entry = source_entry(s, ticket);
        if (!entry) {
            continue;
        }
        if (is_good_wait(&entry->rec)) {
            any = any || ticket >= s->gap_ticket;
            everything = entry->rec.op == ROLL_OP_DEVICE_SYNC && ticket >= s->gap_ticket;
            if (entry->rec.op == ROLL_OP_DEVICE_SYNC) {
                forgets = false;
                break;
            }
            cover(&w, &entry->rec);
        } else if (stuck_is_call(&entry->rec) && !refused_call(s, entry) &&
                   !is_over(s, &w, entry, ticket, !x->k->comm)) {
            const struct comm *c = source_member(s, entry->rec.comm)->comm;
            if (roll_op_class(entry->rec.op) == ROLL_CLASS_COLL) {
                need_comm(x, c);
            } else if (comm_is_troubled(x->k, c)) {
                return false;
            } else if (entry->rec.peer >= 0 && (uint32_t)entry->rec.peer < c->size) {
                need_source(x, c->member[entry->rec.peer].source);
            }
        }
    }
    if (forgets) {
        need_forgotten(x, s);
    }
    return s->lost == 0 || everything || loss_is_over(s, &w, any);
}

static bool explains(const struct search *x, const struct found *f)
{
    const struct roll_engine *e = x->k->e;
    bool named = false;
    for (uint32_t i = 0; i <= ROLL_VERDICT_SIDES; i++) {
        const struct comm *c = f->comm_key[i] != 0 ? comm_find(e, f->comm_key[i]) : NULL;
        named = named || c;
        if (c && x->comm[c->id]) {
            return true;
        }
    }
    for (uint32_t i = 0; !named && i < e->sources; i++) {
        if (x->source[i] && roll_rankset_has(&f->ranks, e->source[i]->world)) {
            return true;
        }
    }
    return false;
}

static bool search(struct search *x)
{
    struct stuck *k = x->k;
    struct roll_engine *e = k->e;
    for (uint32_t i = 0; i < e->sources; i++) { /* the ranks in the call; for a message there are two */
        uint32_t world = e->source[i]->world;
        if (roll_rankset_has(&k->in, world) || roll_rankset_has(&k->left, world) || roll_rankset_has(&k->away, world)) {
            need_source(x, i);
        }
    }
    if (k->comm) {
        x->comm[k->comm->id] = true;
    }
    while (x->done < x->todos) {
        if (!look_at_source(x, e->source[x->todo[x->done++]]) || k->work == 0) {
            return true;
        }
    }
    for (uint32_t i = 0; i < e->comms; i++) {
        if (x->comm[i] && comm_is_troubled(k, e->comm[i])) {
            return true;
        }
    }
    for (uint32_t i = 0; i < FOUND_KEPT; i++) {
        if (is_recent(k, &e->found[i]) && explains(x, &e->found[i])) {
            return true;
        }
    }
    for (uint32_t i = 0; !k->comm && i < e->sources && k->by == 0; i++) {
        const struct stuck_source *w = x->source[i] ? stuck_of_source(e->source[i]) : NULL;
        k->by = w ? w->verdict : 0;
    }
    return k->by != 0;
}

bool stuck_is_troubled(struct stuck *k)
{
    if (!is_any(k)) {
        return false;
    }
    struct roll_engine *e = k->e;
    struct search x = {.k = k,
                       .todo = calloc(e->sources + 1, sizeof(*x.todo)),
                       .source = calloc(e->sources + 1, sizeof(*x.source)),
                       .comm = calloc(e->comms + 1, sizeof(*x.comm))};
    bool troubled = !x.todo || !x.source || !x.comm || search(&x);
    free(x.todo);
    free(x.source);
    free(x.comm);
    return troubled;
}
