/*
 * detect_zero.c: some ranks make a collective of zero elements, which NCCL drops silently on those ranks, and the
 * others wait for it.
 *
 * Source: NCCL's enqueue discards empty collectives locally. Proven in two ways. Either the rank's next call disagrees
 * with its peers', while the dropped call would have agreed. Or peers wait for the rank at the very place of its
 * dropped call, also where that wait is part of a circle; when all calls look alike they may wait at a later place,
 * because the rank is behind by as many calls as were dropped. Two cases are healthy, and nothing is said: all ranks
 * make the empty call, or some make an additional empty call and their next calls agree.
 *
 * Where hosts wait in places that leave no record (a copy), nobody is seen to wait, and the wait graph has to be
 * patient. The calls alone predict the wait earlier: the rank that dropped its call stands in a call of another
 * communicator, on the stream of the dropped one, and those that wait at its place have that communicator's calls on
 * the stream in which they wait. So they do not come to it, and the rank comes to nothing behind it.
 */
#include "daemon/engine/detect/detector.h"
#include "daemon/engine/detect/moe.h"

struct zero_engine {
    uint64_t looked_ns; /* patience clock of the last look for waits to come */
};
STATE_OF_ENGINE(zero)

/* Ranks whose calls were dropped at a place, and those that made the call there. */
struct dropped {
    struct comm *comm;
    uint32_t seq;
    const struct source *minor; /* one of the former; `ticket`: its dropped call */
    uint64_t ticket;
    const struct source *major; /* one of the latter; `made`: its call */
    const struct roll_record *made;
    const struct roll_rankset *minors, *majors;
};

/* Under this key stands the number of what was predicted. */
static uint64_t ahead_key(const struct comm *c)
{
    return say_key(ROLL_VERDICT_ZERO_COUNT, c->key, c->era, 1);
}

/* Begins a verdict with all that it shows, and its text. NULL: no memory. */
static struct roll_verdict *begin(struct roll_engine *e, const struct dropped *d, enum roll_certainty certainty,
                                  struct words *w)
{
    const struct entry *dropped = source_entry(d->minor, d->ticket);
    struct roll_verdict *v = say(e, ROLL_VERDICT_ZERO_COUNT, certainty);
    if (!v) {
        return NULL;
    }
    say_comm(v, d->comm, d->seq);
    v->field = "count";
    say_side(v, d->minor, source_index(e, d->minor), d->minors, dropped ? &dropped->rec : NULL);
    say_side(v, d->major, source_index(e, d->major), d->majors, d->made);
    words_ranks(w, d->minors);
    words_add(w, " called %s with zero elements on ", roll_op_name(d->made->op));
    words_comm(w, d->comm);
    words_add(w, "; NCCL drops such a call on that rank alone. ");
    words_ranks(w, d->majors);
    words_add(w, " called ");
    words_call(w, d->made);
    words_add(w, " as #%u and %s for it. Call it with the same count on every rank, or on none.", d->seq,
              roll_rankset_count(d->majors) == 1 ? "waits" : "wait");
    /* Where all calls look alike the others may wait in a later step than the one of the dropped call. */
    v->remedy = words_left_out_experts(w, e, d->minors, dropped ? dropped->rec.step : d->made->step);
    if (v->remedy != 0) {
        words_remedy(w, e, v->remedy, ROLL_LAYER_NONE);
    }
    return v;
}

/* f: the disagreement; NULL: somebody waits. */
static void speak(struct roll_engine *e, const struct dropped *d, const struct finding *f)
{
    comm_mute(e, d->comm, d->seq);
    comm_explained(e, d->comm);
    bool fresh = say_once(e, say_key(ROLL_VERDICT_ZERO_COUNT, d->comm->key, d->comm->era, 0));
    if (!fresh && (!f || f->earlier == 0)) {
        return;
    }
    struct words w = {.used = 0};
    struct roll_verdict *v = begin(e, d, ROLL_PROVEN, &w);
    if (!v) {
        return;
    }
    if (!f || f->earlier == 0) {
        say_confirms(e, v, say_recall(e, ahead_key(d->comm)));
    }
    if (f) {
        finding_life(e, v, f, &w);
    } else {
        (void)roll_rankset_copy(&v->culprits, d->minors);
        (void)roll_rankset_copy(&v->waiting, d->majors);
    }
    say_text(e, v, "%s", w.text);
}

