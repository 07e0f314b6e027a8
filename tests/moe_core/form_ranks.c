/*
 * form_ranks.c: the ranks: threads with communicators and a layer, and what each does.
 */
#include "tests/moe_core/form_ranks.h"
#include "tests/moe_core/typed.h"

#include <pthread.h>

/* What every gradient begins with: added to, or left alone. */
static const float begun = 0.75f;

struct rank {
    const struct form_case *c;
    struct form_result *out;
    ncclUniqueId id;
    int rank;
    cudaStream_t stream;             /* the caller's, with c->streams; NULL on the last rank: the default stream */
    void *late[FORM_BATCHES];        /* with c->streams: tokens that come on the stream */
    ncclComm_t world, first, second; /* first, second: what the layout splits world into */
    moe_device_t *device;
    moe_layer_t *layer[FORM_LAYERS];
    struct moe_layer_weights weights;
    void *parameter[MOE_LAYER_PARAMETERS];
    float *grad[MOE_LAYER_PARAMETERS], *expert_bias;
    void *x[FORM_BATCHES], *dy[FORM_BATCHES], *y[FORM_BATCHES], *dx[FORM_BATCHES];
};

static int join_groups(struct rank *r)
{
    enum form_layout layout = r->c->layout;
    if (ncclCommInitRank(&r->world, FORM_RANKS, r->id, r->rank) != ncclSuccess) {
        return MOE_E_COMM;
    }
    if (layout != FORM_EP && ncclCommSplit(r->world, r->rank / 2, r->rank, &r->first, NULL) != ncclSuccess) {
        return MOE_E_COMM;
    }
    bool grid = layout == FORM_ETP || layout == FORM_SHARD;
    return grid && ncclCommSplit(r->world, r->rank % 2, r->rank, &r->second, NULL) != ncclSuccess ? MOE_E_COMM : 0;
}

static void ready(void *arg, int parameter)
{
    struct rank *r = arg;
    r->out->hooks[parameter]++;
}

static int make_layer(struct rank *r, int which)
{
    enum form_layout layout = r->c->layout;
    struct moe_layer_config config = r->c->config;
    config.layer = 3 + (uint32_t)which;
    config.world_rank = r->rank;
    config.max_tokens = FORM_T;
    config.hidden = FORM_H;
    config.ffn = FORM_F;
    config.experts = FORM_E;
    config.topk = config.topk > 0 ? config.topk : 2;
    config.groups = (struct moe_groups){.ep = r->world};
    if (layout == FORM_ETP) {
        config.groups = (struct moe_groups){.ep = r->second, .etp = r->first, .tp_ep = r->world};
    } else if (layout == FORM_SHARD) {
        config.groups = (struct moe_groups){.ep = r->second, .tp = r->first};
    } else if (layout != FORM_EP) {
        config.groups.tp = r->first;
    }
    config.tp_mode = layout == FORM_SPLIT   ? MOE_TP_SPLIT_TOKENS
                     : layout == FORM_SHARD ? MOE_TP_SHARD_EXPERTS
                                            : MOE_TP_SEQUENCE;
    if (config.router.coeff[MOE_LOSS_GLOBAL] != 0.0f) { /* ranks with the same tokens count once */
        config.global = layout == FORM_SHARD ? r->second : r->world;
    }
    config.ready = ready;
    config.ready_arg = r;
    int rc = moe_layer_new(r->device, &config, &r->layer[which]);
    if (rc == 0 && r->c->loss_scale > 0) {
        moe_router_set_loss_scale(moe_layer_router(r->layer[which]), r->c->loss_scale);
    }
    return rc;
}

/* The type in which the layer wants a parameter. */
static enum moe_dtype type_of(const struct form_case *c, int p)
{
    return p == MOE_LAYER_GATE || p == MOE_LAYER_GATE_BIAS ? c->config.router.gate_type
           : p == MOE_LAYER_W1 || p == MOE_LAYER_W2        ? c->config.weight
           : p == MOE_LAYER_B1 || p == MOE_LAYER_B2        ? c->config.bias
                                                           : MOE_F32;
}

