/*
 * detect_moe_obligation.c: a rank will not issue backward collectives that its peers will wait for, told while forward
 * still runs.
 *
 * In forward each rank reports, per MoE layer, the collectives that its backward pass will issue
 * (moe_core/include/moe/observe.h). Members of one expert-parallel communicator must report alike. A rank whose list
 * lacks what a peer's list has will leave that peer waiting: predicted, as soon as both lists are known and the other
 * members' have come (or stall/20 has passed). No majority is needed: a longer list waits for a shorter one, never the
 * reverse. Equal lists, all empty included, are healthy. Lists are compared by operation and by whether they run on the
 * expert-parallel communicator itself, because other communicators (expert-data-parallel) differ from member to member
 * by design.
 *
 * The communicators concerned are remembered. When they do disagree or stall, one proven verdict says that the
 * prediction came true, and all other detectors stay silent about them. The memory ends when the members have got
 * through to a later step.
 */
#include "daemon/engine/detect/detector.h"
#include "daemon/engine/detect/gather.h"
#include "daemon/engine/detect/meeting.h"
#include "daemon/engine/detect/moe.h"

#include <stdlib.h>
#include <string.h>

#define CELLS_MAX  64u
#define OBLIGE_MAX 256u /* obligations of one layer */

/* One promised collective. */
struct duty {
    uint64_t comm_key;
    uint64_t count;
    uint32_t op;
    uint32_t callsite;
};

/* The list that a rank is telling. */
struct moe_obligation_source {
    uint32_t step;
    uint16_t microbatch, layer;
    uint32_t used;
    bool broken; /* a record was lost or refused: the list says nothing */
    struct duty duty[OBLIGE_MAX];
};
STATE_OF_SOURCE(moe_obligation)

/* The rank that will not issue what its peers expect. */
struct cause {
    uint64_t key;                          /* ep communicator */
    struct roll_rankset culprits, waiting; /* world ranks */
    uint32_t step, microbatch, layer, source, peer_source;
    uint64_t ticket, peer_ticket;
    uint32_t missing;
    struct duty duty; /* the first one missing */
    bool told, proven;
    bool skipped;        /* the culprit said that it skipped its experts */
    uint64_t prediction; /* key of the gathering in which it is told (gather.h) */
};

struct moe_obligation_engine {
    struct cause *cause; /* owned */
    uint32_t causes, room;
};
STATE_OF_ENGINE(moe_obligation)

struct list {
    uint32_t source, used;
    uint64_t ticket; /* of its end */
    struct duty *duty;
};

/* The lists of all members for one (step, microbatch, layer). */
struct cell {
    struct moment at;
    uint32_t step; /* of `at` */
    uint16_t microbatch, layer;
    uint32_t arrived;
    bool differ, told;
    uint64_t since;
    struct list *list; /* by rank; duty NULL and used 0 with source NO_SOURCE: not there yet */
    struct cell *next;
};

struct moe_obligation_comm {
    struct cell *cell; /* newest first; owned */
    struct closed closed;
    uint32_t cause; /* comm.blamed: the index of the prediction, and its step */
    uint32_t step;
};
STATE_OF_COMM(moe_obligation)

static void cell_free(const struct comm *c, struct cell **cell)
{
    for (uint32_t r = 0; (*cell)->list && r < c->size; r++) {
        free((*cell)->list[r].duty);
    }
    free((*cell)->list);
    free(*cell);
    *cell = NULL;
}

static void cell_drop(struct comm *c, struct cell *cell)
{
    struct moe_obligation_comm *own = moe_obligation_of_comm(c);
    for (struct cell **at = &own->cell; *at; at = &(*at)->next) {
        if (*at == cell) {
            *at = cell->next;
            cell_free(c, &cell);
            return;
        }
    }
}

/* The order of this step's lists is not whole any more: neither it nor an earlier step is compared further. */
static void give_up(struct comm *c, const struct moment *step)
{
    struct moe_obligation_comm *own = moe_obligation_of_comm(c);
    struct cell *next;
    meeting_close(&own->closed, step);
    for (struct cell *cell = own->cell; cell; cell = next) {
        next = cell->next;
        if (meeting_closed(&own->closed, &cell->at)) {
            cell_drop(c, cell);
        }
    }
}

