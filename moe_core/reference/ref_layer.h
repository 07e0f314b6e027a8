/*
 * ref_layer.h: the reference of a whole MoE layer: every option of the library, one process, double precision, written
 * for clarity.
 *
 * Shares no code with the library, only the names of its options: no permutation, no groups of ranks, no buffers; a
 * token at a time, an expert at a time. A run over several ranks is compared with it by giving it each rank's tokens as
 * one set: the parameters' gradients add up over the sets, capacities are those of a set, and the counts of the
 * auxiliary losses are summed over the sets that name the same group. Vectors made by PyTorch's autograd
 * (tests/moe_core/oracle) hold it to 1e-12.
 */
#ifndef MOE_CORE_REFERENCE_REF_LAYER_H
#define MOE_CORE_REFERENCE_REF_LAYER_H

#include "moe_core/include/moe/activation.h"
#include "moe_core/include/moe/experts.h"
#include "moe_core/reference/ref_router.h"

#include <stdint.h>

/*
 * Where the router's weight w is applied (moe/experts.h):
 *
 *   SOURCE      y += w (w2 act(w1 x + b1) + b2)
 *   ACTIVATION  y += w2 (w act(w1 x + b1)) + w b2    the same number, other roundings (Megatron-LM experts.py)
 *   INPUT       y += w2 act(w1 (w x) + b1) + b2      another model (score before experts; torchtitan, Megatron-LM
 *                                                    moe_apply_probs_on_input)
 *
 * The activations are those of moe/activation.h. A choice that was dropped adds nothing, and no bias either.
 */

/* Every array may be NULL: in weights the option is off, in gradients it is not wanted. */
struct moe_ref_weights {
    const double *gate, *gate_bias, *expert_bias; /* [E,H], [E], [E] */
    const double *w1, *b1;                        /* [E,2F,H]: gate rows, then up rows; [E,2F] */
    const double *w2, *b2;                        /* [E,H,F], [E,H] */
    const double *shared_w1, *shared_b1;          /* [2S,H], [2S]; S = shared_ffn */
    const double *shared_w2, *shared_b2;          /* [H,S], [H] */
    const double *shared_gate;                    /* [H]: the shared expert's output times sigmoid(<shared_gate, x>) */
};

/* Of the weights' shapes; added to. */
struct moe_ref_layer_grads {
    double *gate, *gate_bias, *w1, *b1, *w2, *b2, *shared_w1, *shared_b1, *shared_w2, *shared_b2, *shared_gate;
};

struct moe_ref_layer {
    struct moe_router_config router; /* max_tokens and the communicators are not read */
    int64_t ffn, shared_ffn;         /* F; S, 0: no shared expert */
    enum moe_activation activation;
    struct moe_clamp clamp;
    enum moe_prob_place place;
    double loss_scale; /* of the auxiliary losses' gradients; 0 means 1 */
    struct moe_ref_weights weights;
    const int64_t
        *global_earlier;  /* [E]: what the global loss counted in earlier microbatches over its group, or NULL */
    int64_t microbatches; /* counted by it, with this one; 0 means 1 */
};

/* One rank's tokens. x is read; everything else may be NULL. */
struct moe_ref_set {
    int64_t tokens;
    const double *x, *dy;    /* [T,H] */
    double *y, *dx;          /* [T,H], overwritten */
    int32_t balance, global; /* the group that this set counts its losses with, from 1; 0: alone */
    const int32_t
        *choice; /* [T,k]: the experts to route to, -1: none (replayed or masked routing); NULL: the router chooses */
    const int32_t
        *kept;       /* [T,k], read with `choice`: the same, -1 where dropped; NULL: the options say what is dropped */
    int32_t *index;  /* out [T,k]: the experts, -1 where dropped */
    int64_t *counts; /* out [E]: tokens kept by each expert */
    int64_t *chosen; /* out [E]: tokens that chose each expert, before anything was dropped */
    double *regret;  /* out [1]: with `choice`, how far it is from the best one (ref_router.h) */
    double *probs;   /* out [T,E] */
    double *losses;  /* out [MOE_LOSSES]: this set's share, before loss_scale */
    struct moe_ref_layer_grads grads; /* of this set alone, or shared between sets to have the sum */
};

/* y of every set, and the gradients of sum <dy, y> + loss_scale * the losses for every set with a dy. 0, or -1 when
 * memory is short. */
int moe_ref_layer_run(const struct moe_ref_layer *layer, struct moe_ref_set *sets, int32_t n);

#endif
