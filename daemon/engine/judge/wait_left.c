/*
 * wait_left.c: what a process that has ended took along: calls that it had enqueued, and that nobody has seen done.
 *
 * For the model such a call is complete, because everybody has made it. It is looked for when the host of a peer stays
 * in a wait that no incomplete call explains, backwards from that wait. To call every last call of an ended process
 * open was rejected: most processes end when their calls are done, and no record says so.
 */
#include "daemon/engine/judge/walk.h"

/*
 * The waits that have come back, on the way backwards through the calls of a thread: the calls before them on these
 * streams and communicators are over.
 */
struct came_back {
    uint64_t streams; /* a bit for each stream that a wait was for */
    uint64_t comms;   /* a bit for each communicator of a covered call: its calls keep their order on all streams */
    uint64_t foreign; /* streams that a wait was for and on which no call has been met since: they may have waited for
                         other streams by events */
};

/*
 * The ticket of the call by which o, the process of member om, answers the call `rec` of member tm; for a message that
 * of the newest message to tm that may be the answer. NO_TICKET: there is none.
 */
static uint64_t other_side(const struct source *o, const struct member *om, const struct member *tm,
                           const struct roll_record *rec)
{
    if (roll_op_class(rec->op) == ROLL_CLASS_COLL) {
        return comm_member_issued(om, rec->seq) ? source_ticket_of(o, om, rec->seq) : NO_TICKET;
    }
    for (uint64_t n = 0, t = o->next; n <= o->log_mask && t-- > 0; n++) {
        const struct entry *entry = source_entry(o, t);
        if (entry && roll_op_class(entry->rec.op) == ROLL_CLASS_P2P && entry->rec.op != rec->op &&
            source_member(o, entry->rec.comm) == om && entry->rec.peer == tm->rank && entry->rec.seq >= rec->seq) {
            return t;
        }
    }
    return NO_TICKET;
}

/* Enters a record into *b if it is a wait that has come back, or a poll that found its stream done. False: the wait
 * covers all calls before it. */
static bool came_back_from(struct came_back *b, const struct roll_record *rec)
{
    bool wait = roll_op_class(rec->op) == ROLL_CLASS_SYNC && !roll_op_has(rec->op, ROLL_TRAIT_MAY);
    bool done = rec->op == ROLL_OP_STREAM_QUERY && roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED;
    if ((!wait && !done) || rec->result != 0) {
        return true;
    }
    bool one = rec->op != ROLL_OP_DEVICE_SYNC && rec->stream > 0 && rec->stream < 64;
    b->streams |= one ? 1ull << rec->stream : 0;
    b->foreign |= one ? 1ull << rec->stream : 0;
    return one;
}

/* Such a wait covers this call. A call of a group may stand on any stream of the group. */
static bool is_covered(struct came_back *b, const struct roll_record *rec)
{
    bool small = rec->stream < 64 && rec->comm < 64;
    bool own = b->streams != 0 && (!small || rec->group != 0 || (b->streams & 1ull << rec->stream) != 0 ||
                                   (b->comms & 1ull << rec->comm) != 0);
    b->comms |= own && small ? 1ull << rec->comm : 0;
    b->foreign &= small ? ~(1ull << rec->stream) : UINT64_MAX;
    return own || b->foreign != 0;
}

bool left_anything(const struct roll_engine *e)
{
    return e->ended + e->aborts > 0;
}

/*
 * Everybody has made the calls that the host of t waits for. But a process that has ended takes along what it had only
 * enqueued: the calls before `upto` that `wait` is for are looked at, the newest first and as far as no wait that came
 * back covers them, for a call that its other side has left behind. True: there is one.
 */
bool left_visit(struct walk *walk, struct source *t, const struct roll_record *wait, uint64_t upto)
{
    struct came_back back = {0};
    bool any = false, device = roll_op_has(wait->op, ROLL_TRAIT_ALL);
    uint64_t floor = upto > t->log_mask ? upto - t->log_mask : 0;
    for (uint64_t ticket = upto; left_anything(walk->e) && !any && ticket-- > floor;) {
        const struct entry *entry = source_entry(t, ticket);
        if (!entry || entry->rec.thread != wait->thread) {
            continue;
        }
        if (!came_back_from(&back, &entry->rec)) {
            break;
        }
        enum roll_op_class class = roll_op_class(entry->rec.op);
        bool call = (class == ROLL_CLASS_COLL && entry->rec.count != 0 && !refused_call(t, entry)) ||
                    (class == ROLL_CLASS_P2P && entry->pair);
        bool here = device || entry->rec.stream == wait->stream;
        bool waits = call && (entry->rec.flags & ROLL_FLAG_CAPTURED) == 0 && !is_covered(&back, &entry->rec) && here;
        struct member *m = waits ? source_member(t, entry->rec.comm) : NULL;
        if (!m || m->comm->muted || walk->depth == PATH_MAX_STEPS) {
            continue;
        }
        struct absences a = {0};
        for (uint32_t r = 0; r < m->comm->size; r++) {
            const struct member *o = &m->comm->member[r];
            struct source *other = o->source == NO_SOURCE ? NULL : walk->e->source[o->source];
            if (!other || other == t || (class == ROLL_CLASS_P2P && entry->rec.peer != (int32_t)r) ||
                (source_alive(other) && o->ended == 0) || o->unsure ||
                (other->proc == ROLL_PROC_DEAD && !walk->alive)) {
                continue;
            }
            uint64_t answer = other_side(other, o, m, &entry->rec);
            if (answer == NO_TICKET || rank_seen_over(other, answer)) {
                continue;
            }
            bool dead = other->proc == ROLL_PROC_DEAD;
            if (!dead && o->ended != 0 && !rank_abort_is_due(walk->e, o, other)) {
                continue;
            }
            enum block_kind kind = dead ? BLOCK_DEAD : o->ended != 0 ? BLOCK_ABORTED : BLOCK_LEFT;
            (void)roll_rankset_add(&a.of[kind].ranks, other->world);
            a.of[kind].one = other;
            a.of[kind].hard = true;
            any = true;
        }
        walk->path[walk->depth++] = (struct step){.source = t, .ticket = ticket};
        absences_told(walk, &a, m->comm);
        walk->depth--;
    }
    return any;
}
