/*
 * ref_router.h: the reference of the router: double precision, one process, a token at a time, written for clarity.
 *
 * Shares no code with the library and none with ref.c. The objective that its gradients belong to is
 *   sum over chosen and kept (t, e) of weight[t, e] * pull[t, e]  +  loss_scale * the sum of the auxiliary losses.
 */
#ifndef MOE_CORE_REFERENCE_REF_ROUTER_H
#define MOE_CORE_REFERENCE_REF_ROUTER_H

#include "moe_core/include/moe/router.h"

#include <stdint.h>

struct moe_ref_router {
    struct moe_router_config config; /* the groups in it are not read */
    int64_t ranks;                   /* of `balance`: divides the z loss */
    const double *gate, *gate_bias, *expert_bias;
    /*
     * Counts over the groups, as the library has them after its sums; NULL: the counts of these tokens. [E],
     * [sequences, E], and [E] over `microbatches`.
     */
    const int64_t *balance_counts, *sequence_counts, *global_counts;
    int64_t microbatches;
    const int32_t *choice; /* [T,k]: the experts to use, -1: none; NULL: the k best */
    const int32_t *kept;   /* [T,k], read with `choice`: the same after dropping, -1 where dropped; NULL: as the options
                              say */
};

/* The reference's results for T tokens; the caller owns the arrays, and each may be NULL. */
struct moe_ref_routing {
    int32_t *index; /* [T,k]: -1 where dropped */
    int32_t *all;   /* [T,k]: before anything was dropped */
    double *probs;  /* [T,E] */
    int64_t *counts;
    double losses[MOE_LOSSES];
    /*
     * With a given choice: how far it is from the best one. Of all tokens the largest of (sum of what the k best are
     * chosen by - the same of those given) / sum of the absolute values of the k best; 0: nothing is better. Without
     * one: 0.
     */
    double regret;
};

/* Routes T tokens. Returns 0, or -1 when there is not enough memory. */
int moe_ref_router_forward(const struct moe_ref_router *ref, int64_t tokens, const double *x,
                           struct moe_ref_routing *out);

/*
 * The objective at the head of this file. The choice is made anew from the present numbers, unless `fixed` gives it
 * (index and all, of the same tokens).
 */
double moe_ref_router_objective(const struct moe_ref_router *ref, int64_t tokens, const double *x, const double *pull,
                                double loss_scale, const struct moe_ref_routing *fixed);

/* Gradients, added to arrays of the caller, each of which may be NULL: dx [T,H], gate [E,H], gate_bias [E]. */
struct moe_ref_router_grads {
    double *dx, *gate, *gate_bias;
};

/*
 * Adds the objective's gradients by formula, with pull = d_probs [T,E] and the index and all of a forward. Returns 0,
 * or -1 when there is not enough memory.
 */
int moe_ref_router_backward(const struct moe_ref_router *ref, int64_t tokens, const double *x,
                            const struct moe_ref_routing *routing, const double *d_probs, double loss_scale,
                            const struct moe_ref_router_grads *grads);

#endif
