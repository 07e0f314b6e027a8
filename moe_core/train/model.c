/*
 * model.c: the model's weights, forward and backward.
 *
 * Weights are drawn by (tensor, element) and an expert by its number in the whole layer, so that every layout of ranks
 * starts from the same model and can be held against the same reference.
 */
#include "moe_core/train/model.h"

#include "moe_core/include/moe/error.h"
#include "moe_core/include/moe/ops.h"
#include "moe_core/train/model_ops.h"
#include "moe_core/train/random.h"

#include <stdio.h>
#include <stdlib.h>

enum tensor { T_EMBED = 1, T_GATE, T_HEAD, T_W1, T_W2 };

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

/* Draws all weights of this rank into host memory. */
static void draw_weights(const struct model *m, float *dense, float *experts)
{
    const struct shape *s = &m->shape;
    uint64_t seed = m->options->seed;
    int64_t h = s->hidden, f = s->ffn, first = m->job->ep_rank * s->local;
    draw(dense, s->context * VOCAB * h, seed, T_EMBED, 0, 1.0 / sqrt((double)s->context));
    fill(dense + shape_final_norm(s), h, 1.0f);
    draw(dense + shape_head(s), VOCAB * h, seed, T_HEAD, 0, 0.5 / sqrt((double)h));
    for (int64_t l = 0; l < s->layers; l++) {
        fill(dense + shape_norm(s, l), h, 1.0f);
        draw(dense + shape_gate(s, l), s->experts * h, seed, T_GATE, (uint64_t)l, 1.0 / sqrt((double)h));
        for (int64_t i = 0; i < s->local; i++) {
            uint64_t part = (uint64_t)(l * s->experts + first + i);
            draw(experts + shape_w1(s, l, s->local) + i * 2 * f * h, 2 * f * h, seed, T_W1, part,
                 1.0 / sqrt((double)h));
            draw(experts + shape_w2(s, l, s->local) + i * h * f, h * f, seed, T_W2, part, 1.0 / sqrt((double)f));
        }
    }
}

static int load_weights(struct model *m)
{
    float *dense = malloc((size_t)m->dense.count * sizeof(float));
    float *experts = malloc((size_t)m->experts.count * sizeof(float));
    int rc = MOE_E_NOMEM;
    if (dense != NULL && experts != NULL) {
        draw_weights(m, dense, experts);
        rc = moe_device_copy(m->job->device, m->dense.value, dense, (size_t)m->dense.count * sizeof(float));
        rc = rc ? rc
                : moe_device_copy(m->job->device, m->experts.value, experts, (size_t)m->experts.count * sizeof(float));
        rc = rc ? rc : moe_device_sync(m->job->device);
    }
    free(dense);
    free(experts);
    return rc;
}

static int params_new(moe_device_t *device, int64_t count, struct params *p)
{
    size_t bytes = (size_t)count * sizeof(float);
    p->count = count;
    int rc = moe_device_alloc(device, bytes, (void **)&p->value);
    rc = rc ? rc : moe_device_alloc(device, bytes, (void **)&p->grad);
    rc = rc ? rc : moe_device_alloc(device, bytes, (void **)&p->mean);
    return rc ? rc : moe_device_alloc(device, bytes, (void **)&p->variance);
}

static void params_destroy(moe_device_t *device, struct params *p)
{
    moe_device_free(device, &p->value);
    moe_device_free(device, &p->grad);
    moe_device_free(device, &p->mean);
    moe_device_free(device, &p->variance);
}

static int buffers_new(struct model *m)
{
    const struct shape *s = &m->shape;
    moe_device_t *device = m->job->device;
    int64_t tokens = m->options->tokens;
    size_t lines = (size_t)(tokens * (s->context + 1)), rows = (size_t)(tokens * s->hidden) * sizeof(float);
    size_t vocab = (size_t)(tokens * VOCAB) * sizeof(float), blocks = (size_t)(s->layers + 1);
    struct {
        void *at;
        size_t bytes;
    } table[] = {
        {&m->batch, lines},  {&m->x, blocks * rows}, {&m->normed, blocks * rows},
        {&m->y, rows},       {&m->dx, rows},         {&m->d_inner, rows},
        {&m->logits, vocab}, {&m->d_logits, vocab},  {&m->loss, sizeof(double)},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof table / sizeof table[0] && rc == 0; i++) {
        rc = moe_device_alloc(device, table[i].bytes, table[i].at);
    }
    m->host_batch = malloc(lines);
    m->layer = calloc((size_t)s->layers, sizeof(moe_layer_t *));
    return rc != 0 || (m->host_batch != NULL && m->layer != NULL) ? rc : MOE_E_NOMEM;
}

