/*
 * host_walk.h: the tokens of a checked map one after the other, looked up some tokens before their turn.
 */
#ifndef MOE_CORE_HOST_HOST_WALK_H
#define MOE_CORE_HOST_HOST_WALK_H

#include "moe_core/host/host_map.h"

#pragma GCC visibility push(hidden)

enum { MOE_WALK_AHEAD = 8, MOE_WALK_RING = 16 }; /* tokens; the ring has room for those between, and two more */

/* One row of a token. */
struct moe_host_stop {
    int64_t row, cell; /* cell: the index of its probability, in the layout of the walk */
};

/* A walk belongs to one thread; several may go over one map. */
struct moe_host_walk {
    const struct moe_host_map *map;
    enum moe_prob_layout layout;
    const float *by_cell, *by_row; /* asked for when a token is looked up: [cell], [row]; each may be NULL */
    int64_t end, looked;           /* the tokens below `looked` have been looked up */
    struct moe_host_place *place;  /* [most] */
    struct moe_host_stop *stop;    /* [MOE_WALK_RING][most] */
    int64_t n[MOE_WALK_RING];
};

/* *out holds memory until closed; borrows map. by_cell and by_row are NULL, for the caller to set. Errors: NOMEM. */
int moe_host_walk_open(const struct moe_host_map *map, enum moe_prob_layout layout, struct moe_host_walk *out);
void moe_host_walk_close(struct moe_host_walk *walk);
/* The next token asked for will be `first`; none from `end` on is. */
void moe_host_walk_begin(struct moe_host_walk *walk, int64_t first, int64_t end);
/*
 * The rows of token t, highest first, borrowed until token t + 2 is asked for; returns their number, 0 from `end` on.
 * Tokens are asked for in order; the last one and the one before may be asked for again.
 */
int64_t moe_host_walk_token(struct moe_host_walk *walk, int64_t t, const struct moe_host_stop **out);

#pragma GCC visibility pop

#endif
