/*
 * layer.c: one MoE layer: the order of its steps, what it reports, and the two ways of a rank without rows.
 *
 * Forward pushes one plan node per step; backward is the plan walked in reverse. The legacy way leaves out the nodes
 * of the steps that a framework's detached graph would lose (permute, dispatch, experts, combine), and nothing else:
 * unpermute and router still get their gradients through the probabilities, as in the originals. Modelling the hazard
 * with a special case in backward was rejected: the missing nodes are the hazard, and the observer sees exactly the
 * list that backward will walk.
 */
#include "moe_core/include/moe/layer.h"

#include "moe_core/fail.h"
#include "moe_core/include/moe/dispatch.h"
#include "moe_core/include/moe/experts.h"
#include "moe_core/include/moe/observe.h"
#include "moe_core/include/moe/ops.h"
#include "moe_core/include/moe/permute.h"
#include "moe_core/include/moe/plan.h"
#include "moe_core/include/moe/router.h"

#include <stdlib.h>

enum { PHASE_FORWARD = 1, PHASE_BACKWARD = 2 }; /* trace/op.h */

struct moe_layer {
    moe_device_t *device;
    struct moe_layer_config config;
    moe_router_t *router;
    moe_row_map_t *map;
    moe_dispatch_t *dispatch;
    moe_experts_t *experts;
    struct moe_plan plan;
    struct moe_layer_weights weights;
    struct moe_step step;
    int64_t tokens, rows;
    bool skipped;
    const float *dy; /* of the backward under way */
    float *dx;
    float *sent, *returned, *d_returned, *d_sent;         /* [T k + 1, H]: source order */
    float *expert_x, *expert_y, *d_expert_y, *d_expert_x; /* [most rows, H]: expert order */
    float *d_probs;
};

static int allocate(moe_layer_t *l)
{
    const struct moe_layer_config *c = &l->config;
    int64_t ranks = moe_dispatch_ranks(l->dispatch), local = c->experts / ranks;
    int64_t per_token = c->topk < local ? c->topk : local;
    size_t row = (size_t)c->hidden * sizeof(float);
    size_t source = (size_t)(c->max_tokens * c->topk + 1) * row;
    size_t expert = (size_t)(c->max_tokens * ranks * per_token + 1) * row;
    struct {
        float **at;
        size_t bytes;
    } buffers[] = {
        {&l->sent, source},
        {&l->returned, source},
        {&l->d_returned, source},
        {&l->d_sent, source},
        {&l->expert_x, expert},
        {&l->expert_y, expert},
        {&l->d_expert_y, expert},
        {&l->d_expert_x, expert},
        {&l->d_probs, (size_t)(c->max_tokens * c->experts) * sizeof(float)},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0] && rc == 0; i++) {
        rc = moe_device_alloc(l->device, buffers[i].bytes, (void **)buffers[i].at);
    }
    struct moe_experts_config experts = {
        .max_rows = c->max_tokens * ranks * per_token + 1, .hidden = c->hidden, .ffn = c->ffn, .experts = local};
    return rc ? rc : moe_experts_new(l->device, &experts, &l->experts);
}

