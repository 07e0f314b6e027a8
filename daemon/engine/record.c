/*
 * record.c: the records of ranks come in: what is done with each, what it meets, and who is asked about it. This file
 * stands above all floors, and calls into each of them.
 *
 * A table of functions by operation was rejected: the path of a collective is the engine's speed, and the compiler sees
 * through it only where the calls stand in one place.
 */
#include "daemon/engine/ahead.h"
#include "daemon/engine/detect/detector.h"
#include "daemon/engine/detect/moe.h"
#include "daemon/engine/model/budget.h"

static void ask_record(struct roll_engine *e, uint32_t source, const struct roll_record *rec, uint64_t ticket,
                       bool first)
{
    for (size_t i = 0; i < DETECTORS; i++) {
        if (detectors[i]->record) {
            detectors[i]->record(e, source, rec, ticket, first);
        }
    }
}

static void tell_lost(struct roll_engine *e, uint32_t source, uint64_t count)
{
    for (size_t i = 0; i < DETECTORS; i++) {
        if (detectors[i]->lost) {
            detectors[i]->lost(e, source, count);
        }
    }
}

/* A call about a communicator itself: it is asked for its state, aborted, revoked, finalized or destroyed. */
static void comm_life(struct roll_engine *e, struct source *s, const struct roll_record *rec)
{
    struct member *m = source_member(s, rec->comm);
    if (!m) {
        return;
    }
    source_stir(e, s->number); /* a rank does not wait any more for what it has aborted */
    if (rec->op == ROLL_OP_COMM_ASYNC) {
        if (roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED) {
            m->async = rec->result;
            if (rec->result == 0) {
                creation_asked(e, s, rec);
            }
            m->settled = rec->result == 0 ? roll_seal_ticket(rec->seal) + 1 : m->settled;
        }
        return;
    }
    if (rec->op == ROLL_OP_COMM_ABORT || rec->op == ROLL_OP_COMM_REVOKE) {
        comm_ended(e, m, rec->op);
    } else if ((rec->op == ROLL_OP_COMM_DESTROY || rec->op == ROLL_OP_COMM_FINALIZE) && !m->gone) {
        m->gone = true;
        m->comm->gone++;
        comm_is_over(e, m->comm);
    }
    if (m->gone && roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED && rec->result == 0) {
        silence_gone(e, m);
    }
}

/* A wait of the host has come back: the calls that it covers are over. */
static void waited(struct roll_engine *e, struct source *s, const struct roll_record *rec)
{
    bool stream = (rec->op == ROLL_OP_STREAM_SYNC || rec->op == ROLL_OP_STREAM_QUERY) && rec->stream != 0;
    if ((stream || rec->op == ROLL_OP_DEVICE_SYNC) && roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED &&
        rec->result == 0) { /* behind an error, or a poll that was given up, no call is known to be over */
        s->back_ns = e->clock;
        s->back_wall = source_line(s, rec);
        sweep_waited(e, s, rec);
        silence_waited(e, s, rec);
    }
}

/* The device has completed a call. Streams keep their order, so all calls before it on its stream are over as well. */
static void completed(struct roll_engine *e, struct source *s, const struct roll_record *rec)
{
    enum roll_op_class class = roll_op_class(rec->op);
    bool work = class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P || class == ROLL_CLASS_GROUP;
    if (roll_seal_state(rec->seal) == ROLL_STATE_COMPLETE && work && rec->stream != 0) {
        sweep_done(e, s, rec);
        silence_over(e, s, rec);
    }
}

