/*
 * router.c: the gate product, the choice of experts, the auxiliary losses and the expert bias, forward and backward.
 *
 * The router keeps what backward needs (logits, scores, both choices, weights) and relies on the back end for the order
 * of ties. Recomputing the scores in backward was rejected: a recomputation that differs in the last bit may choose
 * another expert (hazard H9). Counts over ranks are integers: sums of BF16 or float counts round, and a rounded count
 * turns the sign of a bias (hazard H16).
 */
#include "moe_core/include/moe/router.h"

#include "moe_core/base/fail.h"
#include "moe_core/include/moe/ops.h"

#include <math.h>
#include <stdlib.h>

struct moe_router {
    moe_device_t *device;
    struct moe_router_config config;
    int balance_ranks, global_ranks;
    int64_t tokens;          /* of the last forward, -1 before any */
    struct moe_router *main; /* itself, or the router that this one is beside: owner of the members marked so */
    bool counting;           /* of main */
    int64_t counted;         /* of main: microbatches in global_counts */
    float loss_scale;        /* of main */
    uint32_t summed;         /* the losses whose counts this forward has summed: bits of enum moe_loss */
    int64_t microbatches;    /* those of the last forward: what its backward computes with */
    const float *x;
    struct moe_router_weights weights;
    float *logits, *scores, *probs, *d_logits, *losses;
    float *wide_gate, *wide_bias; /* the gate and its bias in float32; NULL where that is their type */
    int32_t *index, *all;         /* all: the choice before anything was dropped; the same memory without a capacity */
    int64_t *counts;
    int64_t *balance_counts, *sequence_counts, *batch_counts; /* over the groups */
    int64_t *step_counts;                                     /* global_counts as they were in the last forward */
    int64_t *global_counts;                                   /* of main: over the group, since the reset */
    int64_t *bias_counts; /* of main: of this rank, since the last update of the bias */
    int64_t
        *update; /* [update_rows, E]: the counts of several routers, for one sum; the first of them keeps this memory */
    int32_t update_rows;
};

#define FAIL(code, ...) moe_fail(code, MOE_NO_RANK, MOE_NO_LAYER, __VA_ARGS__)

static bool has_capacity(const struct moe_router_config *c)
{
    return c->options.capacity_factor > 0.0f;
}

static int64_t sequences_of(const struct moe_router_config *c)
{
    return c->options.sequences > 0 ? c->options.sequences : 1;
}

static int check_config(const struct moe_router_config *c)
{
    const struct moe_router_options *o = &c->options;
    if (c->experts < 1 || c->topk < 1 || c->topk > c->experts || c->hidden < 1 || c->max_tokens < 0) {
        return FAIL(MOE_E_SHAPE, "top-%d of %lld experts, hidden %lld", c->topk, (long long)c->experts,
                    (long long)c->hidden);
    }
    if (o->groups > 1 && (c->experts % o->groups != 0 || o->group_topk < 1 || o->group_topk > o->groups ||
                          c->topk % o->group_topk != 0 || c->topk / o->group_topk > c->experts / o->groups)) {
        return FAIL(MOE_E_SHAPE, "%lld experts in %d groups, top-%d of the %d that stay", (long long)c->experts,
                    o->groups, c->topk, o->group_topk);
    }
    if ((o->after && o->score != MOE_SCORE_SOFTMAX) || (unsigned)o->score > MOE_SCORE_SQRTSOFTPLUS) {
        return FAIL(MOE_E_ARG, "score %d, the softmax after the choice: %d", (int)o->score, o->after);
    }
    if ((unsigned)o->gate_type > MOE_F16) {
        return FAIL(MOE_E_ARG, "a gate of type %s", moe_dtype_name(o->gate_type));
    }
    bool numbers = o->capacity_factor >= 0.0f && isfinite(o->capacity_factor) && o->scale >= 0.0f &&
                   isfinite(o->scale) && o->sequences >= 0 && o->groups >= 0;
    for (int i = 0; i < MOE_LOSSES; i++) {
        numbers = numbers && o->coeff[i] >= 0.0f && isfinite(o->coeff[i]);
    }
    return numbers ? 0 : FAIL(MOE_E_ARG, "a factor or coefficient is below zero or no finite number");
}

