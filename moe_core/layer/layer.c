/*
 * layer.c: one MoE layer: its parts, made from one configuration, and the order of its forward.
 *
 * The layer decides nothing about rows: it calls router, dispatcher, experts and shared expert in order, asks for
 * remedies and reports. Everything else that a layer does has a file of its own (layer_state.h lists them).
 */
#include "moe_core/layer/layer_state.h"

#include "moe_core/base/memory.h"

#include <stdlib.h>

/* the parts' configurations */

static struct moe_router_config router_config(const moe_layer_t *l)
{
    const struct moe_layer_config *c = &l->config;
    struct moe_router_config config = {.max_tokens = l->own_max,
                                       .hidden = c->hidden,
                                       .experts = c->experts,
                                       .topk = c->topk,
                                       .renormalise = c->renormalise,
                                       .options = c->router,
                                       .balance = c->balance,
                                       .global = c->global};
    if (layer_on_tp(l) && c->tp_mode == MOE_TP_SHARD_EXPERTS) {
        for (int i = 0; i < MOE_LOSSES; i++) { /* all of tp have the same tokens, and their gradients are added */
            config.options.coeff[i] /= (float)l->tp_size;
        }
    }
    return config;
}

/* How many ranks share each expert. */
static int64_t parts(const moe_layer_t *l)
{
    return layer_on_tp(l) && l->config.tp_mode == MOE_TP_SHARD_EXPERTS ? l->tp_size : l->etp_size;
}

static int etp_size(const moe_layer_t *l, int *size)
{
    ncclComm_t etp = l->config.groups.etp;
    *size = 1;
    if (etp != NULL && ncclCommCount(etp, size) != ncclSuccess) {
        return LAYER_FAIL(l, MOE_E_COMM, "size of etp");
    }
    if (*size > 1 && layer_on_tp(l) && l->config.tp_mode == MOE_TP_SHARD_EXPERTS) {
        return LAYER_FAIL(l, MOE_E_UNSUPPORTED, "experts split over etp and over tp");
    }
    return l->config.ffn % *size == 0 ? 0
                                      : LAYER_FAIL(l, MOE_E_SHAPE, "ffn %lld cannot be split over %d ranks of etp",
                                                   (long long)l->config.ffn, *size);
}

static int open_dispatcher(moe_layer_t *l)
{
    const struct moe_layer_config *c = &l->config;
    struct moe_router_config router = router_config(l);
    bool pads = c->router.capacity_factor > 0.0f && c->router.pad_to_capacity;
    struct moe_dispatcher_config config = {.kind = c->dispatcher,
                                           .max_tokens = l->own_max,
                                           .hidden = c->hidden,
                                           .experts = c->experts,
                                           .topk = c->topk,
                                           .type = c->type,
                                           .probs_travel = c->place != MOE_PROB_SOURCE,
                                           .expert_capacity = pads ? moe_router_capacity(&router, l->own_max) : 0,
                                           .row_multiple = c->row_multiple,
                                           .row_budget = c->row_budget,
                                           .budget_factor = c->budget_factor,
                                           .uneven = c->uneven,
                                           .token_bound = c->token_bound,
                                           .groups = c->groups,
                                           .shared = c->shared_overlap ? l->shared : NULL,
                                           .legacy = c->options.dispatcher,
                                           .world_rank = c->world_rank,
                                           .layer = c->layer};
    return moe_dispatcher_open(l->device, &config, &l->dispatcher);
}

static int make_experts(moe_layer_t *l)
{
    const struct moe_layer_config *c = &l->config;
    int64_t local = moe_dispatcher_local(l->dispatcher), share = parts(l);
    struct moe_experts_config config = {.max_rows = moe_dispatcher_max_rows(l->dispatcher) + local, /* dummy rows */
                                        .hidden = c->hidden,
                                        .ffn = c->ffn / share,
                                        .experts = local,
                                        .type = c->type,
                                        .weight = c->weight,
                                        .bias = c->bias,
                                        .main_grad = MOE_F32,
                                        .block_scales = c->block_scales,
                                        .fp8 = c->fp8,
                                        .has_bias = c->has_bias,
                                        .activation = c->activation,
                                        .clamp = c->clamp,
                                        .place = c->place,
                                        .bias2_scale = 1.0f / (float)share,
                                        .recompute = c->experts_recompute,
                                        .delay_wgrad = c->delay_wgrad,
                                        .ready = layer_experts_ready,
                                        .ready_arg = l,
                                        .pooled = !moe_dispatcher_standing(l->dispatcher)};
    l->ffn = config.ffn;
    return moe_experts_new(l->device, &config, &l->experts);
}

