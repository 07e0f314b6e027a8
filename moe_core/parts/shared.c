/*
 * shared.c: the shared expert: a state machine over two linears of one group each, and the collectives around them.
 *
 * A table says which step may follow which; every step is one short function that only enqueues, on the side device's
 * stream if there is one. Overlap needs four events and nothing else: the side stream waits for the main stream where a
 * direction begins, and the main stream for the side stream where it ends. A separate thread was rejected: the order of
 * launches on two communicators must be the same on all ranks (hazard H11), and only the order of the caller's own
 * calls ensures that.
 */
#include "moe_core/include/moe/shared.h"

#include "moe_core/base/fail.h"
#include "moe_core/include/moe/linear.h"
#include "moe_core/include/moe/ops.h"

#include <stdlib.h>

#define FAIL(code, ...) moe_fail(code, s->config.world_rank, s->config.layer, __VA_ARGS__)

/* What has been done. */
enum stage { IDLE, GATHERED, FC1, FC2, REDUCED, OUTPUT, BACK_GATHERED, BACK_FC2, BACK_FC1, BACK_REDUCED };

/* Row buffers. The buffers of a collective have `full` rows, the others as many as x. */
enum buffer { X_FULL, H, ACT, PART, OWN, DY_OWN, DY_FULL, D_ACT, D_H, DX_FULL, DX_OWN, BUFFERS };

struct moe_shared {
    moe_device_t *device, *work; /* work: the side device, or `device` without one */
    struct moe_shared_config config;
    int32_t ranks;
    enum stage stage;
    cudaEvent_t main_done, side_done;
    moe_linear_t *fc1, *fc2;
    void *buffer[BUFFERS];
    float *score, *d_score; /* [max_tokens] */
    int64_t *m;             /* [1] */
    int64_t tokens, full;   /* tokens of x; tokens that fc1 sees */
    const void *x, *dy;
    struct moe_shared_weights weights;
    struct moe_param param[2];
};

/* life */

static bool sharded_tokens(const moe_shared_t *s)
{
    return s->config.mode == MOE_SHARED_SEQUENCE && s->ranks > 1;
}

static bool summed(const moe_shared_t *s)
{
    return s->config.mode == MOE_SHARED_REPLICATED && s->ranks > 1;
}

static bool is_wide(enum moe_dtype type)
{
    return (unsigned)type <= MOE_F16;
}

static int check_config(moe_shared_t *s)
{
    const struct moe_shared_config *c = &s->config;
    int ranks = 1;
    if (c->tp != NULL && ncclCommCount(c->tp, &ranks) != ncclSuccess) {
        return FAIL(MOE_E_COMM, "size of the shared expert's tp");
    }
    s->ranks = ranks;
    if (c->max_tokens < 0 || c->hidden < 1 || c->ffn < 1 || c->ffn % ranks != 0) {
        return FAIL(MOE_E_SHAPE, "a shared expert of hidden %lld, ffn %lld, %lld tokens over %d ranks",
                    (long long)c->hidden, (long long)c->ffn, (long long)c->max_tokens, ranks);
    }
    if ((unsigned)c->mode > MOE_SHARED_PARTIAL || (unsigned)c->activation >= MOE_ACTIVATIONS || !is_wide(c->type) ||
        !is_wide(c->weight) || !is_wide(c->main_grad)) {
        return FAIL(MOE_E_ARG, "a shared expert of mode %d, activation %d, %s rows, %s weights, %s gradients",
                    (int)c->mode, (int)c->activation, moe_dtype_name(c->type), moe_dtype_name(c->weight),
                    moe_dtype_name(c->main_grad));
    }
    if (c->mode == MOE_SHARED_SINGLE && ranks > 1) {
        return FAIL(MOE_E_COMM, "a single shared expert on a communicator of %d ranks", ranks);
    }
    return 0;
}

static int new_linears(moe_shared_t *s)
{
    const struct moe_shared_config *c = &s->config;
    int64_t part = c->ffn / s->ranks, most = c->max_tokens * (sharded_tokens(s) ? s->ranks : 1);
    struct moe_linear_config fc1 = {.groups = 1,
                                    .out_features = 2 * part,
                                    .in_features = c->hidden,
                                    .max_rows = most,
                                    .activation = c->type,
                                    .weight = c->weight,
                                    .bias = c->weight,
                                    .has_bias = c->has_bias,
                                    .fuse_wgrad_accumulation = true};
    struct moe_linear_config fc2 = fc1;
    fc2.out_features = c->hidden;
    fc2.in_features = part;
    fc2.bias_scale = 1.0f / (float)s->ranks;
    int rc = moe_linear_new(s->work, &fc1, &s->fc1);
    return rc ? rc : moe_linear_new(s->work, &fc2, &s->fc2);
}

