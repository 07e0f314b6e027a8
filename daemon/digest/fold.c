/*
 * fold.c: the life of a fold, its communicators, and what is no call on them: hosts inside calls, groups, ends of
 * communicators, records that were lost (fold.h).
 */
#include "daemon/digest/fold_state.h"

#include "daemon/base/array.h"
#include "trace/op.h"

#include <stdlib.h>

#define NCCL_GOING 7 /* ncclInProgress: a call of a nonblocking communicator has been taken */

roll_fold_t *roll_fold_new(uint64_t inside_ns)
{
    roll_fold_t *fold = calloc(1, sizeof(*fold));
    if (fold) {
        fold->inside_ns = inside_ns;
    }
    return fold;
}

void roll_fold_destroy(roll_fold_t **pointer)
{
    roll_fold_t *fold = *pointer;
    if (!fold) {
        return;
    }
    for (size_t i = 0; i < fold->members; i++) {
        if (fold->member[i]) {
            free(fold->member[i]->fill);
        }
        free(fold->member[i]);
    }
    free(fold->member);
    free(fold->pair);
    roll_map_fini(&fold->pair_at);
    free(fold->like);
    roll_observed_destroy(&fold->observed);
    roll_digest_fini(&fold->hints);
    free(fold);
    *pointer = NULL;
}

int roll_fold_comm(roll_fold_t *fold, uint32_t id, const struct roll_def_comm *info)
{
    if (id > UINT16_MAX || info->nranks <= 0 || info->rank < 0 || info->rank >= info->nranks) {
        return ROLL_E_LIMIT;
    }
    int err = ROLL_GROW_ZERO(fold->member, fold->members, (size_t)id + 1);
    if (err != 0 || fold->member[id]) {
        return err;
    }
    struct roll_fold_member *m = calloc(1, sizeof(*m));
    if (!m || !(m->fill = calloc(1, sizeof(*m->fill)))) {
        free(m);
        return ROLL_E_NOMEM;
    }
    m->key = info->key;
    m->size = (uint32_t)info->nranks;
    m->rank = (uint32_t)info->rank;
    m->known = m->moved = m->sure = true;
    fold->member[id] = m;
    return 0;
}

/* A call that was taken when it began has been refused: it gives its number back. */
static void give_back(struct roll_fold *fold, struct roll_fold_member *m, const struct roll_record *rec)
{
    roll_fold_hint(fold, m, ROLL_HINT_REFUSED, rec->seq);
    if (roll_op_class(rec->op) == ROLL_CLASS_COLL) {
        if (rec->count != 0 && rec->seq + 1 == m->next) {
            roll_fold_step_back(fold, m, rec->seq);
            m->moved = true;
        }
        return;
    }
    roll_fold_message_back(fold, m, rec);
}

static struct roll_fold_inside *thread_of(struct roll_fold *fold, uint16_t thread)
{
    for (uint32_t i = 0; i < fold->threads; i++) {
        if (fold->inside[i].thread == thread) {
            return &fold->inside[i];
        }
    }
    if (fold->threads == ROLL_FOLD_THREADS) {
        return NULL;
    }
    fold->inside[fold->threads].thread = thread;
    return &fold->inside[fold->threads++];
}

static void note_host(struct roll_fold *fold, const struct roll_record *rec, uint64_t ticket, uint64_t now_ns)
{
    struct roll_fold_inside *t = thread_of(fold, rec->thread);
    bool entered = roll_seal_state(rec->seal) == ROLL_STATE_ENTERED;
    if (!t) {
        return;
    }
    if (entered && t->ticket != ticket + 1) {
        /* A loop of polls goes on: its next record takes the place of the one before. */
        bool goes_on = t->ticket != 0 && roll_op_class(rec->op) == ROLL_CLASS_POLL;
        *t = (struct roll_fold_inside){.ticket = ticket + 1,
                                       .since_ns = goes_on ? t->since_ns : now_ns,
                                       .thread = rec->thread,
                                       .comm = rec->comm,
                                       .told = goes_on && t->told};
    } else if (!entered && t->ticket == ticket + 1) {
        t->ticket = 0;
    }
}