static int make_shared(moe_layer_t *l)
{
    const struct moe_layer_config *c = &l->config;
    if (c->shared_ffn == 0) {
        return c->shared_overlap
                   ? LAYER_FAIL(l, MOE_E_ARG,
                                "shared_overlap without a shared expert: set shared_ffn, or leave shared_overlap out")
                   : 0;
    }
    bool sequence = c->tp_mode == MOE_TP_SEQUENCE;
    if (c->shared_overlap &&
        (c->dispatcher != MOE_DISPATCH_ALLTOALL || (layer_on_tp(l) && !sequence) || c->recompute)) {
        return LAYER_FAIL(
            l, MOE_E_UNSUPPORTED,
            "the shared expert overlaps only with the alltoall dispatcher, sequence parallel, without recompute");
    }
    struct moe_shared_config config = {.max_tokens = c->max_tokens,
                                       .hidden = c->hidden,
                                       .ffn = c->shared_ffn,
                                       .mode = !layer_on_tp(l) ? MOE_SHARED_SINGLE
                                               : sequence      ? MOE_SHARED_SEQUENCE
                                                               : MOE_SHARED_PARTIAL,
                                       .tp = c->groups.tp,
                                       .type = c->type,
                                       .weight = MOE_F32,
                                       .main_grad = MOE_F32,
                                       .activation = c->activation,
                                       .clamp = c->clamp,
                                       .has_bias = c->shared_bias,
                                       .has_gate = c->shared_gate,
                                       .world_rank = c->world_rank,
                                       .layer = c->layer};
    int rc = c->shared_overlap ? moe_device_new(moe_device_name(l->device), &l->side) : 0;
    rc = rc || l->side == NULL ? rc : moe_memory_like(l->side, l->device);
    return rc ? rc : moe_shared_new(l->device, l->side, &config, &l->shared);
}

/* memory */

static int make_memory(moe_layer_t *l)
{
    const struct moe_layer_config *c = &l->config;
    bool flips = c->options.legacy_recompute_flip;
    struct {
        void *at;
        size_t bytes;
        bool wanted;
    } table[] = {
        {&l->one, sizeof(float), true},
        {&l->vote, sizeof(int32_t), true},
        {&l->flip_index, (size_t)(l->own_max * c->topk) * sizeof(int32_t), flips},
        {&l->flip_probs, (size_t)(l->own_max * c->experts) * sizeof(float), flips},
        {&l->flip_counts, (size_t)c->experts * sizeof(int64_t), flips},
    };
    static const float one = 1.0f;
    int rc = layer_tp_new(l);
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]) && rc == 0; i++) {
        rc = table[i].wanted ? moe_device_alloc(l->device, table[i].bytes, table[i].at) : 0;
    }
    rc = rc ? rc : layer_stand(l);
    rc = rc ? rc : layer_held_new(l);
    return rc ? rc : moe_device_copy(l->device, l->one, &one, sizeof(one));
}

/* The most elements that a buffer may have: sizes in bytes, and sums of a few of them, then fit in 64 bits. */
static const double most_elements = 1e15;

/* Whether the sizes of the largest buffers would wrap around, so that the buffers would be allocated too small. */
static bool too_large(const struct moe_layer_config *c)
{
    double tokens = (double)c->max_tokens, hidden = (double)c->hidden, experts = (double)c->experts,
           k = (double)c->topk;
    double ffn = (double)(c->ffn > c->shared_ffn ? c->ffn : c->shared_ffn);
    return tokens * k * (hidden + ffn) > most_elements || tokens * experts > most_elements ||
           experts * ffn * hidden > most_elements;
}

