/*
 * linear.c: the grouped linear's module: what goes where, who accumulates, and what autograd is told.
 *
 * The pointers of all groups travel to the device as one table, copied in the stream; the counts on the device decide
 * which of them are used. The whole process shares the placeholders, one per shape and type, as in TransformerEngine.
 * The numbers of a placeholder mean nothing; it exists so that a hook sees a gradient.
 */
#include "moe_core/include/moe/linear.h"

#include "moe_core/base/fail.h"
#include "moe_core/base/memory.h"
#include "moe_core/base/staging.h"
#include "moe_core/include/moe/ops.h"
#include "moe_core/parts/linear_fp8.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct moe_linear {
    moe_device_t *device;
    struct moe_linear_config config;
    int64_t rows; /* of the last forward, -1 before any */
    const void *x, *dy;
    const int64_t *m;
    const float *bias_probs;
    int64_t *own_m; /* device copy of counts that the host gave */
    struct moe_staging *counts_staging, *table_staging;
    struct moe_param **param;                 /* [groups], of the last forward */
    struct moe_linear_group *table, *group;   /* [groups]: the table on the device, and its copy on the host */
    void *d_weight, *d_bias;                  /* [groups,N,K], where the gradients are not fused; [groups,N] */
    struct moe_grad *weight_grad, *bias_grad; /* [groups] */
    float beta;
    bool own_bias_grads, backward_due, dw_due, grads_ready;
    bool weights_frozen, biases_frozen; /* of the last forward */
};

#define FAIL(code, ...) moe_fail(code, MOE_NO_RANK, MOE_NO_LAYER, __VA_ARGS__)

/* placeholders */

struct placeholder {
    const char *backend; /* part of the key: memory of the host back end is no gradient for a GPU's parameter, nor is
                            another GPU's memory */
    int ordinal;
    int64_t rows, columns;
    enum moe_dtype type;
    void *data;
    struct placeholder *next;
};

static pthread_mutex_t placeholders_lock = PTHREAD_MUTEX_INITIALIZER;
static struct placeholder *placeholders;

static void *placeholder_find(const struct placeholder *like)
{
    for (struct placeholder *p = placeholders; p != NULL; p = p->next) {
        if (p->backend == like->backend && p->ordinal == like->ordinal && p->rows == like->rows &&
            p->columns == like->columns && p->type == like->type) {
            return p->data;
        }
    }
    return NULL;
}

/*
 * Gives the process's placeholder of this shape, type and device in *out. Placeholders are never freed: frameworks keep
 * views of them.
 */
static int placeholder_get(moe_device_t *device, int64_t rows, int64_t columns, enum moe_dtype type, void **out)
{
    struct placeholder like = {moe_device_name(device), 0, rows, columns, type, NULL, NULL};
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (cudaGetDevice(&like.ordinal) != cudaSuccess ||
        cudaStreamIsCapturing(moe_device_stream(device), &capture) != cudaSuccess) {
        return FAIL(MOE_E_DEVICE, "the device of a placeholder gradient");
    }
    pthread_mutex_lock(&placeholders_lock);
    int rc = 0;
    *out = placeholder_find(&like);
    if (*out == NULL && capture != cudaStreamCaptureStatusNone) { /* memory cannot be made in a capture */
        rc = FAIL(MOE_E_STATE, "no placeholder gradient of %lld x %lld yet: one backward must run before the capture",
                  (long long)rows, (long long)columns);
    } else if (*out == NULL) {
        struct placeholder *fresh = malloc(sizeof(*fresh));
        rc = fresh == NULL ? FAIL(MOE_E_NOMEM, "a placeholder gradient")
                           : moe_memory_for_ever(device, (size_t)(rows * columns) * moe_dtype_bytes(type), &like.data);
        if (rc == 0) {
            like.next = placeholders;
            *fresh = like;
            placeholders = fresh;
            *out = like.data;
        } else {
            free(fresh);
        }
    }
    pthread_mutex_unlock(&placeholders_lock);
    return rc;
}

/* life */

static bool is_wide(enum moe_dtype type)
{
    return type == MOE_F32 || type == MOE_BF16 || type == MOE_F16;
}

