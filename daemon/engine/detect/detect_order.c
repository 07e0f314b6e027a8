/*
 * detect_order.c: calls in opposite order that have gone well so far, and groups that join on one rank what another
 * rank makes one after the other.
 *
 * Two ranks belong to two communicators and make a call on each, one rank in one order and the other rank in the other.
 * There are three cases:
 *
 *   - Nothing orders the calls on one of the ranks (two streams, no wait of the host between them). This is legal and
 *     common, and no record says whether a device can run both calls at once. Nothing is said.
 *   - Both ranks order the calls, and nobody leaves either call before all have arrived. Then both ranks wait, whatever
 *     the skew, and judge/waitgraph.c finds the circle.
 *   - Both ranks order the calls, and one of the calls has a root. It has gone well by luck: some member could leave
 *     the call early because its data fitted into a buffer. With more data, or another release of NCCL, the ranks wait
 *     for each other. Predicted.
 *
 * A group launches its communicators in the order of their hashes, which differ from run to run. So when one rank makes
 * both calls in one group, and another rank makes them one after the other on one stream, it goes well in about half of
 * all runs. Suspected, because the hashes are not recorded.
 *
 * At ticks, and within a bound, the detector looks at complete calls that have a root or are in a group, and at the
 * calls near them in the logs of the members. A job that makes more such calls than fit into the bound has only some of
 * them looked at.
 */
#include "daemon/engine/detect/detector.h"

#define WORK_MAX     8192u
#define BACK_MAX     1024u /* how far back in a member's log the call is looked for */
#define NEAR         24u   /* log entries on either side of the call that are looked at */
#define OTHERS_MAX   48u
#define SLOTS_BEHIND 64u
#define MEMBERS_MAX  64u

enum relation { BEFORE, AFTER, TOGETHER, RELATIONS }; /* where a member makes the other call, relative to its own */

/* A call on another communicator that members make near the call that is looked at. */
struct other {
    struct comm *comm;
    uint32_t seq;
    bool rooted;
    struct roll_rankset ranks[RELATIONS];
    const struct source *source[RELATIONS];
    /* Tickets of the call that is looked at and of the other one, on `source`. */
    uint64_t own[RELATIONS], ticket[RELATIONS];
};

/* A look at one call, and the calls that have been found near it. */
struct look {
    struct roll_engine *e;
    struct comm *comm;
    uint32_t seq, work, others;
    struct other other[OTHERS_MAX];
};

static bool is_rooted(const struct roll_record *rec)
{
    return roll_op_has(rec->op, ROLL_TRAIT_ROOT);
}

static bool counts(const struct source *s, const struct entry *entry)
{
    return entry && roll_op_class(entry->rec.op) == ROLL_CLASS_COLL && entry->rec.count != 0 &&
           (entry->rec.flags & ROLL_FLAG_CAPTURED) == 0 && !refused_call(s, entry);
}

/* The second call does not begin before the first is over: the device orders them, or the host waits in between. */
static bool is_ordered(struct look *k, const struct source *s, uint64_t first, uint64_t second)
{
    const struct roll_record *a = &source_entry(s, first)->rec, *b = &source_entry(s, second)->rec;
    if (a->thread != b->thread || a->stream == 0 || b->stream == 0) {
        return false;
    }
    if (a->stream == b->stream) {
        return true;
    }
    for (uint64_t t = first + 1; t < second && spend(&k->work); t++) {
        const struct entry *wait = source_entry(s, t);
        bool returned = wait && roll_op_class(wait->rec.op) == ROLL_CLASS_SYNC && wait->rec.thread == b->thread &&
                        roll_seal_state(wait->rec.seal) >= ROLL_STATE_RETURNED;
        if (returned && (wait->rec.op == ROLL_OP_DEVICE_SYNC ||
                         (wait->rec.op == ROLL_OP_STREAM_SYNC && wait->rec.stream == a->stream))) {
            return true;
        }
    }
    return false;
}

static struct other *other_of(struct look *k, struct comm *c, uint32_t seq)
{
    for (uint32_t i = 0; i < k->others; i++) {
        if (k->other[i].comm == c && k->other[i].seq == seq) {
            return &k->other[i];
        }
    }
    if (k->others == OTHERS_MAX) {
        return NULL;
    }
    k->other[k->others] = (struct other){.comm = c, .seq = seq};
    return &k->other[k->others++];
}

static bool is_sound(const struct roll_engine *e, const struct member *m)
{
    return m->source != NO_SOURCE && !m->unsure && !m->ended && e->source[m->source]->lost == 0;
}

/*
 * All members have made equally many calls. Behind a call that one member left out, calls with one number do not belong
 * together, and all orders look opposite. Where hosts have only run ahead of each other at this moment, a later look
 * will do.
 */