static int allocate(moe_shared_t *s)
{
    const struct moe_shared_config *c = &s->config;
    int64_t part = c->ffn / s->ranks, own = c->max_tokens, full = own * (sharded_tokens(s) ? s->ranks : 1);
    const struct {
        int64_t rows, width;
    } sizes[BUFFERS] = {
        [X_FULL] = {sharded_tokens(s) ? full : 0, c->hidden},
        [H] = {full, 2 * part},
        [ACT] = {full, part},
        [PART] = {full, c->hidden},
        [OWN] = {sharded_tokens(s) ? own : 0, c->hidden},
        [DY_OWN] = {c->has_gate ? own : 0, c->hidden},
        [DY_FULL] = {sharded_tokens(s) ? full : 0, c->hidden},
        [D_ACT] = {full, part},
        [D_H] = {full, 2 * part},
        [DX_FULL] = {full, c->hidden},
        [DX_OWN] = {sharded_tokens(s) ? own : 0, c->hidden},
    };
    int rc = moe_device_alloc(s->work, sizeof(*s->m), (void **)&s->m);
    for (int b = 0; b < BUFFERS && rc == 0; b++) {
        rc = moe_device_alloc(s->work, (size_t)(sizes[b].rows * sizes[b].width) * moe_dtype_bytes(c->type),
                              &s->buffer[b]);
    }
    size_t scores = (size_t)c->max_tokens * sizeof(float);
    rc = rc ? rc : moe_device_alloc(s->work, scores, (void **)&s->score);
    return rc ? rc : moe_device_alloc(s->work, scores, (void **)&s->d_score);
}

static int new_events(moe_shared_t *s)
{
    if (s->work == s->device) {
        return 0;
    }
    return cudaEventCreateWithFlags(&s->main_done, cudaEventDisableTiming) != cudaSuccess ||
                   cudaEventCreateWithFlags(&s->side_done, cudaEventDisableTiming) != cudaSuccess
               ? FAIL(MOE_E_DEVICE, "events of the shared expert")
               : 0;
}

int moe_shared_new(moe_device_t *device, moe_device_t *side, const struct moe_shared_config *config, moe_shared_t **out)
{
    *out = NULL;
    moe_shared_t *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        return moe_fail(MOE_E_NOMEM, config->world_rank, config->layer, "a shared expert");
    }
    s->device = device;
    s->work = side != NULL ? side : device;
    s->config = *config;
    struct moe_clamp *clamp = &s->config.clamp;
    if (clamp->alpha == 0.0f && clamp->limit == 0.0f) {
        *clamp = (struct moe_clamp){1.702f, 7.0f, 1.0f};
    }
    int rc = check_config(s);
    rc = rc ? rc : new_linears(s);
    rc = rc ? rc : allocate(s);
    rc = rc ? rc : new_events(s);
    if (rc != 0) {
        moe_shared_destroy(&s);
    }
    *out = s;
    return rc;
}

void moe_shared_destroy(moe_shared_t **shared)
{
    moe_shared_t *s = *shared;
    if (s == NULL) {
        return;
    }
    cudaStreamSynchronize(moe_device_stream(s->device)); /* it may still read the output */
    moe_linear_destroy(&s->fc1);
    moe_linear_destroy(&s->fc2);
    for (int b = 0; b < BUFFERS; b++) {
        moe_device_free(s->work, &s->buffer[b]);
    }
    moe_device_free(s->work, &s->score);
    moe_device_free(s->work, &s->d_score);
    moe_device_free(s->work, &s->m);
    if (s->main_done != NULL) {
        cudaEventDestroy(s->main_done);
    }
    if (s->side_done != NULL) {
        cudaEventDestroy(s->side_done);
    }
    free(s);
    *shared = NULL;
}

cudaStream_t moe_shared_stream(const moe_shared_t *s)
{
    return moe_device_stream(s->work);
}