/* Two threads inside calls of one communicator at once. */
static void note_overlap(struct roll_fold *fold, struct roll_fold_member *m, const struct roll_record *rec)
{
    if (m->thread != 0 && m->thread != rec->thread && (m->open || rec->enter_ns < m->until_ns)) {
        roll_fold_hint(fold, m, ROLL_HINT_THREADS, rec->seq);
    }
    if (roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED) {
        m->until_ns = rec->enter_ns + rec->call_ns;
    }
}

/* What a group does on a communicator must not be interrupted before the group's end has returned. */
static void note_group_end(struct roll_fold *fold, const struct roll_record *rec)
{
    bool returned = roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED;
    for (size_t i = 0; i < fold->members; i++) {
        struct roll_fold_member *m = fold->member[i];
        if (m && m->group == rec->group && m->thread == rec->thread) {
            m->open = false;
            m->until_ns = returned ? rec->enter_ns + rec->call_ns : UINT64_MAX;
        }
    }
}

static bool failed(const struct roll_record *rec)
{
    return rec->result != 0 && rec->result != NCCL_GOING && roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED;
}

/* A call of a kind that is not known here: it may have taken a number on its communicator, or been an observation. */
static void take_unknown(struct roll_fold *fold, struct roll_fold_member *m)
{
    fold->losses++;
    roll_observed_lost(fold->observed);
    if (m) {
        m->known = m->sure = false;
        m->group = 0;
    }
}

/* What is no collective and no message: some of it is the engine's business at once. Grouped products and one-sided
 * operations are not: nobody's are compared with another's unless somebody waits, and that is heard of otherwise. */
static int take_other(struct roll_fold *fold, const struct roll_record *rec, bool fresh)
{
    struct roll_fold_member *m = roll_fold_member_of(fold, rec->comm);
    int rc = 0;
    enum roll_op_class class = roll_op_class(rec->op);
    if (class == ROLL_CLASS_GROUP) {
        if (rec->op == ROLL_OP_GROUP_END && rec->group != 0) {
            note_group_end(fold, rec);
        }
        if (failed(rec) || rec->count == 1) {
            roll_fold_hint(fold, NULL, ROLL_HINT_REFUSED, 0);
        }
    } else if (class == ROLL_CLASS_COMM) {
        bool ends = rec->op == ROLL_OP_COMM_ABORT || rec->op == ROLL_OP_COMM_REVOKE;
        if (ends || failed(rec)) {
            roll_fold_hint(fold, m, ends ? ROLL_HINT_LIFE : ROLL_HINT_REFUSED, 0);
        }
        if (m && fresh && rec->op == ROLL_OP_COMM_SPLIT) {
            m->splits = rec->aux >= m->splits ? rec->aux + 1u : m->splits + 1;
        }
        if (m && (ends || rec->op == ROLL_OP_COMM_DESTROY)) {
            m->gone = m->moved = true;
        }
    } else if (class == ROLL_CLASS_MOE && fresh) {
        rc = roll_observed_record(&fold->observed, rec, m ? m->key : 0, m ? m->size : 0, fold->losses == 0);
        if (rc > 0) {
            roll_fold_hint(fold, m, ROLL_HINT_OBSERVED, roll_observed_step(rec->step));
        }
    } else if (class == ROLL_CLASS_RMA && failed(rec)) {
        roll_fold_hint(fold, m, ROLL_HINT_REFUSED, 0);
    } else if (class == ROLL_CLASS_NONE && fresh) {
        take_unknown(fold, m);
    }
    return rc < 0 ? rc : 0;
}

static bool has_returned(const struct roll_record *rec)
{
    return roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED;
}

/* Calls may still be under way until the host comes back from a wait that it began behind them. The wait's return may
 * be heard of behind the calls that follow it, so tickets say which was first. */
