/*
 * experts.c: fc1, a gated activation, fc2 over expert-major rows, on top of two grouped linears.
 *
 * Row buffers are of the device's pool, for the rows that there are; or they are made once for the most rows that a
 * rank can ever receive, because a graph that captured a call goes on to use them. One table (lifetime_of) says which
 * of the buffers a layer keeps from forward to backward and which it may share with other layers; recompute and delayed
 * weight gradients change only answers in that table. Any number of rows, zero included, takes the same path: no code
 * here asks how many there are.
 */
#include "moe_core/include/moe/experts.h"

#include "moe_core/base/fail.h"
#include "moe_core/base/memory.h"
#include "moe_core/include/moe/linear.h"
#include "moe_core/include/moe/ops.h"

#include <stdlib.h>

#define FAIL(code, ...) moe_fail(code, MOE_NO_RANK, MOE_NO_LAYER, __VA_ARGS__)

/* Row buffers. XS holds p x and exists with INPUT only. */
enum buffer { H, ACT, XS, D_H, D_ACT, BUFFERS };

struct moe_experts_workspace {
    moe_device_t *device;
    void *buffer[BUFFERS];
    size_t bytes[BUFFERS]; /* pooled: of what is held now */
};

struct moe_experts {
    moe_device_t *device;
    struct moe_experts_config config;
    bool sanitize, backward_due, dw_due;
    int64_t rows;
    const void *x;
    const float *row_probs;
    const int64_t *m;
    struct moe_experts_weights weights;
    moe_linear_t *fc1, *fc2;
    struct moe_param *params;         /* [2 L]: w1's, then w2's */
    struct moe_param **param;         /* [2 L]: to them */
    const void **biases;              /* [2 L] */
    void **bias_grads;                /* [2 L] */
    struct moe_experts_workspace own; /* buffers that are not shared */
    void *buffer[BUFFERS];
};

/* what is frozen */

static bool is_frozen(const struct moe_experts_weights *w, enum moe_experts_parameter which)
{
    return (w->frozen >> which & 1u) != 0;
}

/* Whether a backward can follow: some gradient is given, or none is wanted because every parameter is frozen. */
static bool goes_back(const moe_experts_t *e, const struct moe_experts_weights *w)
{
    bool bias = e->config.has_bias;
    bool wanted = !is_frozen(w, MOE_EXPERTS_W1) || !is_frozen(w, MOE_EXPERTS_W2) ||
                  (bias && (!is_frozen(w, MOE_EXPERTS_B1) || !is_frozen(w, MOE_EXPERTS_B2)));
    return !wanted || w->d_w1 != NULL || w->d_w2 != NULL || w->d_b1 != NULL || w->d_b2 != NULL;
}

/* memory */

enum lifetime { UNUSED, SCRATCH, KEPT };

/* How long a buffer's contents live: within one call, or from forward to backward (backward_dw). */
static enum lifetime lifetime_of(const struct moe_experts_config *c, enum buffer b)
{
    switch (b) {
    case H:
        return c->recompute == MOE_RECOMPUTE_FC1 ? SCRATCH : KEPT;
    case ACT: /* read by fc2's weight gradient */
        return c->recompute == MOE_RECOMPUTE_NONE || c->delay_wgrad ? KEPT : SCRATCH;
    case XS: /* read by fc1's weight gradient */
        return c->place != MOE_PROB_INPUT                            ? UNUSED
               : c->recompute != MOE_RECOMPUTE_FC1 || c->delay_wgrad ? KEPT
                                                                     : SCRATCH;
    case D_H:
        return c->delay_wgrad ? KEPT : SCRATCH;
    default:
        return SCRATCH;
    }
}

static size_t bytes_of(const struct moe_experts_config *c, enum buffer b, int64_t rows)
{
    int64_t width = b == XS ? c->hidden : b == H || b == D_H ? 2 * c->ffn : c->ffn;
    return (size_t)(rows * width) * moe_dtype_bytes(c->type);
}

