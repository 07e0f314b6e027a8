/*
 * model_layers.c: the MoE layers of the model: their sizes, configurations and weights.
 *
 * Weights are drawn by (tensor, element), and an expert by its number in the whole layer, then cut into the parts of
 * the ranks that share it. So every layout of ranks starts from the same model and can be compared with the same
 * reference.
 */
#include "moe_core/include/moe/error.h"
#include "moe_core/train/model.h"
#include "moe_core/train/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum tensor {
    T_EMBED = 1,
    T_GATE,
    T_HEAD,
    T_W1,
    T_W2,
    T_B1,
    T_B2,
    T_GATE_BIAS,
    T_SHARED_W1,
    T_SHARED_W2,
    T_SHARED_GATE
};

/* The step by which loss-free balancing moves expert biases (DeepSeek-V3). */
static const float bias_rate = 0.001f;

static struct moe_router_config router(const struct train_options *o)
{
    struct moe_router_config config = {.renormalise = o->topk > 1};
    if (o->router != NULL) {
        (void)moe_router_preset(o->router, &config); /* the name was checked */
    }
    config.options.capacity_factor = o->capacity > 0 ? (float)o->capacity : config.options.capacity_factor;
    config.options.pad_to_capacity = o->pad_capacity;
    return config;
}

struct shape model_shape(const struct train_options *o, const struct job *job)
{
    return (struct shape){.context = o->context,
                          .hidden = o->hidden,
                          .ffn = o->ffn,
                          .experts = o->experts,
                          .layers = o->layers,
                          .topk = o->topk,
                          .local = o->experts / job->ep_size,
                          .local_ffn = o->ffn / job->parts,
                          .shared = o->shared,
                          .local_shared = o->shared / o->tp,
                          .bias = o->bias,
                          .gate_bias = router(o).options.gate_bias,
                          .shared_gate = o->shared_gate};
}

struct moe_layer_config model_layer_config(const struct model *m, int64_t l)
{
    const struct train_options *o = m->options;
    struct moe_router_config route = router(o);
    struct moe_layer_config config = {.layer = (uint32_t)l,
                                      .world_rank = m->job->rank,
                                      .max_tokens = o->tokens,
                                      .hidden = o->hidden,
                                      .ffn = o->ffn,
                                      .experts = o->experts,
                                      .topk = o->topk,
                                      .renormalise = route.renormalise,
                                      .router = route.options,
                                      .options = o->legacy.layer,
                                      .dispatcher = (enum moe_dispatcher_kind)o->dispatcher,
                                      .facts = m->facts,
                                      .groups = {.ep = m->job->ep, .etp = m->job->etp, .tp = m->job->tp},
                                      .tp_mode = (enum moe_tp_mode)o->tp_mode,
                                      .router_sum =
                                          o->tp_mode == MOE_TP_SEQUENCE ? MOE_ROUTER_SUM_CALLER : MOE_ROUTER_SUM_LAYER,
                                      .type = (enum moe_dtype)o->dtype,
                                      .has_bias = o->bias,
                                      .activation = (enum moe_activation)o->activation,
                                      .place = (enum moe_prob_place)o->place,
                                      .recompute = o->recompute,
                                      .shared_ffn = o->shared,
                                      .shared_bias = o->bias,
                                      .shared_gate = o->shared_gate,
                                      .shared_overlap = o->shared_overlap,
                                      .uneven = (enum moe_uneven)o->uneven,
                                      .token_bound = o->token_bound > 0 ? o->token_bound : o->tokens};
    config.options.keep_routing = o->keep_routing;
    config.balance = options_replicate(o) && o->tp_mode == MOE_TP_SPLIT_TOKENS ? m->job->tp : NULL;
    config.global = config.balance;
    config.groups.tp_ep = o->etp > 1 ? m->job->block : NULL;
    return config;
}

/* The hook of one layer: says which layer it was. */
static void layer_ready(void *arg, int parameter)
{
    const struct model_hook *hook = arg;
    if (hook->model->ready != NULL) {
        hook->model->ready(hook->model->ready_arg, hook->layer, parameter);
    }
}

int model_layers_room(struct model *m)
{
    int64_t layers = m->shape.layers;
    m->hook = calloc((size_t)layers, sizeof(*m->hook));
    if (m->hook == NULL) {
        return MOE_E_NOMEM;
    }
    return router(m->options).options.expert_bias
               ? moe_device_alloc(m->job->device, (size_t)(layers * m->shape.experts) * sizeof(float),
                                  (void **)&m->expert_bias)
               : 0;
}

