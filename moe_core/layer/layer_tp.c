/*
 * layer_tp.c: tensor parallelism: which tokens and which part of each expert belong to this rank, and the one sum of
 * the router's gradient.
 *
 * Summands go to a separate buffer and are added to the main_grads after the AllReduce: main_grads hold earlier
 * microbatches, which were summed before and would be counted again. The AllReduce sums the gate's gradient [E,H] and
 * not the scores' gradient [T,E]: for fixed forward values the way from one to the other is linear, and the gate's
 * gradient is the smaller one once T > H (torchtitan #2416 sums inside the gate's backward).
 */
#include "moe_core/layer/layer_state.h"

int layer_tp_place(moe_layer_t *l)
{
    const struct moe_layer_config *c = &l->config;
    ncclComm_t tp = c->groups.tp;
    l->tp_size = 1;
    if (tp != NULL &&
        (ncclCommCount(tp, &l->tp_size) != ncclSuccess || ncclCommUserRank(tp, &l->tp_rank) != ncclSuccess)) {
        return LAYER_FAIL(l, MOE_E_COMM, "size of tp");
    }
    bool split = layer_on_tp(l) && c->tp_mode == MOE_TP_SPLIT_TOKENS;
    bool shard = layer_on_tp(l) && c->tp_mode == MOE_TP_SHARD_EXPERTS;
    if ((int)c->tp_mode < 0 || c->tp_mode > MOE_TP_SHARD_EXPERTS) {
        return LAYER_FAIL(l, MOE_E_ARG, "tensor parallel mode %d", (int)c->tp_mode);
    }
    if (split && c->max_tokens % l->tp_size != 0) {
        return LAYER_FAIL(l, MOE_E_SHAPE, "%lld tokens cannot be split over %d ranks of tp", (long long)c->max_tokens,
                          l->tp_size);
    }
    if (shard && c->ffn % l->tp_size != 0) {
        return LAYER_FAIL(l, MOE_E_SHAPE, "ffn %lld cannot be split over %d ranks of tp", (long long)c->ffn,
                          l->tp_size);
    }
    if (c->options.legacy_router_unsummed && c->options.legacy_router_summed_twice) {
        return LAYER_FAIL(l, MOE_E_ARG, "the router's gradient both unsummed and summed twice");
    }
    if (layer_on_tp(l) && c->router_sum == MOE_ROUTER_SUM_CALLER &&
        (c->options.legacy_router_unsummed || c->options.legacy_router_summed_twice)) {
        return LAYER_FAIL(l, MOE_E_ARG, "a legacy sum of the router's gradient in a layer whose caller sums it");
    }
    l->own_max = split ? c->max_tokens / l->tp_size : c->max_tokens;
    return 0;
}

/* The gradients that can be summands, in the order in which they lie in the buffer. */
struct place {
    float **at;
    int64_t count; /* 0: the layer has no such gradient */
    enum moe_layer_parameter parameter;
};
enum { PLACES = 3 };

static void list_places(moe_layer_t *l, struct place place[PLACES])
{
    const struct moe_layer_config *c = &l->config;
    struct layer_summands *s = &l->summands;
    place[0] = (struct place){&s->gate, c->experts * c->hidden, MOE_LAYER_GATE};
    place[1] = (struct place){&s->gate_bias, c->router.gate_bias ? c->experts : 0, MOE_LAYER_GATE_BIAS};
    place[2] =
        (struct place){&s->shared_gate, c->shared_ffn > 0 && c->shared_gate ? c->hidden : 0, MOE_LAYER_SHARED_GATE};
}

/* Makes the buffer, for all of them. */
int layer_tp_new(moe_layer_t *l)
{
    struct place place[PLACES];
    int64_t count = 0;
    if (!layer_on_tp(l)) {
        return 0;
    }
    list_places(l, place);
    for (size_t i = 0; i < PLACES; i++) {
        count += place[i].count;
    }
    return moe_device_alloc(l->device, (size_t)count * sizeof(float), (void **)&l->summands.all);
}

