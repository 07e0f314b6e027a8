/*
 * silence.c: what a verdict has explained is not told again, until the trouble is over.
 *
 * A verdict about a communicator explains what follows there: later disagreements, waits that lead to it, the end of
 * ranks that were stuck in it. So the communicator falls silent. Its silence has a place, the call at which the trouble
 * began, and an end. A member has got past the trouble when its host comes back, without an error, from a wait that
 * covers a call at or behind the place, or when the device has completed such a call, or when the member has destroyed
 * the communicator. When all members that can still move have got past, the silence ends, and what happens then is told
 * afresh. A flag that is set once and for all was rejected: it made the engine deaf after its first verdict.
 *
 * A rank that has gone on for long without getting past the trouble goes on beside it (on other streams and
 * communicators, where nobody waits for the calls that are stuck). The trouble does not explain that rank any more.
 *
 * Times of several hosts compare by the clocks that their rings came with (source_line), and by the engine's own time.
 * The wall clock of the moment was rejected: where it is set back, no call is behind the trouble for as long, and where
 * it is set forward, all are that came before.
 */
#include "daemon/engine/judge/silence.h"

#define WAITS_TRIED 8u /* of a rank's waits the newest that are looked at: each covers all older ones of its stream */

bool silence_is_beyond(const struct member *m, const struct source *s, const struct roll_record *rec)
{
    const struct comm *c = m->comm;
    if (c->mute_seq == NO_SEQ || roll_op_class(rec->op) != ROLL_CLASS_COLL) {
        return source_line(s, rec) >= c->mute_ns && roll_seal_ticket(rec->seal) >= s->fast_next;
    }
    return rec->count != 0 && rec->seq >= c->mute_seq;
}

bool silence_is_call(const struct roll_record *rec)
{
    enum roll_op_class class = roll_op_class(rec->op);
    return class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P;
}

bool silence_is_good_wait(const struct roll_record *rec)
{
    bool stream = (rec->op == ROLL_OP_STREAM_SYNC || rec->op == ROLL_OP_STREAM_QUERY) && rec->stream != 0;
    return (stream || rec->op == ROLL_OP_DEVICE_SYNC) && roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED &&
           rec->result == 0;
}

bool silence_covers(const struct source *s, const struct member *m, const struct roll_record *wait)
{
    uint64_t upto = roll_seal_ticket(wait->seal);
    uint64_t ticket = upto > s->log_mask ? upto - s->log_mask : 0;
    for (; ticket < upto; ticket++) {
        const struct entry *entry = source_entry(s, ticket);
        if (entry && silence_is_call(&entry->rec) && source_member(s, entry->rec.comm) == m &&
            (wait->op == ROLL_OP_DEVICE_SYNC || entry->rec.stream == wait->stream) &&
            silence_is_beyond(m, s, &entry->rec)) {
            return true;
        }
    }
    return false;
}

/* The member has got past the trouble already. The records that show so may have come before the trouble was known,
 * because ranks are fed in any order. */
static bool has_passed(const struct source *s, const struct member *m)
{
    uint64_t ticket = s->next;
    uint32_t waits = 0;
    for (uint64_t n = 0; n <= s->log_mask && ticket-- > 0; n++) {
        const struct entry *entry = source_entry(s, ticket);
        if (!entry || source_member(s, entry->rec.comm) == m) {
            bool done =
                entry && roll_seal_state(entry->rec.seal) == ROLL_STATE_COMPLETE && silence_is_call(&entry->rec);
            if (done && silence_is_beyond(m, s, &entry->rec)) {
                return true;
            }
            continue;
        }
        if (silence_is_good_wait(&entry->rec) && waits++ < WAITS_TRIED && silence_covers(s, m, &entry->rec)) {
            return true;
        }
    }
    return false;
}

/*
 * The time of the job: that of the last tick, or, where whole traces are read at once, that of the records if it is
 * later. Of the ranks the second newest counts, so that one damaged time does not put the end of a silence out of
 * reach. The ranks are gone through once in a tick, or once for as many new records as there are ranks, however many
 * communicators fall silent.
 */
static uint64_t job_wall(struct roll_engine *e)
{
    if (e->wall_clock != e->clock + 1 || e->records - e->wall_records >= e->sources) {
        uint64_t first = 0, second = 0;
        for (uint32_t i = 0; i < e->sources; i++) {
            uint64_t last = e->source[i]->last_line;
            second = last > first ? first : last > second ? last : second;
            first = last > first ? last : first;
        }
        e->effort += e->sources;
        e->wall_clock = e->clock + 1;
        e->wall_records = e->records;
        e->wall = second;
    }
    return e->wall > e->now ? e->wall : e->now;
}

void silence_trouble(struct roll_engine *e)
{
    e->trouble_ns = e->clock;
    e->trouble_wall = job_wall(e);
}

/* What is known of the rank was made by now. Where its newest call is of a later time its host's clock goes fast, and
 * none of its times tells whether a call was made behind the trouble: those that are known were not. The same of a call
 * behind `from`, which is where a trouble was put that seems to be of a later time than the job has come to. */
static void note_fast(struct roll_engine *e, struct source *s, uint64_t from)
{
    uint64_t by = e->now + e->config.stall_ns;
    if (s->last_line > (by < from ? by : from)) {
        s->fast_next = s->next;
    }
}

