/*
 * linear.h: the grouped linear as a module: one weight per expert, any activation type, and the whole contract of its
 * weight gradients.
 *
 *   forward  y_i = x_i w_i^T (+ b_i)      wgrad  dw_i = dy_i^T x_i
 *   dgrad    dx_i = dy_i w_i              bgrad  db_i = the sum of dy_i's rows
 *
 * x is [R,K], y is [R,N], and the rows of group i begin at the prefix sum of m. The host never reads m [groups], int64
 * on the device, so that a call can be captured into a CUDA graph and replayed with other counts (TransformerEngine
 * #3019). The sum of m may be below R: the rest of the rows is slack, never read and never written. For a group without
 * rows, the weight gradient is stored as zeros where the call does not accumulate and is left bitwise unchanged where
 * it does; its bias gradient is zero. No function returns early because there are no rows.
 *
 * Sources: TransformerEngine grouped_linear.py (#3019, #2769), Megatron-LM distributed_data_parallel.py.
 */
#ifndef MOE_LINEAR_H
#define MOE_LINEAR_H

#include "device.h"
#include "dtype.h"
#include "fp8.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_linear moe_linear_t;

struct moe_linear_config {
    int64_t groups, out_features, in_features, max_rows;
    enum moe_dtype activation; /* of x, y, dx, dy: float32, bfloat16 or float16 */
    enum moe_dtype weight;     /* any type; an FP8 weight needs scales */
    enum moe_dtype bias;       /* the type of the biases; bfloat16 is usual with FP8 weights and float32 activations */
    bool has_bias;
    bool block_scales;            /* FP8: one scale per MOE_FP8_BLOCK square block; else one per tensor */
    bool fuse_wgrad_accumulation; /* weight gradients go into main_grad */
    bool delay_wgrad;             /* weight and bias gradients are left to moe_linear_backward_dw */
    bool packed;                  /* one parameter [groups,N,K] for all groups: struct moe_param */
    float bias_scale;   /* forward multiplies the bias by this number, backward does not: 1/P with P expert tensor
                           parallel ranks; 0 means 1 */
    struct moe_fp8 fp8; /* products of FP8 by FP8: e4m3 weights, bfloat16 activations, features multiples of 16 */
};

/*
 * The weight of one group, or with `packed` that of all groups, whose members below then have groups x as many elements
 * and are `weights[0]` of every call (TransformerEngine #3019: single_param). It has the attributes that frameworks
 * hang on a parameter. The pointers are device memory that the caller owns; the host reads the struct and writes its
 * flag.
 */
struct moe_param {
    const void *data;   /* [N,K] */
    const float *scale; /* FP8: the factor of each stored number: [1], or [ceil(N/128), ceil(K/128)] */
    void *main_grad;    /* [N,K]; NULL: not fused; NULL for all groups of a fused linear whose weights are not frozen:
                           no backward follows */
    enum moe_dtype main_grad_type; /* float32, bfloat16 or float16 */
    bool has_added_flag;           /* the framework's hook looks at grad_added_to_main_grad */
    bool grad_added_to_main_grad;  /* out: set by backward */
    bool zero_out_wgrad;           /* the hook adds the placeholder to main_grad, so the placeholder must be zero */
    bool overwrite_main_grad;      /* read on the first weight only: no call accumulates */
};

/* What autograd is given as the gradient of one parameter. data = NULL: no gradient (None). */
struct moe_grad {
    void *data; /* borrowed: valid until the next backward; a placeholder is valid for the life of the process */
    enum moe_dtype type;
    int64_t rows, columns;
    bool placeholder; /* the numbers mean nothing: the gradient is in main_grad */
};

/* Whether a microbatch is the first of a step; UNKNOWN where the framework does not say. */
enum moe_microbatch { MOE_MICROBATCH_UNKNOWN, MOE_MICROBATCH_FIRST, MOE_MICROBATCH_LATER };

/*
 * Makes a grouped linear. *out is owned by the caller; borrows device. All functions of this file: one thread at a
 * time. Errors: NOMEM, SHAPE, ARG (a type that is not allowed in its place), UNSUPPORTED (the device has no product of
 * FP8 by FP8, which is asked for).
 */
int moe_linear_new(moe_device_t *device, const struct moe_linear_config *config, moe_linear_t **out);
/* Frees the linear and clears the pointer. NULL is allowed. */
void moe_linear_destroy(moe_linear_t **linear);

/*
 * Computes y [rows,N] from x [rows,K]. `weights` is [groups]; `biases` is [groups] pointers to [N] numbers on the
 * device, NULL without bias; m is [groups] on the device. Borrows weights, biases, x and m until backward has run.
 * Errors: CAPACITY (rows > max_rows), ARG (x, y, a weight, a scale or a bias is missing, or the main_grad of some
 * groups but not of all); in the stream: COUNT (a negative count), SPLIT (sum of m > rows).
 */