void moe_shared_obligation(const moe_shared_t *s, bool after, struct moe_node *node)
{
    enum moe_obligation_op op = sharded_tokens(s)    ? (after ? MOE_OBLIGE_REDUCESCATTER : MOE_OBLIGE_ALLGATHER)
                                : summed(s) && after ? MOE_OBLIGE_ALLREDUCE
                                                     : MOE_OBLIGE_NONE;
    node->op = op;
    node->comm = op != MOE_OBLIGE_NONE ? s->config.tp : NULL;
    node->count = op != MOE_OBLIGE_NONE ? (uint64_t)(s->tokens * s->config.hidden) : 0;
}

/* what the steps are made of */

static bool is_frozen(const struct moe_shared_weights *w, enum moe_shared_parameter which)
{
    return (w->frozen >> which & 1u) != 0;
}

/* Makes the stream of `behind` wait for what the other device's stream has been given so far. */
static int follow(moe_shared_t *s, moe_device_t *behind, moe_device_t *ahead, cudaEvent_t event)
{
    if (behind == ahead) {
        return 0;
    }
    return cudaEventRecord(event, moe_device_stream(ahead)) != cudaSuccess ||
                   cudaStreamWaitEvent(moe_device_stream(behind), event, 0) != cudaSuccess
               ? FAIL(MOE_E_DEVICE, "an event between the shared expert and its layer")
               : 0;
}

/* Checks that `step` may come now; a step that fails makes all further steps fail. */
static int enter(moe_shared_t *s, const char *step, enum stage after, enum stage or_after)
{
    if (s->stage != after && s->stage != or_after) {
        return FAIL(MOE_E_STATE, "shared expert: %s at stage %d", step, (int)s->stage);
    }
    return 0;
}

static int leave(moe_shared_t *s, enum stage now, int rc)
{
    s->stage = rc == 0 ? now : IDLE;
    return rc;
}

void moe_shared_reset(moe_shared_t *s)
{
    if (s != NULL && s->stage != IDLE) {
        (void)follow(s, s->device, s->work, s->side_done);
        s->stage = IDLE;
    }
}

static ncclDataType_t nccl_type(enum moe_dtype type)
{
    static const ncclDataType_t types[] = {[MOE_F32] = ncclFloat32, [MOE_BF16] = ncclBfloat16, [MOE_F16] = ncclFloat16};
    return types[type];
}

static int nccl_result(moe_shared_t *s, const char *what, ncclResult_t nc)
{
    return nc == ncclSuccess ? 0 : FAIL(MOE_E_COMM, "shared expert's %s: %s", what, ncclGetErrorString(nc));
}

static int gather(moe_shared_t *s, const void *from, void *to)
{
    return nccl_result(s, "AllGather",
                       ncclAllGather(from, to, (size_t)(s->tokens * s->config.hidden), nccl_type(s->config.type),
                                     s->config.tp, moe_device_stream(s->work)));
}

static int scatter(moe_shared_t *s, const void *from, void *to)
{
    return nccl_result(s, "ReduceScatter",
                       ncclReduceScatter(from, to, (size_t)(s->tokens * s->config.hidden), nccl_type(s->config.type),
                                         ncclSum, s->config.tp, moe_device_stream(s->work)));
}

static int reduce(moe_shared_t *s, void *data)
{
    return nccl_result(s, "AllReduce",
                       ncclAllReduce(data, data, (size_t)(s->tokens * s->config.hidden), nccl_type(s->config.type),
                                     ncclSum, s->config.tp, moe_device_stream(s->work)));
}

/* The output before the gate, and the gradient that get_grad returns. */
static void *output(moe_shared_t *s)
{
    return s->buffer[sharded_tokens(s) ? OWN : PART];
}

static void *input_gradient(moe_shared_t *s)
{
    return s->buffer[sharded_tokens(s) ? DX_OWN : DX_FULL];
}

/* The gradient that fc2's backward is given. */
static const void *upstream(moe_shared_t *s)
{
    return sharded_tokens(s) ? s->buffer[DY_FULL] : s->config.has_gate ? s->buffer[DY_OWN] : s->dy;
}

