/*
 * layer_remedy.c: which remedies a layer asks for, what the group agrees on, and what a rank without rows does.
 *
 * Local remedies act on the answer at once. Symmetric ones are only proposed, and are in force when all ranks have
 * proposed them in the same exchange; so a rank that sees a switch late, or never, is no danger to the others
 * (docs/MOE.md, Remedies). A recomputed forward proposes what the first forward agreed on, because the obligations were
 * announced with that agreement.
 */
#include "moe_core/layer/layer_state.h"

#include "moe_core/base/memory.h"

#include <stdlib.h>

enum { SCOPE_LOCAL = 0, SCOPE_SYMMETRIC = 1 };
#define ROLL_REMEDY_ROW(name, bit, label, scope, text) | (uint32_t)SCOPE_##scope << (bit)
static const uint32_t symmetric = 0
#include "common/remedy.def"
    ;
#undef ROLL_REMEDY_ROW

/*
 * The wrong behaviour of this layer in every forward, as the symmetric remedies that cure it. The dispatcher asks for
 * its own remedies itself.
 */
static uint32_t hazards(const moe_layer_t *l)
{
    const struct moe_layer_config *c = &l->config;
    const struct moe_options *o = &c->options;
    bool unsummed = o->legacy_router_unsummed && layer_tp_shares(l) && !l->main->sum_declared;
    uint32_t mask = unsummed ? MOE_REMEDY_ROUTER_SUM : 0;
    bool equal = c->dispatcher == MOE_DISPATCH_HYBRIDEP || c->dispatcher == MOE_DISPATCH_ALLGATHER;
    if (equal && c->uneven == MOE_UNEVEN_NONE) {
        mask |= c->token_bound > 0 ? MOE_REMEDY_BOUND : MOE_REMEDY_UNEVEN;
    }
    return mask;
}

uint32_t layer_proposal(moe_layer_t *l)
{
    uint32_t told = moe_remedies(moe_dispatcher_comm(l->dispatcher), l->config.layer, hazards(l));
    told |= l->config.options.sanitize ? MOE_REMEDY_SANITIZE : 0;
    told &= l->main->sum_declared ? ~(uint32_t)MOE_REMEDY_ROUTER_SUM : UINT32_MAX;
    l->local = told & ~symmetric;
    return l->phase == MOE_PHASE_RECOMPUTE ? l->local | l->agreed : told;
}

/*
 * Votes on ROUTER_SUM. That remedy changes what is issued on tp, whose ranks need not meet in the dispatcher's
 * exchange, so the vote is held on tp: a minimum of one number per rank. Where the sum is not missing, or nothing would
 * be summed because the parameters are frozen, nothing is issued.
 */
int layer_agree_sum(moe_layer_t *l, uint32_t proposed)
{
    if (l->phase == MOE_PHASE_RECOMPUTE) {
        return 0;
    }
    if (!l->config.options.legacy_router_unsummed || !layer_tp_shares(l)) {
        l->sum_granted = false;
        return 0;
    }
    /*
     * A remedy that was switched on for tp counts as well; the question before this one was about the dispatcher's
     * communicator.
     */
    proposed |= l->main->sum_declared ? 0 : moe_remedies(l->config.groups.tp, l->config.layer, MOE_REMEDY_ROUTER_SUM);
    int32_t mine = (proposed & MOE_REMEDY_ROUTER_SUM) != 0, all = 0;
    int rc = moe_device_copy(l->device, l->vote, &mine, sizeof(mine));
    if (rc == 0) {
        ncclResult_t nc =
            ncclAllReduce(l->vote, l->vote, 1, ncclInt32, ncclMin, l->config.groups.tp, moe_device_stream(l->device));
        rc = nc == ncclSuccess ? 0 : LAYER_FAIL(l, MOE_E_COMM, "vote on tp: %s", ncclGetErrorString(nc));
    }
    rc = rc ? rc : moe_device_copy(l->device, &all, l->vote, sizeof(all));
    int waited = moe_device_sync(l->device); /* also on failure: the copies read this function's variables */
    rc = rc ? rc : waited;
    l->sum_granted = rc == 0 && all != 0;
    return rc;
}

/* Reports the cures of the dispatcher, once in each forward. */
void layer_report_cures(moe_layer_t *l)
{
    uint32_t cured = moe_dispatcher_plan(l->dispatcher)->remedied;
    for (uint32_t bit = 1; bit != 0 && bit <= cured; bit <<= 1) {
        if ((cured & bit) != 0) {
            layer_report_remedy(l, bit, 0);
        }
    }
}

