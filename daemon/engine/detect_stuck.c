/*
 * detect_stuck.c: everyone has arrived and nothing completes: the device, the network, or a kernel that does not end.
 *
 * For the matcher such a call is complete: all members have made it, and nothing before it on their streams is missing. That it does not end
 * shows only in hosts that do not come back from a wait behind it. A host wait proves nothing but that somebody waits: device work is not
 * recorded, so a long kernel in front of the call, or behind it, looks the same. Therefore
 *   - all members must stand in it: inside a wait that covers the call and that no incomplete call explains, or inside the call itself; a
 *     member without a wait counts only when nothing at all has come from it for as long;
 *   - where some have left it (their host has come back from a wait behind it, or the device has said so), those who have not must be
 *     ranks that learn completion, and the operation one that nobody leaves before the last has arrived: then no kernel in front or
 *     behind can be the reason;
 *   - the patience is long and grows with the job's own waits: see patience_of.
 * So it is suspected, never proven, and says which calls it may be. A shorter patience (suspect_ns) was rejected: hosts that run a whole step ahead of
 * their device and wait at its end, or the first step with all its set-up, wait longer than that in healthy jobs.
 *
 * Nothing here is on the path of a record but a few words per host wait that has returned.
 */
#include "daemon/engine/detector.h"

#include <stdlib.h>
#include <string.h>

#define SITES       64u
#define SEEN_ENOUGH 3u         /* waits at one place of the program before its history counts */
#define USUAL       4u         /* patience where the place is known, in suspect_ns */
#define UNUSUAL     12u        /* and where it is not: the first step, a new phase */
#define CREATION    24u        /* creation of communicators: thousands of ranks take minutes */
#define LONGEST     5u         /* but no less than so many times the rank's longest wait so far */
#define BACK_MAX    256u       /* calls before a wait that are looked at */
#define WORK_MAX    (1u << 22) /* log entries that one run of the analysis may look at */
#define HOSTS_SHOWN 8u

/* What the waits of one rank have been like. */
struct waits {
    uint64_t longest_ns;
    uint64_t told;    /* ticket + 1 of the wait of which it has been told */
    uint64_t verdict; /* number of the verdict that this wait is part of; 0 = none */
    struct {
        uint32_t key, count;
    } site[SITES]; /* by call site and operation; a newcomer displaces the old one */
};

enum standing {
    STAND_ELSEWHERE, /* nothing says that it is in the call */
    STAND_IN,
    STAND_LEFT,
    STAND_AWAY, /* inside no wait, and silent for as long */
};

/* The call in which everybody stands, under examination. */
struct stuck {
    struct roll_engine *e;
    uint32_t work; /* entries that may still be looked at */
    struct comm *comm;
    struct roll_record rec;
    const struct source *first;         /* whose record it is */
    struct roll_rankset in, left, away; /* world ranks */
    uint64_t since;                     /* patience clock at which the last of them came into it */
    uint64_t longest_ns;                /* of all waits of those ranks before */
    bool known;                         /* all those who have not left it learn completion */
    bool ripe;                          /* every patience has run out */
};

static struct waits *waits_of(struct source *s)
{
    if (!s->waits) {
        s->waits = calloc(1, sizeof(*s->waits));
    }
    return s->waits;
}

static uint32_t site_key(const struct roll_record *rec)
{
    return (uint32_t)rec->callsite << 8 | rec->op;
}

/*
 * Its host has come back in good order. When all have that stood in the call, it was slow. A communicator that has been aborted lets go of its hosts as
 * well, and that says nothing.
 */
static void came_back(struct roll_engine *e, const struct source *s, struct waits *w)
{
    uint64_t number = w->verdict;
    w->verdict = 0;
    for (uint32_t i = 0; i < s->members; i++) {
        for (uint32_t r = 0; s->member[i] && r < s->member[i]->comm->size; r++) {
            if (s->member[i]->comm->member[r].ended != 0) {
                return;
            }
        }
    }
    for (uint32_t i = 0; i < e->sources; i++) {
        if (e->source[i]->waits && e->source[i]->waits->verdict == number) {
            return;
        }
    }
    (void)say_withdraw(e, number, "all ranks have come back from their waits: it was slow, not stuck");
}