int moe_layer_new(moe_device_t *device, const struct moe_layer_config *config, moe_layer_t **out)
{
    *out = NULL;
    if (config->router.capacity_factor > 0.0f) {
        return moe_fail(MOE_E_UNSUPPORTED, config->world_rank, config->layer,
                        "a capacity: the all-to-all dispatcher keeps all tokens");
    }
    moe_layer_t *l = calloc(1, sizeof *l);
    if (l == NULL) {
        return moe_fail(MOE_E_NOMEM, config->world_rank, config->layer, "a layer");
    }
    l->device = device;
    l->config = *config;
    struct moe_router_config router = {.max_tokens = config->max_tokens,
                                       .hidden = config->hidden,
                                       .experts = config->experts,
                                       .topk = config->topk,
                                       .renormalise = config->renormalise,
                                       .options = config->router,
                                       .balance = config->balance,
                                       .global = config->global};
    struct moe_dispatch_config dispatch = {.max_tokens = config->max_tokens,
                                           .hidden = config->hidden,
                                           .experts = config->experts,
                                           .topk = config->topk,
                                           .ep = config->ep,
                                           .world_rank = config->world_rank,
                                           .layer = config->layer};
    int rc = moe_router_new(device, &router, &l->router);
    rc = rc ? rc : moe_row_map_new(device, config->max_tokens, config->experts, &l->map);
    rc = rc ? rc : moe_dispatch_new(device, &dispatch, &l->dispatch);
    rc = rc ? rc : allocate(l);
    if (rc != 0) {
        moe_layer_destroy(&l);
        return rc;
    }
    *out = l;
    return 0;
}

void moe_layer_destroy(moe_layer_t **layer)
{
    moe_layer_t *l = *layer;
    if (l == NULL) {
        return;
    }
    float **buffers[] = {&l->sent,     &l->returned,   &l->d_returned, &l->d_sent, &l->expert_x,
                         &l->expert_y, &l->d_expert_y, &l->d_expert_x, &l->d_probs};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) {
        moe_device_free(l->device, buffers[i]);
    }
    moe_experts_destroy(&l->experts);
    moe_dispatch_destroy(&l->dispatch);
    moe_row_map_destroy(&l->map);
    moe_router_destroy(&l->router);
    free(l);
    *layer = NULL;
}

static struct moe_event event(const moe_layer_t *l, enum moe_event_kind kind, uint8_t phase, uint64_t count)
{
    return (struct moe_event){.size = sizeof(struct moe_event),
                              .kind = (uint16_t)kind,
                              .phase = phase,
                              .step = l->step.step,
                              .microbatch = l->step.microbatch,
                              .layer = (uint16_t)l->config.layer,
                              .peer = -1,
                              .count = count,
                              .comm = l->config.ep};
}

static int32_t local_experts(const moe_layer_t *l)
{
    return (int32_t)(l->config.experts / moe_dispatch_ranks(l->dispatch));
}

static void report_route(const moe_layer_t *l)
{
    struct moe_event e = event(l, MOE_EV_ROUTE, PHASE_FORWARD, (uint64_t)l->tokens);
    e.peer = (int32_t)l->config.experts;
    e.aux = (uint32_t)l->config.topk;
    moe_observe(&e);
}

static void report_counts(const moe_layer_t *l)
{
    struct moe_event e = event(l, MOE_EV_COUNTS, PHASE_FORWARD, (uint64_t)l->rows);
    e.peer = local_experts(l);
    e.aux = (uint32_t)moe_dispatch_empty_experts(l->dispatch) + (uint32_t)moe_dispatch_rows_padded(l->dispatch);
    moe_observe(&e);
}

/* The splits of the all-to-all that comes next towards the experts: dispatch forward, combine backward. */
static void report_splits(const moe_layer_t *l, uint8_t phase)
{
    for (int32_t p = 0; p < moe_dispatch_ranks(l->dispatch); p++) {
        struct moe_event e = event(l, MOE_EV_SPLIT, phase, (uint64_t)moe_dispatch_split_sent(l->dispatch, p));
        e.count2 = (uint64_t)moe_dispatch_split_received(l->dispatch, p);
        e.peer = p;
        moe_observe(&e);
    }
}

static void report_gemm(const moe_layer_t *l, uint8_t phase)
{
    struct moe_event e = event(l, MOE_EV_GEMM, phase, (uint64_t)moe_dispatch_rows_received(l->dispatch));
    e.peer = local_experts(l);
    e.aux = (uint32_t)moe_dispatch_empty_experts(l->dispatch);
    moe_observe(&e);
}

