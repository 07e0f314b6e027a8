/*
 * dispatch_data.c: the model and the tokens of each rank, which the ranks and the reference make alike.
 */
#include "tests/moe_core/dispatch_inside.h"

int dr_ranks(const struct dr_case *c)
{
    return c->etp * c->ep;
}

int64_t dr_local(const struct dr_case *c)
{
    return c->local > 0 ? c->local : DR_LOCAL;
}

int64_t dr_experts(const struct dr_case *c)
{
    return c->ep * dr_local(c);
}

void dr_describe(const struct dr_case *c, char *text, size_t room)
{
    snprintf(text, room, "%s etp %d ep %d empty %x%s%s%s", moe_dispatcher_name(c->kind), c->etp, c->ep, c->empty,
             c->travel ? " travel" : "", c->masked || c->mute ? " masked" : "",
             c->tokens == DR_EQUAL ? "" : " different T");
}

double dr_eighth(uint64_t *state)
{
    return (double)(int)(support_random(state) * 8) / 8;
}

static int64_t tokens_of(const struct dr_case *c, int rank)
{
    switch (c->tokens) {
    case DR_DIFFERENT:
        return 3 + rank % 4;
    case DR_ONE_WITHOUT:
        return rank == dr_ranks(c) - 1 ? 0 : 3 + rank % 4;
    case DR_SINGLE:
        return rank == 0 ? 1 : rank % 2 == 0 ? 0 : 4;
    default:
        return 4;
    }
}

/* Drop-and-pad: choices beyond the capacity go, in token order; every expert has as many rows as the capacity. */
static void drop(const struct dr_case *c, struct dr_data *d)
{
    int64_t used[DR_EXPERTS] = {0};
    for (int64_t i = 0; i < d->tokens * DR_TOPK; i++) {
        int32_t e = d->index[i];
        if (e >= 0 && ++used[e] > c->capacity) {
            d->probs[i / DR_TOPK * dr_experts(c) + e] = 0;
            d->index[i] = -1;
        }
    }
    for (int64_t e = 0; e < dr_experts(c); e++) {
        d->counts[e] = c->capacity;
    }
}

void dr_make_data(const struct dr_case *c, int rank, struct dr_data *d)
{
    uint64_t weights = 5, tokens = 100 + (uint64_t)rank;
    int64_t experts = dr_experts(c);
    int32_t allowed[DR_EXPERTS], n = 0;
    memset(d, 0, sizeof(*d));
    for (int32_t e = 0; e < experts; e++) {
        if ((c->empty >> (e / dr_local(c)) & 1) == 0 && (c->unchosen >> e & 1) == 0) {
            allowed[n++] = e;
        }
    }
    d->tokens = tokens_of(c, rank);
    for (int64_t i = 0; i < experts * DR_HIDDEN * DR_HIDDEN; i++) {
        d->w[i] = dr_eighth(&weights);
    }
    for (int64_t i = 0; i < d->tokens * DR_HIDDEN; i++) {
        d->x[i] = dr_eighth(&tokens);
        d->dy[i] = dr_eighth(&tokens);
    }
    for (int64_t t = 0; t < d->tokens; t++) {
        for (int32_t j = 0; j < DR_TOPK; j++) {
            bool masked = (c->mute >> rank & 1) != 0 || ((c->masked >> rank & 1) != 0 && (t + j) % 3 == 2);
            bool chosen = j < n && !masked;
            int32_t e = chosen ? allowed[(rank * 5 + t * 3 + j) % n] : -1;
            d->index[t * DR_TOPK + j] = e;
            if (chosen) {
                d->probs[t * experts + e] = 0.25 + 0.5 * fabs(dr_eighth(&tokens));
                d->counts[e]++;
            }
        }
    }
    if (c->capacity > 0) {
        drop(c, d);
    }
    if (c->spoil_counts && rank == 0) {
        d->counts[0] = -1;
    }
}

int64_t dr_rows_for(const struct dr_case *c, int r, int p, enum dr_each each)
{
    struct dr_data *d = malloc(sizeof(*d));
    int64_t rows = 0;
    assert_non_null(d);
    dr_make_data(c, r, d);
    for (int64_t t = 0; t < d->tokens; t++) {
        int64_t chosen = 0;
        for (int32_t j = 0; j < DR_TOPK; j++) {
            int32_t e = d->index[t * DR_TOPK + j];
            chosen += e >= 0 && e / dr_local(c) == p;
        }
        rows += each == DR_BY_CHOICE ? chosen : chosen > 0;
    }
    free(d);
    return rows;
}
