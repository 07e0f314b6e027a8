/*
 * ref_router.h: the reference of the router: double precision, one process, a token at a time, written for clarity.
 *
 * Shares no code with the library and none with ref.c. The objective that its gradients belong to is
 *   sum over chosen and kept (t, e) of weight[t, e] * pull[t, e]  +  loss_scale * the sum of the auxiliary losses.
 */
#ifndef MOE_REF_ROUTER_H
#define MOE_REF_ROUTER_H

#include "moe_core/include/moe/router.h"

#include <stdint.h>

struct moe_ref_router {
    struct moe_router_config config; /* the groups are not read */
    int64_t ranks;                   /* of `balance`: divides the z loss */
    const double *gate, *gate_bias, *expert_bias;
    /* Counts over the groups, as the library would have after its sums; NULL: those of these tokens. [E], [sequences,
     * E], [E] over `microbatches`. */
    const int64_t *balance_counts, *sequence_counts, *global_counts;
    int64_t microbatches;
    const int32_t *choice; /* [T,k]: these instead of the k best; -1: nobody. NULL: the k best */
};

/* What the reference says of T tokens; arrays of the caller, each may be NULL. */
struct moe_ref_routing {
    int32_t *index; /* [T,k]: -1 where dropped */
    int32_t *all;   /* [T,k]: before anything was dropped */
    double *probs;  /* [T,E] */
    int64_t *counts;
    double losses[MOE_LOSSES];
};

/* 0, or -1 when memory is short. */
int moe_ref_router_forward(const struct moe_ref_router *ref, int64_t tokens, const double *x,
                           struct moe_ref_routing *out);

/* The objective above. The choice is made anew from the present numbers, unless `fixed` gives it (index and all, of the
 * same tokens). */
double moe_ref_router_objective(const struct moe_ref_router *ref, int64_t tokens, const double *x, const double *pull,
                                double loss_scale, const struct moe_ref_routing *fixed);

/* Arrays of the caller that are added to; each may be NULL. dx [T,H], gate [E,H], gate_bias [E]. */
struct moe_ref_router_grads {
    double *dx, *gate, *gate_bias;
};

/* The objective's gradients by formula, with pull = d_probs [T,E] and the index and all of a forward. 0, or -1 when
 * memory is short. */
int moe_ref_router_backward(const struct moe_ref_router *ref, int64_t tokens, const double *x,
                            const struct moe_ref_routing *routing, const double *d_probs, double loss_scale,
                            const struct moe_ref_router_grads *grads);

#endif