static int check(const moe_layer_t *l)
{
    const struct moe_layer_config *c = &l->config;
    if (too_large(c)) {
        return LAYER_FAIL(
            l, MOE_E_SHAPE, "%lld tokens (top-%d), %lld experts, hidden %lld, ffn %lld: more than can be counted",
            (long long)c->max_tokens, c->topk, (long long)c->experts, (long long)c->hidden, (long long)c->ffn);
    }
    if (c->max_tokens < 0 || c->hidden < 1 || c->ffn < 1 || c->shared_ffn < 0) {
        return LAYER_FAIL(l, MOE_E_SHAPE, "%lld tokens, hidden %lld, ffn %lld, shared %lld", (long long)c->max_tokens,
                          (long long)c->hidden, (long long)c->ffn, (long long)c->shared_ffn);
    }
    if (c->in_flight < 0) {
        return LAYER_FAIL(l, MOE_E_ARG, "%d microbatches in flight", c->in_flight);
    }
    if (c->delay_wgrad && c->options.legacy_wgrad_uninitialised) {
        return LAYER_FAIL(l, MOE_E_UNSUPPORTED, "delayed weight gradients in uninitialised memory");
    }
    if (c->type != MOE_F32 && c->type != MOE_BF16 && c->type != MOE_F16) {
        return LAYER_FAIL(l, MOE_E_UNSUPPORTED, "rows of type %s", moe_dtype_name(c->type));
    }
    return 0;
}

/* A list of the microbatches in flight, of which the handle's own is the first. */
static int make_flight(moe_layer_t *l)
{
    if (l->main != l || l->config.in_flight < 2) {
        return 0;
    }
    l->flight = calloc((size_t)l->config.in_flight, sizeof(struct moe_layer *));
    if (l->flight == NULL) {
        return LAYER_FAIL(l, MOE_E_NOMEM, "microbatches in flight");
    }
    l->flight[l->flying++] = l;
    return 0;
}

/* What a rank does by itself: all that a configuration can be refused for, and what the exchange of `finish` needs. */
static int begin(moe_layer_t *l, moe_device_t *device, const struct moe_layer_config *config, moe_layer_t *main)
{
    l->device = device;
    l->config = *config;
    l->main = main != NULL ? main : l;
    l->last = l;
    l->config.groups.ep = config->groups.ep != NULL ? config->groups.ep : config->ep;
    int rc = check(l);
    rc = rc ? rc : layer_tp_place(l);
    rc = rc ? rc : etp_size(l, &l->etp_size);
    if (rc == 0) {
        struct moe_router_config router = router_config(l);
        rc = main != NULL ? moe_router_new_beside(main->router, &l->router)
                          : moe_router_new(device, &router, &l->router);
    }
    rc = rc ? rc : make_flight(l);
    rc = rc ? rc : make_shared(l);
    return rc ? rc : open_dispatcher(l);
}

/* The rest, with the exchange of the group's buffer, where there is one. */
static int finish(moe_layer_t *l)
{
    int rc = moe_dispatcher_make(l->dispatcher);
    rc = rc ? rc : make_experts(l);
    return rc ? rc : make_memory(l);
}

int layer_make(moe_device_t *device, const struct moe_layer_config *config, moe_layer_t *main, moe_layer_t **out)
{
    *out = NULL;
    if (moe_memory_capturing(device)) { /* before the peers are asked: they cannot answer in a capture */
        return moe_fail(MOE_E_STATE, config->world_rank, config->layer,
                        "a layer, or one more microbatch in flight, while the stream is captured: make it before");
    }
    moe_layer_t *l = calloc(1, sizeof(*l));
    int rc = l != NULL ? moe_fail_at(begin(l, device, config, main), config->world_rank, config->layer)
                       : moe_fail(MOE_E_NOMEM, config->world_rank, config->layer, "a layer");
    rc = layer_agree_made(device, config, rc);
    if (rc == 0) {
        rc = moe_fail_at(finish(l), config->world_rank, config->layer);
        rc = rc == MOE_E_COMM ? rc : layer_agree_made(device, config, rc); /* COMM: a peer has gone, perhaps */
    }
    if (rc != 0) {
        layer_unmake(&l);
        return moe_fail_at(rc, config->world_rank, config->layer);
    }
    *out = l;
    return 0;
}

void layer_unmake(moe_layer_t **layer)
{
    moe_layer_t *l = *layer;
    if (l == NULL) {
        return;
    }
    void *memory[] = {&l->one, &l->vote, &l->flip_index, &l->flip_probs, &l->flip_counts, &l->summands.all, &l->held};
    layer_free_memory(l);
    free(l->flight);
    for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++) {
        moe_device_free(l->device, memory[i]);
    }
    moe_dummy_destroy(&l->dummies[MOE_DUMMY_HOST]);
    moe_dummy_destroy(&l->dummies[MOE_DUMMY_DEVICE]);
    moe_experts_destroy(&l->experts);
    moe_dispatcher_destroy(&l->dispatcher);
    moe_shared_destroy(&l->shared);
    moe_device_destroy(&l->side);
    moe_router_destroy(&l->router);
    free(l);
    *layer = NULL;
}

