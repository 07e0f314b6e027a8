/*
 * experts.h: the feed-forward experts of one rank: fc1, a gated activation, fc2, over rows in expert-major order.
 *
 *   h = x w1^T + b1      a = act(h)      y = a w2^T + b2
 *
 * All of it enqueued, for any number of rows, zero included: no path is left out, every weight gets its gradient. Rows
 * past the sum of m are slack: never read, never written. A zero in a member of the config or the weights means float32
 * SwiGLU without biases or probabilities. Sources: Megatron-LM experts.py (TEGroupedMLP), gpt-oss (clamped SwiGLU,
 * biases).
 */
#ifndef MOE_EXPERTS_H
#define MOE_EXPERTS_H

#include "activation.h"
#include "device.h"
#include "dtype.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_experts moe_experts_t;
typedef struct moe_experts_workspace moe_experts_workspace_t;

/*
 * Where the router's weight p of a row is applied. ACTIVATION: a = act(h) * p and y = a w2^T + p b2 (Megatron-LM: equal
 * to weighting y, because fc2 is linear). INPUT: h = (p x) w1^T + b1 (score before experts, moe_apply_probs_on_input:
 * another model). SOURCE: not here; unpermute merges with them.
 */
enum moe_prob_place { MOE_PROB_SOURCE = 0, MOE_PROB_ACTIVATION = 1, MOE_PROB_INPUT = 2 };

/*
 * What backward computes again instead of keeping. ACTIVATION: a, from h. FC1: p x, h and a, from x and the forward's
 * probabilities and counts: nothing of the forward is kept but its inputs. The gradients are equal in every bit: same
 * functions, same numbers (Megatron-LM --recompute-modules moe_act, moe).
 */
enum moe_recompute { MOE_RECOMPUTE_NONE = 0, MOE_RECOMPUTE_ACTIVATION = 1, MOE_RECOMPUTE_FC1 = 2 };

/* The parameters, as `ready` names them. */
enum moe_experts_parameter { MOE_EXPERTS_W1, MOE_EXPERTS_B1, MOE_EXPERTS_W2, MOE_EXPERTS_B2 };

struct moe_experts_config {
    int64_t max_rows, hidden, ffn, experts; /* experts: local ones; ffn: this rank's part of it */
    enum moe_dtype type;                    /* of rows: float32, bfloat16, float16 */
    enum moe_dtype weight;                  /* of w1, w2: any; FP8 needs scales */
    enum moe_dtype bias;                    /* of b1, b2 */
    enum moe_dtype main_grad;               /* of all gradients of parameters: float32, bfloat16, float16 */
    bool block_scales;                      /* FP8: a scale per 128 x 128 block, else one per expert */
    bool has_bias;
    enum moe_activation activation;
    struct moe_clamp clamp;
    enum moe_prob_place place;
    float bias2_scale; /* b2 is multiplied by it in forward, its gradient is not: 1/P with P expert tensor parallel
                          ranks; 0 means 1 */
    enum moe_recompute recompute;
    bool delay_wgrad; /* gradients of parameters are left to moe_experts_backward_dw */
    void (*ready)(
        void *arg,
        int which); /* NULL, or called when the gradient of a parameter (enum moe_experts_parameter) has been enqueued:
                       on the calling thread, once per backward for each parameter, in the order w2, b2, w1, b1 */
    void *ready_arg;
    moe_experts_workspace_t *workspace; /* NULL: of its own */
};

/* Weights and main_grads of the local experts; device memory that the caller owns, flat, expert after expert. Gradients
 * are added to what is there. */
struct moe_experts_weights {
    const void *w1;      /* [L,2F,H]: gate rows, then linear rows */
    const void *w2;      /* [L,H,F] */
    void *d_w1, *d_w2;   /* in main_grad's type, as are d_b1 and d_b2. All NULL: no backward follows (inference) */
    const void *b1;      /* [L,2F] */
    const void *b2;      /* [L,H] */
    void *d_b1, *d_b2;   /* backward must be given the gradients that forward was */
    const float *scale1; /* FP8: [L], or [L, ceil(2F/128), ceil(H/128)] */
    const float *scale2; /* FP8: [L], or [L, ceil(H/128), ceil(F/128)] */
    bool overwrite; /* gradients overwrite what is there (zeros for an expert without rows) instead of being added */
};

/*
 * Memory for what lives only while one forward or backward runs, to be shared by all layers whose calls follow each
 * other on one device's stream: the gradients between fc2 and fc1, and whatever is computed again (with recompute FC1
 * everything: the layers then keep nothing). Not shared where delay_wgrad must keep it. Must outlive the experts that
 * use it. *out is owned; config: of the layer with the largest sizes. Errors: NOMEM, SHAPE, ARG.
 */
int moe_experts_workspace_new(moe_device_t *device, const struct moe_experts_config *config,
                              moe_experts_workspace_t **out);
void moe_experts_workspace_destroy(moe_experts_workspace_t **workspace);

/*
 * *out is owned; borrows device and workspace. Errors: NOMEM, CAPACITY (a workspace that is too small), SHAPE, ARG (a
 * type, activation, place or recompute that there is not). One thread at a time; so all below.
 */
int moe_experts_new(moe_device_t *device, const struct moe_experts_config *config, moe_experts_t **out);
void moe_experts_destroy(moe_experts_t **experts);

/*
 * y [rows,H] from x [rows,H]; m [L] rows per expert (device); row_probs [rows] float32, NULL with SOURCE. x, m,
 * row_probs and the weights are borrowed until backward (backward_dw) is done. Errors: CAPACITY (rows), ARG (a pointer
 * is missing); in the stream: COUNT, SPLIT.
 */
int moe_experts_forward(moe_experts_t *experts, const struct moe_experts_weights *weights, const void *x,
                        const float *row_probs, const int64_t *m, int64_t rows, void *y);

/*
 * dx [rows,H] and d_row_probs [rows] (overwritten; NULL: not wanted, or SOURCE) from dy [rows,H]; and the gradients of
 * the parameters, or with delay_wgrad nothing of them: dy is then borrowed until backward_dw. Errors: STATE before any
 * forward, ARG.
 */
int moe_experts_backward(moe_experts_t *experts, const struct moe_experts_weights *weights, const void *dy, void *dx,
                         float *d_row_probs);

/* The gradients that delay_wgrad left. Errors: STATE when there are none. */
int moe_experts_backward_dw(moe_experts_t *experts);

/* Bytes of device memory that this object holds from forward to backward, and in all (its workspace not counted). */
void moe_experts_memory(const moe_experts_t *experts, size_t *kept, size_t *all);

/* The remedy SANITIZE for the calls that follow: slack rows of y, dx and d_row_probs become zero instead of staying
 * untouched (R5; hazard H14). */
void moe_experts_sanitize(moe_experts_t *experts, bool on);

#ifdef __cplusplus
}
#endif
#endif
