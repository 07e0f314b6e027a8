/*
 * detect_moe_obligation.c: a rank will not issue backward collectives for which its peers will wait, told while forward
 * still runs.
 *
 * In forward each rank reports, for each MoE layer, the collectives that its backward pass will issue
 * (moe_core/include/moe/observe.h). The members of one expert-parallel communicator must report the same list. A rank
 * whose list lacks a collective of a peer's list will leave that peer waiting. This is predicted when the lists of all
 * members have come, or stall/20 after a difference was first seen. No majority is needed: a rank with a longer list
 * waits for one with a shorter list, never the reverse. Equal lists are healthy, also when all are empty. Lists are
 * compared by operation, and by whether a collective runs on the expert-parallel communicator itself: other
 * communicators (expert-data-parallel) differ from member to member by design.
 *
 * The communicators concerned are remembered. When one of them disagrees or stalls, a single proven verdict says that
 * the prediction came true, and all other detectors are silent about it. The prediction expires when the members have
 * reached a later step.
 */
#include "daemon/base/array.h"
#include "daemon/engine/detect/obligation.h"

#include <stdlib.h>
#include <string.h>

#define OBLIGE_MAX 256u /* obligations of one layer */

/* The list that a rank is reporting. */
struct moe_obligation_source {
    uint32_t step;
    uint16_t microbatch, layer;
    uint32_t used;
    bool broken; /* a record of the list is missing or does not fit: the list says nothing */
    struct obligation obligation[OBLIGE_MAX];
};
STATE_OF_SOURCE(moe_obligation)

/*
 * The rank had no tokens and received none, so it has nothing to send and nothing to receive in the all-to-alls of this
 * layer. Where empty messages are left out (the dispatchers of moe_core leave them out on both sides), nobody waits for
 * the rank there, whatever it left out. Where empty messages are made, as PyTorch does, its peers wait for them.
 */
static bool idle(const struct roll_engine *e, const struct cell *cell, const struct list *full, const struct list *list)
{
    const struct source *s = e->source[list->source];
    const struct layer_note *note = layer_note_of(s, cell->layer);
    bool exchanges = false;
    for (uint32_t i = 0; i < full->used; i++) {
        const struct comm *on = comm_find(e, full->obligation[i].comm_key);
        exchanges = exchanges || full->obligation[i].op != ROLL_OP_ALLTOALL || (on && on->empties > 0);
    }
    return note && note->step == cell->step && note->microbatch == cell->microbatch && note->idle && note->zero &&
           !exchanges;
}

static struct cause *cause_new(struct roll_engine *e)
{
    struct moe_obligation_engine *own = moe_obligation_of_engine(e);
    if (ROLL_GROW(own->cause, own->cause_room, own->causes + 1u) != 0) {
        return NULL;
    }
    struct cause *cause = &own->cause[own->causes++];
    memset(cause, 0, sizeof(*cause));
    return cause;
}

/* Marks the communicators on which the missing calls would have been made, as far as they are known: the
 * expert-parallel one, and that of the first missing call. */
static void blame(struct roll_engine *e, uint32_t at, const struct comm *ep)
{
    const struct cause *cause = &moe_obligation_of_engine(e)->cause[at];
    const struct source *culprit = e->source[cause->source];
    for (uint32_t i = 0; i < culprit->members; i++) {
        struct member *m = culprit->member[i];
        bool meant = m && (m->comm == ep || m->comm->key == cause->obligation.comm_key) && !m->comm->blamed;
        struct moe_obligation_comm *own = meant ? moe_obligation_make_comm(m->comm) : NULL;
        if (own) {
            m->comm->blamed = true;
            own->cause = at;
            own->step = cause->step;
        }
    }
}

/* The cause of these ranks and this layer. The same ranks may leave out the same layer again and again: that is one
 * cause, told once and kept up to date. */
static struct cause *cause_for(struct roll_engine *e, const struct comm *ep, const struct cell *cell,
                               const struct roll_rankset *culprits)
{
    const struct moe_obligation_engine *own = moe_obligation_of_engine(e);
    for (uint32_t i = 0; i < own->causes; i++) {
        struct cause *cause = &own->cause[i];
        if (cause->key == ep->key && cause->layer == cell->layer && roll_rankset_equal(&cause->culprits, culprits)) {
            return cause;
        }
    }
    struct cause *cause = cause_new(e);
    if (cause) {
        cause->key = ep->key;
        cause->layer = cell->layer;
    }
    return cause;
}