static int check_config(const struct moe_linear_config *c)
{
    if (c->groups < 1 || c->out_features < 1 || c->in_features < 1 || c->max_rows < 0) {
        return FAIL(MOE_E_SHAPE, "%lld groups of %lld x %lld, %lld rows", (long long)c->groups,
                    (long long)c->out_features, (long long)c->in_features, (long long)c->max_rows);
    }
    int64_t cells = 0, wide = c->out_features > c->in_features ? c->out_features : c->in_features, rows = 0;
    if (__builtin_mul_overflow(c->out_features, c->in_features, &cells) ||
        __builtin_mul_overflow(cells, c->groups, &cells) || cells > INT64_MAX / 8 ||
        __builtin_mul_overflow(c->max_rows, wide, &rows) || rows > INT64_MAX / 8) {
        return FAIL(MOE_E_SHAPE, "%lld groups of %lld x %lld with %lld rows have more bytes than can be counted",
                    (long long)c->groups, (long long)c->out_features, (long long)c->in_features,
                    (long long)c->max_rows);
    }
    if (!is_wide(c->activation) || (unsigned)c->weight >= MOE_DTYPES || (c->has_bias && !is_wide(c->bias))) {
        return FAIL(MOE_E_ARG, "%s activations, %s weights, %s biases", moe_dtype_name(c->activation),
                    moe_dtype_name(c->weight), moe_dtype_name(c->bias));
    }
    return 0;
}

static int allocate(moe_linear_t *l)
{
    const struct moe_linear_config *c = &l->config;
    size_t groups = (size_t)c->groups, cells = (size_t)(c->out_features * c->in_features);
    l->param = calloc(groups, sizeof(struct moe_param *));
    l->weight_grad = calloc(groups, sizeof(*l->weight_grad));
    l->bias_grad = calloc(groups, sizeof(*l->bias_grad));
    l->group = calloc(groups, sizeof(*l->group));
    if (l->param == NULL || l->weight_grad == NULL || l->bias_grad == NULL || l->group == NULL) {
        return FAIL(MOE_E_NOMEM, "a grouped linear");
    }
    int rc = moe_staging_new(l->device, groups * sizeof(*l->group), &l->table_staging);
    rc = rc ? rc : moe_staging_new(l->device, groups * sizeof(*l->own_m), &l->counts_staging);
    rc = rc ? rc : moe_device_alloc(l->device, groups * sizeof(*l->table), (void **)&l->table);
    rc = rc ? rc : moe_device_alloc(l->device, groups * sizeof(*l->own_m), (void **)&l->own_m);
    if (rc == 0 && !c->fuse_wgrad_accumulation) {
        rc = moe_device_alloc(l->device, groups * cells * moe_dtype_bytes(c->activation), &l->d_weight);
    }
    if (rc == 0 && c->has_bias) {
        rc = moe_device_alloc(l->device, groups * (size_t)c->out_features * sizeof(float), &l->d_bias);
    }
    return rc;
}

int moe_linear_new(moe_device_t *device, const struct moe_linear_config *config, moe_linear_t **out)
{
    *out = NULL;
    int rc = check_config(config);
    rc = rc ? rc : moe_linear_fp8_check(device, config);
    moe_linear_t *l = rc == 0 ? calloc(1, sizeof(*l)) : NULL;
    if (l == NULL) {
        return rc ? rc : FAIL(MOE_E_NOMEM, "a grouped linear");
    }
    l->device = device;
    l->config = *config;
    l->rows = -1;
    rc = allocate(l);
    if (rc != 0) {
        moe_linear_destroy(&l);
    }
    *out = l;
    return rc;
}

void moe_linear_destroy(moe_linear_t **linear)
{
    moe_linear_t *l = *linear;
    if (l == NULL) {
        return;
    }
    moe_device_free(l->device, &l->table);
    moe_device_free(l->device, &l->own_m);
    moe_device_free(l->device, &l->d_weight);
    moe_device_free(l->device, &l->d_bias);
    moe_staging_destroy(&l->table_staging);
    moe_staging_destroy(&l->counts_staging);
    free(l->group);
    free(l->param);
    free(l->weight_grad);
    free(l->bias_grad);
    free(l);
    *linear = NULL;
}

/* forward */

static bool is_fp8(enum moe_dtype type)
{
    return type == MOE_E4M3 || type == MOE_E5M2;
}

/* The type of weight and bias gradients: main_grad's, else the activation's; never the storage type of the weight. */
static enum moe_dtype grad_type(const moe_linear_t *l)
{
    return l->config.fuse_wgrad_accumulation ? l->param[0]->main_grad_type : l->config.activation;
}

