/*
 * detect_refused.c: calls of which nothing was enqueued: NCCL refused the call or its whole group, or the group was
 * only simulated.
 *
 * Such a call does not count. It gives its number back, and the rank may make the call again, put right, with the same
 * number. So the call is taken out of what it had been matched with (refused_match.c). Counting it as a call of its own
 * was rejected: then the ranks seem to part at the second attempt, though NCCL sees them in step. The second attempt
 * may be read before the news that the first was refused; a number that comes twice from one thread says the same.
 *
 * What remains is a rank whose peers wait for a call that it did not enqueue. The verdict call-refused shows the error,
 * and the wrong argument where the record shows it. It is said in place of the verdicts for a rank that is busy, left a
 * call out, has ended or is dead. There are four cases:
 *
 *   - Peers wait at the place of a refused collective (refused_place.c). Suspected after a while, because the call may
 *     still be made again; proven when it cannot be.
 *   - The walk of the wait graph ends at the rank: peers wait for a refused message, or for a rank that ended after an
 *     error. Proven when the rank has ended or left, or is part of a proven circle; else suspected.
 *   - The rank went on with another call at that place. Proven by the alignment (refused_disagree).
 *   - Peers wait inside the creation of a communicator (refused_creation.c).
 *
 * An error that says that its cause lies elsewhere (a remote error, a timeout) names nobody, and is only suspected. An
 * error that comes while another member is dead is a consequence of that death. A refusal for which nobody waits is a
 * note when the rank ends (refused_note.c).
 */
#include "daemon/engine/detect/refused.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

/* The rank waits in a call that it made after the refused one and before the call with this ticket. */
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

/* All other members have made at this place what the member made there after its refused call: the call was made again,
 * put right. */
static bool is_put_right(const struct member *m, uint32_t seq)
{
    const struct comm *c = m->comm;
    return seq < c->base || (seq < c->high && comm_slot(c, seq)->arrived > 1 && comm_slot(c, seq)->variant == 0);
}

/* The refused call of m without which the call `waits` of `waiter` waits; NULL: none. */
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
        bool fewer = r->coll.passed_over && m->next == waits->seq && refused_is_alike(&r->coll.rec, waits);
        bool left_out = r->coll.left_out && !is_put_right(m, r->coll.rec.seq);
        bool short_of = (left_out || fewer) && r->coll.rec.seq <= waits->seq;
        bool here = r->coll.rec.op != ROLL_OP_NONE && r->coll.rec.seq == waits->seq;
        /* The call was made again, but behind a call in which the rank waits: too late for those who wait in the first.
         */
        bool late =
            here && !r->coll.open && refused_entry_at(e, m, waits->seq, &ticket) != NULL && waits_before(e, m, ticket);
        return (here && m->next <= waits->seq && refused_is_awaited(e, m, waits)) || short_of || late ? &r->coll.rec
                                                                                                      : NULL;
    }
    if (r->coll.rec.group != 0 && refused_is_awaited(e, m, NULL)) {
        return &r->coll.rec; /* the whole group of the message was refused */
    }
    enum { SHIFT_MAX = 8 }; /* a message so many places later is another one */
    bool fewer = r->message.passed_over && rec->op != waits->op && rec->peer == waiter->rank &&
                 waits->seq >= rec->seq && waits->seq - rec->seq < SHIFT_MAX && rec->count == waits->count &&
                 rec->dtype == waits->dtype;
    if (fewer) {
        return rec;
    }
    bool astray = rec->peer == waiter->rank || rec->peer == m->rank || rec->peer < 0 || (uint32_t)rec->peer >= size;
    return r->message.open && (rec->group != 0 || (rec->op != waits->op && astray)) ? rec : NULL;
}