/* The oldest in which the member has not spoken yet; *last: the oldest of all, NULL while there is room. */
static struct cell *cell_find(const struct comm *c, const struct roll_record *rec, const struct moment *at,
                              uint32_t rank, const struct cell **last)
{
    struct cell *oldest = NULL;
    uint32_t count = 0;
    *last = NULL;
    for (struct cell *cell = moe_obligation_of_comm(c)->cell; cell; cell = cell->next) { /* newest come first */
        bool same = cell->at.turn == at->turn && cell->step == at->step && cell->microbatch == rec->microbatch &&
                    cell->layer == rec->layer;
        oldest = same && cell->list[rank].source == NO_SOURCE ? cell : oldest;
        *last = ++count >= CELLS_MAX ? cell : NULL;
    }
    return oldest;
}

/*
 * The cell of this list: the oldest for its step, microbatch and layer in which the member has not spoken yet. A job
 * may have several layers of one number (two models, or numbers that were never given): the first list of each member
 * meets the others' first, the second their second.
 */
static struct cell *cell_get(struct comm *c, const struct roll_record *rec, const struct moment *at, uint32_t rank)
{
    struct moe_obligation_comm *own = moe_obligation_of_comm(c);
    const struct cell *last;
    struct cell *cell = cell_find(c, rec, at, rank, &last);
    if (cell) {
        return cell;
    }
    if (last) { /* the oldest step goes */
        struct moment oldest = last->at;
        give_up(c, &oldest);
    }
    if (meeting_closed(&own->closed, at)) {
        return NULL;
    }
    cell = calloc(1, sizeof(*cell));
    struct list *list = calloc(c->size, sizeof(*list));
    if (!cell || !list) {
        free(cell);
        free(list);
        return NULL;
    }
    for (uint32_t r = 0; r < c->size; r++) {
        list[r].source = NO_SOURCE;
    }
    *cell = (struct cell){.at = *at,
                          .step = at->step,
                          .microbatch = rec->microbatch,
                          .layer = rec->layer,
                          .list = list,
                          .next = own->cell};
    own->cell = cell;
    return cell;
}

static bool same_duty(const struct comm *ep, const struct duty *a, const struct duty *b)
{
    return a->op == b->op && (a->comm_key == ep->key) == (b->comm_key == ep->key);
}

/* How many entries of `full` the other list lacks; *first: index of the first one in `full`. */
static uint32_t lacks(const struct comm *ep, const struct list *full, const struct list *other, uint32_t *first)
{
    uint32_t missing = 0, k = 0;
    for (uint32_t i = 0; i < full->used; i++) {
        if (k < other->used && same_duty(ep, &full->duty[i], &other->duty[k])) {
            k++;
        } else {
            *first = missing == 0 ? i : *first;
            missing++;
        }
    }
    return missing;
}

/*
 * A rank that has no tokens and received none has nothing to send and nothing to get in this layer's all-to-alls. Where
 * empty messages are left out (moe_core's own dispatchers do so, on both sides) nobody waits for it there, whatever it
 * left out. Where they are made, as PyTorch does, its peers do.
 */
static bool idle(const struct roll_engine *e, const struct cell *cell, const struct list *full, const struct list *list)
{
    const struct source *s = e->source[list->source];
    const struct layer_note *note = layer_note_of(s, cell->layer);
    bool exchanges = false;
    for (uint32_t i = 0; i < full->used; i++) {
        const struct comm *on = comm_find(e, full->duty[i].comm_key);
        exchanges = exchanges || full->duty[i].op != ROLL_OP_ALLTOALL || (on && on->empties > 0);
    }
    return note && note->step == cell->step && note->microbatch == cell->microbatch && note->idle && note->zero &&
           !exchanges;
}

static uint32_t longest(const struct comm *c, const struct cell *cell)
{
    uint32_t best = NO_SEQ;
    for (uint32_t r = 0; r < c->size; r++) {
        if (cell->list[r].source != NO_SOURCE && (best == NO_SEQ || cell->list[r].used > cell->list[best].used)) {
            best = r;
        }
    }
    return best;
}