static void report_remedy(const moe_layer_t *l, uint32_t bit, int64_t zero_rows)
{
    struct moe_event e = event(l, MOE_EV_REMEDY, PHASE_FORWARD, (uint64_t)zero_rows);
    e.peer = (int32_t)bit;
    moe_observe(&e);
}

/* The plan's nodes, named after the forward step whose backward they are. */

static struct moe_experts_weights expert_weights(const moe_layer_t *l)
{
    return (struct moe_experts_weights){
        .w1 = l->weights.w1, .w2 = l->weights.w2, .d_w1 = l->weights.d_w1, .d_w2 = l->weights.d_w2};
}

static int back_route(void *arg)
{
    moe_layer_t *l = arg;
    return moe_router_backward(l->router, l->d_probs, l->dx, l->weights.d_gate, l->weights.d_gate_bias);
}

static int back_permute(void *arg)
{
    moe_layer_t *l = arg;
    return moe_permute_backward(l->map, l->d_sent, l->config.hidden, l->dx, 1.0f);
}

static int back_dispatch(void *arg)
{
    moe_layer_t *l = arg;
    return moe_dispatch_backward(l->dispatch, l->d_expert_x, l->d_sent);
}

static int back_experts(void *arg)
{
    moe_layer_t *l = arg;
    struct moe_experts_weights weights = expert_weights(l);
    report_gemm(l, PHASE_BACKWARD);
    return moe_experts_backward(l->experts, &weights, l->d_expert_y, l->d_expert_x, NULL);
}

static int back_combine(void *arg)
{
    moe_layer_t *l = arg;
    report_splits(l, PHASE_BACKWARD);
    return moe_combine_backward(l->dispatch, l->d_returned, l->d_expert_y);
}

static int back_unpermute(void *arg)
{
    moe_layer_t *l = arg;
    return moe_unpermute_backward(l->map, l->dy, l->returned, moe_router_probs(l->router), l->config.hidden,
                                  l->d_returned, l->d_probs);
}

static int push(moe_layer_t *l, const char *name, int (*run)(void *), enum moe_obligation_op op)
{
    bool issues = op != MOE_OBLIGE_NONE && moe_dispatch_ranks(l->dispatch) > 1;
    struct moe_node node = {
        .name = name, .run = run, .arg = l, .op = issues ? op : MOE_OBLIGE_NONE, .comm = l->config.ep};
    return moe_plan_push(&l->plan, &node);
}

static int push_plan(moe_layer_t *l)
{
    int rc = push(l, "route", back_route, MOE_OBLIGE_NONE);
    if (!l->skipped) {
        rc = rc ? rc : push(l, "permute", back_permute, MOE_OBLIGE_NONE);
        rc = rc ? rc : push(l, "dispatch", back_dispatch, MOE_OBLIGE_ALLTOALL);
        rc = rc ? rc : push(l, "experts", back_experts, MOE_OBLIGE_NONE);
        rc = rc ? rc : push(l, "combine", back_combine, MOE_OBLIGE_ALLTOALL);
    }
    return rc ? rc : push(l, "unpermute", back_unpermute, MOE_OBLIGE_NONE);
}

/* Whether this rank, which received nothing, leaves its experts out: the legacy behaviour, unless FILL is granted. */
static bool decide_skip(const moe_layer_t *l)
{
    if (!l->config.options.legacy_skip_empty || moe_dispatch_rows_received(l->dispatch) > 0) {
        return false;
    }
    if ((moe_remedies(l->config.ep, l->config.layer, MOE_REMEDY_FILL) & MOE_REMEDY_FILL) != 0) {
        report_remedy(l, MOE_REMEDY_FILL, 0);
        return false;
    }
    return true;
}

static int run_experts(moe_layer_t *l)
{
    if (l->skipped) {
        struct moe_event e = event(l, MOE_EV_SKIP, PHASE_FORWARD, 0);
        e.peer = local_experts(l);
        moe_observe(&e);
        return 0;
    }
    struct moe_experts_weights weights = expert_weights(l);
    report_gemm(l, PHASE_FORWARD);
    return moe_experts_forward(l->experts, &weights, l->expert_x, NULL, moe_dispatch_m(l->dispatch),
                               moe_dispatch_rows_received(l->dispatch), l->expert_y);
}