static void note_work(struct roll_fold *fold, const struct roll_record *rec, uint64_t ticket)
{
    enum roll_op_class class = roll_op_class(rec->op);
    bool call = class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P || class == ROLL_CLASS_RMA;
    bool waited = class == ROLL_CLASS_SYNC && has_returned(rec);
    uint64_t *newest = call ? &fold->call_ticket : &fold->waited_ticket;
    if ((call || waited) && ticket + 1 > *newest) {
        *newest = ticket + 1;
    }
}

int roll_fold_record(roll_fold_t *fold, const struct roll_record *rec, uint64_t now_ns)
{
    enum roll_op_class class = roll_op_class(rec->op);
    if (roll_seal_state(rec->seal) == ROLL_STATE_EMPTY) {
        return 0;
    }
    uint64_t ticket = roll_seal_ticket(rec->seal);
    bool call = class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P, fresh = ticket >= fold->next_ticket;
    struct roll_fold_member *m = call ? roll_fold_member_of(fold, rec->comm) : NULL;
    int err = 0;
    if (fresh && ticket > fold->next_ticket) {
        if (fold->next_ticket != 0) {
            roll_fold_lost(fold);
        }
        fold->losses++;
    }
    note_host(fold, rec, ticket, now_ns);
    fold->next_ticket = fresh ? ticket + 1 : fold->next_ticket;
    fold->last_ns = now_ns;
    fold->told_quiet = false;
    note_work(fold, rec, ticket);
    if (!call) {
        return take_other(fold, rec, fresh);
    }
    if (!m) { /* on no communicator that is known: the engine decides what that means */
        roll_fold_hint(fold, NULL, ROLL_HINT_OTHER, 0);
        return 0;
    }
    if (failed(rec) && rec->group == 0) {
        give_back(fold, m, rec);
        return 0;
    }
    note_overlap(fold, m, rec);
    if (fresh) {
        if (class == ROLL_CLASS_COLL) {
            roll_fold_collective(fold, m, rec);
        } else {
            err = roll_fold_message(fold, m, rec);
        }
        m->group = rec->group;
        m->thread = rec->thread;
        m->open = rec->group != 0;
    }
    return err;
}

void roll_fold_lost(roll_fold_t *fold)
{
    fold->losses++;
    roll_observed_lost(fold->observed);
    for (size_t i = 0; i < fold->members; i++) {
        struct roll_fold_member *m = fold->member[i];
        if (m) {
            m->known = m->sure = false;
            m->group = 0;
        }
    }
    for (uint32_t i = 0; i < fold->threads; i++) {
        fold->inside[i].ticket = 0;
    }
}

void roll_fold_ended(roll_fold_t *fold)
{
    for (size_t i = 0; i < fold->members && !fold->ended; i++) {
        if (fold->member[i]) {
            fold->member[i]->moved = true;
        }
    }
    fold->ended = true;
}

uint64_t roll_fold_observed(const roll_fold_t *fold, uint32_t step)
{
    return roll_observed_begin(fold->observed, step);
}

bool roll_fold_forgot(const roll_fold_t *fold, uint32_t step)
{
    return roll_observed_forgot(fold->observed, step);
}

uint64_t roll_fold_quiet_ns(const roll_fold_t *fold, uint64_t now_ns)
{
    return fold->last_ns != 0 && now_ns > fold->last_ns ? now_ns - fold->last_ns : 0;
}

bool roll_fold_place(const roll_fold_t *fold, size_t i, struct roll_fold_place *out)
{
    if (i < fold->members) {
        const struct roll_fold_member *m = fold->member[i];
        *out = (struct roll_fold_place){.op = ROLL_OP_NONE}; /* nobody has defined it: no communicator has the id 0 */
        if (m) {
            out->comm = (uint16_t)i;
            out->next = m->next;
            out->made = m->splits;
            out->sure = m->sure;
        }
        return true;
    }
    if (i - fold->members >= fold->pairs) {
        return false;
    }
    const struct roll_fold_pair *p = &fold->pair[i - fold->members];
    *out = (struct roll_fold_place){
        .comm = p->comm, .op = p->op, .peer = p->peer, .next = p->next, .made = p->made, .sure = p->sure};
    return true;
}
