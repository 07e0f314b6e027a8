/*
 * profiler.h: the loader's side of NCCL's profiler plugins: the functions by which this library tells a plugin what it
 * does.
 *
 * Events come at the same points as in NCCL: the API events (version 5 and later) when a call is appended to its group,
 * the task events when a group is launched, in the order in which it runs. Without a plugin none of these functions
 * does anything.
 */
#ifndef ROLL_HOSTNCCL_NCCL_PROFILER_H
#define ROLL_HOSTNCCL_NCCL_PROFILER_H

#include "hostnccl/nccl/internal.h"

/*
 * Tell that a communicator is complete, and that it ends. The first communicator loads the plugin, the last one unloads
 * it.
 */
void hn_profiler_init(ncclComm_t comm);
void hn_profiler_finalize(ncclComm_t comm);

/* Tell that a call is appended to the group of this thread, `depth` deep; fill in the handles of the work. */
void hn_profiler_coll_call(ncclComm_t comm, struct hn_coll *coll, cudaStream_t stream, int depth);
void hn_profiler_p2p_call(ncclComm_t comm, struct hn_p2p *op, cudaStream_t stream, int depth);

/* Tell that the outermost group of this thread begins to end, and that it has ended. */
void hn_profiler_group_ends(void);
void hn_profiler_group_ended(void);

/* Tells what a plan is about to run, on the thread that launches the plan. */
void hn_profiler_tasks(struct hn_plan *plan);

#endif