static int layers_new(struct model *m)
{
    int rc = 0;
    for (int64_t l = 0; l < m->shape.layers && rc == 0; l++) {
        struct moe_layer_config config = {.layer = (uint32_t)l,
                                          .world_rank = m->job->rank,
                                          .max_tokens = m->options->tokens,
                                          .hidden = m->shape.hidden,
                                          .ffn = m->shape.ffn,
                                          .experts = m->shape.experts,
                                          .topk = m->shape.topk,
                                          .renormalise = m->shape.topk > 1,
                                          .ep = m->job->ep,
                                          .options = {.legacy_skip_empty = m->options->legacy_skip}};
        rc = moe_layer_new(m->job->device, &config, &m->layer[l]);
    }
    return rc;
}

int model_new(const struct train_options *options, const struct job *job, struct model *model)
{
    *model = (struct model){.options = options, .job = job};
    model->shape = (struct shape){.context = options->context,
                                  .hidden = options->hidden,
                                  .ffn = options->ffn,
                                  .experts = options->experts,
                                  .layers = options->layers,
                                  .local = options->experts / job->ep_size,
                                  .topk = options->topk};
    int rc = params_new(job->device, shape_dense(&model->shape), &model->dense);
    rc = rc ? rc
            : params_new(job->device, shape_w1(&model->shape, options->layers, model->shape.local), &model->experts);
    rc = rc ? rc : buffers_new(model);
    rc = rc ? rc : layers_new(model);
    rc = rc ? rc : load_weights(model);
    if (rc != 0) {
        fprintf(stderr, "moe_train: %s\n", moe_last_error());
        model_destroy(model);
        return -1;
    }
    return 0;
}

void model_destroy(struct model *m)
{
    moe_device_t *device = m->job->device;
    for (int64_t l = 0; m->layer != NULL && l < m->shape.layers; l++) {
        moe_layer_destroy(&m->layer[l]);
    }
    free(m->layer);
    m->layer = NULL;
    free(m->host_batch);
    m->host_batch = NULL;
    params_destroy(device, &m->dense);
    params_destroy(device, &m->experts);
    void *buffers[] = {&m->batch, &m->x, &m->normed, &m->y, &m->dx, &m->d_inner, &m->logits, &m->d_logits, &m->loss};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) {
        moe_device_free(device, buffers[i]);
    }
}

int model_begin_step(struct model *m)
{
    const struct moe_device_ops *ops = moe_device_ops(m->job->device);
    int rc = ops->zero(m->job->device, m->dense.grad, (size_t)m->dense.count * sizeof(float));
    rc = rc ? rc : ops->zero(m->job->device, m->experts.grad, (size_t)m->experts.count * sizeof(float));
    return rc ? rc : ops->zero(m->job->device, m->loss, sizeof(double));
}

static struct moe_layer_weights layer_weights(const struct model *m, int64_t l)
{
    const struct shape *s = &m->shape;
    int64_t gate = shape_gate(s, l), w1 = shape_w1(s, l, s->local), w2 = shape_w2(s, l, s->local);
    return (struct moe_layer_weights){.gate = m->dense.value + gate,
                                      .w1 = m->experts.value + w1,
                                      .w2 = m->experts.value + w2,
                                      .d_gate = m->dense.grad + gate,
                                      .d_w1 = m->experts.grad + w1,
                                      .d_w2 = m->experts.grad + w2};
}

/* The RMSNorm before block l (the head for l = layers), forward or backward. */
static struct rmsnorm norm(const struct model *m, int64_t l)
{
    int64_t at = l < m->shape.layers ? shape_norm(&m->shape, l) : shape_final_norm(&m->shape);
    int64_t rows = m->options->tokens * m->shape.hidden;
    return (struct rmsnorm){.tokens = m->options->tokens,
                            .hidden = m->shape.hidden,
                            .x = m->x + l * rows,
                            .gain = m->dense.value + at,
                            .out = m->normed + l * rows,
                            .d_gain = m->dense.grad + at};
}

static void report_empty(const struct model *m, const struct moe_step *step, int64_t l)
{
    if (m->options->verbose && moe_layer_rows(m->layer[l]) == 0) {
        fprintf(stderr, "moe_train: rank %d: step %u, layer %lld: no tokens%s\n", m->job->rank, step->step,
                (long long)l, moe_layer_skipped(m->layer[l]) ? ", experts skipped" : "");
    }
}

