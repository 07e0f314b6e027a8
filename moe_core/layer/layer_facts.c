/*
 * layer_facts.c: which facts about its tensors a layer takes (facts.h), and when: in the first microbatch of a step,
 * when gradients hold nothing older.
 *
 * Under tp the router's weight is a replica and its gradient a summand. The layer takes the share before the sum, and
 * the sum from the gradient that is used. Where the sum is missing, the share itself is used as the gradient, so
 * reporting it as the sum shows the fault (torchtitan #2416). A caller that makes the sum takes both facts itself.
 */
#include "moe_core/layer/layer_state.h"

#include "moe_core/include/moe/facts.h"

static bool wanted(const moe_layer_t *l)
{
    return l->config.facts != NULL && l->step.microbatch == 0;
}

static struct moe_subject router(const moe_layer_t *l)
{
    return (struct moe_subject){.tensor = MOE_TENSOR_ROUTER, .layer = l->config.layer, .comm = l->config.groups.tp};
}

static size_t gate_elements(const moe_layer_t *l)
{
    return (size_t)(l->config.experts * l->config.hidden);
}

void layer_facts_weights(moe_layer_t *l)
{
    struct moe_subject gate = router(l);
    if (wanted(l) && layer_on_tp(l) && l->phase == MOE_PHASE_FORWARD) {
        (void)moe_facts_replica(l->config.facts, &gate, l->weights.gate,
                                gate_elements(l) * moe_dtype_bytes(l->config.router.gate_type));
    }
}

void layer_facts_share(moe_layer_t *l)
{
    struct moe_subject gate = router(l);
    if (!wanted(l) || !layer_on_tp(l) || l->config.router_sum == MOE_ROUTER_SUM_CALLER ||
        layer_frozen(l, MOE_LAYER_GATE)) {
        return;
    }
    bool sums = layer_tp_sums(l);
    const float *share = sums ? l->summands.gate : l->weights.d_gate;
    (void)moe_facts_share(l->config.facts, &gate, share, gate_elements(l));
    if (!sums) {
        layer_facts_sum(l, share);
    }
}

void layer_facts_sum(moe_layer_t *l, const float *gate_gradient)
{
    struct moe_subject gate = router(l);
    if (wanted(l) && gate_gradient != NULL) {
        (void)moe_facts_sum(l->config.facts, &gate, gate_gradient, gate_elements(l));
    }
}

void layer_facts_experts(moe_layer_t *l)
{
    const struct moe_subject experts = {
        .tensor = MOE_TENSOR_EXPERTS, .layer = l->config.layer, .comm = moe_dispatcher_comm(l->dispatcher)};
    const int64_t *m = moe_dispatcher_m(l->dispatcher);
    int64_t local = moe_dispatcher_local(l->dispatcher), w2 = l->config.hidden * l->ffn;
    if (wanted(l) && !l->config.delay_wgrad) {
        if (!layer_frozen(l, MOE_LAYER_W1)) {
            (void)moe_facts_finite(l->config.facts, &experts, l->weights.d_w1, m, local, 2 * w2);
        }
        if (!layer_frozen(l, MOE_LAYER_W2)) {
            (void)moe_facts_finite(l->config.facts, &experts, l->weights.d_w2, m, local, w2);
        }
    }
}