static void judge(struct roll_engine *e, struct comm *ep, struct cell *cell)
{
    uint32_t full = obligation_longest(ep, cell), first = 0;
    struct roll_rankset culprits = {0}, waiting = {0};
    uint32_t culprit = NO_SEQ, missing = 0;
    bool zero = false, skipped = false;
    for (uint32_t r = 0; r < ep->size; r++) {
        const struct list *list = &cell->list[r];
        uint32_t at = 0, n = list->source == NO_SOURCE ? 0 : obligation_lacks(ep, &cell->list[full], list, &at);
        if (list->source == NO_SOURCE) {
            continue;
        }
        if (n > 0 && idle(e, cell, &cell->list[full], list)) {
            continue;
        }
        struct source *s = e->source[list->source];
        (void)roll_rankset_add(n > 0 ? &culprits : &waiting, s->world);
        if (n > 0 && culprit == NO_SEQ) {
            const struct layer_note *note = layer_note_of(s, cell->layer);
            culprit = r;
            missing = n;
            first = at;
            zero = note && note->step == cell->step && (note->zero || note->skipped);
            skipped = note && note->step == cell->step && note->skipped;
        }
    }
    cell->told = true;
    struct cause *cause = culprit != NO_SEQ ? cause_for(e, ep, cell, &culprits) : NULL;
    if (cause) {
        (void)roll_rankset_copy(&cause->culprits, &culprits);
        (void)roll_rankset_copy(&cause->waiting, &waiting);
        cause->step = cell->step;
        cause->microbatch = cell->microbatch;
        cause->source = cell->list[culprit].source;
        cause->ticket = cell->list[culprit].ticket;
        cause->peer_source = cell->list[full].source;
        cause->peer_ticket = cell->list[full].ticket;
        cause->missing = missing;
        cause->skipped = skipped;
        cause->obligation = cell->list[full].obligation[first];
        blame(e, (uint32_t)(cause - moe_obligation_of_engine(e)->cause), ep);
        if (!cause->told) {
            cause->told = true;
            /* What is left out on one communicator in one step is one finding, whichever ranks have no tokens in its
             * layers. */
            cause->prediction = say_key(ROLL_VERDICT_MOE_OBLIGATION, cause->key, cause->step, cause->skipped);
            obligation_predict(e, cause, zero);
        }
    }
    roll_rankset_fini(&culprits);
    roll_rankset_fini(&waiting);
}

/* Withdraws the prediction of this cause; one that has not been said yet is not said. */
static void withdraw(struct roll_engine *e, const struct cause *cause)
{
    struct gathered *g = gather_find(e, cause->prediction);
    if (g && g->pending && g->told == 0) {
        g->pending = false;
    } else if (g && g->number != 0) {
        (void)say_withdraw(e, g->number, "all ranks have got to a later step without that wait");
    }
}

/* All members have reached a later step: the predictions for earlier steps did not come true. */
static void expire(struct roll_engine *e, struct comm *ep, uint32_t step)
{
    const struct moe_obligation_engine *own = moe_obligation_of_engine(e);
    for (uint32_t i = 0; ep->blamed && i < own->causes; i++) {
        if (own->cause[i].key == ep->key && own->cause[i].step < step && !own->cause[i].proven) {
            withdraw(e, &own->cause[i]);
        }
    }
    for (uint32_t i = 0; ep->blamed && i < e->comms; i++) {
        const struct moe_obligation_comm *b = e->comm[i]->blamed ? moe_obligation_of_comm(e->comm[i]) : NULL;
        if (b && own->cause[b->cause].key == ep->key && b->step < step && !own->cause[b->cause].proven) {
            e->comm[i]->blamed = false;
        }
    }
}

static void list_done(struct roll_engine *e, uint32_t source, const struct roll_record *rec, uint64_t ticket)
{
    struct source *s = e->source[source];
    struct member *m = source_member(s, rec->comm);
    struct moe_obligation_source *collected = moe_obligation_of_source(s);
    struct moment when;
    struct moe_obligation_comm *own = compare_moment(s, rec, &when) ? moe_obligation_make_comm(m->comm) : NULL;
    bool compared = own && !compare_closed(&own->closed, &when);
    bool whole = (!collected && rec->count == 0) ||
                 (collected && !collected->broken && collected->used == rec->count &&
                  (collected->used == 0 || (collected->step == rec->step && collected->layer == rec->layer &&
                                            collected->microbatch == rec->microbatch)));
    size_t bytes = compared && whole && collected ? collected->used * sizeof(*collected->obligation) : 0;
    struct obligation *copy = bytes > 0 ? malloc(bytes) : NULL;
    whole = whole && (bytes == 0 || copy); /* a list for which there is no memory is not an empty one */
    if (compared && !whole) { /* the rank's later lists would be compared with the wrong lists of its peers */
        obligation_give_up(m->comm, &when);
    }
    struct cell *cell = compared && whole ? obligation_cell_get(m->comm, rec, &when, (uint32_t)m->rank) : NULL;
    if (cell && cell->list[m->rank].source == NO_SOURCE) {
        struct comm *ep = m->comm;
        struct list *list = &cell->list[m->rank];
        ep->moe++;
        list->source = source;
        list->ticket = ticket;
        list->used = collected ? collected->used : 0;
        list->obligation = copy;
        if (copy) {
            memcpy(copy, collected->obligation, bytes);
        }
        copy = NULL;
        cell->arrived++;
        uint32_t full = obligation_longest(ep, cell), at;
        for (uint32_t r = 0; r < ep->size && !cell->differ; r++) {
            if (cell->list[r].source != NO_SOURCE && obligation_lacks(ep, &cell->list[full], &cell->list[r], &at) > 0) {
                cell->differ = true;
                cell->since = e->clock;
            }
        }
        if (cell->arrived == ep->size) {
            if (cell->differ && !cell->told) {
                judge(e, ep, cell);
            }
            expire(e, ep, cell->step);
            obligation_cell_drop(ep, cell);
        }
    }
    free(copy);
    if (collected) {
        collected->used = 0;
        collected->broken = false;
    }
}