/* forward */

/* Runs the router on this rank's tokens. */
static int choose(moe_layer_t *l)
{
    const struct moe_layer_weights *w = &l->weights;
    struct moe_router_weights gate = {w->gate, w->gate_bias, w->expert_bias};
    const void *x = layer_own_rows(l, l->x);
    int rc = layer_f32(l) ? 0
                          : layer_take(l, (size_t)(l->own * l->config.hidden) * sizeof(float),
                                       (size_t)(l->own_max * l->config.hidden) * sizeof(float), &l->x32);
    if (rc == 0 && !layer_f32(l)) {
        struct moe_cast widen = {.count = l->own * l->config.hidden,
                                 .from_type = l->config.type,
                                 .to_type = MOE_F32,
                                 .from = x,
                                 .to = l->x32};
        rc = moe_device_ops(l->device)->cast(l->device, &widen);
        x = l->x32;
    }
    l->routed = rc == 0;
    rc = rc ? rc : moe_router_forward(l->router, x, &gate, l->own);
    l->routing = (struct moe_routing){.tokens = l->own,
                                      .index = moe_router_index(l->router),
                                      .probs = moe_router_probs(l->router),
                                      .counts = moe_router_counts(l->router)};
    return rc;
}

/* Routes, and exchanges what the dispatcher needs; afterwards the sizes of everything else are known. */
static int route(moe_layer_t *l)
{
    uint32_t agreed = 0;
    layer_tp_lay_out(l);
    layer_report_route(l);
    layer_facts_weights(l);
    uint32_t proposed = layer_proposal(l);
    l->routed = false;
    int rc = layer_check_capture(l);
    rc = rc ? rc : l->phase == MOE_PHASE_RECOMPUTE ? layer_route_again(l) : choose(l);
    if (rc == MOE_E_NOMEM) { /* the ranks that meet in the exchange are told, instead of waiting there */
        return layer_decline(l, proposed, true);
    }
    rc = rc ? rc : layer_agree_sum(l, proposed);
    layer_at_dispatcher(l);
    rc = rc ? rc : moe_dispatcher_prepare(l->dispatcher, &l->routing, proposed, &agreed);
    int differs = rc == 0 || rc == MOE_E_ARG ? layer_check_frozen(l) : 0; /* ARG: an exchange before this one told it */
    rc = differs ? differs : rc;
    if (rc == 0) {
        layer_settle(l, agreed);
    } else if (rc == MOE_E_SPLIT) {
        l->rows = moe_dispatcher_plan(l->dispatcher)
                      ->received; /* an observer sees what does not fit, before this rank ends */
    }
    if (rc == 0 || rc == MOE_E_SPLIT) {
        layer_report_counts(l);
        layer_report_splits(l, l->phase);
    }
    return rc;
}

static int run_experts(moe_layer_t *l)
{
    if (l->skipped) {
        layer_report_skip(l);
        return 0;
    }
    struct moe_experts_weights weights = layer_expert_weights(l);
    moe_dispatcher_t *d = l->dispatcher;
    const float *probs = l->config.place == MOE_PROB_SOURCE ? NULL : moe_dispatcher_row_probs(d);
    layer_report_gemm(l, l->phase);
    /* Where the host knows the number of rows, every row has a token and there is no slack. */
    bool slack = !moe_dispatcher_plan(d)->exact || l->dummied;
    moe_experts_sanitize(l->experts, slack && (l->local & MOE_REMEDY_SANITIZE) != 0);
    if (!l->dummied) {
        return moe_experts_forward(l->experts, &weights, moe_dispatcher_rows(d), probs, moe_dispatcher_m(d),
                                   moe_dispatcher_plan(d)->received, moe_dispatcher_expert_out(d));
    }
    int rc = moe_experts_forward(l->experts, &weights, l->view.x, probs != NULL ? l->view.row_probs : NULL, l->view.m,
                                 l->view.rows, l->view.y);
    return rc ? rc : moe_dummy_strip(l->dummy, moe_dispatcher_expert_out(d));
}

