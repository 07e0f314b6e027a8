/*
 * host_walk.h: the tokens of a checked map one after the other, with what lies apart from their rows asked for before
 * their turn.
 */
#ifndef MOE_CORE_HOST_HOST_WALK_H
#define MOE_CORE_HOST_HOST_WALK_H

#include "moe_core/host/host_map.h"

#pragma GCC visibility push(hidden)

enum { MOE_WALK_AHEAD = 8 }; /* tokens */

/* A walk belongs to one thread; several may go over one map. */
struct moe_host_walk {
    const struct moe_host_map *map;
    const float *by_cell, *by_row; /* asked for some tokens before their turn: [cell], [row]; each may be NULL */
    int64_t columns;               /* probabilities of a token */
    int64_t end, asked;            /* what the tokens below `asked` need has been asked for */
};

/* The next token asked for will be `first`; none from `end` on is. Borrows map, by_cell and by_row. */
void moe_host_walk_begin(struct moe_host_walk *walk, const struct moe_host_map *map, enum moe_prob_layout layout,
                         int64_t first, int64_t end);
/*
 * The rows of token t, highest first, borrowed until the map is closed; returns their number, 0 from `end` on. Tokens
 * are asked for in order; one may be asked for again.
 */
int64_t moe_host_walk_token(struct moe_host_walk *walk, int64_t t, const struct moe_host_stop **out);

/* The index of the probability of a row of token t. */
static inline int64_t moe_host_cell(const struct moe_host_walk *walk, int64_t t, const struct moe_host_stop *stop)
{
    return t * walk->columns + stop->column;
}

#pragma GCC visibility pop

#endif