static void make_parameters(struct rank *r)
{
    struct form_model *m = malloc(sizeof(*m));
    form_make_model(r->c, m);
    for (int p = 0; p < MOE_LAYER_PARAMETERS; p++) {
        struct form_cut cut = form_cut_of(r->c, r->rank, (enum moe_layer_parameter)p);
        int64_t count = form_cut_count(&cut);
        enum moe_dtype type = type_of(r->c, p);
        r->parameter[p] = support_array(r->device, count, moe_dtype_bytes(type));
        r->grad[p] = support_floats(r->device, count);
        for (int64_t i = 0; i < count; i++) {
            typed_put(type, r->parameter[p], i, form_cut_get(&cut, m->parameter[p], i));
            r->grad[p][i] = begun;
        }
    }
    r->expert_bias = support_floats(r->device, FORM_E);
    for (int64_t e = 0; e < FORM_E; e++) {
        r->expert_bias[e] = (float)m->expert_bias[e];
    }
    free(m);
}

/* A parameter's gradient as the layer is given it. */
static float *grad_of(struct rank *r, int batch, enum moe_layer_parameter p)
{
    bool left_out = r->c->null && (form_frozen(r->c, r->rank, batch) >> p & 1u) != 0;
    return !left_out && form_has(r->c, p) ? r->grad[p] : NULL;
}

static void name_weights(struct rank *r, int batch)
{
    const struct moe_layer_config *l = &r->c->config;
    void **p = r->parameter;
    r->weights = (struct moe_layer_weights){.gate = p[MOE_LAYER_GATE],
                                            .w1 = p[MOE_LAYER_W1],
                                            .w2 = p[MOE_LAYER_W2],
                                            .d_gate = grad_of(r, batch, MOE_LAYER_GATE),
                                            .d_w1 = grad_of(r, batch, MOE_LAYER_W1),
                                            .d_w2 = grad_of(r, batch, MOE_LAYER_W2),
                                            .gate_bias = l->router.gate_bias ? p[MOE_LAYER_GATE_BIAS] : NULL,
                                            .expert_bias = l->router.expert_bias ? r->expert_bias : NULL,
                                            .d_gate_bias = grad_of(r, batch, MOE_LAYER_GATE_BIAS),
                                            .b1 = l->has_bias ? p[MOE_LAYER_B1] : NULL,
                                            .b2 = l->has_bias ? p[MOE_LAYER_B2] : NULL,
                                            .d_b1 = grad_of(r, batch, MOE_LAYER_B1),
                                            .d_b2 = grad_of(r, batch, MOE_LAYER_B2),
                                            .frozen = form_frozen(r->c, r->rank, batch)};
    if (l->shared_ffn > 0) {
        r->weights.shared = (struct moe_shared_weights){.w1 = p[MOE_LAYER_SHARED_W1],
                                                        .w2 = p[MOE_LAYER_SHARED_W2],
                                                        .b1 = l->shared_bias ? p[MOE_LAYER_SHARED_B1] : NULL,
                                                        .b2 = l->shared_bias ? p[MOE_LAYER_SHARED_B2] : NULL,
                                                        .gate = l->shared_gate ? p[MOE_LAYER_SHARED_GATE] : NULL,
                                                        .d_w1 = grad_of(r, batch, MOE_LAYER_SHARED_W1),
                                                        .d_w2 = grad_of(r, batch, MOE_LAYER_SHARED_W2),
                                                        .d_b1 = grad_of(r, batch, MOE_LAYER_SHARED_B1),
                                                        .d_b2 = grad_of(r, batch, MOE_LAYER_SHARED_B2),
                                                        .d_gate = grad_of(r, batch, MOE_LAYER_SHARED_GATE)};
    }
}