static bool narrow(const struct moe_router_config *c)
{
    return c->options.gate_type != MOE_F32;
}

static int group_size(ncclComm_t comm, int *ranks)
{
    *ranks = 1;
    if (comm != NULL && ncclCommCount(comm, ranks) != ncclSuccess) {
        return FAIL(MOE_E_COMM, "size of the router's group");
    }
    return 0;
}

static int allocate(moe_router_t *r)
{
    const struct moe_router_config *c = &r->config;
    size_t cells = (size_t)c->max_tokens * (size_t)c->experts * sizeof(float);
    size_t choices = (size_t)c->max_tokens * (size_t)c->topk * sizeof(int32_t);
    size_t row = (size_t)c->experts * sizeof(int64_t);
    struct {
        void *at;
        size_t bytes;
    } buffers[] = {
        {&r->logits, cells},
        {&r->scores, cells},
        {&r->probs, cells},
        {&r->d_logits, cells},
        {&r->losses, MOE_LOSSES * sizeof(float)},
        {&r->wide_gate, narrow(c) ? (size_t)(c->experts * c->hidden) * sizeof(float) : 0},
        {&r->wide_bias, narrow(c) && c->options.gate_bias ? (size_t)c->experts * sizeof(float) : 0},
        {&r->index, choices},
        {&r->all, has_capacity(c) ? choices : 0},
        {&r->counts, row},
        {&r->balance_counts, row},
        {&r->sequence_counts, row * (size_t)sequences_of(c)},
        {&r->batch_counts, row},
        {&r->step_counts, row},
        {&r->global_counts, r->main == r ? row : 0},
        {&r->bias_counts, r->main == r ? row : 0},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]) && rc == 0; i++) {
        rc = moe_device_alloc(r->device, buffers[i].bytes, buffers[i].at);
    }
    return rc;
}

static int make(moe_device_t *device, const struct moe_router_config *config, moe_router_t *main, moe_router_t **out)
{
    *out = NULL;
    moe_router_t *router = calloc(1, sizeof(*router));
    if (router == NULL) {
        return FAIL(MOE_E_NOMEM, "a router");
    }
    router->device = device;
    router->config = *config;
    router->main = main != NULL ? main : router;
    router->tokens = -1;
    router->counting = true;
    router->loss_scale = 1.0f;
    int rc = group_size(config->balance, &router->balance_ranks);
    rc = rc ? rc : group_size(config->global, &router->global_ranks);
    rc = rc ? rc : allocate(router);
    if (rc != 0) {
        moe_router_destroy(&router);
        return rc;
    }
    *out = router;
    return 0;
}

int moe_router_new(moe_device_t *device, const struct moe_router_config *config, moe_router_t **out)
{
    *out = NULL;
    int rc = check_config(config);
    return rc ? rc : make(device, config, NULL, out);
}

int moe_router_new_beside(moe_router_t *first, moe_router_t **out)
{
    return make(first->device, &first->config, first->main, out);
}

void moe_router_destroy(moe_router_t **router)
{
    moe_router_t *r = *router;
    if (r == NULL) {
        return;
    }
    void *buffers[] = {&r->logits,       &r->scores,      &r->probs,         &r->d_logits,       &r->losses,
                       &r->index,        &r->all,         &r->counts,        &r->balance_counts, &r->sequence_counts,
                       &r->batch_counts, &r->step_counts, &r->global_counts, &r->bias_counts,    &r->update,
                       &r->wide_gate,    &r->wide_bias};
    for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++) {
        moe_device_free(r->device, buffers[i]);
    }
    free(r);
    *router = NULL;
}