/* A collective takes its place among those of the other members, and the judge looks into what it has met there. */
static int meet_collective(struct roll_engine *e, struct member *m, struct entry *entry, uint64_t ticket)
{
    struct comm *c = m->comm;
    uint32_t seq = entry->rec.seq;
    struct match_how how;
    unsigned met;
    if (entry->rec.count == 0) {
        zero_remember(m, &entry->rec, ticket);
        return 0;
    }
    if (seq < m->next) {
        refused_repeat(e, m, &entry->rec);
    }
    if (!match_enter(m, entry, &how)) {
        return 0;
    }
    if (m->was_refused) {
        refused_over(e, m, &entry->rec);
    }
    if (seq < c->base) {
        return 0;
    }
    int rc = seq < c->high ? 0 : room_for_collective(e, m, seq);
    if (rc == ROLL_E_LIMIT) { /* it was made, and is compared with nothing */
        comm_came_in(m, seq + 1);
        m->unsure = true;
        m->lowered_lost = true;
    }
    if (rc != 0) {
        return rc;
    }
    rc = match_collective(e, m, entry, ticket, &how, &met);
    if ((met & MATCH_DIFFERS) != 0) {
        align_look(e, c, seq);
    } else if ((met & MATCH_GROUPED) != 0) {
        align_grouped(e, m, seq, ticket);
    }
    if ((met & MATCH_MIXED) != 0) {
        dtype_note(e, c, seq);
    }
    if (c->held != NO_SEQ && rc == 0) {
        align_arrived(e, m, entry);
    }
    return rc;
}

/* The same for a message. */
static int meet_message(struct roll_engine *e, struct member *m, struct entry *entry, uint64_t ticket)
{
    struct comm *c = m->comm;
    unsigned side = p2p_side(&entry->rec);
    struct pair *p;
    int rc = p2p_enter(e, m, entry, &p);
    if (!p) {
        return rc;
    }
    uint32_t exchange = outside_exchange(e, m, &entry->rec), index = p->issued[side];
    if (p->unsure || (entry->rec.flags & ROLL_FLAG_CAPTURED) != 0) {
        return 0; /* a captured message has its number, and moves its bytes when its graph is launched */
    }
    if (!pair_fits(p, index)) { /* asked before the call, which for each message cost a tenth of its time */
        rc = room_for_message(e, m, p, index);
        if (rc != 0 || p->unsure) {
            return rc;
        }
    }
    if (m->was_refused) {
        refused_over(e, m, &entry->rec);
    }
    unsigned met = p2p_meet(e, m, p, entry, ticket);
    if (exchange != 0) {
        outside_meet(m, &c->member[p->end[!side]], p2p_node(p, index), exchange);
    }
    if ((met & P2P_CROSSED) != 0 && !c->muted) {
        lowered_cross(e, p, index);
    }
    if ((met & P2P_DIFFERS) != 0 && !c->muted) {
        (void)detectors_pair(e, p, index);
    } else if ((met & P2P_DIFFERS) != 0) {
        p2p_node(p, index)->bytes = p2p_bytes(&entry->rec);
    }
    return 0;
}

/*
 * The threads of a rank take turns, or are inside calls at the same time. A call that has not returned lasts on. A free
 * beside a wait of another thread is no sign of threads that go their own ways: PyTorch's backward thread frees its
 * last buffers when the forward thread has gone on already. Such a free takes no turn from a wait.
 */
static void note_turn(struct source *s, const struct roll_record *rec, enum roll_op_class class)
{
    uint32_t now = s->thread_last + 1;
    bool other = s->turn != now && s->turn != 0;
    bool meets = other && (s->thread[s->turn - 1].inside != 0 || rec->enter_ns < s->turn_until);
    bool waits = meets && class == ROLL_CLASS_SYNC && roll_op_class(s->turn_op) == ROLL_CLASS_SYNC;
    if (waits && rec->op == ROLL_OP_FREE && s->turn_op != ROLL_OP_FREE) {
        return;
    }
    s->overlaps = s->overlaps || (meets && !(waits && s->turn_op == ROLL_OP_FREE));
    s->turns += other;
    s->turn = now;
    s->turn_op = rec->op;
    s->turn_until = rec->enter_ns + rec->call_ns;
}

/* Notes which thread has made the call, and whether the thread is inside it. class: that of the operation, which is
 * looked up once for every record. */