/* The walk from the call `waits` of `waiter` ends at s. True: a refused call of s is the reason, and has been said. */
static bool tell_rank(struct roll_engine *e, struct source *s, const struct source *waiter, const struct entry *waits,
                      enum roll_certainty certainty)
{
    const struct member *w = source_member(waiter, waits->rec.comm);
    const struct member *m = w ? refused_member_in(w->comm, e, s) : NULL;
    bool killed = s->proc == ROLL_PROC_DEAD && s->exit_status != ROLL_EXIT_UNKNOWN && WIFSIGNALED(s->exit_status) &&
                  WTERMSIG(s->exit_status) != SIGABRT;
    const struct roll_record *rec = m ? answer(e, m, w, &waits->rec) : NULL;
    rec = !rec && !source_alive(s) ? refused_last_error(s) : rec;
    if (m && rec && declined_is_told(s)) {
        comm_mute_at(e, w->comm, waiter, &waits->rec);
        comm_explained(e, w->comm);
        return true;
    }
    if (!m || !rec || killed || refused_is_echo(e, s, source_member(s, rec->comm), rec)) {
        return false;
    }
    if (!source_alive(s) && (!refused_is_final(e, s, m) || refused_gathers(e, s))) {
        return true; /* it is told in a moment: with its last records, and with those that end beside it */
    }
    struct refused_case t = {.rank = s, .member = source_member(s, rec->comm), .rec = rec, .mutes = e->mutes};
    t.comm = t.member ? t.member->comm : NULL;
    t.outcome = refused_outcome_of(s, m);
    const struct refused_member *own = refused_of_member(m);
    bool doubtful = own && ((rec == &own->coll.rec && own->coll.passed_over) ||
                            (rec == &own->message.rec && own->message.passed_over));
    t.certainty = refused_is_from_elsewhere(rec) || doubtful ? ROLL_SUSPECTED : certainty;
    t.outcome = doubtful ? PASSED_OVER : t.outcome;
    (void)roll_rankset_add(&t.culprits, s->world);
    refused_gather(e, &t, rec);
    for (uint32_t r = 0; t.comm && doubtful && roll_op_class(rec->op) == ROLL_CLASS_COLL && r < t.comm->size; r++) {
        const struct member *o = &t.comm->member[r];
        const struct refused_member *theirs = refused_of_member(o);
        bool fewer = theirs && theirs->coll.passed_over && o->next == m->next && theirs->coll.rec.seq == rec->seq &&
                     refused_is_alike(&theirs->coll.rec, rec);
        if (fewer) {
            (void)roll_rankset_add(&t.culprits, comm_world(e, t.comm, r));
        }
    }
    refused_add_waiting(e, &t, waiter, waits);
    s->said_dead = s->said_dead || s->proc == ROLL_PROC_DEAD;
    comm_mute_at(e, w->comm, waiter, &waits->rec);
    comm_explained(e, w->comm);
    refused_tell_once(e, &t);
    refused_case_fini(&t);
    return true;
}

static bool refused_block(struct roll_engine *e, const struct block *b)
{
    const struct entry *waits = b->waiter ? source_entry(b->waiter, b->ticket) : NULL;
    switch (b->kind) {
    case BLOCK_FINISHED:
    case BLOCK_LEFT: /* the call that it had enqueued was lost because it ended, and it ended because of the error */
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

#define SHIFTED_MAX 64u /* how many like calls may follow a refused call before its absence shows */

/* All calls of the member from the refused one up to `seq` are like the refused one. So one of them was left out, which
 * shows only behind them. */
static bool all_alike(const struct roll_engine *e, const struct member *m, const struct roll_record *rec, uint32_t seq)
{
    for (uint32_t at = rec->seq; at < seq; at++) {
        uint64_t ticket;
        const struct entry *entry = refused_entry_at(e, m, at, &ticket);
        if (!entry || !refused_is_alike(rec, &entry->rec)) {
            return false;
        }
    }
    return true;
}

/*
 * The member's call at this place was refused, and the member has another call there now: it left the call out. Among
 * calls that are all alike this shows only behind the last of them, as a skip of such a call. A call that was made
 * again with other arguments, after which both sides agree, was not left out. Returns the call that the member has at
 * the place now; NULL: it left nothing out. *out: the member.
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
        const struct entry *now = refused_entry_at(e, m, f->seq, &ticket);
        bool again = f->kind == ALIGN_ARGUMENT && now && now->rec.op == rec->op && f->overlap > 0;
        again = again || (now && refused_is_alike(rec, &now->rec) && !refused_is_alike(rec, theirs));
        /* A call that was made in place of the refused one and is like it, but unlike the peers' call, is the refused
         * call put right: the peers' call is then another matter. */
        bool here = rec->seq == f->seq && now && !again && (now->rec.op != theirs->op || refused_is_alike(rec, theirs));
        bool again_there = !own->coll.passed_over && !own->coll.left_out;
        bool later = skip && refused_is_alike(rec, theirs) && !again_there && all_alike(e, m, rec, f->seq);
        *out = m;
        return now && (here || later) ? &now->rec : NULL;
    }
    return NULL;
}