static bool is_even(const struct comm *c)
{
    for (uint32_t r = 1; r < c->size; r++) {
        if (c->member[r].source != NO_SOURCE && c->member[0].source != NO_SOURCE &&
            c->member[r].next != c->member[0].next) {
            return false;
        }
    }
    return true;
}

static bool is_settled(const struct comm *c, uint32_t seq)
{
    return !c->muted && !c->aborted && !c->overflow && !c->open && !c->blamed && comm_complete(c, seq);
}

static void note(struct look *k, const struct source *s, uint64_t own, uint64_t ticket)
{
    const struct entry *mine = source_entry(s, own), *entry = source_entry(s, ticket);
    const struct member *m = counts(s, entry) ? source_member(s, entry->rec.comm) : NULL;
    if (!m || m->comm == k->comm || !is_sound(k->e, m) || !is_settled(m->comm, entry->rec.seq)) {
        return;
    }
    enum relation where;
    if (source_same_unit(&mine->rec, &entry->rec)) {
        where = TOGETHER;
    } else if (ticket < own && is_ordered(k, s, ticket, own)) {
        where = BEFORE;
    } else if (ticket > own && is_ordered(k, s, own, ticket)) {
        where = AFTER;
    } else {
        return;
    }
    struct other *o = other_of(k, m->comm, entry->rec.seq);
    if (o) {
        o->rooted = is_rooted(&entry->rec) || is_rooted(&mine->rec);
        (void)roll_rankset_add(&o->ranks[where], s->world);
        o->source[where] = s;
        o->own[where] = own;
        o->ticket[where] = ticket;
    }
}

static void look_at_member(struct look *k, const struct member *m)
{
    const struct source *s = k->e->source[m->source];
    for (uint64_t t = s->next, n = 0; t > 0 && n < BACK_MAX && spend(&k->work); t--, n++) {
        const struct entry *entry = source_entry(s, t - 1);
        if (!counts(s, entry) || entry->rec.seq != k->seq || source_member(s, entry->rec.comm) != m) {
            continue;
        }
        uint64_t own = t - 1, from = own > NEAR ? own - NEAR : 0;
        for (uint64_t at = from; at <= own + NEAR && at < s->next && spend(&k->work); at++) {
            if (at != own) {
                note(k, s, own, at);
            }
        }
        return;
    }
}

/* words */

static void words_both(struct words *w, const struct look *k, const struct other *o, enum relation where)
{
    const struct entry *own = source_entry(o->source[where], o->own[where]);
    const struct entry *entry = source_entry(o->source[where], o->ticket[where]);
    const struct entry *first = where == BEFORE ? entry : own, *second = where == BEFORE ? own : entry;
    const struct comm *one = where == BEFORE ? o->comm : k->comm, *two = where == BEFORE ? k->comm : o->comm;
    words_ranks(w, &o->ranks[where]);
    words_add(w, roll_rankset_count(&o->ranks[where]) == 1 ? " makes " : " make ");
    words_call(w, &first->rec);
    words_add(w, ", #%u on ", first->rec.seq);
    words_comm(w, one);
    words_add(w, where == TOGETHER ? ", and " : ", and then ");
    words_call(w, &second->rec);
    words_add(w, ", #%u on ", second->rec.seq);
    words_comm(w, two);
}

static struct roll_verdict *begin(struct look *k, const struct other *o, enum roll_verdict_code code,
                                  enum roll_certainty certainty, enum relation a, enum relation b)
{
    const struct comm *one = k->comm->key < o->comm->key ? k->comm : o->comm;
    const struct comm *two = one == k->comm ? o->comm : k->comm;
    struct roll_verdict *v = say_once(k->e, say_key(code, one->key, two->key, 2)) ? say(k->e, code, certainty) : NULL;
    if (v) {
        size_t few = roll_rankset_count(&o->ranks[a]), many = roll_rankset_count(&o->ranks[b]);
        say_comm(v, k->comm, k->seq);
        if (code == ROLL_VERDICT_OPPOSITE_ORDER && few != many) {
            (void)roll_rankset_copy(&v->culprits, &o->ranks[few < many ? a : b]);
        }
        enum relation first = few <= many ? a : b, second = few <= many ? b : a;
        say_side(v, o->source[first], source_index(k->e, o->source[first]), &o->ranks[first],
                 &source_entry(o->source[first], o->own[first])->rec);
        say_side(v, o->source[second], source_index(k->e, o->source[second]), &o->ranks[second],
                 &source_entry(o->source[second], o->own[second])->rec);
    }
    return v;
}