static int check_config(const struct moe_experts_config *c)
{
    if (c->max_rows < 0 || c->hidden < 1 || c->ffn < 1 || c->experts < 1) {
        return FAIL(MOE_E_SHAPE, "%lld experts, hidden %lld, ffn %lld, %lld rows", (long long)c->experts,
                    (long long)c->hidden, (long long)c->ffn, (long long)c->max_rows);
    }
    if ((unsigned)c->activation >= MOE_ACTIVATIONS || (unsigned)c->place > MOE_PROB_INPUT ||
        (unsigned)c->recompute > MOE_RECOMPUTE_FC1) {
        return FAIL(MOE_E_ARG, "activation %d, probabilities at %d, recompute %d", (int)c->activation, (int)c->place,
                    (int)c->recompute);
    }
    if (c->pooled && c->workspace != NULL) {
        return FAIL(MOE_E_ARG, "experts with a workspace and with buffers of the pool");
    }
    if (!(c->bias2_scale >= 0.0f) || c->main_grad > MOE_F16 || c->clamp.limit < 0.0f) {
        return FAIL(MOE_E_ARG, "a bias scale of %g, main_grads of %s, a limit of %g", (double)c->bias2_scale,
                    moe_dtype_name(c->main_grad), (double)c->clamp.limit);
    }
    return 0;
}

int moe_experts_workspace_new(moe_device_t *device, const struct moe_experts_config *config,
                              moe_experts_workspace_t **out)
{
    *out = NULL;
    int rc = check_config(config);
    moe_experts_workspace_t *w = rc == 0 ? calloc(1, sizeof(*w)) : NULL;
    if (w == NULL) {
        return rc ? rc : FAIL(MOE_E_NOMEM, "a workspace");
    }
    w->device = device;
    for (int b = 0; b < BUFFERS && rc == 0; b++) {
        if (lifetime_of(config, (enum buffer)b) == SCRATCH) {
            w->bytes[b] = bytes_of(config, (enum buffer)b, config->max_rows);
            rc = moe_device_alloc(device, w->bytes[b], &w->buffer[b]);
        }
    }
    if (rc != 0) {
        moe_experts_workspace_destroy(&w);
    }
    *out = w;
    return rc;
}

static void release(struct moe_experts_workspace *w)
{
    for (int b = 0; b < BUFFERS; b++) {
        moe_device_free(w->device, &w->buffer[b]);
    }
}

void moe_experts_workspace_destroy(moe_experts_workspace_t **workspace)
{
    if (*workspace != NULL) {
        release(*workspace);
        free(*workspace);
        *workspace = NULL;
    }
}

/* Takes every buffer from the shared workspace, or from memory of the experts' own. */
static int find_buffers(moe_experts_t *e)
{
    const struct moe_experts_config *c = &e->config;
    for (int b = 0; b < BUFFERS; b++) {
        enum lifetime want = lifetime_of(c, (enum buffer)b);
        size_t bytes = bytes_of(c, (enum buffer)b, c->max_rows);
        if (want == SCRATCH && c->workspace != NULL) {
            if (c->workspace->buffer[b] == NULL || c->workspace->bytes[b] < bytes) {
                return FAIL(MOE_E_CAPACITY, "a workspace with %zu of %zu bytes", c->workspace->bytes[b], bytes);
            }
            e->buffer[b] = c->workspace->buffer[b];
        } else if (want != UNUSED) {
            int rc = moe_device_alloc(e->device, bytes, &e->own.buffer[b]);
            if (rc != 0) {
                return rc;
            }
            e->own.bytes[b] = bytes;
            e->buffer[b] = e->own.buffer[b];
        }
    }
    return 0;
}

/* Takes a buffer for the rows of this call, unless it holds what forward left in it. */
static int take(moe_experts_t *e, enum buffer b)
{
    if (!e->config.pooled || e->buffer[b] != NULL) {
        return 0;
    }
    e->own.bytes[b] = bytes_of(&e->config, b, e->rows);
    return moe_pool_take(e->device, e->own.bytes[b], &e->buffer[b]);
}

static void give(moe_experts_t *e, enum buffer b)
{
    if (e->config.pooled) {
        moe_pool_give(e->device, &e->buffer[b]);
        e->own.bytes[b] = 0;
    }
}

static void give_all(moe_experts_t *e)
{
    for (int b = 0; b < BUFFERS; b++) {
        give(e, (enum buffer)b);
    }
}

/* After forward: gives back what backward does not read. */
static void keep_for_backward(moe_experts_t *e)
{
    for (int b = 0; b < BUFFERS; b++) {
        if (!goes_back(e, &e->weights) || lifetime_of(&e->config, (enum buffer)b) != KEPT) {
            give(e, (enum buffer)b);
        }
    }
}

