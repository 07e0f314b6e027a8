/*
 * router.h: which experts a token goes to, and with what weight.
 *
 * Gate: logits = x gate^T (+ gate_bias). Scores s of all experts, then the k largest, ties to the lowest index (so that
 * a recomputed forward routes alike, hazard H9):
 *
 *   score         s                  chosen by                       weight of the chosen
 *   softmax       softmax(l), all E  s + expert_bias                 s; renormalise: s / sum of the chosen
 *     after       softmax(l), all E  l + expert_bias                 softmax over the k chosen logits
 *   sigmoid       sigmoid(l)         s + expert_bias                 s; renormalise and k > 1: s / (sum + 1e-20)
 *   sqrtsoftplus  sqrt(softplus(l))  s + expert_bias                 as sigmoid
 *
 * expert_bias never enters a weight. `groups` cuts the experts into that many equal parts, of which only `group_topk`
 * stay: those whose k / group_topk best scores have the greatest sums. Weights are multiplied by `scale` last. Sources:
 * Megatron-LM router.py and moe_utils.py; TransformerEngine fused_router.h; torchtitan moe.py (route_norm).
 */
#ifndef MOE_ROUTER_H
#define MOE_ROUTER_H

#include "device.h"
#include "dtype.h"

#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_router moe_router_t;

enum moe_score { MOE_SCORE_SOFTMAX = 0, MOE_SCORE_SIGMOID = 1, MOE_SCORE_SQRTSOFTPLUS = 2 };

/* The auxiliary losses, in the order of moe_router_losses; the table is at struct moe_router_options. */
enum moe_loss { MOE_LOSS_SWITCH, MOE_LOSS_SEQUENCE, MOE_LOSS_GLOBAL, MOE_LOSS_Z, MOE_LOSSES };

/*
 * How to route. All zero: softmax over all experts, no limits, no losses.
 *
 * The losses use c[i], the tokens that chose expert i; P[i], the sum of p over this rank's tokens (p = s; for sigmoid
 * and sqrtsoftplus s / sum of s); and N, the tokens that c counts, at least 1:
 *
 *   switch    coeff E / (k N^2) sum_i P[i] c[i]; c over the group `balance`
 *   sequence  the same for each sequence, divided by the number of sequences; token t belongs to sequence t mod
 * sequences (layout [s, b]) global    as switch, with c the mean over the microbatches since moe_router_global_reset,
 * over the group `global` z         coeff / ranks of `balance` * mean of logsumexp(l)^2
 *
 * The losses of the ranks of a group add up to the group's loss. Source: Megatron-LM moe_utils.py
 * (switch_load_balancing_loss_func, z_loss_func).
 */
struct moe_router_options {
    enum moe_score score;
    bool after; /* softmax only: over the chosen logits */
    bool gate_bias;
    bool expert_bias;
    int32_t groups, group_topk; /* 0 or 1 group: no limit */
    float scale;                /* 0 means 1 */
    /*
     * An expert takes at most ceil(T k / E * capacity_factor) tokens of this rank; 0: all. The choices of greatest
     * weight stay, or with by_position those that come first. Dropped choices have index -1 and weight 0; the other
     * weights are not renormalised. With pad_to_capacity, counts give the capacity for every expert, and the rows that
     * no token fills are zero.
     */
    float capacity_factor;
    bool by_position, pad_to_capacity;
    float coeff[MOE_LOSSES];
    int64_t sequences; /* 0 means 1 */
    /*
     * The type of the gate and of its bias: float32 (0), bfloat16 or float16. Narrow ones are widened in each forward:
     * logits, scores and weights are float32 always, as are the gradients (Megatron-LM moe_router_dtype fp32 over a
     * model in bfloat16).
     */
    enum moe_dtype gate_type;
};

struct moe_router_config {
    int64_t max_tokens, hidden, experts;
    int32_t topk;
    bool renormalise;
    struct moe_router_options options;
    ncclComm_t balance; /* borrowed; tp x cp: the counts of switch and sequence are summed over this group; NULL: this
                           rank alone */
    ncclComm_t
        global; /* borrowed; tp x dp x cp: the counts of global are summed over this group; NULL: this rank alone */
};

/* Device memory that the caller owns; the biases may be NULL where the options do not ask for them. */
struct moe_router_weights {
    const void *gate;         /* [E,H], gate_type */
    const void *gate_bias;    /* [E], gate_type */
    const float *expert_bias; /* [E], float32 always */
};

/*
 * Fills all of *config but max_tokens, hidden and the groups, with the numbers of a model's published configuration:
 * "mixtral" (8x7B), "deepseek-v3", "qwen3-moe" (235B-A22B), "gpt-oss" (120b). Any thread. Errors: ARG (unknown name).
 */
int moe_router_preset(const char *name, struct moe_router_config *config);

