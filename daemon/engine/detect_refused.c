/*
 * detect_refused.c: calls of which nothing was enqueued: NCCL refused them, or the group that they are in; or the group was only simulated.
 *
 * Such a call does not count: it gives its place back, and the rank may make the call again, right, with the same number. So it is
 * taken out of what it had been matched with. Counting it as a call of its own was rejected: the ranks then seem to part at the retry,
 * though NCCL sees them in step. What remains is a rank whose peers wait at the place: after a while, when it does not make the call again,
 * that is told. Suspected, because it may still come; proven when it has destroyed the communicator.
 *
 * A retry may be read before the news that the first attempt was refused: a number that comes twice from one thread says the same.
 */
#include "daemon/engine/detector.h"

#include <stdlib.h>

/* The last refused collective of a member, until it has made another one there. */
struct refusal {
    struct roll_record rec;
    uint64_t since; /* patience clock */
    bool told;
};

bool refused_is_group_void(const struct roll_record *rec)
{
    return rec->op == ROLL_OP_GROUP_END && (call_failed(rec) || rec->count != 0);
}

bool refused_call(const struct entry *entry)
{
    return entry->index == COLL_REFUSED && !entry->pair;
}

static bool is_counted(const struct entry *entry)
{
    return roll_op_class(entry->rec.op) == ROLL_CLASS_COLL && entry->rec.count != 0 && entry->index != COLL_REFUSED;
}

/* The entry with which a member has taken the number seq, newest first; NULL when it is not known any more. */
static struct entry *entry_at(const struct roll_engine *e, const struct member *m, uint32_t seq, uint64_t *ticket)
{
    const struct source *s = e->source[m->source];
    uint64_t low = s->next > s->log_mask + 1 ? s->next - s->log_mask - 1 : 0;
    for (uint64_t t = s->next; t-- > low;) {
        struct entry *entry = source_entry(s, t);
        if (entry && is_counted(entry) && entry->rec.seq == seq && source_member(s, entry->rec.comm) == m) {
            *ticket = t;
            return entry;
        }
    }
    return NULL;
}

/* Matches the calls at a slot anew, without that of `gone`. */
static void rebuild(struct roll_engine *e, struct comm *c, uint32_t seq, const struct member *gone)
{
    struct slot *s = comm_slot(c, seq);
    s->ticket = 0;
    s->known = false;
    match_release(e, c, s);
    for (uint32_t r = 0; r < c->size; r++) {
        struct member *m = &c->member[r];
        uint64_t ticket;
        const struct entry *entry = m != gone && m->next > seq && m->from <= seq ? entry_at(e, m, seq, &ticket) : NULL;
        if (entry) {
            (void)match_meet(e, m, s, entry, ticket);
        }
    }
    match_open(e, c, seq);
}

/* The member's call at seq, its newest there, does not count. */
static void take_out(struct roll_engine *e, struct member *m, struct entry *entry, uint64_t ticket)
{
    struct comm *c = m->comm;
    uint32_t seq = entry->rec.seq;
    bool was_ready = entry->index == COLL_READY;
    entry->index = COLL_REFUSED;
    m->next = seq;
    m->group = 0;
    if (seq < c->base || seq >= c->high) {
        return;
    }
    struct slot *s = comm_slot(c, seq);
    s->arrived -= s->arrived > 0;
    s->ready -= was_ready && s->ready > 0;
    bool first = s->ticket == ticket + 1 && s->rank == (uint32_t)m->rank;
    if (first || s->variant != 0) {
        rebuild(e, c, seq, m);
        align_withdraw(e, c, seq);
    }
}

void refused_repeat(struct roll_engine *e, struct member *m, const struct roll_record *rec)
{
    while (m->next > rec->seq) {
        uint64_t ticket;
        struct entry *entry = entry_at(e, m, m->next - 1, &ticket);
        if (!entry || entry->rec.thread != rec->thread || m->next - 1 < m->comm->base) {
            return;
        }
        take_out(e, m, entry, ticket);
    }
}

static void remember(struct roll_engine *e, struct member *m, const struct roll_record *rec)
{
    if (!m->refusal && !(m->refusal = calloc(1, sizeof(*m->refusal)))) {
        return;
    }
    m->comm->refusals += m->refusal->rec.op == ROLL_OP_NONE;
    *m->refusal = (struct refusal){.rec = *rec, .since = e->clock};
}

void refused_over(struct member *m)
{
    if (m->refusal && m->refusal->rec.op != ROLL_OP_NONE) {
        m->refusal->rec.op = ROLL_OP_NONE;
        m->comm->refusals--;
    }
}

void refused_fresh(struct roll_engine *e, struct member *m, struct entry *entry)
{
    refused_repeat(e, m, &entry->rec);
    entry->index = COLL_REFUSED;
    if (entry->rec.count != 0 && entry->rec.seq == m->next) {
        remember(e, m, &entry->rec);
    }
}

