/*
 * init_inside.c: which creation of a communicator a rank is inside, and what ends a suspicion about one.
 *
 * A rank is inside one from the record of its call until that call returns, or, where it is nonblocking, until the rank
 * is told that the creation has ended or makes its next call. An agent that looks late reads first that several calls
 * were made, and then what came of them, in the order of the calls: so what is read of an earlier call says nothing
 * about the creation that the rank has begun since, and who has joined is judged by the calls alone. To wait for the
 * return of a creation before its suspicion is withdrawn was rejected: by then the rank may be inside another one.
 */
#include "daemon/engine/detect/init.h"

/* The key of the verdict about the creation that this rank is inside: detect_circular.c may supersede it. */
uint64_t creation_key(const struct source *s, const struct roll_record *rec)
{
    const struct member *m = source_member(s, rec->comm);
    return say_key(ROLL_VERDICT_INIT_MISSING, rec->op, m ? m->comm->key : rec->count,
                   (m ? m->splits : s->inits) + (1ull << 32));
}

void init_joined(struct roll_engine *e, const struct source *s, const struct roll_record *rec)
{
    uint64_t key = creation_key(s, rec);
    if (say_withdraw(e, say_recall(e, key), "all members have joined after all")) {
        say_forget(e, key);
        say_forget(e, say_key(key, 1, 0, 0)); /* a later creation with this key may lack members as well */
    }
}

/* Each member has made the call that this rank has just made. m: its member of the communicator, or of the parent. */
static bool have_all_joined(const struct member *m, const struct roll_record *rec)
{
    for (uint32_t r = 0; r < m->comm->size; r++) {
        const struct member *o = &m->comm->member[r];
        if (o->source == NO_SOURCE || (rec->op == ROLL_OP_COMM_SPLIT && o->splits < m->splits)) {
            return false;
        }
    }
    return true;
}

/* The rank makes this call: perhaps the last that was missed. */
static void joins(struct roll_engine *e, const struct source *s, const struct roll_record *rec)
{
    const struct member *m = source_member(s, rec->comm);
    if (m && !call_failed(rec) && say_recall(e, creation_key(s, rec)) != 0 && have_all_joined(m, rec)) {
        init_joined(e, s, rec);
    }
}

void init_record(struct roll_engine *e, uint32_t source, const struct roll_record *rec, uint64_t ticket, bool first)
{
    struct source *s = e->source[source];
    if (rec->op != ROLL_OP_COMM_INIT && rec->op != ROLL_OP_COMM_SPLIT) {
        return;
    }
    struct member *parent = rec->op == ROLL_OP_COMM_SPLIT ? source_member(s, rec->comm) : NULL;
    if (first) {
        s->inits += rec->op == ROLL_OP_COMM_INIT; /* used where the definition is lost: count_calls */
        if (parent) {
            /* Records of earlier splits may be lost. */
            bool lost = parent->gaps != parent->split_gaps && rec->aux >= parent->splits;
            parent->splits = lost ? rec->aux + 1u : parent->splits + 1;
            parent->split_gaps = parent->gaps;
        }
    }
    struct member *made = rec->op == ROLL_OP_COMM_INIT ? source_member(s, rec->comm) : NULL;
    if (made && first) {
        comm_made(e, made, rec);
    } else if (parent && first) {
        comm_split_made(e, s, parent, rec);
    }
    if (first) {
        joins(e, s, rec);
    }
    if (roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED && rec->result == 0) {
        refused_created(s);
    }
    bool inside = roll_seal_state(rec->seal) == ROLL_STATE_ENTERED;
    bool goes_on = roll_seal_state(rec->seal) == ROLL_STATE_RETURNED && rec->result == NCCL_IN_PROGRESS;
    if ((inside || goes_on) && first) {
        s->init = ticket + 1;
        s->init_since = e->clock;
        s->init_calm = e->calm;
    } else if (s->init == ticket + 1 && !inside && (!goes_on || roll_seal_ticket(s->last.seal) > ticket)) {
        if (rec->result == 0) {
            init_joined(e, s, rec);
        }
        s->init = 0;
    }
    if (s->init == ticket + 1) {
        s->init_polled = goes_on;
    }
}

void creation_over(struct source *s)
{
    s->init = s->init_polled ? 0 : s->init;
}

void creation_asked(struct roll_engine *e, struct source *s, const struct roll_record *rec)
{
    if (s->init != 0 && roll_seal_ticket(rec->seal) < s->init - 1) {
        return; /* it asked before it began to make what it makes now */
    }
    const struct entry *entry = s->init && s->init_polled ? source_entry(s, s->init - 1) : NULL;
    if (entry && entry->rec.op == ROLL_OP_COMM_INIT && entry->rec.comm != rec->comm) {
        return; /* the rank has asked about another communicator */
    }
    if (entry && entry->rec.op == ROLL_OP_COMM_INIT) {
        init_joined(e, s, &entry->rec);
    }
    if (entry) {
        refused_created(s);
    }
    creation_over(s);
}
