/*
 * layer.h: one MoE layer: route, dispatch, experts, combine, shared expert; forward and backward.
 *
 * A layer reports to moe_observe and asks moe_remedies as observe.h says. A rank that receives no rows walks its whole
 * plan like any other. Members called `legacy_...` switch on wrong behaviour of frameworks, each with the remedy that
 * cures it; all are off by default. A configuration whose optional members are zero is the plain layer: all-to-all over
 * ep, float32, SwiGLU, no biases, no shared expert.
 */
#ifndef MOE_LAYER_H
#define MOE_LAYER_H

#include "device.h"
#include "dispatcher.h"
#include "dtype.h"
#include "experts.h"
#include "fp8.h"
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
 * What the layer is given under tensor parallelism (groups.tp, P ranks), and what it leaves to the code around it
 * (torchtitan #2416; Megatron-LM sequence parallelism):
 *
 *   mode            x                     here                                    y, dx
 *   SEQUENCE        [T,H], own tokens     the dispatcher's groups do it           whole, of the rank's own tokens
 *   SPLIT_TOKENS    [T,H], the same all   tokens rank T/P .. (rank+1) T/P only    summands
 *   SHARD_EXPERTS   [T,H], the same all   all tokens, F/P columns of each expert  summands
 *
 * The router's gradient before the sum is that of the rank's own tokens (SEQUENCE), of those T/P tokens (SPLIT_TOKENS),
 * or of the rank's part of each expert's output (SHARD_EXPERTS). It is a summand in all three modes and is summed over
 * tp exactly once.
 */
enum moe_tp_mode { MOE_TP_SEQUENCE = 0, MOE_TP_SPLIT_TOKENS = 1, MOE_TP_SHARD_EXPERTS = 2 };

/*
 * Who sums the router's gradient over tp, and with it the other gradient that is a summand, that of the shared expert's
 * gate (shared.h).
 */
enum moe_router_sum {
    MOE_ROUTER_SUM_LAYER = 0,  /* the layer, in each backward: one AllReduce on tp, an obligation of the plan */
    MOE_ROUTER_SUM_CALLER = 1, /* the caller, or the code that declares the sum with moe_layer_declare_router_sum */
};

/*
 * Wrong behaviour and remedies of one layer; H numbers are the hazards of docs/MOE.md, capitals after `cure` the
 * remedies of remedy.h.
 */
struct moe_options {
    bool legacy_skip_empty; /* H1: a rank without rows skips its experts and is detached; cures: FILL, DUMMY, PAD */
    bool legacy_wgrad_uninitialised; /* H14: weight gradients go through memory that keeps its old contents for experts
                                        without rows; cure: ZERO_WGRAD */
    bool legacy_recompute_flip;  /* H9: in recompute the first token's last choice falls on another rank's expert; cure:
                                    ROUTING */
    bool legacy_router_unsummed; /* H15: no rank sums the router's gradient over tp; cure: ROUTER_SUM */
    bool legacy_router_summed_twice; /* the opposite of H15: the sum is made twice, so the gradient is too large by P;
                                        no remedy */
    struct moe_dispatcher_legacy dispatcher; /* H4, H5, H6, H12 (cure: SPLITS), H13, H14 (cure: SANITIZE) */
    bool keep_routing;                       /* recompute uses the forward's routing: remedy ROUTING, without a tool */
    bool sanitize;                           /* remedy SANITIZE, without a tool */
};

/* The parameters of a layer, by which the callback `ready` is told whose gradient there is. */
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
/* Short for the bits of a frozen router, of frozen experts and of a frozen shared expert. */
#define MOE_FROZEN_ROUTER  (1u << MOE_LAYER_GATE | 1u << MOE_LAYER_GATE_BIAS)
#define MOE_FROZEN_EXPERTS (1u << MOE_LAYER_W1 | 1u << MOE_LAYER_B1 | 1u << MOE_LAYER_W2 | 1u << MOE_LAYER_B2)
#define MOE_FROZEN_SHARED                                                                                              \
    (1u << MOE_LAYER_SHARED_W1 | 1u << MOE_LAYER_SHARED_B1 | 1u << MOE_LAYER_SHARED_W2 | 1u << MOE_LAYER_SHARED_B2 |   \
     1u << MOE_LAYER_SHARED_GATE)

/* The configuration of a layer. The pointers and communicators in it are borrowed for the life of the layer. */
struct moe_layer_config {
    uint32_t layer;     /* number of the layer, from 0, in reports and messages */
    int32_t world_rank; /* appears in messages */
    int64_t max_tokens; /* the largest T of x on this rank; all ranks of the groups must use the same number */
    int64_t hidden, ffn, experts; /* ffn: the whole F of an expert; with SHARD_EXPERTS or etp each rank has F/P */
    int32_t topk;
    bool renormalise;                 /* as in router.h */
    struct moe_router_options router; /* all zero: softmax */
    ncclComm_t balance; /* group of the router's losses (router.h); with SHARD_EXPERTS leave tp out: its ranks have the
                           same tokens */
    ncclComm_t global;  /* group of the router's global loss; the same rule */
    ncclComm_t ep;      /* short for groups.ep; NULL: all experts are on this rank */
    struct moe_options options;

    enum moe_dispatcher_kind dispatcher;
    struct moe_groups groups; /* the communicators; groups.ep, where set, wins over ep above */
    enum moe_tp_mode tp_mode; /* read when groups.tp has more than one rank */
    enum moe_router_sum router_sum;
    enum moe_dtype type;   /* of x, y, rows and their gradients */
    enum moe_dtype weight; /* of w1, w2; FP8 types take one scale per expert */
    enum moe_dtype bias;   /* of b1, b2 */
    bool block_scales;     /* FP8: one scale per 128 x 128 block instead */
    struct moe_fp8 fp8;    /* products of FP8 by FP8 in the experts (fp8.h) */
    bool has_bias;         /* b1, b2 */
    enum moe_activation activation;
    struct moe_clamp clamp;
    enum moe_prob_place place;
    enum moe_recompute experts_recompute; /* inside the experts, without collectives */
    bool recompute;   /* backward runs the whole forward again: its collectives are issued again and reported with phase
                         recompute */
    bool delay_wgrad; /* gradients of w1, b1, w2, b2 are left to moe_layer_backward_dw */
    int64_t shared_ffn; /* ffn of the shared expert; 0: no shared expert */
    bool shared_bias, shared_gate;
    bool shared_overlap; /* the shared expert runs on a stream of its own, inside the dispatcher (alltoall only) */
    enum moe_uneven uneven;
    int64_t token_bound;  /* MOE_UNEVEN_BOUND and the remedy BOUND */
    int64_t row_multiple; /* dispatcher.h */
    int64_t row_budget;   /* dispatcher.h */
    float budget_factor;  /* dispatcher.h */
    /*
     * How many microbatches may be between their forward and their backward (pipelines: 1F1B); 0: 1. Each has state and
     * memory of its own, made when first needed (as moe_layer_new: collective, not in a capture); they share the
     * weights, what the router counts, and the loss scale.
     */
    int32_t in_flight;
    /*
     * NULL, or an object of facts.h. In the first microbatch of a step the layer takes these facts: the checksum of the
     * router's weight, this rank's share and the sum of the router's gradient where tp has several ranks, and the
     * elements of the experts' gradients that are not finite. Gradients must have been zero when the step began.
     * Borrowed.
     */
    struct moe_facts *facts;
    /*
     * NULL, or called in backward when the gradient of a parameter (enum moe_layer_parameter) has been enqueued on the
     * device's stream: once per backward and parameter that is not frozen, whatever the number of rows, on the calling
     * thread. The function may enqueue work on the stream and issue collectives.
     */
    void (*ready)(void *arg, int parameter);
    void *ready_arg;
};

/*
 * Weights and main_grads of a layer; device memory that the caller owns, borrowed until the backward of the same
 * microbatch. main_grads are float32, and gradients are added to them. L = local experts, F' = this rank's part of F. A
 * member is NULL where the configuration has no such parameter. If all gradients (d_) are NULL, and not everything is
 * frozen, no backward follows (inference).
 */
struct moe_layer_weights {
    const void *gate; /* [E,H], router.gate_type */
    const void *w1;   /* [L,2F',H]: gate rows, then linear rows */
    const void *w2;   /* [L,H,F'] */
    float *d_gate, *d_w1, *d_w2;
    const void *gate_bias;    /* [E], router.gate_type; NULL where the router has none */
    const float *expert_bias; /* [E]; NULL where the router has none */
    float *d_gate_bias;       /* [E]; NULL where the router has none */
    const void *b1;           /* [L,2F'] */
    const void *b2;           /* [L,H], the same on ranks that share an expert */
    float *d_b1, *d_b2;
    const float *scale1, *scale2; /* of FP8 weights: experts.h */
    struct moe_shared_weights
        shared; /* weights float32; shared.h; its `frozen` is set by the layer from the one below */
    /*
     * Frozen parameters, a bit 1 << enum moe_layer_parameter for each. Backward computes nothing for them: no product,
     * no call of `ready`, no fact, no sum over tp (a summand less in it; none, and no obligation, where no summand is
     * left); their gradients are not read and may be NULL. dx is as ever, and so are all collectives of dispatch and
     * combine. A backward with everything frozen computes dx alone. All ranks must give the same bits, in the same
     * forward: those that meet in the dispatcher's exchange compare them there (ARG, on all of them, before any rows
     * are sent); moe_layer_forward lists the exceptions.
     */
    uint32_t frozen;
};

/*
 * A place in training: step and microbatch, both from 0, the same on all ranks of the layer's groups. The layers of one
 * microbatch have the same tokens, so what the ranks must agree on about them (MOE_UNEVEN_MAX, remedy UNEVEN) is agreed
 * in the first of these layers, and taken from there in the others and in recompute. Where that is not so (two models
 * with tokens of their own on one group, counted alike), say `alone`: the forward then agrees for itself.
 */
struct moe_step {
    uint32_t step;
    uint16_t microbatch;
    bool alone;
    uint32_t tag; /* tells microbatches in flight apart that are at the same place, for a caller that names each forward
                     itself; of this rank alone */
};

/*
 * Fills the model's part of *config with the published configuration of "mixtral" (8x7B), "deepseek-v3", "qwen3-moe"
 * (235B-A22B) or "gpt-oss" (120b): the router as moe_router_preset does, and where the model has them the biases of its
 * experts, its activation, where probabilities are applied, and the shared expert (of config->ffn, which is set before;
 * DeepSeek-V3 has one, without gate or bias). Everything else is left alone. Any thread. Errors: ARG (unknown name).
 */
int moe_layer_preset(const char *name, struct moe_layer_config *config);

/*
 * Makes a layer. COLLECTIVE on the group whose ranks meet in the dispatcher and on groups.tp, with waits: where a rank
 * fails, because its configuration is refused or for want of any memory, all of them get an error, the others one that
 * names it and has its code and its reason. A rank fails alone, and its peers wait, where its stream is captured
 * (STATE), or where an exchange of the making itself fails with COMM.
 * *out is owned by the caller; borrows device and what `config` points to. All functions of a layer: one thread at a
 * time. Errors: NOMEM, SHAPE (numbers that do not divide), UNSUPPORTED (an option that the kind of dispatcher does not
 * have), COMM, ARG (a legacy sum of the router in a layer whose caller sums it, or two of them at once), and the errors
 * of router.h, dispatcher.h, experts.h and shared.h.
 */
int moe_layer_new(moe_device_t *device, const struct moe_layer_config *config, moe_layer_t **out);
/* Frees the layer and clears the pointer. NULL is allowed. */
void moe_layer_destroy(moe_layer_t **layer);

/*
 * With in_flight > 1 a microbatch is known by its step, number and tag, from its forward to its backward; a forward
 * with the name of one that waits takes its place. Where in_flight microbatches wait for their backward (or
 * backward_dw) already, forward is STATE, before any collective. Forwards and backwards of all ranks come in the same
 * order.
 *
 * Computes y [T,H] from x [T,H], T = `tokens`, rows in config.type. Borrows x and weights until the backward of the
 * same microbatch. Waits for the stream where the dispatcher does (the splits of an all-to-all are host numbers).
 * Errors: SHAPE, and those of dispatcher.h; a check that needs only this rank's numbers comes before any collective.
 * ARG where ranks freeze different parameters: the same error on all ranks of the dispatch group, which names the first
 * rank that differs from rank 0. Where the host sees no numbers before rows are sent the error comes late, on all
 * ranks: with a row budget in the next forward (not in a capture), in drop-and-pad in the first forward of the next
 * step, which must be the same step on all ranks. Not compared are ranks of tp in other dispatch groups
 * (SHARD_EXPERTS): the obligations differ where the sum over tp does, which an observer sees in forward; without one,
 * backward hangs.
 */
int moe_layer_forward(moe_layer_t *layer, const struct moe_layer_weights *weights, const struct moe_step *step,
                      const void *x, int64_t tokens, void *y);

/*
 * Computes dx [T,H] (overwritten) from dy [T,H] and adds to the main_grads. Does not wait, unless recompute does.
 * Errors: STATE, ARG (forward was given no gradients), COMM, DEVICE; SPLIT when the recomputed forward received another
 * number of rows than the forward (hazard H9: this rank stops, its peers wait).
 */
int moe_layer_backward(moe_layer_t *layer, const void *dy, void *dx);
/*
 * The same for the microbatch of `step`. moe_layer_backward is for the only one that waits, and STATE where several do.
 * Errors: STATE (no forward of that microbatch waits), and those of moe_layer_backward.
 */
int moe_layer_backward_of(moe_layer_t *layer, const struct moe_step *step, const void *dy, void *dx);

/*
 * Forgets the forward of that microbatch whose backward will not come, as autograd forgets a graph that is dropped: its
 * memory goes back. Where none waits, nothing happens. All ranks must leave out the same backwards, but each drops them
 * when it likes, before the next forward that needs the place: such a place is taken again only when no other is free
 * or can be made, the one of the oldest forward first; where that one still waits on a rank, forward is STATE there.
 */
void moe_layer_drop(moe_layer_t *layer, const struct moe_step *step);

/*
 * Computes the gradients that delay_wgrad left, none where the experts are frozen; of all backwards so far, oldest
 * first. Behind an error, which is the first one's, none waits any more. Errors: STATE when no backward left any.
 */
int moe_layer_backward_dw(moe_layer_t *layer);

/*
 * Declares that the caller sums the router's gradient over tp. Errors: STATE when the layer makes that sum, or the
 * declaration is the second one: two sums make the gradient too large by P (torchtitan #2416 after #1878). The remedy
 * ROUTER_SUM does not act on a layer with this declaration.
 */
int moe_layer_declare_router_sum(moe_layer_t *layer);

/*
 * The router of the last forward, for its losses, its loss scale and the update of expert biases; the latter two are
 * the same for all microbatches in flight. Borrowed.
 */
moe_router_t *moe_layer_router(moe_layer_t *layer);

/*
 * Gives the sizes of struct moe_layer_config and struct moe_layer_weights in this library, in bytes, for callers whose
 * copies of the structs no compiler checks (moe_core.py). Any thread.
 */
void moe_layer_sizes(size_t *config, size_t *weights);

/* The number of experts of this rank, L. */
int64_t moe_layer_local_experts(const moe_layer_t *layer);
/* This rank's part of F, F'. */
int64_t moe_layer_local_ffn(const moe_layer_t *layer);

/* Rows received in the last forward, without the padding of PAD and of row_multiple; -1 where only the device knows. */
int64_t moe_layer_rows(const moe_layer_t *layer);
/* Whether the experts were skipped in the last forward (legacy_skip_empty). */
bool moe_layer_skipped(const moe_layer_t *layer);

/*
 * The remedies that were in force in the last forward, bits of remedy.h: symmetric ones that all ranks agreed on, and
 * local ones that were used.
 */
uint32_t moe_layer_remedies(const moe_layer_t *layer);

#ifdef __cplusplus
}
#endif
#endif
