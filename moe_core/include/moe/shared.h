/*
 * shared.h: the shared expert: one dense gated feed-forward over all tokens, beside the routed experts.
 *
 *   y = g (act(x w1^T + b1) w2^T + b2),  g = sigmoid(<x, gate>) per token where there is a gate (Qwen2-MoE), else 1
 *
 * With tensor parallelism over `tp` (P ranks), w1 holds this rank's part of fc1 (2F/P rows: its gate rows, then its
 * linear rows) and w2 its part of fc2 (F/P columns).
 *
 * mode         x, y here              forward before fc1 / after fc2     backward before fc2 / after fc1
 * SINGLE       [T,H], P = 1           none                               none
 * SEQUENCE     [T/P,H], its tokens    AllGather / ReduceScatter          AllGather / ReduceScatter
 * REPLICATED   [T,H], the same all    none / AllReduce                   none / AllReduce
 * PARTIAL      [T,H]; y is a summand  none / none                        none / none (dx is a summand)
 *
 * These collectives are on `tp`, and are left out when tp has one rank. Each rank adds b2 / P before the reduction
 * (with PARTIAL: to its summand). The gradients of w1, b1, w2 and b2 are whole; that of b2 is the same on all ranks.
 * The gradient of gate is a summand over tp with SEQUENCE (the rank's own tokens) and PARTIAL, and whole with
 * REPLICATED.
 *
 * The work is cut into steps that a dispatcher walks while its own collectives run (Megatron-LM shared_experts.py,
 * --moe-shared-expert-overlap). With a second device the steps run on that device's stream, and events order the two
 * streams at the first and last step of each direction. Without one the steps run on the main stream: same functions,
 * same order, same bits. A step out of order is error STATE.
 */
#ifndef MOE_SHARED_H
#define MOE_SHARED_H

#include "activation.h"
#include "device.h"
#include "dtype.h"
#include "plan.h"

#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_shared moe_shared_t;

/* How tensor parallelism is done; the table is at the head of this file. */
enum moe_shared_mode {
    MOE_SHARED_SINGLE = 0,
    MOE_SHARED_SEQUENCE = 1,
    MOE_SHARED_REPLICATED = 2,
    MOE_SHARED_PARTIAL = 3,
};

/* The parameters of the shared expert, by which the callback `ready` is told whose gradient there is. */
enum moe_shared_parameter {
    MOE_SHARED_W1,
    MOE_SHARED_B1,
    MOE_SHARED_W2,
    MOE_SHARED_B2,
    MOE_SHARED_GATE,
};

struct moe_shared_config {
    int64_t max_tokens;  /* the most tokens of x; with SEQUENCE T/P, and the same number on all ranks */
    int64_t hidden, ffn; /* ffn: the whole F, a multiple of P */
    enum moe_shared_mode mode;
    ncclComm_t tp;            /* borrowed; NULL: one rank */
    enum moe_dtype type;      /* of rows */
    enum moe_dtype weight;    /* of w1, w2, b1, b2, gate: float32, bfloat16, float16 */
    enum moe_dtype main_grad; /* of all gradients of parameters */
    enum moe_activation activation;
    struct moe_clamp clamp;
    bool has_bias, has_gate;
    int32_t world_rank; /* appears in messages */
    uint32_t layer;     /* appears in messages */
    /*
     * NULL, or called when the gradient of a parameter (enum moe_shared_parameter) that is not frozen has been enqueued
     * on the stream of moe_shared_stream.
     */
    void (*ready)(void *arg, int which);
    void *ready_arg;
};

/*
 * Weights and gradients of the shared expert; device memory that the caller owns. Gradients have main_grad's type and
 * are added to the present values unless `overwrite` is set.
 */
struct moe_shared_weights {
    const void *w1;                           /* [2F/P,H] */
    const void *w2;                           /* [H,F/P] */
    const void *b1;                           /* [2F/P], has_bias */
    const void *b2;                           /* [H], has_bias; the same on all ranks */
    const void *gate;                         /* [H], has_gate; the same on all ranks */
    void *d_w1, *d_w2, *d_b1, *d_b2, *d_gate; /* all NULL, and not all frozen: no backward follows (inference) */
    bool overwrite;                           /* gradients overwrite the present values */
    uint32_t frozen; /* a bit 1 << enum moe_shared_parameter for each frozen parameter, as in experts.h */
};

/*
 * Makes a shared expert. *out is owned by the caller; borrows device, side and tp. side = NULL: no overlap; else side
 * is a device of the same back end that no other object uses. All functions of a shared expert: one thread at a time.
 * Errors: NOMEM, SHAPE (P does not divide ffn), ARG, COMM, DEVICE.
 */
int moe_shared_new(moe_device_t *device, moe_device_t *side, const struct moe_shared_config *config,
                   moe_shared_t **out);
/* Frees the shared expert and clears the pointer. NULL is allowed. */
void moe_shared_destroy(moe_shared_t **shared);

/* The stream on which the steps run: side's, or the main one. Borrowed. */
cudaStream_t moe_shared_stream(const moe_shared_t *shared);

/*
 * The steps of forward, to be called in this order. x [tokens,H] and the weights are borrowed until backward has run;
 * tokens may be 0. The collectives that a step enqueues are in the table at the head of this file. get_output writes y
 * [tokens,H] = (add ? y : 0) + the output, on the main stream. Errors: STATE, CAPACITY (tokens), ARG, COMM.
 */
int moe_shared_pre_forward_comm(moe_shared_t *shared, const struct moe_shared_weights *weights, const void *x,
                                int64_t tokens);
int moe_shared_fc1(moe_shared_t *shared);
int moe_shared_fc2(moe_shared_t *shared);
int moe_shared_post_forward_comm(moe_shared_t *shared);
int moe_shared_get_output(moe_shared_t *shared, void *y, bool add);

/*
 * The steps of backward, to be called in this order, after a whole forward. dy [tokens,H] is borrowed until get_grad.
 * get_grad writes dx [tokens,H] = (add ? dx : 0) + the gradient, on the main stream. Errors: as in forward.
 */
int moe_shared_pre_backward_comm(moe_shared_t *shared, const void *dy);
int moe_shared_fc2_backward(moe_shared_t *shared);
int moe_shared_fc1_backward(moe_shared_t *shared);
int moe_shared_post_backward_comm(moe_shared_t *shared);
int moe_shared_get_grad(moe_shared_t *shared, void *dx, bool add);

/*
 * Forgets a pass that is not gone on with, because something beside the shared expert failed: the next step may be
 * pre_forward_comm, and the layer's stream waits for what the shared expert's has been given. NULL does nothing. The
 * thread of the other steps.
 */
void moe_shared_reset(moe_shared_t *shared);

/*
 * Sets op, comm and count of `node` to the collective that a step of backward issues for the forward under way (NONE,
 * NULL, 0 where there is none): post_backward_comm with `after`, else pre_backward_comm. Call it after
 * pre_forward_comm.
 */
void moe_shared_obligation(const moe_shared_t *shared, bool after, struct moe_node *node);

/* All steps of forward at once; arguments and errors as above. */
int moe_shared_forward(moe_shared_t *shared, const struct moe_shared_weights *weights, const void *x, int64_t tokens,
                       void *y, bool add);
/* All steps of backward at once; arguments and errors as above. */
int moe_shared_backward(moe_shared_t *shared, const void *dy, void *dx, bool add);

#ifdef __cplusplus
}
#endif
#endif
