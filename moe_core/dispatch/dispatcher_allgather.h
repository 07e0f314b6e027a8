/*
 * dispatcher_allgather.h: what the files of the AllGather dispatcher share: dispatcher_allgather.c (order, forward,
 * life), dispatcher_allgather_plan.c (the exchange and what follows from it), dispatcher_allgather_back.c (backward).
 */
#ifndef MOE_CORE_DISPATCH_DISPATCHER_ALLGATHER_H
#define MOE_CORE_DISPATCH_DISPATCHER_ALLGATHER_H

#include "moe_core/dispatch/dispatcher_kind.h"
#include "moe_core/include/moe/ep_buffer.h"
#include "moe_core/include/moe/permute.h"
#include "moe_core/include/moe/uneven.h"

#pragma GCC visibility push(hidden)

struct allgather {
    moe_uneven_group_t *uneven;
    moe_ep_buffer_t *opened;       /* the room of the group's exchange; NULL: `uneven` is configured */
    moe_ep_buffer_t *first;        /* the group's exchange, for the first agreement; NULL likewise */
    uint32_t agreed;               /* the remedies agreed in the previous exchange, then those of this one */
    int64_t most, padded;          /* the largest possible T_pad; T_pad of this forward */
    int64_t mapped;                /* T_pad of the routing maps: a remedy pads them before anybody knows all T */
    int64_t numbers;               /* int64 numbers per rank in `counts` */
    bool no_unpermute, no_input;   /* legacy behaviours of this forward */
    int64_t *counts, *host_counts; /* device and pinned [ranks, numbers]: dispatcher_flex's layout of a routing map */
    int64_t *host_mask, *host_m;   /* pinned [1], [local] */
    moe_row_map_t *map;            /* from the tokens of all ranks to this rank's rows */
    moe_ep_buffer_t *area;         /* holds the routing maps: [mapped E + 8] of this rank, and of every rank */
    /* What the pool gives, while it holds something. */
    float *own_probs, *all_probs; /* [T_pad,E] of this rank, and of every rank; their gradients in backward */
    uint8_t *map_here;            /* [T_pad x ranks, local]: the columns of this rank's experts */
    float *probs_here, *d_probs_here;
    void *own_rows, *all_rows;  /* [T_pad,H] of this rank, and of every rank, in the rows' type */
    float *own_wide, *all_wide; /* own_rows and all_rows in float32, where that is not the rows' type */
};

static inline struct allgather *moe_allgather_of(const moe_dispatcher_t *d)
{
    return d->state;
}

static inline bool moe_allgather_alone(const moe_dispatcher_t *d)
{
    return d->tp_ep.size == 1;
}

static inline size_t moe_allgather_row_bytes(const moe_dispatcher_t *d)
{
    return (size_t)d->config.hidden * moe_dtype_bytes(d->config.type);
}

static inline struct moe_collective moe_allgather_over(const moe_dispatcher_t *d, const char *what, ncclDataType_t type,
                                                       int64_t width)
{
    return moe_dispatcher_collective(d, &d->tp_ep, what, type, width);
}

static inline struct moe_movement moe_allgather_movement(const moe_dispatcher_t *d)
{
    return (struct moe_movement){.kind = MOE_MAP_MASK,
                                 .type = d->config.type,
                                 .tokens = moe_allgather_of(d)->padded * d->tp_ep.size,
                                 .rows = d->plan.received,
                                 .hidden = d->config.hidden};
}

/* Takes memory for T_pad tokens of `ranks` ranks: `width` numbers each; rows in the rows' type, or in float32. */

static inline int moe_allgather_take_probs(moe_dispatcher_t *d, int64_t ranks, int64_t width, float **at)
{
    return moe_dispatcher_take(d, (size_t)(ranks * moe_allgather_of(d)->padded * width) * sizeof(float), at);
}

static inline int moe_allgather_take_rows(moe_dispatcher_t *d, int64_t ranks, void **at)
{
    return moe_dispatcher_take_rows(d, ranks * moe_allgather_of(d)->padded, at);
}

static inline int moe_allgather_take_wide(moe_dispatcher_t *d, int64_t ranks, float **at)
{
    return moe_allgather_take_probs(d, ranks, d->config.hidden, at);
}

static inline int moe_allgather_take_d_probs(moe_dispatcher_t *d)
{
    return moe_dispatcher_take(d, (size_t)(d->routing.tokens * d->config.experts) * sizeof(float), &d->d_probs);
}

/* The bytes of the area for routing maps: for the largest T_pad. */
size_t moe_allgather_area_bytes(const moe_dispatcher_t *d);
/* Copies `rows` lines of `width` bytes that lie `from_pitch` and `to_pitch` bytes apart. */
int moe_allgather_columns(moe_dispatcher_t *d, void *to, size_t to_pitch, const void *from, size_t from_pitch,
                          size_t width, int64_t rows);
/* Gives this rank's rows as the collectives take them: T_pad of them. */
int moe_allgather_padded(moe_dispatcher_t *d, const void *rows, const void **out);
int moe_allgather_cast(moe_dispatcher_t *d, const void *from, enum moe_dtype from_type, void *to,
                       enum moe_dtype to_type, int64_t rows);

/* The functions of the table. */
int moe_allgather_prepare(moe_dispatcher_t *d, uint32_t proposed, uint32_t *agreed);
void moe_allgather_decline(moe_dispatcher_t *d);
void moe_allgather_release(moe_dispatcher_t *d);
int moe_allgather_push_dispatch(moe_dispatcher_t *d, struct moe_plan *plan);
int moe_allgather_push_combine(moe_dispatcher_t *d, struct moe_plan *plan);

#pragma GCC visibility pop

#endif