void stuck_returned(struct roll_engine *e, struct source *s, const struct roll_record *rec, uint64_t since)
{
    struct waits *w = waits_of(s);
    if (!w) {
        return;
    }
    uint32_t key = site_key(rec), at = (key * 0x9e3779b1u) >> 26;
    uint64_t took =
        since != NO_CLOCK && e->clock > since && e->clock - since > rec->call_ns ? e->clock - since : rec->call_ns;
    w->longest_ns = took > w->longest_ns ? took : w->longest_ns;
    w->site[at].count = w->site[at].key == key ? w->site[at].count + 1 : 1;
    w->site[at].key = key;
    if (w->verdict != 0 && roll_seal_ticket(rec->seal) + 1 == w->told && rec->result == 0) {
        came_back(e, s, w);
    }
}

/* How long this wait of s must last before it is spoken of. */
static uint64_t patience_of(const struct roll_engine *e, const struct source *s, const struct roll_record *wait)
{
    uint32_t key = site_key(wait), at = (key * 0x9e3779b1u) >> 26;
    bool usual = s->waits && s->waits->site[at].key == key && s->waits->site[at].count >= SEEN_ENOUGH;
    uint64_t least = e->config.suspect_ns * (usual ? USUAL : UNUSUAL);
    uint64_t longest = s->waits ? s->waits->longest_ns * LONGEST : 0;
    return longest > least ? longest : least;
}

/* --- one rank and one call --- */

static bool is_call(const struct roll_record *rec)
{
    enum roll_op_class class = roll_op_class(rec->op);
    return (class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P) && rec->count != 0 &&
           (rec->flags & ROLL_FLAG_CAPTURED) == 0;
}

/* Some NCCL call between the tickets stands on the stream. */
static bool stream_used(struct stuck *k, const struct source *s, uint64_t from, uint64_t upto, uint16_t stream)
{
    for (uint64_t t = from; t < upto && k->work > 0; t++, k->work--) {
        const struct entry *entry = source_entry(s, t);
        if (entry && is_call(&entry->rec) && entry->rec.stream == stream) {
            return true;
        }
    }
    return false;
}

