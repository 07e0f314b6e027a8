/*
 * profiler.h: the loader's side of NCCL's profiler plugins: where in its work this library tells a plugin what it does.
 *
 * Events come at the points at which NCCL has them: the API events (version 5 and later) when a call is appended to its
 * group, the task events when a group is launched, in the order in which it runs. None of these does anything without a
 * plugin.
 */
#ifndef HN_PROFILER_H
#define HN_PROFILER_H

#include "hostnccl/nccl/internal.h"

/* A communicator is complete, and ends. The first loads the plugin, the last unloads it. */
void hn_profiler_init(ncclComm_t comm);
void hn_profiler_finalize(ncclComm_t comm);

/* A call is appended to the group of this thread, `depth` deep; fills the handles of the work. */
void hn_profiler_coll_call(ncclComm_t comm, struct hn_coll *coll, cudaStream_t stream, int depth);
void hn_profiler_p2p_call(ncclComm_t comm, struct hn_p2p *op, cudaStream_t stream, int depth);

/* The outermost group of this thread begins to end, and has ended. */
void hn_profiler_group_ends(void);
void hn_profiler_group_ended(void);

/* What a plan is about to run, on whatever thread launches it. */
void hn_profiler_tasks(struct hn_plan *plan);

#endif