static int forward(struct model *m, const struct moe_step *step)
{
    const struct shape *s = &m->shape;
    moe_device_t *device = m->job->device;
    int64_t tokens = m->options->tokens, rows = tokens * s->hidden;
    struct embed embed = {.tokens = tokens,
                          .context = s->context,
                          .hidden = s->hidden,
                          .batch = m->batch,
                          .table = m->dense.value,
                          .out = m->x};
    int rc = model_embed(device, &embed);
    for (int64_t l = 0; l < s->layers && rc == 0; l++) {
        struct rmsnorm before = norm(m, l);
        struct moe_layer_weights weights = layer_weights(m, l);
        struct add residual = {.count = rows, .a = m->x + l * rows, .b = m->y, .to = m->x + (l + 1) * rows};
        rc = model_rmsnorm(device, &before);
        rc = rc ? rc : moe_layer_forward(m->layer[l], &weights, step, before.out, tokens, m->y);
        rc = rc ? rc : model_add(device, &residual);
        report_empty(m, step, l);
    }
    struct rmsnorm last = norm(m, s->layers);
    struct moe_gemm head = {.tb = true,
                            .m = tokens,
                            .n = VOCAB,
                            .k = s->hidden,
                            .alpha = 1.0f,
                            .a = last.out,
                            .b = m->dense.value + shape_head(s),
                            .c = m->logits};
    struct cross_entropy loss = {.tokens = tokens,
                                 .context = s->context,
                                 .batch = m->batch,
                                 .logits = m->logits,
                                 .scale = 1.0f / (float)(tokens * m->options->microbatches),
                                 .d_logits = m->d_logits,
                                 .loss = m->loss};
    rc = rc ? rc : model_rmsnorm(device, &last);
    rc = rc ? rc : moe_device_ops(device)->gemm(device, &head);
    return rc ? rc : model_cross_entropy(device, &loss);
}

static int backward(struct model *m, const struct moe_step *step)
{
    const struct shape *s = &m->shape;
    moe_device_t *device = m->job->device;
    const struct moe_device_ops *ops = moe_device_ops(device);
    int64_t tokens = m->options->tokens;
    struct rmsnorm last = norm(m, s->layers);
    struct moe_gemm wgrad = {.ta = true,
                             .m = VOCAB,
                             .n = s->hidden,
                             .k = tokens,
                             .alpha = 1.0f,
                             .beta = 1.0f,
                             .a = m->d_logits,
                             .b = last.out,
                             .c = m->dense.grad + shape_head(s)};
    struct moe_gemm dgrad = {.m = tokens,
                             .n = s->hidden,
                             .k = VOCAB,
                             .alpha = 1.0f,
                             .a = m->d_logits,
                             .b = m->dense.value + shape_head(s),
                             .c = m->d_inner};
    int rc = ops->gemm(device, &wgrad);
    rc = rc ? rc : ops->gemm(device, &dgrad);
    rc = rc ? rc : ops->zero(device, m->dx, (size_t)(tokens * s->hidden) * sizeof(float));
    last.d_out = m->d_inner;
    last.out = m->dx;
    rc = rc ? rc : model_rmsnorm_backward(device, &last);
    for (int64_t l = s->layers; l-- > 0 && rc == 0;) {
        struct rmsnorm before = norm(m, l);
        before.d_out = m->d_inner;
        before.out = m->dx;
        if (inject_skip_backward(&m->options->inject, m->job->rank, step->step, l)) {
            continue;
        }
        rc = moe_layer_backward(m->layer[l], m->dx, m->d_inner);
        rc = rc ? rc : model_rmsnorm_backward(device, &before);
    }
    struct embed embed = {.tokens = tokens,
                          .context = s->context,
                          .hidden = s->hidden,
                          .batch = m->batch,
                          .d_out = m->dx,
                          .out = m->dense.grad};
    return rc ? rc : model_embed_backward(device, &embed);
}

int model_microbatch(struct model *m, const struct corpus *corpus, const struct moe_step *step)
{
    corpus_batch(corpus, step->step, step->microbatch, m->job->rank, m->options->tokens, m->host_batch);
    int rc =
        moe_device_copy(m->job->device, m->batch, m->host_batch, (size_t)(m->options->tokens * (m->shape.context + 1)));
    rc = rc ? rc : forward(m, step);
    return rc ? rc : backward(m, step);
}