/* When this record returns, the call with this ticket before it is over. A stream without NCCL calls may wait for others by events. */
static bool covers(struct stuck *k, const struct source *s, const struct roll_record *wait, uint64_t wait_ticket,
                   const struct roll_record *call, uint64_t ticket)
{
    switch (roll_op_class(wait->op)) {
    case ROLL_CLASS_SYNC:
        if (wait->op == ROLL_OP_DEVICE_SYNC || (wait->op == ROLL_OP_EVENT_SYNC && wait->stream == 0)) {
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

/* The host or the device of s has said that the call is over. *perhaps: a wait has returned that may have been for it, or not. */
static bool has_left(struct stuck *k, const struct source *s, const struct roll_record *call, uint64_t ticket,
                     bool *perhaps)
{
    *perhaps = false;
    for (uint32_t i = 0; s->completes && i < s->queues; i++) {
        if ((i == call->stream || call->group != 0) && s->queue[i].done > ticket) {
            return true;
        }
    }
    for (uint64_t t = ticket + 1; t < s->next && k->work > 0; t++, k->work--) {
        const struct entry *entry = source_entry(s, t);
        if (!entry || roll_op_class(entry->rec.op) != ROLL_CLASS_SYNC ||
            roll_seal_state(entry->rec.seal) < ROLL_STATE_RETURNED) {
            continue;
        }
        bool event = entry->rec.op == ROLL_OP_EVENT_SYNC;
        if (entry->rec.op == ROLL_OP_DEVICE_SYNC || (!event && entry->rec.stream == call->stream)) {
            return true;
        }
        *perhaps = *perhaps || (!(event && entry->rec.stream == 0) && covers(k, s, &entry->rec, t, call, ticket));
    }
    return false;
}

/* An incomplete call on a stream that the wait covers explains it: that is waitgraph.c's. */
static bool is_explained(const struct source *s, const struct roll_record *wait, uint64_t wait_ticket)
{
    bool all = wait->op == ROLL_OP_DEVICE_SYNC || wait->stream == 0 || roll_op_class(wait->op) != ROLL_CLASS_SYNC;
    for (uint32_t i = 0; i < s->queues; i++) {
        if (s->queue[i].head != 0 && s->queue[i].head <= wait_ticket + 1 && (all || i == wait->stream)) {
            return true;
        }
    }
    return false;
}

/* The wait of s that covers the call; NULL: none that nothing explains. */
static const struct thread *wait_behind(struct stuck *k, const struct source *s, const struct roll_record *call,
                                        uint64_t ticket)
{
    for (uint32_t i = 0; i < s->threads; i++) {
        const struct thread *t = &s->thread[i];
        const struct entry *in = t->inside > ticket ? source_entry(s, t->inside - 1) : NULL;
        if (in && covers(k, s, &in->rec, t->inside - 1, call, ticket) && !is_explained(s, &in->rec, t->inside - 1)) {
            return t;
        }
    }
    return NULL;
}

static enum standing stand(struct stuck *k, const struct source *s, const struct roll_record *call, uint64_t ticket)
{
    struct roll_engine *e = k->e;
    bool perhaps;
    if (has_left(k, s, call, ticket, &perhaps)) {
        return STAND_LEFT;
    }
    if (perhaps) {
        return STAND_ELSEWHERE;
    }
    const struct thread *t = wait_behind(k, s, call, ticket);
    uint64_t since = t ? t->since : s->seen;
    uint64_t patience = t ? patience_of(e, s, &source_entry(s, t->inside - 1)->rec) : UNUSUAL * e->config.suspect_ns;
    if (!t && !source_quiet(e, s, e->config.suspect_ns)) {
        return STAND_ELSEWHERE;
    }
    k->ripe = k->ripe && e->clock >= since && e->clock - since >= patience;
    k->since = since > k->since ? since : k->since;
    k->known = k->known && s->completes;
    if (s->waits && s->waits->longest_ns > k->longest_ns) {
        k->longest_ns = s->waits->longest_ns;
    }
    return t ? STAND_IN : STAND_AWAY;
}

/* --- all members --- */

/* Ticket + 1 of the member's collective with this number; 0: not in its log any more. */
static uint64_t ticket_of(struct stuck *k, const struct source *s, const struct member *m, uint32_t seq)
{
    for (uint64_t t = s->next; t > 0 && s->next - t <= s->log_mask && k->work > 0; t--, k->work--) {
        const struct entry *entry = source_entry(s, t - 1);
        if (entry && roll_op_class(entry->rec.op) == ROLL_CLASS_COLL && entry->rec.seq == seq &&
            entry->rec.count != 0 && source_member(s, entry->rec.comm) == m && !refused_call(entry)) {
            return t;
        }
    }
    return 0;
}

static uint64_t ticket_of_message(struct stuck *k, const struct source *s, const struct pair *p, uint32_t index,
                                  unsigned side)
{
    for (uint64_t t = s->next; t > 0 && s->next - t <= s->log_mask && k->work > 0; t--, k->work--) {
        const struct entry *entry = source_entry(s, t - 1);
        if (entry && roll_op_class(entry->rec.op) == ROLL_CLASS_P2P && entry->pair == p && entry->index == index &&
            p2p_side(&entry->rec) == side) {
            return t;
        }
    }
    return 0;
}

static bool add_member(struct stuck *k, const struct source *s, const struct roll_record *call, uint64_t ticket)
{
    switch (stand(k, s, call, ticket)) {
    case STAND_IN:
        (void)roll_rankset_add(&k->in, s->world);
        return true;
    case STAND_LEFT:
        (void)roll_rankset_add(&k->left, s->world);
        return true;
    case STAND_AWAY:
        (void)roll_rankset_add(&k->away, s->world);
        return true;
    default:
        return false;
    }
}

/* Its member may be spoken of: alive, seen in full, and in no trouble that is known. */
static bool is_sound(const struct roll_engine *e, const struct member *m)
{
    if (m->source == NO_SOURCE || m->unsure || m->gone || m->ended) {
        return false;
    }
    const struct source *s = e->source[m->source];
    return s->proc == ROLL_PROC_RUNNING && !source_explained(s) && s->init == 0;
}

static bool all_stand_in_collective(struct stuck *k, const struct entry *entry)
{
    struct comm *c = k->comm;
    uint32_t seq = entry->rec.seq;
    if (!comm_complete(c, seq)) {
        return false;
    }
    for (uint32_t r = 0; r < c->size; r++) {
        struct member *m = &c->member[r];
        uint64_t ticket = is_sound(k->e, m) && comm_member_issued(m, seq) && seq >= m->from
                              ? ticket_of(k, k->e->source[m->source], m, seq)
                              : 0;
        const struct entry *own = ticket ? source_entry(k->e->source[m->source], ticket - 1) : NULL;
        if (!own || !add_member(k, k->e->source[m->source], &own->rec, ticket - 1)) {
            return false;
        }
    }
    return true;
}

static bool all_stand_in_message(struct stuck *k, const struct entry *entry)
{
    const struct pair *p = entry->pair;
    if (!p || p->unsure || !p2p_complete(entry)) {
        return false;
    }
    for (unsigned side = 0; side < 2; side++) {
        const struct member *m = &k->comm->member[p->end[side]];
        const struct source *s = is_sound(k->e, m) ? k->e->source[m->source] : NULL;
        uint64_t ticket = s ? ticket_of_message(k, s, p, entry->index, side) : 0;
        const struct entry *own = ticket ? source_entry(s, ticket - 1) : NULL;
        if (!own || !add_member(k, s, &own->rec, ticket - 1)) {
            return false;
        }
    }
    return p->end[0] != p->end[1];
}

/* Nobody leaves it before the last has arrived. */
static bool synchronises(enum roll_op op)
{
    return op == ROLL_OP_ALLREDUCE || op == ROLL_OP_ALLGATHER || op == ROLL_OP_REDUCESCATTER || op == ROLL_OP_ALLTOALL;
}

static bool all_stand_in(struct stuck *k, const struct source *s, const struct entry *entry)
{
    const struct member *m = source_member(s, entry->rec.comm);
    roll_rankset_clear(&k->in);
    roll_rankset_clear(&k->left);
    roll_rankset_clear(&k->away);
    k->since = k->longest_ns = 0;
    k->known = k->ripe = true;
    if (!m || m->comm->size < 2 || m->comm->open || m->comm->aborted || m->comm->overflow || m->comm->muted ||
        m->comm->blame.cause != 0) {
        return false;
    }
    k->comm = m->comm;
    k->rec = entry->rec;
    k->first = s;
    bool collective = roll_op_class(entry->rec.op) == ROLL_CLASS_COLL;
    if (!(collective ? all_stand_in_collective(k, entry) : all_stand_in_message(k, entry)) || k->work == 0) {
        return false;
    }
    bool left = roll_rankset_count(&k->left) > 0;
    return roll_rankset_count(&k->in) >= 2 && (!left || (k->known && synchronises(entry->rec.op)));
}

/*
 * The oldest call before this wait in which all its members stand: what is before it on its stream is over, or is not known not to be. Its ticket is
 * then in *at.
 */
static bool find_call(struct stuck *k, const struct source *s, const struct thread *t, uint64_t *at)
{
    uint64_t wait = t->inside - 1, from = wait > BACK_MAX ? wait - BACK_MAX : 0;
    const struct entry *in = source_entry(s, wait);
    if (!in || is_explained(s, &in->rec, wait)) {
        return false;
    }
    for (uint64_t ticket = from; ticket <= wait && k->work > 0; ticket++) {
        const struct entry *entry = source_entry(s, ticket);
        if (entry && is_call(&entry->rec) && !refused_call(entry) && stand(k, s, &entry->rec, ticket) == STAND_IN &&
            all_stand_in(k, s, entry)) {
            *at = ticket;
            return true;
        }
    }
    return false;
}

/* --- words --- */

/* "host a (ranks 0-3), host b (rank 4)" */
static void words_hosts(struct words *w, const struct roll_engine *e, const struct roll_rankset *set)
{
    uint32_t hosts = 0;
    for (uint32_t i = 0; i < e->sources; i++) {
        const struct source *s = e->source[i];
        struct roll_rankset here = {0};
        bool again = !roll_rankset_has(set, s->world);
        for (uint32_t k = 0; k < i && !again; k++) {
            again = roll_rankset_has(set, e->source[k]->world) && strcmp(e->source[k]->host, s->host) == 0;
        }
        if (again || hosts++ >= HOSTS_SHOWN) {
            continue;
        }
        for (uint32_t k = i; k < e->sources; k++) {
            if (roll_rankset_has(set, e->source[k]->world) && strcmp(e->source[k]->host, s->host) == 0) {
                (void)roll_rankset_add(&here, e->source[k]->world);
            }
        }
        words_add(w, "%shost %s (", hosts > 1 ? ", " : "", s->host);
        words_ranks(w, &here);
        words_add(w, ")");
        roll_rankset_fini(&here);
    }
    if (hosts > HOSTS_SHOWN) {
        words_add(w, " and %u more hosts", hosts - HOSTS_SHOWN);
    }
}

/* Calls of s between this one and its wait of which nobody knows either that they are over. */
static uint32_t calls_behind(struct stuck *k, const struct source *s, const struct thread *t, uint64_t ticket)
{
    const struct entry *in = source_entry(s, t->inside - 1);
    uint32_t n = 0;
    for (uint64_t at = ticket + 1; in && at < t->inside - 1 && k->work > 0; at++, k->work--) {
        const struct entry *entry = source_entry(s, at);
        n += entry && is_call(&entry->rec) && covers(k, s, &in->rec, t->inside - 1, &entry->rec, at);
    }
    return n;
}

static void words_who(struct stuck *k, struct words *w)
{
    words_wait(w, &k->in);
    words_add(w, " in it for %.1f s: ", (double)(k->e->clock - k->since) / 1e9);
    words_hosts(w, k->e, &k->in);
    words_add(w, ".");
    if (roll_rankset_count(&k->left) > 0) {
        words_add(w, " ");
        words_ranks(w, &k->left);
        words_add(w,
                  " %s left it, which nobody can before all have arrived; of the others it is learnt when their "
                  "device is through, and it is not.",
                  roll_rankset_count(&k->left) == 1 ? "has" : "have");
    }
    if (roll_rankset_count(&k->away) > 0) {
        words_add(w, " Of ");
        words_ranks(w, &k->away);
        words_add(w, " nothing has come for as long.");
    }
    if (k->longest_ns > 0) {
        words_add(w, " The longest wait of these ranks so far took %.1f s.", (double)k->longest_ns / 1e9);
    }
}

static uint64_t speak(struct stuck *k, uint32_t behind)
{
    struct roll_engine *e = k->e;
    struct roll_verdict *v = say(e, ROLL_VERDICT_COLLECTIVE_STUCK, ROLL_SUSPECTED);
    if (!v) {
        return 0;
    }
    uint32_t index = source_index(e, k->first);
    bool left = roll_rankset_count(&k->left) > 0;
    say_comm(v, k->comm, k->rec.seq);
    say_side(v, k->first, index, &k->in, &k->rec);
    if (left) {
        say_side(v, k->first, index, &k->left, &k->rec);
    }
    (void)roll_rankset_copy(&v->waiting, &k->in);
    struct words w = {.used = 0};
    words_add(&w, "Everyone has arrived and nothing completes. All members of ");
    words_comm(&w, k->comm);
    words_add(&w, roll_op_class(k->rec.op) == ROLL_CLASS_P2P ? " that it needs have made " : " have made ");
    words_call(&w, &k->rec);
    words_add(&w, ", #%u; what is before it is done as far as the records say. ", k->rec.seq);
    words_who(k, &w);
    if (behind > 0 && !k->known) {
        words_add(&w, " It may also be one of the %u calls that were enqueued behind it.", behind);
    }
    words_add(&w, " The records show no mistake of the program: look at the devices (Xid), the network and the hosts%s",
              k->known && left
                  ? ". Suspected: it may only be slow."
                  : ". Suspected: a kernel in front of it, or behind it, that takes so long looks the same.");
    say_text(e, v, "%s", w.text);
    return v->number;
}

/* All who wait now wait for this, as far as is known; it is told once. */
static void mark_told(struct stuck *k, uint64_t number)
{
    for (uint32_t i = 0; i < k->e->sources; i++) {
        struct source *s = k->e->source[i];
        for (uint32_t t = 0; t < s->threads; t++) {
            if (s->thread[t].inside != 0 && waits_of(s) && s->thread[t].inside > s->waits->told) {
                s->waits->told = s->thread[t].inside;
                s->waits->verdict = roll_rankset_has(&k->in, s->world) ? number : 0;
            }
        }
    }
}

static bool may_be_stuck(const struct roll_engine *e, const struct source *s, const struct thread *t)
{
    return t->inside != 0 && !(s->waits && t->inside <= s->waits->told) && e->clock >= t->since &&
           e->clock - t->since >= e->config.suspect_ns;
}

static void stuck_fini_set(struct stuck *k)
{
    roll_rankset_fini(&k->in);
    roll_rankset_fini(&k->left);
    roll_rankset_fini(&k->away);
}

/* --- creations: all members are inside, and none returns --- */

static void look_at_creation(struct roll_engine *e, struct source *s)
{
    const struct entry *entry = s->init ? source_entry(s, s->init - 1) : NULL;
    const struct member *m = entry ? source_member(s, entry->rec.comm) : NULL;
    if (!m || entry->rec.op != ROLL_OP_COMM_INIT || e->clock - s->init_since < CREATION * e->config.suspect_ns ||
        m->comm->open || m->comm->size < 2) {
        return;
    }
    struct roll_rankset in = {0};
    uint64_t since = s->init_since;
    bool all = true;
    for (uint32_t r = 0; r < m->comm->size && all; r++) {
        const struct member *o = &m->comm->member[r];
        const struct source *os = o->source == NO_SOURCE ? NULL : e->source[o->source];
        const struct entry *own = os && os->init ? source_entry(os, os->init - 1) : NULL;
        all = own && source_member(os, own->rec.comm) == o && os->proc == ROLL_PROC_RUNNING && !source_explained(os) &&
              e->clock - os->init_since >= CREATION * e->config.suspect_ns;
        if (all) {
            (void)roll_rankset_add(&in, os->world);
            since = os->init_since > since ? os->init_since : since;
        }
    }
    if (all && say_once(e, say_key(ROLL_VERDICT_COLLECTIVE_STUCK, m->comm->key, ROLL_OP_COMM_INIT, 0))) {
        struct roll_verdict *v = say(e, ROLL_VERDICT_COLLECTIVE_STUCK, ROLL_SUSPECTED);
        struct words w = {.used = 0};
        if (v) {
            say_comm(v, m->comm, 0);
            say_side(v, s, source_index(e, s), &in, &entry->rec);
            (void)roll_rankset_copy(&v->waiting, &in);
            words_add(&w,
                      "Everyone has arrived and nothing completes. All %u members of a new communicator are inside ",
                      m->comm->size);
            words_call(&w, &entry->rec);
            words_add(&w, " for %.1f s: ", (double)(e->clock - since) / 1e9);
            words_hosts(&w, e, &in);
            words_add(&w, ". The records show no mistake of the program: look at the network between the hosts "
                          "(interfaces, routes, a firewall; NCCL_DEBUG=INFO says what NCCL tries). Suspected: it may "
                          "only be slow.");
            say_text(e, v, "%s", w.text);
        }
    }
    roll_rankset_fini(&in);
}

static void stuck_tick(struct roll_engine *e)
{
    if (e->finishing || e->clock - e->stuck_run_ns < e->config.stall_ns / 2) {
        return;
    }
    e->stuck_run_ns = e->clock;
    struct stuck k = {.e = e, .work = WORK_MAX};
    for (uint32_t i = 0; i < e->sources; i++) {
        struct source *s = e->source[i];
        if (s->init != 0) {
            look_at_creation(e, s);
        }
        for (uint32_t t = 0; t < s->threads; t++) {
            uint64_t ticket;
            if (!may_be_stuck(e, s, &s->thread[t])) {
                continue;
            }
            if (e->dirty) {
                sweep(e);
            }
            if (find_call(&k, s, &s->thread[t], &ticket) && k.ripe) {
                mark_told(&k, speak(&k, calls_behind(&k, s, &s->thread[t], ticket)));
            }
        }
    }
    stuck_fini_set(&k);
}

/* Others wait for a rank that stands in such a call: when patience runs out, that is told, and not that this one is blocked. */
static bool stuck_block(struct roll_engine *e, const struct block *b)
{
    struct stuck k = {.e = e, .work = WORK_MAX};
    bool found = false;
    for (uint32_t t = 0; b->kind == BLOCK_STUCK && t < b->rank->threads && !found; t++) {
        uint64_t ticket;
        found = b->rank->thread[t].inside != 0 && find_call(&k, b->rank, &b->rank->thread[t], &ticket);
    }
    stuck_fini_set(&k);
    return found;
}

static void stuck_fini(struct roll_engine *e)
{
    for (uint32_t i = 0; i < e->sources; i++) {
        free(e->source[i]->waits);
        e->source[i]->waits = NULL;
    }
}

const struct detector detect_stuck = {.name = "stuck", .block = stuck_block, .tick = stuck_tick, .fini = stuck_fini};