static void make_tokens(struct rank *r)
{
    double x[FORM_T * FORM_H], dy[FORM_T * FORM_H];
    enum moe_dtype type = r->c->config.type;
    for (int b = 0; b < FORM_BATCHES; b++) {
        void **arrays[] = {&r->x[b], &r->dy[b], &r->y[b], &r->dx[b], &r->late[b]};
        for (size_t i = 0; i < 5; i++) {
            *arrays[i] = support_array(r->device, FORM_T * FORM_H, moe_dtype_bytes(type));
        }
        form_make_tokens(r->c, r->rank, b, x, dy);
        for (int64_t i = 0; i < FORM_T * FORM_H; i++) {
            typed_put(type, r->c->streams ? r->late[b] : r->x[b], i, x[i]);
            if (r->c->streams) {
                typed_put(type, r->x[b], i, NAN);
            }
            typed_put(type, r->dy[b], i, dy[i]);
            typed_put(type, r->y[b], i, NAN);
            typed_put(type, r->dx[b], i, NAN);
        }
    }
}

static int layers_of(const struct form_case *c)
{
    return c->layers > 0 ? c->layers : 1;
}

static struct moe_step step_of(const struct form_case *c, int batch)
{
    return (struct moe_step){.step = c->steps ? 9 + (uint32_t)batch : 9, .microbatch = c->steps ? 0 : (uint16_t)batch};
}

/* One microbatch through all layers, each of which has the same input. */
static int go(struct rank *r, int batch)
{
    struct moe_step step = step_of(r->c, batch);
    step.alone = r->c->alone;
    int rc = 0;
    name_weights(r, batch);
    if (r->c->streams) { /* work of the caller's before that of the library, and nobody waits between them */
        size_t bytes = FORM_T * FORM_H * moe_dtype_bytes(r->c->config.type);
        rc = cudaMemcpyAsync(r->x[batch], r->late[batch], bytes, cudaMemcpyDefault, r->stream) == cudaSuccess
                 ? 0
                 : MOE_E_DEVICE;
    }
    for (int i = 0; i < layers_of(r->c) && rc == 0; i++) {
        rc = moe_layer_forward(r->layer[i], &r->weights, &step, r->x[batch], form_tokens(r->c, r->rank), r->y[batch]);
    }
    return rc;
}

static int go_back(struct rank *r, int batch)
{
    const struct moe_step step = step_of(r->c, batch);
    int rc = 0;
    for (int i = layers_of(r->c) - 1; i >= 0 && rc == 0; i--) {
        rc = r->c->unnamed ? moe_layer_backward(r->layer[i], r->dy[batch], r->dx[batch])
                           : moe_layer_backward_of(r->layer[i], &step, r->dy[batch], r->dx[batch]);
        if (rc == 0 && r->c->config.delay_wgrad) {
            rc = moe_layer_backward_dw(r->layer[i]);
        }
    }
    return rc;
}

static int run_order(struct rank *r)
{
    int rc = 0, again = r->c->insists;
    bool back = false;
    for (const char *at = r->c->order != NULL ? r->c->order : "Aa"; *at != '\0' && rc == 0; at++) {
        bool forward = *at < 'a';
        if (!forward && !back) {
            r->out->sent = r->out->calls;
            back = true;
        }
        rc = forward ? go(r, *at - 'A') : go_back(r, *at - 'a');
        if (rc != 0 && forward && again-- > 0) {
            rc = go(r, *at - 'A');
        }
    }
    int waited = moe_device_sync(r->device);
    return rc ? rc : waited;
}