static bool zero_disagree(struct roll_engine *e, const struct finding *f)
{
    const struct entry *major = source_entry(f->major_source, f->major_ticket);
    if (f->kind != ALIGN_ZERO || !major) {
        return f->kind == ALIGN_ZERO;
    }
    struct dropped d = {.comm = f->comm, .seq = f->seq, .minor = f->minor_source, .ticket = f->minor_ticket};
    d.major = f->major_source;
    d.made = &major->rec;
    d.minors = &f->minor;
    d.majors = &f->major;
    speak(e, &d, f);
    return true;
}

/* The waiter has dropped the same call at the same place, which is healthy. */
static bool dropped_both(const struct member *waiter, uint64_t sig, uint32_t seq)
{
    for (uint32_t i = 0; i < ZEROS_MAX && i < waiter->zeros; i++) {
        uint32_t at = (waiter->zeros - 1 - i) % ZEROS_MAX;
        if (waiter->zero[at].sig == sig && waiter->zero[at].seq == seq) {
            return true;
        }
    }
    return false;
}

/*
 * Ticket + 1 of the dropped call because of which m is behind the call `waits`; 0: none. stuck: m will not come any
 * more. Without `stuck` only a call that m dropped at its last place counts, because m may have gone on since and only
 * be late. With `stuck`, m may have a collective at the place of `waits`: it is behind all the same when it dropped the
 * call of this place.
 */
static uint64_t dropped_of(const struct roll_engine *e, const struct member *m, const struct member *waiter,
                           const struct roll_record *waits, bool stuck)
{
    bool issued = comm_member_issued(m, waits->seq);
    /* Among lost records of the waiter may be an empty call, too. */
    bool more = waiter->gaps == 0 && m->zeros > waiter->zeros;
    for (uint32_t i = 0; i < ZEROS_MAX && i < m->zeros && more; i++) {
        uint32_t at = (m->zeros - 1 - i) % ZEROS_MAX;
        const struct entry *dropped = source_entry(e->source[m->source], m->zero[at].ticket);
        bool here = issued ? stuck && m->zero[at].seq == waits->seq : stuck || m->zero[at].seq == m->next;
        if (here && zero_stands_for(e->source[m->source], dropped, m->zero[at].sig, e->source[waiter->source], waits) &&
            !dropped_both(waiter, m->zero[at].sig, m->zero[at].seq)) {
            return m->zero[at].ticket + 1;
        }
    }
    return 0;
}

/* True: a rank lacks the collective in which `waits_in` waits because its own call was dropped; that has been said. */
static bool is_behind(struct roll_engine *e, const struct block *b, const struct source *waits_in, uint64_t at_ticket)
{
    const struct entry *waits = source_entry(waits_in, at_ticket);
    const struct member *waiter = waits ? source_member(waits_in, waits->rec.comm) : NULL;
    if (!waiter || roll_op_class(waits->rec.op) != ROLL_CLASS_COLL || b->kind == BLOCK_DEAD ||
        b->kind == BLOCK_STOPPED) {
        return false;
    }
    struct comm *c = waiter->comm;
    struct roll_rankset minors = {0}, majors = {0};
    const struct member *minor = NULL;
    uint64_t ticket = 0;
    bool stuck = b->kind == BLOCK_FINISHED || b->kind == BLOCK_GONE || b->kind == BLOCK_ABORTED ||
                 (b->kind == BLOCK_CYCLE && b->hard);
    for (uint32_t r = 0; r < c->size; r++) {
        const struct member *m = &c->member[r];
        uint32_t world = comm_world(e, c, r);
        uint64_t dropped = world == NO_SOURCE ? 0 : dropped_of(e, m, waiter, &waits->rec, stuck);
        if (dropped != 0) {
            minor = m;
            ticket = dropped - 1;
            (void)roll_rankset_add(&minors, world);
        } else if (world != NO_SOURCE && comm_member_issued(m, waits->rec.seq)) {
            (void)roll_rankset_add(&majors, world);
        }
    }
    if (minor) {
        struct dropped d = {.comm = c, .seq = waits->rec.seq, .minor = e->source[minor->source], .ticket = ticket};
        d.major = waits_in;
        d.made = &waits->rec;
        d.minors = &minors;
        d.majors = &majors;
        speak(e, &d, NULL);
    }
    roll_rankset_fini(&majors);
    roll_rankset_fini(&minors);
    return minor != NULL;
}

