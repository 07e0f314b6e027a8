/*
 * model.c: the model's buffers, forward and backward. Its layers and their weights are made in model_layers.c.
 *
 * The model computes in float32; with another type of rows only what goes into a layer and comes out of it is cast.
 * Where ranks of tp have the same tokens, a layer gives summands, and the model sums them where it receives them, at
 * the boundary of tensor parallelism.
 */
#include "moe_core/train/model.h"

#include "moe_core/include/moe/error.h"
#include "moe_core/include/moe/ops.h"
#include "moe_core/train/model_ops.h"
#include "moe_core/train/random.h"

#include <stdio.h>
#include <stdlib.h>

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
    size_t narrow = (size_t)(tokens * s->hidden) * moe_dtype_bytes((enum moe_dtype)m->options->dtype);
    size_t vocab = (size_t)(tokens * VOCAB) * sizeof(float), blocks = (size_t)(s->layers + 1);
    struct {
        void *at;
        size_t bytes;
    } table[] = {
        {&m->batch, lines},
        {&m->x, blocks * rows},
        {&m->normed, blocks * rows},
        {&m->y, rows},
        {&m->dx, rows},
        {&m->d_inner, rows},
        {&m->logits, vocab},
        {&m->d_logits, vocab},
        {&m->loss, sizeof(double)},
        {&m->rows, (size_t)s->layers * narrow},
        {&m->rows_out, narrow},
        {&m->d_rows, narrow},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]) && rc == 0; i++) {
        rc = moe_device_alloc(device, table[i].bytes, table[i].at);
    }
    if (rc == 0 && m->options->check && m->options->dtype != MOE_F32) {
        size_t choices = (size_t)(m->options->microbatches * s->layers * tokens * m->options->topk) * sizeof(int32_t);
        rc = moe_device_alloc(device, choices, (void **)&m->choice);
        rc = rc ? rc : moe_device_alloc(device, choices, (void **)&m->kept);
    }
    m->host_batch = malloc(lines);
    m->layer = calloc((size_t)s->layers, sizeof(moe_layer_t *));
    return rc != 0 || (m->host_batch != NULL && m->layer != NULL) ? rc : MOE_E_NOMEM;
}

enum { FACTS_PER_LAYER = 6, FACTS_OF_MODEL = 4 }; /* layer_facts.c tells at most five, main.c three */

int model_new(const struct train_options *options, const struct job *job, struct model *model)
{
    *model = (struct model){.options = options, .job = job};
    model->shape = model_shape(options, job);
    const struct shape *s = &model->shape;
    int rc = params_new(job->device, shape_dense(s), &model->dense);
    rc = rc ? rc : params_new(job->device, shape_w1(s, share_local(s), s->layers), &model->experts);
    rc = rc ? rc : params_new(job->device, shape_shared_w1(s, s->local_shared, s->layers), &model->shared);
    rc = rc ? rc : buffers_new(model);
    if (rc == 0 && options->facts) {
        rc = moe_facts_new(job->device, (uint32_t)(FACTS_PER_LAYER * s->layers + FACTS_OF_MODEL), &model->facts);
    }
    rc = rc ? rc : model_layers_room(model);
    rc = rc ? rc : model_load_weights(model);
    if (rc != 0) {
        model_destroy(model);
    }
    return rc;
}

void model_destroy(struct model *m)
{
    moe_device_t *device = m->job->device;
    for (int64_t l = 0; m->layer != NULL && l < m->shape.layers; l++) {
        moe_layer_destroy(&m->layer[l]);
    }
    moe_facts_destroy(&m->facts);
    free(m->layer);
    free(m->hook);
    m->hook = NULL;
    m->layer = NULL;
    free(m->host_batch);
    m->host_batch = NULL;
    params_destroy(device, &m->dense);
    params_destroy(device, &m->experts);
    params_destroy(device, &m->shared);
    void *buffers[] = {&m->choice, &m->kept, &m->rows, &m->rows_out, &m->d_rows, &m->expert_bias, &m->batch, &m->x,
                       &m->normed, &m->y,    &m->dx,   &m->d_inner,  &m->logits, &m->d_logits,    &m->loss};
    for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++) {
        moe_device_free(device, buffers[i]);
    }
}

int model_begin_step(struct model *m)
{
    const struct moe_ops *ops = moe_device_ops(m->job->device);
    int rc = ops->zero(m->job->device, m->dense.grad, (size_t)m->dense.count * sizeof(float));
    rc = rc ? rc : ops->zero(m->job->device, m->experts.grad, (size_t)m->experts.count * sizeof(float));
    rc = rc ? rc : ops->zero(m->job->device, m->shared.grad, (size_t)m->shared.count * sizeof(float));
    for (int64_t l = 0; l < m->shape.layers && rc == 0; l++) {
        rc = moe_router_global_reset(moe_layer_router(m->layer[l]));
    }
    return rc ? rc : ops->zero(m->job->device, m->loss, sizeof(double));
}