static int check_params(const moe_linear_t *l, const struct moe_linear_call *call)
{
    const struct moe_linear_config *c = &l->config;
    struct moe_param *const *weights = call->weights;
    if (call->bias_grads != NULL && !(c->has_bias && c->fuse_wgrad_accumulation)) {
        return FAIL(MOE_E_ARG, "bias_grads are given, but %s",
                    c->has_bias ? "gradients are not fused" : "the linear has no bias");
    }
    for (int64_t i = 0; i < c->groups; i++) {
        const struct moe_param *w = weights[c->packed ? 0 : i];
        if (w == NULL || w->data == NULL || (is_fp8(c->weight) && w->scale == NULL) ||
            (c->has_bias && (call->biases == NULL || call->biases[i] == NULL))) {
            return FAIL(MOE_E_ARG, "group %lld lacks its weight, scale or bias", (long long)i);
        }
        bool wanted = weights[0]->main_grad != NULL; /* of all, or of none: then no backward follows */
        bool unlike = (w->main_grad != NULL) != wanted && !call->weights_frozen;
        if (c->fuse_wgrad_accumulation &&
            (unlike || !is_wide(w->main_grad_type) || w->main_grad_type != weights[0]->main_grad_type)) {
            return FAIL(MOE_E_ARG, "group %lld: a main_grad of type %s", (long long)i,
                        w->main_grad == NULL ? "none" : moe_dtype_name(w->main_grad_type));
        }
        if (call->bias_grads != NULL && !call->biases_frozen && call->bias_grads[i] == NULL) {
            return FAIL(MOE_E_ARG, "group %lld: no main_grad for its bias", (long long)i);
        }
    }
    return 0;
}

/* The scales of one group's weight. */
static size_t scales(const struct moe_linear_config *c)
{
    int64_t down = (c->out_features + MOE_FP8_BLOCK - 1) / MOE_FP8_BLOCK,
            across = (c->in_features + MOE_FP8_BLOCK - 1) / MOE_FP8_BLOCK;
    return c->block_scales ? (size_t)(down * across) : 1;
}

/* Copies the table of the groups' pointers to the device. */
static int send_table(moe_linear_t *l, const struct moe_linear_call *call)
{
    const struct moe_linear_config *c = &l->config;
    size_t cells = (size_t)(c->out_features * c->in_features);
    for (int64_t i = 0; i < c->groups; i++) {
        const struct moe_param *w = l->param[i];
        size_t at = (size_t)i, part = c->packed ? at : 0; /* which part of the parameter is this group's */
        char *main_grad = w->main_grad;
        void *own_bias_grad = c->has_bias ? (char *)l->d_bias + at * (size_t)c->out_features * sizeof(float) : NULL;
        l->group[i] = (struct moe_linear_group){
            .weight = (const char *)w->data + part * cells * moe_dtype_bytes(c->weight),
            .scale = is_fp8(c->weight) ? w->scale + part * scales(c) : NULL,
            .bias = c->has_bias ? call->biases[i] : NULL,
            .d_weight = !c->fuse_wgrad_accumulation ? (char *)l->d_weight + at * cells * moe_dtype_bytes(c->activation)
                        : main_grad == NULL         ? NULL
                                                    : main_grad + part * cells * moe_dtype_bytes(w->main_grad_type),
            .d_bias = call->bias_grads != NULL ? call->bias_grads[i] : own_bias_grad};
    }
    return moe_staging_send(l->table_staging, l->group, l->table);
}

static struct moe_linear_pass pass(const moe_linear_t *l, enum moe_linear_kind kind)
{
    const struct moe_linear_config *c = &l->config;
    return (struct moe_linear_pass){.kind = kind,
                                    .groups = c->groups,
                                    .n = c->out_features,
                                    .k = c->in_features,
                                    .rows = l->rows,
                                    .m = l->m,
                                    .group = l->table,
                                    .activation = c->activation,
                                    .weight = c->weight,
                                    .bias = c->bias,
                                    .grad = grad_type(l),
                                    .block_scales = c->block_scales,
                                    .bias_probs = l->bias_probs,
                                    .bias_scale = c->bias_scale,
                                    .fp8 = moe_linear_fp8_rows(&c->fp8, kind),
                                    .fp8_grad = moe_linear_fp8_grad(&c->fp8),
                                    .x = l->x,
                                    .dy = l->dy};
}