static void note_thread(struct roll_engine *e, struct source *s, const struct roll_record *rec, uint64_t ticket,
                        enum roll_op_class class)
{
    /* A thread that only frees and copies is none of those that make the rank's calls. */
    if (roll_op_has(rec->op, ROLL_TRAIT_MAY) && !source_thread_known(s, rec->thread)) {
        return;
    }
    struct thread *t = source_thread(s, rec->thread);
    if (!t) {
        return;
    }
    bool poll = class == ROLL_CLASS_POLL, goes_on = poll && t->polls && t->inside != 0;
    if (poll) {
        source_polled(t, rec, goes_on);
    }
    if (goes_on) { /* the record is one of a loop of polls that was known */
        stuck_goes_on(s, t->inside, ticket + 1);
    } else {
        t->since = e->clock;
        t->calm = e->calm;
    }
    if (!poll && rec->op != ROLL_OP_COMM_ASYNC) {
        note_turn(s, rec, class);
    }
    t->inside = roll_seal_state(rec->seal) == ROLL_STATE_ENTERED ? ticket + 1 : 0;
    t->polls = poll;
    if (poll) {
        t->renewed = e->clock;
    } else if (!t->acts) {
        t->acts = rec->op != ROLL_OP_COMM_ASYNC;
    }
    if (class == ROLL_CLASS_EXT || poll) {
        /* this call is not NCCL's: it may stand inside a group without being part of the group */
    } else if (class == ROLL_CLASS_GROUP || rec->group == 0) {
        if (t->group != 0) {
            source_stir(e, s->number); /* the calls of that group are issued now */
        }
        t->group = 0;
    } else if (rec->group != t->group) {
        if (t->group != 0) {
            source_stir(e, s->number);
        }
        t->group = rec->group;
        t->joins = 0;
    }
}

/* Counts a call of NCCL that returned an error. The state of a communicator that a rank asks for is no error of the
 * call that asks. */
static void note_failed(struct roll_engine *e, const struct source *s, const struct roll_record *rec,
                        enum roll_op_class class)
{
    bool nccl =
        class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P || class == ROLL_CLASS_COMM || class == ROLL_CLASS_GROUP;
    if (nccl && rec->op != ROLL_OP_COMM_ASYNC) {
        const struct roll_engine_failed one = {
            .calls = 1, .first_ns = source_wall(s, rec), .rank = s->world, .op = rec->op, .result = rec->result};
        roll_engine_failed_add(&e->failed, &one);
    }
}

/* Counts a call of NCCL, and notes it as the last one of its rank. */
static void note_call(struct roll_engine *e, struct source *s, const struct roll_record *rec, enum roll_op_class class)
{
    s->calls++;
    e->calls++;
    if (call_failed(rec)) {
        note_failed(e, s, rec, class);
    }
    if (class == ROLL_CLASS_GROUP || rec->op == ROLL_OP_COMM_ASYNC) {
        return;
    }
    if (s->init != 0) { /* asked here, for every call, because it is hardly ever so */
        creation_over(s);
    }
    s->last = *rec;
    if (call_failed(rec) || s->failed.op != ROLL_OP_NONE) {
        refused_last(e, s, rec);
    }
    if (s->gave_up != 0) {
        silence_made(s, rec);
    }
    const struct member *m = source_member(s, rec->comm);
    s->last_key = m ? m->comm->key : 0;
}

/* Counts a call and its bytes on its communicator, for the faces. */
static inline void note_traffic(struct comm *c, const struct roll_record *rec)
{
    uint64_t bytes = rec->count * roll_dtype_bytes(rec->dtype);
    c->traffic.calls++;
    c->traffic.bytes += bytes;
    c->traffic.ops |= rec->op < 64 ? UINT64_C(1) << rec->op : 0;
    if (rec->step != ROLL_STEP_NONE) {
        c->traffic.step_calls++;
        c->traffic.step_bytes += bytes;
    }
}

/* A call of a rank that was set aside has no place: what stands behind it may have to wait for it. */
static void not_matched(struct source *s, const struct roll_record *rec, uint64_t ticket)
{
    bool enqueued = rec->count != 0 && !call_failed(rec) && (rec->flags & ROLL_FLAG_CAPTURED) == 0;
    if (s->no_room && enqueued) {
        budget_fog(s, rec, ticket);
    }
}

