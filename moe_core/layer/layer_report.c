/*
 * layer_report.c: what a layer tells the observer; the table is in observe.h.
 *
 * Events are about the group on which the ranks of the layer meet (tp_ep, else ep); splits are about the communicator
 * whose peers they name.
 */
#include "moe_core/layer/layer_state.h"

struct moe_event layer_event(const moe_layer_t *l, enum moe_event_kind kind, uint8_t phase, uint64_t count)
{
    return (struct moe_event){.size = sizeof(struct moe_event),
                              .kind = (uint16_t)kind,
                              .phase = phase,
                              .step = l->step.step,
                              .microbatch = l->step.microbatch,
                              .layer = (uint16_t)l->config.layer,
                              .peer = -1,
                              .count = count,
                              .comm = moe_dispatcher_comm(l->dispatcher)};
}

static uint32_t empty_experts(const moe_layer_t *l)
{
    int64_t empty = moe_dispatcher_plan(l->dispatcher)->empty_experts;
    return empty > 0 ? (uint32_t)empty : 0;
}

void layer_report_route(const moe_layer_t *l)
{
    struct moe_event e = layer_event(l, MOE_EV_ROUTE, l->phase, (uint64_t)l->own);
    e.peer = (int32_t)l->config.experts;
    e.aux = (uint32_t)l->config.topk;
    moe_observe(&e);
}

void layer_report_counts(const moe_layer_t *l)
{
    const struct moe_dispatch_plan *plan = moe_dispatcher_plan(l->dispatcher);
    if (!plan->exact) {
        return; /* an upper bound is not a count */
    }
    struct moe_event e = layer_event(l, MOE_EV_COUNTS, l->phase, (uint64_t)l->rows);
    e.peer = (int32_t)moe_dispatcher_local(l->dispatcher);
    e.aux = empty_experts(l) + (uint32_t)plan->padded;
    e.count2 = l->config.dispatcher == MOE_DISPATCH_ALLTOALL
                   ? (uint64_t)plan->sent
                   : 0; /* elsewhere a token is sent once for several experts */
    moe_observe(&e);
}

/* Reports the splits of the next exchange of rows towards the experts: dispatch in forward, combine in backward. */
void layer_report_splits(const moe_layer_t *l, uint8_t phase)
{
    const struct moe_dispatch_plan *plan = moe_dispatcher_plan(l->dispatcher);
    for (int32_t p = 0; p < plan->peers; p++) {
        struct moe_event e = layer_event(l, MOE_EV_SPLIT, phase, (uint64_t)plan->split_sent[p]);
        if (l->config.dispatcher == MOE_DISPATCH_ALLTOALL) {
            e.comm = l->config.groups.ep;
        }
        e.count2 = (uint64_t)plan->split_received[p];
        e.peer = p;
        moe_observe(&e);
    }
}

void layer_report_gemm(const moe_layer_t *l, uint8_t phase)
{
    struct moe_event e = layer_event(l, MOE_EV_GEMM, phase, (uint64_t)moe_dispatcher_plan(l->dispatcher)->received);
    e.peer = (int32_t)moe_dispatcher_local(l->dispatcher);
    e.aux = empty_experts(l);
    moe_observe(&e);
}

void layer_report_skip(const moe_layer_t *l)
{
    struct moe_event e = layer_event(l, MOE_EV_SKIP, l->phase, 0);
    e.peer = (int32_t)moe_dispatcher_local(l->dispatcher);
    moe_observe(&e);
}

void layer_report_remedy(moe_layer_t *l, uint32_t bit, int64_t rows)
{
    struct moe_event e = layer_event(l, MOE_EV_REMEDY, l->phase, (uint64_t)rows);
    e.peer = (int32_t)bit;
    l->used |= bit;
    moe_observe(&e);
}