/* Silences the communicator; wall: when the call was made at which the trouble began. */
static void mute(struct roll_engine *e, struct comm *c, uint32_t seq, uint64_t wall)
{
    if (c->muted) {
        return; /* the first cause stays the cause */
    }
    silence_trouble(e);
    c->muted = true;
    comm_stir(c);
    c->mute_seq = seq;
    c->mute_turn = ++e->mutes;
    c->mute_doubt = 0;
    /* The call is known by now, so a time that is far later than that of the job is damaged. Records that are read at
     * once are later than the last tick by what the reader was behind. */
    bool later = wall > e->trouble_wall + e->config.stall_ns;
    c->mute_ns = later ? e->trouble_wall + 1 : wall;
    c->mute_wall = e->trouble_wall;
    e->muted_comms++;
    e->mute_fresh = true;
    for (uint32_t r = 0; r < c->room; r++) {
        struct member *m = &c->member[r];
        if (m->source != NO_SOURCE) {
            note_fast(e, e->source[m->source], later ? e->trouble_wall : UINT64_MAX);
        }
        m->passed = m->source != NO_SOURCE && has_passed(e->source[m->source], m);
    }
}

void comm_mute(struct roll_engine *e, struct comm *c, uint32_t seq)
{
    uint64_t newest = 0;
    for (uint32_t r = 0; r < c->size; r++) {
        uint64_t at = c->member[r].source == NO_SOURCE ? 0 : e->source[c->member[r].source]->last_line;
        newest = at > newest ? at : newest;
    }
    mute(e, c, seq, newest + 1);
}

void comm_mute_at(struct roll_engine *e, struct comm *c, const struct source *s, const struct roll_record *rec)
{
    mute(e, c, roll_op_class(rec->op) == ROLL_CLASS_COLL ? rec->seq : NO_SEQ, source_line(s, rec));
}

/* The rank has made no collective or message since the member left its communicator, as far as the log goes back. */
static bool makes_none_since(const struct source *s, const struct member *m)
{
    uint64_t ticket = s->next;
    for (uint64_t n = 0; n <= s->log_mask && ticket-- > 0; n++) {
        const struct entry *entry = source_entry(s, ticket);
        if (!entry || silence_is_call(&entry->rec)) {
            return !entry;
        }
        bool leaves = entry->rec.op == ROLL_OP_COMM_DESTROY || entry->rec.op == ROLL_OP_COMM_FINALIZE;
        if (leaves && source_member(s, entry->rec.comm) == m) {
            return true;
        }
    }
    return true;
}

void comm_mute_behind(struct roll_engine *e, const struct member *m, const struct source *s,
                      const struct roll_record *rec)
{
    bool fresh = !m->comm->muted;
    mute(e, m->comm, m->next, source_line(s, rec));
    for (uint32_t r = 0; fresh && r < m->comm->size; r++) {
        const struct member *o = &m->comm->member[r];
        /* It was read before the rank that tells why. */
        if (o->gone && !o->passed && o->source != NO_SOURCE && makes_none_since(e->source[o->source], o)) {
            e->source[o->source]->gave_up = e->source[o->source]->next;
        }
    }
}

void comm_explained(struct roll_engine *e, struct comm *c)
{
    comm_mute(e, c, NO_SEQ);
    c->explains = true;
}

bool comm_silent_at(const struct comm *c, uint32_t seq)
{
    return c->muted && (c->mute_seq == NO_SEQ || seq >= c->mute_seq);
}

/* The host of s is inside a call on the communicator of m, or inside a wait for such a call at or behind the place of
 * the trouble. */
static bool stands_in(const struct source *s, const struct member *m)
{
    for (uint32_t i = 0; i < s->threads; i++) {
        const struct entry *in = s->thread[i].inside ? source_entry(s, s->thread[i].inside - 1) : NULL;
        if (in && (silence_is_call(&in->rec) ? source_member(s, in->rec.comm) == m : silence_covers(s, m, &in->rec))) {
            return true;
        }
    }
    return false;
}

bool source_beside(const struct source *s, const struct member *m)
{
    uint64_t long_after = m->comm->mute_wall + m->comm->engine->config.suspect_ns;
    return m->comm->muted && s->back_wall >= long_after && !stands_in(s, m);
}

bool source_explained(const struct source *s)
{
    for (uint32_t i = 0; i < s->members; i++) {
        const struct member *m = s->member[i];
        if (m && m->comm->muted && m->comm->explains && !m->passed && !source_beside(s, m)) {
            return true;
        }
    }
    return false;
}

bool source_gave_up(const struct source *s)
{
    return s->gave_up != 0;
}

bool source_held_by(const struct roll_engine *e, const struct source *s, const struct queue *q)
{
    if (s->back_ns <= q->since + e->config.stall_ns) {
        return true;
    }
    for (uint32_t i = 0; i < s->threads; i++) {
        const struct entry *in = s->thread[i].inside ? source_entry(s, s->thread[i].inside - 1) : NULL;
        bool wait = in && roll_op_class(in->rec.op) == ROLL_CLASS_SYNC;
        bool other = wait && !roll_op_has(in->rec.op, ROLL_TRAIT_ALL) && in->rec.stream < s->queues &&
                     &s->queue[in->rec.stream] != q && s->queue[in->rec.stream].head != 0;
        if (in && !other) {
            return true;
        }
    }
    return false;
}