void moe_experts_release(moe_experts_t *e)
{
    give_all(e);
    e->backward_due = e->dw_due = false;
}

void moe_experts_memory(const moe_experts_t *e, size_t *kept, size_t *all)
{
    *kept = *all = 0;
    for (int b = 0; b < BUFFERS; b++) {
        *all += e->own.bytes[b];
        *kept += lifetime_of(&e->config, (enum buffer)b) == KEPT ? e->own.bytes[b] : 0;
    }
}

/* life */

static int new_linears(moe_experts_t *e)
{
    const struct moe_experts_config *c = &e->config;
    struct moe_linear_config fc1 = {.groups = c->experts,
                                    .out_features = 2 * c->ffn,
                                    .in_features = c->hidden,
                                    .max_rows = c->max_rows,
                                    .activation = c->type,
                                    .weight = c->weight,
                                    .bias = c->bias,
                                    .has_bias = c->has_bias,
                                    .block_scales = c->block_scales,
                                    .fp8 = c->fp8,
                                    .fuse_wgrad_accumulation = true,
                                    .delay_wgrad = c->delay_wgrad};
    struct moe_linear_config fc2 = fc1;
    fc2.out_features = c->hidden;
    fc2.in_features = c->ffn;
    fc2.bias_scale = c->bias2_scale;
    int rc = moe_linear_new(e->device, &fc1, &e->fc1);
    return rc ? rc : moe_linear_new(e->device, &fc2, &e->fc2);
}

int moe_experts_new(moe_device_t *device, const struct moe_experts_config *config, moe_experts_t **out)
{
    *out = NULL;
    int rc = check_config(config);
    moe_experts_t *e = rc == 0 ? calloc(1, sizeof(*e)) : NULL;
    if (e == NULL) {
        return rc ? rc : FAIL(MOE_E_NOMEM, "experts");
    }
    e->device = e->own.device = device;
    e->config = *config;
    struct moe_clamp *clamp = &e->config.clamp;
    if (clamp->alpha == 0.0f && clamp->limit == 0.0f) {
        *clamp = (struct moe_clamp){1.702f, 7.0f, 1.0f};
    }
    size_t both = 2 * (size_t)config->experts;
    e->params = calloc(both, sizeof(*e->params));
    e->param = calloc(both, sizeof(*e->param));
    e->biases = calloc(both, sizeof(*e->biases));
    e->bias_grads = calloc(both, sizeof(*e->bias_grads));
    if (e->params == NULL || e->param == NULL || e->biases == NULL || e->bias_grads == NULL) {
        rc = FAIL(MOE_E_NOMEM, "%lld experts", (long long)config->experts);
    }
    rc = rc ? rc : new_linears(e);
    rc = rc || config->pooled ? rc : find_buffers(e);
    if (rc != 0) {
        moe_experts_destroy(&e);
    }
    *out = e;
    return rc;
}

void moe_experts_destroy(moe_experts_t **experts)
{
    moe_experts_t *e = *experts;
    if (e == NULL) {
        return;
    }
    moe_linear_destroy(&e->fc1);
    moe_linear_destroy(&e->fc2);
    give_all(e);
    release(&e->own);
    free(e->params);
    free(e->param);
    free(e->biases);
    free(e->bias_grads);
    free(e);
    *experts = NULL;
}

/* parameters */

/* The parameters of one linear, as flat arrays [groups, n, k] and [groups, n]. */
struct flat {
    const void *weight, *bias;
    const float *scale;
    void *d_weight, *d_bias;
    int64_t n, k;
};

static void spread(moe_experts_t *e, const struct flat *f, int64_t first)
{
    const struct moe_experts_config *c = &e->config;
    int64_t blocks = c->block_scales
                         ? ((f->n + MOE_FP8_BLOCK - 1) / MOE_FP8_BLOCK) * ((f->k + MOE_FP8_BLOCK - 1) / MOE_FP8_BLOCK)
                         : 1;
    for (int64_t i = 0; i < c->experts; i++) {
        int64_t cells = i * f->n * f->k, at = first + i;
        e->params[at] = (struct moe_param){
            .data = (const char *)f->weight + cells * (int64_t)moe_dtype_bytes(c->weight),
            .scale = f->scale != NULL ? f->scale + i * blocks : NULL,
            .main_grad =
                f->d_weight != NULL ? (char *)f->d_weight + cells * (int64_t)moe_dtype_bytes(c->main_grad) : NULL,
            .main_grad_type = c->main_grad,
            .overwrite_main_grad = e->weights.overwrite,
        };
        e->param[at] = &e->params[at];
        if (c->has_bias) {
            e->biases[at] = (const char *)f->bias + i * f->n * (int64_t)moe_dtype_bytes(c->bias);
        }
        if (c->has_bias && f->d_bias != NULL) {
            e->bias_grads[at] = (char *)f->d_bias + i * f->n * (int64_t)moe_dtype_bytes(c->main_grad);
        }
    }
}