/* Takes a collective that is new. 0, NOMEM; LIMIT: there is no room for it. */
static int take_collective(struct roll_engine *e, struct source *s, struct entry *entry, uint64_t ticket)
{
    const struct roll_record *rec = &entry->rec;
    struct member *m = source_member(s, rec->comm);
    if (!m) {
        not_matched(s, rec, ticket);
        return 0;
    }
    m->comm->coll++;
    note_traffic(m->comm, rec);
    bool declined = call_declined(rec);
    if (call_failed(rec) && rec->group == 0 && !declined) { /* in a group the end of the group decides */
        refused_fresh(e, m, entry);
        return 0;
    }
    if (e->expected) {
        rehearsed_call(e, s, m, rec, ticket);
    }
    bool captured = (rec->flags & ROLL_FLAG_CAPTURED) != 0;
    int rc = meet_collective(e, m, entry, ticket);
    if (lowered_op(rec->op) && rec->count != 0 && !refused_call(s, entry)) {
        lowered_note(m, rec, true);
    }
    if (captured) {
        graph_note_call(s, rec, ticket);
    }
    if (declined) {
        refused_declined(e, m, rec);
    }
    if (rc == ROLL_E_LIMIT) {
        not_matched(s, rec, ticket);
    }
    if (rc != 0 || rec->count == 0) {
        return rc;
    }
    if (captured && !refused_call(s, entry)) {
        match_ready(m->comm, rec->seq); /* a captured call is only written down: nobody waits in it */
        source_brief(s, entry)->state = COLL_READY;
        return 0;
    }
    return source_queue_push(e, s, entry, ticket);
}

/* Takes a message that is new. 0, NOMEM; LIMIT: there is no room for it. */
static int take_message(struct roll_engine *e, struct source *s, struct entry *entry, uint64_t ticket)
{
    const struct roll_record *rec = &entry->rec;
    struct member *m = source_member(s, rec->comm);
    if (m && (!call_failed(rec) || rec->group != 0)) {
        m->comm->p2p++;
        note_traffic(m->comm, rec);
        if (e->expected) {
            rehearsed_call(e, s, m, rec, ticket);
        }
        int rc = meet_message(e, m, entry, ticket);
        if (rc == ROLL_E_LIMIT) {
            not_matched(s, rec, ticket);
        }
        return rc == 0 && entry->pair ? source_queue_push(e, s, entry, ticket) : rc;
    }
    if (m) {
        p2p_repeat(e, m, rec);
        refused_fresh(e, m, entry);
    } else {
        not_matched(s, rec, ticket);
    }
    return 0;
}

/* A call of a kind that is not known here: it counts as one that was lost, on its own communicator alone. While the
 * rank may be inside it, it is not known whether its host waits there, nor of whom. */
static void unknown_call(struct roll_engine *e, struct source *s, const struct roll_record *rec)
{
    struct member *m = source_member(s, rec->comm);
    if (m) {
        m->unsure = true;
        m->gaps++;
        m->lowered_lost = true;
    }
    s->gap = true;
    s->many_threads = s->many_threads || roll_seal_state(rec->seal) == ROLL_STATE_ENTERED;
    struct member **touched = s->touched; /* for the detectors it is that member alone */
    size_t touches = s->touches;
    bool all = s->touched_all;
    s->touched = &m;
    s->touches = m != NULL;
    s->touched_all = false;
    tell_lost(e, s->number, 0);
    s->touched = touched;
    s->touches = touches;
    s->touched_all = all;
}

/* The rank tells of another step than before; observed: in an observation. */
static void step_changes(struct source *s, const struct roll_record *rec, bool observed)
{
    bool first = s->step == ROLL_STEP_NONE, back = observed && !first && rec->step < s->step;
    s->went_back += back;
    s->step_wall = source_line(s, rec);
    s->again_wall = back || (first && s->generation > 0) ? s->step_wall : s->again_wall;
    s->first_step = first ? rec->step : s->first_step;
    s->step = rec->step;
}