int moe_linear_forward(moe_linear_t *linear, struct moe_param *const *weights, const void *const *biases, const void *x,
                       const int64_t *m, int64_t rows, void *y);

/* The arguments of moe_linear_forward_call beside x, m and y. All are borrowed until backward has run. */
struct moe_linear_call {
    struct moe_param *const *weights;
    const void *const *biases;
    void *const *bias_grads; /* NULL, or [groups]: main_grads of the biases, in the type of the weights' main_grads and
                                with the same rule of accumulation; needs fuse_wgrad_accumulation */
    const float *bias_probs; /* NULL, or [rows] on the device: each row's bias is multiplied by its number (Megatron-LM:
                                router weights inside the activation) */
    /*
     * The weights or the biases of all groups are frozen (requires_grad off): backward does no work for them, writes no
     * main_grad, sets no flag, and gives autograd nothing (data NULL). dx and d_bias_probs are as ever. main_grad and
     * bias_grads of what is frozen are not read.
     */
    bool weights_frozen, biases_frozen;
};

/* Does what moe_linear_forward does, with all arguments of moe_linear_call. Errors: those of moe_linear_forward. */
int moe_linear_forward_call(moe_linear_t *linear, const struct moe_linear_call *call, const void *x, const int64_t *m,
                            int64_t rows, void *y);

/*
 * Does what moe_linear_forward does, with counts host_m [groups] on the host (TransformerEngine's legacy m_splits). The
 * counts are read before the call returns and copied to the device in the stream; in a captured call they are part of
 * the graph. Their sum must be `rows`. Errors: those of moe_linear_forward, but COUNT and SPLIT are found at once.
 */
int moe_linear_forward_host(moe_linear_t *linear, struct moe_param *const *weights, const void *const *biases,
                            const void *x, const int64_t *host_m, int64_t rows, void *y);

/*
 * Computes dx [rows,K] (NULL: not wanted) from dy [rows,N], and the gradients of weights and biases. dy is borrowed
 * until the enqueued work has run, with delay_wgrad until backward_dw has. A weight gradient is added to main_grad when
 * fuse_wgrad_accumulation is set, the microbatch is not the first and overwrite_main_grad is not set; otherwise it
 * overwrites. Errors: STATE before any forward, ARG (dy is missing).
 */
int moe_linear_backward(moe_linear_t *linear, const void *dy, void *dx, enum moe_microbatch microbatch);

/*
 * Does what moe_linear_backward does, and adds the gradient of bias_probs, bias_scale <dy[r], bias>, to d_bias_probs
 * [rows] (NULL: not wanted). That gradient is never delayed.
 */
int moe_linear_backward_call(moe_linear_t *linear, const void *dy, void *dx, float *d_bias_probs,
                             enum moe_microbatch microbatch);

/*
 * Says that the same rows that forward was given as x are now at `x`: they were computed again into other memory. The
 * weight gradients read them there. Borrowed as forward's x.
 */
void moe_linear_moved(moe_linear_t *linear, const void *x);

/*
 * Takes up an earlier forward, so that the next backward is that forward's: what moe_linear_forward_call does with
 * these arguments, but for y. One object then serves any number of microbatches and layers of its shape, because
 * nothing of a forward is kept in it: weights, x and m may have moved since (FSDP gathers weights again, checkpointing
 * computes x again), and gradients need a place only now. A weight gradient of its own, where it was delayed, is a
 * resume and a backward whose dx is NULL. Borrows as forward does. Errors: CAPACITY, ARG; then an earlier forward stays
 * as it was.
 */
int moe_linear_resume(moe_linear_t *linear, const struct moe_linear_call *call, const void *x, const int64_t *m,
                      int64_t rows);

/* Computes the weight and bias gradients that delay_wgrad left. Errors: STATE when there are none. */
int moe_linear_backward_dw(moe_linear_t *linear);

/*
 * What backward gives autograd for the weight of a group:
 *
 *   not fused               the gradient [N,K] in the activation's type
 *   fused, has_added_flag   a placeholder of main_grad's shape in the weight's type (the activation's for an FP8
 * weight; zero with zero_out_wgrad), and the flag is set. The process keeps one placeholder per shape, type and GPU,
 * made by the first backward; making one inside a capture is STATE fused, no flag          nothing
 *
 * With `packed` it is asked of group 0, and [groups x N,K] is the shape. With delay_wgrad the answer is there from
 * backward_dw on. No gradient ever has an FP8 type. Errors: ARG (group), STATE.
 */
int moe_linear_weight_grad(const moe_linear_t *linear, int64_t group, struct moe_grad *out);
/*
 * What backward gives autograd for the bias of a group: [N] in the type of the weight gradient (main_grad's or the
 * activation's). With delay_wgrad the answer is there from backward_dw on. Errors: ARG (group), STATE.
 */
int moe_linear_bias_grad(const moe_linear_t *linear, int64_t group, struct moe_grad *out);

#ifdef __cplusplus
}
#endif
#endif