/* All gradients must be given, those of frozen parameters left out, or none; with none no backward follows. */
static int check_weights(const moe_experts_t *e, const struct moe_experts_weights *w)
{
    bool grads = goes_back(e, w);
    bool fp8 = e->config.weight == MOE_E4M3 || e->config.weight == MOE_E5M2;
    const struct {
        const char *name;
        const void *pointer;
        bool needed;
    } table[] = {
        {"w1", w->w1, true},
        {"w2", w->w2, true},
        {"d_w1", w->d_w1, grads && !is_frozen(w, MOE_EXPERTS_W1)},
        {"d_w2", w->d_w2, grads && !is_frozen(w, MOE_EXPERTS_W2)},
        {"b1", w->b1, e->config.has_bias},
        {"b2", w->b2, e->config.has_bias},
        {"d_b1", w->d_b1, grads && e->config.has_bias && !is_frozen(w, MOE_EXPERTS_B1)},
        {"d_b2", w->d_b2, grads && e->config.has_bias && !is_frozen(w, MOE_EXPERTS_B2)},
        {"scale1", w->scale1, fp8},
        {"scale2", w->scale2, fp8},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (table[i].needed && table[i].pointer == NULL) {
            return FAIL(MOE_E_ARG, "experts without %s", table[i].name);
        }
    }
    return 0;
}

static void use_weights(moe_experts_t *e, const struct moe_experts_weights *w)
{
    int64_t ffn = e->config.ffn, hidden = e->config.hidden;
    e->weights = *w;
    spread(e, &(struct flat){w->w1, w->b1, w->scale1, w->d_w1, w->d_b1, 2 * ffn, hidden}, 0);
    spread(e, &(struct flat){w->w2, w->b2, w->scale2, w->d_w2, w->d_b2, hidden, ffn}, e->config.experts);
}

static struct moe_linear_call call_of(moe_experts_t *e, int64_t first, const float *bias_probs)
{
    bool bias = e->config.has_bias, fc1 = first == 0;
    const struct moe_experts_weights *w = &e->weights;
    return (struct moe_linear_call){.weights = e->param + first,
                                    .biases = bias ? e->biases + first : NULL,
                                    .bias_grads = bias && goes_back(e, w) ? e->bias_grads + first : NULL,
                                    .bias_probs = bias_probs,
                                    .weights_frozen = is_frozen(w, fc1 ? MOE_EXPERTS_W1 : MOE_EXPERTS_W2),
                                    .biases_frozen = is_frozen(w, fc1 ? MOE_EXPERTS_B1 : MOE_EXPERTS_B2)};
}

/* forward */

static const float *probs_in_act(const moe_experts_t *e)
{
    return e->config.place == MOE_PROB_ACTIVATION ? e->row_probs : NULL;
}

static struct moe_act act_of(const moe_experts_t *e)
{
    return (struct moe_act){.groups = e->config.experts,
                            .m = e->m,
                            .rows = e->rows,
                            .width = e->config.ffn,
                            .kind = e->config.activation,
                            .clamp = e->config.clamp,
                            .type = e->config.type,
                            .h = e->buffer[H],
                            .probs = probs_in_act(e),
                            .act = e->buffer[ACT],
                            .d_act = e->buffer[D_ACT],
                            .d_h = e->buffer[D_H]};
}

static struct moe_row_scale input_scale(const moe_experts_t *e)
{
    return (struct moe_row_scale){.groups = e->config.experts,
                                  .m = e->m,
                                  .rows = e->rows,
                                  .width = e->config.hidden,
                                  .type = e->config.type,
                                  .probs = e->row_probs,
                                  .x = e->x};
}

