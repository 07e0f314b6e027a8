/*
 * layer_backward.c: the nodes of the backward plan, and the walk.
 *
 * Forward pushes one node per step; backward is the plan walked in reverse. A rank that skipped its experts leaves out
 * the nodes of the steps that a framework's detached graph would lose (dispatch, experts, combine:
 * moe_dispatcher_detach), and no others: the router still gets its gradient. A special case in backward was rejected:
 * the missing nodes are the hazard itself, and the observer sees exactly the list that backward will walk.
 *
 * Order of backward: [shared expert] combine, experts, dispatch, router, the shared expert's share of dx, the sum over
 * tp. dx is a sum of three. With float32 rows the three are added in place; with other row types the router's share is
 * added in float32 and the sum is cast once.
 */
#include "moe_core/layer/layer_state.h"

/*
 * Translates the experts' parameters to the layer's for the callback. While the gradients are still in other memory,
 * the callback is not made.
 */
void layer_experts_ready(void *arg, int which)
{
    static const enum moe_layer_parameter name[] = {[MOE_EXPERTS_W1] = MOE_LAYER_W1,
                                                    [MOE_EXPERTS_B1] = MOE_LAYER_B1,
                                                    [MOE_EXPERTS_W2] = MOE_LAYER_W2,
                                                    [MOE_EXPERTS_B2] = MOE_LAYER_B2};
    const moe_layer_t *l = arg;
    bool later = l->held != NULL && (which == MOE_EXPERTS_W1 || which == MOE_EXPERTS_W2);
    if (!later) {
        layer_ready(l, name[which]);
    }
}

struct moe_experts_weights layer_expert_weights(const moe_layer_t *l)
{
    const struct moe_layer_weights *w = &l->weights;
    struct moe_experts_weights out = {.w1 = w->w1,
                                      .w2 = w->w2,
                                      .d_w1 = w->d_w1,
                                      .d_w2 = w->d_w2,
                                      .b1 = w->b1,
                                      .b2 = w->b2,
                                      .d_b1 = w->d_b1,
                                      .d_b2 = w->d_b2,
                                      .scale1 = w->scale1,
                                      .scale2 = w->scale2,
                                      .frozen = layer_frozen_experts(l)};
    if (l->held != NULL && out.d_w1 != NULL) {
        out.d_w1 = l->held;
    }
    if (l->held != NULL && out.d_w2 != NULL) {
        out.d_w2 = l->held + moe_dispatcher_local(l->dispatcher) * 2 * l->config.hidden * l->ffn;
    }
    return out;
}

/* The shared expert's weights, with those gradients that are summands placed where the sum over tp finds them. */
struct moe_shared_weights layer_shared_weights(const moe_layer_t *l)
{
    struct moe_shared_weights w = l->weights.shared;
    bool summand = layer_tp_sums(l) && l->summands.shared_gate != NULL && w.d_gate != NULL;
    w.frozen = layer_frozen_shared(l);
    w.d_gate = summand ? (void *)l->summands.shared_gate : w.d_gate;
    return w;
}

static int cast(const moe_layer_t *l, enum moe_dtype from_type, const void *from, enum moe_dtype to_type, void *to)
{
    struct moe_cast args = {
        .count = l->own * l->config.hidden, .from_type = from_type, .to_type = to_type, .from = from, .to = to};
    return moe_device_ops(l->device)->cast(l->device, &args);
}