/* Takes the arguments of a forward, for its product and for its backward. Errors: CAPACITY, ARG. */
static int take_call(moe_linear_t *l, const struct moe_linear_call *call, const void *x, const int64_t *m, int64_t rows)
{
    const struct moe_linear_config *c = &l->config;
    if (rows < 0 || rows > c->max_rows) {
        return FAIL(MOE_E_CAPACITY, "%lld rows for a grouped linear made for %lld", (long long)rows,
                    (long long)c->max_rows);
    }
    if (m == NULL || call->weights == NULL || (rows > 0 && x == NULL)) {
        return FAIL(MOE_E_ARG, "m or weights is NULL, or x is NULL with %lld rows", (long long)rows);
    }
    int rc = check_params(l, call);
    if (rc != 0) {
        return rc;
    }
    for (int64_t i = 0; i < c->groups; i++) {
        l->param[i] = call->weights[c->packed ? 0 : i];
    }
    l->rows = rows;
    l->x = x;
    l->m = m;
    l->bias_probs = call->bias_probs;
    l->own_bias_grads = call->bias_grads == NULL;
    l->weights_frozen = call->weights_frozen;
    l->biases_frozen = call->biases_frozen;
    l->backward_due = l->dw_due = l->grads_ready = false;
    return send_table(l, call);
}

int moe_linear_forward_call(moe_linear_t *l, const struct moe_linear_call *call, const void *x, const int64_t *m,
                            int64_t rows, void *y)
{
    if (rows > 0 && rows <= l->config.max_rows && y == NULL) {
        return FAIL(MOE_E_ARG, "y is NULL with %lld rows", (long long)rows);
    }
    int rc = take_call(l, call, x, m, rows);
    if (rc != 0) {
        return rc;
    }
    struct moe_linear_pass forward = pass(l, MOE_LINEAR_FORWARD);
    forward.out = y;
    rc = moe_device_ops(l->device)->linear(l->device, &forward);
    l->backward_due = rc == 0;
    return rc;
}

int moe_linear_resume(moe_linear_t *l, const struct moe_linear_call *call, const void *x, const int64_t *m,
                      int64_t rows)
{
    int rc = take_call(l, call, x, m, rows);
    l->backward_due = rc == 0 || l->backward_due;
    return rc;
}

int moe_linear_forward(moe_linear_t *l, struct moe_param *const *weights, const void *const *biases, const void *x,
                       const int64_t *m, int64_t rows, void *y)
{
    struct moe_linear_call call = {.weights = weights, .biases = biases};
    return moe_linear_forward_call(l, &call, x, m, rows, y);
}

int moe_linear_forward_host(moe_linear_t *l, struct moe_param *const *weights, const void *const *biases, const void *x,
                            const int64_t *host_m, int64_t rows, void *y)
{
    if (host_m == NULL) {
        return FAIL(MOE_E_ARG, "host_m is NULL");
    }
    int64_t sum = 0;
    for (int64_t i = 0; i < l->config.groups; i++) {
        if (host_m[i] < 0) {
            return FAIL(MOE_E_COUNT, "group %lld has %lld rows", (long long)i, (long long)host_m[i]);
        }
        if (__builtin_add_overflow(sum, host_m[i], &sum)) {
            return FAIL(MOE_E_COUNT, "the rows of %lld groups overflow", (long long)i + 1);
        }
    }
    if (sum != rows) {
        return FAIL(MOE_E_SPLIT, "counts of %lld rows for a buffer of %lld", (long long)sum, (long long)rows);
    }
    if (rows > l->config.max_rows) { /* before the counts of an earlier forward are changed */
        return FAIL(MOE_E_CAPACITY, "%lld rows for a grouped linear made for %lld", (long long)rows,
                    (long long)l->config.max_rows);
    }
    int rc = moe_staging_send(l->counts_staging, host_m, l->own_m);
    return rc ? rc : moe_linear_forward(l, weights, biases, x, l->own_m, rows, y);
}

/* backward */

/*
 * The type in which a framework sees the weight: for an FP8 weight the activation's, because no gradient is FP8
 * (TransformerEngine #3019).
 */
static enum moe_dtype placeholder_type(const struct moe_linear_config *c)
{
    return is_fp8(c->weight) ? c->activation : c->weight;
}

/* Fills in what autograd is told of each group, and sets the flags of the parameters. */
static int fill_autograd(moe_linear_t *l)
{
    const struct moe_linear_config *c = &l->config;
    int64_t n = c->out_features * (c->packed ? c->groups : 1), k = c->in_features;
    for (int64_t i = 0; i < c->groups; i++) {
        struct moe_param *w = l->param[i];
        struct moe_grad grad = {.data = NULL};
        if (l->weights_frozen || (c->packed && i > 0)) {
            grad = (struct moe_grad){0}; /* nothing; a packed weight's is told with group 0 */
        } else if (!c->fuse_wgrad_accumulation) {
            grad = (struct moe_grad){l->group[i].d_weight, c->activation, n, k, false};
        } else if (w->has_added_flag) {
            grad = (struct moe_grad){NULL, placeholder_type(c), n, k, true};
            size_t bytes = (size_t)(n * k) * moe_dtype_bytes(grad.type);
            int rc = placeholder_get(l->device, n, k, grad.type, &grad.data);
            if (rc == 0 && w->zero_out_wgrad) {
                rc = moe_device_ops(l->device)->zero(l->device, grad.data, bytes);
            }
            if (rc != 0) {
                return rc;
            }
            w->grad_added_to_main_grad = true;
        }
        l->weight_grad[i] = grad;
        l->bias_grad[i] = c->has_bias && !l->biases_frozen
                              ? (struct moe_grad){l->group[i].d_bias, grad_type(l), 1, c->out_features, false}
                              : (struct moe_grad){0};
    }
    l->grads_ready = true;
    return 0;
}