/*
 * Makes a router. *out is owned by the caller; borrows device and the groups. All functions of a router: one thread at
 * a time. Errors: NOMEM, SHAPE (k < 1, k > E, groups that do not divide E, too few experts in the groups that stay),
 * ARG (a factor or coefficient that is negative or not finite, `after` without softmax, a gate of another type), COMM.
 */
int moe_router_new(moe_device_t *device, const struct moe_router_config *config, moe_router_t **out);
/*
 * Makes a router for another microbatch of the same layer, in flight beside those of `first`: with the configuration of
 * `first`, state of its own from forward to backward, and in common with it what a step counts (for the expert bias and
 * the global loss), the loss scale and the switch of counting, whichever of the two is asked. `first` is borrowed and
 * outlives it. Errors: NOMEM.
 */
int moe_router_new_beside(moe_router_t *first, moe_router_t **out);
/* Frees the router and clears the pointer. NULL is allowed. */
void moe_router_destroy(moe_router_t **router);

/*
 * Routes x [T,H]; T may be 0. Borrows x and weights until backward has run. Issues, in this order and only where the
 * coefficient is not zero, AllReduce (sum, int64) of [E] and [sequences, E] on `balance` and of [E] on `global`.
 * Errors: SHAPE (T > max_tokens, T no multiple of sequences), ARG (a bias is missing), COMM; in the stream: NAN (a
 * score is not finite, so no weight can be computed; the choice is still k distinct experts).
 */
int moe_router_forward(moe_router_t *router, const float *x, const struct moe_router_weights *weights, int64_t tokens);

/*
 * Takes the place of forward on a rank that has no memory to go on: issues the collectives that forward would issue, as
 * a rank that chose nothing, so that no peer waits for it. `begun`: moe_router_forward was called and failed; what it
 * has issued is left out. The tokens of the others count, as in a forward; no backward follows. Errors: COMM, DEVICE.
 */
int moe_router_decline(moe_router_t *router, bool begun);

/*
 * The experts chosen in the last forward: [T,k] on the device, -1: dropped. Borrowed until the next forward, as the
 * four below.
 */
const int32_t *moe_router_index(const moe_router_t *router);
/* The same before anything was dropped. */
const int32_t *moe_router_choice(const moe_router_t *router);
/* The weights of the last forward: [T,E] on the device, 0 where not chosen. */
const float *moe_router_probs(const moe_router_t *router);
/* The rows for each expert in the last forward: [E] on the device. */
const int64_t *moe_router_counts(const moe_router_t *router);
/* This rank's share of the losses of the last forward, before the loss scale: [MOE_LOSSES] on the device. */
const float *moe_router_losses(const moe_router_t *router);

/*
 * The most tokens that one expert takes from T tokens of this rank: at most T k, which is also the answer without a
 * capacity. The factor is taken as the decimal number that was written (1.2, not the float beside it): ceil(10 * 1.2)
 * is 12, as in a framework that computes in double. Any thread.
 */
int64_t moe_router_capacity(const struct moe_router_config *config, int64_t tokens);

/*
 * Sets the factor of the gradients of the auxiliary losses: the loss scaler's scale over the number of microbatches; 1
 * by default. Read by each backward: set it before the first backward of a step, to what the upstream gradients are
 * scaled by. A scale that is too large makes infinities or NaNs in the gradients, which are never hidden; to look for
 * them, on all ranks together, and to skip the step is the caller's (hazard H18).
 */
void moe_router_set_loss_scale(moe_router_t *router, float scale);

/*
 * From d_probs [T,E], adds to dx [T,H], d_gate [E,H] and d_gate_bias [E]. A gradient that is NULL is not computed: the
 * gate or its bias is frozen, or there is no bias; dx is as ever. Every chosen (token, expert) counts; the rest of
 * d_probs is ignored. The auxiliary losses add their gradients. Errors: STATE before any forward.
 */
int moe_router_backward(moe_router_t *router, const float *d_probs, float *dx, float *d_gate, float *d_gate_bias);

/*
 * Says whether the next forwards count for the expert bias and the global loss; they do by default. Switch it off for
 * evaluation and for recomputed forwards, which would count their tokens twice.
 */
void moe_router_set_counting(moe_router_t *router, bool counting);
/* Whether forwards count now. */
bool moe_router_counting(const moe_router_t *router);

/* Begins the mean of the global loss anew. Errors: DEVICE. */
int moe_router_global_reset(moe_router_t *router);

/*
 * Loss-free balancing. For each of the n routers (same E, same device): bias[i] += rate * sign(mean(c) - c[i]), where c
 * are the tokens counted since the last update, summed as integers over comm in one AllReduce of [n, E] int64; then c
 * is 0. bias[i]: device [E]. The sign is computed from integers (E c[i] against their sum), so it is the same on every
 * rank and never wrong by rounding (Megatron-LM #7081, hazard H16). Errors: ARG, NOMEM, COMM, DEVICE.
 */
int moe_router_update_bias(moe_router_t *const *routers, float *const *bias, int32_t n, ncclComm_t comm, float rate);

#ifdef __cplusplus
}
#endif
#endif