/* The number of seven digits nearest to `factor`, so that 1.2f, which is 1.2000000477, becomes 1.2 again. */
static double as_written(double factor)
{
    double digits = pow(10.0, 6.0 - floor(log10(factor)));
    return isfinite(digits) && digits > 0 ? round(factor * digits) / digits : factor;
}

int64_t moe_router_capacity(const struct moe_router_config *config, int64_t tokens)
{
    int64_t choices = tokens * config->topk;
    if (!has_capacity(config)) {
        return choices;
    }
    double each = ceil((double)choices / (double)config->experts * as_written((double)config->options.capacity_factor));
    return each < (double)choices ? (int64_t)each : choices;
}

static struct moe_scoring scoring(const struct moe_router_config *c)
{
    return (struct moe_scoring){.score = c->options.score,
                                .after = c->options.after,
                                .renormalise = c->renormalise,
                                .scale = c->options.scale == 0.0f ? 1.0f : c->options.scale,
                                .groups = c->options.groups,
                                .group_topk = c->options.group_topk};
}

static int check_forward(const moe_router_t *r, const struct moe_router_weights *w, int64_t tokens)
{
    const struct moe_router_config *c = &r->config;
    if (tokens < 0 || tokens > c->max_tokens) {
        return FAIL(MOE_E_SHAPE, "%lld tokens, made for at most %lld", (long long)tokens, (long long)c->max_tokens);
    }
    if (tokens % sequences_of(c) != 0) {
        return FAIL(MOE_E_SHAPE, "%lld tokens in %lld sequences", (long long)tokens, (long long)sequences_of(c));
    }
    if (w->gate == NULL || (c->options.gate_bias && w->gate_bias == NULL) ||
        (c->options.expert_bias && w->expert_bias == NULL)) {
        return FAIL(MOE_E_ARG, "the router's gate or one of its biases is missing");
    }
    return 0;
}

/* Sums counts over a group, in place. */
static int sum_counts(moe_router_t *r, int64_t *counts, int64_t n, ncclComm_t comm, int ranks)
{
    if (ranks == 1) {
        return 0;
    }
    ncclResult_t nc = ncclAllReduce(counts, counts, (size_t)n, ncclInt64, ncclSum, comm, moe_device_stream(r->device));
    return nc == ncclSuccess ? 0 : FAIL(MOE_E_COMM, "AllReduce of the router's counts: %s", ncclGetErrorString(nc));
}

static struct moe_balance balance_of(const moe_router_t *r)
{
    const struct moe_router_config *c = &r->config;
    struct moe_balance b = {.tokens = r->tokens,
                            .experts = c->experts,
                            .k = c->topk,
                            .score = c->options.score,
                            .sequences = sequences_of(c),
                            .ranks = r->balance_ranks,
                            .microbatches = r->microbatches > 0 ? r->microbatches : 1,
                            .logits = r->logits,
                            .scores = r->scores,
                            .counts = r->balance_counts,
                            .sequence_counts = r->sequence_counts,
                            .global_counts = r->step_counts,
                            .losses = r->losses,
                            .loss_scale = r->main->loss_scale,
                            .d_logits = r->d_logits};
    for (int i = 0; i < MOE_LOSSES; i++) {
        b.coeff[i] = c->options.coeff[i];
    }
    return b;
}

static bool has_losses(const struct moe_router_config *c)
{
    bool any = false;
    for (int i = 0; i < MOE_LOSSES; i++) {
        any = any || c->options.coeff[i] != 0.0f;
    }
    return any;
}

/* Whether the counts of a loss are wanted, and this forward has not summed them yet. */
static bool sums(const moe_router_t *r, enum moe_loss loss)
{
    return r->config.options.coeff[loss] != 0.0f && (r->summed >> loss & 1u) == 0;
}

