/*
 * dispatcher_kind.h: what the front (dispatcher.c) and the kinds of dispatcher share.
 *
 * The front checks arguments and state, resolves the groups and holds what every kind has; a kind fills in a table and keeps its own buffers behind `state`.
 */
#ifndef MOE_DISPATCHER_KIND_H
#define MOE_DISPATCHER_KIND_H

#include "moe_core/fail.h"
#include "moe_core/include/moe/dispatcher.h"

#pragma GCC visibility push(hidden)

/* One communicator with its size and this rank in it; one rank where comm is NULL. */
struct moe_group {
    ncclComm_t comm;
    int size, rank;
};

struct moe_dispatcher_kind_ops {
    const char *name;
    /* Allocates d->state and its buffers, sets d->max_rows; the front has resolved the groups and checked the shape. */
    int (*create)(moe_dispatcher_t *d);
    void (*destroy)(moe_dispatcher_t *d);
    int (*prepare)(moe_dispatcher_t *d, const struct moe_routing *routing, uint32_t proposed, uint32_t *agreed);
    int (*forward)(moe_dispatcher_t *d, const void *x);
    int (*combine)(moe_dispatcher_t *d, void *y);
    int (*push_dispatch)(moe_dispatcher_t *d, struct moe_plan *plan);
    int (*push_combine)(moe_dispatcher_t *d, struct moe_plan *plan);
};

struct moe_dispatcher {
    const struct moe_dispatcher_kind_ops *kind;
    moe_device_t *device;
    struct moe_dispatcher_config config;
    struct moe_group ep, etp, tp_ep, tp;
    int64_t local;              /* experts of this rank */
    int64_t max_rows;           /* of the experts' buffers */
    struct moe_routing routing; /* of the last prepare */
    struct moe_dispatch_plan plan;
    bool ready;     /* plan is valid */
    const void *dy; /* of the backward under way */
    void *dx;
    /* Device buffers [max_rows, ...] that the accessors give out; the kind fills them or points them elsewhere. */
    void *rows, *expert_out, *d_expert_out, *d_rows;
    float *row_probs, *d_row_probs;
    float *d_probs; /* [max_tokens, E] */
    int64_t *m;     /* [local] */
    void *state;    /* of the kind */
};

extern const struct moe_dispatcher_kind_ops moe_dispatcher_alltoall, moe_dispatcher_allgather, moe_dispatcher_deepep,
    moe_dispatcher_hybridep;

#define DISPATCHER_FAIL(d, code, ...) moe_fail(code, (d)->config.world_rank, (d)->config.layer, __VA_ARGS__)

#pragma GCC visibility pop

#endif
