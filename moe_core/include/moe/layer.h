/*
 * layer.h: one MoE layer: route, dispatch, experts, combine, shared expert; forward and backward.
 *
 * Reports to moe_observe and asks moe_remedies as observe.h says. A rank that receives no rows walks its whole plan
 * like any other. Wrong behaviour of frameworks is had by members called `legacy_...`, each with the remedy that cures
 * it; all off by default. A zero in a member of the configuration is the plain layer: all-to-all over ep, float32,
 * SwiGLU, no biases, no shared expert.
 */
#ifndef MOE_LAYER_H
#define MOE_LAYER_H

#include "device.h"
#include "dispatcher.h"
#include "dtype.h"
#include "experts.h"
#include "remedy.h"
#include "router.h"
#include "shared.h"

#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_layer moe_layer_t;
struct moe_facts; /* facts.h */

/*
 * What the layer is given under tensor parallelism (groups.tp, P ranks), and what it leaves to the boundary around it
 * (torchtitan #2416; Megatron-LM sequence parallelism):
 *
 *   mode            x                     here                                       y, dx router's gradient before the
 * sum SEQUENCE        [T,H], own tokens     the dispatcher's groups do it              whole, of the own tokens    of
 * the own tokens SPLIT_TOKENS    [T,H], the same all   tokens rank T/P .. (rank+1) T/P only       summands of those
 * tokens SHARD_EXPERTS   [T,H], the same all   all tokens, F/P columns of each expert     summands of this part of each
 * output
 *
 * The router's gradient is a summand in all three: it is summed over tp exactly once.
 */
enum moe_tp_mode { MOE_TP_SEQUENCE = 0, MOE_TP_SPLIT_TOKENS = 1, MOE_TP_SHARD_EXPERTS = 2 };

/* Who sums the router's gradient (and the other gradient that is a summand: the shared expert's gate; shared.h) over
 * tp. */
enum moe_router_sum {
    MOE_ROUTER_SUM_LAYER = 0,  /* the layer, in each backward: one AllReduce on tp, an obligation of the plan */
    MOE_ROUTER_SUM_CALLER = 1, /* the caller, or whoever declares it with moe_layer_declare_router_sum */
};

struct moe_options {
    bool legacy_skip_empty; /* H1: a rank without rows skips its experts and is detached; cures: FILL, DUMMY, PAD */
    bool legacy_wgrad_uninitialised; /* H14: weight gradients go through memory in which experts without rows leave what
                                        was there; cure: ZERO_WGRAD */
    bool legacy_recompute_flip;  /* H9: in recompute the first token's last choice falls on another rank's expert; cure:
                                    ROUTING */
    bool legacy_router_unsummed; /* H15: nobody sums the router's gradient over tp; cure: ROUTER_SUM */
    bool legacy_router_summed_twice;         /* its twin: summed twice, too large by P; no remedy */
    struct moe_dispatcher_legacy dispatcher; /* H4, H5, H6, H12 (cure: SPLITS), H13, H14 (cure: SANITIZE) */
    bool keep_routing;                       /* recompute uses the forward's routing: remedy ROUTING without a tool */
    bool sanitize;                           /* remedy SANITIZE without a tool */
};

/* A parameter's gradient, as `ready` names it. */
enum moe_layer_parameter {
    MOE_LAYER_GATE,
    MOE_LAYER_GATE_BIAS,
    MOE_LAYER_W1,
    MOE_LAYER_B1,
    MOE_LAYER_W2,
    MOE_LAYER_B2,
    MOE_LAYER_SHARED_W1,
    MOE_LAYER_SHARED_B1,
    MOE_LAYER_SHARED_W2,
    MOE_LAYER_SHARED_B2,
    MOE_LAYER_SHARED_GATE,
    MOE_LAYER_PARAMETERS
};

struct moe_layer_config {
    uint32_t layer;               /* from 0, for reports and messages */
    int32_t world_rank;           /* for messages */
    int64_t max_tokens;           /* T of x at most, on this rank; all ranks of the groups must use the same */
    int64_t hidden, ffn, experts; /* ffn: the whole F of an expert; with SHARD_EXPERTS or etp each rank has F/P */
    int32_t topk;
    bool renormalise;
    struct moe_router_options router; /* all zero: softmax */
    ncclComm_t balance,
        global;    /* of the router's losses: router.h. With SHARD_EXPERTS without tp: its ranks have the same tokens */
    ncclComm_t ep; /* shorthand for groups.ep; NULL: all experts are here. Borrowed, as all groups */
    struct moe_options options;