/* Sums the counts that the losses need over their groups, from the choice before anything is dropped. */
static int count_for_losses(moe_router_t *r)
{
    const struct moe_router_config *c = &r->config;
    const struct moe_ops *ops = moe_device_ops(r->device);
    int64_t experts = c->experts, sequences = sequences_of(c);
    size_t row = (size_t)experts * sizeof(int64_t);
    int rc = 0;
    if (sums(r, MOE_LOSS_SWITCH)) {
        rc = moe_device_copy(r->device, r->balance_counts, r->counts, row);
        rc = rc ? rc : sum_counts(r, r->balance_counts, experts, c->balance, r->balance_ranks);
        r->summed |= rc == 0 ? 1u << MOE_LOSS_SWITCH : 0;
    }
    if (rc == 0 && sums(r, MOE_LOSS_SEQUENCE)) {
        struct moe_count_sequences count = {.tokens = r->tokens,
                                            .experts = experts,
                                            .sequences = sequences,
                                            .k = c->topk,
                                            .index = r->index,
                                            .counts = r->sequence_counts};
        rc = ops->count_sequences(r->device, &count);
        rc = rc ? rc : sum_counts(r, r->sequence_counts, sequences * experts, c->balance, r->balance_ranks);
        r->summed |= rc == 0 ? 1u << MOE_LOSS_SEQUENCE : 0;
    }
    if (rc == 0 && sums(r, MOE_LOSS_GLOBAL)) {
        struct moe_add_counts add = {.count = experts, .from = r->batch_counts, .to = r->main->global_counts};
        rc = moe_device_copy(r->device, r->batch_counts, r->counts, row);
        rc = rc ? rc : sum_counts(r, r->batch_counts, experts, c->global, r->global_ranks);
        r->summed |= rc == 0 ? 1u << MOE_LOSS_GLOBAL : 0;
        bool counts = r->main->counting || r->main->counted == 0;
        if (rc == 0 && counts) {
            rc = ops->add_counts(r->device, &add);
            r->main->counted++;
        }
        if (rc == 0 &&
            (counts || r->microbatches == 0)) { /* a recomputed forward computes with what the first one saw */
            r->microbatches = r->main->counted;
            rc = moe_device_copy(r->device, r->step_counts, r->main->global_counts, row);
        }
    }
    return rc;
}

/* Counts for the losses and the bias, then drops the choices beyond the capacity. */
static int count_and_drop(moe_router_t *r)
{
    const struct moe_router_config *c = &r->config;
    const struct moe_ops *ops = moe_device_ops(r->device);
    int rc = has_losses(c) ? count_for_losses(r) : 0;
    if (rc == 0 && has_losses(c)) {
        struct moe_balance balance = balance_of(r);
        rc = ops->balance(r->device, &balance);
    }
    if (rc == 0 && c->options.expert_bias && r->main->counting) {
        struct moe_add_counts add = {.count = c->experts, .from = r->counts, .to = r->main->bias_counts};
        rc = ops->add_counts(r->device, &add);
    }
    if (rc == 0 && has_capacity(c)) {
        struct moe_drop drop = {.tokens = r->tokens,
                                .experts = c->experts,
                                .capacity = moe_router_capacity(c, r->tokens),
                                .k = c->topk,
                                .by_position = c->options.by_position,
                                .pad = c->options.pad_to_capacity,
                                .probs = r->probs,
                                .index = r->index,
                                .counts = r->counts};
        rc = moe_device_copy(r->device, r->all, r->index, (size_t)(r->tokens * c->topk) * sizeof(int32_t));
        rc = rc ? rc : ops->drop(r->device, &drop);
    }
    return rc;
}

/* The gate, or its bias, in float32. */
static const float *wide(const moe_router_t *r, const void *given, const float *widened)
{
    return narrow(&r->config) ? widened : given;
}

static int widen(moe_router_t *r, const void *from, int64_t count, float *to)
{
    struct moe_cast cast = {
        .count = count, .from_type = r->config.options.gate_type, .to_type = MOE_F32, .from = from, .to = to};
    return narrow(&r->config) ? moe_device_ops(r->device)->cast(r->device, &cast) : 0;
}

