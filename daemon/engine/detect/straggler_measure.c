/*
 * straggler_measure.c: one member between two neighbouring calls of a communicator: when its host came back from a wait
 * for the first, when it made the second, and what it did in between, by its own clock and from its own log.
 */
#include "daemon/engine/detect/straggler.h"

#define CALL_NS_MAX UINT32_MAX

static bool synchronises(enum roll_op op)
{
    return roll_op_has(op, ROLL_TRAIT_MEETS);
}

static bool is_nccl(const struct roll_record *rec)
{
    enum roll_op_class class = roll_op_class(rec->op);
    return class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P;
}

/* The host, in any of its threads, has come back from a wait that covers the call. */
static bool is_wait_for(const struct roll_record *wait, const struct roll_record *call)
{
    bool returned = roll_op_class(wait->op) == ROLL_CLASS_SYNC && !roll_op_has(wait->op, ROLL_TRAIT_MAY) &&
                    roll_seal_state(wait->seal) >= ROLL_STATE_RETURNED;
    bool behind = wait->op != ROLL_OP_EVENT_SYNC || roll_seal_ticket(call->seal) + 1 < wait->count;
    return returned && behind && wait->result == 0 &&
           (wait->op == ROLL_OP_DEVICE_SYNC || (wait->stream != 0 && wait->stream == call->stream));
}

/* How long a call took is *ns. False: its record does not say. */
static bool lasted(const struct source *s, const struct roll_record *rec, uint64_t *ns)
{
    *ns = rec->call_ns;
    return rec->call_ns != CALL_NS_MAX || stuck_long_wait(s, roll_seal_ticket(rec->seal), ns);
}

/* The first wait that covers the call with this ticket, if it stands before `upto`; NULL: none. */
static const struct roll_record *wait_behind(const struct source *s, uint64_t ticket, uint64_t upto, uint32_t *work)
{
    const struct entry *call = source_entry(s, ticket);
    for (uint64_t t = ticket + 1; call && t < upto && spend(work); t++) {
        const struct entry *entry = source_entry(s, t);
        if (!entry) {
            return NULL;
        }
        if (is_wait_for(&entry->rec, &call->rec)) {
            return &entry->rec;
        }
    }
    return NULL;
}

/* Sums up what passed between the host's return and its next call: its own time, waits for others, and time inside
 * recorded calls. False: it cannot be told. */
static bool sum_up(const struct source *s, struct stretch *x, const struct roll_record *first,
                   const struct roll_record *call, uint32_t *work)
{
    uint64_t others = 0, inside[256] = {0};
    bool busy = false; /* an NCCL call has been made since the last wait */
    for (uint64_t t = roll_seal_ticket(first->seal) + 1; t < x->call && spend(work); t++) {
        const struct entry *entry = source_entry(s, t);
        uint64_t ns;
        if (!entry || !lasted(s, &entry->rec, &ns)) {
            return false;
        }
        enum roll_op_class class = roll_op_class(entry->rec.op);
        if (is_nccl(&entry->rec)) {
            busy = true;
            x->mix = say_key(x->mix, entry->rec.op, entry->rec.count, entry->rec.dtype);
        }
        bool own = entry->rec.thread == call->thread || entry->rec.thread == first->thread;
        if (class == ROLL_CLASS_SYNC && busy && own) {
            others += ns;
            busy = roll_op_has(entry->rec.op, ROLL_TRAIT_MAY); /* a copy may have left the wait to what comes next */
        } else if (class != ROLL_CLASS_MOE && own) {
            inside[entry->rec.op] += ns;
        }
    }
    if (call->enter_ns < x->release || others > call->enter_ns - x->release) {
        return false;
    }
    x->arrive_ns = call->enter_ns - x->release - others;
    for (unsigned op = 0; op < 256; op++) {
        if (inside[op] > x->inside_ns) {
            x->inside_ns = inside[op];
            x->inside_op = (uint8_t)op;
        }
    }
    return true;
}

static bool measure(const struct source *s, struct stretch *x, uint32_t *work)
{
    const struct entry *call = source_entry(s, x->call);
    const struct roll_record *first = wait_behind(s, x->before, x->call, work);
    const struct roll_record *last = first ? wait_behind(s, x->call, s->next, work) : NULL;
    uint64_t first_ns, last_ns;
    if (!call || !last || !lasted(s, first, &first_ns) || !lasted(s, last, &last_ns)) {
        return false;
    }
    x->release = first->enter_ns + first_ns;
    x->back = last->enter_ns + last_ns;
    x->wait_ns = last_ns;
    return x->back > x->release && sum_up(s, x, first, &call->rec, work) && *work > 0;
}

static bool is_here(const struct source *s, const struct entry *entry, const struct member *m)
{
    return entry && roll_op_class(entry->rec.op) == ROLL_CLASS_COLL && entry->rec.count != 0 &&
           source_member(s, entry->rec.comm) == m;
}

/* The two calls are neighbours, and of a kind that can be compared. */
static bool is_plain(const struct entry *a, const struct entry *b)
{
    return b->rec.seq == a->rec.seq + 1 && b->rec.thread == a->rec.thread && a->rec.group == 0 && b->rec.group == 0 &&
           synchronises(a->rec.op) && ((a->rec.flags | b->rec.flags) & ROLL_FLAG_CAPTURED) == 0;
}

bool straggler_find_stretch(const struct source *s, const struct member *m, uint64_t from, uint32_t *seq,
                            struct stretch *x, uint32_t *work, bool *end)
{
    uint64_t later = 0, n = 0; /* `later`: ticket + 1 of the member's call behind the one that is looked at */
    uint64_t t = from;
    for (; t > 0 && n < BACK_MAX && s->next - t <= s->log_mask && spend(work); t--, n++) {
        const struct entry *entry = source_entry(s, t - 1);
        if (!is_here(s, entry, m)) {
            continue;
        }
        const struct entry *second = later ? source_entry(s, later - 1) : NULL;
        *x = (struct stretch){.before = t - 1, .call = later ? later - 1 : 0};
        if (second && is_plain(entry, second) && (*seq == NO_SEQ || second->rec.seq == *seq) && measure(s, x, work)) {
            *seq = second->rec.seq;
            return true;
        }
        if (*seq != NO_SEQ && entry->rec.seq < *seq) {
            return false;
        }
        later = t;
    }
    *end = t > 0 && s->next - t > s->log_mask;
    return false;
}

bool straggler_find_same(const struct source *s, const struct member *m, uint64_t ticket, uint32_t *seq,
                         struct stretch *x, uint32_t *work, bool *end)
{
    const struct entry *entry = source_entry(s, ticket);
    bool here = is_here(s, entry, m) && entry->rec.seq == *seq;
    return straggler_find_stretch(s, m, here ? ticket + 1 : s->next, seq, x, work, end);
}