static struct moe_token_gate gate_of(const moe_shared_t *s)
{
    return (struct moe_token_gate){.tokens = s->tokens,
                                   .width = s->config.hidden,
                                   .type = s->config.type,
                                   .gate_type = s->config.weight,
                                   .grad = s->config.main_grad,
                                   .x = s->x,
                                   .gate = s->weights.gate,
                                   .score = s->score,
                                   .d_score = s->d_score,
                                   .d_gate = is_frozen(&s->weights, MOE_SHARED_GATE) ? NULL : s->weights.d_gate,
                                   .beta = s->weights.overwrite ? 0.0f : 1.0f};
}

static struct moe_row_scale rows_of(const moe_shared_t *s)
{
    return (struct moe_row_scale){.rows = s->tokens,
                                  .width = s->config.hidden,
                                  .type = s->config.type,
                                  .probs = s->config.has_gate ? s->score : NULL};
}

static struct moe_act act_of(const moe_shared_t *s)
{
    return (struct moe_act){.rows = s->full,
                            .width = s->config.ffn / s->ranks,
                            .kind = s->config.activation,
                            .clamp = s->config.clamp,
                            .type = s->config.type,
                            .h = s->buffer[H],
                            .act = s->buffer[ACT],
                            .d_act = s->buffer[D_ACT],
                            .d_h = s->buffer[D_H]};
}

static void tell_ready(const moe_shared_t *s, enum moe_shared_parameter which)
{
    if (s->config.ready != NULL && !is_frozen(&s->weights, which)) {
        s->config.ready(s->config.ready_arg, (int)which);
    }
}

static void tell_linear(const moe_shared_t *s, enum moe_shared_parameter weight, enum moe_shared_parameter bias)
{
    tell_ready(s, weight);
    if (s->config.has_bias) {
        tell_ready(s, bias);
    }
}

/* forward */

/* One parameter of the shared expert: whether there is one, and where it and its gradient are. */
struct entry {
    bool there;
    const void *data, *grad;
};
enum { PARAMETERS = MOE_SHARED_GATE + 1 };

static void list_parameters(const moe_shared_t *s, const struct moe_shared_weights *w, struct entry entry[PARAMETERS])
{
    bool bias = s->config.has_bias;
    entry[MOE_SHARED_W1] = (struct entry){true, w->w1, w->d_w1};
    entry[MOE_SHARED_B1] = (struct entry){bias, w->b1, w->d_b1};
    entry[MOE_SHARED_W2] = (struct entry){true, w->w2, w->d_w2};
    entry[MOE_SHARED_B2] = (struct entry){bias, w->b2, w->d_b2};
    entry[MOE_SHARED_GATE] = (struct entry){s->config.has_gate, w->gate, w->d_gate};
}

/* Whether a backward can follow: some gradient is given, or none is wanted because every parameter is frozen. */
static bool goes_back(const moe_shared_t *s, const struct moe_shared_weights *w)
{
    struct entry entry[PARAMETERS];
    bool given = false, wanted = false;
    list_parameters(s, w, entry);
    for (int i = 0; i < PARAMETERS; i++) {
        given = given || entry[i].grad != NULL;
        wanted = wanted || (entry[i].there && !is_frozen(w, (enum moe_shared_parameter)i));
    }
    return given || !wanted;
}

/* All gradients must be given, those of frozen parameters left out, or none; with none no backward follows. */
static int check_weights(moe_shared_t *s, const struct moe_shared_weights *w)
{
    struct entry entry[PARAMETERS];
    bool grads = goes_back(s, w), lacks = false;
    list_parameters(s, w, entry);
    for (int i = 0; i < PARAMETERS; i++) {
        bool wanted = grads && !is_frozen(w, (enum moe_shared_parameter)i);
        lacks = lacks || (entry[i].there && (entry[i].data == NULL || (wanted && entry[i].grad == NULL)));
    }
    return lacks ? FAIL(MOE_E_ARG, "the shared expert lacks a weight, a bias, its gate or a gradient") : 0;
}

static int forward_linear(moe_shared_t *s, moe_linear_t *linear, int which, const void *from, void *to)
{
    const struct moe_shared_weights *w = &s->weights;
    s->param[which] = (struct moe_param){.data = which == 0 ? w->w1 : w->w2,
                                         .main_grad = which == 0 ? w->d_w1 : w->d_w2,
                                         .main_grad_type = s->config.main_grad,
                                         .overwrite_main_grad = w->overwrite};
    struct moe_param *param = &s->param[which];
    const void *bias = which == 0 ? w->b1 : w->b2;
    void *d_bias = which == 0 ? w->d_b1 : w->d_b2;
    struct moe_linear_call call = {.weights = &param,
                                   .biases = &bias,
                                   .bias_grads = s->config.has_bias && d_bias != NULL ? &d_bias : NULL,
                                   .weights_frozen = is_frozen(w, which == 0 ? MOE_SHARED_W1 : MOE_SHARED_W2),
                                   .biases_frozen = is_frozen(w, which == 0 ? MOE_SHARED_B1 : MOE_SHARED_B2)};
    return moe_linear_forward_call(linear, &call, from, s->m, s->full, to);
}

