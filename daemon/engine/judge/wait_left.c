/*
 * wait_left.c: what a process that has ended took along: calls that it had enqueued and that nobody saw done.
 */
#include "daemon/engine/judge/walk.h"

/* Its own host has seen that its call with this ticket is over: it came back from a wait that covers it, or the device
 * has said so. */
bool left_seen_over(const struct source *s, uint64_t ticket)
{
    const struct entry *call = source_entry(s, ticket);
    if (!call || roll_seal_state(call->rec.seal) == ROLL_STATE_COMPLETE) {
        return true; /* or so long ago that its record is gone */
    }
    bool issued =
        call->rec.group == 0; /* what a group holds, its end enqueues: a wait of another thread may be older */
    for (uint64_t t = ticket + 1; t < s->next; t++) {
        const struct entry *entry = source_entry(s, t);
        issued = issued || (entry && entry->rec.op == ROLL_OP_GROUP_END && source_same_unit(&entry->rec, &call->rec));
        bool wait =
            entry && (issued || entry->rec.thread == call->rec.thread) &&
            (entry->rec.op == ROLL_OP_DEVICE_SYNC ||
             (entry->rec.op == ROLL_OP_STREAM_SYNC && entry->rec.stream == call->rec.stream && call->rec.stream != 0));
        if (wait && roll_seal_state(entry->rec.seal) >= ROLL_STATE_RETURNED && entry->rec.result == 0) {
            return true;
        }
    }
    return false;
}

/* Ticket of the other side's call that answers this one of t, or of its last one to t where that is not known;
 * NO_TICKET: none. */
uint64_t left_other_side(const struct source *o, const struct member *om, const struct member *tm,
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

/* The entry is a wait that has come back, or a poll that found its stream done. False: it covers all that stands
 * before. */
bool left_came_back(struct came_back *b, const struct roll_record *rec)
{
    bool wait = roll_op_class(rec->op) == ROLL_CLASS_SYNC;
    bool done = rec->op == ROLL_OP_STREAM_QUERY && roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED;
    if ((!wait && !done) || rec->result != 0) {
        return true;
    }
    bool one = rec->op != ROLL_OP_DEVICE_SYNC && rec->stream > 0 && rec->stream < 64;
    b->streams |= one ? 1ull << rec->stream : 0;
    b->foreign |= one ? 1ull << rec->stream : 0;
    return one;
}

/* A call that is over for such a wait; what a group holds may be on any of its streams. */
bool left_is_covered(struct came_back *b, const struct roll_record *rec)
{
    bool small = rec->stream < 64 && rec->comm < 64;
    bool own = b->streams != 0 && (!small || rec->group != 0 || (b->streams & 1ull << rec->stream) != 0 ||
                                   (b->comms & 1ull << rec->comm) != 0);
    b->comms |= own && small ? 1ull << rec->comm : 0;
    b->foreign &= small ? ~(1ull << rec->stream) : UINT64_MAX;
    return own || b->foreign != 0;
}