static void obligation_record(struct roll_engine *e, uint32_t source, const struct roll_record *rec, uint64_t ticket,
                              bool first)
{
    struct source *s = e->source[source];
    if (!first) {
        return;
    }
    if (rec->op == ROLL_OP_MOE_OBLIGE_END) {
        moe_obligation_of_engine(e)->any = true;
        list_done(e, source, rec, ticket);
        return;
    }
    if (rec->op != ROLL_OP_MOE_OBLIGE) {
        return;
    }
    struct moe_obligation_source *d = moe_obligation_make_source(s);
    if (!d) {
        return;
    }
    const struct member *m = source_member(s, rec->comm);
    if (rec->seq == 0) {
        d->used = 0;
        d->broken = false;
    }
    d->step = rec->step;
    d->microbatch = rec->microbatch;
    d->layer = rec->layer;
    if (d->used != rec->seq || d->used == OBLIGE_MAX) {
        d->broken = true;
        return;
    }
    d->obligation[d->used++] = (struct obligation){
        .comm_key = m ? m->comm->key : 0, .count = rec->count, .op = (uint32_t)rec->peer, .callsite = rec->callsite};
}

static void obligation_tick(struct roll_engine *e)
{
    for (uint32_t i = 0; moe_obligation_of_engine(e)->any && i < e->comms; i++) {
        const struct moe_obligation_comm *own = moe_obligation_of_comm(e->comm[i]);
        for (struct cell *cell = own ? own->cell : NULL; cell; cell = cell->next) {
            bool due = e->finishing || e->clock - cell->since >= e->config.stall_ns / 20;
            if (cell->differ && !cell->told && due) {
                judge(e, e->comm[i], cell);
            }
        }
    }
}

static bool obligation_block(struct roll_engine *e, const struct block *b)
{
    if (b->kind != BLOCK_BLAMED || !b->comm || !b->comm->blamed) {
        return false;
    }
    comm_explained(e, b->comm);
    obligation_came_true(e, &moe_obligation_of_engine(e)->cause[moe_obligation_of_comm(b->comm)->cause]);
    return true;
}

static bool obligation_pair(struct roll_engine *e, struct pair *p, uint32_t index)
{
    (void)index;
    if (!p->comm->blamed) {
        return false;
    }
    struct block b = {.kind = BLOCK_BLAMED, .comm = p->comm, .hard = true};
    return obligation_block(e, &b);
}

static void obligation_lost(struct roll_engine *e, uint32_t source, uint64_t count)
{
    struct moe_obligation_source *collected = moe_obligation_of_source(e->source[source]);
    (void)count;
    if (collected) {
        collected->broken = true;
    }
}

static void obligation_comm_fini(struct comm *c)
{
    const struct moe_obligation_comm *own = moe_obligation_of_comm(c);
    while (own && own->cell) {
        obligation_cell_drop(c, own->cell);
    }
}

static void obligation_fini(struct roll_engine *e)
{
    const struct moe_obligation_engine *own = moe_obligation_of_engine(e);
    for (uint32_t i = 0; i < own->causes; i++) {
        roll_rankset_fini(&own->cause[i].culprits);
        roll_rankset_fini(&own->cause[i].waiting);
    }
    free(own->cause);
}

const struct detector detect_moe_obligation = {.name = "moe_obligation",
                                               ENGINE_STATE(moe_obligation),
                                               .record = obligation_record,
                                               .lost = obligation_lost,
                                               .tick = obligation_tick,
                                               .pair = obligation_pair,
                                               .block = obligation_block,
                                               .comm_fini = obligation_comm_fini,
                                               .fini = obligation_fini};