int moe_shared_pre_forward_comm(moe_shared_t *s, const struct moe_shared_weights *weights, const void *x,
                                int64_t tokens)
{
    int rc = enter(s, "pre_forward_comm", IDLE, OUTPUT);
    if (rc == 0 && (tokens < 0 || tokens > s->config.max_tokens)) {
        rc = FAIL(MOE_E_CAPACITY, "%lld tokens for a shared expert made for %lld", (long long)tokens,
                  (long long)s->config.max_tokens);
    }
    rc = rc ? rc : check_weights(s, weights);
    if (rc != 0) {
        return rc;
    }
    s->weights = *weights;
    s->x = x;
    s->tokens = tokens;
    s->full = tokens * (sharded_tokens(s) ? s->ranks : 1);
    struct moe_fill_counts fill = {.count = 1, .value = s->full, .to = s->m};
    struct moe_token_gate gate = gate_of(s);
    const struct moe_ops *ops = moe_device_ops(s->work);
    rc = follow(s, s->work, s->device, s->main_done);
    rc = rc ? rc : ops->fill_counts(s->work, &fill);
    if (rc == 0 && s->config.has_gate) {
        rc = ops->token_gate(s->work, &gate);
    }
    if (rc == 0 && sharded_tokens(s)) {
        rc = gather(s, x, s->buffer[X_FULL]);
    }
    return leave(s, GATHERED, rc);
}

int moe_shared_fc1(moe_shared_t *s)
{
    int rc = enter(s, "fc1", GATHERED, GATHERED);
    if (rc != 0) {
        return rc;
    }
    struct moe_act act = act_of(s);
    rc = forward_linear(s, s->fc1, 0, sharded_tokens(s) ? s->buffer[X_FULL] : s->x, s->buffer[H]);
    return leave(s, FC1, rc ? rc : moe_device_ops(s->work)->act(s->work, &act));
}

int moe_shared_fc2(moe_shared_t *s)
{
    int rc = enter(s, "fc2", FC1, FC1);
    return rc ? rc : leave(s, FC2, forward_linear(s, s->fc2, 1, s->buffer[ACT], s->buffer[PART]));
}

int moe_shared_post_forward_comm(moe_shared_t *s)
{
    int rc = enter(s, "post_forward_comm", FC2, FC2);
    if (rc != 0) {
        return rc;
    }
    if (sharded_tokens(s)) {
        rc = scatter(s, s->buffer[PART], s->buffer[OWN]);
    } else if (summed(s)) {
        rc = reduce(s, s->buffer[PART]);
    }
    return leave(s, REDUCED, rc);
}

int moe_shared_get_output(moe_shared_t *s, void *y, bool add)
{
    int rc = enter(s, "get_output", REDUCED, REDUCED);
    if (rc != 0) {
        return rc;
    }
    struct moe_row_scale rows = rows_of(s);
    rows.in = output(s);
    rows.out = y;
    rows.beta = add ? 1.0f : 0.0f;
    rc = follow(s, s->device, s->work, s->side_done);
    return leave(s, OUTPUT, rc ? rc : moe_device_ops(s->device)->row_scale(s->device, &rows));
}

/* backward */

/* Carries dy through the gate, and computes the gradient of the scores. */
static int through_gate(moe_shared_t *s)
{
    const struct moe_ops *ops = moe_device_ops(s->work);
    struct moe_row_scale rows = rows_of(s);
    rows.in = s->dy;
    rows.out = s->buffer[DY_OWN];
    rows.x = output(s);
    rows.d_probs = s->d_score;
    int rc = ops->zero(s->work, s->d_score, (size_t)s->tokens * sizeof(float));
    return rc ? rc : ops->row_scale_backward(s->work, &rows);
}

