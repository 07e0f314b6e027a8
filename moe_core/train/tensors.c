/*
 * tensors.c: the table of the model's tensors.
 *
 * One description serves whatever needs to know a tensor by itself: the check, which names the one that differs, the
 * gathering of shares, and checkpoints, which hold whole tensors so that any layout can read them. Code for each tensor
 * in each of these places was rejected: a tensor that is forgotten in one of them is a checkpoint that cannot be read.
 */
#include "moe_core/train/tensors.h"

#include <stdio.h>
#include <stdlib.h>

struct list {
    struct tensor *at;
    int32_t used;
};

/* Adds a tensor, unless it has no elements. */
static void add(struct list *list, struct tensor t, const char *name)
{
    t.local_blocks = t.local_blocks > 0 ? t.local_blocks : t.blocks;
    t.local_width = t.local_width > 0 ? t.local_width : t.width;
    if (tensor_count(&t) == 0) {
        return;
    }
    if (t.layer < 0) {
        snprintf(t.name, sizeof(t.name), "%s", name);
    } else {
        snprintf(t.name, sizeof(t.name), "layers.%lld.%s", (long long)t.layer, name);
    }
    list->at[list->used++] = t;
}

/* Adds a tensor that every rank has whole. */
static void add_dense(struct list *list, int64_t layer, const char *kind, const char *name, int64_t at, int32_t ndims,
                      const int64_t *dims)
{
    struct tensor t = {.kind = kind,
                       .layer = layer,
                       .buffer = TENSOR_DENSE,
                       .local_at = at,
                       .whole_at = at,
                       .ndims = ndims,
                       .blocks = 1,
                       .outer = 1,
                       .width = 1,
                       .inner = 1};
    for (int32_t i = 0; i < ndims; i++) {
        t.dims[i] = dims[i];
        t.outer *= dims[i];
    }
    add(list, t, name);
}

static void add_experts(struct list *list, const struct shape *s, int64_t l)
{
    struct share local = share_local(s), all = share_all(s);
    int64_t e = s->experts, f = s->ffn, h = s->hidden, width = s->local_ffn, bias = s->bias ? 1 : 0;
    struct tensor plain = {.layer = l, .buffer = TENSOR_EXPERTS, .blocks = e, .local_blocks = s->local};
    struct tensor w1 = plain, w2 = plain, b1 = plain, b2 = plain;
    w1.kind = "w1", w1.outer = 2, w1.width = f, w1.local_width = width, w1.inner = h;
    w1.ndims = 3, w1.dims[0] = e, w1.dims[1] = 2 * f, w1.dims[2] = h;
    w1.local_at = shape_w1(s, local, l), w1.whole_at = shape_w1(s, all, l);
    w2.kind = "w2", w2.outer = h, w2.width = f, w2.local_width = width, w2.inner = 1;
    w2.ndims = 3, w2.dims[0] = e, w2.dims[1] = h, w2.dims[2] = f;
    w2.local_at = shape_w2(s, local, l), w2.whole_at = shape_w2(s, all, l);
    b1.kind = "b1", b1.outer = 2 * bias, b1.width = f, b1.local_width = width, b1.inner = 1;
    b1.ndims = 2, b1.dims[0] = e, b1.dims[1] = 2 * f;
    b1.local_at = shape_b1(s, local, l), b1.whole_at = shape_b1(s, all, l);
    b2.kind = "b2", b2.outer = h * bias, b2.width = 1, b2.inner = 1;
    b2.ndims = 2, b2.dims[0] = e, b2.dims[1] = h;
    b2.local_at = shape_b2(s, local, l), b2.whole_at = shape_b2(s, all, l);
    add(list, w1, "experts.w1");
    add(list, w2, "experts.w2");
    add(list, b1, "experts.b1");
    add(list, b2, "experts.b2");
}

