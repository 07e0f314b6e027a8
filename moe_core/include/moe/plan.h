/*
 * plan.h: the backward plan: what forward leaves for backward to do, and the collectives that it will issue.
 *
 * Each step of forward pushes a node; backward runs the nodes in reverse. A node may carry an obligation: a collective
 * that running it issues. The obligations of all ranks of a communicator must be the same list, or backward hangs;
 * moe_plan_report tells the observer the list while forward still runs (docs/MOE.md, Obligations). A step that is
 * detached pushes no node.
 */
#ifndef MOE_PLAN_H
#define MOE_PLAN_H

#include "observe.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MOE_PLAN_NODES 32u

/* Operation ids as in trace/op.def: what an obligation will issue. */
enum moe_obligation_op {
    MOE_OBLIGE_NONE = 0,
    MOE_OBLIGE_ALLREDUCE = 1,
    MOE_OBLIGE_ALLGATHER = 4,
    MOE_OBLIGE_REDUCESCATTER = 5,
    MOE_OBLIGE_ALLTOALL = 6,
};

struct moe_node {
    const char *name;
    int (*run)(void *arg); /* issues the backward of the step; 0 or an error code */
    void *arg;             /* borrowed until the plan was run */
    enum moe_obligation_op op;
    void *comm;     /* of the obligation */
    uint64_t count; /* elements, 0 where they differ by rank */
};

struct moe_plan {
    size_t used;
    struct moe_node node[MOE_PLAN_NODES];
};

/* Forgets all nodes. */
void moe_plan_reset(struct moe_plan *plan);
/* Appends a copy of node. Errors: CAPACITY. */
int moe_plan_push(struct moe_plan *plan, const struct moe_node *node);
/* Obligations in the plan. */
size_t moe_plan_obligations(const struct moe_plan *plan);
/* Reports the obligations, in the order of backward, and closes the list. `base` gives step, microbatch, layer and ep
 * communicator. */
void moe_plan_report(const struct moe_plan *plan, const struct moe_event *base);
/* Runs the nodes from the last to the first, and resets the plan. The first error ends it. */
int moe_plan_run(struct moe_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