static int weight_gradients(moe_linear_t *l)
{
    struct moe_linear_pass weight = pass(l, MOE_LINEAR_WGRAD), bias = pass(l, MOE_LINEAR_BGRAD);
    weight.beta = l->beta;
    bias.beta = l->own_bias_grads ? 0.0f : l->beta;
    int rc = l->weights_frozen ? 0 : moe_device_ops(l->device)->linear(l->device, &weight);
    if (rc == 0 && l->config.has_bias && !l->biases_frozen) {
        rc = moe_device_ops(l->device)->linear(l->device, &bias);
    }
    return rc ? rc : fill_autograd(l);
}

int moe_linear_backward_call(moe_linear_t *l, const void *dy, void *dx, float *d_bias_probs,
                             enum moe_microbatch microbatch)
{
    if (!l->backward_due) {
        return FAIL(MOE_E_STATE, "grouped linear: backward before forward");
    }
    if (dy == NULL && l->rows > 0) {
        return FAIL(MOE_E_ARG, "grouped linear: backward of %lld rows without their gradient", (long long)l->rows);
    }
    if (l->config.fuse_wgrad_accumulation && l->param[0]->main_grad == NULL && !l->weights_frozen) {
        return FAIL(MOE_E_ARG, "grouped linear: backward of a forward without main_grads");
    }
    bool accumulate =
        l->config.fuse_wgrad_accumulation && microbatch != MOE_MICROBATCH_FIRST && !l->param[0]->overwrite_main_grad;
    l->backward_due = false;
    l->dy = dy;
    l->beta = accumulate ? 1.0f : 0.0f;
    struct moe_linear_pass dgrad = pass(l, MOE_LINEAR_DGRAD);
    dgrad.out = dx;
    struct moe_linear_pass pgrad = pass(l, MOE_LINEAR_PGRAD);
    pgrad.out = d_bias_probs;
    int rc = dx != NULL ? moe_device_ops(l->device)->linear(l->device, &dgrad) : 0;
    if (rc == 0 && d_bias_probs != NULL && l->config.has_bias) {
        rc = moe_device_ops(l->device)->linear(l->device, &pgrad);
    }
    l->dw_due = rc == 0 && l->config.delay_wgrad;
    return rc != 0 || l->dw_due ? rc : weight_gradients(l);
}

int moe_linear_backward(moe_linear_t *l, const void *dy, void *dx, enum moe_microbatch microbatch)
{
    return moe_linear_backward_call(l, dy, dx, NULL, microbatch);
}

void moe_linear_moved(moe_linear_t *l, const void *x)
{
    l->x = x;
}

int moe_linear_backward_dw(moe_linear_t *l)
{
    if (!l->dw_due) {
        return FAIL(MOE_E_STATE, "grouped linear: backward left no weight gradient to compute");
    }
    l->dw_due = false;
    return weight_gradients(l);
}

static int grad_of(const moe_linear_t *l, const struct moe_grad *grads, int64_t group, struct moe_grad *out)
{
    *out = (struct moe_grad){0};
    if (group < 0 || group >= l->config.groups) {
        return FAIL(MOE_E_ARG, "group %lld of %lld", (long long)group, (long long)l->config.groups);
    }
    if (!l->grads_ready) {
        return FAIL(MOE_E_STATE, "grouped linear: gradients before backward");
    }
    *out = grads[group];
    return 0;
}

int moe_linear_weight_grad(const moe_linear_t *l, int64_t group, struct moe_grad *out)
{
    if (l->config.packed && group != 0) {
        *out = (struct moe_grad){0};
        return FAIL(MOE_E_ARG, "group %lld: the weights are one parameter, told with group 0", (long long)group);
    }
    return grad_of(l, l->weight_grad, group, out);
}

int moe_linear_bias_grad(const moe_linear_t *l, int64_t group, struct moe_grad *out)
{
    return grad_of(l, l->bias_grad, group, out);
}
