/*
 * dispatcher_hybridep.h: what the files of the dispatcher in HybridEP's style share: dispatcher_hybridep.c (memory,
 * exchange, order) and dispatcher_hybridep_said.c (what ranks said in layer-forwards before).
 */
#ifndef MOE_CORE_DISPATCH_DISPATCHER_HYBRIDEP_H
#define MOE_CORE_DISPATCH_DISPATCHER_HYBRIDEP_H

#include "moe_core/dispatch/dispatcher_flex.h"

#pragma GCC visibility push(hidden)

/* What all ranks said in a layer-forward, on its way to the host. */
struct moe_hybridep_said {
    int64_t *host;    /* pinned [ranks, numbers] */
    cudaEvent_t read; /* with a budget: reached when `host` holds the numbers */
    bool pending;     /* the event was recorded, and nobody has compared what ranks must give alike */
};

/* With a budget: the last layer-forward's, the one's before, and that of captured forwards, which nobody reads. */
enum { MOE_HYBRIDEP_TURNS = 2, MOE_HYBRIDEP_CAPTURED = MOE_HYBRIDEP_TURNS, MOE_HYBRIDEP_SAID = MOE_HYBRIDEP_TURNS + 1 };

struct hybridep {
    struct moe_flex flex; /* first: dispatcher_flex.h */
    struct moe_uneven_group *uneven;
    moe_ep_buffer_t *area;                            /* without a budget: holds `map` and `maps` */
    int64_t map_row;                                  /* bytes of a token's line in the routing map */
    int64_t *own;                                     /* device [numbers] */
    uint8_t *map;                                     /* device [T_pad * map_row + 8]: this rank's metadata */
    uint8_t *maps;                                    /* device [ranks, T_pad * map_row + 8] */
    int64_t *counts;                                  /* device [ranks, numbers] */
    struct moe_hybridep_said said[MOE_HYBRIDEP_SAID]; /* without a budget only the first */
    int turn;                                         /* which of them is the last layer-forward's */
    uint32_t proposed;                                /* remedies that this rank proposed in the last layer-forward */
    uint32_t agreed;       /* remedies agreed in the last layer-forward as far as known, for UNEVEN and BOUND */
    int64_t *dropped;      /* device [1] */
    int64_t *host_dropped; /* pinned [1] */
};

static inline bool moe_hybridep_has_budget(const moe_dispatcher_t *d)
{
    return d->config.row_budget > 0 || d->config.budget_factor > 0.0f;
}

/*
 * With a budget, where only the device knew: reads what was agreed on in the last layer-forward, if this rank proposed
 * something, and compares what ranks gave in the one before. Errors: ARG (they differ), DEVICE.
 */
int moe_hybridep_read_agreed(moe_dispatcher_t *d, struct hybridep *s, bool capturing);
/*
 * What was agreed on in the last layer-forward of the dispatcher that this one follows, as that one will read it. It is
 * not compared here: that one does it. Errors: DEVICE; none without a budget.
 */
int moe_hybridep_read_followed(moe_dispatcher_t *d, struct hybridep *s, bool capturing);

#pragma GCC visibility pop

#endif