/* Computes h from x, with the scaling of x that INPUT needs. */
static int run_fc1(moe_experts_t *e)
{
    const void *x = e->x;
    int rc = take(e, H);
    rc = rc || e->config.place != MOE_PROB_INPUT ? rc : take(e, XS);
    if (rc == 0 && e->config.place == MOE_PROB_INPUT) {
        struct moe_row_scale scale = input_scale(e);
        scale.in = e->x;
        scale.out = e->buffer[XS];
        rc = moe_device_ops(e->device)->row_scale(e->device, &scale);
        x = e->buffer[XS];
    }
    struct moe_linear_call call = call_of(e, 0, NULL);
    return rc ? rc : moe_linear_forward_call(e->fc1, &call, x, e->m, e->rows, e->buffer[H]);
}

static int run_act(moe_experts_t *e)
{
    int rc = take(e, ACT);
    struct moe_act act = act_of(e);
    return rc ? rc : moe_device_ops(e->device)->act(e->device, &act);
}

static int zero_slack(moe_experts_t *e, void *data, size_t row_bytes)
{
    struct moe_zero_slack slack = {
        .groups = e->config.experts, .rows = e->rows, .row_bytes = (int64_t)row_bytes, .m = e->m, .data = data};
    return e->sanitize ? moe_device_ops(e->device)->zero_slack(e->device, &slack) : 0;
}

int moe_experts_forward(moe_experts_t *e, const struct moe_experts_weights *weights, const void *x,
                        const float *row_probs, const int64_t *m, int64_t rows, void *y)
{
    const struct moe_experts_config *c = &e->config;
    if (rows < 0 || rows > c->max_rows) {
        return FAIL(MOE_E_CAPACITY, "%lld rows for experts made for %lld", (long long)rows, (long long)c->max_rows);
    }
    bool travel = c->place != MOE_PROB_SOURCE;
    if (travel != (row_probs != NULL) || m == NULL) {
        return FAIL(MOE_E_ARG, "experts with%s counts, with%s probabilities where they are%s applied", m ? "" : "out",
                    row_probs ? "" : "out", travel ? "" : " not");
    }
    int rc = check_weights(e, weights);
    if (rc != 0) {
        return rc;
    }
    give_all(e); /* what the last forward left: no backward of it follows */
    e->backward_due = e->dw_due = false;
    e->rows = rows;
    e->x = x;
    e->row_probs = row_probs;
    e->m = m;
    use_weights(e, weights);
    struct moe_linear_call fc2 = call_of(e, c->experts, probs_in_act(e));
    rc = run_fc1(e);
    rc = rc ? rc : run_act(e);
    rc = rc ? rc : moe_linear_forward_call(e->fc2, &fc2, e->buffer[ACT], m, rows, y);
    rc = rc ? rc : zero_slack(e, y, (size_t)c->hidden * moe_dtype_bytes(c->type));
    keep_for_backward(e);
    e->backward_due = rc == 0;
    return rc;
}

/* backward */

static void tell_ready(const moe_experts_t *e, enum moe_experts_parameter weight, enum moe_experts_parameter bias)
{
    if (e->config.ready != NULL && !is_frozen(&e->weights, weight)) {
        e->config.ready(e->config.ready_arg, (int)weight);
    }
    if (e->config.ready != NULL && e->config.has_bias && !is_frozen(&e->weights, bias)) {
        e->config.ready(e->config.ready_arg, (int)bias);
    }
}

static int recompute(moe_experts_t *e)
{
    int rc = e->config.recompute == MOE_RECOMPUTE_FC1 ? run_fc1(e) : 0;
    rc = rc == 0 && e->config.recompute != MOE_RECOMPUTE_NONE ? run_act(e) : rc;
    moe_linear_moved(e->fc2, e->buffer[ACT]);
    return rc;
}

/*
 * Checks that backward is given the gradient pointers that forward was given: the device knows those already. Only
 * `overwrite` may be decided late.
 */
