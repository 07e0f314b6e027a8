/*
 * linear.h: the grouped linear as a module: one weight per expert, any activation type, and the whole contract of its
 * weight gradients.
 *
 *   forward  y_i = x_i w_i^T (+ b_i)      dgrad  dx_i = dy_i w_i      wgrad  dw_i = dy_i^T x_i      bgrad  db_i = sum
 * of dy_i's rows
 *
 * x [R,K], y [R,N], rows of group i at the prefix sum of m; m [groups] int64 on the device is never read on the host,
 * so that a call can be captured into a CUDA graph and replayed with other counts (TransformerEngine #3019). The sum of
 * m may be below R: the rest is slack, never read and never written. A group without rows has its weight gradient
 * stored as zeros where the call does not accumulate, and left bitwise alone where it does; its bias gradient is zero.
 * Nothing returns early because there are no rows.
 *
 * Sources: TransformerEngine grouped_linear.py (#3019, #2769), Megatron-LM distributed_data_parallel.py.
 */
#ifndef MOE_LINEAR_H
#define MOE_LINEAR_H

#include "device.h"
#include "dtype.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_linear moe_linear_t;

#define MOE_FP8_BLOCK 128 /* edge of a block of weights that has a scale of its own */

struct moe_linear_config {
    int64_t groups, out_features, in_features, max_rows;
    enum moe_dtype activation; /* of x, y, dx, dy: float32, bfloat16 or float16 */
    enum moe_dtype weight;     /* any; an FP8 weight needs scales */
    enum moe_dtype bias;       /* of the biases; with FP8 weights and float32 activations bfloat16 is usual */
    bool has_bias;
    bool block_scales;            /* FP8: a scale per MOE_FP8_BLOCK square block, else per tensor */
    bool fuse_wgrad_accumulation; /* weight gradients go into main_grad */
    bool delay_wgrad;             /* they are computed by moe_linear_backward_dw */
    float bias_scale; /* the bias is multiplied by it, its gradient is not: 1/P of P expert tensor parallel ranks. 0
                         means 1 */
};

/* One group's weight, as frameworks hang attributes on a parameter. Device memory that the caller owns; the struct is
 * read and its flag written on the host. */
struct moe_param {
    const void *data;              /* [N,K] */
    const float *scale;            /* FP8: what a stored number is multiplied by: [1], or [ceil(N/128), ceil(K/128)] */
    void *main_grad;               /* [N,K], or NULL: not fused, or for all groups: no backward follows */
    enum moe_dtype main_grad_type; /* float32, bfloat16 or float16 */
    bool has_added_flag;           /* the framework's hook looks at grad_added_to_main_grad */
    bool grad_added_to_main_grad;  /* out: set by backward */
    bool zero_out_wgrad;           /* the hook will add the placeholder: it must be zero */
    bool overwrite_main_grad;      /* on the first weight: nobody accumulates */
};

/* What autograd is given for one parameter. data NULL: no gradient (None). */
struct moe_grad {
    void *data; /* borrowed: valid until the next backward; a placeholder: for the life of the process */
    enum moe_dtype type;
    int64_t rows, columns;
    bool placeholder; /* its numbers mean nothing: the gradient is in main_grad */
};

/* Whether a microbatch is the first of a step: the framework says it (yes, no), or does not (unknown). */
enum moe_microbatch { MOE_MICROBATCH_UNKNOWN, MOE_MICROBATCH_FIRST, MOE_MICROBATCH_LATER };

/* *out is owned; borrows device. Errors: NOMEM, SHAPE, ARG (a type that its place cannot have). One thread at a time.
 */
int moe_linear_new(moe_device_t *device, const struct moe_linear_config *config, moe_linear_t **out);
void moe_linear_destroy(moe_linear_t **linear);

/*
 * y [rows,N] from x [rows,K]. weights [groups] and biases [groups] (device, [N] each; NULL without bias) are borrowed
 * until backward, x and m too. Errors: CAPACITY (rows > max_rows), ARG (x, y, a weight, scale, bias or, of some groups
 * only, main_grad is missing); in the stream: COUNT (negative), SPLIT (sum of m > rows).
 */
int moe_linear_forward(moe_linear_t *linear, struct moe_param *const *weights, const void *const *biases, const void *x,
                       const int64_t *m, int64_t rows, void *y);

/* What a call may say beyond weights. All borrowed until backward. */
struct moe_linear_call {
    struct moe_param *const *weights;
    const void *const *biases;
    void *const *bias_grads; /* NULL, or [groups]: main_grads of the biases, in the type of the weights', with the
                                weights' rule of accumulation. Needs fuse_wgrad_accumulation */
    const float *bias_probs; /* NULL, or [rows] on the device: each row's bias is multiplied by its number (Megatron-LM:
                                router weights inside the activation) */
};

/* moe_linear_forward with all of that. Errors: as moe_linear_forward's. */
int moe_linear_forward_call(moe_linear_t *linear, const struct moe_linear_call *call, const void *x, const int64_t *m,
                            int64_t rows, void *y);

/* The same with counts of the host (TransformerEngine's legacy m_splits): copied to the device in the stream; read
   before the call returns; captured, they are part of the graph. Here the counts must add up to `rows`, and are checked
   at once: COUNT, SPLIT. */
int moe_linear_forward_host(moe_linear_t *linear, struct moe_param *const *weights, const void *const *biases,
                            const void *x, const int64_t *host_m, int64_t rows, void *y);

/*
 * dx [rows,K] (NULL: not wanted) from dy [rows,N] (borrowed until backward_dw where that is delayed), and the gradients
 * of weights and biases. Weight gradients are added to main_grad when fuse_wgrad_accumulation is set and the microbatch
 * is not the first (and overwrite_main_grad is not set), else they overwrite. Errors: STATE before any forward, ARG (no
 * dy).
 */
int moe_linear_backward(moe_linear_t *linear, const void *dy, void *dx, enum moe_microbatch microbatch);

/* The same, and adds to d_bias_probs [rows] (NULL: not wanted) the gradient of bias_probs: bias_scale <dy[r], bias>.
 * Never delayed. */
int moe_linear_backward_call(moe_linear_t *linear, const void *dy, void *dx, float *d_bias_probs,
                             enum moe_microbatch microbatch);

/* The weight and bias gradients that delay_wgrad left. Errors: STATE when there are none. */
int moe_linear_backward_dw(moe_linear_t *linear);

/*
 * What backward gives autograd for the weight of a group:
 *   not fused                      the gradient [N,K] in the activation's type
 *   fused, has_added_flag          a placeholder of main_grad's shape in the weight's type (an FP8 weight's: the
 * activation's; zero with zero_out_wgrad), and the flag is set. One for the process per shape, type and GPU, made by
 * the first backward: in a capture that is STATE fused, no flag                 nothing and for its bias: [N] in the
 * type that the weight gradient has (main_grad's or the activation's). With delay_wgrad both come from backward_dw on.
 * No gradient ever has an FP8 type. Errors: ARG (group), STATE.
 */
int moe_linear_weight_grad(const moe_linear_t *linear, int64_t group, struct moe_grad *out);
int moe_linear_bias_grad(const moe_linear_t *linear, int64_t group, struct moe_grad *out);

#ifdef __cplusplus
}
#endif
#endif