/* Lays out the summands of this forward: those of parameters that are not frozen, without a gap. */
void layer_tp_lay_out(moe_layer_t *l)
{
    struct place place[PLACES];
    float *at = l->summands.all;
    list_places(l, place);
    l->summands.count = 0;
    for (size_t i = 0; i < PLACES; i++) {
        bool there = at != NULL && place[i].count > 0 && !layer_frozen(l, place[i].parameter);
        *place[i].at = there ? at : NULL;
        at += there ? place[i].count : 0;
        l->summands.count += there ? place[i].count : 0;
    }
}

int layer_tp_slice(moe_layer_t *l, int64_t tokens)
{
    l->tokens = l->own = tokens;
    l->first = 0;
    if (layer_on_tp(l) && l->config.tp_mode == MOE_TP_SPLIT_TOKENS) {
        if (tokens % l->tp_size != 0) {
            return LAYER_FAIL(l, MOE_E_SHAPE, "%lld tokens cannot be split over %d ranks of tp", (long long)tokens,
                              l->tp_size);
        }
        l->own = tokens / l->tp_size;
        l->first = l->own * l->tp_rank;
    }
    return 0;
}

/* Zeros in the tokens that are other ranks' of tp. */
int layer_tp_clear_rest(moe_layer_t *l, void *rows)
{
    const struct moe_ops *ops = moe_device_ops(l->device);
    size_t row = layer_row_bytes(l);
    int64_t after = l->tokens - l->first - l->own;
    int rc = l->first > 0 ? ops->zero(l->device, rows, (size_t)l->first * row) : 0;
    if (rc == 0 && after > 0) {
        rc = ops->zero(l->device, (char *)rows + (size_t)(l->first + l->own) * row, (size_t)after * row);
    }
    return rc;
}

/* to[i] += from[i], as a product with the number one. */
int layer_add(const moe_layer_t *l, const float *from, int64_t count, float *to)
{
    struct moe_gemm add = {.m = count, .n = 1, .k = 1, .alpha = 1.0f, .beta = 1.0f, .a = from, .b = l->one, .c = to};
    return moe_device_ops(l->device)->gemm(l->device, &add);
}

static int back_sum(void *arg)
{
    moe_layer_t *l = arg;
    ncclResult_t nc = ncclAllReduce(l->summands.all, l->summands.all, (size_t)l->summands.count, ncclFloat32, ncclSum,
                                    l->config.groups.tp, moe_device_stream(l->device));
    return nc == ncclSuccess ? 0
                             : LAYER_FAIL(l, MOE_E_COMM, "sum of the router's gradient: %s", ncclGetErrorString(nc));
}

/* Adds the sums to the main_grads. */
static int back_sum_add(void *arg)
{
    moe_layer_t *l = arg;
    layer_facts_sum(l, l->summands.gate);
    const struct moe_layer_weights *w = &l->weights;
    const struct moe_layer_config *c = &l->config;
    const struct {
        const float *from;
        void *to;
        int64_t count;
        enum moe_layer_parameter parameter;
    } table[] = {
        {l->summands.gate, w->d_gate, c->experts * c->hidden, MOE_LAYER_GATE},
        {l->summands.gate_bias, w->d_gate_bias, c->experts, MOE_LAYER_GATE_BIAS},
        {l->summands.shared_gate, w->shared.d_gate, c->hidden, MOE_LAYER_SHARED_GATE},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]) && rc == 0; i++) {
        if (table[i].from != NULL) {
            rc = layer_add(l, table[i].from, table[i].count, table[i].to);
            layer_ready(l, table[i].parameter);
        }
    }
    return rc;
}

int layer_tp_push_sum(moe_layer_t *l)
{
    struct moe_node add = {.name = "router-sum-add", .run = back_sum_add, .arg = l};
    struct moe_node sum = {.name = "router-sum",
                           .run = back_sum,
                           .arg = l,
                           .op = MOE_OBLIGE_ALLREDUCE,
                           .comm = l->config.groups.tp,
                           .count = (uint64_t)l->summands.count};
    int rc = moe_plan_push(&l->plan, &add);
    rc = rc ? rc : moe_plan_push(&l->plan, &sum);
    return rc == 0 && l->config.options.legacy_router_summed_twice ? moe_plan_push(&l->plan, &sum) : rc;
}

int layer_tp_begin_backward(moe_layer_t *l)
{
    return layer_tp_sums(l)
               ? moe_device_ops(l->device)->zero(l->device, l->summands.all, (size_t)l->summands.count * sizeof(float))
               : 0;
}