static void tell_opposite(struct look *k, const struct other *o)
{
    struct roll_verdict *v = begin(k, o, ROLL_VERDICT_OPPOSITE_ORDER, ROLL_PREDICTED, BEFORE, AFTER);
    struct words w = {.used = 0};
    if (!v) {
        return;
    }
    words_both(&w, k, o, BEFORE);
    words_add(&w, "; ");
    words_both(&w, k, o, AFTER);
    words_add(&w, ": in opposite order, on one stream or with a wait between them. It has gone well only because a "
                  "call with a root can be left early while its data fit into a buffer. With more data, or another "
                  "release of NCCL, these ranks wait for each other for ever. Predicted: make the calls in one order "
                  "on all ranks");
    words_add(&w, roll_rankset_count(&v->culprits) > 0
                      ? "; the smaller side is named."
                      : " (as many ranks have one order as the other: who is wrong is not known).");
    say_text(k->e, v, "%s", w.text);
}

static void tell_group(struct look *k, const struct other *o, enum relation where)
{
    struct roll_verdict *v = begin(k, o, ROLL_VERDICT_GROUP_MISMATCH, ROLL_SUSPECTED, TOGETHER, where);
    struct words w = {.used = 0};
    if (!v) {
        return;
    }
    v->field = "group";
    words_both(&w, k, o, TOGETHER);
    words_add(&w, ", in one group; ");
    words_both(&w, k, o, where);
    words_add(
        &w, ", one after the other. A group launches its communicators in the order of their hashes, which change from "
            "run to run: in about half of all runs the two orders are opposite, and these ranks wait for each other "
            "for ever. Suspected: the hashes are not known. Open and close groups at the same places on every rank.");
    say_text(k->e, v, "%s", w.text);
}

static void look_at(struct look *k)
{
    for (uint32_t r = 0; r < k->comm->size && r < MEMBERS_MAX && k->work > 0; r++) {
        if (is_sound(k->e, &k->comm->member[r])) {
            look_at_member(k, &k->comm->member[r]);
        }
    }
    for (uint32_t i = 0; i < k->others; i++) {
        struct other *o = &k->other[i];
        bool opposite = o->source[BEFORE] && o->source[AFTER] && o->rooted;
        bool grouped = o->source[TOGETHER] && (o->source[BEFORE] || o->source[AFTER]);
        if (opposite && is_even(o->comm)) {
            tell_opposite(k, o);
        } else if (grouped && is_even(o->comm)) {
            tell_group(k, o, o->source[BEFORE] ? BEFORE : AFTER);
        }
        for (int where = 0; where < RELATIONS; where++) {
            roll_rankset_fini(&o->ranks[where]);
        }
    }
    k->others = 0;
}

/* Some members made their newest call here in a group, and others did not. */
static bool is_mixed(const struct comm *c)
{
    bool in = false, out = false;
    for (uint32_t r = 0; r < c->size && !(in && out); r++) {
        bool seen = c->member[r].source != NO_SOURCE;
        in = in || (seen && c->member[r].group != 0);
        out = out || (seen && c->member[r].group == 0);
    }
    return in && out;
}

/* Decides by the call of the member that came first; what another member does differently shows when that member comes
 * first. */
static bool worth_a_look(const struct roll_engine *e, const struct comm *c, uint32_t seq, bool mixed)
{
    const struct slot *slot = comm_slot(c, seq);
    const struct member *m = slot->ticket != 0 ? &c->member[slot->rank] : NULL;
    const struct source *s = m && m->source != NO_SOURCE ? e->source[m->source] : NULL;
    const struct entry *entry = s ? source_entry(s, slot->ticket - 1) : NULL;
    return counts(s, entry) && (mixed || entry->rec.group != 0 || is_rooted(&entry->rec));
}

struct order_engine {
    uint64_t run_ns; /* patience clock of the last run */
    uint32_t next;   /* index of the communicator at which the next run begins */
};
STATE_OF_ENGINE(order)

struct order_comm {
    uint32_t seq; /* the calls below this number have been looked at */
};
STATE_OF_COMM(order)

static void order_tick(struct roll_engine *e)
{
    struct order_engine *own = order_of_engine(e);
    if (e->comms < 2 || (!e->finishing && e->clock - own->run_ns < e->config.stall_ns / 2)) {
        return;
    }
    own->run_ns = e->clock;
    struct look k = {.e = e, .work = WORK_MAX};
    for (uint32_t i = 0; i < e->comms && k.work > 0; i++) {
        struct comm *c = e->comm[own->next++ % e->comms];
        uint32_t from = c->base > SLOTS_BEHIND ? c->base - SLOTS_BEHIND : 0;
        struct order_comm *looked = order_of_comm(c);
        from = looked && looked->seq > from ? looked->seq : from;
        bool mixed = from < c->base && is_mixed(c);
        if (from >= c->base || c->size < 2 || !is_even(c) || !(looked = order_make_comm(c))) {
            continue;
        }
        for (uint32_t seq = from; seq < c->base && spend(&k.work); seq++) {
            looked->seq = seq + 1;
            if (is_settled(c, seq) && worth_a_look(e, c, seq, mixed)) {
                k.comm = c;
                k.seq = seq;
                look_at(&k);
            }
        }
    }
}

const struct detector detect_order = {.name = "order", ENGINE_STATE(order), .tick = order_tick};