static int back_route(void *arg)
{
    moe_layer_t *l = arg;
    enum moe_dtype type = l->config.type;
    bool sums = layer_tp_sums(l);
    float *d_gate = layer_frozen(l, MOE_LAYER_GATE) ? NULL : sums ? l->summands.gate : l->weights.d_gate;
    float *d_bias = layer_frozen(l, MOE_LAYER_GATE_BIAS) ? NULL : sums ? l->summands.gate_bias : l->weights.d_gate_bias;
    void *own = layer_own_rows(l, l->dx);
    const float *d_probs = moe_dispatcher_d_probs(l->dispatcher);
    int rc = layer_f32(l) ? 0
                          : layer_take(l, (size_t)(l->own * l->config.hidden) * sizeof(float),
                                       (size_t)(l->own_max * l->config.hidden) * sizeof(float), &l->dx32);
    float *dx = layer_f32(l) ? own : l->dx32;
    rc = rc || layer_f32(l) ? rc : cast(l, type, l->d_input, MOE_F32, l->dx32);
    rc = rc ? rc : moe_router_backward(l->router, d_probs, dx, d_gate, d_bias);
    rc = rc || layer_f32(l) ? rc : cast(l, MOE_F32, l->dx32, type, own);
    if (rc == 0) {
        layer_facts_share(l);
    }
    if (rc == 0 && !sums) {
        layer_ready(l, MOE_LAYER_GATE);
        if (l->config.router.gate_bias) {
            layer_ready(l, MOE_LAYER_GATE_BIAS);
        }
    }
    return rc;
}

static int back_experts(void *arg)
{
    moe_layer_t *l = arg;
    struct moe_experts_weights weights = layer_expert_weights(l);
    const void *dy = moe_dispatcher_d_expert_out(l->dispatcher);
    void *dx = moe_dispatcher_d_rows(l->dispatcher);
    float *d_probs = l->config.place == MOE_PROB_SOURCE ? NULL : moe_dispatcher_d_row_probs(l->dispatcher);
    layer_report_gemm(l, MOE_PHASE_BACKWARD);
    int rc = layer_held_begin(l);
    if (rc == 0 && l->dummied) {
        rc = moe_dummy_strip_backward(l->dummy, dy);
        rc = rc ? rc
                : moe_experts_backward(l->experts, &weights, l->view.dy, l->view.dx,
                                       d_probs != NULL ? l->view.d_row_probs : NULL);
        rc = rc ? rc : moe_dummy_backward(l->dummy, dx, d_probs);
    } else if (rc == 0) {
        rc = moe_experts_backward(l->experts, &weights, dy, dx, d_probs);
    }
    rc = rc ? rc : layer_held_end(l);
    if (rc == 0) {
        layer_facts_experts(l);
    }
    if (!l->config.delay_wgrad) {
        moe_dispatcher_experts_done(l->dispatcher);
    }
    return rc;
}

/* Reports the rows that combine's backward, the next node, is about to exchange. */
static int back_splits(void *arg)
{
    layer_report_splits(arg, MOE_PHASE_BACKWARD);
    return 0;
}

static int back_shared_begin(void *arg)
{
    moe_layer_t *l = arg;
    return moe_shared_pre_backward_comm(l->shared, l->dy);
}

static int back_shared_products(void *arg)
{
    moe_layer_t *l = arg;
    int rc = moe_shared_fc2_backward(l->shared);
    return rc ? rc : moe_shared_fc1_backward(l->shared);
}

static int back_shared_end(void *arg)
{
    moe_layer_t *l = arg;
    return moe_shared_post_backward_comm(l->shared);
}

static int back_shared_grad(void *arg)
{
    moe_layer_t *l = arg;
    bool sums = layer_tp_sums(l);
    int rc = l->config.shared_overlap ? 0 : moe_shared_get_grad(l->shared, l->dx, true);
    layer_ready(l, MOE_LAYER_SHARED_W2);
    layer_ready(l, MOE_LAYER_SHARED_W1);
    if (l->config.shared_bias) {
        layer_ready(l, MOE_LAYER_SHARED_B1);
        layer_ready(l, MOE_LAYER_SHARED_B2);
    }
    if (l->config.shared_gate && !sums) {
        layer_ready(l, MOE_LAYER_SHARED_GATE);
    }
    return rc;
}

static int push(moe_layer_t *l, const char *name, int (*run)(void *))
{
    struct moe_node node = {.name = name, .run = run, .arg = l};
    return moe_plan_push(&l->plan, &node);
}