/* The RMSNorm before block l (the head for l = layers), forward or backward. */
static struct rmsnorm norm(const struct model *m, int64_t l)
{
    int64_t at = l < m->shape.layers ? shape_norm(&m->shape, l) : shape_final_norm(&m->shape);
    int64_t rows = m->options->tokens * m->shape.hidden;
    return (struct rmsnorm){.tokens = m->tokens,
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

static int cast(const struct model *m, enum moe_dtype from_type, const void *from, enum moe_dtype to_type, void *to)
{
    struct moe_cast args = {
        .count = m->tokens * m->shape.hidden, .from_type = from_type, .to_type = to_type, .from = from, .to = to};
    return moe_device_ops(m->job->device)->cast(m->job->device, &args);
}

/* Sums rows of which each rank of tp (with the same tokens) holds a summand. */
static int sum_over_tp(const struct model *m, void *rows)
{
    static const ncclDataType_t type[] = {[MOE_F32] = ncclFloat32, [MOE_BF16] = ncclBfloat16, [MOE_F16] = ncclFloat16};
    if (!options_replicate(m->options)) {
        return 0;
    }
    ncclResult_t nc = ncclAllReduce(rows, rows, (size_t)(m->tokens * m->shape.hidden), type[m->options->dtype], ncclSum,
                                    m->job->tp, moe_device_stream(m->job->device));
    return job_nccl_failed(m->job, "AllReduce over tp", nc) ? MOE_E_COMM : 0;
}

/* Keeps the choice of a layer's router for --check. */
static int keep_routing(const struct model *m, int64_t l, const struct moe_step *step)
{
    const struct train_options *o = m->options;
    const moe_router_t *router = moe_layer_router(m->layer[l]);
    int64_t slices = options_replicate(o) && o->tp_mode == MOE_TP_SPLIT_TOKENS ? o->tp : 1;
    int64_t at = (step->microbatch * m->shape.layers + l) * o->tokens * o->topk;
    size_t bytes = (size_t)(m->tokens / slices * o->topk) * sizeof(int32_t);
    if (m->choice == NULL || m->forward_only) {
        return 0;
    }
    int rc = moe_device_copy(m->job->device, m->choice + at, moe_router_choice(router), bytes);
    return rc ? rc : moe_device_copy(m->job->device, m->kept + at, moe_router_index(router), bytes);
}

static int layer_forward(struct model *m, int64_t l, const struct moe_layer_weights *weights,
                         const struct moe_step *step, const float *x)
{
    enum moe_dtype type = (enum moe_dtype)m->options->dtype;
    if (type == MOE_F32) {
        int rc = moe_layer_forward(m->layer[l], weights, step, x, m->tokens, m->y);
        return rc ? rc : sum_over_tp(m, m->y);
    }
    size_t row = (size_t)m->shape.hidden * moe_dtype_bytes(type);
    void *rows = (char *)m->rows + (size_t)(l * m->options->tokens) * row;
    int rc = cast(m, MOE_F32, x, type, rows);
    rc = rc ? rc : moe_layer_forward(m->layer[l], weights, step, rows, m->tokens, m->rows_out);
    rc = rc ? rc : sum_over_tp(m, m->rows_out);
    return rc ? rc : cast(m, type, m->rows_out, MOE_F32, m->y);
}

/* Computes d_inner from dx. */
static int layer_backward(struct model *m, int64_t l)
{
    enum moe_dtype type = (enum moe_dtype)m->options->dtype;
    if (type == MOE_F32) {
        int rc = moe_layer_backward(m->layer[l], m->dx, m->d_inner);
        return rc ? rc : sum_over_tp(m, m->d_inner);
    }
    int rc = cast(m, MOE_F32, m->dx, type, m->rows_out);
    rc = rc ? rc : moe_layer_backward(m->layer[l], m->rows_out, m->d_rows);
    rc = rc ? rc : sum_over_tp(m, m->d_rows);
    return rc ? rc : cast(m, type, m->d_rows, MOE_F32, m->d_inner);
}

static int forward(struct model *m, const struct moe_step *step)
{
    const struct shape *s = &m->shape;
    moe_device_t *device = m->job->device;
    int64_t tokens = m->tokens, rows = m->options->tokens * s->hidden;
    struct embed embed = {.tokens = tokens,
                          .context = s->context,
                          .hidden = s->hidden,
                          .batch = m->batch,
                          .table = m->dense.value,
                          .out = m->x};
    int rc = model_embed(device, &embed);
    for (int64_t l = 0; l < s->layers && rc == 0; l++) {
        struct rmsnorm before = norm(m, l);
        struct moe_layer_weights weights = model_layer_weights(m, l);
        struct addition residual = {
            .count = tokens * s->hidden, .a = m->x + l * rows, .b = m->y, .to = m->x + (l + 1) * rows};
        rc = model_rmsnorm(device, &before);
        rc = rc ? rc : layer_forward(m, l, &weights, step, before.out);
        rc = rc ? rc : keep_routing(m, l, step);
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
                                 .scale = 1.0f / (float)(m->options->tokens * m->options->microbatches),
                                 .d_logits = m->d_logits,
                                 .loss = m->loss};
    rc = rc ? rc : model_rmsnorm(device, &last);
    rc = rc ? rc : moe_device_ops(device)->gemm(device, &head);
    return rc ? rc : model_cross_entropy(device, &loss);
}

static void ready(const struct model *m, int64_t layer, int parameter)
{
    if (m->ready != NULL) {
        m->ready(m->ready_arg, layer, parameter);
    }
}

static int backward(struct model *m, const struct moe_step *step)
{
    const struct shape *s = &m->shape;
    moe_device_t *device = m->job->device;
    const struct moe_ops *ops = moe_device_ops(device);
    int64_t tokens = m->tokens;
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
    ready(m, s->layers, MODEL_HOOK_HEAD);
    ready(m, s->layers, MODEL_HOOK_NORM);
    for (int64_t l = s->layers; l-- > 0 && rc == 0;) {
        struct rmsnorm before = norm(m, l);
        before.d_out = m->d_inner;
        before.out = m->dx;
        if (inject_skip_backward(&m->options->inject, m->job->rank, step->step, l)) {
            continue;
        }
        rc = layer_backward(m, l);
        rc = rc ? rc : model_rmsnorm_backward(device, &before);
        ready(m, l, MODEL_HOOK_NORM);
    }
    struct embed embed = {.tokens = tokens,
                          .context = s->context,
                          .hidden = s->hidden,
                          .batch = m->batch,
                          .d_out = m->dx,
                          .out = m->dense.grad};
    rc = rc ? rc : model_embed_backward(device, &embed);
    ready(m, s->layers, MODEL_HOOK_EMBED);
    return rc;
}

int64_t model_tokens(const struct train_options *o, int32_t data_rank, const struct moe_step *at)
{
    if (!o->vary_tokens) {
        return o->tokens;
    }
    uint64_t key = random_key(o->seed + 77, (uint64_t)at->step << 32 | at->microbatch, (uint64_t)data_rank);
    int64_t tokens = (int64_t)(key % (uint64_t)(o->tokens + 1));
    return options_replicate(o) ? tokens / o->tp * o->tp : tokens;
}

void model_batch(const struct train_options *o, const struct corpus *corpus, int32_t data_rank,
                 const struct moe_step *at, uint8_t *batch)
{
    int64_t tokens = model_tokens(o, data_rank, at);
    uint64_t microbatch = (uint64_t)at->step * o->microbatches + at->microbatch;
    if (o->empty_every > 0 && microbatch % o->empty_every == o->empty_every - 1) {
        corpus_batch_alike(corpus, at->step, at->microbatch, tokens, batch);
    } else {
        corpus_batch(corpus, at->step, at->microbatch, data_rank, tokens, batch);
    }
}

int model_microbatch(struct model *m, const struct corpus *corpus, const struct moe_step *step)
{
    m->tokens = model_tokens(m->options, m->job->data_rank, step);
    model_batch(m->options, corpus, m->job->data_rank, step, m->host_batch);
    int rc = moe_device_copy(m->job->device, m->batch, m->host_batch, (size_t)(m->tokens * (m->shape.context + 1)));
    rc = rc ? rc : forward(m, step);
    return rc ? rc : backward(m, step);
}

int model_validate(struct model *m, const struct corpus *corpus, const struct moe_step *step, int64_t first)
{
    m->tokens = m->options->tokens;
    m->forward_only = true;
    corpus_batch_held_out(corpus, first, m->tokens, m->host_batch);
    for (int64_t l = 0; l < m->shape.layers; l++) {
        moe_router_set_counting(moe_layer_router(m->layer[l]), false);
    }
    int rc = moe_device_copy(m->job->device, m->batch, m->host_batch, (size_t)(m->tokens * (m->shape.context + 1)));
    rc = rc ? rc : forward(m, step);
    for (int64_t l = 0; l < m->shape.layers; l++) {
        moe_router_set_counting(moe_layer_router(m->layer[l]), true);
    }
    m->forward_only = false;
    return rc;
}