static struct cause *cause_new(struct roll_engine *e)
{
    struct moe_obligation_engine *own = moe_obligation_of_engine(e);
    if (own->causes == own->room) {
        uint32_t room = own->room ? own->room * 2 : 16;
        struct cause *table = realloc(own->cause, room * sizeof(*table));
        if (!table) {
            return NULL;
        }
        own->cause = table;
        own->room = room;
    }
    struct cause *cause = &own->cause[own->causes++];
    memset(cause, 0, sizeof(*cause));
    return cause;
}

static void words_missing(struct words *w, const struct roll_engine *e, const struct cause *cause)
{
    struct comm *on = comm_find(e, cause->duty.comm_key);
    words_add(w, "%u backward %s (first: %s on ", cause->missing, cause->missing == 1 ? "collective" : "collectives",
              roll_op_name(cause->duty.op));
    if (on) {
        words_comm(w, on);
    } else {
        words_add(w, "a communicator that is not known yet");
    }
    words_add(w, ")");
}

static void fill_verdict(struct roll_engine *e, struct roll_verdict *v, const struct cause *cause)
{
    const struct comm *ep = comm_find(e, cause->key);
    const struct entry *mine = source_entry(e->source[cause->source], cause->ticket);
    const struct entry *theirs = source_entry(e->source[cause->peer_source], cause->peer_ticket);
    say_comm(v, ep, 0);
    say_side(v, e->source[cause->source], cause->source, &cause->culprits, mine ? &mine->rec : NULL);
    say_side(v, e->source[cause->peer_source], cause->peer_source, &cause->waiting, theirs ? &theirs->rec : NULL);
    (void)roll_rankset_copy(&v->culprits, &cause->culprits);
    (void)roll_rankset_copy(&v->waiting, &cause->waiting);
    v->step = cause->step;
    v->microbatch = cause->microbatch;
    v->layer = cause->layer;
    v->remedy = ROLL_REMEDY_FILL;
    v->phase = ROLL_PHASE_FORWARD;
}

/* What the culprit did in forward, as far as it said so. */
static void words_deed(struct words *w, const struct cause *cause, bool zero, bool one)
{
    if (cause->skipped) {
        words_add(w, " and skipped %s experts", one ? "its" : "their");
    } else if (zero) {
        words_add(w, " and left that layer's exchange or cut its backward");
    }
    words_add(w, one ? ": it will not issue " : ": they will not issue ");
}

static void words_prediction(const struct roll_engine *e, const struct gathered *g, struct words *w)
{
    const struct cause *cause = &moe_obligation_of_engine(e)->cause[g->number_of[0]];
    bool zero = g->kind != 0, one = roll_rankset_count(&g->culprits) == 1;
    words_ranks(w, &g->culprits);
    words_add(w, zero ? " received no tokens in " : one ? " left its experts out in " : " left their experts out in ");
    words_add(w, g->several ? "some of " : "");
    gather_place(g, w);
    words_deed(w, cause, zero, one);
    words_missing(w, e, cause);
    words_add(w, roll_rankset_count(&g->layers) > 1 ? " of each. " : ". ");
    if (g->several) {
        words_add(w, "In each of them the other ranks will wait for them in backward, for ever.");
        return;
    }
    words_ranks(w, &g->waiting);
    words_add(w, " will wait for %s in backward, for ever.", one ? "it" : "them");
}

/* Ranks leave out several layers: one finding. What comes after the wait has come true is its consequence. */
static void predict(struct roll_engine *e, const struct cause *cause, bool zero)
{
    const struct moe_obligation_engine *own = moe_obligation_of_engine(e);
    bool fresh;
    for (uint32_t i = 0; i < own->causes; i++) {
        if (own->cause[i].key == cause->key && own->cause[i].proven) {
            return;
        }
    }
    struct gathered *g = gather_open(e, cause->prediction, ROLL_VERDICT_MOE_OBLIGATION, ROLL_PREDICTED, &fresh);
    if (!g) {
        return;
    }
    if (fresh) {
        const struct entry *mine = source_entry(e->source[cause->source], cause->ticket);
        const struct entry *theirs = source_entry(e->source[cause->peer_source], cause->peer_ticket);
        gather_side(g, e->source[cause->source], cause->source, &cause->culprits, mine ? &mine->rec : NULL);
        gather_side(g, e->source[cause->peer_source], cause->peer_source, &cause->waiting,
                    theirs ? &theirs->rec : NULL);
        g->number_of[0] = (uint32_t)(cause - own->cause);
        g->kind = zero;
        g->phase = ROLL_PHASE_FORWARD;
        g->remedy = ROLL_REMEDY_FILL;
        g->words = words_prediction;
    }
    g->several = g->several || (!fresh && !roll_rankset_equal(&g->culprits, &cause->culprits));
    gather_add(e, g, comm_find(e, cause->key), cause->step, cause->microbatch, cause->layer, &cause->culprits,
               &cause->waiting);
}

