/*
 * detect_refused.c: calls of which nothing was enqueued: NCCL refused them, or the group that they are in; or the group
 * was only simulated.
 *
 * Such a call does not count: it gives its place back, and the rank may make the call again, right, with the same
 * number. So it is taken out of what it had been matched with. Counting it as a call of its own was rejected: the ranks
 * then seem to part at the retry, though NCCL sees them in step. A retry may be read before the news that the first
 * attempt was refused: a number that comes twice from one thread says the same.
 *
 * What remains is a rank whose peers wait for what it did not enqueue. That is told as call-refused, with the error and
 * the argument that is wrong where the record shows it, and instead of the words for a rank that is busy, has skipped a
 * call, has ended or is dead:
 *
 *     peers wait at the place of a refused collective           suspected after a while: it may still be made again;
 * proven when it cannot be peers wait, and the walk of the wait graph ends at it      its messages, and a rank that has
 * ended after an error the rank went on with another call at that place           proven by the alignment (disagree)
 *     peers wait inside the creation of a communicator           proven when its own call of it was refused
 *
 * Errors that say that the cause lies elsewhere (a remote error, a timeout) name nobody. An error that comes while
 * another member is dead is that death's consequence. A refusal for which nobody waits is a note, when the rank ends or
 * goes on without the call.
 */
#include "daemon/engine/detect/detector.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

/* A refused call of a member, until it has made another one in its place. */
struct refusal_of {
    struct roll_record rec; /* op NONE: there was none */
    uint64_t since;         /* patience clock */
    bool open;              /* nothing has come in its place */
    bool left_out;          /* what came there is another call: it was not made again */
    bool passed_over;       /* it may have been made again, but only after the rank had done something else */
    bool told;
};

struct refused_engine {
    bool errors; /* some call was refused */
};
STATE_OF_ENGINE(refused)

struct refused_source {
    bool said;  /* that it was refused a call ... */
    bool noted; /* ... in a note only: nobody has waited for it */
};
STATE_OF_SOURCE(refused)

struct refused_member {
    struct refusal_of coll, message; /* the last of each */
};
STATE_OF_MEMBER(refused)

static bool is_said(const struct source *s)
{
    const struct refused_source *own = refused_of_source(s);
    return own && own->said;
}

static bool is_noted(const struct source *s)
{
    const struct refused_source *own = refused_of_source(s);
    return own && own->noted;
}

static void set_said(struct source *s, bool noted)
{
    struct refused_source *own = refused_make_source(s);
    if (own) {
        *own = (struct refused_source){.said = true, .noted = noted};
    }
}

bool refused_is_group_void(const struct roll_record *rec)
{
    return rec->op == ROLL_OP_GROUP_END && (call_failed(rec) || rec->count != 0);
}

static bool is_counted(const struct entry *entry)
{
    return roll_op_class(entry->rec.op) == ROLL_CLASS_COLL && entry->rec.count != 0 && entry->index != COLL_REFUSED;
}

/* The entry with which a member has taken the number seq, newest first; NULL when it is not known any more. */
static struct entry *entry_at(const struct roll_engine *e, const struct member *m, uint32_t seq, uint64_t *ticket)
{
    const struct source *s = e->source[m->source];
    uint64_t low = source_log_low(s);
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
    slot_release(e, s);
    for (uint32_t r = 0; r < c->size; r++) {
        struct member *m = &c->member[r];
        uint64_t ticket;
        const struct entry *entry = m != gone && m->next > seq && m->from <= seq ? entry_at(e, m, seq, &ticket) : NULL;
        if (entry) {
            (void)match_meet(e, m, s, entry, ticket);
        }
    }
    align_look(e, c, seq);
}