int model_layers_new(struct model *m)
{
    int rc = 0;
    int64_t layers = m->shape.layers;
    for (int64_t l = 0; l < layers && rc == 0; l++) {
        struct moe_layer_config config = model_layer_config(m, l);
        m->hook[l] = (struct model_hook){m, l};
        config.ready = layer_ready;
        config.ready_arg = &m->hook[l];
        rc = moe_layer_new(m->job->device, &config, &m->layer[l]);
        if (rc == 0) {
            moe_router_set_loss_scale(moe_layer_router(m->layer[l]), 1.0f / (float)m->options->microbatches);
        }
        if (rc == 0 && m->job->tp_size > 1 && config.router_sum == MOE_ROUTER_SUM_CALLER) {
            rc = moe_layer_declare_router_sum(m->layer[l]); /* with the other dense gradients */
        }
    }
    return rc;
}

int model_update_bias(struct model *m)
{
    int64_t layers = m->shape.layers;
    moe_router_t **routers = calloc((size_t)layers, sizeof(moe_router_t *));
    float **bias = calloc((size_t)layers, sizeof(*bias));
    int rc = routers == NULL || bias == NULL ? MOE_E_NOMEM : 0;
    for (int64_t l = 0; l < layers && rc == 0; l++) {
        routers[l] = moe_layer_router(m->layer[l]);
        bias[l] = m->expert_bias + l * m->shape.experts;
    }
    rc = rc ? rc : moe_router_update_bias(routers, bias, (int32_t)layers, m->job->world, bias_rate);
    free(routers);
    free(bias);
    return rc;
}

struct moe_layer_weights model_layer_weights(const struct model *m, int64_t l)
{
    const struct shape *s = &m->shape;
    struct share local = share_local(s);
    const float *dense = m->dense.value, *experts = m->experts.value, *shared = m->shared.value;
    float *d_dense = m->dense.grad, *d_experts = m->experts.grad, *d_shared = m->shared.grad;
    int64_t gate = shape_gate(s, l), w1 = shape_w1(s, local, l), w2 = shape_w2(s, local, l);
    int64_t s1 = shape_shared_w1(s, s->local_shared, l), s2 = shape_shared_w2(s, s->local_shared, l);
    struct moe_layer_weights w = {.gate = dense + gate,
                                  .w1 = experts + w1,
                                  .w2 = experts + w2,
                                  .d_gate = d_dense + gate,
                                  .d_w1 = d_experts + w1,
                                  .d_w2 = d_experts + w2};
    if (s->gate_bias) {
        w.gate_bias = dense + shape_gate_bias(s, l);
        w.d_gate_bias = d_dense + shape_gate_bias(s, l);
    }
    if (m->expert_bias != NULL) {
        w.expert_bias = m->expert_bias + l * s->experts;
    }
    if (s->bias) {
        w.b1 = experts + shape_b1(s, local, l);
        w.b2 = experts + shape_b2(s, local, l);
        w.d_b1 = d_experts + shape_b1(s, local, l);
        w.d_b2 = d_experts + shape_b2(s, local, l);
    }
    if (s->shared > 0) {
        int64_t b1 = shape_shared_b1(s, s->local_shared, l), b2 = shape_shared_b2(s, s->local_shared, l),
                g = shape_shared_gate(s, l);
        w.shared = (struct moe_shared_weights){.w1 = shared + s1,
                                               .w2 = shared + s2,
                                               .b1 = s->bias ? shared + b1 : NULL,
                                               .b2 = s->bias ? shared + b2 : NULL,
                                               .gate = s->shared_gate ? dense + g : NULL,
                                               .d_w1 = d_shared + s1,
                                               .d_w2 = d_shared + s2,
                                               .d_b1 = s->bias ? d_shared + b1 : NULL,
                                               .d_b2 = s->bias ? d_shared + b2 : NULL,
                                               .d_gate = s->shared_gate ? d_dense + g : NULL};
    }
    if (m->forward_only) { /* no gradients: no backward follows (layer.h) */
        w.d_gate = w.d_gate_bias = w.d_w1 = w.d_w2 = w.d_b1 = w.d_b2 = NULL;
        w.shared.d_w1 = w.shared.d_w2 = w.shared.d_b1 = w.shared.d_b2 = w.shared.d_gate = NULL;
    }
    return w;
}

/* weights */

static void draw(float *to, int64_t count, uint64_t seed, enum tensor tensor, uint64_t part, double deviation)
{
    uint64_t key = random_key(seed, (uint64_t)tensor, part);
    for (int64_t i = 0; i < count; i++) {
        to[i] = (float)(deviation * random_normal(key + (uint64_t)i));
    }
}

static void fill(float *to, int64_t count, float value)
{
    for (int64_t i = 0; i < count; i++) {
        to[i] = value;
    }
}

/*
 * A slice of a tensor of `blocks` x [rows, columns], of which this rank has a part of the rows or of the columns.
 * Element (block, row, column) is drawn by its place in the whole tensor.
 */
struct slice {
    int64_t blocks, rows, columns, first_row, all_rows, first_column, all_columns;
};

