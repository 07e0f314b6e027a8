/*
 * stuck_stand.c: how one rank stands to one call: inside a wait for it, past it, silent, or elsewhere.
 */
#include "daemon/engine/detect/stuck.h"

bool stuck_is_call(const struct roll_record *rec)
{
    enum roll_op_class class = roll_op_class(rec->op);
    /* A message of 0 bytes waits for its partner too. */
    bool counts = class == ROLL_CLASS_P2P || (class == ROLL_CLASS_COLL && rec->count != 0);
    return counts && (rec->flags & ROLL_FLAG_CAPTURED) == 0;
}

/* Some NCCL call of s between the two tickets was made on this stream. */
static bool stream_used(struct stuck *k, const struct source *s, uint64_t from, uint64_t upto, uint16_t stream)
{
    for (uint64_t t = from; t < upto && spend(&k->work); t++) {
        const struct entry *entry = source_entry(s, t);
        if (entry && stuck_is_call(&entry->rec) && entry->rec.stream == stream) {
            return true;
        }
    }
    return false;
}

static bool is_wait(const struct roll_record *rec)
{
    enum roll_op_class class = roll_op_class(rec->op);
    return class == ROLL_CLASS_SYNC || class == ROLL_CLASS_POLL;
}

/* A wait for a stream without NCCL calls covers the call as well: that stream may wait for the call's stream by an
 * event. */
bool stuck_covers(struct stuck *k, const struct source *s, const struct roll_record *wait, uint64_t wait_ticket,
                  const struct roll_record *call, uint64_t ticket)
{
    switch (roll_op_class(wait->op)) {
    case ROLL_CLASS_POLL:
        if (wait->op == ROLL_OP_COMM_QUERY) {
            return wait->comm == call->comm;
        } /* any other poll covers what a wait would cover */
        __attribute__((fallthrough));
    case ROLL_CLASS_SYNC:
        if ((wait->op == ROLL_OP_EVENT_SYNC || wait->op == ROLL_OP_EVENT_QUERY) && wait->count != 0 &&
            ticket + 1 >= wait->count) {
            return false; /* the event was recorded before the call */
        }
        if (roll_op_has(wait->op, ROLL_TRAIT_ALL) || (wait->op != ROLL_OP_STREAM_SYNC && wait->stream == 0)) {
            return true;
        }
        return wait->stream == call->stream || !stream_used(k, s, ticket, wait_ticket, wait->stream);
    case ROLL_CLASS_GROUP:
        return call->group != 0 && call->group == wait->group && call->thread == wait->thread;
    case ROLL_CLASS_COMM:
        return (wait->op == ROLL_OP_COMM_DESTROY || wait->op == ROLL_OP_COMM_FINALIZE) && wait->comm == call->comm;
    default:
        return wait_ticket == ticket;
    }
}

bool stuck_has_left(struct stuck *k, const struct source *s, const struct roll_record *call, uint64_t ticket,
                    bool *perhaps)
{
    const struct stuck_source *w = stuck_of_source(s);
    *perhaps = false;
    if (!s->completes && (!w || w->last <= ticket)) {
        return false; /* no wait behind the call has returned */
    }
    for (uint32_t i = 0; s->completes && i < s->queues; i++) {
        if ((i == call->stream || call->group != 0) && s->queue[i].done > ticket) {
            return true;
        }
    }
    for (uint64_t t = ticket + 1; t < s->next && spend(&k->work); t++) {
        const struct entry *entry = source_entry(s, t);
        /* A loop of polls that ended without success is no wait. */
        if (!entry || !is_wait(&entry->rec) || roll_seal_state(entry->rec.seal) < ROLL_STATE_RETURNED ||
            (roll_op_class(entry->rec.op) == ROLL_CLASS_POLL && entry->rec.result != 0)) {
            continue;
        }
        if (roll_op_has(entry->rec.op, ROLL_TRAIT_MAY)) {
            *perhaps = *perhaps || stuck_covers(k, s, &entry->rec, t, call, ticket);
            continue;
        }
        bool event = entry->rec.op != ROLL_OP_STREAM_SYNC && entry->rec.op != ROLL_OP_STREAM_QUERY;
        /* The place at which the event was recorded is known: source_wait. */
        bool behind = event && s->threads == 1 && entry->rec.count > ticket + 1;
        if (entry->rec.op == ROLL_OP_DEVICE_SYNC || ((!event || behind) && entry->rec.stream == call->stream)) {
            return true;
        }
        *perhaps = *perhaps || (!(event && entry->rec.stream == 0) && stuck_covers(k, s, &entry->rec, t, call, ticket));
    }
    return false;
}