/* A circle has one wait for each of its calls: the wait for the dropped call is one of them. */
static bool zero_block(struct roll_engine *e, const struct block *b)
{
    bool found = false;
    if (b->kind == BLOCK_BLAMED) {
        return false;
    }
    for (uint32_t i = 0; b->kind == BLOCK_CYCLE && !found && i < b->steps; i++) {
        found = is_behind(e, b, b->step[i].rank, b->step[i].ticket);
    }
    const struct entry *waits = !found && b->waiter && b->comm ? source_entry(b->waiter, b->ticket) : NULL;
    const struct member *waiter = waits ? source_member(b->waiter, waits->rec.comm) : NULL;
    return found || (waiter && waiter->comm == b->comm && is_behind(e, b, b->waiter, b->ticket));
}

/* The first call that s made behind the one with this ticket on its stream, on another communicator and not in one
 * group with it, if it is a collective that is not over. NULL: there is none. */
static const struct entry *stands_behind(const struct source *s, const struct entry *dropped, uint64_t ticket)
{
    const struct member *m = source_member(s, dropped->rec.comm);
    for (uint64_t t = ticket + 1; t < s->next; t++) {
        const struct entry *at = source_entry(s, t);
        enum roll_op_class class = at ? roll_op_class(at->rec.op) : ROLL_CLASS_NONE;
        bool call = (class == ROLL_CLASS_COLL && at->rec.count != 0) || class == ROLL_CLASS_P2P;
        if (!call || at->rec.stream != dropped->rec.stream || refused_call(s, at)) {
            continue;
        }
        const struct member *other = source_member(s, at->rec.comm);
        bool plain = class == ROLL_CLASS_COLL && (at->rec.flags & ROLL_FLAG_CAPTURED) == 0 && at->rec.group == 0;
        return plain && other && other != m && !entry_answered(s, at) ? at : NULL;
    }
    return NULL;
}

/* All calls that these two members have made stand in one queue: one of them waits behind the other. */
static bool shares_queue(const struct member *a, const struct member *b)
{
    return a->queue != 0 && a->queue == b->queue && !a->many_queues && !b->many_queues;
}

/* The member will not make the call in which `waiter` waits: it has dropped it, and stands in a call to which the
 * waiter does not come before. Adds 1 to the ticket of the dropped call, which is returned; 0: it may still make the
 * call. */
static uint64_t never_comes(const struct roll_engine *e, const struct member *m, const struct source *waiter,
                            const struct entry *waits)
{
    const struct source *s = e->source[m->source];
    const struct member *w = source_member(waiter, waits->rec.comm);
    uint64_t ticket;
    if (m->unsure || m->gone || m->ended != 0 || m->next != waits->rec.seq || !source_alive(s) || source_is_dark(s) ||
        zero_dropped(e, m, m->next, waiter, &waits->rec, &ticket) == 0) {
        return 0;
    }
    const struct entry *dropped = source_entry(s, ticket);
    uint64_t other;
    if (!dropped || zero_dropped(e, w, m->next, waiter, &waits->rec, &other) != 0 ||
        site_compare(s, &dropped->rec, waiter, &waits->rec) != SITE_SAME) {
        return 0;
    }
    const struct entry *next = stands_behind(s, dropped, ticket);
    const struct member *mine = next ? source_member(s, next->rec.comm) : NULL;
    const struct member *theirs = mine ? comm_member_of(mine->comm, source_index(e, waiter)) : NULL;
    bool apart = theirs && !theirs->unsure && !comm_member_issued(theirs, next->rec.seq);
    return apart && shares_queue(m, mine) && shares_queue(w, theirs) ? ticket + 1 : 0;
}

/* The call of this member at the place is what its stream has stood at for long. To look for that call in the log was
 * rejected: this is asked of each member many times a second, and a rank that does not wait has its call far back. */
static const struct entry *waits_long(const struct roll_engine *e, const struct member *m, uint32_t seq)
{
    const struct source *s = e->source[m->source];
    for (uint32_t k = 0; k < s->queues && comm_member_issued(m, seq); k++) {
        const struct queue *q = &s->queue[k];
        if (waitgraph_old(e, q) && source_holds(s, q->head - 1, m, seq)) {
            const struct entry *entry = source_entry(s, q->head - 1);
            return entry->rec.group == 0 && !source_group_open(s, &entry->rec) ? entry : NULL;
        }
    }
    return NULL;
}

