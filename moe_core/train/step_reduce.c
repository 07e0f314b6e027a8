/*
 * step_reduce.c: which gradients are reduced over which group, with which scale.
 *
 *   buffer   over                                       why
 *   dense    world, or dp where tp has the same tokens  the same on every rank
 *   shared   dp                                         each rank of tp has a slice
 *   experts  edp                                        the same part of the same experts
 *
 * All gradients are scaled by 1 / data ranks before the sum, which makes a mean over all ranks' tokens; for experts
 * too, because an expert's gradient already holds the tokens of its ep group.
 */
#include "moe_core/train/step_reduce.h"

#include "moe_core/include/moe/error.h"

#include <stdio.h>
#include <stdlib.h>

enum { HOOKS = MODEL_HOOKS };

static ncclComm_t dense_comm(const struct step_reduce *r)
{
    return options_replicate(r->options) ? r->job->data : r->job->world;
}

static float scale(const struct step_reduce *r)
{
    return 1.0f / (float)r->job->data_size;
}

/* buckets */

static void add(const struct step_reduce *r, struct bucketed *b, int64_t layer, int hook, const char *what,
                int64_t offset, int64_t count)
{
    if (count == 0) {
        return;
    }
    bool inside = layer < r->model->shape.layers;
    char *name = b->name[b->used];
    if (inside) {
        snprintf(name, sizeof(b->name[0]), "layer %lld %s", (long long)layer, what);
    } else {
        snprintf(name, sizeof(b->name[0]), "%s", what);
    }
    b->parameter[b->used] = (struct moe_bucket_parameter){
        .name = name, .layer = inside ? (uint32_t)layer : UINT32_MAX, .offset = (size_t)offset, .count = (size_t)count};
    b->place[layer * HOOKS + hook] = b->used++;
}

/*
 * These functions list the parameters of each buffer in the order in which they lie there. Layer number `layers` stands
 * for parameters outside of layers.
 */
static void list_dense(const struct step_reduce *r, struct bucketed *b)
{
    const struct shape *s = &r->model->shape;
    int64_t h = s->hidden, outside = s->layers;
    add(r, b, outside, MODEL_HOOK_EMBED, "embedding", 0, s->context * VOCAB * h);
    for (int64_t l = 0; l < s->layers; l++) {
        add(r, b, l, MODEL_HOOK_NORM, "norm", shape_norm(s, l), h);
        add(r, b, l, MOE_LAYER_GATE, "gate", shape_gate(s, l), s->experts * h);
        add(r, b, l, MOE_LAYER_GATE_BIAS, "gate bias", shape_gate_bias(s, l), s->gate_bias ? s->experts : 0);
        add(r, b, l, MOE_LAYER_SHARED_GATE, "shared gate", shape_shared_gate(s, l),
            s->shared > 0 && s->shared_gate ? h : 0);
    }
    add(r, b, outside, MODEL_HOOK_NORM, "final norm", shape_final_norm(s), h);
    add(r, b, outside, MODEL_HOOK_HEAD, "head", shape_head(s), VOCAB * h);
}

static void list_experts(const struct step_reduce *r, struct bucketed *b)
{
    const struct shape *s = &r->model->shape;
    struct share e = share_local(s);
    for (int64_t l = 0; l < s->layers; l++) {
        add(r, b, l, MOE_LAYER_W1, "w1", shape_w1(s, e, l), shape_w2(s, e, l) - shape_w1(s, e, l));
        add(r, b, l, MOE_LAYER_W2, "w2", shape_w2(s, e, l), shape_b1(s, e, l) - shape_w2(s, e, l));
        add(r, b, l, MOE_LAYER_B1, "b1", shape_b1(s, e, l), shape_b2(s, e, l) - shape_b1(s, e, l));
        add(r, b, l, MOE_LAYER_B2, "b2", shape_b2(s, e, l), shape_w1(s, e, l + 1) - shape_b2(s, e, l));
    }
}

static void list_shared(const struct step_reduce *r, struct bucketed *b)
{
    const struct shape *s = &r->model->shape;
    int64_t f = s->local_shared;
    for (int64_t l = 0; l < s->layers; l++) {
        int64_t w2 = shape_shared_w2(s, f, l), b1 = shape_shared_b1(s, f, l);
        add(r, b, l, MOE_LAYER_SHARED_W1, "shared w1", shape_shared_w1(s, f, l), 2 * f * s->hidden);
        add(r, b, l, MOE_LAYER_SHARED_W2, "shared w2", w2, b1 - w2);
        add(r, b, l, MOE_LAYER_SHARED_B1, "shared b1", b1, shape_shared_b2(s, f, l) - b1);
        add(r, b, l, MOE_LAYER_SHARED_B2, "shared b2", shape_shared_b2(s, f, l),
            shape_shared_w1(s, f, l + 1) - shape_shared_b2(s, f, l));
    }
}