/* The member's call at seq, its newest there, does not count. */
static void take_out(struct roll_engine *e, struct member *m, struct entry *entry, uint64_t ticket)
{
    struct comm *c = m->comm;
    uint32_t seq = entry->rec.seq;
    bool was_ready = entry->index == COLL_READY;
    if (lowered_op(entry->rec.op)) {
        lowered_note(m, &entry->rec, false);
    }
    entry->index = COLL_REFUSED;
    m->next = seq;
    m->group = 0;
    m->thread = NO_THREAD; /* whether the call before was in one group with what comes next is not known */
    if (seq < c->base || seq >= c->high) {
        return;
    }
    struct slot *s = comm_slot(c, seq);
    s->arrived -= s->arrived > 0;
    s->ready -= was_ready && s->ready > 0;
    s->root_ready = s->root_ready && !lowered_root(m, &entry->rec);
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

/* ncclResult_t, as far as it matters who is to blame. */
enum { NCCL_INVALID_ARGUMENT = 4, NCCL_INVALID_USAGE = 5, NCCL_REMOTE_ERROR = 6, NCCL_TIMEOUT = 8 };

static bool is_wrong(const struct roll_engine *e, const struct member *m, const struct roll_record *rec);

/* Of the calls of one group that which cannot be right is why; among others the one that is told last, which is the
 * oldest. */
static bool explains_better(const struct roll_engine *e, const struct member *m, const struct roll_record *old,
                            const struct roll_record *rec)
{
    bool same = old->op != ROLL_OP_NONE && source_same_unit(old, rec);
    const struct member *of = same ? source_member(e->source[m->source], old->comm) : NULL;
    return !of || !is_wrong(e, of, old) || is_wrong(e, m, rec);
}

static void remember(struct roll_engine *e, struct member *m, const struct roll_record *rec)
{
    struct refused_member *own = refused_make_member(m);
    if (!own) {
        return;
    }
    m->was_refused = true;
    bool message = roll_op_class(rec->op) == ROLL_CLASS_P2P;
    struct refusal_of *r = message ? &own->message : &own->coll;
    struct source *s = e->source[m->source];
    if (rec->group != 0 && explains_better(e, m, &s->failed, rec)) {
        s->failed = *rec; /* of a group its end has told it */
    }
    if (message && r->open && !explains_better(e, m, &r->rec, rec)) {
        return;
    }
    refused_of_engine(e)->errors = true;
    m->comm->refusals += !message && !r->open;
    *r = (struct refusal_of){.rec = *rec, .since = e->clock, .open = true};
}

void refused_last(struct roll_engine *e, struct source *s, const struct roll_record *rec)
{
    bool leaves = rec->op == ROLL_OP_COMM_DESTROY || rec->op == ROLL_OP_COMM_ABORT || rec->op == ROLL_OP_COMM_FINALIZE;
    if (leaves) {
        return; /* cleaning up after an error */
    }
    s->failed.op = ROLL_OP_NONE;
    if (call_failed(rec)) {
        s->failed = *rec;
        refused_of_engine(e)->errors = true;
    }
}

/* A call made again: what was wrong may be another of its arguments. */
static bool is_alike(const struct roll_record *a, const struct roll_record *b)
{
    return a->op == b->op && a->count == b->count && (a->dtype == b->dtype || a->dtype >= ROLL_DTYPE_LIMIT);
}

/* Its thread has waited, or called something else, between the two: who makes a call again does it at once, as a rule.
 */
static bool did_between(const struct roll_engine *e, const struct member *m, const struct roll_record *a,
                        const struct roll_record *b)
{
    enum { LOOKED_AT = 256 };
    const struct source *s = e->source[m->source];
    uint64_t first = roll_seal_ticket(a->seal) + 1, last = roll_seal_ticket(b->seal);
    first = last > LOOKED_AT && last - LOOKED_AT > first ? last - LOOKED_AT : first;
    for (uint64_t t = first; t < last; t++) {
        const struct entry *at = source_entry(s, t);
        enum roll_op_class class = at ? roll_op_class(at->rec.op) : ROLL_CLASS_NONE;
        bool work = class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P || class == ROLL_CLASS_SYNC;
        bool refused = at && (call_failed(&at->rec) || refused_call(at) || source_same_unit(&at->rec, a));
        if (work && !refused && at->rec.thread == b->thread && !source_same_unit(&at->rec, b)) {
            return true;
        }
    }
    return false;
}

void refused_over(const struct roll_engine *e, struct member *m, const struct roll_record *rec)
{
    struct refused_member *r = refused_of_member(m);
    if (r && roll_op_class(rec->op) == ROLL_CLASS_P2P) {
        /* Another message to another peer is not the refused one, made again. */
        bool again =
            r->message.rec.op == rec->op && (is_alike(&r->message.rec, rec) || r->message.rec.peer == rec->peer);
        bool next = r->message.open && again;
        r->message.open = r->message.open && !next;
        r->message.passed_over = next ? did_between(e, m, &r->message.rec, rec) : r->message.passed_over;
    } else if (r && r->coll.open) {
        r->coll.open = false;
        r->coll.left_out = !is_alike(&r->coll.rec, rec);
        r->coll.passed_over = !r->coll.left_out && did_between(e, m, &r->coll.rec, rec);
        bool again = !r->coll.left_out && !r->coll.passed_over;
        struct refused_source *own = refused_of_source(e->source[m->source]);
        if (own && again) {
            own->said = false; /* it goes on */
        }
        m->comm->refusals--;
    }
}

static void refused_lost(struct roll_engine *e, uint32_t source, uint64_t count)
{
    struct source *s = e->source[source];
    (void)count;
    s->failed.op = ROLL_OP_NONE;
    for (uint32_t i = 0; i < s->members; i++) {
        struct member *m = s->member[i];
        struct refused_member *r = m ? refused_of_member(m) : NULL;
        if (r) {
            m->comm->refusals -= r->coll.open;
            *r = (struct refused_member){.coll = {.open = false}};
        }
    }
}

void refused_renew(const struct roll_engine *e, struct source *s)
{
    for (uint32_t i = 0; i < s->members; i++) {
        struct refused_member *r = s->member[i] ? refused_of_member(s->member[i]) : NULL;
        if (r) {
            r->coll.since = e->clock;
        }
    }
}

void refused_fresh(struct roll_engine *e, struct member *m, struct entry *entry)
{
    if (roll_op_class(entry->rec.op) == ROLL_CLASS_P2P) {
        remember(e, m, &entry->rec);
        return;
    }
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
        if (call_failed(&entry->rec)) {
            remember(e, m, &entry->rec);
        }
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
    uint64_t low = source_log_low(s);
    for (uint32_t left = end->aux; left > 0 && ticket-- > low;) {
        struct entry *entry = source_entry(s, ticket);
        if (!entry || !source_same_unit(&entry->rec, end) || entry->rec.op == ROLL_OP_GROUP_END) {
            continue;
        }
        left--;
        refused_late(e, s, entry, ticket);
        struct member *m = source_member(s, entry->rec.comm);
        bool message = roll_op_class(entry->rec.op) == ROLL_CLASS_P2P;
        bool mine = m && (message || (entry->index == COLL_REFUSED && entry->rec.count != 0));
        if (why && mine) { /* the oldest of the group is what its peers wait in first */
            struct roll_record rec = entry->rec;
            rec.result = call_failed(&rec) ? rec.result : why->result;
            rec.seal = roll_seal(roll_seal_ticket(rec.seal), ROLL_STATE_RETURNED);
            remember(e, m, &rec);
        }
    }
}

/* --- why it was refused --- */

/* Sends to itself in the group of this call, less receives from itself. */
static int to_itself(const struct source *s, const struct member *m, const struct roll_record *rec)
{
    enum { AROUND = 256 };
    uint64_t ticket = roll_seal_ticket(rec->seal), low = ticket > AROUND ? ticket - AROUND : 0;
    int sum = rec->group == 0 ? (rec->op == ROLL_OP_SEND ? 1 : -1) : 0;
    for (uint64_t t = low; rec->group != 0 && t < ticket + AROUND && t < s->next; t++) {
        const struct entry *at = source_entry(s, t);
        bool here = at && source_same_unit(&at->rec, rec) && roll_op_class(at->rec.op) == ROLL_CLASS_P2P &&
                    at->rec.comm == rec->comm && at->rec.peer == m->rank;
        sum += !here ? 0 : at->rec.op == ROLL_OP_SEND ? 1 : -1;
    }
    return sum;
}

/* What speaks against it is what another process said: see detect_claim.c. */
static const char *wrong_claim(const struct roll_engine *e, const struct source *s, const struct member *m,
                               const struct roll_record *rec, struct words *w)
{
    const struct comm *c = m ? m->comm : NULL;
    const struct claim *claim = m ? NULL : claim_of(e, s, &c);
    uint32_t claims = 0;
    const struct claim *on = m ? claims_on(c, &claims) : NULL;
    for (uint32_t i = 0; !claim && i < claims; i++) {
        bool against = on[i].rank == rec->peer || (uint32_t)on[i].nranks != c->size;
        claim = against ? &on[i] : NULL;
    }
    if (!claim) {
        return "";
    }
    uint32_t size = m ? (uint32_t)claim->nranks : c->size;
    if ((uint32_t)claim->nranks != c->size) {
        words_add(w, "another process came with the same unique id for %u ranks", size);
        return "nranks";
    }
    words_add(w, "rank %d of this unique id is taken by rank %u", rec->peer,
              m ? e->source[claim->source]->world : comm_world(e, c, (uint32_t)claim->rank));
    return "rank";
}

/* The argument that NCCL cannot have taken, and why; "" where the record does not show it. */
static const char *wrong_argument(const struct roll_engine *e, const struct source *s, const struct member *m,
                                  const struct roll_record *rec, struct words *w)
{
    enum roll_op_class class = roll_op_class(rec->op);
    uint32_t size = class == ROLL_CLASS_COMM ? (uint32_t)rec->count : m ? m->comm->size : UINT32_MAX;
    bool rooted = roll_op_has(rec->op, ROLL_TRAIT_ROOT);
    bool known = m && !m->comm->open;
    if (rec->op == ROLL_OP_COMM_INIT && size == 0) {
        words_add(w, "the number of ranks is not above 0");
        return "nranks";
    }
    if (rec->op == ROLL_OP_COMM_INIT && (rec->peer < 0 || (uint32_t)rec->peer >= size)) {
        words_add(w, "rank %d is none of a communicator of %u, whose ranks are 0 to %u", rec->peer, size, size - 1);
        return "rank";
    }
    if (rec->op == ROLL_OP_COMM_INIT) {
        return wrong_claim(e, s, m, rec, w);
    }
    if (known && (rooted || class == ROLL_CLASS_P2P) && (rec->peer < 0 || (uint32_t)rec->peer >= size)) {
        words_add(w, "%s %d does not exist, the members are 0 to %u", rooted ? "root" : "member", rec->peer, size - 1);
        return rooted ? "root" : "peer";
    }
    if ((class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P) && rec->dtype >= ROLL_DTYPE_LIMIT &&
        rec->dtype != ROLL_DTYPE_NONE) {
        words_add(w, "%u is no datatype", rec->dtype);
        return "dtype";
    }
    if (known && class == ROLL_CLASS_P2P && rec->peer == m->rank && to_itself(s, m, rec) != 0) {
        words_add(w,
                  "member %d is the rank itself, and a message to oneself needs its send and its receive in one group",
                  rec->peer);
        return "peer";
    }
    return "";
}

static bool is_wrong(const struct roll_engine *e, const struct member *m, const struct roll_record *rec)
{
    struct words none = {.used = 0};
    return *wrong_argument(e, e->source[m->source], m, rec, &none) != '\0';
}

/* Another call of the refused group, one whose argument NCCL cannot have taken: the one that voids them all. NULL: none
 * is known. */
static const struct roll_record *wrong_in_group(const struct roll_engine *e, const struct source *s,
                                                const struct roll_record *rec)
{
    uint64_t low = source_log_low(s);
    for (uint64_t t = s->next; rec->group != 0 && t-- > low;) {
        const struct entry *entry = source_entry(s, t);
        const struct roll_record *other = entry ? &entry->rec : NULL;
        const struct member *m = other ? source_member(s, other->comm) : NULL;
        if (m && other->group == rec->group && other->thread == rec->thread && call_failed(other) &&
            is_wrong(e, m, other)) {
            return other;
        }
    }
    return NULL;
}

/* The error that a rank got last, after which it has made no call that was taken; NULL: none. */
static const struct roll_record *last_error(const struct source *s)
{
    return s->failed.op != ROLL_OP_NONE ? &s->failed : NULL;
}

/* The error itself says that the cause is not in this call. */
static bool is_from_elsewhere(const struct roll_record *rec)
{
    return rec->result == NCCL_REMOTE_ERROR || rec->result == NCCL_TIMEOUT;
}

/* Any error but a wrong argument may be the echo of a death, or of an abort of its own. */
static bool is_echo(const struct roll_engine *e, const struct source *s, const struct member *m,
                    const struct roll_record *rec)
{
    if (rec->result == NCCL_INVALID_ARGUMENT || !m) {
        return false;
    }
    for (uint32_t r = 0; r < m->comm->size; r++) {
        const struct member *o = &m->comm->member[r];
        const struct source *other = o->source != NO_SOURCE ? e->source[o->source] : NULL;
        if (other && other != s && (other->proc == ROLL_PROC_DEAD || o->ended != 0)) {
            return true;
        }
    }
    return m->ended != 0 || m->comm->aborted;
}

/* --- what is told --- */

/* How the rank did without the call. */
enum without { NOT_AGAIN, DESTROYED, ENDED, WENT_ON, PASSED_OVER };

struct telling {
    struct source *rank; /* one of those that were refused, with its call */
    const struct member *member;
    const struct roll_record *rec;
    struct roll_rankset culprits, waiting; /* world ranks; owned */
    struct roll_rankset behind;            /* who waits in other calls for the same; owned */
    const struct source *waiter;           /* NULL: nobody waits */
    const struct roll_record *waits;       /* in this */
    const struct roll_record *instead;     /* WENT_ON */
    struct comm *comm;
    enum without without;
    enum roll_certainty certainty;
};

static void telling_fini(struct telling *t)
{
    roll_rankset_fini(&t->culprits);
    roll_rankset_fini(&t->waiting);
    roll_rankset_fini(&t->behind);
}

static void words_without(struct words *w, const struct telling *t, bool one)
{
    words_add(w, "nothing %s was enqueued, and ", t->rec->group != 0 ? "of its whole group" : "of it");
    switch (t->without) {
    case DESTROYED:
        words_add(w, "the communicator has been destroyed without it.");
        break;
    case ENDED:
        words_add(w, one ? "the rank has ended (" : "the ranks have ended (one of them: ");
        words_exit(w, t->rank->exit_status);
        words_add(w, ").");
        break;
    case WENT_ON:
        if (!t->instead) {
            words_add(w, "it was left out.");
            break;
        }
        words_add(w, "in its place came ");
        words_call(w, t->instead);
        words_add(w, ".");
        break;
    case PASSED_OVER:
        words_add(w, "the rank went on with something else; it made as many such calls as its peers, less one.");
        break;
    default:
        words_add(w, "it was not made again.");
    }
}

static uint64_t speak(struct roll_engine *e, const struct telling *t, uint64_t before)
{
    struct roll_verdict *v = say(e, ROLL_VERDICT_CALL_REFUSED, t->certainty);
    if (!v) {
        return 0;
    }
    say_supersedes(e, v, before);
    struct words w = {.used = 0};
    bool message = roll_op_class(t->rec->op) == ROLL_CLASS_P2P, one = roll_rankset_count(&t->culprits) == 1;
    bool elsewhere = is_from_elsewhere(t->rec);
    if (t->comm) {
        say_comm(v, t->comm, t->waits ? t->waits->seq : t->rec->seq);
    }
    if (!elsewhere && t->certainty != ROLL_NOTE) {
        (void)roll_rankset_copy(&v->culprits, &t->culprits);
    }
    (void)roll_rankset_copy(&v->waiting, &t->waiting);
    say_side(v, t->rank, source_index(e, t->rank), &t->culprits, t->rec);
    if (t->waiter) {
        say_side(v, t->waiter, source_index(e, t->waiter), &t->waiting, t->waits);
    }
    words_ranks(&w, &t->culprits);
    words_add(&w, " called ");
    words_call(&w, t->rec);
    if (t->comm && roll_op_class(t->rec->op) != ROLL_CLASS_COMM) {
        words_add(&w, message ? " on " : " as #%u on ", t->rec->seq);
        words_comm(&w, t->comm);
    }
    words_add(&w, ", and NCCL returned %s: ", roll_result_name(t->rec->result));
    v->field = wrong_argument(e, t->rank, t->member, t->rec, &w);
    if (*v->field != '\0') {
        words_add(&w, "; ");
    }
    words_without(&w, t, one);
    const struct roll_record *voids = *v->field == '\0' && !elsewhere ? wrong_in_group(e, t->rank, t->rec) : NULL;
    if (voids) {
        words_add(&w, " What NCCL did not take is ");
        words_call(&w, voids);
        words_add(&w, " in the same group: ");
        (void)wrong_argument(e, t->rank, source_member(t->rank, voids->comm), voids, &w);
        words_add(&w, ".");
    } else if (*v->field == '\0' && !elsewhere) {
        words_add(&w, " Which argument or state NCCL did not take is not in the record: NCCL_DEBUG=WARN prints it.");
        if (t->rec->result == NCCL_INVALID_USAGE) { /* the interposer's own answer looks the same: failfast.c */
            words_add(&w,
                      " Where ROLLCALL_ON_MISMATCH=error is set, it may be rollcall that refused the call: its line "
                      "on the rank's standard error says so, and what differed.");
        }
    }
    if (t->waiter) {
        words_add(&w, " ");
        words_wait(&w, &t->waiting);
        words_add(&w, " in ");
        words_call(&w, t->waits);
        words_add(&w, t->certainty == ROLL_PROVEN ? ", in vain." : ".");
        for (size_t i = 0; i < roll_rankset_count(&t->behind); i++) {
            (void)roll_rankset_add(&v->waiting, roll_rankset_at(&t->behind, i));
        }
        if (roll_rankset_count(&t->behind) > 0) {
            words_add(&w, " ");
            words_wait(&w, &t->behind);
            words_add(&w, " for the same in other calls.");
        }
    }
    if (elsewhere) {
        words_add(&w, " The error says that its cause lies with another rank or on the way there: nobody is named.");
    }
    if (t->without == PASSED_OVER) {
        words_add(&w, " Suspected: it may have made the call again later, and left out another one.");
    } else if (t->certainty == ROLL_SUSPECTED && !elsewhere) {
        words_add(&w, " Suspected: it may still be made again.");
    }
    say_text(e, v, "%s", w.text);
    return v->number;
}

/* The oldest call of `s` is a message for this member that the member has not made. */
static const struct entry *lacks_message(const struct source *s, const struct member *of)
{
    for (uint32_t k = 0; k < s->queues; k++) {
        const struct entry *head = s->queue[k].head ? source_entry(s, s->queue[k].head - 1) : NULL;
        if (head && head->pair && head->pair->comm == of->comm && head->rec.peer == of->rank &&
            !(p2p_node(head->pair, head->index)->have & 1u << !p2p_side(&head->rec))) {
            return head;
        }
    }
    return NULL;
}

/*
 * World ranks that wait in the call `waits` of this source for what was refused. Of a refused message the one that it
 * was meant for is not in the record where the peer was wrong: who waits for a message of that rank is nearer to it
 * than who waits for the rank elsewhere.
 */
static void add_waiting(const struct roll_engine *e, struct telling *t, const struct source *waiter,
                        const struct entry *waits)
{
    struct roll_rankset *out = &t->waiting;
    t->waiter = waiter;
    t->waits = &waits->rec;
    for (uint32_t i = 0; t->member && roll_op_class(t->rec->op) == ROLL_CLASS_P2P && i < e->sources; i++) {
        const struct source *s = e->source[i];
        const struct entry *lacks = s != t->rank && source_alive(s) ? lacks_message(s, t->member) : NULL;
        if (lacks && out == &t->waiting && !waits->pair) {
            t->waiter = s;
            t->waits = &lacks->rec;
            out = &t->behind;
        }
        if (lacks && (t->waits == &lacks->rec || s != waiter)) {
            (void)roll_rankset_add(t->waits == &lacks->rec ? &t->waiting : &t->behind, s->world);
        }
    }
    say_beside(e, waiter, waits, out);
}

static enum without without_of(const struct source *s, const struct member *m)
{
    return !source_alive(s) ? ENDED : m && m->gone ? DESTROYED : NOT_AGAIN;
}

static struct member *member_of(const struct comm *c, const struct roll_engine *e, const struct source *s)
{
    uint32_t index = source_index(e, s);
    for (uint32_t r = 0; c && r < c->size; r++) {
        if (c->member[r].source == index) {
            return &c->member[r];
        }
    }
    return NULL;
}

/* What has been told about the calls refused at one place; of messages that of one call. */
static uint64_t place_key(const struct telling *t)
{
    return roll_op_class(t->rec->op) == ROLL_CLASS_COLL && t->comm
               ? say_key(ROLL_VERDICT_CALL_REFUSED, t->comm->key, t->rec->seq, 0)
               : say_key(ROLL_VERDICT_CALL_REFUSED, t->rank->world, roll_seal_ticket(t->rec->seal), 2);
}

/* What has been told of the end of these ranks and of nobody else's: why they ended says it better. 0: nothing. */
static uint64_t told_of_end(const struct roll_engine *e, const struct telling *t)
{
    uint64_t number = t->without == ENDED && !is_from_elsewhere(t->rec) ? t->rank->end_number : 0;
    for (uint32_t i = 0; number != 0 && i < e->sources; i++) {
        const struct source *s = e->source[i];
        number = s->end_number == number && !roll_rankset_has(&t->culprits, s->world) ? 0 : number;
    }
    return number;
}

/* The verdict says that these ranks have ended: who waits for one of them elsewhere waits for the same reason
 * (wait_judge.c). */
static void note_ends(struct roll_engine *e, const struct telling *t, uint64_t number)
{
    bool named = t->without == ENDED && number != 0 && !is_from_elsewhere(t->rec);
    for (uint32_t i = 0; named && i < e->sources; i++) {
        struct source *s = e->source[i];
        if (!source_alive(s) && roll_rankset_has(&t->culprits, s->world)) {
            s->end_named = true;
            s->end_number = number;
        }
    }
}

/* One verdict for one refused call, however many wait for it and wherever; said better when more such calls at its
 * place are known. */
static void tell_once(struct roll_engine *e, struct telling *t)
{
    bool fresh = false;
    if (t->comm) {
        comm_mute(e, t->comm, t->waits && roll_op_class(t->waits->op) == ROLL_CLASS_COLL ? t->waits->seq : NO_SEQ);
        comm_explained(e, t->comm);
    }
    for (uint32_t i = 0; i < e->sources; i++) {
        struct source *s = e->source[i];
        const struct member *m = t->comm ? member_of(t->comm, e, s) : NULL;
        bool coll = roll_op_class(t->rec->op) == ROLL_CLASS_COLL;
        const struct refused_member *r = m ? refused_of_member(m) : NULL;
        const struct roll_record *rec = s == t->rank || !r ? t->rec : coll ? &r->coll.rec : &r->message.rec;
        if (s == t->rank || roll_rankset_has(&t->culprits, s->world)) {
            set_said(s, false);
            uint64_t key = say_key(ROLL_VERDICT_CALL_REFUSED, s->world, roll_seal_ticket(rec->seal), 1);
            fresh = say_once(e, key) || fresh;
        }
    }
    if (fresh) {
        uint64_t before = say_recall(e, place_key(t)), number = speak(e, t, before ? before : told_of_end(e, t));
        say_remember(e, place_key(t), number);
        if (number != 0 && t->certainty == ROLL_SUSPECTED && t->waiter && t->comm) {
            doubt_call(e, number, t->waiter, roll_seal_ticket(t->waits->seal), t->rank, t->comm);
        }
        note_ends(e, t, number);
    }
}

/* The refused calls of all members that are missing at this place. */
static bool waited_for(const struct comm *c, const struct member *m)
{
    const struct refused_member *r = refused_of_member(m);
    return r && r->coll.open && m->next >= c->base && m->next < c->high && comm_slot(c, m->next)->ticket != 0;
}

/* Every other member has come to the place, was refused there too, or has ended: no more culprits are to be expected.
 */
static bool is_complete(const struct roll_engine *e, const struct comm *c, uint32_t seq)
{
    for (uint32_t r = 0; r < c->size; r++) {
        const struct member *m = &c->member[r];
        bool refused = waited_for(c, m) && m->next == seq;
        bool ended = m->source != NO_SOURCE && !source_alive(e->source[m->source]);
        if (m->next <= seq && !refused && !ended && !m->gone) {
            return false;
        }
    }
    return true;
}

static bool is_due(const struct roll_engine *e, const struct member *m)
{
    const struct source *s = e->source[m->source];
    uint64_t age = e->clock - refused_of_member(m)->coll.since, stall = e->config.stall_ns;
    bool over = m->gone || !source_alive(s), complete = is_complete(e, m->comm, m->next);
    uint64_t patience = over && complete ? stall / 5 : complete && source_blocked(e, s) ? stall : stall * 2;
    if (s->unheard && !over) {
        return e->finishing; /* it may have made it again, and nobody has heard */
    }
    return e->finishing || age >= e->config.suspect_ns || (age >= patience && (over || source_blocked(e, s)));
}

static void tell_place(struct roll_engine *e, struct comm *c, const struct member *m)
{
    const struct slot *slot = comm_slot(c, m->next);
    const struct source *theirs = e->source[c->member[slot->rank].source];
    const struct entry *other = source_entry(theirs, slot->ticket - 1);
    struct source *s = e->source[m->source];
    struct telling t = {.rank = s, .member = m, .rec = &refused_of_member(m)->coll.rec, .comm = c};
    t.without = without_of(s, m);
    t.certainty = t.without == NOT_AGAIN || is_from_elsewhere(t.rec) ? ROLL_SUSPECTED : ROLL_PROVEN;
    for (uint32_t r = 0; r < c->size; r++) {
        uint32_t world = comm_world(e, c, r);
        if (world != NO_SOURCE && waited_for(c, &c->member[r]) && c->member[r].next == m->next) {
            (void)roll_rankset_add(&t.culprits, world);
        } else if (world != NO_SOURCE && c->member[r].next > m->next) {
            (void)roll_rankset_add(&t.waiting, world);
        }
    }
    t.waiter = other ? theirs : NULL;
    t.waits = other ? &other->rec : NULL;
    tell_once(e, &t);
    telling_fini(&t);
}

static void places_tick(struct roll_engine *e, struct comm *c)
{
    for (uint32_t r = 0; c->refusals > 0 && !c->aborted && !c->overflow && r < c->size; r++) {
        const struct member *m = &c->member[r];
        if (!waited_for(c, m) || refused_of_member(m)->coll.told || !is_due(e, m)) {
            continue;
        }
        if (c->muted && say_recall(e, say_key(ROLL_VERDICT_CALL_REFUSED, c->key, m->next, 0)) == 0) {
            continue; /* for another cause; what was told of this place may be said better */
        }
        refused_of_member(m)->coll.told = true;
        if (!is_echo(e, e->source[m->source], m, &refused_of_member(m)->coll.rec)) { /* that is told by itself */
            tell_place(e, c, m);
        }
    }
}

/* The rank waits in a call that it made before this one and after the call that was refused. */
static bool waits_before(const struct roll_engine *e, const struct member *m, uint64_t ticket)
{
    const struct source *s = e->source[m->source];
    uint64_t refused = roll_seal_ticket(refused_of_member(m)->coll.rec.seal);
    for (uint32_t k = 0; k < s->queues; k++) {
        uint64_t head = s->queue[k].head;
        if (head != 0 && head - 1 > refused && head - 1 < ticket) {
            return true;
        }
    }
    return false;
}

/* What the member made at this place, where a call of another kind or size had been refused, is what all others have
 * made there: the call again, put right. */
static bool is_put_right(const struct member *m, uint32_t seq)
{
    const struct comm *c = m->comm;
    return seq < c->base || (seq < c->high && comm_slot(c, seq)->arrived > 1 && comm_slot(c, seq)->variant == 0);
}

/* Would its refused call have been what `waits` needs of this member? */
static const struct roll_record *answer(const struct roll_engine *e, const struct member *m,
                                        const struct member *waiter, const struct roll_record *waits)
{
    const struct refused_member *r = refused_of_member(m);
    if (!r) {
        return NULL;
    }
    const struct roll_record *rec = &r->message.rec;
    bool message = roll_op_class(waits->op) == ROLL_CLASS_P2P;
    uint32_t size = m->comm->size;
    if (!message) {
        uint64_t ticket;
        bool fewer = r->coll.passed_over && m->next == waits->seq && is_alike(&r->coll.rec, waits);
        bool left_out = r->coll.left_out && !is_put_right(m, r->coll.rec.seq);
        bool short_of = (left_out || fewer) && r->coll.rec.seq <= waits->seq;
        bool here = r->coll.rec.op != ROLL_OP_NONE && r->coll.rec.seq == waits->seq;
        /* Made again, but behind what the rank waits in: too late for those who wait in it. */
        bool late = here && !r->coll.open && entry_at(e, m, waits->seq, &ticket) != NULL && waits_before(e, m, ticket);
        return (here && r->coll.open && m->next <= waits->seq) || short_of || late ? &r->coll.rec : NULL;
    }
    if (r->coll.open && r->coll.rec.group != 0) {
        return &r->coll.rec; /* with its whole group */
    }
    enum { SHIFT_MAX = 8 }; /* so many messages later it is something else */
    bool fewer = r->message.passed_over && rec->op != waits->op && rec->peer == waiter->rank &&
                 waits->seq >= rec->seq && waits->seq - rec->seq < SHIFT_MAX && rec->count == waits->count &&
                 rec->dtype == waits->dtype;
    if (fewer) {
        return rec;
    }
    bool astray = rec->peer == waiter->rank || rec->peer == m->rank || rec->peer < 0 || (uint32_t)rec->peer >= size;
    return r->message.open && (rec->group != 0 || (rec->op != waits->op && astray)) ? rec : NULL;
}

/* `s` is what `waits` of `waiter` ends at. True: said, or known. */
static bool tell_rank(struct roll_engine *e, struct source *s, const struct source *waiter, const struct entry *waits,
                      enum roll_certainty certainty)
{
    const struct member *w = source_member(waiter, waits->rec.comm);
    const struct member *m = w ? member_of(w->comm, e, s) : NULL;
    bool killed = s->proc == ROLL_PROC_DEAD && s->exit_status != ROLL_EXIT_UNKNOWN && WIFSIGNALED(s->exit_status) &&
                  WTERMSIG(s->exit_status) != SIGABRT;
    const struct roll_record *rec = m ? answer(e, m, w, &waits->rec) : NULL;
    rec = !rec && !source_alive(s) ? last_error(s) : rec;
    if (!m || !rec || killed || is_echo(e, s, source_member(s, rec->comm), rec)) {
        return false;
    }
    struct telling t = {.rank = s, .member = source_member(s, rec->comm), .rec = rec};
    t.comm = t.member ? t.member->comm : NULL;
    t.without = without_of(s, m);
    const struct refused_member *own = refused_of_member(m);
    bool doubtful = own && ((rec == &own->coll.rec && own->coll.passed_over) ||
                            (rec == &own->message.rec && own->message.passed_over));
    t.certainty = is_from_elsewhere(rec) || doubtful ? ROLL_SUSPECTED : certainty;
    t.without = doubtful ? PASSED_OVER : t.without;
    (void)roll_rankset_add(&t.culprits, s->world);
    for (uint32_t r = 0; t.comm && roll_op_class(rec->op) == ROLL_CLASS_COLL && r < t.comm->size; r++) {
        const struct member *o = &t.comm->member[r];
        const struct refused_member *theirs = refused_of_member(o);
        bool open = theirs && theirs->coll.open && o->next == rec->seq && theirs->coll.rec.seq == rec->seq;
        bool fewer = doubtful && theirs && theirs->coll.passed_over && o->next == m->next &&
                     theirs->coll.rec.seq == rec->seq && is_alike(&theirs->coll.rec, rec);
        if (open || fewer) {
            (void)roll_rankset_add(&t.culprits, comm_world(e, t.comm, r));
        }
    }
    add_waiting(e, &t, waiter, waits);
    s->said_dead = s->said_dead || s->proc == ROLL_PROC_DEAD;
    comm_mute_at(e, w->comm, waiter, &waits->rec);
    comm_explained(e, w->comm);
    tell_once(e, &t);
    telling_fini(&t);
    return true;
}

static bool refused_block(struct roll_engine *e, const struct block *b)
{
    const struct entry *waits = b->waiter ? source_entry(b->waiter, b->ticket) : NULL;
    switch (b->kind) {
    case BLOCK_FINISHED:
    case BLOCK_DEAD:
    case BLOCK_GONE:
        return waits && tell_rank(e, b->rank, b->waiter, waits, ROLL_PROVEN);
    case BLOCK_STUCK:
    case BLOCK_BUSY:
        return waits && tell_rank(e, b->rank, b->waiter, waits, ROLL_SUSPECTED);
    case BLOCK_CYCLE:
        for (uint32_t i = 0; i < b->steps; i++) {
            struct source *next = b->step[(i + 1) % b->steps].rank;
            waits = source_entry(b->step[i].rank, b->step[i].ticket);
            if (waits && tell_rank(e, next, b->step[i].rank, waits, b->hard ? ROLL_PROVEN : ROLL_SUSPECTED)) {
                return true;
            }
        }
        return false;
    default:
        return false;
    }
}

#define SHIFTED_MAX 64u /* calls like the refused one behind which its absence can show first */

/* All that the member has made from the place of this refused call up to `seq` is like it: where one was left out shows
 * only behind them. */
static bool all_alike(const struct roll_engine *e, const struct member *m, const struct roll_record *rec, uint32_t seq)
{
    for (uint32_t at = rec->seq; at < seq; at++) {
        uint64_t ticket;
        const struct entry *entry = entry_at(e, m, at, &ticket);
        if (!entry || !is_alike(rec, &entry->rec)) {
            return false;
        }
    }
    return true;
}

/*
 * Its call at this place was refused, and what it has there now is another one: it was left out. Among calls that are
 * all alike that shows at the last of them: then it is a skip, of such a call. A call made again with other arguments,
 * after which both sides agree, is not this.
 */
static const struct roll_record *left_out(struct roll_engine *e, const struct finding *f, bool skip, uint32_t world,
                                          const struct roll_record *theirs, const struct member **out)
{
    for (uint32_t r = 0; r < f->comm->size; r++) {
        const struct member *m = &f->comm->member[r];
        const struct refused_member *own = refused_of_member(m);
        const struct roll_record *rec = own ? &own->coll.rec : NULL;
        uint64_t ticket;
        if (comm_world(e, f->comm, r) != world || !rec || rec->op != theirs->op || rec->seq > f->seq ||
            f->seq - rec->seq > SHIFTED_MAX || own->coll.open) {
            continue;
        }
        const struct entry *now = entry_at(e, m, f->seq, &ticket);
        bool again = f->kind == ALIGN_ARGUMENT && now && now->rec.op == rec->op && f->overlap > 0;
        again = again || (now && is_alike(rec, &now->rec) && !is_alike(rec, theirs));
        /* A call like what came in its place, and unlike theirs, was put right: it is theirs that has nothing to do
         * with it. */
        bool here = rec->seq == f->seq && now && !again && (now->rec.op != theirs->op || is_alike(rec, theirs));
        bool again_there = !own->coll.passed_over && !own->coll.left_out;
        bool later = skip && is_alike(rec, theirs) && !again_there && all_alike(e, m, rec, f->seq);
        *out = m;
        return now && (here || later) ? &now->rec : NULL;
    }
    return NULL;
}

/* All ranks of one side have left out what the other side called, because it was refused. */
static bool tell_side(struct roll_engine *e, const struct finding *f, bool major)
{
    const struct roll_rankset *mine = major ? &f->major : &f->minor, *others = major ? &f->minor : &f->major;
    const struct source *their_source = major ? f->minor_source : f->major_source;
    const struct entry *theirs = source_entry(their_source, major ? f->minor_ticket : f->major_ticket);
    bool skip = f->kind == (major ? ALIGN_ADD : ALIGN_SKIP);
    const struct member *m = NULL;
    struct telling t = {.comm = f->comm, .without = WENT_ON, .certainty = ROLL_PROVEN};
    size_t n = theirs ? roll_rankset_count(mine) : 0;
    for (size_t i = 0; i < n; i++) {
        t.instead = left_out(e, f, skip, roll_rankset_at(mine, i), &theirs->rec, &m);
        n = t.instead ? n : 0;
    }
    if (n == 0) {
        return false;
    }
    t.rank = e->source[m->source];
    t.member = m;
    t.rec = &refused_of_member(m)->coll.rec;
    t.instead = t.rec->seq == f->seq ? t.instead : NULL; /* else what came in its place looks like it */
    t.waiter = their_source;
    t.waits = &theirs->rec;
    (void)roll_rankset_copy(&t.culprits, mine);
    (void)roll_rankset_copy(&t.waiting, others);
    tell_once(e, &t);
    telling_fini(&t);
    return true;
}

static bool refused_disagree(struct roll_engine *e, const struct finding *f)
{
    return f->kind != ALIGN_GROUP && (tell_side(e, f, false) || (f->tie && tell_side(e, f, true)));
}

/* A process that ended by itself after an error has not crashed. `waiting`: those who wait for it, NULL: none yet. */
bool refused_death(struct roll_engine *e, struct source *s)
{
    const struct roll_record *rec = last_error(s);
    bool killed =
        s->exit_status != ROLL_EXIT_UNKNOWN && WIFSIGNALED(s->exit_status) && WTERMSIG(s->exit_status) != SIGABRT;
    if (is_said(s) && !is_noted(s)) {
        return true;
    }
    if (!rec || killed || is_from_elsewhere(rec) || is_echo(e, s, source_member(s, rec->comm), rec)) {
        return false;
    }
    struct telling t = {.rank = s, .member = source_member(s, rec->comm), .rec = rec, .without = ENDED};
    t.comm = t.member ? t.member->comm : NULL;
    t.certainty = ROLL_PROVEN;
    (void)roll_rankset_add(&t.culprits, s->world);
    tell_once(e, &t);
    telling_fini(&t);
    return true;
}

bool refused_end(const struct source *s)
{
    return is_said(s) && !is_noted(s) && !source_alive(s) && last_error(s) != NULL;
}

/* --- communicators that are being made --- */

static bool creates(const struct roll_record *rec)
{
    return rec->op == ROLL_OP_COMM_INIT || rec->op == ROLL_OP_COMM_SPLIT || rec->op == ROLL_OP_COMM_SHRINK ||
           rec->op == ROLL_OP_COMM_GROW;
}

/* The communicator that a call is to make, as far as it has been defined. */
static struct comm *made_by(const struct roll_engine *e, const struct source *s, const struct roll_record *rec)
{
    const struct member *m = source_member(s, rec->comm);
    const struct comm *claimed = NULL;
    if (!m && rec->op == ROLL_OP_COMM_INIT && claim_of(e, s, &claimed)) {
        return e->comm[claimed->id];
    }
    return m ? m->comm : NULL;
}

/* Was the refused creation of `s` the one that `rec` of another rank waits in? Without a definition only that of all
 * ranks is known. */
static bool same_creation(const struct roll_engine *e, const struct source *s, const struct source *waiter,
                          const struct roll_record *rec, const struct comm *theirs)
{
    const struct roll_record *failed = last_error(s);
    if (!failed || failed->op != rec->op || s == waiter) {
        return false;
    }
    const struct comm *mine = made_by(e, s, failed);
    uint64_t ranks = waiter->info.world_size > 0 ? (uint64_t)waiter->info.world_size : e->sources;
    bool whole = rec->op == ROLL_OP_COMM_INIT && rec->count >= ranks && theirs->seen < theirs->size;
    return mine ? mine == theirs : whole && !member_of(theirs, e, s);
}

static void creation_tick(struct roll_engine *e, struct source *waiter)
{
    const struct entry *inside = waiter->init ? source_entry(waiter, waiter->init - 1) : NULL;
    struct comm *c = inside ? made_by(e, waiter, &inside->rec) : NULL;
    if (!c || creation_is_told(c) || !creates(&inside->rec) || e->clock - waiter->init_since < e->config.stall_ns / 5) {
        return;
    }
    struct telling t = {.waiter = waiter, .waits = &inside->rec, .comm = c, .certainty = ROLL_PROVEN};
    for (uint32_t i = 0; i < e->sources; i++) {
        struct source *s = e->source[i];
        const struct entry *at = s->init ? source_entry(s, s->init - 1) : NULL;
        if (same_creation(e, s, waiter, &inside->rec, c) && !is_echo(e, s, &c->member[0], last_error(s))) {
            t.rank = s;
            t.rec = last_error(s);
            (void)roll_rankset_add(&t.culprits, s->world);
        } else if (at && made_by(e, s, &at->rec) == c) {
            (void)roll_rankset_add(&t.waiting, s->world);
        }
    }
    if (t.rank) {
        t.member = source_member(t.rank, t.rec->comm);
        t.without = source_alive(t.rank) ? NOT_AGAIN : ENDED;
        t.certainty = is_from_elsewhere(t.rec) ? ROLL_SUSPECTED : ROLL_PROVEN;
        creation_set_told(c);
        set_said(t.rank, is_noted(t.rank));
        (void)speak(e, &t, 0);
    }
    telling_fini(&t);
}

/* Nobody waits for it, and it has ended: worth a note, because it says why. */
static void note_tick(struct roll_engine *e, struct source *s)
{
    bool over = !source_alive(s) && s->exit_status != 0 && e->clock - s->proc_ns >= e->config.stall_ns * 2;
    const struct roll_record *rec = last_error(s);
    if (is_said(s) || !rec || !(over || (e->finishing && s->exit_status != 0))) {
        return;
    }
    set_said(s, true);
    struct telling t = {.rank = s, .member = source_member(s, rec->comm), .rec = rec, .certainty = ROLL_NOTE};
    t.comm = t.member ? t.member->comm : NULL;
    t.without = without_of(s, t.member);
    (void)roll_rankset_add(&t.culprits, s->world);
    (void)speak(e, &t, 0);
    telling_fini(&t);
}

static void refused_tick(struct roll_engine *e)
{
    for (uint32_t i = 0; i < e->comms; i++) {
        places_tick(e, e->comm[i]);
    }
    for (uint32_t i = 0; refused_of_engine(e)->errors && i < e->sources; i++) {
        creation_tick(e, e->source[i]);
    }
    for (uint32_t i = 0; refused_of_engine(e)->errors && i < e->sources; i++) {
        note_tick(e, e->source[i]);
    }
}

const struct detector detect_refused = {.name = "refused",
                                        ENGINE_STATE(refused),
                                        .disagree = refused_disagree,
                                        .block = refused_block,
                                        .tick = refused_tick,
                                        .lost = refused_lost};