/* Notes, after the exchange, which remedies are in force and which of those had something to do. */
void layer_settle(moe_layer_t *l, uint32_t agreed)
{
    const struct moe_dispatch_plan *plan = moe_dispatcher_plan(l->dispatcher);
    if (l->phase == MOE_PHASE_FORWARD) {
        l->agreed = agreed & symmetric;
        l->used = 0;
    }
    l->rows = plan->exact ? plan->received - plan->padded - plan->filler : -1;
    if (plan->padded > 0) {
        layer_report_remedy(l, MOE_REMEDY_PAD, plan->padded);
    }
    if (l->sum_granted && l->phase == MOE_PHASE_FORWARD) {
        layer_report_remedy(l, MOE_REMEDY_ROUTER_SUM, 0);
    }
}

/* Whether a forward that the stream captures will have dummy rows: with a row budget, where only the device counts. */
static bool captures_dummies(const moe_layer_t *l)
{
    bool budget = l->config.row_budget > 0 || l->config.budget_factor > 0.0f;
    return budget && (l->local & MOE_REMEDY_DUMMY) != 0 && moe_memory_capturing(l->device);
}

int layer_check_capture(moe_layer_t *l)
{
    return captures_dummies(l) && l->dummies[MOE_DUMMY_DEVICE] == NULL
               ? LAYER_FAIL(l, MOE_E_STATE,
                            "dummy rows for the first time while the stream is captured: run one forward with that "
                            "remedy before")
               : 0;
}

/*
 * Puts dummy rows before the experts. Where the host knows that no expert of this rank has a row, the host form does:
 * its buffers hold a row for each local expert and no real ones, and nothing is copied. Else the device form, which
 * moves the real rows. The first call of each form makes its buffers.
 */
int layer_dummy_rows(moe_layer_t *l)
{
    const struct moe_dispatch_plan *plan = moe_dispatcher_plan(l->dispatcher);
    int64_t local = moe_dispatcher_local(l->dispatcher);
    bool none = plan->exact && plan->received == 0;
    enum moe_dummy_form form = none ? MOE_DUMMY_HOST : MOE_DUMMY_DEVICE;
    int64_t *counts = none ? calloc((size_t)local, sizeof(*counts)) : NULL; /* read before the call returns */
    int rc = none && counts == NULL ? LAYER_FAIL(l, MOE_E_NOMEM, "row counts") : 0;
    if (rc == 0 && l->dummies[form] == NULL) {
        struct moe_dummy_config config = {.max_rows = none ? 0 : moe_dispatcher_max_rows(l->dispatcher),
                                          .hidden = l->config.hidden,
                                          .experts = local,
                                          .type = l->config.type,
                                          .form = form,
                                          .pooled = !moe_dispatcher_standing(l->dispatcher)};
        rc = moe_dummy_new(l->device, &config, &l->dummies[form]);
    }
    moe_dummy_release(l->dummies[none ? MOE_DUMMY_DEVICE : MOE_DUMMY_HOST]);
    l->dummy = l->dummies[form];
    const float *probs = l->config.place == MOE_PROB_SOURCE ? NULL : moe_dispatcher_row_probs(l->dispatcher);
    rc = rc ? rc
            : moe_dummy_forward(l->dummy, moe_dispatcher_rows(l->dispatcher), probs, moe_dispatcher_m(l->dispatcher),
                                counts, plan->received, &l->view);
    free(counts);
    return rc;
}

/*
 * Decides whether this rank skips its experts: the legacy behaviour of a rank that received no rows, unless the rank is
 * granted FILL or DUMMY at once. What was granted in the forward holds in its recomputation.
 */
int layer_decide_skip(moe_layer_t *l)
{
    const struct moe_dispatch_plan *plan = moe_dispatcher_plan(l->dispatcher);
    const uint32_t both = MOE_REMEDY_FILL | MOE_REMEDY_DUMMY;
    bool lost = l->config.options.legacy_skip_empty && plan->exact && plan->received == 0;
    uint32_t granted = l->local | (l->phase == MOE_PHASE_RECOMPUTE ? l->used & both : 0);
    if (lost && (granted & both) == 0) {
        granted |= moe_remedies(moe_dispatcher_comm(l->dispatcher), l->config.layer, MOE_REMEDY_FILL);
    }
    l->skipped = lost && (granted & both) == 0;
    if (l->skipped) {
        moe_dispatcher_detach(l->dispatcher);
    }
    l->dummied = (granted & MOE_REMEDY_DUMMY) != 0 && plan->empty_experts != 0; /* -1: only the device knows */
    if (l->dummied) {
        layer_report_remedy(l, MOE_REMEDY_DUMMY, plan->empty_experts > 0 ? plan->empty_experts : 0);
    } else if (lost && (granted & MOE_REMEDY_FILL) != 0) {
        layer_report_remedy(l, MOE_REMEDY_FILL, 0);
    }
    if (!l->dummied) { /* those of a forward that no backward followed */
        moe_dummy_release(l->dummies[MOE_DUMMY_HOST]);
        moe_dummy_release(l->dummies[MOE_DUMMY_DEVICE]);
    }
    return l->dummied ? layer_dummy_rows(l) : 0;
}