bool stuck_is_explained(const struct source *s, const struct roll_record *wait, uint64_t wait_ticket)
{
    bool all = roll_op_has(wait->op, ROLL_TRAIT_ALL) || wait->stream == 0 || !is_wait(wait);
    for (uint32_t i = 0; i < s->queues; i++) {
        if (s->queue[i].head != 0 && s->queue[i].head <= wait_ticket + 1 && (all || i == wait->stream)) {
            return true;
        }
    }
    return false;
}

/*
 * The thread of s whose wait covers the call; NULL: none. As a rule the wait must be one that no incomplete call
 * explains. With k->loose (the source that is asked about is itself inside a wait that nothing explains) any wait will
 * do: the other members may have gone on to calls that this source never reaches, and nothing says that they have left
 * the earlier call.
 */
static const struct thread *wait_behind(struct stuck *k, const struct source *s, const struct roll_record *call,
                                        uint64_t ticket)
{
    for (uint32_t i = 0; i < s->threads; i++) {
        const struct thread *t = &s->thread[i];
        const struct entry *in = t->inside > ticket ? source_entry(s, t->inside - 1) : NULL;
        if (in && source_wait(k->e, s, t, &in->rec).waits &&
            stuck_covers(k, s, &in->rec, t->inside - 1, call, ticket) &&
            (k->loose || !stuck_is_explained(s, &in->rec, t->inside - 1))) {
            return t;
        }
    }
    return NULL;
}

/* The wait cannot return before the call is over. Waits for other streams and for events do not count here. */
static bool surely_covers(const struct source *s, const struct thread *t, const struct roll_record *call)
{
    const struct entry *in = source_entry(s, t->inside - 1);
    return in &&
           (in->rec.op == ROLL_OP_DEVICE_SYNC || (in->rec.op == ROLL_OP_STREAM_SYNC && in->rec.stream == call->stream));
}

bool stuck_is_inside(const struct source *s)
{
    for (uint32_t i = 0; i < s->threads; i++) {
        if (s->thread[i].inside != 0) {
            return true;
        }
    }
    return s->many_threads;
}

enum standing stuck_standing(struct stuck *k, const struct source *s, const struct roll_record *call, uint64_t ticket)
{
    struct roll_engine *e = k->e;
    bool perhaps;
    if (stuck_has_left(k, s, call, ticket, &perhaps)) {
        return STAND_LEFT;
    }
    if (source_group_open(s, call)) {
        return STAND_ELSEWHERE; /* nothing of the group is enqueued, so nobody stands in it */
    }
    if (source_is_dark(s)) {
        k->unsure = true;
        return STAND_ELSEWHERE; /* where it stood when it was heard last it need not stand now */
    }
    const struct thread *t = wait_behind(k, s, call, ticket);
    if (perhaps && !(k->lax && t && surely_covers(s, t, call))) {
        return STAND_ELSEWHERE;
    }
    uint64_t since = t ? t->since : s->seen;
    uint64_t patience =
        t ? stuck_patience(e, s, &source_entry(s, t->inside - 1)->rec) : STUCK_UNUSUAL * e->config.suspect_ns;
    patience *= perhaps ? 2 : 1;
    if (!t && (stuck_is_inside(s) || !source_quiet(e, s, e->config.suspect_ns))) {
        return STAND_ELSEWHERE;
    }
    k->ripe = k->ripe && e->unheard == 0 && rank_has_room(e, s) && e->calm - (t ? t->calm : s->calm) >= patience;
    k->since = since > k->since ? since : k->since;
    k->first_since = since < k->first_since ? since : k->first_since;
    k->known = k->known && s->completes;
    const struct stuck_source *w = stuck_of_source(s);
    if (w && w->longest_ns > k->longest_ns) {
        k->longest_ns = w->longest_ns;
    }
    /* A device that reports completion would have reported this call. */
    return t || s->completes ? STAND_IN : STAND_AWAY;
}
