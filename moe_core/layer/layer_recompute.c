/*
 * layer_recompute.c: the forward that backward runs again, and the routing, which must be the same both times.
 *
 * Ties of the router fall the same way each time (router.h), so a recomputed forward routes alike by itself. The legacy
 * behaviour lets one tie fall the other way: rows then go to another rank than in the forward, and some rank has
 * gradients for rows that it did not have (hazard H9). A rank that sees the difference stops, as a framework does whose
 * saved tensors then have another shape, and its peers wait for it.
 */
#include "moe_core/layer/layer_state.h"

#include <stdlib.h>

struct row {
    int32_t *index; /* [k] of the first token */
    float *probs;   /* [E] of the first token */
    int64_t *counts;
};

/*
 * Moves the last choice of the first token from its expert to the expert at the same place of the next rank, unless the
 * token has chosen that one already.
 */
static void change_row(const moe_layer_t *l, const struct row *row)
{
    int32_t k = l->config.topk, from = row->index[k - 1];
    int64_t experts = l->config.experts, step = moe_dispatcher_local(l->dispatcher);
    if (from < 0) {
        return;
    }
    for (int64_t to = (from + step) % experts; to != from; to = (to + 1) % experts) {
        if (row->probs[to] == 0.0f) {
            row->index[k - 1] = (int32_t)to;
            row->probs[to] = row->probs[from];
            row->probs[from] = 0.0f;
            row->counts[from]--;
            row->counts[to]++;
            return;
        }
    }
}

/* Copies the routing with one choice changed into memory of the layer, because the router keeps its own choice. */
static int flip(moe_layer_t *l)
{
    const struct moe_layer_config *c = &l->config;
    size_t experts = (size_t)c->experts, k = (size_t)c->topk, own = (size_t)l->own;
    struct row row = {malloc(k * sizeof(*row.index)), malloc(experts * sizeof(*row.probs)),
                      malloc(experts * sizeof(*row.counts))};
    int rc = row.index == NULL || row.probs == NULL || row.counts == NULL ? LAYER_FAIL(l, MOE_E_NOMEM, "a routing") : 0;
    const struct {
        void *copy;
        const void *from;
        size_t bytes;
        void *host;
        size_t host_bytes;
    } table[] = {
        {l->flip_index, l->routing.index, own * k * sizeof(int32_t), row.index, k * sizeof(int32_t)},
        {l->flip_probs, l->routing.probs, own * experts * sizeof(float), row.probs, experts * sizeof(float)},
        {l->flip_counts, l->routing.counts, experts * sizeof(int64_t), row.counts, experts * sizeof(int64_t)},
    };
    enum { ROWS = sizeof(table) / sizeof(table[0]) };
    for (size_t i = 0; i < ROWS && rc == 0; i++) {
        rc = moe_device_copy(l->device, table[i].copy, table[i].from, table[i].bytes);
        rc = rc ? rc : moe_device_copy(l->device, table[i].host, table[i].copy, table[i].host_bytes);
    }
    int waited = moe_device_sync(l->device);
    rc = rc ? rc : waited;
    if (rc == 0) {
        change_row(l, &row);
        for (size_t i = 0; i < ROWS && rc == 0; i++) {
            rc = moe_device_copy(l->device, table[i].copy, table[i].host, table[i].host_bytes);
        }
        waited = moe_device_sync(l->device);
        rc = rc ? rc : waited;
        l->routing.index = l->flip_index;
        l->routing.probs = l->flip_probs;
        l->routing.counts = l->flip_counts;
    }
    free(row.index);
    free(row.probs);
    free(row.counts);
    return rc;
}

bool layer_routes_again(moe_layer_t *l)
{
    const struct moe_options *o = &l->config.options;
    uint32_t hazard = o->legacy_recompute_flip ? MOE_REMEDY_ROUTING : 0;
    bool told = ((l->local | moe_remedies(moe_dispatcher_comm(l->dispatcher), l->config.layer, hazard)) &
                 MOE_REMEDY_ROUTING) != 0;
    if (told && hazard != 0) {
        layer_report_remedy(l, MOE_REMEDY_ROUTING, 0);
    }
    return !told && !o->keep_routing;
}

/*
 * The routing of a recomputed forward: that of the first forward where it is kept, else a new run of the router, whose
 * tokens are not counted a second time.
 */
int layer_route_again(moe_layer_t *l)
{
    const struct moe_options *o = &l->config.options;
    if (!layer_routes_again(l)) {
        return 0;
    }
    struct moe_router_weights gate = {l->weights.gate, l->weights.gate_bias, l->weights.expert_bias};
    bool counting = moe_router_counting(l->router);
    moe_router_set_counting(l->router, false);
    l->routed = true;
    int rc = moe_router_forward(l->router, layer_f32(l) ? layer_own_rows(l, l->x) : l->x32, &gate, l->own);
    moe_router_set_counting(l->router, counting);
    return rc == 0 && o->legacy_recompute_flip && l->own > 0 ? flip(l) : rc;
}

int layer_recompute(moe_layer_t *l)
{
    int64_t before = l->rows;
    l->phase = MOE_PHASE_RECOMPUTE;
    moe_plan_reset(&l->plan);
    int rc = layer_take(l, (size_t)l->tokens * layer_row_bytes(l), (size_t)l->config.max_tokens * layer_row_bytes(l),
                        &l->y_again);
    l->routed = false;
    rc = rc == MOE_E_NOMEM ? layer_decline(l, 0, layer_routes_again(l)) : rc;
    rc = rc ? rc : layer_forward_pass(l, l->y_again);
    layer_give(l, &l->y_again);
    if (rc == 0 && before >= 0 && l->rows != before) {
        rc = LAYER_FAIL(l, MOE_E_SPLIT, "the recomputed forward received %lld rows, the forward %lld",
                        (long long)l->rows, (long long)before);
        moe_plan_reset(&l->plan);
    }
    return rc;
}
