/*
 * layer_agree.c: a rank that cannot go on takes part in what its peers wait for, and says so there.
 *
 * A rank that returns an error where others wait for it causes the hang that this library is about. What a rank can
 * lack without having done anything wrong is memory, so where memory is made before a collective, the failure walks on
 * to the exchange that can carry it: the collectives in between are made with nothing in them. A flag on a communicator
 * of its own was rejected: all ranks would wait for it in every forward, for a failure that does not come.
 */
#include "moe_core/layer/layer_state.h"

#include "moe_core/base/words.h"

#include <stdlib.h>

/* The group whose ranks meet in the dispatcher; NULL: there is none, or the dispatcher will refuse it. */
static ncclComm_t group_of(const moe_layer_t *l)
{
    const struct moe_groups *g = &l->config.groups;
    int etp = 1, ep = 1;
    if (g->tp_ep != NULL) {
        return g->tp_ep;
    }
    bool known = (g->etp == NULL || ncclCommCount(g->etp, &etp) == ncclSuccess) &&
                 (g->ep == NULL || ncclCommCount(g->ep, &ep) == ncclSuccess);
    return !known ? NULL : etp == 1 ? g->ep : ep == 1 ? g->etp : NULL;
}

int layer_agree_made(moe_layer_t *l, int failed)
{
    ncclComm_t comm = group_of(l);
    int ranks = 1;
    if (failed == MOE_E_COMM) { /* the groups themselves are in doubt, or a peer has gone */
        return failed;
    }
    if (comm == NULL || ncclCommCount(comm, &ranks) != ncclSuccess || ranks == 1) {
        return failed;
    }
    const int64_t mine = failed;
    int64_t *all = calloc((size_t)ranks, sizeof(*all));
    if (all == NULL) {
        return failed ? failed : LAYER_FAIL(l, MOE_E_NOMEM, "words of %d ranks", ranks);
    }
    struct moe_failure own;
    moe_failure_keep(&own);
    int rc = moe_words_gather(l->device, comm, ranks, "layers that are made", &mine, 1, all);
    for (int r = 0; r < ranks && rc == 0 && failed == 0; r++) {
        if (all[r] != 0) {
            rc = LAYER_FAIL(l, (int)all[r], "rank %d of the group could not make its layer", r);
        }
    }
    free(all);
    if (failed != 0) {
        moe_failure_restore(&own);
    }
    return failed ? failed : rc;
}

void layer_at_dispatcher(moe_layer_t *l)
{
    struct moe_event at = layer_event(l, MOE_EV_UNIFORM, l->phase, 0);
    moe_dispatcher_at(l->dispatcher, &at);
    moe_dispatcher_share(l->dispatcher, !l->step.alone);
    moe_dispatcher_set_alike(l->dispatcher, (uint16_t)l->weights.frozen);
}

int layer_decline(moe_layer_t *l, uint32_t proposed, bool routes)
{
    bool again = l->phase == MOE_PHASE_RECOMPUTE;
    struct moe_failure own;
    int rc = 0;
    moe_failure_keep(&own);
    if (routes) {
        bool counting = moe_router_counting(l->router);
        moe_router_set_counting(l->router, counting && !again);
        rc = moe_router_decline(l->router, l->routed);
        moe_router_set_counting(l->router, counting);
    }
    rc = rc ? rc : layer_agree_sum(l, proposed);
    layer_at_dispatcher(l);
    if (rc == 0) {
        (void)moe_dispatcher_decline(l->dispatcher, l->own);
    }
    moe_failure_restore(&own);
    return MOE_E_NOMEM;
}