/* A record whose ticket is new. 0, NOMEM; LIMIT: there is no room for it, which has been counted. */
static int fresh_record(struct roll_engine *e, uint32_t source, const struct roll_record *rec, uint64_t ticket)
{
    struct source *s = e->source[source];
    int rc = source_log_fits(s, ticket) ? 0 : room_in_log(e, s, ticket);
    if (rc != 0) {
        return rc;
    }
    struct entry *entry = source_log_put(s, rec, ticket);
    enum roll_op_class class = roll_op_class(rec->op);
    struct member *m;
    s->late = s->late || (s->records == 0 && ticket > 0);
    s->gap = s->gap || (s->records == 0 && ticket > 0); /* the process is watched from the middle of a step on */
    if (class == ROLL_CLASS_MOE) {
        (void)source_certain(s, rec); /* that step is the one of which the next observation tells, compared or not */
    }
    s->records++;
    e->records++;
    if (class != ROLL_CLASS_POLL) { /* a watchdog polls on while its rank hangs */
        s->last_ns = source_wall(s, rec);
        s->last_line = source_line(s, rec);
    }
    if (rec->step != ROLL_STEP_NONE) {
        if (rec->step != s->step) {
            step_changes(s, rec, class == ROLL_CLASS_MOE);
        }
        s->phase = rec->phase;
    }
    if (class != ROLL_CLASS_MOE && class != ROLL_CLASS_ORDER && class != ROLL_CLASS_NONE) {
        note_thread(e, s, rec, ticket, class);
        if (class != ROLL_CLASS_SYNC && class != ROLL_CLASS_EXT && class != ROLL_CLASS_POLL) {
            note_call(e, s, rec, class);
        }
    }
    if (s->threads > 1 && (class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P)) {
        m = source_member(s, rec->comm);
        if (m) {
            race_call(e, m, rec);
        }
    }
    switch (class) {
    case ROLL_CLASS_GROUP:
        if (s->threads > 1) {
            race_returned(e, s, rec);
        }
        if (refused_is_group_void(rec)) {
            refused_group(e, s, rec, ticket);
        }
        break;
    case ROLL_CLASS_COLL:
        if (s->step == ROLL_STEP_NONE) { /* else the job tells */
            round_call(e, s, rec);
        }
        rc = take_collective(e, s, entry, ticket);
        break;
    case ROLL_CLASS_P2P:
        rc = take_message(e, s, entry, ticket);
        break;
    case ROLL_CLASS_COMM:
        m = source_member(s, rec->comm);
        if (m && (rec->op == ROLL_OP_COMM_INIT || rec->op == ROLL_OP_COMM_SPLIT)) {
            m->many_callers = m->many_callers || (m->caller != 0 && m->caller != rec->thread);
            m->caller = rec->thread;
        }
        comm_life(e, s, rec);
        ask_record(e, source, rec, ticket, true);
        break;
    case ROLL_CLASS_MOE:
        layers_note(e, rec);
        ask_record(e, source, rec, ticket, true);
        break;
    case ROLL_CLASS_EXT:
        ask_record(e, source, rec, ticket, true);
        break;
    case ROLL_CLASS_SYNC:
        if (roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED) {
            stuck_returned(e, s, rec, NO_CLOCK);
        }
        waited(e, s, rec);
        break;
    case ROLL_CLASS_POLL:
        if (roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED && rec->result == 0) {
            stuck_polled(s, ticket);
        }
        waited(e, s, rec);
        break;
    case ROLL_CLASS_NONE:
        unknown_call(e, s, rec);
        break;
    default:
        break;
    }
    completed(e, s, rec);
    return rc;
}

/* An update: the record of a call that is known comes with a later state. */
static void grown_record(struct roll_engine *e, uint32_t source, const struct roll_record *rec, uint64_t ticket)
{
    struct source *s = e->source[source];
    struct entry *entry = source_entry(s, ticket);
    enum roll_op_class class = roll_op_class(rec->op);
    for (uint32_t i = 0; i < s->threads; i++) {
        if (s->thread[i].inside == ticket + 1 && roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED) {
            s->thread[i].inside = 0;
            s->turn_until = s->turn == i + 1 ? rec->enter_ns + rec->call_ns : s->turn_until;
            if (class == ROLL_CLASS_SYNC || (class == ROLL_CLASS_POLL && rec->result == 0)) {
                stuck_returned(e, s, rec, s->thread[i].since);
            }
        }
    }
    if (s->threads > 1 && (class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P || class == ROLL_CLASS_GROUP)) {
        race_returned(e, s, rec);
    }
    if (!entry) {
        completed(e, s, rec);
        return;
    }
    if (roll_seal_state(rec->seal) <= roll_seal_state(entry->rec.seal)) {
        return;
    }
    if (call_failed(rec) && !call_failed(&entry->rec)) {
        note_failed(e, s, rec, class);
    }
    entry->rec = *rec;
    bool call = class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P;
    if (call && call_failed(rec) && rec->group == 0) {
        refused_late(e, s, entry, ticket);
    } else if (refused_is_group_void(rec)) {
        refused_group(e, s, rec, ticket);
    } else if (class == ROLL_CLASS_COMM || class == ROLL_CLASS_MOE) {
        if (class == ROLL_CLASS_COMM) {
            comm_life(e, s, rec);
        }
        ask_record(e, source, rec, ticket, false);
    } else if (class == ROLL_CLASS_SYNC || class == ROLL_CLASS_POLL) {
        waited(e, s, rec);
    }
    if (s->last.seal >> 8 == rec->seal >> 8) {
        s->last = *rec;
        /* The end of a group says for its calls whether they were taken, and may have come first. */
        if (rec->group == 0 || call_failed(rec)) {
            refused_last(e, s, rec);
        }
    }
    completed(e, s, rec);
}

