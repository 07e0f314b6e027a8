/*
 * plan.h: the backward plan: what forward leaves for backward to do, and the collectives that backward will issue.
 *
 * Each step of forward pushes a node; backward runs the nodes in reverse. A node may carry an obligation: a collective
 * that running the node issues. The obligations of all ranks of a communicator must be the same list, or backward
 * hangs; moe_plan_report tells the observer the list while forward still runs (docs/MOE.md, Obligations). A step that
 * is detached pushes no node. A plan belongs to one thread at a time.
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

/* The collective that an obligation will issue, as an operation id of trace/op.def. */
enum moe_obligation_op {
    MOE_OBLIGE_NONE = 0,
    MOE_OBLIGE_ALLREDUCE = 1,
    MOE_OBLIGE_ALLGATHER = 4,
    MOE_OBLIGE_REDUCESCATTER = 5,
    MOE_OBLIGE_ALLTOALL = 6,
};

/* One step of backward. */
struct moe_node {
    const char *name;
    int (*run)(void *arg); /* issues the backward of the step; 0 or an error code */
    void *arg;             /* borrowed until the plan has run */
    enum moe_obligation_op op;
    void *comm;     /* the ncclComm_t of the obligation, borrowed; NULL without one */
    uint64_t count; /* elements of the obligation; 0 where they differ by rank */
};

/* The nodes pushed so far, in the order of forward; storage of the caller, empty when all zero. */
struct moe_plan {
    size_t used;
    struct moe_node node[MOE_PLAN_NODES];
};

/* Empties the plan. */
void moe_plan_reset(struct moe_plan *plan);
/* Appends a copy of `node`. Errors: CAPACITY (MOE_PLAN_NODES nodes already). */
int moe_plan_push(struct moe_plan *plan, const struct moe_node *node);
/* The number of obligations in the plan. */
size_t moe_plan_obligations(const struct moe_plan *plan);
/*
 * Reports the obligations to moe_observe, in the order of backward, and closes the list. `base` gives step, microbatch,
 * layer and ep communicator.
 */
void moe_plan_report(const struct moe_plan *plan, const struct moe_event *base);
/*
 * Runs the nodes from the last to the first until one fails, and empties the plan. Returns 0 or the error of the node
 * that failed.
 */
int moe_plan_run(struct moe_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