/* Backward goes through the layers from the last to the first: of several predictions for one step the last layer's
 * comes true first. */
static struct cause *first_in_backward(const struct roll_engine *e, struct cause *cause)
{
    const struct moe_obligation_engine *own = moe_obligation_of_engine(e);
    for (uint32_t i = 0; i < own->causes; i++) {
        struct cause *other = &own->cause[i];
        if (other->key == cause->key && other->step == cause->step && other->microbatch == cause->microbatch &&
            other->layer > cause->layer) {
            cause = other;
        }
    }
    return cause;
}

/* Whether the wait came before backward: the host of a rank that waits has not got further than forward of that step.
 */
static bool in_forward(const struct roll_engine *e, const struct cause *cause)
{
    const struct roll_record *last = &e->source[cause->peer_source]->last;
    return !cause->skipped && last->step == cause->step && last->phase == ROLL_PHASE_FORWARD;
}

static void came_true(struct roll_engine *e, struct cause *cause)
{
    const struct moe_obligation_engine *own = moe_obligation_of_engine(e);
    for (uint32_t i = 0; i < own->causes; i++) {
        if (own->cause[i].key == cause->key && own->cause[i].proven) {
            return;
        }
    }
    cause = first_in_backward(e, cause);
    cause->proven = true;
    gather_flush_code(e, ROLL_VERDICT_MOE_OBLIGATION);
    struct gathered *g = gather_find(e, cause->prediction);
    uint64_t predicted = g ? gather_flush(e, g) : 0;
    struct roll_verdict *v = say(e, ROLL_VERDICT_MOE_OBLIGATION, ROLL_PROVEN);
    if (!v) {
        return;
    }
    say_confirms(e, v, predicted);
    fill_verdict(e, v, cause);
    bool early = in_forward(e, cause);
    v->phase = early ? ROLL_PHASE_FORWARD : ROLL_PHASE_BACKWARD;
    struct words w = {.used = 0};
    words_add(&w, early ? "The predicted wait has come before backward: " : "The predicted wait has happened: ");
    words_wait(&w, &cause->waiting);
    words_add(&w, early ? " in forward for " : " in backward for ");
    words_ranks(&w, &cause->culprits);
    words_add(&w, early ? ", which left the exchange and would leave out " : ", which left out ");
    words_missing(&w, e, cause);
    words_add(&w, !cause->skipped                             ? " of "
                  : roll_rankset_count(&cause->culprits) == 1 ? " because it skipped its experts in "
                                                              : " because they skipped their experts in ");
    words_place(&w, cause->step, cause->microbatch, cause->layer);
    words_add(&w,
              ". For this step it is too late: remedy '%s' acts where %s. Start the job again "
              "with policy auto, or with the remedy on.",
              roll_remedy_name(ROLL_REMEDY_FILL),
              cause->skipped ? "the experts are skipped" : "a rank finds that it received nothing");
    say_text(e, v, "%s", w.text);
}

/* Communicators on which the missing calls would have been made, as far as they are known: the ep one, and the
 * culprits' own. */
static void blame(struct roll_engine *e, uint32_t at, const struct comm *ep)
{
    const struct cause *cause = &moe_obligation_of_engine(e)->cause[at];
    const struct source *culprit = e->source[cause->source];
    for (uint32_t i = 0; i < culprit->members; i++) {
        struct member *m = culprit->member[i];
        bool meant = m && (m->comm == ep || m->comm->key == cause->duty.comm_key) && !m->comm->blamed;
        struct moe_obligation_comm *own = meant ? moe_obligation_make_comm(m->comm) : NULL;
        if (own) {
            m->comm->blamed = true;
            own->cause = at;
            own->step = cause->step;
        }
    }
}