/* Route and exchange counts: after it the sizes of everything else are known. */
static int route(moe_layer_t *l, const float *x)
{
    int64_t hidden_rows = l->tokens * l->config.topk;
    uint32_t agreed = 0;
    report_route(l);
    uint32_t proposed = moe_remedies(l->config.ep, l->config.layer, 0);
    struct moe_router_weights gate = {l->weights.gate, l->weights.gate_bias, l->weights.expert_bias};
    int rc = moe_router_forward(l->router, x, &gate, l->tokens);
    rc = rc ? rc : moe_dispatch_exchange(l->dispatch, moe_router_counts(l->router), hidden_rows, proposed, &agreed);
    if (rc != 0) {
        return rc;
    }
    int64_t padded = moe_dispatch_rows_padded(l->dispatch);
    l->rows = moe_dispatch_rows_received(l->dispatch) - padded;
    report_counts(l);
    report_splits(l, PHASE_FORWARD);
    if (padded > 0) {
        report_remedy(l, MOE_REMEDY_PAD, padded);
    }
    return moe_row_map_build(l->map, moe_router_index(l->router), l->config.topk, l->tokens,
                             moe_dispatch_counts(l->dispatch), moe_dispatch_rows_sent(l->dispatch));
}

int moe_layer_forward(moe_layer_t *l, const struct moe_layer_weights *weights, const struct moe_step *step,
                      const void *x, int64_t tokens, void *y)
{
    if (tokens < 0 || tokens > l->config.max_tokens) {
        return moe_fail(MOE_E_SHAPE, l->config.world_rank, l->config.layer, "%lld tokens, made for at most %lld",
                        (long long)tokens, (long long)l->config.max_tokens);
    }
    l->weights = *weights;
    l->step = *step;
    l->tokens = tokens;
    moe_plan_reset(&l->plan);
    int rc = route(l, x);
    rc = rc ? rc : moe_permute(l->map, x, l->config.hidden, l->sent);
    rc = rc ? rc : moe_dispatch_forward(l->dispatch, l->sent, l->expert_x);
    if (rc != 0) {
        return rc;
    }
    l->skipped = decide_skip(l);
    rc = run_experts(l);
    rc = rc ? rc : push_plan(l);
    if (rc == 0) {
        struct moe_event base = event(l, MOE_EV_OBLIGE_END, PHASE_FORWARD, 0);
        moe_plan_report(&l->plan, &base);
        rc = moe_combine_forward(l->dispatch, l->expert_y, l->returned);
    }
    return rc ? rc : moe_unpermute(l->map, l->returned, moe_router_probs(l->router), l->config.hidden, y);
}

int moe_layer_backward(moe_layer_t *l, const void *dy, void *dx)
{
    if (l->plan.used == 0) {
        return moe_fail(MOE_E_STATE, l->config.world_rank, l->config.layer, "backward before forward");
    }
    l->dy = dy;
    l->dx = dx;
    int rc = moe_device_ops(l->device)->zero(l->device, dx, (size_t)(l->tokens * l->config.hidden) * sizeof(float));
    return rc ? rc : moe_plan_run(&l->plan);
}

moe_router_t *moe_layer_router(moe_layer_t *l)
{
    return l->router;
}

int64_t moe_layer_rows(const moe_layer_t *l)
{
    return l->rows;
}

bool moe_layer_skipped(const moe_layer_t *l)
{
    return l->skipped;
}

int64_t moe_layer_local_experts(const moe_layer_t *l)
{
    return local_experts(l);
}

int64_t moe_layer_local_ffn(const moe_layer_t *l)
{
    return l->config.ffn;
}