void refused_late(struct roll_engine *e, struct source *s, struct entry *entry, uint64_t ticket)
{
    struct member *m = source_member(s, entry->rec.comm);
    if (!m) {
        return;
    }
    if (roll_op_class(entry->rec.op) == ROLL_CLASS_P2P) {
        p2p_refused(e, m, entry);
        return;
    }
    if (!is_counted(entry) || entry->rec.seq + 1 != m->next) {
        return; /* made again meanwhile, or of a version that gives no number back */
    }
    take_out(e, m, entry, ticket);
    if (call_failed(&entry->rec)) {
        remember(e, m, &entry->rec);
    }
}

void refused_group(struct roll_engine *e, struct source *s, const struct roll_record *end, uint64_t ticket)
{
    const struct roll_record *why = call_failed(end) ? end : NULL;
    uint64_t low = s->next > s->log_mask + 1 ? s->next - s->log_mask - 1 : 0;
    for (uint32_t left = end->aux; left > 0 && ticket-- > low;) {
        struct entry *entry = source_entry(s, ticket);
        if (!entry || !source_same_unit(&entry->rec, end) || entry->rec.op == ROLL_OP_GROUP_END) {
            continue;
        }
        left--;
        refused_late(e, s, entry, ticket);
        struct member *m = source_member(s, entry->rec.comm);
        bool mine = m && entry->index == COLL_REFUSED && roll_op_class(entry->rec.op) == ROLL_CLASS_COLL;
        if (why && mine && entry->rec.count != 0) { /* the oldest of the group is what its peers wait in first */
            struct roll_record rec = entry->rec;
            rec.result = call_failed(&rec) ? rec.result : why->result;
            remember(e, m, &rec);
        }
    }
}

/* --- what is told --- */

static bool is_due(const struct roll_engine *e, const struct member *m)
{
    const struct source *s = e->source[m->source];
    uint64_t age = e->clock - m->refusal->since;
    return e->finishing || m->gone || age >= e->config.suspect_ns || (age >= e->config.stall_ns && source_blocked(s));
}

static bool waited_for(const struct comm *c, const struct member *m)
{
    return m->refusal && m->refusal->rec.op != ROLL_OP_NONE && m->next >= c->base && m->next < c->high &&
           comm_slot(c, m->next)->ticket != 0;
}

static void tell(struct roll_engine *e, struct comm *c, const struct member *m)
{
    const struct slot *slot = comm_slot(c, m->next);
    const struct source *theirs = e->source[c->member[slot->rank].source];
    const struct entry *other = source_entry(theirs, slot->ticket - 1);
    struct roll_verdict *v = say(e, ROLL_VERDICT_CALL_SKIPPED, m->gone ? ROLL_PROVEN : ROLL_SUSPECTED);
    if (!v) {
        return;
    }
    for (uint32_t r = 0; r < c->size; r++) {
        uint32_t world = comm_world(e, c, r);
        if (world != NO_SOURCE && waited_for(c, &c->member[r]) && c->member[r].next == m->next) {
            (void)roll_rankset_add(&v->culprits, world);
        } else if (world != NO_SOURCE && c->member[r].next > m->next) {
            (void)roll_rankset_add(&v->waiting, world);
        }
    }
    say_comm(v, c, m->next);
    v->field = "result";
    say_side(v, e->source[m->source], m->source, &v->culprits, &m->refusal->rec);
    say_side(v, theirs, source_index(e, theirs), &v->waiting, other ? &other->rec : NULL);
    struct words w = {.used = 0};
    words_ranks(&w, &v->culprits);
    words_add(&w, " called ");
    words_call(&w, &m->refusal->rec);
    words_add(&w, " as #%u on ", m->next);
    words_comm(&w, c);
    words_add(&w, ", which returned error %u: nothing was enqueued", m->refusal->rec.result);
    words_add(&w, m->refusal->rec.group != 0 ? " of its whole group, and it was not made again. "
                                             : ", and it was not made again. ");
    words_wait(&w, &v->waiting);
    words_add(&w, m->gone ? " there, in vain: the communicator has been destroyed."
                          : " there. Suspected: it may still be made again.");
    say_text(e, v, "%s", w.text);
}

static bool someone_died(const struct roll_engine *e, const struct comm *c)
{
    for (uint32_t r = 0; r < c->size; r++) {
        if (c->member[r].source != NO_SOURCE && !source_alive(e->source[c->member[r].source])) {
            return true;
        }
    }
    return false;
}

static void refused_tick(struct roll_engine *e)
{
    for (uint32_t i = 0; i < e->comms; i++) {
        struct comm *c = e->comm[i];
        for (uint32_t r = 0; c->refusals > 0 && !c->muted && !c->aborted && !c->overflow && r < c->size; r++) {
            const struct member *m = &c->member[r];
            if (!waited_for(c, m) || m->refusal->told || !is_due(e, m)) {
                continue;
            }
            m->refusal->told = true;
            if (!someone_died(e, c)) { /* that would be why it failed: detect_process.c tells it */
                comm_mute(e, c, m->next);
                comm_explained(e, c);
                if (say_once(e, say_key(ROLL_VERDICT_CALL_SKIPPED, c->key, m->next, 2))) {
                    tell(e, c, m);
                }
            }
        }
    }
}

void refused_free(struct member *m)
{
    free(m->refusal);
    m->refusal = NULL;
}

const struct detector detect_refused = {.name = "refused", .tick = refused_tick};