/* The same ranks may leave out the same layer again and again: one cause, told once, brought up to date. */
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
    uint32_t full = longest(ep, cell), first = 0;
    struct roll_rankset culprits = {0}, waiting = {0};
    uint32_t culprit = NO_SEQ, missing = 0;
    bool zero = false, skipped = false;
    for (uint32_t r = 0; r < ep->size; r++) {
        const struct list *list = &cell->list[r];
        uint32_t at = 0, n = list->source == NO_SOURCE ? 0 : lacks(ep, &cell->list[full], list, &at);
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
        cause->duty = cell->list[full].duty[first];
        blame(e, (uint32_t)(cause - moe_obligation_of_engine(e)->cause), ep);
        if (!cause->told) {
            cause->told = true;
            /* What is left out on one communicator in one step is one finding, whichever ranks are without tokens in
             * its layers. */
            cause->prediction = say_key(ROLL_VERDICT_MOE_OBLIGATION, cause->key, cause->step, cause->skipped);
            predict(e, cause, zero);
        }
    }
    roll_rankset_fini(&culprits);
    roll_rankset_fini(&waiting);
}

/* What was predicted of these causes is taken back, told or about to be. */
static void withdraw(struct roll_engine *e, const struct cause *cause)
{
    struct gathered *g = gather_find(e, cause->prediction);
    if (g && g->pending && g->told == 0) {
        g->pending = false;
    } else if (g && g->number != 0) {
        (void)say_withdraw(e, g->number, "all ranks have got to a later step without that wait");
    }
}

/* All members have got to a later step: what was predicted for an earlier one did not happen. */
static void forgive(struct roll_engine *e, struct comm *ep, uint32_t step)
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
    struct moe_obligation_source *duties = moe_obligation_of_source(s);
    struct moment when;
    struct moe_obligation_comm *own = meeting_moment(s, rec, &when) ? moe_obligation_make_comm(m->comm) : NULL;
    bool compared = own && !meeting_closed(&own->closed, &when);
    bool whole = (!duties && rec->count == 0) ||
                 (duties && !duties->broken && duties->used == rec->count &&
                  (duties->used == 0 || (duties->step == rec->step && duties->layer == rec->layer &&
                                         duties->microbatch == rec->microbatch)));
    if (compared && !whole) { /* its later lists would meet the wrong ones of its peers */
        give_up(m->comm, &when);
    }
    struct cell *cell = compared && whole ? cell_get(m->comm, rec, &when, (uint32_t)m->rank) : NULL;
    if (cell && cell->list[m->rank].source == NO_SOURCE) {
        struct comm *ep = m->comm;
        struct list *list = &cell->list[m->rank];
        ep->moe++;
        list->source = source;
        list->ticket = ticket;
        list->used = duties ? duties->used : 0;
        list->duty = list->used ? malloc(list->used * sizeof(*list->duty)) : NULL;
        if (list->duty) {
            memcpy(list->duty, duties->duty, list->used * sizeof(*list->duty));
        } else {
            list->used = 0;
        }
        cell->arrived++;
        uint32_t full = longest(ep, cell), at;
        for (uint32_t r = 0; r < ep->size && !cell->differ; r++) {
            if (cell->list[r].source != NO_SOURCE && lacks(ep, &cell->list[full], &cell->list[r], &at) > 0) {
                cell->differ = true;
                cell->since = e->clock;
            }
        }
        if (cell->arrived == ep->size) {
            if (cell->differ && !cell->told) {
                judge(e, ep, cell);
            }
            forgive(e, ep, cell->step);
            cell_drop(ep, cell);
        }
    }
    if (duties) {
        duties->used = 0;
        duties->broken = false;
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
    d->duty[d->used++] = (struct duty){
        .comm_key = m ? m->comm->key : 0, .count = rec->count, .op = (uint32_t)rec->peer, .callsite = rec->callsite};
}

static void obligation_tick(struct roll_engine *e)
{
    for (uint32_t i = 0; i < e->comms; i++) {
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
    came_true(e, &moe_obligation_of_engine(e)->cause[moe_obligation_of_comm(b->comm)->cause]);
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
    struct moe_obligation_source *duties = moe_obligation_of_source(e->source[source]);
    (void)count;
    if (duties) {
        duties->broken = true;
    }
}

static void obligation_comm_fini(struct comm *c)
{
    const struct moe_obligation_comm *own = moe_obligation_of_comm(c);
    while (own && own->cell) {
        cell_drop(c, own->cell);
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
