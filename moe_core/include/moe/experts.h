/*
 * experts.h: the feed-forward experts of one rank: fc1, a gated activation, fc2, over rows in expert-major order.
 *
 *   h = x w1^T + b1      a = act(h)      y = a w2^T + b2
 *
 * All work is enqueued, for any number of rows, zero included: no path is left out, and every weight gets its gradient.
 * Rows past the sum of m are slack: they are never read and never written. A config and weights whose optional members
 * are zero mean float32 SwiGLU without biases or probabilities. Sources: Megatron-LM experts.py (TEGroupedMLP); gpt-oss
 * (clamped SwiGLU, biases).
 */
#ifndef MOE_EXPERTS_H
#define MOE_EXPERTS_H

#include "activation.h"
#include "device.h"
#include "dtype.h"
#include "fp8.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_experts moe_experts_t;
typedef struct moe_experts_workspace moe_experts_workspace_t;

/*
 * Where the router's weight p of a row is applied. ACTIVATION: a = act(h) * p and y = a w2^T + p b2 (Megatron-LM; equal
 * to weighting y, because fc2 is linear). INPUT: h = (p x) w1^T + b1 (score before experts, moe_apply_probs_on_input:
 * another model). SOURCE: the experts do not apply p; unpermute does when it merges a token's rows.
 */
enum moe_prob_place { MOE_PROB_SOURCE = 0, MOE_PROB_ACTIVATION = 1, MOE_PROB_INPUT = 2 };

/*
 * What backward computes again instead of keeping it. ACTIVATION: a, from h. FC1: p x, h and a, from x and from
 * forward's probabilities and counts, so that only forward's inputs are kept. Gradients are equal in every bit to those
 * without recompute, because the same functions run on the same numbers (Megatron-LM --recompute-modules moe_act, moe).
 */
enum moe_recompute { MOE_RECOMPUTE_NONE = 0, MOE_RECOMPUTE_ACTIVATION = 1, MOE_RECOMPUTE_FC1 = 2 };

/* The parameters of the experts, by which the callback `ready` is told whose gradient there is. */
enum moe_experts_parameter { MOE_EXPERTS_W1, MOE_EXPERTS_B1, MOE_EXPERTS_W2, MOE_EXPERTS_B2 };

struct moe_experts_config {
    int64_t max_rows, hidden, ffn, experts; /* experts: the local ones; ffn: this rank's part of F */
    enum moe_dtype type;                    /* of rows: float32, bfloat16, float16 */
    enum moe_dtype weight;                  /* of w1, w2: any type; FP8 needs scales */
    enum moe_dtype bias;                    /* of b1, b2 */
    enum moe_dtype main_grad;               /* of all parameter gradients: float32, bfloat16, float16 */
    bool block_scales;                      /* FP8: one scale per 128 x 128 block; else one per expert */
    struct moe_fp8 fp8;                     /* products of FP8 by FP8 (linear.h); hidden and ffn multiples of 16 */
    bool has_bias;
    enum moe_activation activation;
    struct moe_clamp clamp;
    enum moe_prob_place place;
    float bias2_scale; /* forward multiplies b2 by this number, backward does not: 1/P with P expert tensor parallel
                          ranks; 0 means 1 */
    enum moe_recompute recompute;
    bool delay_wgrad; /* gradients of parameters are left to moe_experts_backward_dw */
    /*
     * NULL, or called when the gradient of a parameter (enum moe_experts_parameter) has been enqueued: on the calling
     * thread, once per backward for each parameter that is not frozen, in the order w2, b2, w1, b1.
     */
    void (*ready)(void *arg, int which);
    void *ready_arg;
    moe_experts_workspace_t *workspace; /* borrowed; NULL: the experts make one for themselves */
    bool pooled; /* row buffers are taken from the device's pool (device.h) when they are needed, for the rows that
                    there are, and go back when they are not; otherwise they are made once for max_rows, so that a graph
                    can capture the calls. Not with a workspace */
};

/*
 * Weights and main_grads of the local experts, flat, expert after expert; device memory that the caller owns. Gradients
 * are added to the present values unless `overwrite` is set.
 */