/* Records before ticket `upto` will never come: which calls they were is unknown on every communicator of the source.
 */
static void source_gap(struct roll_engine *e, struct source *s, uint64_t upto)
{
    struct member *m;
    room_for_gap(e, s, upto);
    for (size_t i = 0; (m = source_touched(s, &i)) != NULL;) { /* of the others it is known from the loss before */
        m->unsure = true;
        m->gaps++;
        m->lowered_lost = true;
    }
    for (uint32_t i = 0; i < s->threads; i++) {
        s->thread[i].group = 0;
        s->thread[i].inside = 0;
    }
    s->gap = true;
    s->gap_ticket = upto;
    source_log_gap(s, upto);
}

static void count_lost(struct roll_engine *e, uint32_t source, uint64_t count)
{
    e->source[source]->lost += count;
    e->lost += count;
    tell_lost(e, source, count);
    source_untouch(e->source[source]);
}

int roll_engine_feed(roll_engine_t *e, uint32_t source, const struct roll_record *recs, size_t n)
{
    if (source >= e->sources) {
        return ROLL_E_ARG;
    }
    struct source *s = e->source[source];
    int rc = 0;
    bool news = false;
    for (size_t at = 64; at < offsetof(struct source, thread) + 64; at += 64) {
        __builtin_prefetch((const char *)s + at, 1);
    }
    ahead_first(s, recs, n);
    for (size_t i = 0; i < n; i++) {
        ahead_next(s, &recs[i], n - i);
        if (!news && roll_op_class(recs[i].op) !=
                         ROLL_CLASS_POLL) { /* polls are no news: a watchdog that polls says nothing of its rank */
            news = true;
            source_news(e, s);
        }
        if (roll_seal_state(recs[i].seal) == ROLL_STATE_EMPTY) {
            continue;
        }
        uint64_t ticket = roll_seal_ticket(recs[i].seal);
        struct member *m = ticket < s->next ? source_member(s, recs[i].comm) : NULL;
        if (m && !m->touched) {
            source_touch(s, m);
        }
        if (ticket < s->next) {
            grown_record(e, source, &recs[i], ticket);
            continue;
        }
        if (ticket > s->next && s->records > 0) {
            uint64_t count = ticket - s->next;
            source_gap(e, s, ticket);
            source_stir(e, source);
            count_lost(e, source, count);
        }
        if (e->mute_fresh) {
            silence_settle(e);
        }
        m = source_member(s, recs[i].comm); /* behind the gap, which leaves it untouched */
        if (m && !m->touched) {
            source_touch(s, m);
        }
        int one = fresh_record(e, source, &recs[i], ticket);
        rc = rc || one == ROLL_E_LIMIT ? rc : one; /* a refusal is counted, and told below */
    }
    room_tell(e);
    e->dirty = true;
    return rc;
}

int roll_engine_lost(roll_engine_t *e, uint32_t source, uint64_t first, uint64_t count)
{
    if (source >= e->sources) {
        return ROLL_E_ARG;
    }
    struct source *s = e->source[source];
    if (count == 0 || first + count <= s->next) {
        return 0;
    }
    source_gap(e, s, first + count);
    source_stir(e, source);
    count_lost(e, source, count);
    return 0;
}
