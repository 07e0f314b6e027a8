/*
 * obligation_list.c: the lists of all members for one step, microbatch and layer. They are kept side by side until all
 * have come, within a bound, and compared.
 */
#include "daemon/engine/detect/obligation.h"

#include <stdlib.h>

#define CELLS_MAX 64u

static void cell_free(const struct comm *c, struct cell **cell)
{
    for (uint32_t r = 0; (*cell)->list && r < c->size; r++) {
        free((*cell)->list[r].obligation);
    }
    free((*cell)->list);
    free(*cell);
    *cell = NULL;
}

void obligation_cell_drop(struct comm *c, struct cell *cell)
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

void obligation_give_up(struct comm *c, const struct moment *step)
{
    struct moe_obligation_comm *own = moe_obligation_of_comm(c);
    struct cell *next;
    compare_close(&own->closed, step);
    for (struct cell *cell = own->cell; cell; cell = next) {
        next = cell->next;
        if (compare_closed(&own->closed, &cell->at)) {
            obligation_cell_drop(c, cell);
        }
    }
}

/* The oldest cell to which the member has not added a list yet. *last: the oldest cell of all; NULL while there is room
 * for another one. */
static struct cell *cell_find(const struct comm *c, const struct roll_record *rec, const struct moment *at,
                              uint32_t rank, const struct cell **last)
{
    struct cell *oldest = NULL;
    uint32_t count = 0;
    *last = NULL;
    /* The list holds the newest first. */
    for (struct cell *cell = moe_obligation_of_comm(c)->cell; cell; cell = cell->next) {
        bool same = cell->at.turn == at->turn && cell->step == at->step && cell->microbatch == rec->microbatch &&
                    cell->layer == rec->layer;
        oldest = same && cell->list[rank].source == NO_SOURCE ? cell : oldest;
        *last = ++count >= CELLS_MAX ? cell : NULL;
    }
    return oldest;
}

struct cell *obligation_cell_get(struct comm *c, const struct roll_record *rec, const struct moment *at, uint32_t rank)
{
    struct moe_obligation_comm *own = moe_obligation_of_comm(c);
    const struct cell *last;
    struct cell *cell = cell_find(c, rec, at, rank, &last);
    if (cell) {
        return cell;
    }
    if (last) { /* the oldest step is given up */
        struct moment oldest = last->at;
        obligation_give_up(c, &oldest);
    }
    if (compare_closed(&own->closed, at)) {
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

static bool same_obligation(const struct comm *ep, const struct obligation *a, const struct obligation *b)
{
    return a->op == b->op && (a->comm_key == ep->key) == (b->comm_key == ep->key);
}

uint32_t obligation_lacks(const struct comm *ep, const struct list *full, const struct list *other, uint32_t *first)
{
    uint32_t missing = 0, k = 0;
    for (uint32_t i = 0; i < full->used; i++) {
        if (k < other->used && same_obligation(ep, &full->obligation[i], &other->obligation[k])) {
            k++;
        } else {
            *first = missing == 0 ? i : *first;
            missing++;
        }
    }
    return missing;
}

uint32_t obligation_longest(const struct comm *c, const struct cell *cell)
{
    uint32_t best = NO_SEQ;
    for (uint32_t r = 0; r < c->size; r++) {
        if (cell->list[r].source != NO_SOURCE && (best == NO_SEQ || cell->list[r].used > cell->list[best].used)) {
            best = r;
        }
    }
    return best;
}