static int check_same(moe_experts_t *e, const struct moe_experts_weights *w)
{
    const struct moe_experts_weights *f = &e->weights;
    if (w->w1 != f->w1 || w->w2 != f->w2 || w->d_w1 != f->d_w1 || w->d_w2 != f->d_w2 || w->b1 != f->b1 ||
        w->b2 != f->b2 || w->d_b1 != f->d_b1 || w->d_b2 != f->d_b2 || w->scale1 != f->scale1 ||
        w->scale2 != f->scale2 || w->frozen != f->frozen) {
        return FAIL(MOE_E_ARG, "experts backward with other weights than forward");
    }
    e->weights.overwrite = w->overwrite;
    for (int64_t i = 0; i < 2 * e->config.experts; i++) {
        e->params[i].overwrite_main_grad = w->overwrite;
    }
    return 0;
}

/* Computes the gradient of h from d_act, dx from that, and the gradient of the probabilities. */
static int through_act(moe_experts_t *e, float *d_row_probs)
{
    int rc = take(e, D_H);
    struct moe_act act = act_of(e);
    act.d_probs = e->config.place == MOE_PROB_ACTIVATION ? d_row_probs : NULL;
    return rc ? rc : moe_device_ops(e->device)->act_backward(e->device, &act);
}

static int through_input(moe_experts_t *e, void *dx, float *d_row_probs)
{
    struct moe_row_scale scale = input_scale(e);
    scale.in = scale.out = dx;
    scale.d_probs = d_row_probs;
    return e->config.place == MOE_PROB_INPUT ? moe_device_ops(e->device)->row_scale_backward(e->device, &scale) : 0;
}

int moe_experts_backward(moe_experts_t *e, const struct moe_experts_weights *weights, const void *dy, void *dx,
                         float *d_row_probs)
{
    const struct moe_experts_config *c = &e->config;
    if (!e->backward_due) {
        return FAIL(MOE_E_STATE, "experts backward before forward");
    }
    if (d_row_probs != NULL && c->place == MOE_PROB_SOURCE) {
        return FAIL(MOE_E_ARG, "a gradient of probabilities that are applied at the source");
    }
    int rc = goes_back(e, &e->weights) ? check_same(e, weights)
                                       : FAIL(MOE_E_ARG, "experts backward of a forward without gradients");
    if (rc != 0) {
        return rc;
    }
    e->backward_due = false;
    float *bias_probs = c->place == MOE_PROB_ACTIVATION ? d_row_probs : NULL;
    rc = recompute(e);
    if (rc == 0 && d_row_probs != NULL) {
        rc = moe_device_ops(e->device)->zero(e->device, d_row_probs, (size_t)e->rows * sizeof(float));
    }
    rc = rc ? rc : take(e, D_ACT);
    rc = rc ? rc : moe_linear_backward_call(e->fc2, dy, e->buffer[D_ACT], bias_probs, MOE_MICROBATCH_UNKNOWN);
    if (rc == 0 && !c->delay_wgrad) {
        tell_ready(e, MOE_EXPERTS_W2, MOE_EXPERTS_B2);
    }
    if (!c->delay_wgrad) {
        give(e, ACT);
    }
    rc = rc ? rc : through_act(e, d_row_probs);
    give(e, H);
    give(e, D_ACT);
    rc = rc ? rc : moe_linear_backward(e->fc1, e->buffer[D_H], dx, MOE_MICROBATCH_UNKNOWN);
    if (rc == 0 && !c->delay_wgrad) {
        tell_ready(e, MOE_EXPERTS_W1, MOE_EXPERTS_B1);
    }
    rc = rc ? rc : through_input(e, dx, d_row_probs);
    rc = rc ? rc : zero_slack(e, dx, (size_t)c->hidden * moe_dtype_bytes(c->type));
    e->dw_due = rc == 0 && c->delay_wgrad;
    if (!e->dw_due) {
        give_all(e);
    }
    return rc;
}

int moe_experts_backward_dw(moe_experts_t *e)
{
    if (!e->dw_due) {
        return FAIL(MOE_E_STATE, "experts: backward left no weight gradient to compute");
    }
    e->dw_due = false;
    int rc = moe_linear_backward_dw(e->fc2);
    if (rc == 0) {
        tell_ready(e, MOE_EXPERTS_W2, MOE_EXPERTS_B2);
        rc = moe_linear_backward_dw(e->fc1);
    }
    if (rc == 0) {
        tell_ready(e, MOE_EXPERTS_W1, MOE_EXPERTS_B1);
    }
    give_all(e); /* also behind a failure: a part of the gradients is added, so nobody can begin again */
    return rc;
}

void moe_experts_sanitize(moe_experts_t *e, bool on)
{
    e->sanitize = on;
}