struct moe_experts_weights {
    const void *w1;      /* [L,2F,H]: gate rows, then linear rows */
    const void *w2;      /* [L,H,F] */
    void *d_w1, *d_w2;   /* all gradients have main_grad's type; all NULL, and not all frozen: no backward follows
                            (inference) */
    const void *b1;      /* [L,2F] */
    const void *b2;      /* [L,H] */
    void *d_b1, *d_b2;   /* backward must be given the same gradient pointers as forward */
    const float *scale1; /* FP8: [L], or [L, ceil(2F/128), ceil(H/128)] */
    const float *scale2; /* FP8: [L], or [L, ceil(H/128), ceil(F/128)] */
    bool overwrite;      /* gradients overwrite the present values (zeros for an expert without rows) */
    /*
     * Frozen parameters, a bit 1 << enum moe_experts_parameter for each. Backward computes nothing for them: their
     * gradient pointers are not read and may be NULL, and `ready` is not called. With all bits set a backward may
     * follow although no gradient is given. Backward must be given the same bits as forward.
     */
    uint32_t frozen;
};

/*
 * Makes memory for what lives only while one forward or backward runs: the gradients between fc2 and fc1, and whatever
 * is computed again (with recompute FC1 everything, so that the layers keep nothing). All layers whose calls follow one
 * another on one device's stream can share it, except where delay_wgrad must keep it. *out is owned by the caller and
 * must outlive the experts that use it; `config` is that of the layer with the largest sizes. Errors: NOMEM, SHAPE,
 * ARG.
 */
int moe_experts_workspace_new(moe_device_t *device, const struct moe_experts_config *config,
                              moe_experts_workspace_t **out);
/* Frees the workspace and clears the pointer. NULL is allowed. */
void moe_experts_workspace_destroy(moe_experts_workspace_t **workspace);

/*
 * Makes the experts of one rank. *out is owned by the caller; borrows device and workspace. All functions of the
 * experts: one thread at a time. Errors: NOMEM, CAPACITY (the workspace is too small), SHAPE, ARG (an unknown type,
 * activation, place or recompute), UNSUPPORTED (fp8 on a device without its products).
 */
int moe_experts_new(moe_device_t *device, const struct moe_experts_config *config, moe_experts_t **out);
/* Frees the experts and clears the pointer. NULL is allowed. */
void moe_experts_destroy(moe_experts_t **experts);

/*
 * Computes y [rows,H] from x [rows,H]. m [L] on the device holds the rows of each expert; row_probs [rows] is float32,
 * NULL with SOURCE. Borrows x, m, row_probs and the weights until backward (with delay_wgrad: backward_dw) has run.
 * Errors: CAPACITY (rows), ARG (a pointer is missing); in the stream: COUNT, SPLIT.
 */
int moe_experts_forward(moe_experts_t *experts, const struct moe_experts_weights *weights, const void *x,
                        const float *row_probs, const int64_t *m, int64_t rows, void *y);

/*
 * Computes dx [rows,H] and d_row_probs [rows] from dy [rows,H], and the gradients of the parameters. dx and d_row_probs
 * are overwritten; d_row_probs may be NULL (not wanted, or SOURCE). With delay_wgrad the gradients of the parameters
 * are left to backward_dw, and dy is borrowed until then. Errors: STATE before any forward, ARG.
 */
int moe_experts_backward(moe_experts_t *experts, const struct moe_experts_weights *weights, const void *dy, void *dx,
                         float *d_row_probs);

/*
 * Computes the parameter gradients that delay_wgrad left; nothing where all parameters are frozen. Errors: STATE when
 * no backward left any.
 */
int moe_experts_backward_dw(moe_experts_t *experts);

/*
 * Says how many bytes of device memory this object holds from forward to backward (*kept), and in all (*all), its
 * workspace not counted; with `pooled`, what it holds now.
 */
void moe_experts_memory(const moe_experts_t *experts, size_t *kept, size_t *all);

/*
 * Ends the last forward without a backward: with `pooled`, what it left goes back to the pool. A backward after this
 * call is STATE.
 */
void moe_experts_release(moe_experts_t *experts);

/*
 * Switches the remedy SANITIZE for the calls that follow: slack rows of y, dx and d_row_probs become zero instead of
 * staying untouched (R5; hazard H14).
 */
void moe_experts_sanitize(moe_experts_t *experts, bool on);

#ifdef __cplusplus
}
#endif
#endif