int moe_shared_pre_backward_comm(moe_shared_t *s, const void *dy)
{
    int rc = enter(s, "pre_backward_comm", OUTPUT, OUTPUT);
    if (rc == 0 && !goes_back(s, &s->weights)) {
        rc = FAIL(MOE_E_ARG, "shared expert: backward of a forward without gradients");
    }
    if (rc != 0) {
        return rc;
    }
    s->dy = dy;
    rc = follow(s, s->work, s->device, s->main_done);
    if (rc == 0 && s->config.has_gate) {
        rc = through_gate(s);
    }
    if (rc == 0 && sharded_tokens(s)) {
        rc = gather(s, s->config.has_gate ? s->buffer[DY_OWN] : dy, s->buffer[DY_FULL]);
    }
    return leave(s, BACK_GATHERED, rc);
}

int moe_shared_fc2_backward(moe_shared_t *s)
{
    int rc = enter(s, "fc2_backward", BACK_GATHERED, BACK_GATHERED);
    if (rc != 0) {
        return rc;
    }
    rc = moe_linear_backward(s->fc2, upstream(s), s->buffer[D_ACT], MOE_MICROBATCH_UNKNOWN);
    if (rc == 0) {
        tell_linear(s, MOE_SHARED_W2, MOE_SHARED_B2);
    }
    return leave(s, BACK_FC2, rc);
}

int moe_shared_fc1_backward(moe_shared_t *s)
{
    int rc = enter(s, "fc1_backward", BACK_FC2, BACK_FC2);
    if (rc != 0) {
        return rc;
    }
    struct moe_act act = act_of(s);
    rc = moe_device_ops(s->work)->act_backward(s->work, &act);
    rc = rc ? rc : moe_linear_backward(s->fc1, s->buffer[D_H], s->buffer[DX_FULL], MOE_MICROBATCH_UNKNOWN);
    if (rc == 0) {
        tell_linear(s, MOE_SHARED_W1, MOE_SHARED_B1);
    }
    return leave(s, BACK_FC1, rc);
}

int moe_shared_post_backward_comm(moe_shared_t *s)
{
    int rc = enter(s, "post_backward_comm", BACK_FC1, BACK_FC1);
    if (rc != 0) {
        return rc;
    }
    if (sharded_tokens(s)) {
        rc = scatter(s, s->buffer[DX_FULL], s->buffer[DX_OWN]);
    } else if (summed(s)) {
        rc = reduce(s, s->buffer[DX_FULL]);
    }
    if (rc == 0 && s->config.has_gate) {
        struct moe_token_gate gate = gate_of(s);
        gate.dx = input_gradient(s);
        rc = moe_device_ops(s->work)->token_gate_backward(s->work, &gate);
        if (rc == 0) {
            tell_ready(s, MOE_SHARED_GATE);
        }
    }
    return leave(s, BACK_REDUCED, rc);
}

int moe_shared_get_grad(moe_shared_t *s, void *dx, bool add)
{
    int rc = enter(s, "get_grad", BACK_REDUCED, BACK_REDUCED);
    if (rc != 0) {
        return rc;
    }
    struct moe_row_scale rows = rows_of(s);
    rows.probs = NULL;
    rows.in = input_gradient(s);
    rows.out = dx;
    rows.beta = add ? 1.0f : 0.0f;
    rc = follow(s, s->device, s->work, s->side_done);
    return leave(s, IDLE, rc ? rc : moe_device_ops(s->device)->row_scale(s->device, &rows));
}

/* all at once */

int moe_shared_forward(moe_shared_t *s, const struct moe_shared_weights *weights, const void *x, int64_t tokens,
                       void *y, bool add)
{
    int rc = moe_shared_pre_forward_comm(s, weights, x, tokens);
    rc = rc ? rc : moe_shared_fc1(s);
    rc = rc ? rc : moe_shared_fc2(s);
    rc = rc ? rc : moe_shared_post_forward_comm(s);
    return rc ? rc : moe_shared_get_output(s, y, add);
}

int moe_shared_backward(moe_shared_t *s, const void *dy, void *dx, bool add)
{
    int rc = moe_shared_pre_backward_comm(s, dy);
    rc = rc ? rc : moe_shared_fc2_backward(s);
    rc = rc ? rc : moe_shared_fc1_backward(s);
    rc = rc ? rc : moe_shared_post_backward_comm(s);
    return rc ? rc : moe_shared_get_grad(s, dx, add);
}