/* The ranks stand in these calls for the reason that is told now: where a watchdog ends them, that follows from it. */
static void excuse_all(struct roll_engine *e, const struct dropped *d, const struct entry *waits)
{
    for (uint32_t r = 0; r < d->comm->size; r++) {
        const struct member *m = &d->comm->member[r];
        struct source *s = m->source == NO_SOURCE ? NULL : e->source[m->source];
        bool made = s && roll_rankset_has(d->majors, s->world) && comm_member_issued(m, d->seq);
        uint64_t at = made ? source_ticket_of(s, m, d->seq) : NO_TICKET;
        uint64_t ticket = s && roll_rankset_has(d->minors, s->world) ? never_comes(e, m, d->major, waits) : 0;
        if (ticket != 0) {
            at = roll_seal_ticket(stands_behind(s, source_entry(s, ticket - 1), ticket - 1)->rec.seal);
        }
        if (at != NO_TICKET) {
            s->excuse = at + 1;
        }
    }
}

static void predict(struct roll_engine *e, struct comm *c)
{
    struct roll_rankset minors = {0}, majors = {0};
    struct dropped d = {.comm = c, .seq = c->base, .minors = &minors, .majors = &majors};
    const struct entry *waits = NULL;
    for (uint32_t r = 0; !waits && r < c->size; r++) {
        bool here = c->member[r].source != NO_SOURCE && !c->member[r].unsure;
        waits = here ? waits_long(e, &c->member[r], c->base) : NULL;
        d.major = waits ? e->source[c->member[r].source] : NULL;
    }
    for (uint32_t r = 0; waits && r < c->size; r++) {
        const struct member *m = &c->member[r];
        uint32_t world = comm_world(e, c, r);
        uint64_t ticket = world == NO_SOURCE ? 0 : never_comes(e, m, d.major, waits);
        if (ticket != 0) {
            d.minor = d.minor ? d.minor : e->source[m->source];
            d.ticket = d.minor == e->source[m->source] ? ticket - 1 : d.ticket;
            (void)roll_rankset_add(&minors, world);
        } else if (world != NO_SOURCE && comm_member_issued(m, c->base)) {
            (void)roll_rankset_add(&majors, world);
        }
    }
    struct words w = {.used = 0};
    d.made = waits ? &waits->rec : NULL;
    struct roll_verdict *v = d.minor && say_once(e, say_key(ROLL_VERDICT_ZERO_COUNT, c->key, c->base, 2))
                                 ? begin(e, &d, ROLL_PREDICTED, &w)
                                 : NULL;
    if (v) {
        const struct entry *next = stands_behind(d.minor, source_entry(d.minor, d.ticket), d.ticket);
        (void)roll_rankset_copy(&v->culprits, &minors);
        (void)roll_rankset_copy(&v->waiting, &majors);
        say_remember(e, ahead_key(c), v->number);
        excuse_all(e, &d, waits);
        doubt_call(e, v->number, e->mutes, d.major, roll_seal_ticket(waits->rec.seal), d.minor, c);
        words_add(&w, " Predicted: rank %u is in ", d.minor->world);
        words_call(&w, &next->rec);
        words_add(&w, " on ");
        words_comm(&w, source_member(d.minor, next->rec.comm)->comm);
        words_add(&w, " by now, which rank %u would make on the stream in which it waits.", d.major->world);
        say_text(e, v, "%s", w.text);
    }
    roll_rankset_fini(&minors);
    roll_rankset_fini(&majors);
}

static void zero_tick(struct roll_engine *e)
{
    struct zero_engine *own = zero_of_engine(e);
    if (e->finishing || e->clock - own->looked_ns < e->config.stall_ns / 4) {
        return; /* nothing is to come at the end of input */
    }
    own->looked_ns = e->clock;
    for (uint32_t i = 0; i < e->comms; i++) {
        struct comm *c = e->comm[i];
        bool looked = c->zeros > 0 && !c->muted && !c->overflow && !c->blamed && c->held == NO_SEQ;
        if (looked && c->base < c->high && comm_slot(c, c->base)->ticket != 0 && comm_has_room(e, c)) {
            predict(e, c);
        }
    }
}

const struct detector detect_zero = {
    .name = "zero", ENGINE_STATE(zero), .disagree = zero_disagree, .block = zero_block, .tick = zero_tick};