int moe_router_forward(moe_router_t *router, const float *x, const struct moe_router_weights *weights, int64_t tokens)
{
    const struct moe_router_config *c = &router->config;
    int rc = check_forward(router, weights, tokens);
    if (rc != 0) {
        return rc;
    }
    router->tokens = tokens;
    router->summed = 0;
    router->x = x;
    router->weights = *weights;
    const struct moe_ops *ops = moe_device_ops(router->device);
    struct moe_gemm product = {.tb = true,
                               .m = tokens,
                               .n = c->experts,
                               .k = c->hidden,
                               .alpha = 1.0f,
                               .a = x,
                               .b = wide(router, weights->gate, router->wide_gate),
                               .c = router->logits};
    struct moe_topk choice = {.tokens = tokens,
                              .experts = c->experts,
                              .k = c->topk,
                              .how = scoring(c),
                              .gate_bias =
                                  c->options.gate_bias ? wide(router, weights->gate_bias, router->wide_bias) : NULL,
                              .expert_bias = c->options.expert_bias ? weights->expert_bias : NULL,
                              .logits = router->logits,
                              .scores = router->scores,
                              .probs = router->probs,
                              .index = router->index,
                              .counts = router->counts};
    rc = widen(router, weights->gate, c->experts * c->hidden, router->wide_gate);
    rc = rc || !c->options.gate_bias ? rc : widen(router, weights->gate_bias, c->experts, router->wide_bias);
    rc = rc ? rc : ops->gemm(router->device, &product);
    rc = rc ? rc : ops->topk(router->device, &choice);
    return rc ? rc : count_and_drop(router);
}

int moe_router_decline(moe_router_t *r, bool begun)
{
    r->tokens = 0;
    r->summed = begun ? r->summed : 0;
    int rc = moe_device_ops(r->device)->zero(r->device, r->counts, (size_t)r->config.experts * sizeof(int64_t));
    rc = rc || !has_losses(&r->config) ? rc : count_for_losses(r);
    r->tokens = -1;
    return rc;
}

const int32_t *moe_router_index(const moe_router_t *router)
{
    return router->index;
}

const int32_t *moe_router_choice(const moe_router_t *router)
{
    return has_capacity(&router->config) ? router->all : router->index;
}

const float *moe_router_probs(const moe_router_t *router)
{
    return router->probs;
}

const int64_t *moe_router_counts(const moe_router_t *router)
{
    return router->counts;
}

const float *moe_router_losses(const moe_router_t *router)
{
    return router->losses;
}

void moe_router_set_loss_scale(moe_router_t *router, float scale)
{
    router->main->loss_scale = scale;
}

void moe_router_set_counting(moe_router_t *router, bool counting)
{
    router->main->counting = counting;
}

bool moe_router_counting(const moe_router_t *router)
{
    return router->main->counting;
}

int moe_router_global_reset(moe_router_t *router)
{
    router->main->counted = 0;
    return moe_device_ops(router->device)
        ->zero(router->device, router->main->global_counts, (size_t)router->config.experts * sizeof(int64_t));
}

/* Adds the gradients of the gate, its bias and x, from d_logits; those of frozen parameters are NULL. */
static int gate_backward(moe_router_t *r, float *dx, float *d_gate, float *d_gate_bias)
{
    const struct moe_router_config *c = &r->config;
    const struct moe_ops *ops = moe_device_ops(r->device);
    struct moe_gemm dgrad = {.m = r->tokens,
                             .n = c->hidden,
                             .k = c->experts,
                             .alpha = 1.0f,
                             .beta = 1.0f,
                             .a = r->d_logits,
                             .b = wide(r, r->weights.gate, r->wide_gate),
                             .c = dx};
    struct moe_gemm wgrad = {.ta = true,
                             .m = c->experts,
                             .n = c->hidden,
                             .k = r->tokens,
                             .alpha = 1.0f,
                             .beta = 1.0f,
                             .a = r->d_logits,
                             .b = r->x,
                             .c = d_gate};
    struct moe_column_sum bgrad = {.rows = r->tokens, .width = c->experts, .in = r->d_logits, .out = d_gate_bias};
    int rc = ops->gemm(r->device, &dgrad);
    if (rc == 0 && d_gate != NULL) {
        rc = ops->gemm(r->device, &wgrad);
    }
    if (rc == 0 && c->options.gate_bias && d_gate_bias != NULL) {
        rc = ops->column_sum(r->device, &bgrad);
    }
    return rc;
}