/* True: all ranks of one side left out what the other side called, because it was refused; that has been said. */
static bool tell_side(struct roll_engine *e, const struct finding *f, bool major)
{
    const struct roll_rankset *mine = major ? &f->major : &f->minor, *others = major ? &f->minor : &f->major;
    const struct source *their_source = major ? f->minor_source : f->major_source;
    const struct entry *theirs = source_entry(their_source, major ? f->minor_ticket : f->major_ticket);
    bool skip = f->kind == (major ? ALIGN_ADD : ALIGN_SKIP);
    const struct member *m = NULL;
    struct refused_case t = {.comm = f->comm, .outcome = WENT_ON, .certainty = ROLL_PROVEN};
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
    /* Otherwise the call in its place looks like the refused one. */
    t.instead = t.rec->seq == f->seq ? t.instead : NULL;
    t.waiter = their_source;
    t.waits = &theirs->rec;
    (void)roll_rankset_copy(&t.culprits, mine);
    (void)roll_rankset_copy(&t.waiting, others);
    refused_tell_once(e, &t);
    refused_case_fini(&t);
    return true;
}

static bool refused_disagree(struct roll_engine *e, const struct finding *f)
{
    return f->kind != ALIGN_GROUP && (tell_side(e, f, false) || (f->tie && tell_side(e, f, true)));
}

/* True: the process ended by itself after an error, which has been said; it has not crashed. */
bool refused_death(struct roll_engine *e, struct source *s)
{
    const struct roll_record *rec = refused_last_error(s);
    bool killed =
        s->exit_status != ROLL_EXIT_UNKNOWN && WIFSIGNALED(s->exit_status) && WTERMSIG(s->exit_status) != SIGABRT;
    if (rec && ((refused_is_said(s) && !refused_is_noted(s)) || declined_is_told(s))) {
        return true;
    }
    if (!rec || killed || refused_is_from_elsewhere(rec) || refused_is_echo(e, s, source_member(s, rec->comm), rec)) {
        return false;
    }
    struct refused_case t = {.rank = s, .member = source_member(s, rec->comm), .rec = rec, .outcome = ENDED};
    t.comm = t.member ? t.member->comm : NULL;
    t.certainty = ROLL_PROVEN;
    (void)roll_rankset_add(&t.culprits, s->world);
    refused_gather(e, &t, rec);
    refused_tell_once(e, &t);
    refused_case_fini(&t);
    return true;
}

bool refused_end(const struct source *s)
{
    bool told = (refused_is_said(s) && !refused_is_noted(s)) || declined_is_told(s);
    return told && !source_alive(s) && refused_last_error(s) != NULL;
}

static void refused_tick(struct roll_engine *e)
{
    for (uint32_t i = 0; refused_of_engine(e)->errors && i < e->comms; i++) {
        if (refused_of_engine(e)->declined) {
            declined_tick(e, e->comm[i]);
        }
        refused_place_tick(e, e->comm[i]);
    }
    if (refused_of_engine(e)->errors) {
        refused_creation_tick(e);
        refused_note_tick(e);
    }
}

static void refused_fini(struct roll_engine *e)
{
    free(refused_of_engine(e)->failed);
}

const struct detector detect_refused = {.name = "refused",
                                        ENGINE_STATE(refused),
                                        .disagree = refused_disagree,
                                        .block = refused_block,
                                        .tick = refused_tick,
                                        .lost = refused_lost,
                                        .fini = refused_fini};
