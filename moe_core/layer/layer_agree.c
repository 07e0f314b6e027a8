/*
 * layer_agree.c: a rank that cannot go on takes part in what its peers wait for, and says so there.
 *
 * A rank that returns an error where others wait for it causes the hang that this library is about. What a rank can
 * lack without having done anything wrong is memory, so where memory is made before a collective, the failure walks on
 * to the exchange that can carry it: the collectives in between are made with nothing in them. A flag on a communicator
 * of its own was rejected: all ranks would wait for it in every forward, for a failure that does not come.
 *
 * A layer is made in two steps with an agreement behind each. The first step calls no peer: a configuration that one
 * rank refuses says nothing of what its peers, whose own is another, will issue next, so all must know before any does.
 */
#include "moe_core/layer/layer_state.h"

#include "moe_core/base/words.h"

#include <stdio.h>

/* The group whose ranks meet in the dispatcher; NULL: there is none, or the dispatcher will refuse it. */
static ncclComm_t group_of(const struct moe_layer_config *c)
{
    const struct moe_groups *g = &c->groups;
    ncclComm_t of_ep = g->ep != NULL ? g->ep : c->ep;
    int etp = 1, ep = 1;
    if (g->tp_ep != NULL) {
        return g->tp_ep;
    }
    bool known = (g->etp == NULL || ncclCommCount(g->etp, &etp) == ncclSuccess) &&
                 (of_ep == NULL || ncclCommCount(of_ep, &ep) == ncclSuccess);
    return !known ? NULL : etp == 1 ? of_ep : ep == 1 ? g->etp : NULL;
}

/*
 * On one communicator. A rank that was told of another's failure in an exchange before gets the other's reason here,
 * where the other is heard.
 */
static int agree_on(moe_device_t *device, const struct moe_layer_config *c, ncclComm_t comm, const char *group,
                    int failed)
{
    struct moe_failure own;
    struct moe_refusal mine = {.rank = -1}, first;
    int ranks = 1;
    if (comm == NULL || ncclCommCount(comm, &ranks) != ncclSuccess || ranks == 1) {
        return failed;
    }
    failed = failed ? failed : moe_device_sync(device); /* else the wait below would bring it to this rank alone */
    moe_failure_keep(&own);
    mine.code = failed;
    if (failed != 0 && own.code == failed) {
        mine.told = own.told;
        snprintf(mine.why, sizeof(mine.why), "%s", own.message + own.detail);
    }
    int rc = moe_words_agree(device, comm, &mine, &first);
    if (rc == 0 && first.rank >= 0 && (failed == 0 || (mine.told && !first.told))) {
        return moe_told(moe_fail(first.code, c->world_rank, c->layer, "rank %d of %s could not make its layer: %s",
                                 first.rank, group, first.why));
    }
    if (failed != 0) {
        moe_failure_restore(&own);
    }
    return failed ? failed : rc;
}

/*
 * Ranks of tp are in dispatch groups of their own where each has its part of the experts: one such group knows behind
 * the first agreement, and tells the others by the second.
 */
int layer_agree_made(moe_device_t *device, const struct moe_layer_config *c, int failed)
{
    failed = agree_on(device, c, group_of(c), "the group", failed);
    return agree_on(device, c, c->groups.tp, "tp", failed);
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