    enum moe_dispatcher_kind dispatcher;
    struct moe_groups groups; /* an ep here wins over the one above */
    enum moe_tp_mode tp_mode; /* read when groups.tp has more than one rank */
    enum moe_router_sum router_sum;
    enum moe_dtype type;   /* of x, y, rows and their gradients */
    enum moe_dtype weight; /* of w1, w2; FP8 types with scales per expert */
    enum moe_dtype bias;   /* of b1, b2 */
    bool block_scales;     /* FP8: scales per 128 x 128 block */
    bool has_bias;         /* b1, b2 */
    enum moe_activation activation;
    struct moe_clamp clamp;
    enum moe_prob_place place;
    enum moe_recompute experts_recompute; /* inside the experts, no collectives */
    bool recompute;     /* the whole forward again in backward: its collectives are issued again, reported with phase
                           recompute */
    bool delay_wgrad;   /* gradients of w1, b1, w2, b2 are left to moe_layer_backward_dw */
    int64_t shared_ffn; /* of the shared expert; 0: none */
    bool shared_bias, shared_gate;
    bool shared_overlap; /* on a stream of its own, inside the dispatcher (alltoall only) */
    enum moe_uneven uneven;
    int64_t token_bound;  /* MOE_UNEVEN_BOUND and the remedy BOUND */
    int64_t row_multiple; /* dispatcher.h */
    int64_t row_budget;   /* dispatcher.h */
    float budget_factor;  /* dispatcher.h */
    /* NULL, or facts.h: told, in the first microbatch of a step, the checksum of the router's weight and this rank's
     * share and the sum of its gradient where tp has several ranks, and elements of the experts' gradients that are no
     * number. Gradients must have been zero when the step began. Borrowed. */
    struct moe_facts *facts;
    /* NULL, or called in backward when the gradient of a parameter (enum moe_layer_parameter) has been enqueued on the
     * device's stream: once per backward and parameter, whatever the number of rows; on the calling thread. It may
     * enqueue on the stream and issue collectives. */
    void (*ready)(void *arg, int parameter);
    void *ready_arg;
};

/*
 * Weights and main_grads (float32, accumulated into); device memory that the caller owns, borrowed until the backward
 * of the same microbatch. L = local experts, F' = this rank's part of F. NULL where the configuration has no such
 * parameter. All gradients (d_) NULL: no backward follows (inference).
 */
struct moe_layer_weights {
    const float *gate; /* [E,H] */
    const void *w1;    /* [L,2F',H]: gate rows, then linear rows */
    const void *w2;    /* [L,H,F'] */
    float *d_gate, *d_w1, *d_w2;
    const float *gate_bias;   /* [E]; NULL where the router has none */
    const float *expert_bias; /* likewise */
    float *d_gate_bias;       /* [E] or NULL */
    const void *b1;           /* [L,2F'] */
    const void *b2;           /* [L,H], the same on ranks that share an expert */
    float *d_b1, *d_b2;
    const float *scale1, *scale2;     /* of FP8 weights: experts.h */
    struct moe_shared_weights shared; /* weights float32; shared.h */
};

/* Where in training we are. */
struct moe_step {
    uint32_t step;
    uint16_t microbatch;
};

/*
 * *out is owned; borrows device and the groups. Errors: NOMEM, SHAPE (numbers that do not divide), UNSUPPORTED (what
 * the kind of dispatcher does not have), COMM, ARG (a legacy sum of the router in a layer whose caller sums it, or two
 * of them at once), and those of router.h, dispatcher.h, experts.h, shared.h. One thread at a time.
 */
int moe_layer_new(moe_device_t *device, const struct moe_layer_config *config, moe_layer_t **out);
void moe_layer_destroy(moe_layer_t **layer);

/*
 * y [T,H] from x [T,H] (config.type). x and weights are borrowed until the backward of the same microbatch. Waits for
 * the stream where the dispatcher does (the splits of an all-to-all are host numbers). Errors: SHAPE, those of
 * dispatcher.h; checked before any collective where the check is local.
 */
int moe_layer_forward(moe_layer_t *layer, const struct moe_layer_weights *weights, const struct moe_step *step,
                      const void *x, int64_t tokens, void *y);

/*
 * dx [T,H] from dy [T,H] (dx is overwritten); adds to the main_grads. Does not wait, unless recompute does. Errors:
 * STATE, ARG (forward was given no gradients), COMM, DEVICE; SPLIT when the recomputed forward brought another number
 * of rows than the forward (hazard H9: this rank stops, its peers wait).
 */
int moe_layer_backward(moe_layer_t *layer, const void *dy, void *dx);

/* The gradients that delay_wgrad left. Errors: STATE when there are none. */
int moe_layer_backward_dw(moe_layer_t *layer);

/*
 * Says that the caller sums the router's gradient over tp itself. Errors: STATE when the layer does it, or it was said
 * before: two sums make the gradient too large by P (torchtitan #2416 after #1878). The remedy ROUTER_SUM is not used
 * on a layer for which it was said.
 */
int moe_layer_declare_router_sum(moe_layer_t *layer);

/* The layer's router, for its losses, its loss scale and the update of expert biases. Borrowed. */
moe_router_t *moe_layer_router(moe_layer_t *layer);

/* Bytes of struct moe_layer_config and struct moe_layer_weights in this library, for callers that no compiler checks
 * (moe_core.py). Any thread. */
void moe_layer_sizes(size_t *config, size_t *weights);

/* The experts of this rank, and its part of F. */
int64_t moe_layer_local_experts(const moe_layer_t *layer);
int64_t moe_layer_local_ffn(const moe_layer_t *layer);

/* Rows received in the last forward (padding of PAD and of row_multiple not counted; -1 where only the device knows),
 * and whether its experts were skipped. */
int64_t moe_layer_rows(const moe_layer_t *layer);
bool moe_layer_skipped(const moe_layer_t *layer);

/* The remedies that were in force in the last forward, bits of remedy.h: symmetric ones that all ranks agreed on and
 * local ones that were used. */
uint32_t moe_layer_remedies(const moe_layer_t *layer);

#ifdef __cplusplus
}
#endif
#endif
