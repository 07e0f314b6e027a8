/*
 * plan.c: the backward plan: a fixed array, walked backwards.
 *
 * A layer's forward has a handful of steps, so the plan is an array in the layer and not a graph: the order in which
 * backward issues collectives is then one visible list, which is what the observer is told.
 */
#include "moe_core/include/moe/plan.h"

#include "moe_core/base/fail.h"

void moe_plan_reset(struct moe_plan *plan)
{
    plan->used = 0;
}

int moe_plan_push(struct moe_plan *plan, const struct moe_node *node)
{
    if (plan->used == MOE_PLAN_NODES) {
        return moe_fail(MOE_E_CAPACITY, MOE_NO_RANK, MOE_NO_LAYER, "more than %u nodes in a plan", MOE_PLAN_NODES);
    }
    plan->node[plan->used++] = *node;
    return 0;
}

size_t moe_plan_obligations(const struct moe_plan *plan)
{
    size_t n = 0;
    for (size_t i = 0; i < plan->used; i++) {
        n += plan->node[i].op != MOE_OBLIGE_NONE;
    }
    return n;
}

void moe_plan_report(const struct moe_plan *plan, const struct moe_event *base)
{
    struct moe_event event = *base;
    uint32_t index = 0;
    event.kind = MOE_EV_OBLIGE;
    for (size_t i = plan->used; i-- > 0;) {
        const struct moe_node *node = &plan->node[i];
        if (node->op != MOE_OBLIGE_NONE) {
            event.comm = node->comm;
            event.count = node->count;
            event.peer = (int32_t)node->op;
            event.aux = index++;
            moe_observe(&event);
        }
    }
    event = *base;
    event.kind = MOE_EV_OBLIGE_END;
    event.count = index;
    event.peer = -1;
    moe_observe(&event);
}

int moe_plan_run(struct moe_plan *plan)
{
    int rc = 0;
    for (size_t i = plan->used; i-- > 0 && rc == 0;) {
        rc = plan->node[i].run(plan->node[i].arg);
    }
    moe_plan_reset(plan);
    return rc;
}