static int make(const struct step_reduce *r, struct bucketed *b, const struct params *p, ncclComm_t comm,
                void (*list)(const struct step_reduce *, struct bucketed *))
{
    size_t most = (size_t)(r->model->shape.layers + 1) * HOOKS;
    if (p->count == 0) {
        return 0;
    }
    b->parameter = calloc(most, sizeof(*b->parameter));
    b->name = calloc(most, sizeof(*b->name));
    b->place = calloc(most, sizeof(*b->place));
    if (b->parameter == NULL || b->name == NULL || b->place == NULL) {
        return MOE_E_NOMEM;
    }
    for (size_t i = 0; i < most; i++) {
        b->place[i] = -1;
    }
    list(r, b);
    struct moe_buckets_config config = {.grad = p->grad,
                                        .count = (size_t)p->count,
                                        .comm = comm,
                                        .dp = r->job->data_size,
                                        .bucket_bytes = (size_t)r->options->buckets,
                                        .overlap = r->options->overlap,
                                        .legacy_wait = r->options->legacy.bucket_wait,
                                        .legacy_only_with_grad = r->options->legacy.bucket_only_with_grad,
                                        .world_rank = r->job->rank};
    return moe_buckets_new(r->job->device, &config, b->parameter, b->used, &b->buckets);
}

static void hook(void *arg, int64_t layer, int which)
{
    struct step_reduce *r = arg;
    struct bucketed *buffers[] = {&r->dense, &r->experts, &r->shared};
    for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]) && r->rc == 0; i++) {
        int32_t place = buffers[i]->place != NULL ? buffers[i]->place[layer * HOOKS + which] : -1;
        r->rc = place >= 0 ? moe_buckets_ready(buffers[i]->buckets, place) : 0;
    }
}

int step_reduce_new(const struct train_options *options, const struct job *job, struct model *model,
                    struct step_reduce *r)
{
    *r = (struct step_reduce){.options = options, .job = job, .model = model};
    r->bucketed = options->overlap || options->buckets > 0;
    if (!r->bucketed) {
        return 0;
    }
    int rc = make(r, &r->dense, &model->dense, dense_comm(r), list_dense);
    rc = rc ? rc : make(r, &r->shared, &model->shared, job->data, list_shared);
    rc = rc ? rc : make(r, &r->experts, &model->experts, job->edp, list_experts);
    model->ready = hook;
    model->ready_arg = r;
    return rc;
}

void step_reduce_destroy(struct step_reduce *r)
{
    struct bucketed *buffers[] = {&r->dense, &r->experts, &r->shared};
    for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++) {
        moe_buckets_destroy(&buffers[i]->buckets);
        free(buffers[i]->parameter);
        free(buffers[i]->name);
        free(buffers[i]->place);
    }
}

static int finish_buckets(struct step_reduce *r)
{
    struct bucketed *buffers[] = {&r->dense, &r->shared, &r->experts};
    int rc = r->rc;
    for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]) && rc == 0; i++) {
        rc = buffers[i]->buckets != NULL ? moe_buckets_finish(buffers[i]->buckets) : 0;
    }
    return rc;
}

/* the simple form */

static int reduce_dense(struct step_reduce *r, uint32_t step)
{
    struct moe_bucket bucket = {.grad = r->model->dense.grad,
                                .count = (size_t)r->model->dense.count,
                                .scale = scale(r),
                                .comm = dense_comm(r),
                                .layer = UINT32_MAX};
    return inject_reduce(&r->options->inject, r->job->rank, step, r->job->device, &bucket);
}

static int reduce_shared(struct step_reduce *r)
{
    struct moe_bucket bucket = {.grad = r->model->shared.grad,
                                .count = (size_t)r->model->shared.count,
                                .scale = scale(r),
                                .comm = r->job->data,
                                .layer = UINT32_MAX};
    return bucket.count > 0 ? moe_reduce(r->job->device, &bucket) : 0;
}

static int reduce_experts(struct step_reduce *r, uint32_t step)
{
    const struct shape *s = &r->model->shape;
    struct share local = share_local(s);
    int rc = 0;
    for (int64_t l = s->layers; l-- > 0 && rc == 0;) {
        int64_t from = shape_w1(s, local, l), to = shape_w1(s, local, l + 1);
        struct moe_bucket bucket = {.grad = r->model->experts.grad + from,
                                    .count = (size_t)(to - from),
                                    .scale = scale(r),
                                    .comm = r->job->edp,
                                    .layer = (uint32_t)l};
        rc = inject_reduce(&r->options->inject, r->job->rank, step, r->job->device, &bucket);
    }
    return rc;
}

int step_reduce_run(struct step_reduce *r, uint32_t step)
{
    if (r->bucketed) {
        return finish_buckets(r);
    }
    if (inject_swap(&r->options->inject, r->job->rank, step)) {
        int rc = reduce_experts(r, step);
        rc = rc ? rc : reduce_shared(r);
        return rc ? rc : reduce_dense(r, step);
    }
    int rc = reduce_dense(r, step);
    rc = rc ? rc : reduce_shared(r);
    return rc ? rc : reduce_experts(r, step);
}