/* Pushes the shared expert's backward where it does not overlap; the table of shared.h lists its collectives on tp. */
static int push_shared(moe_layer_t *l)
{
    bool sequence = layer_on_tp(l) && l->config.tp_mode == MOE_TP_SEQUENCE;
    uint64_t count = (uint64_t)(l->tokens * l->config.hidden);
    struct moe_node end = {.name = "shared-end", .run = back_shared_end, .arg = l};
    struct moe_node begin = {.name = "shared-begin", .run = back_shared_begin, .arg = l};
    if (sequence) {
        end.op = MOE_OBLIGE_REDUCESCATTER;
        begin.op = MOE_OBLIGE_ALLGATHER;
        end.comm = begin.comm = l->config.groups.tp;
        end.count = begin.count = count;
    }
    int rc = moe_plan_push(&l->plan, &end);
    rc = rc ? rc : push(l, "shared-products", back_shared_products);
    return rc ? rc : moe_plan_push(&l->plan, &begin);
}

int layer_push_plan(moe_layer_t *l)
{
    int rc = layer_tp_sums(l) ? layer_tp_push_sum(l) : 0;
    if (rc == 0 && l->shared != NULL) {
        rc = push(l, "shared-grad", back_shared_grad);
    }
    rc = rc ? rc : push(l, "route", back_route);
    rc = rc ? rc : moe_dispatcher_push_dispatch(l->dispatcher, &l->plan);
    rc = rc || l->skipped ? rc : push(l, "experts", back_experts);
    rc = rc ? rc : moe_dispatcher_push_combine(l->dispatcher, &l->plan);
    rc = rc || l->skipped ? rc : push(l, "splits", back_splits);
    return rc == 0 && l->shared != NULL && !l->config.shared_overlap ? push_shared(l) : rc;
}

int layer_backward(moe_layer_t *l, const void *dy, void *dx)
{
    const struct moe_ops *ops = moe_device_ops(l->device);
    if (l->plan.used == 0) {
        return LAYER_FAIL(l, MOE_E_STATE, "backward before forward");
    }
    int rc = layer_check_gradients(l);
    if (rc != 0) {
        return rc;
    }
    l->dy = dy;
    l->dx = dx;
    moe_device_at(l->device, l->config.world_rank, l->config.layer);
    rc = l->config.recompute ? layer_recompute(l) : 0;
    rc = rc ? rc : layer_tp_begin_backward(l);
    rc = rc ? rc : ops->zero(l->device, dx, (size_t)l->tokens * layer_row_bytes(l));
    if (rc == 0 && !layer_f32(l)) {
        rc = layer_take(l, (size_t)l->own * layer_row_bytes(l), (size_t)l->own_max * layer_row_bytes(l), &l->d_input);
        rc = rc ? rc : ops->zero(l->device, l->d_input, (size_t)l->own * layer_row_bytes(l));
    }
    if (rc == 0) {
        moe_dispatcher_begin_backward(l->dispatcher, layer_own_rows(l, dy),
                                      layer_f32(l) ? layer_own_rows(l, dx) : l->d_input);
        rc = moe_plan_run(&l->plan);
    }
    if (rc != 0) {
        moe_plan_reset(&l->plan);
        moe_shared_reset(l->shared);
    }
    l->dw_waits = rc == 0 && l->config.delay_wgrad;
    if (!l->dw_waits) {
        layer_release(l);
    }
    return moe_fail_at(rc, l->config.world_rank, l->config.layer);
}

int layer_backward_dw(moe_layer_t *l)
{
    moe_device_at(l->device, l->config.world_rank, l->config.layer);
    bool due = l->dw_waits;
    l->dw_waits = false;
    int rc = moe_experts_backward_dw(l->experts);
    if (due) { /* a call that nothing waited for must not take the rows of a forward whose backward comes */
        layer_release(l);
    }
    return moe_fail_at(rc, l->config.world_rank, l->config.layer);
}