static void add_shared(struct list *list, const struct shape *s, int64_t l)
{
    int64_t f = s->shared, h = s->hidden, width = s->local_shared, bias = s->bias ? 1 : 0;
    struct tensor plain = {.layer = l, .buffer = TENSOR_SHARED, .blocks = 1};
    struct tensor w1 = plain, w2 = plain, b1 = plain, b2 = plain;
    w1.kind = "shared w1", w1.outer = 2, w1.width = f, w1.local_width = width, w1.inner = h;
    w1.ndims = 2, w1.dims[0] = 2 * f, w1.dims[1] = h;
    w1.local_at = shape_shared_w1(s, width, l), w1.whole_at = shape_shared_w1(s, f, l);
    w2.kind = "shared w2", w2.outer = h, w2.width = f, w2.local_width = width, w2.inner = 1;
    w2.ndims = 2, w2.dims[0] = h, w2.dims[1] = f;
    w2.local_at = shape_shared_w2(s, width, l), w2.whole_at = shape_shared_w2(s, f, l);
    b1.kind = "shared b1", b1.outer = 2 * bias, b1.width = f, b1.local_width = width, b1.inner = 1;
    b1.ndims = 1, b1.dims[0] = 2 * f;
    b1.local_at = shape_shared_b1(s, width, l), b1.whole_at = shape_shared_b1(s, f, l);
    b2.kind = "shared b2", b2.outer = f > 0 ? h * bias : 0, b2.width = 1, b2.inner = 1;
    b2.ndims = 1, b2.dims[0] = h;
    b2.local_at = shape_shared_b2(s, width, l), b2.whole_at = shape_shared_b2(s, f, l);
    add(list, w1, "shared_expert.w1");
    add(list, w2, "shared_expert.w2");
    add(list, b1, "shared_expert.b1");
    add(list, b2, "shared_expert.b2");
}

struct tensor *tensors_new(const struct shape *s, int32_t *count)
{
    enum { OUTSIDE = 3, PER_LAYER = 12 };
    int64_t h = s->hidden, e = s->experts, shared_gate = s->shared > 0 && s->shared_gate ? h : 0;
    struct list list = {.at = calloc((size_t)(OUTSIDE + PER_LAYER * s->layers), sizeof(struct tensor))};
    if (list.at == NULL) {
        return NULL;
    }
    add_dense(&list, -1, "embedding", "embedding.weight", 0, 3, (const int64_t[]){s->context, VOCAB, h});
    for (int64_t l = 0; l < s->layers; l++) {
        int64_t bias = s->gate_bias ? e : 0;
        add_dense(&list, l, "norm", "norm.weight", shape_norm(s, l), 1, &h);
        add_dense(&list, l, "gate", "router.weight", shape_gate(s, l), 2, (const int64_t[]){e, h});
        add_dense(&list, l, "gate bias", "router.bias", shape_gate_bias(s, l), 1, &bias);
        add_experts(&list, s, l);
        add_shared(&list, s, l);
        add_dense(&list, l, "shared gate", "shared_expert.gate", shape_shared_gate(s, l), 1, &shared_gate);
    }
    add_dense(&list, -1, "final norm", "norm.weight", shape_final_norm(s), 1, &h);
    add_dense(&list, -1, "head", "head.weight", shape_head(s), 2, (const int64_t[]){VOCAB, h});
    *count = list.used;
    return list.at;
}

int64_t tensor_count(const struct tensor *t)
{
    return t->blocks * t->outer * t->width * t->inner;
}

int64_t tensor_local_count(const struct tensor *t)
{
    return t->local_blocks * t->outer * t->local_width * t->inner;
}

int64_t tensor_runs(const struct tensor *t)
{
    return t->local_blocks * t->outer;
}

struct tensor_run tensor_run(const struct tensor *t, int64_t first_block, int64_t first_column, int64_t run)
{
    int64_t block = first_block + run / t->outer, outer = run % t->outer, count = t->local_width * t->inner;
    return (struct tensor_run){.local_at = run * count,
                               .whole_at = ((block * t->outer + outer) * t->width + first_column) * t->inner,
                               .count = count};
}

void tensor_place(const struct tensor *t, const struct job *job, int32_t rank, int64_t *first_block,
                  int64_t *first_column)
{
    int64_t ep_rank = rank / job->parts % job->ep_size, part = rank % job->parts;
    if (t->buffer == TENSOR_SHARED) {
        part = rank % job->tp_size;
    }
    *first_block = t->local_blocks == t->blocks ? 0 : ep_rank * t->local_blocks;
    *first_column = t->local_width == t->width ? 0 : part * t->local_width;
}

int32_t tensor_owner(const struct tensor *t, const struct job *job, int64_t element)
{
    int64_t block = element / (t->outer * t->width * t->inner) / t->local_blocks;
    int64_t part = element / t->inner % t->width / t->local_width;
    return (int32_t)(t->buffer == TENSOR_SHARED ? part : block * job->parts + part);
}