static void keep(struct rank *r)
{
    enum moe_dtype type = r->c->config.type;
    for (int b = 0; b < FORM_BATCHES; b++) {
        for (int64_t i = 0; i < FORM_T * FORM_H; i++) {
            r->out->y[b][i] = (float)typed_get(type, r->y[b], i);
            r->out->dx[b][i] = (float)typed_get(type, r->dx[b], i);
        }
    }
    for (int p = 0; p < MOE_LAYER_PARAMETERS; p++) {
        struct form_cut cut = form_cut_of(r->c, r->rank, (enum moe_layer_parameter)p);
        for (int64_t i = 0; i < form_cut_count(&cut); i++) {
            r->out->grad[p][i] = r->grad[p][i] - begun;
        }
    }
    r->out->remedies = moe_layer_remedies(r->layer[0]);
}

static void clean(struct rank *r)
{
    form_self = NULL;
    for (int i = 0; i < FORM_LAYERS; i++) {
        moe_layer_destroy(&r->layer[i]);
    }
    for (int p = 0; p < MOE_LAYER_PARAMETERS && r->device != NULL; p++) {
        moe_device_free(r->device, &r->parameter[p]);
        moe_device_free(r->device, &r->grad[p]);
    }
    for (int b = 0; b < FORM_BATCHES && r->device != NULL; b++) {
        void *arrays[] = {&r->x[b], &r->dy[b], &r->y[b], &r->dx[b], &r->late[b]};
        for (size_t i = 0; i < 5; i++) {
            moe_device_free(r->device, arrays[i]);
        }
    }
    if (r->device != NULL) {
        moe_device_free(r->device, &r->expert_bias);
    }
    moe_device_destroy(&r->device);
    if (r->stream != NULL) { /* it is still the caller's */
        r->out->rc = r->out->rc == 0 && cudaStreamDestroy(r->stream) != cudaSuccess ? MOE_E_DEVICE : r->out->rc;
    }
    ncclComm_t comms[] = {r->second, r->first, r->world};
    for (size_t i = 0; i < 3; i++) {
        if (comms[i] != NULL) {
            ncclCommDestroy(comms[i]);
        }
    }
}

static int make_device(struct rank *r)
{
    if (!r->c->streams) {
        return moe_device_new_host(&r->device);
    }
    if (r->rank != FORM_RANKS - 1 && cudaStreamCreate(&r->stream) != cudaSuccess) {
        return MOE_E_DEVICE;
    }
    int rc = moe_device_new_on("host", r->stream, &r->device);
    return rc == 0 && moe_device_stream(r->device) != r->stream ? MOE_E_STATE : rc;
}

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    struct form_self self = {.result = r->out, .scenario = r->c};
    int rc = cudaSetDevice(r->rank) == cudaSuccess ? 0 : MOE_E_DEVICE;
    rc = rc ? rc : join_groups(r);
    rc = rc ? rc : make_device(r);
    if (rc == 0) {
        form_count_work(r->device);
        make_parameters(r);
        make_tokens(r);
        self.tp = form_on_tp(r->c) ? r->first : NULL;
        form_self = &self;
        for (int i = 0; i < layers_of(r->c) && rc == 0; i++) {
            rc = make_layer(r, i);
        }
        r->out->calls = 0; /* those of making are not what the tests count */
        rc = rc ? rc : run_order(r);
    }
    r->out->rc = rc;
    if (rc != 0) {
        snprintf(r->out->message, sizeof(r->out->message), "%s", moe_last_error());
    } else {
        keep(r);
    }
    clean(r);
    return NULL;
}

void form_run(const struct form_case *c, struct form_result *results)
{
    static struct rank rank[FORM_RANKS];
    pthread_t thread[FORM_RANKS];
    ncclUniqueId id;
    memset(rank, 0, sizeof(rank));
    memset(results, 0, FORM_RANKS * sizeof(*results));
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    for (int r = 0; r < FORM_RANKS; r++) {
        rank[r] = (struct rank){.c = c, .out = &results[r], .id = id, .rank = r};
        assert_int_equal(pthread_create(&thread[r], NULL, run_rank, &rank[r]), 0);
    }
    for (int r = 0; r < FORM_RANKS; r++) {
        pthread_join(thread[r], NULL);
    }
}