int layer_forward_pass(moe_layer_t *l, void *y)
{
    int rc = route(l);
    l->shared_weights = layer_shared_weights(l);
    if (l->config.shared_overlap) {
        moe_dispatcher_set_shared_weights(l->dispatcher, &l->shared_weights);
    }
    rc = rc ? rc : moe_dispatcher_forward(l->dispatcher, layer_own_rows(l, l->x));
    rc = rc ? rc : layer_decide_skip(l);
    rc = rc ? rc : run_experts(l);
    rc = rc ? rc : layer_push_plan(l);
    if (rc == 0 && l->phase == MOE_PHASE_FORWARD && layer_goes_back(l)) {
        struct moe_event base = layer_event(l, MOE_EV_OBLIGE_END, l->phase, 0);
        moe_plan_report(&l->plan, &base);
    }
    rc = rc ? rc : moe_dispatcher_combine(l->dispatcher, layer_own_rows(l, y));
    rc = rc ? rc : layer_tp_clear_rest(l, y);
    if (rc == 0 && l->shared != NULL && !l->config.shared_overlap) {
        rc = moe_shared_forward(l->shared, &l->shared_weights, l->x, l->tokens, y, true);
    }
    layer_report_cures(l);
    return rc;
}

void layer_forget(moe_layer_t *l)
{
    moe_plan_reset(&l->plan);
    moe_shared_reset(l->shared);
    layer_release(l);
}

int layer_forward(moe_layer_t *l, const struct moe_layer_weights *weights, const struct moe_step *step, const void *x,
                  int64_t tokens, void *y)
{
    const struct moe_router_options *o = &l->config.router;
    /* Also when this forward is refused: what is kept for the last one's backward is about to change. */
    moe_plan_reset(&l->plan);
    if (tokens < 0 || tokens > l->config.max_tokens) {
        return LAYER_FAIL(l, MOE_E_SHAPE, "%lld tokens, made for at most %lld", (long long)tokens,
                          (long long)l->config.max_tokens);
    }
    if (o->capacity_factor > 0.0f && o->pad_to_capacity && tokens != l->config.max_tokens &&
        !l->config.options.dispatcher.local_capacity) {
        return LAYER_FAIL(l, MOE_E_SHAPE, "%lld tokens: with padding to capacity every rank has %lld",
                          (long long)tokens, (long long)l->config.max_tokens);
    }
    int rc = layer_tp_slice(l, tokens);
    if (rc != 0) {
        return rc;
    }
    l->weights = *weights;
    l->step = *step;
    l->x = x;
    l->phase = MOE_PHASE_FORWARD;
    moe_device_at(l->device, l->config.world_rank, l->config.layer);
    rc = layer_freeze(l);
    rc = rc ? rc : layer_forward_pass(l, y);
    if (rc != 0) {
        /*
         * A forward that is refused resets the plan too: the memory that the last forward kept for backward is about to
         * change.
         */
        layer_forget(l);
    } else if (!layer_goes_back(l)) { /* inference: no backward follows */
        layer_release(l);
    } else if (l->config.recompute) {
        layer_release_rows(l);
    }
    return moe_fail_at(rc, l->config.world_rank, l->config.layer);
}

/* what is known */

int moe_layer_declare_router_sum(moe_layer_t *l)
{
    bool here = l->config.router_sum == MOE_ROUTER_SUM_LAYER && !l->config.options.legacy_router_unsummed;
    if ((here && layer_on_tp(l)) || l->main->sum_declared) {
        return LAYER_FAIL(l, MOE_E_STATE, "a second sum of the router's gradient over tp: %s",
                          l->main->sum_declared ? "declared before" : "the layer makes it");
    }
    l->main->sum_declared = true;
    return 0;
}

moe_router_t *moe_layer_router(moe_layer_t *l)
{
    return l->last->router;
}

int64_t moe_layer_local_experts(const moe_layer_t *l)
{
    return moe_dispatcher_local(l->dispatcher);
}

int64_t moe_layer_local_ffn(const moe_layer_t *l)
{
    return l->ffn;
}

int64_t moe_layer_rows(const moe_layer_t *l)
{
    return l->last->rows;
}

bool moe_layer_skipped(const moe_layer_t *l)
{
    return l->last->skipped;
}

void moe_layer_sizes(size_t *config, size_t *weights)
{
    *config = sizeof(struct moe_layer_config);
    *weights = sizeof(struct moe_layer_weights);
}

uint32_t moe_layer_remedies(const moe_layer_t *l)
{
    return l->last->agreed | l->last->used;
}