static void draw_slice(float *to, const struct slice *s, uint64_t seed, enum tensor tensor, uint64_t part,
                       double deviation)
{
    uint64_t key = random_key(seed, (uint64_t)tensor, part);
    for (int64_t b = 0; b < s->blocks; b++) {
        for (int64_t r = 0; r < s->rows; r++) {
            for (int64_t c = 0; c < s->columns; c++) {
                int64_t at = (b * s->all_rows + s->first_row + r) * s->all_columns + s->first_column + c;
                *to++ = (float)(deviation * random_normal(key + (uint64_t)at));
            }
        }
    }
}

/* Draws fc1 and fc2 of one feed-forward of width f, of which this rank has part `part` of `parts`. */
static void draw_feed_forward(float *w1, float *w2, int64_t h, int64_t f, int32_t part, int32_t parts, uint64_t seed,
                              const enum tensor names[2], uint64_t number)
{
    int64_t mine = f / parts, first = part * mine;
    struct slice fc1 = {2, mine, h, first, f, 0, h}, fc2 = {1, h, mine, 0, h, first, f};
    draw_slice(w1, &fc1, seed, names[0], number, 1.0 / sqrt((double)h));
    draw_slice(w2, &fc2, seed, names[1], number, 1.0 / sqrt((double)f));
}

static void draw_dense(const struct model *m, float *dense)
{
    const struct shape *s = &m->shape;
    uint64_t seed = m->options->seed;
    int64_t h = s->hidden;
    draw(dense, s->context * VOCAB * h, seed, T_EMBED, 0, 1.0 / sqrt((double)s->context));
    fill(dense + shape_final_norm(s), h, 1.0f);
    draw(dense + shape_head(s), VOCAB * h, seed, T_HEAD, 0, 0.5 / sqrt((double)h));
    for (int64_t l = 0; l < s->layers; l++) {
        uint64_t part = (uint64_t)l;
        fill(dense + shape_norm(s, l), h, 1.0f);
        draw(dense + shape_gate(s, l), s->experts * h, seed, T_GATE, part, 1.0 / sqrt((double)h));
        if (s->gate_bias) {
            draw(dense + shape_gate_bias(s, l), s->experts, seed, T_GATE_BIAS, part, 0.1);
        }
        if (s->shared > 0 && s->shared_gate) {
            draw(dense + shape_shared_gate(s, l), h, seed, T_SHARED_GATE, part, 1.0 / sqrt((double)h));
        }
    }
}

static void draw_experts(const struct model *m, float *experts)
{
    static const enum tensor names[] = {T_W1, T_W2};
    const struct shape *s = &m->shape;
    const struct job *job = m->job;
    struct share local = share_local(s);
    int64_t h = s->hidden, f = s->local_ffn;
    for (int64_t l = 0; l < s->layers; l++) {
        for (int64_t i = 0; i < s->local; i++) {
            uint64_t number = (uint64_t)(l * s->experts + job->ep_rank * s->local + i), seed = m->options->seed;
            draw_feed_forward(experts + shape_w1(s, local, l) + i * 2 * f * h,
                              experts + shape_w2(s, local, l) + i * h * f, h, s->ffn, job->part, job->parts, seed,
                              names, number);
            if (s->bias) {
                struct slice b1 = {2, f, 1, job->part * f, s->ffn, 0, 1};
                draw_slice(experts + shape_b1(s, local, l) + i * 2 * f, &b1, seed, T_B1, number, 0.1);
                draw(experts + shape_b2(s, local, l) + i * h, h, seed, T_B2, number, 0.1);
            }
        }
    }
}

/* Draws all weights of this rank into host memory; biases of the shared expert begin at zero. */
static void draw_shared(const struct model *m, float *shared)
{
    static const enum tensor names[] = {T_SHARED_W1, T_SHARED_W2};
    const struct shape *s = &m->shape;
    for (int64_t l = 0; l < s->layers && s->shared > 0; l++) {
        draw_feed_forward(shared + shape_shared_w1(s, s->local_shared, l),
                          shared + shape_shared_w2(s, s->local_shared, l), s->hidden, s->shared, m->job->tp_rank,
                          m->job->tp_size, m->options->seed, names, (uint64_t)l);
    }
}

int model_load_weights(struct model *m)
{
    const struct {
        struct params *params;
        void (*draw)(const struct model *model, float *to);
    } table[] = {{&m->dense, draw_dense}, {&m->experts, draw_experts}, {&m->shared, draw_shared}};
    int rc = 0;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]) && rc == 0; i++) {
        const struct params *p = table[i].params;
        float *host = calloc((size_t)p->count + 1, sizeof(*host));
        if (host == NULL) {
            return MOE_E_NOMEM;
        }
        table[i].draw(m, host);
        rc = moe_device_copy(m->job->device, p->value, host, (size_t)p->count * sizeof(*host));
        int waited = moe_device_sync(m->job->device);
        rc = rc ? rc : waited;
        free(host);
    }
    return rc;
}