int moe_router_backward(moe_router_t *router, const float *d_probs, float *dx, float *d_gate, float *d_gate_bias)
{
    const struct moe_router_config *c = &router->config;
    if (router->tokens < 0) {
        return FAIL(MOE_E_STATE, "router backward before forward");
    }
    const struct moe_ops *ops = moe_device_ops(router->device);
    struct moe_topk_backward choice = {.tokens = router->tokens,
                                       .experts = c->experts,
                                       .k = c->topk,
                                       .how = scoring(c),
                                       .logits = router->logits,
                                       .scores = router->scores,
                                       .probs = router->probs,
                                       .d_probs = d_probs,
                                       .index = router->index,
                                       .all = has_capacity(c) ? router->all : router->index,
                                       .d_logits = router->d_logits};
    int rc = ops->topk_backward(router->device, &choice);
    if (rc == 0 && has_losses(c)) {
        struct moe_balance balance = balance_of(router);
        rc = ops->balance_backward(router->device, &balance);
    }
    return rc ? rc : gate_backward(router, dx, d_gate, d_gate_bias);
}

/* Makes room for the counts of n routers, once: freeing memory waits for the whole device. */
static int update_room(moe_router_t *r, int32_t n)
{
    if (n <= r->update_rows) {
        return 0;
    }
    moe_device_free(r->device, &r->update);
    r->update_rows = 0;
    int rc = moe_device_alloc(r->device, (size_t)r->config.experts * (size_t)n * sizeof(int64_t), (void **)&r->update);
    r->update_rows = rc == 0 ? n : 0;
    return rc;
}

static int check_update(moe_router_t *const *routers, float *const *bias, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        if (routers[i] == NULL || bias[i] == NULL) {
            return FAIL(MOE_E_ARG, "router %d of %d, or its bias, is missing", i, n);
        }
        if (!routers[i]->config.options.expert_bias || routers[i]->config.experts != routers[0]->config.experts ||
            routers[i]->device != routers[0]->device) {
            return FAIL(MOE_E_ARG, "router %d has no expert bias, or other experts or another device than router 0", i);
        }
    }
    return n < 1 ? FAIL(MOE_E_ARG, "%d routers", n) : 0;
}

int moe_router_update_bias(moe_router_t *const *routers, float *const *bias, int32_t n, ncclComm_t comm, float rate)
{
    int ranks = 1, rc = check_update(routers, bias, n);
    rc = rc ? rc : group_size(comm, &ranks);
    rc = rc ? rc : update_room(routers[0], n);
    if (rc != 0) {
        return rc;
    }
    moe_device_t *device = routers[0]->device;
    int64_t experts = routers[0]->config.experts, *counts = routers[0]->update;
    size_t row = (size_t)experts * sizeof(int64_t);
    for (int32_t i = 0; i < n && rc == 0; i++) {
        rc = moe_device_copy(device, counts + i * experts, routers[i]->main->bias_counts, row);
    }
    rc = rc ? rc : sum_counts(routers[0], counts, n * experts, comm, ranks);
    for (int32_t i = 0; i < n && rc == 0; i++) {
        struct moe_bias_update update = {
            .experts = experts, .rate = rate, .counts = counts + i * experts, .bias = bias[i]};
        rc = moe_device_ops(device)->bias_update(device, &update);
        rc = rc ? rc : moe_device_ops(device)->zero(device, routers[i]->main->bias_counts, row);
    }
    return rc;
}
